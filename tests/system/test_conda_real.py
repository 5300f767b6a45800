"""The lab's channels and what we say of environments, against a real solver and installer of conda packages (py-rattler).

conda itself cannot be had from a Python index. rattler is the other implementation: the same channels, match specs,
virtual packages and conda-meta. What the lab's stand-in chooses must be what a real solver chooses.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import marker as conda_marker
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from tests.lab.conda import Installer
from tests.system.condalab import web_folder

rattler = pytest.importorskip("rattler", reason="py-rattler is not installed (it is in the extra dev)")
exceptions = pytest.importorskip("rattler.exceptions")

__all__ = ["web_folder"]

# Not among them: several builds that only their build string tells apart. A real solver's choice is its own affair there,
# and the stand-in takes the build without CUDA, as people have seen it happen (scenario M2).
CASES = [
    # (channels, specs, CUDA of the driver or None)
    (["conda-forge"], ["python=3.11"], None),
    (["conda-forge"], ["python=3.12", "numpy"], None),
    (["conda-forge"], ["python=3.11", "pytorch=2.5.1"], None),
    (["conda-forge"], ["python=3.11", "pytorch=2.5.1"], "12.8"),
    (["conda-forge"], ["python=3.11", "pytorch=2.5.1=*cuda*"], "12.8"),
    (["conda-forge"], ["python=3.11", "pytorch=2.5.1=*cuda*"], None),
    (["conda-forge"], ["cudnn=8.9.7.29", "cudatoolkit=11.8"], None),
    (["conda-forge"], ["cudnn", "cuda-version=12.4", "cuda-cudart"], "12.8"),
    (
        ["pytorch", "conda-forge"],
        ["python=3.11", "pytorch=2.3.1=py3.11_cuda12.1_cudnn8.9.2_0", "pytorch-cuda=12.1"],
        None,
    ),
    (["pytorch", "conda-forge"], ["python=3.9", "pytorch=1.12.1=py3.9_cuda11.3_cudnn8.3.2_0"], None),
    (["pytorch", "conda-forge"], ["python=3.12", "pytorch=2.3.1"], None),
    (["conda-forge"], ["python=3.11", "nosuch"], None),
]


@pytest.fixture(scope="module")
def conda(tmp_path_factory, web_folder):
    """The program of a stand-in conda."""
    folder = tmp_path_factory.mktemp("conda")
    installer = Installer()
    (folder / installer.file).write_bytes(installer.content())
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(
        ["bash", str(folder / installer.file), "-b", "-p", str(folder / "p")],
        check=True,
        env=environment,
        capture_output=True,
    )
    return folder / "p/bin/conda"


def solved(folder, channels, specs, cuda):
    """What the real solver chooses: [records], or None where there is no answer."""
    virtual = (
        [rattler.GenericVirtualPackage(rattler.PackageName("__cuda"), rattler.Version(cuda), rattler.BuildString("0"))]
        if cuda
        else []
    )
    sources = [rattler.Channel((folder / name).as_uri()) for name in channels]
    wanted = [rattler.MatchSpec(text) for text in specs]
    options = {"platforms": ["linux-64", "noarch"], "add_pip_as_python_dependency": True}
    try:
        return asyncio.run(rattler.solve(sources, wanted, virtual_packages=virtual, **options))
    except exceptions.SolverError:
        return None


def chosen(records):
    return {record.name.normalized: (str(record.version), str(record.build)) for record in records}


@pytest.mark.parametrize(("channels", "specs", "cuda"), CASES)
def test_the_stand_in_chooses_what_a_real_solver_chooses(web_folder, conda, channels, specs, cuda):
    records = solved(web_folder, channels, specs, cuda)
    argv = [str(conda), "create", "--yes", "--dry-run", "-n", "x", "--override-channels"]
    for name in channels:
        argv += ["-c", (web_folder / name).as_uri()]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "CONDA_OVERRIDE_CUDA": cuda or ""}
    said = subprocess.run([*argv, *specs], capture_output=True, text=True, env=environment, check=False)
    if records is None:
        assert said.returncode == 1 and "Error" in said.stderr
        return
    assert said.returncode == 0, said.stderr
    lines = said.stdout.split("environment location")[1].splitlines()[2:]
    theirs = dict(line.split() for line in lines if line.strip())
    assert theirs == {name: f"{version}-{build}" for name, (version, build) in chosen(records).items()}


@pytest.fixture
def installed(tmp_path, web_folder):
    """An environment that the real installer made of the lab's packages."""
    records = solved(web_folder, ["conda-forge"], ["python=3.11", "pytorch=2.5.1"], None)
    env = tmp_path / "envs" / "real"
    asyncio.run(rattler.install(records, env, cache_dir=tmp_path / "cache", show_progress=False))
    return env, records


def test_what_a_real_installer_made_is_read_as_it_is(installed):
    env, records = installed
    state = conda_read.environment_state(str(env))
    assert {name: (item["version"], item["build"]) for name, item in state["packages"].items()} == chosen(records)
    assert (env / "lib/python3.11/site-packages/torch/_build.py").is_file()


def test_m2_the_real_solver_takes_a_build_without_cuda_and_we_say_so(installed):
    """No driver, no pinned build: it ends well, and torch has no CUDA."""
    env, _ = installed
    state = conda_read.environment_state(str(env))
    asked = {"packages": ["python=3.11", "pytorch=2.5.1"], "override_cuda": "12.6"}
    assert conda_marker.mismatches(asked, state["packages"], state["pip"]) == [
        "pytorch 2.5.1 is a build without CUDA (cpu_generic_py311hd3aeb46_0)"
    ]


def test_our_record_does_not_disturb_and_a_json_would(installed, tmp_path):
    """Every *.json in conda-meta is a package's record; conda has its own files there without that ending."""
    env, records = installed
    (env / conda_read.RECORD).write_text('{"schema": 1}\n')

    def again():
        asyncio.run(rattler.install(records, env, cache_dir=tmp_path / "cache", show_progress=False))

    again()
    Path(str(env / conda_read.RECORD) + ".json").write_text('{"schema": 1}\n')
    with pytest.raises(Exception, match="conda-meta"):
        again()


def test_conda_override_cuda_means_the_same_to_a_real_implementation(monkeypatch):
    """The variable that we set for a host whose driver does not run yet."""
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "12.4")
    found = rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env())
    names = {item.into_generic().name.normalized: str(item.into_generic().version) for item in found}
    assert names["__cuda"] == "12.4"
    assert os.environ["CONDA_OVERRIDE_CUDA"] == "12.4"
