"""The files of the role cuda_toolkit: which ones a host gets, what is in them, which ones are too many."""

import re
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files
from provision.facts import Shells
from provision.lib import yaml_reader
from provision.parts.cuda.files import absent_files, wanted_files

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/cuda_files.yml").read_text())
EVERYTHING = Shells(
    fish=True, csh=True, zsh=True, environment_modules="/etc/environment-modules/modules", lmod="/etc/lmod/modules"
)


def files_of(case):
    return wanted_files(
        case["versions"],
        case["default"],
        ld_library_path=case.get("ld_library_path", False),
        shells=Shells(**case.get("shells", {})),
        arch=case.get("arch", "amd64"),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cases(case):
    files = files_of(case)
    assert sorted(files) == case["paths"]
    for path, lines in case.get("has", {}).items():
        assert set(lines) <= set(files[path].splitlines())
    if "folders" in case:
        lines = [line for line in files[cuda_files.LD_SO_CONF].splitlines() if line.startswith("/")]
        assert lines == [f"/usr/local/cuda-{v}/targets/x86_64-linux/lib" for v in case["folders"]]


def everything(**other):
    given = {"versions": ["11.8", "12.4"], "default": "12.4", "ld_library_path": False, "arch": "amd64"}
    given.update(other)
    versions, default = given.pop("versions"), given.pop("default")
    return wanted_files(versions, default, shells=EVERYTHING, **given)


def test_every_file_says_who_wrote_it_and_holds_no_placeholder():
    for path, text in everything().items():
        assert own_files.has_header(text.encode()), path
        assert text.endswith("\n"), path
        assert not re.search(r"@[a-z_]+@", text), path
        assert cuda_files.is_own(path), path
        assert text.isascii(), "a shell in the locale C may refuse to read anything else (yash does)"


def test_the_same_host_gets_the_same_bytes():
    assert everything() == everything(versions=["12.4", "11.8"])


@pytest.mark.parametrize(
    "wrong", [{"default": "13.0"}, {"default": ""}, {"arch": "riscv64"}], ids=["not listed", "none", "no CUDA"]
)
def test_what_cannot_be_is_an_error(wrong):
    with pytest.raises(ValueError, match="default|CUDA"):
        everything(**wrong)


def test_the_loaders_file_sorts_between_nvidias():
    own = cuda_files.LD_SO_CONF.rsplit("/", 1)[1]
    names = ["x86_64-linux-gnu.conf", "libc.conf", "gds-13-0.conf", "987_cuda-13.conf", own, "000_cuda.conf"]
    assert sorted(names)[:3] == ["000_cuda.conf", own, "987_cuda-13.conf"]


def test_absent_files_are_ours_and_of_this_role_only():
    before = everything()
    others = [
        "/etc/modprobe.d/gpu-provision.conf",
        "/etc/apt/preferences.d/gpu-provision.pref",
        "/etc/profile.d/gpu-provision-conda.sh",
        "/etc/profile.d/cuda.sh",
        "/etc/ld.so.conf.d/000_cuda.conf",
        "/etc/environment-modules/modules/cudnn/9.1",
        "/etc/environment-modules/modules/cuda/mine",
    ]
    own = dict.fromkeys([*before, *others], "0" * 64)
    assert absent_files(own, before) == []
    assert absent_files(own, {}) == sorted(before)
    fewer = everything(versions=["12.4"])
    assert absent_files(own, fewer) == ["/etc/environment-modules/modules/cuda/11.8", "/etc/lmod/modules/cuda/11.8.lua"]
