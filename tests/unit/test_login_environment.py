"""What a login exports for NCCL reaches the program that measures it: from the file to the arguments of ``prove``."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.cuda import shell
from provision.catalog import load_catalog
from provision.facts import ShellLine
from provision.parts.check import Expect
from provision.planning.verification import CheckSelection, prove_args
from tests.unit.hosts import host


@pytest.mark.parametrize(
    "text, exported",
    [
        ("export NCCL_P2P_DISABLE=1", {"NCCL_P2P_DISABLE": "1"}),
        ('NCCL_SOCKET_IFNAME="eth0,bond0"', {"NCCL_SOCKET_IFNAME": "eth0,bond0"}),
        ("export CUDA_VISIBLE_DEVICES=0,1", {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ("export NCCL_TUNER=$(which x)", {}),
        ("export MY_NCCL_DEBUG=1", {}),
    ],
)
@pytest.mark.parametrize("file", ["/etc/profile.d/site.sh", "/home/ann/.bashrc"])
def test_variables_of_nccl_are_passed_on(text, exported, file):
    rows = shell.assignments(text)
    lines = [ShellLine(file=file, line=row["line"], text=row["text"], variable=row["name"]) for row in rows]
    facts = host(["H100"])
    facts = facts.model_copy(update={"cuda": facts.cuda.model_copy(update={"shell_lines": lines})})
    args = prove_args(facts, {}, Expect(), load_catalog())
    assert args["environment"] == (exported if file.startswith("/etc/") else {})


@pytest.mark.parametrize(
    ("variable", "file", "values", "exported"),
    [
        ("LD_LIBRARY_PATH", "/etc/profile.d/site.sh", {}, "/opt/lib"),
        ("LD_LIBRARY_PATH", "/home/ann/.bashrc", {}, ""),
        ("PATH", "/etc/profile.d/site.sh", {}, ""),
        ("PATH", "/etc/environment", {"cuda_toolkit_ld_library_path": True}, ""),
        ("PATH", "/etc/environment", {"cuda_toolkit_versions": ["12.8"]}, ""),
        (
            "LD_LIBRARY_PATH",
            "/etc/environment",
            {"cuda_toolkit_ld_library_path": True, "cuda_toolkit_versions": ["12.8"]},
            "/opt/lib:/usr/local/cuda/lib64",
        ),
    ],
)
def test_folders_of_libraries_are_those_that_everyone_gets(variable, file, values, exported):
    line = ShellLine(file=file, line=1, text="…", variable=variable, paths=["/opt/lib"])
    facts = host(["H100"])
    facts = facts.model_copy(update={"cuda": facts.cuda.model_copy(update={"shell_lines": [line]})})
    assert prove_args(facts, values, Expect(), load_catalog())["library_path"] == exported


@pytest.mark.parametrize(
    ("asked", "values", "deep"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"gpu_verify_deep": True}, True),
        (False, {"gpu_verify_deep": False}, False),
    ],
)
def test_the_command_or_the_inventory_asks_for_a_deep_look(asked, values, deep):
    args = prove_args(host(["H100"]), values, Expect(), load_catalog(), CheckSelection(deep=asked))
    assert args["deep"] is deep
