"""Reading a host and planning for it: the loop around the pure parts (probe, resolve, plan, checks).

``call(program, args)`` runs one read-only host program and returns its result: over the fast read's session for the
commands, through Ansible modules for the action plugins. Nothing here changes a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import disk as apt_disk
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import Catalog, load_catalog
from provision.errors import Issue, ProvisionError
from provision.facts import Facts
from provision.inventory.repositories import ARCHIVE_NAME
from provision.lib.text import answered
from provision.lock import pin as locked
from provision.parts import registry
from provision.parts.apt import AptPart, combine, kept
from provision.parts.base import Host
from provision.parts.candidates import Candidate, Candidates
from provision.parts.containers.packages import is_toolkit_uri
from provision.parts.desired import Desired
from provision.parts.driver.installed import driver_packages, is_cuda_uri, is_ppa_uri, next_boot_problems
from provision.parts.driver.plan import conflicting
from provision.parts.plan import HostPlan, PackageChange, Reason, Reboot, Step

Call = Callable[[str, dict[str, Any]], Any]


def plan_host(
    name: str,
    call: Call,
    values: dict[str, Any],
    catalog: Catalog | None = None,
    parts: Collection[str] | None = None,
    pinned: Collection[str] | None = None,
) -> HostPlan:
    """Plan one host.

    values: effective role variables (variables.effective), with ``inventory_dir``; a lock beside the inventory is held
    (lock.pin.path_of). parts: which of registry.roles() to plan for; pinned: which of them to pin to the lock; None: all. Raises
    UnreachableError or HostFailedError from ``call`` and UsageError for values, or a lock, that cannot be used.
    """
    return plan_from_facts(name, read_facts(call, values), call, values, catalog, parts, pinned)


def read_facts(call: Call, values: Mapping[str, Any], kind: type[Facts] = Facts) -> Facts:
    """Read a host, and the places that its inventory names. kind: facts.diagnostics.Diagnosed, to diagnose it."""
    return kind.of_host(call(kind.program, probe_args(values)))


def probe_args(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the probe from a host's variables: where else to read."""
    prefixes = Desired(values).conda_given.prefix_paths()
    return {"conda_prefixes": prefixes} if prefixes else {}


def plan_from_facts(
    name: str,
    facts: Facts,
    call: Call,
    values: dict[str, Any],
    catalog: Catalog | None = None,
    parts: Collection[str] | None = None,
    pinned: Collection[str] | None = None,
) -> HostPlan:
    """As plan_host, with the facts at hand: apt is asked only where packages have to change."""
    planner = _Planner(name, facts, call, values, catalog or load_catalog(), parts, pinned)
    try:
        return planner.run()
    finally:
        planner.close()


def plan_without_apt(name: str, facts: Facts, values: dict[str, Any], catalog: Catalog) -> tuple[HostPlan, list[str]]:
    """The plan of a host by its facts alone, as far as apt need not be asked; and the parts that would have to ask it.

    The second are the parts whose packages are not what is wanted: their other steps are left out of the plan then. Jobs on
    the GPUs stop nothing here: nothing will be done.
    """
    idle = facts.model_copy(update={"gpu_users": []})
    return _Planner(name, idle, _nobody, values, catalog).plan_without_apt()


def _nobody(program: str, args: dict[str, Any]) -> Any:
    raise AssertionError(f"{program} is not to be called: the facts are all that there is")


def describe_gpus(facts: Facts, catalog: Catalog) -> list[str]:
    """Return the GPUs of a host as people say it: ``2 x H100 SXM5 80GB``."""
    counts: dict[str, int] = {}
    for gpu in facts.gpus:
        name = catalog.gpu_by_id(gpu.device).name
        counts[name] = counts.get(name, 0) + 1
    return [f"{count} x {name}" for name, count in counts.items()]


def failed_plan(host: str, error: ProvisionError) -> HostPlan:
    """The plan of a host that could not be read or planned: its error as a plan."""
    status = {4: "unreachable", 5: "blocked"}.get(int(error.exit_code), "failed")
    issue = error.issue.model_copy(update={"host": host})
    return HostPlan.model_validate({"host": host, "status": status, "blockers": [issue.model_dump()]})


class _Planner:
    """One host: ask, decide, compare, simulate."""

    def __init__(
        self,
        name: str,
        facts: Facts,
        call: Call,
        values: dict[str, Any],
        catalog: Catalog,
        parts: Collection[str] | None = None,
        pinned: Collection[str] | None = None,
    ) -> None:
        self.name, self.call = name, call
        self.parts = list(registry.roles() if parts is None else parts)
        # a warning where the lock says nothing of the host
        lock, self.unlocked = locked.lock_of(name, facts, values)
        self.pinned = (
            locked.pin(lock, values, facts, [p for p in self.parts if pinned is None or p in pinned]) if lock else None
        )
        # package -> versions, whatever repository they come from
        self.available: dict[str, set[str]] = {}
        self.apt_errors: list[str] = []
        # nothing will be changed: the lock is compared with the host itself, not with a plan
        self.without_apt = False
        desired = Desired(self.pinned.values if self.pinned else values, self.parts)
        self.host = Host(facts, catalog, desired, proxy=desired.proxy)
        # part -> packages that it asks apt for, or asks to go
        self.requested_by_part: dict[str, set[str]] = {}
        # on the host: apt's private folder, with the sources of every channel asked
        self.workdir: str | None = None

    def run(self) -> HostPlan:
        self._decide()
        while wanted := [
            ask
            for ask in dict.fromkeys([*(ask for asks in self._asks().values() for ask in asks), *self._locked_asks()])
            if ask not in self.host.candidates
        ]:
            self._refuse_unreadable_sources()
            if any(decision.blockers for decision in self.host.decisions.values()):
                break
            self._ask(wanted)
            self._decide()
        plan = self._plan()
        apt = plan.spec["apt"]
        if plan.status != "blocked" and apt and (apt["install"] or apt["remove"]):
            self._simulate(plan)
        return plan

    def plan_without_apt(self) -> tuple[HostPlan, list[str]]:
        self.without_apt = True
        self._decide()
        asking = [part for part, asks in self._asks().items() if asks]
        # Without a target a part looks as if nothing of it were wanted: what it has in our files stays out of this.
        self.parts = [part for part in self.parts if part not in asking]
        plan = self._plan()
        plan.steps = [step for step in plan.steps if step.part not in asking]
        return plan, asking

    def close(self) -> None:
        if self.workdir:
            self.call("apt.query", {"op": "cleanup", "workdirs": [self.workdir]})

    def _decide(self) -> None:
        """Have the parts that need apt decide; the others do when that is settled."""
        registry.decide(self.host, apt=True)
        self._pin_to_lock()

    def _asks(self) -> dict[str, Sequence[str]]:
        """Channels that parts wait for."""
        return {part.name: part.asks(self.host.decisions[part.name]) for part in registry.PARTS if part.apt}

    def _refuse_unreadable_sources(self) -> None:
        host = self.host
        errors = host.facts.apt.errors
        others = [error for error in errors if not any(part.mends(host, error) for part in registry.PARTS)]
        if others:
            host.driver.block(
                "apt.sources_broken",
                "apt cannot read its sources: every apt call on this host fails",
                others[:4],
                "correct the named file first; gpu-provision does not change it",
            )

    # --- the lock ----------------------------------------------------------------------------------------------------

    def _locked_asks(self) -> list[str]:
        """Channels that have locked packages which the host does not have as locked."""
        pinned = self.pinned
        return [pinned.channel(part) for part in pinned.pins if pinned.missing(self.host.facts, part)] if pinned else []

    def _pin_to_lock(self) -> None:
        """Make decided packages those of the lock; refuse what contradicts it, and versions that are gone."""
        pinned, host = self.pinned, self.host
        # What concerns the host as a whole is reported with its driver.
        first = host.driver
        if self.unlocked:
            first.warnings.append(self.unlocked)
        if pinned is None or self.without_apt:
            return
        gone = [
            locked.not_available(pinned, host.facts, part, self.available, self.apt_errors)
            for part in pinned.pins
            if pinned.channel(part) in host.candidates
        ]
        against = [*pinned.issues, *filter(None, gone)]
        if against:
            # What else resolve found follows from it, and its suggestions are not those of a locked host.
            for decision in host.decisions.values():
                decision.blockers = []
            first.blockers = against
            return
        for name, decision in host.decisions.items():
            if name in pinned.pins and decision.target:
                missing = pinned.missing(host.facts, name)
                decision.target = registry.by_name(name).pin(decision.target, pinned.pins[name], missing)
            decision.reasons = [
                reason.model_copy(update={"because": "locked"}) if reason.because == "asked for" else reason
                for reason in decision.reasons
            ]
        if pinned.pins:
            like = "" if pinned.lock.listed else "; the host is not in it, and is like this group alone"
            first.reasons.insert(
                0,
                Reason(
                    what="lock", value=pinned.lock.group_name, because=f"{pinned.lock.path} says these versions{like}"
                ),
            )

    # --- what apt is asked -------------------------------------------------------------------------------------------

    def _source(self, channel: str) -> dict[str, Any] | None:
        """The repository of a channel; None for the Ubuntu archive."""
        host = self.host
        if channel == "ubuntu" and not conflicting(host.facts):
            return None
        return host.desired.source("cuda" if channel == "ubuntu" else channel, host.facts, host.catalog)

    def _ask(self, channels: list[str]) -> None:
        """Ask apt once for these channels and those of before: the last folder knows the sources of all of them."""
        host, desired = self.host, self.host.desired
        every = list(dict.fromkeys([*host.candidates, *channels]))
        sources = {channel: self._source(channel) for channel in every}
        specs = {source["name"]: source for source in sources.values() if source}
        if desired.mirror:
            specs[ARCHIVE_NAME] = desired.mirror.archive(host.facts, host.catalog)
        self.close()
        self.workdir = None
        # What old lists do not know may be there by now: a locked version, the module of a new kernel.
        lacking = driver_packages(host.facts) and next_boot_problems(host.facts)
        update = bool(specs or lacking or self._locked_asks()) or any(
            part.apt and part.config(desired).update for part in registry.PARTS
        )
        pins = self.pinned.everything if self.pinned else {}
        args: dict[str, Any] = {
            "op": "offer",
            "sources": list(specs.values()),
            "omit": [
                {"file": entry.file, "line": entry.line}
                for part in registry.PARTS
                for entry in part.omitted(host, specs)
            ],
            "patterns": [
                *(pattern for part in registry.PARTS for pattern in part.patterns(host, specs)),
                *(re.escape(name.split(":")[0]) for name in sorted(pins)),
            ],
            "refresh": "always" if update else "if_stale",
        }
        if host.proxy:
            args["environment"] = host.proxy.environment
        if desired.mirror:
            args["alone"] = True
        answer = answered(self.call("apt.query", args), packages=dict)
        self.workdir = answer["workdir"]
        self.apt_errors = list(answer.get("errors") or [])
        self.available = {name: {row["version"] for row in rows} for name, rows in answer["packages"].items()}
        for channel in every:
            source = sources[channel]
            available = Candidates.from_json(answer, keep=lambda c, s=source, k=channel: _is_from(c, k, s))
            host.candidates[channel] = locked.restrict(available, pins)

    # --- the plan ----------------------------------------------------------------------------------------------------

    def _plan(self) -> HostPlan:
        host, desired = self.host, self.host.desired
        registry.decide(host, apt=False)
        host.channels = {part.name: part.channel(host, host.decisions[part.name]) for part in registry.PARTS}
        sources = {part: self._source(channel) if channel else None for part, channel in host.channels.items()}
        plans = {part.name: part.plan(host, host.decisions[part.name], sources[part.name]) for part in registry.PARTS}
        wanted = {**{part: plan.apt for part, plan in plans.items()}, "mirror": self._of_mirror()}
        self.requested_by_part = {part: {*_names(apt.install), *apt.remove} for part, apt in wanted.items() if apt}
        steps = [step for plan in plans.values() for step in plan.steps]
        apt, configure = combine(
            self._apt_parts(wanted), host.facts, steps, desired.driver.lock_timeout, host.proxy, bool(desired.mirror)
        )
        decisions = [host.decisions[part.name] for part in registry.PARTS]
        reboots = [plan.reboot for plan in plans.values() if plan.reboot]
        plan = HostPlan(
            host=self.name,
            status="converged",
            gpus=describe_gpus(host.facts, host.catalog),
            ubuntu=host.facts.host.os.version_id or "",
            summary="; ".join(filter(None, (plan.summary for plan in plans.values()))),
            decisions=[reason for one in decisions for reason in one.reasons],
            steps=_in_order([*([configure] if configure else []), *steps]),
            reboot=next((reboot for reboot in reboots if reboot.needed), next(iter(reboots), Reboot())),
            blockers=[_on(self.name, issue) for one in decisions for issue in one.blockers],
            warnings=[_on(self.name, issue) for one in decisions for issue in one.warnings],
            spec={
                "roles": [registry.roles()[part] for part in self.parts],
                "apt": apt,
                "parts": {
                    **{part.role: plans[part.name].spec for part in registry.PARTS},
                    **{role: {} for role in registry.SETTINGS.values()},
                },
                "environment": host.proxy.environment,
                "python": {"path": host.facts.host.python_path, "version": host.facts.host.python},
            },
        )
        self._warn_of_refused(plan)
        if plan.reboot.blocked_by:
            plan.blockers.append(
                Issue(
                    code="gpu.in_use",
                    host=self.name,
                    message="the GPUs are in use and the change would disturb them",
                    because=plan.reboot.blocked_by[:8],
                    hint="wait for them or stop them; nvidia_driver_reboot: always goes ahead anyway",
                )
            )
        if plan.blockers:
            plan.status, plan.steps = "blocked", []
        elif plan.steps:
            plan.status = "changes"
            moves = apt is not None and any([apt["install"], apt["remove"], *apt["before"].values()])
            # Scripts of packages with units have systemd read its units again, and so do our own files of units.
            if moves or any(one.reloads for one in plans.values()):
                plan.warnings += [_on(self.name, one.lost_at_reload) for one in plans.values() if one.lost_at_reload]
        return plan

    def _warn_of_refused(self, plan: HostPlan) -> None:
        """Warn of facts that cannot be used; without the release nothing can be chosen."""
        refused = self.host.facts.refused
        if not refused:
            return
        issue = Issue(
            code="host.unreadable",
            host=self.name,
            message="some of what the host says cannot be used, and is left out",
            because=refused[:8],
            hint="check these files on the host; the plan ignores them"
            if all(place.startswith("/") for place in refused)
            else "check the host: is its python3 Ubuntu's own? It may be compromised",
        )
        blocks = any(place.startswith("host.os.") for place in refused) and not self.host.facts.host.os.version_id
        (plan.blockers if blocks else plan.warnings).append(issue)

    def _of_mirror(self) -> AptPart | None:
        """The mirror's part of Ubuntu's archive among the host's sources, as long as the inventory names a mirror."""
        if not self.host.desired.mirror:
            ours = apt_files.sources_path(ARCHIVE_NAME) in self.host.facts.own_files
            return AptPart(absent=[ARCHIVE_NAME]) if ours else None
        spec = self.host.desired.mirror.archive(self.host.facts, self.host.catalog)
        return AptPart(repositories=[(spec, "the fleet's mirror has what the packages need (gpu_mirror_url)")])

    def _apt_parts(self, asked: dict[str, AptPart | None]) -> list[AptPart]:
        """What is asked of apt, in the order of the roles; with what a role that is not planned for has in our files."""
        found: list[AptPart] = []
        for part, apt in asked.items():
            patterns = next((one.unattended for one in registry.PARTS if one.name == part), ())
            kept_part = None if part in self.parts or not patterns else kept(self.host.facts, patterns)
            found += [one for one in (apt, kept_part) if one]
        return found if any(asked.values()) else []

    def _simulate(self, plan: HostPlan) -> None:
        """Let apt say on the host what it would do, and judge that before anybody is asked to agree."""
        apt = plan.spec["apt"]
        install = [*apt["before"]["install"], *apt["install"]]
        workdir, self.workdir = self.workdir, None
        answer = self.call(
            "apt.query",
            {
                "op": "simulate",
                "workdir": workdir,
                "install": install,
                "remove": apt["remove"],
                "unhold": [
                    "all_driver",
                    *apt["extra_hold"],
                    *apt["extra_release"],
                    *apt["remove"],
                    *(item.split("=")[0] for item in install),
                ],
                "preferences": (apt["configure"] or {}).get("preferences"),
            },
        )
        if not answer["ok"]:
            # Repositories that could not be read are the likelier reason where something is missing.
            errors = list(
                dict.fromkeys(error for available in self.host.candidates.values() for error in available.errors)
            )
            plan.blockers.append(
                Issue(
                    code="apt.unmet",
                    host=plan.host,
                    message="apt finds no way to install this",
                    because=[*errors[:4], *str(answer["error"]).splitlines()[:8]],
                    hint="make that repository reachable from the host (network, proxy, mirror, key), then plan again"
                    if errors
                    else "look for half-configured packages (dpkg --audit) and for other sources of the same packages",
                )
            )
        else:
            apply_simulation(plan, answer, self.requested_by_part)
            plan.blockers += self._judge(plan, answer["changes"], install)
            if full := answer.get("full"):
                plan.blockers.append(Issue(host=plan.host, because=full, **apt_disk.REFUSED))
        if plan.blockers:
            plan.status, plan.steps = "blocked", []

    def _judge(self, plan: HostPlan, changes: list[dict[str, Any]], install: list[str]) -> list[Issue]:
        apt = plan.spec["apt"]
        installed = {
            name: package.version for name, package in self.host.facts.packages.items() if package.status[1] not in "nc"
        }
        # A driver that changes may take parts of the old one along; where only toolkits change, none of it may go.
        driver = filter(driver_names.is_driver_package, installed) if apt["family_version"] else ()
        problems = apt_query.judge(
            changes,
            allowed_remove=[*apt["remove"], *driver],
            family_version=apt["family_version"],
            requested=install,
            installed=installed,
            running_kernel=self.host.facts.kernels.running,
        )
        return [
            Issue(
                code=problem["code"],
                host=plan.host,
                message=problem["message"],
                because=problem.get("because") or [],
                hint=problem.get("hint"),
            )
            for problem in problems
        ]


def _is_from(candidate: Candidate, channel: str, source: dict[str, Any] | None) -> bool:
    """True when a candidate belongs to the channel: the same names exist in more than one repository."""
    cuda, ppa = is_cuda_uri(candidate.uri), is_ppa_uri(candidate.uri)
    own = bool(source) and candidate.uri.rstrip("/") == str((source or {})["uris"]).rstrip("/")
    if candidate.name.startswith("linux-headers-"):
        return True
    toolkit = any(map(is_toolkit_uri, candidate.uris))
    if channel == "container_toolkit":
        mirror = str((source or {}).get("uris", "")).rstrip("/")
        return toolkit or mirror in [uri.rstrip("/") for uri in candidate.uris]
    if channel == "cuda":
        # Toolkits, cuDNN and NCCL too: the archive has a libnccl2 of its own.
        return own or cuda
    if channel == "ubuntu":
        foreign = candidate.origin == "NVIDIA" or candidate.origin.startswith("LP-PPA-")
        return not cuda and not ppa and not foreign and not toolkit
    return own or ppa


# Sources first, then packages and holds, then what lies around them, the reboot last.
_ORDER = {"sources": 0, "packages": 1, "hold": 2, "reboot": 4}


def _in_order(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: _ORDER.get(step.id, 3))


def _on(host: str, issue: Issue) -> Issue:
    return issue.model_copy(update={"host": host})


def _names(install: Collection[str]) -> set[str]:
    """Names of "name=version" items."""
    return {item.split("=")[0] for item in install}


def _part_of(name: str, requested_by_part: Mapping[str, Collection[str]]) -> str:
    """The part of the plan that a package belongs to: the part names it, or what it names depends on it."""
    for part, named in requested_by_part.items():
        if name in named:
            return part
    owner = next((part.name for part in registry.PARTS if part.owns(name)), None)
    # A compiler, docker's helpers: what the driver needs of others is little.
    others = (part for part in reversed(list(requested_by_part)) if requested_by_part[part])
    return owner or next(others, registry.PARTS[0].name)


def apply_simulation(
    plan: HostPlan, simulation: dict[str, Any], requested_by_part: Mapping[str, Collection[str]]
) -> None:
    """Put what apt said it would do into the plan: packages with versions, removals, sizes.

    requested_by_part: the names that each part asks apt for, or asks to go.
    """
    plan.packages = [
        PackageChange(
            action=change["action"],
            name=change["name"],
            version=change.get("version"),
            from_version=change.get("from_version"),
            download_bytes=int(change.get("download_bytes") or 0),
            disk_bytes=int(change.get("disk_bytes") or 0),
            group=next(filter(None, (part.group_of(change["name"]) for part in registry.PARTS)), ""),
            part=_part_of(change["name"], requested_by_part),
        )
        for change in simulation["changes"]
    ]
    plan.download_bytes = int(simulation.get("download_bytes") or 0)
    plan.disk_bytes = int(simulation.get("disk_bytes") or 0)
    # What is only "before" was done in a transaction of its own by the time the plan is compared.
    before = plan.spec["apt"]["before"]
    first = {*_names(before["install"]), *before["remove"]}
    plan.spec["apt"]["expect"] = [
        package.model_dump(include={"action", "name", "version", "from_version"})
        for package in plan.packages
        if package.name not in first
    ]
