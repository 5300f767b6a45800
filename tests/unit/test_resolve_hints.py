"""Every way out that a refusal names works: set what the hint says, resolve again, and nothing is refused."""

import itertools
import re
import zlib
from dataclasses import replace
from datetime import date

import pytest

from provision.catalog import load_catalog
from provision.parts.decision import DriverConfig
from provision.parts.driver.resolve import resolve_driver
from tests.sample import turn
from tests.unit.candidates import CANDIDATES
from tests.unit.hosts import host

TODAY = date(2026, 11, 28)
GPUS = [
    ["K80"],
    ["P100"],
    ["V100"],
    ["RTX 4090"],
    ["A100"],
    ["H100"],
    ["GH200"],
    ["RTX 5090"],
    ["unknown"],
    ["ancient"],
    ["V100", "RTX 4090"],
    ["V100", "RTX 5090"],
]
BRANCHES = [
    "recommended",
    "470",
    "470-server",
    "535",
    "550",
    "570",
    "580",
    "580-server",
    "590",
    "595",
    "595-server",
    "620",
    "999",
]
SETTING = re.compile(r'nvidia_driver_(\w+): (?:"([^"]*)"|([\w.-]+))')


def settings(alternative):
    found = {name: quoted or bare for name, quoted, bare in SETTING.findall(alternative)}
    if "manage" in found:
        found["manage"] = found["manage"] != "false"
    return found


def configs():
    """Every pair of two of these, so that two wishes may be in each other's way."""
    singles = [
        *[("branch", branch) for branch in BRANCHES],
        *[("channel", channel) for channel in ("ubuntu", "cuda", "ppa")],
        *[("modules", modules) for modules in ("open", "proprietary")],
        *[("version", version) for version in ("580.126.20", "595.58.03", "580.1.2", "620.70.06")],
        *[("min_cuda", cuda) for cuda in ("12.2", "13.2", "13.5", "99.1", "new")],
        *[("build", build) for build in ("signed", "dkms")],
    ]
    for pair in itertools.combinations(singles, 2):
        if pair[0][0] != pair[1][0]:
            yield DriverConfig(**dict(pair))


ARCHIVES = ("noble", "noble-unsigned", "noble-two-580", "empty")
SECURE_BOOT = (None, "on")


def hosts():
    """Two archives and one state of Secure Boot for each row of cards, and each with each somewhere."""
    for number, gpus in enumerate(GPUS):
        for place, archive in enumerate(turn(ARCHIVES, number, 2)):
            for secure_boot in turn(SECURE_BOOT, number // 2 + place):
                yield pytest.param(
                    gpus, archive, secure_boot, id=f"{' + '.join(gpus)}, {archive}, {secure_boot or 'off'}"
                )


@pytest.mark.parametrize(("gpus", "archive", "secure_boot"), list(hosts()))
def test_a_way_out_that_is_named_works(gpus, archive, secure_boot):
    catalog, candidates = (
        load_catalog(),
        {"ubuntu": CANDIDATES[archive], "cuda": CANDIDATES["cuda"], "ppa": CANDIDATES["empty"]},
    )
    refused = 0
    for switches in (0, 4) if gpus == ["H100"] else (0,):
        facts = host(gpus, None, switches, secure_boot)
        # Every fifth wish, others for each host: all of them over the whole table, in seconds.
        for config in itertools.islice(configs(), zlib.crc32(f"{gpus} {archive}".encode()) % 5, None, 5):
            decision = resolve_driver(config, facts, catalog, candidates, TODAY)
            assert decision.blockers or decision.target, config
            for issue in decision.blockers[:1]:
                refused += 1
                assert issue.hint, issue
                for alternative in re.split(r", or |; or ", issue.hint):
                    change = settings(alternative)
                    if not change:
                        continue
                    second = resolve_driver(replace(config, **change), facts, catalog, candidates, TODAY)
                    assert not second.blockers, f"{config}\n{issue}\n{change}\n{second.blockers[0]}"
    assert refused
