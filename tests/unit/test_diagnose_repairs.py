"""No healthy host raises an error or a warning; every error's first repair has something to do on its host."""

import pytest

from provision.catalog import load_catalog
from provision.diagnose import judge
from provision.diagnose.rule import Case
from provision.rescue.rounds import _NOT_OURS
from tests.sample import share
from tests.unit import apthosts, brokenhosts

TABLES = ("apt", "boot", "independent", "kinds", "user", "variants", "worlds")
ROWS = [(name, *brokenhosts.load(f"diagnose_{name}")) for name in (*TABLES, "healthy")]
ALL = {name: host for _, hosts, _ in ROWS for name, host in hosts.items()}
CASES = [
    pytest.param({**ALL, **hosts}, case, id=f"{name}: {case['name']}")
    for name, hosts, cases in ROWS
    for case in cases
    if name in TABLES and "text" not in case
]
HEALTHY = [
    pytest.param({**ALL, **hosts}, case, id=f"{name}: {case['name']}")
    for name, hosts, cases in ROWS
    for case in cases
    if name in ("healthy", "worlds") and "broken" not in case
]


@pytest.mark.parametrize(("hosts", "case"), HEALTHY)
def test_a_healthy_host_raises_no_error_and_no_warning(hosts, case, tmp_path):
    _, found = apthosts.diagnosed(case, hosts, tmp_path / "host")
    assert not [(one.code, one.message) for one in found.findings if one.level != "note"]
    assert not found.unknown


def test_there_are_many_kinds_of_healthy_hosts():
    assert len(HEALTHY) >= 20


@pytest.mark.parametrize(("hosts", "case"), share(CASES, 3))
def test_a_first_repair_is_neither_refused_nor_empty(hosts, case, tmp_path):
    facts, found = apthosts.diagnosed(case, hosts, tmp_path / "host")
    host = Case(facts, brokenhosts.values_of(case), load_catalog())
    for finding in found.errors:
        repair = finding.repairs[0]
        assert repair.words
        assert _works(host, repair), (finding.code, repair)


def _works(host, repair):
    """What a repair is to change is there to be changed, by the facts that the finding was made of."""
    args, facts = repair.args, host.facts
    apt = facts.trouble.apt if facts.trouble else None
    if repair.action in ("apply", "realign"):
        return judge.cannot_work(host, repair) is None
    if repair.action in ("sources.drop", "sources.rewrite"):
        there = {(row.file, row.line) for row in facts.apt.sources if row.enabled}
        errors = " ".join(facts.apt.errors)
        return all((row["file"], row["line"]) in there or row["file"] in errors for row in args["entries"])
    if repair.action == "dpkg.configure":
        return bool(facts.package_problems or (apt and (apt.unfinished or apt.journal or apt.unmet)))
    if repair.action == "packages.install":
        return any(not (one := facts.packages.get(name)) or not one.installed for name in args["packages"])
    if repair.action == "initramfs.build":
        return {kernel.release for kernel in facts.kernels.installed} >= set(args.get("kernels", ()))
    if repair.action == "module.reload":
        return any(module.kernel == facts.kernels.running for module in facts.module.on_disk)
    return repair.action in {
        *_NOT_OURS,
        "boot.room",
        "gpu.reset",
        "sources.key",
        "lists.clean",
        "holds.clear",
        "file.aside",
        "reboot",
    }


def test_a_driver_outside_apt_is_repaired_by_hand_and_why(tmp_path):
    case = {
        "smi": "works",
        "gpus": ["0000:1b:00.0 A100"],
        "tree": {
            "kernels": ["6.8.0-45-generic"],
            "pci": ["0000:1b:00.0 10de:20b0 0302 nvidia"],
            "loaded": {"version": "580.126.20", "open": True},
            "packages": ["dpkg 1 ii"],
        },
    }
    _, found = brokenhosts.diagnosed(case, {}, tmp_path)
    (finding,) = [one for one in found.errors if one.code == "gpus.no_device_nodes"]
    assert [repair.action for repair in finding.repairs] == ["manual"]
    assert "a driver that apt does not own" in finding.repairs[0].words


def test_packages_of_a_driver_without_a_gpu_are_brought_together_by_hand(tmp_path):
    hosts, cases = brokenhosts.load("diagnose_apt")
    case = next(one for one in cases if one["name"] == "G6: two branches mixed after the names changed")
    _, found = apthosts.diagnosed(case, hosts, tmp_path / "host")
    (finding,) = [one for one in brokenhosts.flat(found.errors) if one.code == "driver.mixed_versions"]
    assert finding.repairs[0].action == "manual"
    assert "the inventory asks for nothing" in finding.repairs[0].words
