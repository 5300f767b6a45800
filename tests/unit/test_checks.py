"""The checks of verify, from a table: one good host, changed in one way at a time."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from provision.errors import UsageError
from provision.facts import Facts
from provision.lib import yaml_reader
from provision.lib.findings import worst
from provision.parts import checks
from provision.parts.check import DriverExpect, Expect
from provision.parts.driver import installed

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/checks.yml").read_text())
KERNEL = "6.8.0-48-generic"
GOOD = Facts.model_validate(
    {
        "gpus": [{"slot": f"0000:{bus}:00.0", "device": "2330", "driver": "nvidia"} for bus in ("1b", "43")],
        "module": {
            "loaded": {"version": "580.126.20", "flavour": "open"},
            "on_disk": [
                {
                    "kernel": KERNEL,
                    "path": f"/lib/modules/{KERNEL}/kernel/nvidia-580-server-open/nvidia.ko",
                    "version": "580.126.20",
                    "flavour": "open",
                    "signed": True,
                    "origin": "prebuilt",
                }
            ],
        },
        "kernels": {"running": KERNEL, "next": KERNEL, "installed": [{"release": KERNEL, "headers": True}]},
        "packages": {
            name: {"version": "580.126.20-0ubuntu0.24.04.2", "status": "hi"}
            for name in (
                "libnvidia-compute-580-server",
                "nvidia-utils-580-server",
                "nvidia-headless-no-dkms-580-server-open",
            )
        },
        "libraries": [{"soname": "libcuda.so.1", "path": "/usr/lib/libcuda.so.580.126.20", "version": "580.126.20"}],
        "smi": {
            "path": "/usr/bin/nvidia-smi",
            "ran": True,
            "rc": 0,
            "driver_version": "580.126.20",
            "gpus": [
                {"index": 0, "name": "NVIDIA H100 80GB HBM3", "bus_id": "00000000:1B:00.0", "persistence": True},
                {"index": 1, "name": "NVIDIA H100 80GB HBM3", "bus_id": "00000000:43:00.0", "persistence": True},
            ],
        },
        "devices": ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm"],
        "services": {"nvidia-persistenced": {"present": True, "enabled": True, "running": True}},
        "modprobe": {"blacklisted": ["nouveau", "nova_core"]},
        "initrds": [{"kernel": KERNEL, "newer_than_blacklist": True}],
    }
)
WANT = {"version": "580.126.20", "branch": "580", "flavour": "open", "manage": True, "hold": True, "persistence": True}


def changed(facts, change):
    """Return facts with dotted paths replaced; package names may contain dots only as the last part."""
    data = facts.model_dump()
    for path, value in change.items():
        *parents, last = path.split(".")
        node = data
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        node[int(last) if isinstance(node, list) else last] = value
    return Facts.model_validate(data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_checks(case):
    expect = Expect(driver=DriverExpect(**{**WANT, **case.get("want", {})}))
    verdicts = {check.code: check.model_dump() for check in checks.run(changed(GOOD, case["change"]), expect)}
    for check, (status, *words) in case["expect"].items():
        verdict = verdicts[check]
        assert verdict["status"] == status, verdict
        said = " ".join([verdict["message"], *verdict["evidence"], verdict["hint"] or ""])
        assert all(str(word) in said for word in words), said
        assert status in ("pass", "skip") or verdict["hint"], "what is wrong comes with a way out"
    others = [v for check, v in verdicts.items() if check not in case["expect"]]
    assert not [v for v in others if v["status"] in ("warn", "fail")], others


def test_the_good_host_skips_only_what_it_does_not_have():
    verdicts = checks.run(GOOD, Expect(driver=DriverExpect(**WANT)))
    # It has no CUDA, no conda and no containers: tests/unit/test_checks_cuda.py, test_check_containers.py.
    others = [v for v in verdicts if v.area not in ("cuda", "conda", "container")]
    assert [v.code for v in others if v.level != "pass"] == ["service.fabric_manager"]
    assert worst(verdicts) == "pass"


def test_a_task_may_expect_something_else():
    expect = Expect(driver=DriverExpect(**WANT)).overlaid({"branch": 570, "cuda": {"manage": True}})
    assert (expect.driver.branch, expect.driver.version, expect.cuda.manage) == ("570", WANT["version"], True)
    with pytest.raises(UsageError, match="cannot be expected"):
        expect.overlaid({"brnch": 570})


def test_modules_under_updates_win():
    # depmod's default search order: updates before the built-in tree.
    facts = changed(GOOD, {})
    path = f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
    facts.module.on_disk.append(facts.module.on_disk[0].model_copy(update={"path": path, "version": "550.1"}))
    assert installed.modules_of(facts, KERNEL)[0].version == "550.1"
    assert "550.1" in installed.next_boot_problems(facts)[0]
