# gpu-provision: every target sets itself up on a fresh Debian or Ubuntu machine.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Our programs start a thousand times in the tests: without bytecode each start compiles them.
unexport PYTHONDONTWRITEBYTECODE

# Tests keep their files in memory where it has four GiB for them: ext4 looks long for an inode where many were just removed.
IN_MEMORY := $(shell [ "$$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1)" -ge 4 ] 2>/dev/null && \
  ! findmnt -no OPTIONS /dev/shm | grep -qw noexec && echo /dev/shm)
ifneq ($(IN_MEMORY),)
unit system lab-test package: export TMPDIR ?= $(IN_MEMORY)
endif

# In CI a part that does not end is interrupted, so that pytest says what failed and where it hung. test-all takes hours.
ifeq ($(CI)$(filter thorough,$(HYPOTHESIS_PROFILE)),true)
IN_TIME := timeout --foreground --signal INT --kill-after 60 40m
endif

.PHONY: docs docs-site recordings help demo test unit system lint lab-test lab-self-test metal molecule package release-check bench attack test-all clean needs
PARTS := lab-test lint unit system molecule package

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml tools/bootstrap.sh
	tools/bootstrap.sh $(VENV)

demo: $(STAMP)  ## two simulated lab servers go from nothing to a verified driver
	$(BIN)/python -m tests.lab.demo

# Two at a time, the longest first, so that both processors are busy to the end; the output of each comes when it is done.
test: export ROLES ?= nvidia_driver
test: needs  ## everything that must pass before a change lands
	+$(MAKE) -j2 --output-sync=target $(PARTS)

# Installed before the parts, which would wait for each other's apt.
needs: $(STAMP)
	tools/test-needs.sh
	$(BIN)/python -m tests.lab setup

docs: $(STAMP)  ## write the generated pages: READMEs of the roles, docs/checks.md, docs/findings, docs/schemas
	$(BIN)/python -m tools.docs

docs-site: $(STAMP)  ## the documentation as a site in ./site, with a search
	[ -x $(BIN)/mkdocs ] || $(BIN)/python -m pip install --quiet "mkdocs-material>=9.5"
	$(BIN)/python -m tools.site

recordings: $(STAMP)  ## the screens of the documentation, from simulated hosts (needs tmux)
	$(BIN)/python -m tests.lab.record

# The words of messages and pages are lint's. In one process: two would each collect ten thousand tests and report them to a third.
unit: $(STAMP)  ## unit tests and the fast attacks: no root, no network
	$(IN_TIME) $(BIN)/python -m pytest tests/unit tests/attack --ignore=tests/attack/lab --ignore=tests/unit/test_words.py

lint: $(STAMP)  ## ruff, mypy, yamllint, words of the documentation, ansible-lint (profile production)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	$(BIN)/codespell
	$(BIN)/python -m pytest -q tests/unit/test_words.py
	tools/fresh-ansible-home.sh $(BIN)/ansible-lint --offline --profile production

system: $(STAMP)  ## tests with real ansible-playbook, ssh, sudo and terminals on this machine
	tools/test-needs.sh
	$(IN_TIME) $(BIN)/python -m pytest -n 2 --dist loadfile tests/system

# Ubuntu's own root file system for the tests with real apt, where one lies beside the checkout.
lab-test: export LAB_APT_ROOTFS ?= $(wildcard ../shared/images/ubuntu-24.04-rootfs.tar.xz)
# Long files come first (tests/apt/test_transaction.py) and the small ones of tests/apt last, so that none runs alone at the end.
lab-test: $(STAMP)  ## tests on simulated hosts and real apt (containers, root)
	$(BIN)/python -m tests.lab setup
	$(IN_TIME) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/apt/test_t*.py tests/faults tests/attack/lab tests/lab tests/apt/test_[!t]*.py --ignore=tests/lab/self

lab-self-test: $(STAMP)  ## the simulator's own tests: run them when tests/lab changed
	$(BIN)/python -m tests.lab setup
	$(BIN)/python -m pytest -n 2 tests/lab/self

# Two guests at a time, without KVM: an hour on two processors. METAL_CUTS=20 tries more power cuts.
metal: $(STAMP)  ## real kernels in QEMU: modules, DKMS, initramfs, Secure Boot, power cuts, NVIDIA's own driver (root)
	$(BIN)/python -m pytest -v -n 2 --dist loadfile -rP --timeout 0 tests/metal

# One killed command has four hosts, and half as many commands run at a time as there are processors: hours on two of them.
attack: export HYPOTHESIS_PROFILE ?= thorough
attack: $(STAMP)  ## all attacks, the kill harness with 100 points of each kind: points tried, points lost
	$(BIN)/python -m tests.lab setup
	$(BIN)/python -m pytest tests/attack
	$(BIN)/python -m tests.attack.kill --points $(or $(POINTS),100)

molecule: $(STAMP)  ## the Molecule scenarios of all roles, or of ROLES="nvidia_driver …", on the lab's hosts
	$(BIN)/python -m tests.lab setup
	tools/molecule.sh $(ROLES)

package: $(STAMP)  ## wheel and collection, built and run outside this checkout
	$(BIN)/python -m tests.lab setup
	$(IN_TIME) $(BIN)/python -m pytest tests/package

release-check: $(STAMP)  ## sdist, wheel and collection: built, installed on every Python here, judged by the ecosystem's tools
	$(BIN)/python -m tools.release_check

bench: $(STAMP)  ## the figures: each beside its floor in the same run, three rounds, medians and ratios
	$(BIN)/python -m tests.lab setup
	$(BIN)/python -m tests.bench

test-all: export HYPOTHESIS_PROFILE ?= thorough
test-all: needs  ## make test with every scenario and many more examples, the lab's own tests, every Python
	+$(MAKE) -j2 --output-sync=target $(PARTS) lab-self-test
	tools/test-all.sh

clean:  ## stop what the lab started, remove what was built here
	-[ -x $(BIN)/python ] && $(BIN)/python -m tests.lab down
	rm -rf $(VENV) .venv-* .cache .pytest_cache .mypy_cache .ruff_cache .ansible dist site
