"""The rescue at a console without a console: what it makes of described hosts, and which packages it asks apt for."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import Installed
from ansible_collections.gpu.provision.plugins.module_utils.rescue import console, console_packages, console_state
from provision.lib import yaml_reader
from provision.rescue.offline import Known, decisions
from tests.unit import trees

CASES = yaml_reader.load(Path(__file__).parents[1].joinpath("cases/rescue_console.yml").read_text(encoding="utf-8"))
KERNEL = "6.8.0-45-generic"
BASE = {
    "running": KERNEL,
    "boot": [KERNEL],
    "headers": [KERNEL],
    "pci": ["0000:01:00.0 10de:2330 0302", "0000:02:00.0 10de:2330 0302"],
    "packages": ["lab-tool 1.0 ii"],
}


def state(tmp_path: Path, tree: dict[str, Any]) -> console_state.State:
    root = trees.build(tmp_path / "host", {**BASE, **tree})
    return console_state.State(str(root), trees.runner({**BASE, **tree}))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_it_makes_of_a_host(case: dict[str, Any], tmp_path: Path) -> None:
    found, wanted = state(tmp_path, case["tree"]), case["look"]
    # The room in /boot is that of the machine of this test.
    codes = [code for code, _ in found.findings() if code != "disk.boot_full"]
    right = "now" if found.right_now() else "disk" if found.right_on_disk() else False
    assert (sorted(codes), right) == (sorted(wanted["findings"]), wanted["right"])
    for name, value in (("outside", found.outside), ("elsewhere", found.elsewhere()), ("lost", found.lost)):
        assert value == wanted.get(name, value)


def test_it_names_what_it_finds_as_diagnose_does() -> None:
    from provision.diagnose import pages

    text = Path(console_state.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'\(\s*"([a-z_]+\.[a-z_]+)",', text))
    assert len(named) > 15
    assert named <= set(pages.codes())


# --- which packages


class Apt:
    """Stands for apt: offers, by name; what an installation brings beside what is named; what it was asked."""

    def __init__(self, **brings: list[str]) -> None:
        self.brings, self.said = {name.replace("_", "-"): more for name, more in brings.items()}, []

    def simulate(self, install: list[str], gone: Any = ()) -> dict[str, Any]:
        names = [name.partition("=")[0] for name in install]
        missing = [name for name in names if self.brings and name not in self.brings]
        changes = [
            {"action": "install", "name": name, "version": "1", "from_version": None}
            for one in names
            for name in [one, *self.brings.get(one, [])]
        ]
        code = "apt.package_not_found" if missing else None
        return {
            "ok": not missing,
            "code": code,
            "message": str(code),
            "because": [],
            "changes": [] if missing else changes,
        }

    def say(self, text: str) -> None:
        self.said.append(text)


def packages(
    monkeypatch: pytest.MonkeyPatch, apt: Apt, values: dict[str, Any], known: Known | None = None, **host: Any
) -> console_packages.Packages:
    """installed, before (series), headers (bool), devices, running."""
    installed = [
        Installed({"Package": name, "Version": version, "Status": "hold ok installed", "Architecture": "amd64"})
        for name, version in host.get("installed", {}).items()
    ]
    found = SimpleNamespace(
        next=KERNEL,
        running=host.get("running", KERNEL),
        headers=host.get("headers", True),
        driver=installed,
        core=[p.name for p in installed],
        locked=sorted(p.name for p in installed),
        lost=host.get("lost", []),
        has_dkms=any("dkms" in p.name for p in installed),
        packages=installed,
        facts={"gpus": [{"device": device} for device in host.get("devices", ["2330"])]},
    )
    monkeypatch.setattr(console_packages.apt_query, "simulate", apt.simulate)
    made = console_packages.Packages(decisions("gpu01", values, known), apt, None, True)
    made.state, made.series_before, made.before = found, host.get("series", ""), host.get("before", [])
    return made


OPEN = ["nvidia-headless-no-dkms-580-open", "nvidia-utils-580"]
SIGNED = f"linux-modules-nvidia-580-open-{KERNEL}"


@pytest.mark.parametrize(
    ("values", "known", "host", "names", "why"),
    [
        ({}, None, {}, None, ""),
        ({"nvidia_driver_branch": "580"}, None, {}, [*OPEN, SIGNED], "the inventory asks"),
        (
            {"nvidia_driver_branch": "580"},
            None,
            {"devices": ["15f8"]},
            ["nvidia-headless-no-dkms-580", "nvidia-utils-580", f"linux-modules-nvidia-580-{KERNEL}"],
            "the inventory asks",
        ),
        (
            {"nvidia_driver_branch": "580", "nvidia_driver_build": "dkms", "nvidia_driver_variant": "desktop"},
            None,
            {"headers": False},
            ["nvidia-driver-580-open", f"linux-headers-{KERNEL}"],
            "the inventory asks",
        ),
        (
            {"nvidia_driver_branch": "595", "nvidia_driver_channel": "cuda"},
            None,
            {},
            ["nvidia-open"],
            "the inventory asks",
        ),
        (
            {"nvidia_driver_branch": "595"},
            Known("580", "open", "dkms", packages={"nvidia-utils-580": "580.1-1"}, source="a test"),
            {"installed": {"nvidia-utils-570": "1"}},
            ["nvidia-utils-580=580.1-1"],
            "known to be right",
        ),
        (
            {"nvidia_driver_branch": "580"},
            None,
            {"installed": {"nvidia-utils-570": "1", "nvidia-dkms-570-open": "1"}},
            ["nvidia-dkms-570-open", "nvidia-utils-570"],
            "newest version",
        ),
        (
            {},
            None,
            {"installed": {"nvidia-dkms-570-open": "1"}, "lost": ["libnvidia-compute-570"], "series": "570"},
            ["nvidia-dkms-570-open", "libnvidia-compute-570"],
            "newest version",
        ),
        (
            {},
            None,
            {"series": "580", "before": OPEN, "running": "6.8.0-44-generic"},
            [*OPEN, SIGNED, "linux-modules-nvidia-580-open-6.8.0-44-generic"],
            "installed before",
        ),
        ({}, None, {"series": "580"}, [*OPEN, SIGNED], "the earlier branch"),
    ],
)
def test_which_packages(
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    known: Known | None,
    host: dict[str, Any],
    names: list[str] | None,
    why: str,
) -> None:
    apt = Apt()
    found = packages(monkeypatch, apt, values, known, **host).wanted()
    if names is None:
        assert found is None and "not known here" in apt.said[-1]
    else:
        assert found is not None and found[0] == names and why in found[1]


def test_without_signed_modules_dkms_builds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(nvidia_utils_580=[], nvidia_headless_no_dkms_580_open=[])
    found = packages(monkeypatch, apt, {"nvidia_driver_branch": "580"}).wanted()
    assert found and found[0] == ["nvidia-headless-580-open", "nvidia-utils-580"]


def test_a_branch_that_ended_is_no_way_to_the_next_one_unless_nobody_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(
        nvidia_headless_no_dkms_570_open=[],
        nvidia_utils_570=["nvidia-utils-580"],
        **{name.replace("-", "_").replace(".", "."): [] for name in [*OPEN]},
    )
    apt.brings |= {SIGNED: [], f"linux-modules-nvidia-570-open-{KERNEL}": []}
    assert packages(monkeypatch, apt, {"nvidia_driver_branch": "570"}).wanted() is None
    assert "branch 570 has ended" in apt.said[-1]
    found = packages(monkeypatch, apt, {}, series="570").wanted()
    assert found and found[0] == [*OPEN, SIGNED] and "has ended" in found[1]


def test_what_takes_something_else_along_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(nvidia_utils_580=["linux-image-6.8.0-50-generic"])
    assert packages(monkeypatch, apt, {}).installable(["nvidia-utils-580"]) is None
    assert "kernel package" in apt.said[0] and "--debs DIR" in apt.said[-1]


# --- the command line


@pytest.mark.parametrize(
    "argv", [["--nope"], ["--debs", "/nowhere"], ["--series", "580; x"], ["--purge", "--undo"], ["--look", "more"]]
)
def test_wrong_usage_is_64(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        console.main(decisions("gpu01", {}), argv, "rescue.py")
    assert caught.value.code == 64 and "--help" in capsys.readouterr().err


def test_another_series_forgets_the_versions_that_are_known() -> None:
    decided = decisions("gpu01", {}, Known("580", packages={"nvidia-utils-580": "580.1-1"}))
    options = console._options(["--series", "570-server", "--dry-run"], "rescue.py")
    made = console.Console(decided, options)
    assert (made.decisions["series"], made.decisions["wanted"]) == ("570-server", [])
    assert decided["wanted"] == ["nvidia-utils-580=580.1-1"]
