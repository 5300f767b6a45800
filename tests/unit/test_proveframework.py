"""Frameworks of an interpreter: coverage, shadowed libraries, CPU builds; with real interpreters and stand-in frameworks."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import framework as prove_framework
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs
from tests.unit.provecases import outcome, says, table

TORCH = {
    "version": "2.6.0+cu124",
    "cuda": "12.4",
    "available": True,
    "count": 1,
    "architectures": ["sm_80", "sm_90"],
    "cudnn": "9.1.0",
    "nccl": "2.21.5",
    "cards": [{"index": 0, "name": "NVIDIA H100", "cc": "9.0", "wrong": None}],
    "libraries": {
        "libcudnn.so.9": "/v/nvidia/cudnn/lib/libcudnn.so.9",
        "libnvJitLink.so.12": "/v/nvidia/nvjitlink/libnvJitLink.so.12",
    },
    "why": None,
}


@pytest.mark.parametrize("case", table("covers"), ids=lambda case: f"{case['list']} {case['cc']}")
def test_covers(case):
    assert prove_framework.covers(case["list"], case["cc"]) == case["how"]


@pytest.mark.parametrize("case", table("framework"), ids=lambda case: case["name"])
def test_judge(case):
    def as_outcome(value):
        return outcome({**TORCH, **value}) if isinstance(value, dict) else outcome(message=value)

    count = case.get("count", 1)
    status, message, evidence, hint = prove_framework.judge_one(
        "torch",
        as_outcome(case["seen"]),
        as_outcome(case["plain"]) if "plain" in case else None,
        case.get("library_path", ""),
        {"count": count, "ccs": ["9.0"] if count else []},
        set(case.get("there", [])).__contains__,
    )
    assert status == case["expect"][0], (message, evidence)
    says(case["expect"][1:], message, evidence, hint or "")
    assert hint or status in ("pass", "skip")


def test_a_crash_while_importing_is_no_shadow():
    crashed = outcome(message="ended by signal SIGILL", status="killed", at="importing torch")
    status, message, _, hint = prove_framework.judge_one("torch", crashed, None, "", {"count": 1, "ccs": ["9.0"]}, bool)
    assert status == "fail"
    says(["torch", "SIGILL", "importing torch"], message, hint)


def test_versions_of_cudnn():
    assert [prove_framework.cudnn_words(number) for number in (91400, 8902, 90100)] == ["9.14.0", "8.9.2", "9.1.0"]


def test_libraries_are_read_from_maps(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 123 /v/lib/libcudart-9335f6a2.so.12\n"
        "7f01-7f02 r-xp 00000000 08:01 124 /a path/libcudnn.so.9\n7f02-7f03 rw-p 0 00:00 0\n"
        "7f03-7f04 r-xp 00000000 08:01 125 /v/lib/libcublasLt.so.12.4.5.8\n7f05-7f06 r-xp 0 08:01 1 /lib/libm.so.6\n"
    )
    assert prove_framework.loaded_libraries(str(maps)) == {
        "libcudart-9335f6a2.so.12": "/v/lib/libcudart-9335f6a2.so.12",
        "libcudnn.so.9": "/a path/libcudnn.so.9",
        "libcublasLt.so.12.4.5.8": "/v/lib/libcublasLt.so.12.4.5.8",
    }


# --- whole interpreters, with a stand-in for torch -----------------------------------------------------------------

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


def proved(path, **args):
    (verdict,) = proofs.main({"python": [path], "only": ["python.framework"], "timeout_s": 20, **args})["checks"]
    return verdict


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
    verdict = proved(interpreter(HANGS), timeout_s=1.5)
    assert verdict["status"] == "fail"
    says(["torch did not end", "importing torch"], verdict["message"])
    assert verdict["seconds"] < 20


def test_an_import_leaves_nothing_behind(interpreter):
    path = interpreter("import os\nopen(os.environ['XDG_CACHE_HOME'] + '/cache', 'w').close()\n" + CPU_BUILD)
    before = set(Path(prove_job.executable_folder()).iterdir())
    assert proved(path)["status"] == "skip"
    after = set(Path(prove_job.executable_folder()).iterdir())
    assert not [item for item in after - before if item.name.startswith(prove_job.FOLDER_PREFIX)]
    assert not list(Path(path).parents[1].rglob("__pycache__"))


def test_an_interpreter_that_is_not_there(tmp_path):
    verdict = proved(str(tmp_path / "python3"))
    assert verdict["status"] == "fail"
    assert "cannot be started" in verdict["message"]


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/python3").exists(),
    reason="only root runs interpreters as their owners, and the user must be able to reach one",
)
def test_an_interpreter_of_a_user_runs_as_that_user(interpreter):
    told = "import os\nopen(os.environ['XDG_CACHE_HOME'] + '/ours', 'w').close()\nraise ImportError(f'uid {os.getuid()}')\n"
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        path = interpreter(told, Path(base), "/usr/bin/python3")
        os.lchown(path, 65534, 65534)
        os.chown(Path(path).parents[1], 65534, 65534)
        verdict = proved(path)
    assert verdict["status"] == "fail"
    assert "uid 65534" in verdict["message"]
