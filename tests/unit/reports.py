"""A fleet as the page shows it: hosts that are well, that drifted, that are broken, that cannot be read; what they keep of runs."""

from __future__ import annotations

from typing import Any

from provision.commands import report
from provision.errors import HostFailedError, ProvisionError, UnreachableError
from provision.facts import Facts
from tests.unit import brokenhosts
from tests.unit.fakefleet import fake_fleet
from tests.unit.fleethosts import VERSION, changed, healthy

GONE = UnreachableError("connect.refused", "nobody answers on port 22", hint="is it switched on?")
SICK = HostFailedError(
    "host.timeout", "the host took longer than 60 s to answer", hint="look at its load, then try again"
)
RUN = "20261128T095320Z-apply-f9038c"
_LIBRARIES = ("libcuda", "libnvidia-ml")
_LISTS = [
    {"uri": "http://archive.test/ubuntu", "suite": "noble-security", "file": "/etc/apt/a", "prefix": "s", "there": True}
]


def facts(name: str, number: int, folder: Any) -> Facts | ProvisionError:
    """Every seventh host is otherwise than the others, each in its own way."""
    libraries = [
        {"soname": f"{name}.so.1", "path": f"/usr/lib/{name}.so.{VERSION}", "version": VERSION} for name in _LIBRARIES
    ]
    well = changed(healthy(name, gpus=4), {"libraries": libraries})
    held = next(package for package, one in well.packages.items() if one.held)
    newer = {"name": held, "version": "999.1-0ubuntu0.24.04.1", "list": "s"} if number % 4 == 1 else None
    well = changed(well, {"trouble": {"apt": {"lists": _LISTS, "offers": [newer] if newer else []}}})
    odd: list[Any] = [
        lambda: GONE,
        lambda: _broken("k7 the kernel refused the module, and its line is the only witness", folder / name),
        lambda: changed(well, {"gpus/0/pcie": {"width": 8}}),
        lambda: SICK,
        lambda: changed(well, {f"packages/{held}": {"status": "ii"}}),
        lambda: _broken("k4 a release with a dot in NVIDIA's address", folder / name),
        lambda: changed(well, {"containers/docker": {"version": "29.9"}}),
    ]
    return odd[number // 7 % len(odd)]() if number % 7 == 3 else well


def _broken(case: str, folder: Any) -> Facts:
    hosts, cases = brokenhosts.load("diagnose_kinds")
    return brokenhosts.facts_of(next(one for one in cases if one["name"] == case), hosts, folder)


def record(number: int = 1, **more: Any) -> dict[str, Any]:
    judged = {"pass": 34, "warn": 1, "fail": 0, "skip": 2, "failed": []}
    return {
        "run": RUN,
        "status": "done",
        "command": "provision apply",
        "who": "ada@desk",
        "started": "2026-11-28T09:53:20Z",
        "ended": f"2026-11-28T10:{number % 60:02d}:00Z",
        "packages": [["libnvidia-compute-580", "580.95.05-0ubuntu0.24.04.1", "580.142-0ubuntu0.24.04.1"]],
        "verify": judged,
        **more,
    }


def answer(program: str, args: dict[str, Any]) -> Any:
    """What hosts answer beside their facts: their records of runs."""
    assert program == "run.record", program
    return {"runs": [record()], "unreadable": [], "lock": {"held": None, "stale": None}}


def document(monkeypatch: Any, folder: Any, count: int, apt: Any = answer) -> report.ReportDocument:
    """Return the report of a fleet of so many hosts."""
    hosts = {f"gpu{number:02d}": facts(f"gpu{number:02d}", number, folder) for number in range(1, count + 1)}
    fleet, _ = fake_fleet(monkeypatch, folder, hosts, apt)
    return report.run(fleet, folder / "runs", options=["-i", "hosts.yml"])


def many(few: report.ReportDocument, count: int) -> report.ReportDocument:
    """The same hosts again and again, under other names."""
    known = list(few.hosts.values())
    hosts = {f"node{number:05d}": known[number % len(known)] for number in range(count)}
    return few.model_copy(update={"hosts": hosts, "errors": []})
