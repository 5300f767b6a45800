"""Plans of made-up fleets: the real planner on made-up hosts, whose apt does what it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from provision.documents import PlanDocument
from provision.errors import Exit, Issue, RefusedError, UnreachableError
from provision.facts import Facts
from provision.parts.candidates import Candidates
from provision.parts.plan import HostPlan
from provision.planning import failed_plan, plan_from_facts
from tests.unit.candidates import CANDIDATES
from tests.unit.containershosts import VERSIONS, archive_candidates, case_host, toolkit_candidates
from tests.unit.cudacandidates import CANDIDATES as CUDA
from tests.unit.hosts import host

OLD = "580 580.95.05 open signed"
DOCKER = {"docker": {"engine": "/usr/bin/dockerd", "package": "docker.io", "version": "28.2.2"}, "cgroups": "v2"}
CONDA = {
    "miniconda_prefix": "/opt/miniconda3",
    "miniconda_environments": [
        {"name": "py311cu124", "cuda": "12.4", "torch": "2.6.0", "python": "3.11"},
        {"name": "py310cu118", "cuda": "11.8", "torch": "2.3.1", "python": "3.10"},
    ],
}


class Apt:
    """Answers as apt.query does: everything is there, and a simulation does exactly what was asked."""

    def __init__(self, facts: Facts, *repositories: Candidates) -> None:
        self.facts = facts
        self.packages = {name: found for one in repositories for name, found in one.packages.items()}

    def __call__(self, program: str, args: dict[str, Any]) -> Any:
        if args["op"] == "offer":
            keys = ("version", "depends", "provides", "conflicts", "uri", "origin")
            rows = {n: [{k: getattr(c, k) for k in keys} for c in found] for n, found in self.packages.items()}
            return {"workdir": "/tmp/w", "packages": rows, "refreshed": True, "errors": []}
        if args["op"] == "cleanup":
            return {"removed": 1}
        changes = [self._change(*item.split("=")) for item in args["install"]]
        changes += [
            {"action": "remove", "name": name, "from_version": self.facts.packages[name].version}
            for name in args["remove"]
        ]
        total = sum(change.get("download_bytes", 0) for change in changes)
        return {"ok": True, "error": None, "changes": changes, "download_bytes": total, "disk_bytes": 3 * total}

    def _change(self, name: str, version: str) -> dict[str, Any]:
        there = self.facts.packages.get(name)
        old = there.version if there and there.installed else None
        action = "install" if old is None else "upgrade" if old < version else "downgrade"
        return {
            "action": action,
            "name": name,
            "version": version,
            "from_version": old,
            "download_bytes": 40_000_000,
            "disk_bytes": 120_000_000,
        }


def planned(name: str, facts: Facts, **values: Any) -> HostPlan:
    ubuntu = facts.host.os.version_id
    cuda = CUDA["jammy" if ubuntu == "22.04" else "noble"]
    drivers = [CANDIDATES[one] for one in ("noble", "cuda")]
    apt = Apt(facts, cuda, *drivers, toolkit_candidates(VERSIONS), archive_candidates(ubuntu))
    return plan_from_facts(name, facts, apt, values)


def fleet(plans: Iterable[HostPlan]) -> PlanDocument:
    document = PlanDocument(hosts={plan.host: plan for plan in plans})
    document.errors = [issue for plan in document.hosts.values() for issue in plan.blockers]
    return document.conclude([Exit(plan.exit_code) for plan in document.hosts.values()])


def everything(*toolkits: str) -> dict[str, Any]:
    return {"cuda_toolkit_versions": list(toolkits), "container_toolkit_runtimes": ["docker"], **CONDA}


def unlike() -> PlanDocument:
    """Six hosts of six kinds: drivers, toolkits and their libraries, containers and conda, new and to be updated."""
    plans = [
        planned("srv4090", with_docker(host(["RTX 4090"], drivers=["nouveau"])), **everything("12.8", "13.0")),
        planned("srvh100", with_docker(host(["H100"] * 8, nvswitches=4)), **everything("12.8", "13.0")),
        planned("srva100", host(["A100"] * 4, OLD), nvidia_driver_update=True, cuda_toolkit_versions=["12.8"]),
        planned("srv1080", with_docker(host(["GTX 1080 Ti"] * 2)), **everything("12.8")),
        planned("srvv100", host(["V100"] * 4), cuda_toolkit_versions=["12.8"], **CONDA),
        planned("srvt4", host(["T4"], "580 580.142 open signed"), nvidia_driver_branch="580", **CONDA),
    ]
    return fleet(plans)


def equal() -> PlanDocument:
    """Forty hosts of one kind whose driver is updated and that get a second toolkit; GPUs of three are in use."""
    facts = host(["H100"] * 8, OLD, nvswitches=4)
    plans = []
    for number in range(1, 41):
        name = f"gpu{number:02d}"
        plan = planned(name, facts, nvidia_driver_update=True, cuda_toolkit_versions=["12.8", "13.0"])
        plan.reboot.blocked_by = ["python3 (pid 4711, ada)"] if number in (7, 19, 33) else []
        plans.append(plan)
    return fleet(plans)


def mixed() -> PlanDocument:
    """Forty hosts of ten kinds, four of each; two are blocked, one does not answer."""
    kinds = [
        ("a", lambda: (with_docker(host(["RTX 4090"], drivers=["nouveau"])), everything("12.8", "13.0"))),
        ("b", lambda: (with_docker(host(["H100"] * 8, nvswitches=4)), everything("12.8", "13.0"))),
        ("c", lambda: (host(["A100"] * 4, OLD), {"nvidia_driver_update": True, "cuda_toolkit_versions": ["12.8"]})),
        ("d", lambda: (with_docker(host(["GTX 1080 Ti"] * 2)), everything("12.8"))),
        ("e", lambda: (host(["V100"] * 4), {"cuda_toolkit_versions": ["12.8"], **CONDA})),
        ("f", lambda: (host(["T4"], "580 580.142 open signed"), {"nvidia_driver_branch": "580", **CONDA})),
        ("g", lambda: (with_docker(host(["RTX 3090"] * 2)), everything("13.0"))),
        ("h", lambda: (host(["RTX 3090"] * 2, "580 580.142 open signed"), {"nvidia_driver_branch": "580"})),
        ("i", lambda: (host(["A100"] * 8, nvswitches=6), {"nvidia_driver_reboot": "never"})),
        ("j", lambda: (host(["H100 PCIe"] * 2, OLD), {"nvidia_driver_update": True, **CONDA})),
    ]
    plans = []
    for kind, made in kinds:
        facts, values = made()
        plans += [planned(f"lab-{kind}{number}", facts, **values) for number in range(1, 5)]
    refused = Issue(
        code="driver.not_offered", message="the Ubuntu archive has no branch 600", hint="595 drives these GPUs"
    )
    for name in ("lab-e3", "lab-e4"):
        plans[[p.host for p in plans].index(name)] = failed_plan(
            name, RefusedError("driver.not_offered", refused.message)
        )
    down = UnreachableError("connect.timeout", "no answer on port 22 within 10 s", hint="is it switched on?")
    plans[-1] = failed_plan("lab-j4", down)
    return fleet(plans)


def with_docker(facts: Facts) -> Facts:
    return facts.model_copy(update={"containers": case_host({"containers": DOCKER}).containers})


def each_unlike() -> PlanDocument:
    """Forty hosts, no two of which have the same GPUs, driver and toolkits: what a lab becomes in ten years."""
    gpus = [
        ["RTX 4090"],
        ["RTX 3090"] * 2,
        ["H100"] * 8,
        ["A100"] * 4,
        ["V100"] * 4,
        ["T4"],
        ["GTX 1080 Ti"] * 2,
        ["T4"] * 4,
    ]
    toolkits: list[dict[str, Any]] = [
        {},
        {"cuda_toolkit_versions": ["12.8"]},
        {"cuda_toolkit_versions": ["12.8", "13.0"]},
    ]
    kinds = itertools.product(gpus, (None, OLD), toolkits)
    plans = []
    for number, (cards, driver, values) in enumerate(itertools.islice(kinds, 40)):
        values = values | (CONDA if number % 5 == 0 else {})
        values |= {"nvidia_driver_update": True} if driver else {}
        facts = host(cards, driver) if driver else host(cards, drivers=["nouveau"] * (number % 2))
        if number % 2:
            facts, values = with_docker(facts), values | {"container_toolkit_runtimes": ["docker"]}
        plans.append(planned(f"srv{number:02d}", facts, **values))
    return fleet(plans)
