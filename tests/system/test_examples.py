"""The inventories and command lines that people copy: read by Ansible, checked, and planned for hosts of the release they name.

Nothing is asked of a network: NVIDIA's repository is the lab's, with every package that the real one has for that release.
"""

import re
import shutil
from dataclasses import replace
from functools import cache
from textwrap import dedent

import pytest
import yaml

from provision import cli, inventory
from provision.catalog import load_catalog
from provision.collection import ROOT
from provision.drift.metrics import render
from provision.facts import Facts
from provision.inventory import cards
from provision.lib import yaml_reader
from provision.lock.model import parse as parse_lock
from provision.parts.candidates import Candidates
from provision.parts.registry import in_locks
from provision.planning import plan_from_facts
from provision.planning.verification import CheckSelection, refuse_unknown
from provision.rollout.options import parse as parse_rollout
from provision.runs.fleet import fleet_of
from tests.unit.candidates import CANDIDATES as DRIVERS
from tests.unit.candidates import CUDA_URI, archive
from tests.unit.containershosts import VERSIONS, archive_candidates, toolkit_candidates
from tests.unit.hosts import host
from tests.unit.test_docs import PAGES, command_lines, name, read
from tests.unit.test_planning import CHANGES, FakeHost
from tests.unit.test_resolve_cuda_lab import lab
from tools import docs

# What a page is about when it does not say: the release of all its sessions.
RELEASE = "24.04"
NAMED = re.compile(r"Ubuntu (\d\d\.\d\d)")
FILES = [*sorted((ROOT / "inventory/examples").glob("*.yml")), ROOT / "inventory/examples/fleet"]


def blocks(page):
    """(YAML of a fenced block, the paragraph before it) of a page."""
    text = page.read_text()
    for match in re.finditer(r"^ *```ya?ml\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield dedent(match[1]), text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]


BLOCKS = [(page, text, before) for page in PAGES for text, before in blocks(page)]
VARIABLES = [row for row in BLOCKS if isinstance(yaml_reader.load(row[1]), dict) and "schema:" not in row[1]]


def release_of(text):
    """The Ubuntu that a text names."""
    named = NAMED.search(text)
    return named[1] if named else RELEASE


@cache
def candidates(release, cuda_uri):
    """What apt has on a fresh host of a release: the archive with docker, NVIDIA's CUDA repository and container toolkit."""
    drivers = {n: [replace(c, uri=cuda_uri) for c in rows] for n, rows in DRIVERS["cuda"].packages.items()}
    cuda = {n: [replace(c, uri=cuda_uri) for c in rows] for n, rows in lab(release).packages.items()}
    found = {}
    for packages in (
        *(one.packages for one in (DRIVERS["noble"], archive_candidates(release), toolkit_candidates(VERSIONS))),
        # the exact version that inventory/examples/lab.yml names
        {c.name: [c] for c in archive("580", "580.126.20")},
        drivers,
        cuda,
    ):
        for package, rows in packages.items():
            found[package] = [*found.get(package, []), *rows]
    return Candidates(found)


def fresh(values, release):
    """A host without a driver, with the cards and the users that its inventory names."""
    rows, total = cards.read(values["gpu_verify_expect"] or 1)
    ids = [load_catalog().find_gpu(card or "H100").gpu.ids[-1] for count, card in rows for _ in range(count)]
    made = host(
        host={"os": {"id": "ubuntu", "version_id": release}},
        nvswitches=5 if total == 8 else 0,
        containers={"users": values["container_toolkit_docker_users"]},
    )
    gpus = [{"slot": f"0000:{0x10 + i:02x}:00.0", "device": device} for i, device in enumerate(ids)]
    return Facts.model_validate({**made.model_dump(), "gpus": gpus})


def refused(path, release):
    """Read an inventory as the command does, plan every host of it, and return why some cannot be."""
    found, seen = {}, []
    for host_name, values in fleet_of(inventory.load([str(path)])).values.items():
        if values not in seen:
            seen.append(values)
            found |= blocked(host_name, values, release)
    return found


def blocked(host_name, values, release):
    """Plan one host, and return why it cannot be."""
    uri = values["cuda_toolkit_repo_url"] or values["nvidia_driver_repo_url"]
    there = candidates(release, uri or CUDA_URI.replace("2404", release.replace(".", "")))
    call = FakeHost(there, {**CHANGES, "changes": []})
    plan = plan_from_facts(host_name, fresh(values, release), call, dict(values))
    return {f"{host_name}: {b.message}": [*b.because, b.hint] for b in plan.blockers}


# ---- inventories -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def values_of(tmp_path_factory):
    """{number of a block of variables: what a host has that gets them}; all in one inventory."""
    path = tmp_path_factory.mktemp("pages") / "hosts.yml"
    hosts = {f"block{number}": yaml_reader.load(text) for number, (_, text, _) in enumerate(VARIABLES)}
    path.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    return fleet_of(inventory.load([str(path)])).values


@pytest.mark.parametrize("number", range(len(VARIABLES)), ids=[f"{p.name}-{t.split(':')[0]}" for p, t, _ in VARIABLES])
def test_variables_in_pages_can_be_planned(values_of, number):
    _, text, before = VARIABLES[number]
    assert blocked("gpu01", values_of[f"block{number}"], release_of(text + before)) == {}


def test_what_a_release_does_not_have_would_be_found(tmp_path):
    """The first inventory of the README, as it was: for Ubuntu 24.04, with toolkits that its repository never had."""
    lines = {"all": {"hosts": {"gpu01": {"cuda_toolkit_versions": ["11.8", "13.0"]}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(lines))
    assert ["has no CUDA 11.8" in why for why in refused(tmp_path / "hosts.yml", "24.04")] == [True]
    assert refused(tmp_path / "hosts.yml", "22.04") == {}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_inventories_of_ours_can_be_planned(path):
    text = path.read_text() if path.is_file() else ""
    assert refused(path, release_of(text)) == {}


def test_every_block_of_yaml_is_something_that_is_checked():
    """Variables are planned, locks are read, plays and tasks name what exists; alerts name metrics. Nothing else is left."""
    metrics = render({"gpu01": ("drifted", "a", [])}, 0.0, 0.0)
    for page, text, _ in BLOCKS:
        data = yaml_reader.load(text)
        if isinstance(data, dict):
            assert "schema" not in data or parse_lock(text), page
            continue
        named = re.findall(r"\bgpu_provision_drift_[a-z_]+", text)
        assert all(metric in metrics for metric in named), f"{page}: {named}"
        assert named or "gpu.provision." in text, f"{page}: nobody checks\n{text}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_pages_name_exists(page):
    """Roles, modules and playbooks of the collection, files of this repository that programs are given, targets of make."""
    text = page.read_text()
    there = {path.stem for place in ("roles/*", "plugins/*/*.py", "playbooks/*.yml") for path in ROOT.glob(place)}
    assert set(re.findall(r"\bgpu\.provision\.([a-z_]+)", text)) <= there
    assert all(
        (ROOT / path).exists() for path in re.findall(r"\b(?:playbooks|execution-environment)/[\w/-]+\.yml", text)
    )
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", text, re.MULTILINE)) <= {
        pair for target in targets for pair in ((target, ""), ("", target))
    }


# ---- command lines -----------------------------------------------------------------------------------------------------


LINES = sorted({(page, tuple(words)) for page in PAGES for words in command_lines(page.read_text())})


@pytest.mark.parametrize(("page", "words"), LINES, ids=[f"{p.name}-{' '.join(w)[:60]}" for p, w in LINES])
def test_a_command_line_means_something(page, words, capsys, tmp_path, monkeypatch):
    """Its options exist, and so do the names that they take: variables, checks, parts, findings, versions, cards."""
    command, values = read(words)
    if values["extra_vars"] and not any("VARS" in text for text in values["extra_vars"]):
        fleet_of(inventory.load(["gpu01,"], None, values["extra_vars"]))
    if command == "verify":
        refuse_unknown(CheckSelection(tuple(values["check"] or ())), [check.code for check in docs.checks.every()])
    if command == "lock":
        assert {*(values["only"] or ())} <= {part.name for part in in_locks()}
    if command == "apply":
        parse_rollout(values["canary"], values["batch"], values["max_failures"], values["wait"], {})
    asked = [values["explain"], values["text"]] if command == "diagnose" else words[1:] if command == "compat" else []
    if "./catalog" in words:
        shutil.copytree(ROOT / "provision/catalog/data", tmp_path / "catalog")
        monkeypatch.chdir(tmp_path)
    if any(text and text != "-" and text != text.upper() for text in asked):
        # 5: a page shows what does not fit
        assert cli.run(list(words)) in (0, 5), capsys.readouterr()
