"""Reading a host and planning for it: the loop around the pure parts (probe, resolve, plan, checks).

``call(program, args)`` runs one read-only host program and returns its result: over the fast read's session for the
commands, through Ansible modules for the action plugins. Nothing here changes a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import Catalog, load_catalog
from provision.errors import Issue, ProvisionError
from provision.facts import Facts
from provision.inventory.repositories import ARCHIVE_NAME
from provision.lib.text import answered
from provision.lock import hold as locked
from provision.parts.apt import AptPart, combine, kept
from provision.parts.candidates import Candidate, Offer
from provision.parts.conda.plan import conda_spec, conda_summary
from provision.parts.conda.resolve import resolve_conda
from provision.parts.containers.packages import is_toolkit_uri, toolkit_entries
from provision.parts.containers.plan import UNATTENDED as CONTAINERS_UNATTENDED
from provision.parts.containers.plan import plan_containers
from provision.parts.containers.preconditions import lost_at_reload
from provision.parts.containers.resolve import PATTERNS as CONTAINER_PATTERNS
from provision.parts.containers.resolve import ContainersDecision, resolve_containers
from provision.parts.cuda.plan import UNATTENDED as CUDA_UNATTENDED
from provision.parts.cuda.plan import group_of, plan_cuda
from provision.parts.cuda.resolve import PATTERNS as CUDA_PATTERNS
from provision.parts.cuda.resolve import CudaDecision, resolve_cuda
from provision.parts.decision import CHANNELS, Decision, kernel_flavours
from provision.parts.desired import Desired
from provision.parts.driver.installed import is_cuda_uri, is_ppa_uri
from provision.parts.driver.plan import conflicting, cuda_entries, plan_driver
from provision.parts.driver.resolve import resolve_driver
from provision.parts.plan import HostPlan, PackageChange, Reason, Step

Call = Callable[[str, dict[str, Any]], Any]

# Part of a plan -> the role that carries it out. A plan is made for the roles of a play; the commands plan for all.
PARTS = {
    "driver": "nvidia_driver",
    "cuda": "cuda_toolkit",
    "conda": "miniconda",
    "containers": "container_toolkit",
    "proxy": "gpu_proxy",
    "mirror": "gpu_mirror",
}
# What unattended-upgrades leaves alone for a role: one file of ours has it for all of them.
_UNATTENDED = {"driver": driver_names.UNATTENDED_PATTERNS, "cuda": CUDA_UNATTENDED, "containers": CONTAINERS_UNATTENDED}


def plan_host(
    name: str,
    call: Call,
    values: dict[str, Any],
    catalog: Catalog | None = None,
    parts: Collection[str] = PARTS,
    held: Collection[str] = PARTS,
) -> HostPlan:
    """Plan one host.

    values: effective role variables (variables.effective), with ``inventory_dir``; a lock beside the inventory is held
    (lock.hold.path_of). parts: which of PARTS to plan for; held: which of them to hold to the lock. Raises
    UnreachableError or HostFailedError from ``call`` and UsageError for values, or a lock, that cannot be used.
    """
    return plan_from_facts(name, read_facts(call, values), call, values, catalog, parts, held)


def read_facts(call: Call, values: Mapping[str, Any], program: str = "probe.facts") -> Facts:
    """Read a host, and look at the places that its wishes name. program: trouble reads more, for diagnose and rescue."""
    return Facts.of_host(call(program, probe_args(values)))


def probe_args(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the probe is told of a host's wishes: where else to look."""
    prefixes = Desired(values).conda_given.prefix_paths()
    return {"conda_prefixes": prefixes} if prefixes else {}


def plan_from_facts(
    name: str,
    facts: Facts,
    call: Call,
    values: dict[str, Any],
    catalog: Catalog | None = None,
    parts: Collection[str] = PARTS,
    held: Collection[str] = PARTS,
) -> HostPlan:
    """As plan_host, with the facts at hand: apt is asked only where packages have to change."""
    planner = _Planner(name, facts, call, values, catalog or load_catalog(), parts, held)
    try:
        return planner.run()
    finally:
        planner.close()


def standing(
    name: str, facts: Facts, values: dict[str, Any], catalog: Catalog | None = None
) -> tuple[HostPlan, list[str]]:
    """How a host stands to its wishes by its facts alone: the plan as far as no apt is asked, and what would be asked for.

    The second are the parts whose packages are not what is wanted: their other steps are left out of the plan then. Jobs on
    the GPUs stop nothing here: nothing will be done.
    """
    idle = facts.model_copy(update={"gpu_users": []})
    return _Planner(name, idle, _nobody, values, catalog or load_catalog(), PARTS, PARTS).stand()


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
    """The plan of a host that could not be read or planned: its error in the plan's words."""
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
        parts: Collection[str],
        held: Collection[str],
    ) -> None:
        self.name, self.facts, self.call, self.catalog, self.parts = name, facts, call, catalog, parts
        # a warning where the lock says nothing of the host
        lock, self.unlocked = locked.lock_of(name, facts, values)
        self.held = locked.hold(lock, values, facts, [p for p in parts if p in held]) if lock else None
        # package -> versions, whatever repository they come from
        self.offered: dict[str, set[str]] = {}
        self.offer_errors: list[str] = []
        # nothing will be changed: the lock is compared with the host itself, not with a plan
        self.stands = False
        if self.held:
            values = self.held.values
        self.desired = Desired(values, parts)
        self.offers: dict[str, Offer] = {}
        # part -> packages that it asks apt for, or asks to go
        self.brings: dict[str, set[str]] = {}
        # on the host: apt's private folder, with the sources of every channel asked
        self.workdir: str | None = None

    def run(self) -> HostPlan:
        driver, cuda, containers = self._decide()
        while wanted := [
            ask
            for ask in dict.fromkeys([driver.ask, cuda.ask, *containers.asks, *self._locked_asks()])
            if ask and ask not in self.offers
        ]:
            _refuse_unreadable_sources(self.facts, driver, mended=self._mends_toolkit_sources)
            if driver.blockers or cuda.blockers or containers.blockers:
                break
            self._ask(wanted)
            driver, cuda, containers = self._decide()
        plan = self._plan(driver, cuda, containers)
        apt = plan.spec["apt"]
        if plan.status != "blocked" and apt and (apt["install"] or apt["remove"]):
            self._simulate(plan)
        return plan

    def stand(self) -> tuple[HostPlan, list[str]]:
        self.stands = True
        driver, cuda, containers = self._decide()
        asks = {"driver": bool(driver.ask), "cuda": bool(cuda.ask), "containers": bool(containers.asks)}
        asking = [part for part, open_ in asks.items() if open_]
        # Without a target a part looks as if nothing of it were wanted: what it has in our files stays out of this.
        self.parts = [part for part in self.parts if part not in asking]
        plan = self._plan(driver, cuda, containers)
        plan.steps = [step for step in plan.steps if step.part not in asking]
        return plan, asking

    def close(self) -> None:
        if self.workdir:
            self.call("apt.query", {"op": "cleanup", "workdirs": [self.workdir]})

    @property
    def _mends_toolkit_sources(self) -> bool:
        """Entries of NVIDIA's container repositories that contradict each other give way to our own."""
        return self.desired.containers.wanted and self.desired.containers.remove_legacy

    def _decide(self) -> tuple[Decision, CudaDecision, ContainersDecision]:
        driver = resolve_driver(self.desired.driver, self.facts, self.catalog, self.offers)
        if "driver" not in self.parts:
            # not this plan's business
            driver.reasons, driver.warnings = [], []
        decisions = (
            driver,
            resolve_cuda(self.desired.cuda, self.facts, self.catalog, self.offers, driver),
            resolve_containers(
                self.desired.containers, self.facts, self.catalog, self.offers, driver, self.desired.proxy
            ),
        )
        self._hold_to_lock(*decisions)
        return decisions

    # --- the lock ----------------------------------------------------------------------------------------------------

    def _locked_asks(self) -> list[str]:
        """Channels that have locked packages which the host does not have as locked."""
        held = self.held
        return [held.channel(part) for part in held.pins if held.missing(self.facts, part)] if held else []

    def _hold_to_lock(self, driver: Decision, cuda: CudaDecision, containers: ContainersDecision) -> None:
        """Make decided packages those of the lock; refuse what contradicts it, and versions that are gone."""
        held = self.held
        if self.unlocked:
            driver.warnings.append(self.unlocked)
        if held is None or self.stands:
            return
        gone = [
            locked.not_offered(held, self.facts, part, self.offered, self.offer_errors)
            for part in held.pins
            if held.channel(part) in self.offers
        ]
        against = [*held.issues, *filter(None, gone)]
        if against:
            # What else resolve found follows from it, and its ways out are not those of a locked host.
            for decision in (driver, cuda, containers):
                decision.blockers = []
            driver.blockers = against
            return
        if driver.target and "driver" in held.pins:
            driver.target = locked.driver_target(driver.target, held, self.facts)
        if cuda.target and "cuda" in held.pins:
            cuda.target = locked.cuda_target(cuda.target, held, self.facts)
        if containers.target and "containers" in held.pins:
            containers.target = locked.containers_target(containers.target, held, self.facts)
        for decision in (driver, cuda, containers):
            decision.reasons = [
                reason.model_copy(update={"because": "locked"}) if reason.because == "asked for" else reason
                for reason in decision.reasons
            ]
        if held.pins:
            like = "" if held.lock.listed else "; the host is not in it, and is like this group alone"
            driver.reasons.insert(
                0,
                Reason(what="lock", value=held.lock.group_name, because=f"{held.lock.path} says these versions{like}"),
            )

    # --- what apt is asked -------------------------------------------------------------------------------------------

    def _source(self, channel: str) -> dict[str, Any] | None:
        """The repository of a channel; None for the Ubuntu archive."""
        if channel == "ubuntu" and not conflicting(self.facts):
            return None
        return self.desired.source("cuda" if channel == "ubuntu" else channel, self.facts, self.catalog)

    def _source_of_toolkits(self, decision: CudaDecision) -> dict[str, Any] | None:
        """NVIDIA's repository where toolkits come from it or came through our file; a host that has them needs none.

        So a machine whose image brought CUDA, without internet, can be held and configured all the same.
        """
        if decision.target is None:
            return None
        ours = apt_files.sources_path("cuda") in self.facts.own_files
        return self._source("cuda") if decision.target.packages or ours or conflicting(self.facts) else None

    def _ask(self, channels: list[str]) -> None:
        """Ask apt once for these channels and those of before: the last folder knows the sources of all of them."""
        every = list(dict.fromkeys([*self.offers, *channels]))
        sources = {channel: self._source(channel) for channel in every}
        specs = {source["name"]: source for source in sources.values() if source}
        if self.desired.mirror:
            specs[ARCHIVE_NAME] = self.desired.mirror.archive(self.facts, self.catalog)
        self.close()
        self.workdir = None
        update = self.desired.driver.update or self.desired.cuda.update or self.desired.containers.update or bool(specs)
        # A locked version that old lists do not know may be there by now.
        update = update or bool(self._locked_asks())
        args = offer_args(list(specs.values()), self.facts, update=update)
        if self.desired.containers.wanted:
            args["patterns"] += CONTAINER_PATTERNS
        if self._mends_toolkit_sources:
            args["omit"] += [{"file": e.file, "line": e.line} for e in toolkit_entries(self.facts)]
        if self.desired.proxy:
            args["environment"] = self.desired.proxy.environment
        if self.desired.mirror:
            args["alone"] = True
        pins = self.held.everything if self.held else {}
        args["patterns"] += [re.escape(name.split(":")[0]) for name in sorted(pins)]
        answer = answered(self.call("apt.query", args), packages=dict)
        self.workdir = answer["workdir"]
        self.offer_errors = list(answer.get("errors") or [])
        self.offered = {name: {row["version"] for row in rows} for name, rows in answer["packages"].items()}
        for channel in every:
            source = sources[channel]
            self.offers[channel] = Offer.from_json(answer, keep=lambda c, s=source, k=channel: _is_from(c, k, s))
            self.offers[channel] = locked.restrict(self.offers[channel], pins)

    # --- the plan ----------------------------------------------------------------------------------------------------

    def _plan(
        self, decision: Decision, cuda_decision: CudaDecision, containers_decision: ContainersDecision
    ) -> HostPlan:
        target = decision.target
        cuda_source = self._source_of_toolkits(cuda_decision)
        driver = plan_driver(
            self.desired.driver,
            self.facts,
            decision,
            self._source(target.channel) if target else None,
            bool(cuda_source),
        )
        cuda = plan_cuda(self.desired.cuda, self.facts, cuda_decision, cuda_source)
        conda_decision = resolve_conda(self.desired.conda, self.facts, self.catalog, decision)
        conda, conda_steps = conda_spec(self.desired.conda, self.facts, conda_decision)
        toolkit_source = self._source("container_toolkit") if containers_decision.target else None
        containers = plan_containers(self.desired.containers, self.facts, containers_decision, toolkit_source)
        wanted = {"driver": driver.apt, "cuda": cuda.apt, "containers": containers.apt, "mirror": self._of_mirror()}
        self.brings = {part: {*_names(apt.install), *apt.remove} for part, apt in wanted.items() if apt}
        asked = self._apt_parts(wanted)
        steps = [*driver.steps, *cuda.steps, *conda_steps, *containers.steps]
        desired = self.desired
        apt, configure = combine(
            asked, self.facts, steps, desired.driver.lock_timeout, desired.proxy, bool(desired.mirror)
        )
        decisions = (decision, cuda_decision, conda_decision, containers_decision)
        summary = [self._summary(decision), cuda.summary, conda_summary(conda_decision), containers.summary]
        plan = HostPlan(
            host=self.name,
            status="converged",
            gpus=describe_gpus(self.facts, self.catalog),
            summary="; ".join(filter(None, summary)),
            decisions=[reason for one in decisions for reason in one.reasons],
            steps=_in_order([*([configure] if configure else []), *steps]),
            reboot=driver.reboot,
            blockers=[_on(self.name, issue) for one in decisions for issue in one.blockers],
            warnings=[_on(self.name, issue) for one in decisions for issue in one.warnings],
            spec={
                "roles": [PARTS[part] for part in self.parts],
                "apt": apt,
                "parts": {
                    PARTS["driver"]: driver.spec,
                    PARTS["cuda"]: cuda.spec,
                    PARTS["conda"]: conda,
                    PARTS["containers"]: containers.spec,
                    PARTS["proxy"]: {},
                    PARTS["mirror"]: {},
                },
                "environment": self.desired.proxy.environment,
                "python": {"path": self.facts.host.python_path, "version": self.facts.host.python},
            },
        )
        self._tell_refused(plan)
        if plan.reboot.blocked_by:
            plan.blockers.append(
                Issue(
                    code="gpu.in_use",
                    host=self.name,
                    message="the GPUs are in use and the change would disturb them",
                    because=plan.reboot.blocked_by[:8],
                    hint="wait for them or stop them; nvidia_driver_reboot: always goes ahead all the same",
                )
            )
        if plan.blockers:
            plan.status, plan.steps = "blocked", []
        elif plan.steps:
            plan.status = "changes"
            lost = lost_at_reload(self.facts) if _reloads(plan) else None
            plan.warnings += [_on(self.name, lost)] if lost else []
        return plan

    def _tell_refused(self, plan: HostPlan) -> None:
        """Warn of facts that cannot be used; without the release nothing can be chosen."""
        refused = self.facts.refused
        if not refused:
            return
        issue = Issue(
            code="host.unreadable",
            host=self.name,
            message="some of what the host says cannot be used, and is left out",
            because=refused[:8],
            hint="look at these files on the host; the plan is made without them"
            if all(place.startswith("/") for place in refused)
            else "look there: is its python3 Ubuntu's own? the host may be compromised",
        )
        blocks = any(place.startswith("host.os.") for place in refused) and not self.facts.host.os.version_id
        (plan.blockers if blocks else plan.warnings).append(issue)

    def _of_mirror(self) -> AptPart | None:
        """The mirror's part of Ubuntu's archive among the host's sources, as long as the inventory names a mirror."""
        if not self.desired.mirror:
            ours = apt_files.sources_path(ARCHIVE_NAME) in self.facts.own_files
            return AptPart(absent=[ARCHIVE_NAME]) if ours else None
        spec = self.desired.mirror.archive(self.facts, self.catalog)
        return AptPart(repositories=[(spec, "the fleet's mirror has what the packages need (gpu_mirror_url)")])

    def _apt_parts(self, asked: dict[str, AptPart | None]) -> list[AptPart]:
        """What is asked of apt, in the order of the roles; with what a role that is not planned for has in our files."""
        found: list[AptPart] = []
        for part, apt in asked.items():
            patterns = _UNATTENDED.get(part)
            kept_part = None if part in self.parts or not patterns else kept(self.facts, patterns)
            found += [one for one in (apt, kept_part) if one]
        return found if any(asked.values()) else []

    def _summary(self, decision: Decision) -> str:
        target, loaded = decision.target, self.facts.module.loaded
        if target:
            signed = "signed" if target.build == "signed" else "DKMS"
            return f"driver {target.version} {target.flavour}, {signed} modules, from {CHANNELS[target.channel]}"
        if not self.facts.gpus:
            return "no NVIDIA GPU"
        if not self.desired.driver.manage and "driver" in self.parts:
            return f"driver not managed here ({loaded.version if loaded else 'none loaded'})"
        return ""

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
            errors = list(dict.fromkeys(error for offer in self.offers.values() for error in offer.errors))
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
            apply_simulation(plan, answer, self.brings)
            plan.blockers += self._judge(plan, answer["changes"], install)
        if plan.blockers:
            plan.status, plan.steps = "blocked", []

    def _judge(self, plan: HostPlan, changes: list[dict[str, Any]], install: list[str]) -> list[Issue]:
        apt = plan.spec["apt"]
        installed = {
            name: package.version for name, package in self.facts.packages.items() if package.status[1] not in "nc"
        }
        # A driver that changes may take parts of the old one along; where only toolkits change, none of it may go.
        driver = filter(driver_names.is_driver_package, installed) if apt["family_version"] else ()
        problems = apt_query.judge(
            changes,
            allowed_remove=[*apt["remove"], *driver],
            family_version=apt["family_version"],
            requested=install,
            installed=installed,
            running_kernel=self.facts.kernels.running,
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


def offer_args(sources: list[dict[str, Any]], facts: Facts, *, update: bool) -> dict[str, Any]:
    """Return aptquery's arguments: sources to add, entries of the host to leave out, names to look at."""
    omit = (
        [{"file": e.file, "line": e.line} for e in cuda_entries(facts)]
        if any(source["name"] == "cuda" for source in sources)
        else []
    )
    kernels = {kernel for kernel in (facts.kernels.running, facts.kernels.next) if kernel}
    patterns = [
        r"(nvidia|libnvidia|xserver-xorg-video-nvidia|cuda-drivers|linux-modules-nvidia|linux-objects-nvidia"
        r"|linux-signatures-nvidia)(-.*)?",
        r"libnvsdm|nvlsm",
        *[f"linux-headers-{re.escape(kernel)}" for kernel in sorted({*kernel_flavours(facts), *kernels})],
        *(CUDA_PATTERNS if any(source["name"] == "cuda" for source in sources) else ()),
    ]
    return {
        "op": "offer",
        "sources": sources,
        "omit": omit,
        "patterns": patterns,
        "refresh": "always" if update else "if_stale",
    }


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


def _refuse_unreadable_sources(facts: Facts, decision: Decision, *, mended: bool = False) -> None:
    """mended: entries of NVIDIA's container repositories that contradict each other are taken out by this plan."""
    others = [error for error in facts.apt.errors if not is_cuda_uri(error) and not (mended and is_toolkit_uri(error))]
    if others:
        decision.block(
            "apt.sources_broken",
            "apt cannot read its sources: every apt call on this host fails",
            others[:4],
            "mend the named file first; it is not ours to change",
        )


def _reloads(plan: HostPlan) -> bool:
    """True when systemd will read its units again: scripts of packages with units have it do so, and our own files of units."""
    apt, boot = plan.spec["apt"], plan.spec["parts"][PARTS["driver"]].get("boot") or {}
    packages = bool(apt) and any([apt["install"], apt["remove"], *apt["before"].values()])
    units = any("/systemd/" in str(file["path"]) for file in boot.get("files", ()))
    docker = (plan.spec["parts"][PARTS["containers"]].get("runtimes") or {}).get("docker") or {}
    return packages or units or (docker.get("proxy") is not None and any(step.id == "restart" for step in plan.steps))


# Sources first, then packages and holds, then what lies around them, the reboot last.
_ORDER = {"sources": 0, "packages": 1, "hold": 2}


def _in_order(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: _ORDER.get(step.id, 9 if step.id == "reboot" else 5))


def _on(host: str, issue: Issue) -> Issue:
    return issue.model_copy(update={"host": host})


def _names(install: Collection[str]) -> set[str]:
    """Names of "name=version" items."""
    return {item.split("=")[0] for item in install}


def _part_of(name: str, brings: Mapping[str, Collection[str]]) -> str:
    """The part of the plan that brings a package: it names it, or what it names depends on it."""
    for part, named in brings.items():
        if name in named:
            return part
    if driver_names.is_driver_package(name) or name.startswith(("linux-", "ocl-icd")):
        return "driver"
    # A compiler, docker's helpers: what the driver needs of others is little.
    return next((part for part in reversed(list(brings)) if brings[part]), "driver")


def apply_simulation(plan: HostPlan, simulation: dict[str, Any], brings: Mapping[str, Collection[str]]) -> None:
    """Put what apt said it would do into the plan: packages with versions, removals, sizes.

    brings: the names that each part asks apt for, or asks to go.
    """
    plan.packages = [
        PackageChange(
            action=change["action"],
            name=change["name"],
            version=change.get("version"),
            from_version=change.get("from_version"),
            download_bytes=int(change.get("download_bytes") or 0),
            disk_bytes=int(change.get("disk_bytes") or 0),
            group=group_of(change["name"]),
            part=_part_of(change["name"], brings),
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
