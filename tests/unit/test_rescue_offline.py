"""The file for a console: whole or nothing, data that is never code, and the catalog's and the lock's word in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.rescue import console_packages
from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.remote import bundle
from provision.rescue.offline import Known, decisions, known_of, of_packages, offline_script

KNOWN = Known("580-server", "open", "signed", "ubuntu", "headless", {"nvidia-utils-580-server": "580.1-1"}, "a test")
ODD = 'gpu01\r\n\'; import os\n\x0c"""\u2028\u202e'


@pytest.fixture(scope="module")
def script() -> str:
    return offline_script("gpu01.example.org", {}, KNOWN, "2026-11-28 12:00 UTC")


def test_a_person_can_read_what_it_is_and_paste_it(script: str) -> None:
    lines = script.splitlines()
    assert script.isascii() and max(map(len, lines)) < 250
    head = "\n".join(lines[:30])
    assert "gpu01.example.org" in head and "2026-11-28 12:00 UTC" in head and "the versions of a test" in head
    assert all(line.startswith("#") for line in lines[: lines.index("")])


def test_what_is_cut_off_before_its_check_cannot_be_parsed(script: str) -> None:
    lines = script.splitlines(keepends=True)
    checked = next(at for at, line in enumerate(lines) if line.startswith("import importlib"))
    for end in range(lines.index("try:\n") + 1, checked - 4):
        with pytest.raises(SyntaxError):
            compile("".join(lines[:end]), "rescue.py", "exec")


def test_values_of_hosts_are_data() -> None:
    known = Known("580", source=ODD, packages={"nvidia-utils-580": "1; x\n# --- sha256 0\n"})
    text = offline_script(ODD, {}, known)
    block = text.partition("# --- decisions: JSON ---\n")[2].partition("# --- program")[0]
    found = json.loads("".join(line[2:] for line in block.splitlines()))
    assert (found["host"], found["wanted"]) == (ODD, ["nvidia-utils-580=1; x\n# --- sha256 0\n"])
    assert text.isascii() and "import os" not in [line.strip() for line in text.splitlines()]
    compile(text, "rescue.py", "exec")
    with pytest.raises(UsageError, match="no branch of the driver"):
        offline_script("gpu01", {"nvidia_driver_branch": "580'; touch /tmp/x; '"})


def test_everything_that_it_imports_is_in_it(script: str) -> None:
    sent = bundle.needed("rescue.console")
    assert {"rescue.step", "rescue.snapshot", "rescue.purge", "rescue.undo", "apt.transaction", "probe.facts"} <= set(
        sent
    )


@pytest.mark.parametrize(
    ("values", "known", "wanted"),
    [
        (
            {},
            None,
            {"managed": True, "hold": True, "series": "", "channel": "ubuntu", "build": "auto", "variant": "headless"},
        ),
        (
            {"nvidia_driver_branch": "595", "nvidia_driver_channel": "cuda", "nvidia_driver_modules": "open"},
            None,
            {"series": "595", "channel": "cuda", "build": "dkms", "flavour": "open"},
        ),
        ({"nvidia_driver_manage": False, "nvidia_driver_hold": False}, None, {"managed": False, "hold": False}),
        ({"nvidia_driver_branch": "595"}, KNOWN, {"series": "580-server", "flavour": "open", "build": "signed"}),
        (
            {"nvidia_driver_variant": "desktop", "nvidia_driver_build": "dkms"},
            KNOWN,
            {"variant": "desktop", "build": "dkms"},
        ),
    ],
)
def test_what_was_decided(values: dict[str, Any], known: Known | None, wanted: dict[str, Any]) -> None:
    found = decisions("gpu01", values, known)
    assert {key: found[key] for key in wanted} == wanted
    # The catalog is asked where the cards decide, and nowhere else.
    assert ("alone" in found) is (found["flavour"] == "auto")


def test_open_or_proprietary_is_the_catalogs_answer_for_every_card_and_branch() -> None:
    catalog, decided = load_catalog(), decisions("gpu01", {})
    asked = [
        (branch.number, device, flavours[0])
        for branch in catalog.branches
        for device in [*catalog.gpu_data.devices, "2fff", "1bff"]
        if (flavours := catalog.flavours([catalog.gpu_by_id(device)], branch.number))
    ]
    assert {("2342", "open"), ("15f8", "proprietary")} <= {(device, flavour) for _, device, flavour in asked}
    # As it arrives on the host.
    decided = json.loads(json.dumps(decided))
    assert not [row for row in asked if console_packages.flavour(decided, str(row[0]), [row[1]]) != row[2]]


@pytest.mark.parametrize(
    ("series", "devices", "flavour"),
    [
        ("580", ["2330", "15f8"], "proprietary"),
        ("550-server", ["2330", "2342"], "open"),
        ("580", [], "open"),
        ("999", ["2330"], "open"),
    ],
)
def test_a_card_that_takes_one_flavour_decides_for_all_cards(series: str, devices: list[str], flavour: str) -> None:
    assert console_packages.flavour(json.loads(json.dumps(decisions("gpu01", {}))), series, devices) == flavour


def test_known_versions_go_without_those_of_single_kernels() -> None:
    packages = {
        "nvidia-utils-580-server": "580.1-1",
        "linux-modules-nvidia-580-server-open-6.8.0-45-generic": "6.8.0-45.45",
    }
    known = of_packages(packages, "a test")
    assert known is not None and (known.series, known.flavour, known.build) == ("580-server", "open", "signed")
    assert decisions("gpu01", {}, known)["wanted"] == ["nvidia-utils-580-server=580.1-1"]
    assert of_packages({"nvidia-utils-580": "1", "nvidia-utils-570": "1"}, "a test") is None


def test_the_lock_is_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "fleet.lock.yml").write_text(LOCK)
    known = known_of("gpu01", {"inventory_source": str(tmp_path / "hosts.yml")})
    assert known is not None and known.packages == {"nvidia-utils-580-server": "580.126.20-0ubuntu0.24.04.1"}
    assert "fleet.lock.yml" in known.source
    assert known_of("gpu02", {"inventory_source": str(tmp_path / "hosts.yml")}) is None
    assert known_of("gpu01", {"inventory_source": str(tmp_path / "hosts.yml"), "gpu_provision_lock": "none"}) is None


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
