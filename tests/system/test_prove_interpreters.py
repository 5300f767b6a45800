"""Frameworks of real interpreters: which answer, which hang, which are shadowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from tests.unit.provecases import says
from tests.unit.test_proveframework import proved

CPU_BUILD = """
import types
__version__ = "2.6.0+cpu"
version = types.SimpleNamespace(cuda=None, hip=None)
cuda = types.SimpleNamespace(is_available=lambda: False)
"""


SHADOWED = """
import os
if os.environ.get("LD_LIBRARY_PATH"):
    raise ImportError("libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12")
"""


HANGS = "import time\ntime.sleep(60)\n"


@pytest.fixture
def interpreter(tmp_path):
    """A virtual environment in a folder with a space in its name, made without pip."""

    def make(torch=None, base=tmp_path, python=sys.executable):
        home = base / "an env"
        (home / "bin").mkdir(parents=True)
        (home / "bin/python3").symlink_to(Path(python).resolve())
        (home / "pyvenv.cfg").write_text(f"home = {Path(python).resolve().parent}\n")
        if torch is not None:
            ask = [python, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
            name = subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
            package = home / "lib" / name / "site-packages/torch"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(torch)
        return str(home / "bin/python3")

    return make


def test_an_interpreter_without_frameworks(interpreter):
    path = interpreter()
    verdict = proved(path)
    assert verdict["id"] == f"python.framework[{path}]"
    assert verdict["status"] == "skip"
    assert "no torch, tensorflow or jax" in verdict["message"]


def test_a_build_for_the_cpu(interpreter):
    verdict = proved(interpreter(CPU_BUILD))
    # There is no card here: with one it is a failure (see test_judge).
    assert verdict["status"] == "skip"
    assert "2.6.0+cpu is a build for the CPU only" in verdict["message"]


def test_an_export_that_breaks_the_import(interpreter, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/libnvJitLink.so.12").touch()
    verdict = proved(interpreter(SHADOWED + CPU_BUILD), library_path=str(tmp_path / "old"))
    assert verdict["status"] == "fail"
    says(
        [f"shadowed library {tmp_path}/old/libnvJitLink.so.12", "__nvJitLinkAddData_12_1"],
        verdict["message"],
        verdict["evidence"],
    )


def test_an_import_that_hangs(interpreter):
    verdict = proved(interpreter(HANGS), timeout_s=5)
    assert verdict["status"] == "fail"
    says(["torch did not end", "importing torch"], verdict["message"])
    assert verdict["seconds"] < 20


def test_an_import_leaves_nothing_behind(interpreter):
    path = interpreter("import os\nopen(os.environ['XDG_CACHE_HOME'] + '/cache', 'w').close()\n" + CPU_BUILD)
    assert proved(path)["status"] == "skip"
    # Other tests of this moment have folders there too.
    assert not list(Path(prove_job.executable_folder()).glob(f"{prove_job.FOLDER_PREFIX}{os.getpid()}-*"))
    assert not list(Path(path).parents[1].rglob("__pycache__"))


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/python3").exists(),
    reason="only root runs interpreters as their owners, and the user must be able to reach one",
)
def test_an_interpreter_of_a_user_runs_as_that_user(interpreter, open_folder):
    told = "import os\nopen(os.environ['XDG_CACHE_HOME'] + '/ours', 'w').close()\nraise ImportError(f'uid {os.getuid()}')\n"
    path = interpreter(told, open_folder, "/usr/bin/python3")
    os.lchown(path, 65534, 65534)
    os.chown(Path(path).parents[1], 65534, 65534)
    verdict = proved(path)
    assert verdict["status"] == "fail"
    assert "uid 65534" in verdict["message"]
