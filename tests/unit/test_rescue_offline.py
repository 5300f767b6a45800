"""The offline script as text: it passes shellcheck, parses everywhere, and knows the names that the Python code knows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib.driver_names import COMPANIONS, is_version_locked
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import traces as rescue_traces
from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.rescue.offline import Known, known_of, of_packages, offline_script

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).parents[1].joinpath("cases/rescue_purge.yml").read_text())
KNOWN = Known("580-server", "open", "signed", "ubuntu", "headless", {"nvidia-utils-580-server": "580.1-1"}, "a test")
VARIANTS: dict[str, tuple[dict[str, Any], Known | None]] = {
    "nothing is known": ({}, None),
    "a branch is wished": ({"nvidia_driver_branch": "580", "nvidia_driver_modules": "open"}, None),
    "versions are known": ({}, KNOWN),
    "NVIDIA's repository": ({"nvidia_driver_branch": "595", "nvidia_driver_channel": "cuda"}, None),
    "not managed": ({"nvidia_driver_manage": False, "nvidia_driver_hold": False}, None),
}


def program(name: str) -> str:
    """Path of a program, also one that pip put beside this Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    return found or pytest.skip(f"{name} is not installed")


def setting(text: str, name: str) -> str:
    """What the shell makes of one setting of the script."""
    head = text[: text.index("# --- helpers")]
    argv = ["sh", "-c", f'{head}\nprintf %s "${name}"']
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("variant", ["nothing is known", "versions are known"])
def test_shellcheck_has_nothing_to_say(variant: str) -> None:
    text = offline_script("gpu01.example.org", *VARIANTS[variant])
    done = subprocess.run([program("shellcheck"), "-s", "sh", "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_open_or_proprietary_is_the_catalogs_answer_for_every_card_and_branch() -> None:
    catalog = load_catalog()
    # One branch of each order: the script goes by nothing else of a branch.
    orders = {tuple(catalog.flavours((), branch.number)): branch for branch in catalog.branches}
    asked = [
        (branch.number, device, flavours[0])
        for branch in orders.values()
        for device in [*catalog.gpu_data.devices, "2fff", "1bff"]
        if (flavours := catalog.flavours([catalog.gpu_by_id(device)], branch.number))
    ]
    assert {("2342", "open"), ("15f8", "proprietary")} <= {(device, flavour) for _, device, flavour in asked}
    text = offline_script("gpu01", {}, None)
    head = text[: text.index("# --- helpers")]
    function = re.search(r"^flavour_for\(\) \{.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert function
    calls = "\n".join(f"flavour_for {branch} 0x{device}" for branch, device, _ in asked)
    done = subprocess.run(
        ["sh", "-s"], input=f"{head}\n{function[0]}\n{calls}\n", capture_output=True, text=True, check=True
    )
    wrong = [row for row, said in zip(asked, done.stdout.split(), strict=True) if row[2] != said]
    assert not wrong


def test_a_card_that_takes_one_flavour_decides_for_all_cards() -> None:
    text = offline_script("gpu01", {}, None)
    function = re.search(r"^flavour_for\(\) \{.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert function
    calls = (
        "flavour_for 580 0x2330 0x15f8\nflavour_for 550-server 0x2330 0x2342\nflavour_for 580\nflavour_for 999 0x2330\n"
    )
    head = text[: text.index("# --- helpers")]
    done = subprocess.run(
        ["sh", "-s"], input=f"{head}\n{function[0]}\n{calls}", capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["proprietary", "open", "open", "open"]


@pytest.mark.parametrize("shell", [["dash"], ["busybox", "sh"], ["bash", "--posix"]], ids=lambda argv: argv[0])
def test_every_shell_parses_it(shell: list[str]) -> None:
    argv = [program(shell[0]), *shell[1:], "-n"]
    for values, known in VARIANTS.values():
        done = subprocess.run(argv, input=offline_script("gpu01", values, known), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_nothing_smuggles_shell_in() -> None:
    text = offline_script(
        "gpu01'; touch /tmp/x; '", {}, Known(series="580", source="s", packages={"nvidia-utils-580": "1; x"})
    )
    assert setting(text, "HOST") == "gpu01'; touch /tmp/x; '"
    assert setting(text, "WANTED") == "nvidia-utils-580=1; x"
    with pytest.raises(UsageError, match="no branch of the driver"):
        offline_script("gpu01", {"nvidia_driver_branch": "580'; touch /tmp/x; '"})


def test_exactly_the_drivers_names_are_its_own() -> None:
    text = offline_script("gpu01", {})
    ours, foreign = setting(text, "DRIVER_RE"), setting(text, "FOREIGN_RE")

    def grep(*argv: str, given: str) -> str:
        return subprocess.run(["grep", "-E", *argv], input=given, capture_output=True, text=True).stdout

    names = [name.split(":")[0] for name in CASES["names"]["ours"] + CASES["names"]["theirs"]]
    taken = grep("-v", foreign, given=grep(ours, given="\n".join(names) + "\n")).split()
    assert taken == [name for name in names if rescue_purge.is_ours(name)]


@pytest.mark.parametrize(
    ("name", "versioned", "driver"),
    [
        ("nvidia-utils-580-server", True, True),
        ("libnvidia-compute-580", True, True),
        ("nvidia-fabricmanager-580", True, False),
        ("libnvsdm", True, False),
        ("nvidia-firmware-580-580.126.20", False, False),
        ("libnvidia-egl-wayland1", False, False),
        ("nvidia-driver-pinning-595", False, False),
        *((name, False, False) for name in sorted(COMPANIONS)),
    ],
)
def test_what_makes_a_driver_and_what_its_version(name: str, versioned: bool, driver: bool) -> None:
    text = offline_script("gpu01", {})
    loose = bool(re.search(setting(text, "LOOSE_RE"), name))
    assert (not loose) is versioned is is_version_locked(name)
    assert (not loose and not re.search(setting(text, "FABRIC_RE"), name)) is driver


def test_modules_are_found_in_the_places_that_modprobe_knows() -> None:
    pattern = re.compile(setting(offline_script("gpu01", {}), "MODULE_RE"))
    top = "/lib/modules/6.8.0-45-generic"
    assert pattern.search(f"{top}/updates/dkms/nvidia.ko.zst") and pattern.search(
        f"{top}/kernel/nvidia-580-open/nvidia-uvm.ko"
    )
    assert not pattern.search(f"{top}/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko")
    assert not pattern.search(f"{top}/updates/dkms/nvidia-fs.ko")
    assert rescue_traces.MODULE.match("nvidia-peermem.ko.xz")


def test_device_ids_below_1e00_are_older_than_turing() -> None:
    # The script tells open from proprietary by that; every card of the catalog must agree.
    catalog = load_catalog()
    cards = [(id_, catalog.gpu_by_id(id_)) for id_ in catalog.gpu_data.devices]
    assert len(cards) > 100
    assert [(id_, card.name) for id_, card in cards if card.turing_or_newer != (int(id_, 16) >= 0x1E00)] == []


def test_known_versions_go_without_those_of_single_kernels() -> None:
    packages = {
        "nvidia-utils-580-server": "580.1-1",
        "linux-modules-nvidia-580-server-open-6.8.0-45-generic": "6.8.0-45.45",
    }
    known = of_packages(packages, "a test")
    assert known is not None and (known.series, known.flavour, known.build) == ("580-server", "open", "signed")
    assert setting(offline_script("gpu01", {}, known), "WANTED") == "nvidia-utils-580-server=580.1-1"
    assert of_packages({"nvidia-utils-580": "1", "nvidia-utils-570": "1"}, "a test") is None


def test_the_lock_is_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "fleet.lock.yml").write_text(LOCK)
    known = known_of("gpu01", {"inventory_dir": str(tmp_path)})
    assert known is not None and known.packages == {"nvidia-utils-580-server": "580.126.20-0ubuntu0.24.04.1"}
    assert "fleet.lock.yml" in known.source
    assert known_of("gpu02", {"inventory_dir": str(tmp_path)}) is None
    assert known_of("gpu01", {"inventory_dir": str(tmp_path), "gpu_provision_lock": "none"}) is None


LOCK = """\
schema: provision/lock/1
groups:
  h100:
    ubuntu: "24.04"
    arch: amd64
    driver:
      version: 580.126.20
      series: 580-server
      flavour: open
      build: signed
      channel: ubuntu
      variant: headless
      packages:
        nvidia-utils-580-server: 580.126.20-0ubuntu0.24.04.1
hosts:
  gpu01:
    group: h100
"""


def test_earlier_runs_are_what_is_known_without_a_lock(tmp_path: Path) -> None:
    from provision.runs.history import FILE, HostRecord, Run

    for name, packages in (
        ("20261101T000000Z-apply-aaaaaa", [("nvidia-utils-570", None, "570.1-1")]),
        (
            "20261102T000000Z-apply-bbbbbb",
            [("nvidia-utils-570", "570.1-1", None), ("nvidia-utils-580", None, "580.1-1")],
        ),
    ):
        (tmp_path / name).mkdir()
        record = HostRecord(run=name, status="done", packages=packages)
        (tmp_path / name / FILE).write_text(Run(run=name, hosts={"gpu01": record}).model_dump_json(by_alias=True))
    known = known_of("gpu01", {}, tmp_path)
    assert known is not None and (known.series, dict(known.packages)) == ("580", {"nvidia-utils-580": "580.1-1"})
    assert known.source == "the run 20261102T000000Z-apply-bbbbbb"
    assert known_of("gpu02", {}, tmp_path) is None


def test_it_names_what_it_finds_as_diagnose_does() -> None:
    from provision.diagnose import pages

    named = set(re.findall(r"finding ([a-z_]+\.[a-z_]+) ", offline_script("gpu01", {})))
    assert len(named) > 10
    assert named <= set(pages.codes())
