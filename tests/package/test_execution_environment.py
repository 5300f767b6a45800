"""The execution environment for AWX and ansible-navigator: its files agree with the package, and ansible-builder takes them."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import provision
from provision.lib import yaml_reader
from tests.package.conftest import ROOT

FOLDER = ROOT / "execution-environment"
BUILDER = shutil.which("ansible-builder") or shutil.which("ansible-builder", path=str(Path(sys.executable).parent))
needs_builder = pytest.mark.skipif(not BUILDER, reason="ansible-builder is not installed")


def requirements(path):
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    return {Requirement(line).name: str(Requirement(line).specifier) for line in lines if line}


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def test_what_it_installs_is_what_the_package_declares():
    ours = {one.name: str(one.specifier) for one in declared() if one.name != "ansible-core"}
    assert requirements(FOLDER / "requirements.txt") == ours
    meta = requirements(ROOT / "meta/ee-requirements.txt")
    assert meta.items() <= ours.items()
    definition = yaml_reader.load((FOLDER / "execution-environment.yml").read_text())
    core = Requirement(definition["dependencies"]["ansible_core"]["package_pip"])
    newest = [
        one for one in declared() if one.name == "ansible-core" and one.marker.evaluate({"python_version": "3.13"})
    ]
    assert [one.specifier for one in newest] == [core.specifier]
    (tarball,) = yaml_reader.load((FOLDER / "requirements.yml").read_text())["collections"]
    assert tarball["name"].endswith(f"/gpu-provision-{provision.__version__}.tar.gz")
    assert (FOLDER / "bindep.txt").read_text() == (ROOT / "meta/ee-bindep.txt").read_text()


@needs_builder
def test_ansible_builder_writes_the_context(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "ee", ignore=shutil.ignore_patterns("context", "dist"))
    dist = tmp_path / "ee/dist"
    dist.mkdir()
    names = [f"gpu-provision-{provision.__version__}.tar.gz", f"gpu_provision-{provision.__version__}-py3-none-any.whl"]
    for name in names:
        (dist / name).touch()
    made = subprocess.run(
        [BUILDER, "create", "-f", "execution-environment.yml", "-c", "context"],
        cwd=tmp_path / "ee",
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    context = tmp_path / "ee/context"
    assert sorted(path.name for path in (context / "_build/dist").iterdir()) == sorted(names)
    assert "pip install --no-cache-dir /tmp/dist/*.whl" in (context / "Containerfile").read_text()


@needs_builder
def test_the_collection_itself_says_what_it_needs(collection):
    found = subprocess.run([BUILDER, "introspect", str(collection)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    said = yaml_reader.load(found.stdout.partition("---")[2] or found.stdout)
    # ansible-builder leaves out what comes with Ansible.
    assert set(requirements(ROOT / "meta/ee-requirements.txt")) - {"PyYAML"} <= {
        Requirement(text.partition("#")[0].strip()).name for text in said["python"]
    }
    assert any(text.startswith("git") for text in said["system"])
