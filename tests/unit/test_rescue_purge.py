"""What a purge takes and what it never takes: tables in tests/cases/rescue_purge.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import Installed
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import traces as rescue_traces
from provision.lib import yaml_reader

CASES: dict[str, Any] = yaml_reader.load(Path(__file__).parents[1].joinpath("cases/rescue_purge.yml").read_text())


def cases(topic: str) -> Any:
    return pytest.mark.parametrize("case", CASES[topic], ids=lambda case: case["name"])


@pytest.mark.parametrize("name", CASES["names"]["ours"])
def test_takes(name: str) -> None:
    assert rescue_purge.is_ours(name)


@pytest.mark.parametrize("name", CASES["names"]["theirs"])
def test_never_takes(name: str) -> None:
    assert not rescue_purge.is_ours(name)


def _change(text: str) -> dict[str, Any]:
    action, name = text.split()
    old, new = ("1", None) if action == "remove" else (None if action == "install" else "1", "2")
    return {"action": action, "name": name, "version": new, "from_version": old}


@cases("judge")
def test_judge(case: dict[str, Any]) -> None:
    problems = rescue_purge.judge(
        [_change(text) for text in case["changes"]], case["remove"], case.get("allow", ()), (), "6.8.0-1010-nvidia"
    )
    assert [problem["code"] for problem in problems] == case["codes"]
    assert all(problem["hint"] and problem["because"] for problem in problems)
    if "hint" in case:
        assert case["hint"] in problems[0]["hint"]


@cases("select")
def test_select(case: dict[str, Any]) -> None:
    packages = [
        Installed(
            {
                "Package": name,
                "Status": status,
                "Architecture": "amd64",
                "Version": "1",
                "Depends": case.get("depends", {}).get(name, ""),
            }
        )
        for name, status in case["status"].items()
    ]
    remove, config, kept = rescue_purge.select(packages)
    assert (remove, config, [row["name"] for row in kept]) == (case["remove"], case["config"], case["kept"])


def plant(root: Path, files: dict[str, str], owned: dict[str, list[str]] | None = None) -> host_tree.HostTree:
    """Make a tree of files, links (``LINK target``) and dpkg's lists of who owns what."""
    info = root / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("LINK "):
            (root / path).symlink_to(text[5:])
        else:
            (root / path).write_text(text)
    for name, paths in (owned or {}).items():
        (info / f"{name}.list").write_text("/.\n" + "".join(f"{path}\n" for path in paths))
    return host_tree.HostTree(str(root))


@cases("traces")
def test_traces(case: dict[str, Any], tmp_path: Path) -> None:
    found = rescue_traces.find(plant(tmp_path, case["files"], case.get("owned")), case.get("with_packages", False))
    wanted = case["expect"]
    for what in ("files", "trees", "aside", "links", "kernels"):
        assert getattr(found, what) == wanted.get(what, []), what
    assert [list(pair) for pair in found.dkms] == wanted.get("dkms", [])
    assert [path for path, _ in found.left] == wanted.get("left", [])


def test_only_an_own_uninstaller_is_started(tmp_path: Path) -> None:
    tree = plant(tmp_path, {"usr/bin/nvidia-uninstall": "#!/bin/sh\n"})
    path = tmp_path / "usr/bin/nvidia-uninstall"
    # not executable
    assert rescue_traces.uninstaller(tree) is None
    path.chmod(0o755)
    assert rescue_traces.uninstaller(tree) == "/usr/bin/nvidia-uninstall"
    path.chmod(0o777)
    assert rescue_traces.uninstaller(tree) is None
    path.chmod(0o755)
    (tmp_path / "var/lib/dpkg/info/something.list").write_text("/usr/bin/nvidia-uninstall\n")
    assert rescue_traces.uninstaller(tree) is None


def test_plan_of_a_recorded_host(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "var/lib/dpkg/status": "Package: libnvidia-compute-470\nStatus: install ok installed\n"
            "Architecture: amd64\nVersion: 1\n",
            "usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01": "",
        },
    )
    plan = rescue_purge.plan(root=str(tmp_path))
    assert (plan["packages"], plan["files"], plan["nothing"]) == (
        ["libnvidia-compute-470"],
        ["/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01"],
        False,
    )


def test_the_plan_in_words(tmp_path: Path) -> None:
    from provision.rescue.purge import purge_plan

    plant(
        tmp_path,
        {
            "var/lib/dpkg/status": "Package: libnvidia-compute-470\nStatus: install ok installed\n"
            "Architecture: amd64\nVersion: 1\n",
            "usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01": "",
            "usr/lib/modprobe.d/nvidia-installer-disable-nouveau.conf": "",
        },
    )
    answer = rescue_purge.plan(root=str(tmp_path))
    answer["problems"] = [{"code": "purge.removes", "message": "m", "because": ["b"], "hint": "h"}]
    plan = purge_plan("gpu01", answer)
    assert [step.details for step in plan.steps] == [
        ["libnvidia-compute-470"],
        ["/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01"],
        ["/usr/lib/modprobe.d/nvidia-installer-disable-nouveau.conf"],
        [],
    ]
    assert plan.arguments("id") == {"snapshot": "id", "expect": ["libnvidia-compute-470"]}
    assert plan.blockers[0].host == "gpu01"
