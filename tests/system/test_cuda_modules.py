"""The role's modulefiles in the real Environment Modules and the real Lmod."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from provision.collection import ROOT
from tests.system.cuda_machine import Machine, missing, need

# Debian's two packages exclude each other: what is not installed is unpacked inside.
SYSTEMS = {"environment-modules": "/usr/share/modules/init/bash", "lmod": "/usr/share/lmod/lmod/init/bash"}


@pytest.fixture(scope="module", params=SYSTEMS)
def modules(request, tmp_path_factory):
    """(machine, system, sh commands that bring the command module)"""
    need("bash")
    need("tclsh")
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        init = SYSTEMS[request.param]
        if not Path(init).exists():
            folder = tmp_path_factory.mktemp("deb")
            done = subprocess.run(["apt-get", "download", request.param], cwd=folder, capture_output=True, text=True)
            packages = list(folder.glob("*.deb"))
            if not packages:
                missing(f"{request.param} is not installed and cannot be had: {done.stderr.strip()}")
            machine.sh(f"dpkg-deb --extract {packages[0]} /")
        if request.param == "lmod":
            need("lua5.3")
        folder = "/etc/environment-modules/modules" if request.param == "environment-modules" else "/etc/lmod/modules"
        machine.install()
        yield machine, request.param, f"export MODULEPATH={folder}; . {init}; "
    finally:
        machine.close()


def module(modules, script, **env):
    machine, _, begin = modules
    done = machine.run(
        ["bash", "--norc", "-c", begin + script], {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env}
    )
    return done.stdout, done.stderr


SHOW = 'echo "$PATH|${CUDA_HOME-unset}|${LD_LIBRARY_PATH-unset}"; '


@pytest.mark.parametrize("libraries", [None, "/a", "/a:/b c"])
@pytest.mark.parametrize("home", [None, "/usr/local/cuda"])
def test_load_and_unload(modules, libraries, home):
    env = {key: value for key, value in (("LD_LIBRARY_PATH", libraries), ("CUDA_HOME", home)) if value}
    out, err = module(modules, SHOW + "module load cuda/12.4; " + SHOW + "nvcc -V; module unload cuda; " + SHOW, **env)
    before, during, *compiler, after = out.splitlines()
    assert before == f"/usr/bin:/bin|{home or 'unset'}|{libraries or 'unset'}"
    rest = f":{libraries}" if libraries else ""
    assert during == f"/usr/local/cuda-12.4/bin:/usr/bin:/bin|/usr/local/cuda-12.4|/usr/local/cuda-12.4/lib64{rest}"
    assert compiler[-1] == "Cuda compilation tools, release 12.4, V12.4.99"
    assert after == before, err
    assert err == ""


def test_the_default_is_ours(modules):
    out, err = module(modules, 'module load cuda; echo "$CUDA_HOME"')
    assert (out, err) == ("/usr/local/cuda-12.4\n", "")


def test_one_cuda_at_a_time(modules):
    out, err = module(modules, "module load cuda/11.8; module load cuda/13.0; " + SHOW)
    # a conflict; a family swaps
    loaded = "11.8" if modules[1] == "environment-modules" else "13.0"
    assert out.strip().endswith(
        f"/usr/local/cuda-{loaded}/bin:/usr/bin:/bin|/usr/local/cuda-{loaded}|/usr/local/cuda-{loaded}/lib64"
    )
    if modules[1] == "environment-modules":
        assert "conflict" in err.lower()
    out, err = module(modules, "module load cuda/11.8; module switch cuda/11.8 cuda/13.0; " + SHOW)
    assert out == "/usr/local/cuda-13.0/bin:/usr/bin:/bin|/usr/local/cuda-13.0|/usr/local/cuda-13.0/lib64\n", err


def test_people_find_them(modules):
    out, err = module(
        modules, "module -t avail 2>&1; module avail 2>&1; module help cuda/12.4 2>&1; module whatis cuda/11.8 2>&1"
    )
    for version in ("11.8", "12.4", "13.0"):
        assert f"cuda/{version}" in out, err
    assert "cuda/12.4(default)" in out or "cuda/12.4 <D>" in out or "cuda/12.4 (D)" in out or "lmod" in modules[1]
    assert "LD_LIBRARY_PATH and CUDA_HOME lead to /usr/local/cuda-12.4" in out
    assert "CUDA Toolkit 11.8" in out


def test_before_environment_modules_5_1_cuda_home_is_set_all_the_same(tmp_path):
    """Interpreted by plain Tcl with the commands of an old release: there is no pushenv."""
    if shutil.which("tclsh") is None:
        missing("tclsh is not installed here")
    text = (ROOT / "roles/cuda_toolkit/files/modulefile.tcl").read_text().replace("@version@", "12.4")
    commands = "".join(
        f"proc {name} args {{ puts [list {name} {{*}}$args] }}\n"
        for name in ("module-whatis", "conflict", "prepend-path", "setenv")
    )
    for extra, said in (("", "setenv"), ("proc pushenv args { puts [list pushenv {*}$args] }\n", "pushenv")):
        script = tmp_path / "modulefile"
        script.write_text(commands + extra + text)
        out = subprocess.run(["tclsh", script], capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
        assert out.splitlines()[1:] == [
            "conflict cuda",
            "prepend-path PATH /usr/local/cuda-12.4/bin",
            "prepend-path LD_LIBRARY_PATH /usr/local/cuda-12.4/lib64",
            f"{said} CUDA_HOME /usr/local/cuda-12.4",
        ]
