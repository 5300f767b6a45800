"""The collection's tarball in an empty folder, with ansible-core and the wheel alone: its playbooks on a lab host."""

import re

import pytest

from tests.package import environment
from tests.package.conftest import ROOT

DEPENDENCIES = ("ansible-core", "gpu-provision")


@pytest.fixture
def anywhere(tmp_path, wheel, collection):
    """playbook(name, *words) runs a playbook of the installed collection, far from the checkout."""
    packages = environment.make(tmp_path / "packages", wheel, *DEPENDENCIES)
    home, here = tmp_path / "home", tmp_path / "here"
    (home / ".ansible").mkdir(parents=True)
    here.mkdir()
    # Where ansible-galaxy puts it without being told.
    (home / ".ansible/collections").symlink_to(collection)
    said = environment.python(packages, home, "-c", "import provision, ansible; print(provision.__file__)", cwd=here)
    assert said.stdout.startswith(str(tmp_path)) and str(ROOT) not in said.stdout, said
    for name in ("pytest", "rattler", "molecule"):
        assert environment.python(packages, home, "-c", f"import {name}", cwd=here).returncode

    def playbook(name, *words):
        return environment.python(
            packages, home, "-m", "ansible", "playbook", *words, f"gpu.provision.{name}", cwd=here
        )

    return playbook


# test_package.py installs both outside of the checkout, and test_runner.py runs the collection's playbooks.
@pytest.mark.thorough
@pytest.mark.lab
def test_every_playbook_runs_from_the_tarball(anywhere, lab, target):
    where = ["-i", lab.inventory, "-e", '{"gpu_verify_run": false}']
    asked = anywhere("plan", *where)
    assert asked.returncode == 0 and "changed=0" in asked.stdout, asked.stdout + asked.stderr
    assert re.search(r"\+ driver: .*580", asked.stdout) and "to install" in asked.stdout, asked.stdout
    first = anywhere("site", *where)
    assert first.returncode == 0, first.stdout + first.stderr
    assert target.run("nvidia-smi -L").stdout.startswith("GPU 0")
    # That a second run changes nothing, and that a refusal is told: test_runner.py.
    for name in ("plan", "verify", "drift", "rescue"):
        done = anywhere(name, *where)
        assert name != "plan" or "nothing to change" in done.stdout, done.stdout
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        assert re.search(r"changed=0 .*failed=0", done.stdout), f"{name}: {done.stdout}"
    # The order of things was not only claimed: a driver that is gone is drift, and rescue's business.
    target.run("apt-mark unhold $(apt-mark showhold)")
    drifted = anywhere("drift", *where)
    assert drifted.returncode == 2, drifted.stdout
    assert "ansible-playbook gpu.provision.site" in drifted.stdout
