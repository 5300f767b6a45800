"""Back to the versions before a run: a lock made of what its hosts had, and variables that do not contradict it.

``entry_before`` says what a host had, when a run is about to change it; ``Rollback`` holds hosts to that. Everything else is
planning's: exact versions in one transaction, simulated, shown, and refused where the repositories no longer have them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog import Catalog, load_catalog
from provision.documents import PlanDocument
from provision.errors import Exit, Issue, ProvisionError, RefusedError, UsageError
from provision.facts import Facts
from provision.lib import own_state
from provision.lock.make import Entry, Seen, entry
from provision.lock.model import VARIABLE, Lock, load
from provision.planning import failed_plan
from provision.rollout.state import FILE as STATE
from provision.rollout.state import RunState
from provision.runs.fleet import Fleet
from provision.runs.history import BEFORE, Run, merged, plans_of

# Wishes for versions: on the way back the lock's word counts, whatever the inventory asks for by now.
_OPEN = {
    "nvidia_driver_branch": "recommended",
    "nvidia_driver_version": "",
    "nvidia_driver_update": False,
    "nvidia_driver_channel": "auto",
    "nvidia_driver_modules": "auto",
    "nvidia_driver_build": "auto",
    "nvidia_driver_variant": "auto",
    "nvidia_driver_min_cuda": "",
    "cuda_toolkit_update": False,
    "container_toolkit_update": False,
    "container_toolkit_version": "",
}

# Of each profile, the package that stands for the toolkit of a minor release; see cudanames.release_package.
_TOOLKITS = ("cuda-toolkit", "cuda-libraries")


def entry_before(name: str, facts: Facts, values: Mapping[str, Any], catalog: Catalog | None = None) -> Entry | None:
    """Say what a host has now, by parts: one that is not whole (half a driver, no toolkit) is not there to go back to.

    None where nothing can be said of any part.
    """
    catalog = catalog or load_catalog()
    variables = {**values, **_OPEN, VARIABLE: "none"}
    # Toolkits: those that are installed, not those that the run is to bring.
    variables["cuda_toolkit_versions"] = installed_toolkits(facts)
    variables["cuda_toolkit_default"] = ""
    variables["cuda_toolkit_cudnn"] = variables["cuda_toolkit_nccl"] = "auto"
    off: tuple[dict[str, Any], ...] = (
        {},
        {"cuda_toolkit_cudnn": "none", "cuda_toolkit_nccl": "none"},
        {"container_toolkit_runtimes": [], "container_toolkit_rootless_users": []},
        {"cuda_toolkit_versions": []},
        {"nvidia_driver_manage": False},
    )
    for less in off:
        variables.update(less)
        try:
            return entry(Seen(name, facts, variables), catalog)
        except ProvisionError:
            continue
    return None


def installed_toolkits(facts: Facts) -> list[str]:
    """Minor releases of the toolkits that apt's packages make up, as the inventory would write them."""
    found = set()
    for name, package in facts.packages.items():
        if not package.installed:
            continue
        known = cuda_names.parse(name, package.version)
        if known is not None and known.version and known.base in _TOOLKITS:
            found.add(str(known.version))
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])


@dataclass(frozen=True)
class Rollback:
    """A run to go back before. lock: of what its hosts had; impossible: hosts of the run that cannot, and why.

    hosts: all that the run may have changed; which of them differ from the lock is the plan's business. left_out: the run's
    other hosts, and why they have nothing to go back from. brought: names and versions of packages that it installed anew, by host.
    """

    run: Run
    path: Path
    lock: Lock
    hosts: list[str] = field(default_factory=list)
    impossible: dict[str, ProvisionError] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    brought: dict[str, list[tuple[str, str | None]]] = field(default_factory=dict)

    def fleet(self, fleet: Fleet) -> Fleet:
        """The hosts of the run among those asked for, each held to what it had before.

        Raises UsageError where none of them is in the inventory.
        """
        hosts = [host for host in fleet.hosts if host.name in self.hosts]
        if not hosts and not any(host.name in self.impossible for host in fleet.hosts):
            raise UsageError(
                "usage.rollback",
                f"none of the hosts of {self.run.run} is among those of this call",
                because=[f"it changed {', '.join([*self.hosts, *self.impossible][:8]) or 'none'}"],
                hint="give the inventory that has them (-i), and no -l that leaves them out",
            )
        values = {name: dict(found) for name, found in fleet.values.items()}
        for host in hosts:
            values[host.name].update(self._variables(host.name))
        return replace(fleet, inventory=replace(fleet.inventory, hosts=hosts), values=values)

    def refuse(self, planned: PlanDocument, asked: Collection[str], *, limited: bool = False) -> None:
        """Put those hosts of the run into a plan that have nothing to go back to, as blocked; name all that are left out.

        limited: somebody chose hosts, so that others are missing on purpose.
        """
        for name, error in self.impossible.items():
            if name in asked:
                planned.hosts[name] = failed_plan(name, error)
                planned.errors += planned.hosts[name].blockers
        codes = [Exit(planned.exit_code), *(plan.exit_code for plan in planned.hosts.values())]
        missing = [name for name in [*self.hosts, *self.impossible] if name not in asked]
        planned.left_out = {
            **self.left_out,
            **(dict.fromkeys(missing, "it is not among the hosts of this call") if limited else {}),
        }
        gone = [] if limited else missing
        for name in gone:
            planned.errors.append(
                Issue(
                    code="rollback.host_gone",
                    host=name,
                    message=f"{self.run.run} changed it, and the inventory does not have it",
                    hint="give the inventory that has it (-i); the others go back",
                )
            )
        planned.conclude([*codes, Exit.REFUSED] if gone else codes)

    def _variables(self, host: str) -> dict[str, Any]:
        locked = self.lock.groups[self.lock.hosts[host].group]
        variables: dict[str, Any] = {**_OPEN, VARIABLE: str(self.path.absolute())}
        variables["nvidia_driver_manage"] = locked.driver is not None
        if locked.cuda is None:
            variables["cuda_toolkit_versions"] = []
        else:
            variables["cuda_toolkit_versions"] = list(locked.cuda.releases)
            variables["cuda_toolkit_default"] = locked.cuda.default
            variables["cuda_toolkit_cudnn"] = variables["cuda_toolkit_nccl"] = "auto"
        if locked.containers is None:
            variables["container_toolkit_runtimes"] = variables["container_toolkit_rootless_users"] = []
        # Environments of conda have no versions to go back to: they stay.
        variables["miniconda_install"], variables["miniconda_users"], variables["miniconda_environments"] = (
            False,
            [],
            [],
        )
        variables["cuda_toolkit_prune"] = any(
            _is_toolkit(name, version) for name, version in self.brought.get(host, ())
        )
        return variables


def _is_toolkit(name: str, version: str | None) -> bool:
    known = cuda_names.parse(name.split(":")[0], version)
    return known is not None and known.base in _TOOLKITS


def of_run(run: Run) -> Rollback:
    """Say how to go back before a run. Raises UsageError where its folder does not say what its hosts had."""
    path = Path(run.folder or ".") / BEFORE
    if run.unreadable:
        raise UsageError(
            "usage.rollback",
            f"the record of {run.run} cannot be read, and so not what it changed",
            because=[f"{run.folder} has it"],
            hint="where its before.lock.yml is whole: provision apply --lock FILE",
        )
    if run.active:
        raise RefusedError(
            "run.active", f"{run.run} is still running", hint="wait for its end, or end it with Ctrl-C there"
        )
    changed, left_out = _touched(run)
    if not changed:
        raise UsageError(
            "usage.rollback",
            f"{run.run} changed no package on any host: there is nothing to go back to",
            hint="provision history lists runs, and what they changed",
        )
    if not path.is_file():
        raise UsageError(
            "usage.rollback",
            f"{run.run} does not say what its hosts had before",
            because=[f"there is no {path}"],
            hint="a lock of then, from git, does the same: provision apply --lock FILE",
        )
    lock = load(path)
    hosts: list[str] = []
    impossible: dict[str, ProvisionError] = {}
    for name in changed:
        locked = lock.hosts.get(name)
        group = lock.groups[locked.group] if locked else None
        if group is None or not (group.driver or group.cuda or group.containers):
            impossible[name] = RefusedError(
                "rollback.nothing_before",
                "before that run it had no complete state to go back to",
                host=name,
                because=[f"{run.run} found no driver of apt's, no toolkits and no container toolkit in one piece"],
                hint="to remove a driver: provision rescue --purge",
            )
        else:
            hosts.append(name)
    brought = {name: [(row[0], row[2]) for row in rows if row[1] is None] for name, rows in changed.items()}
    return Rollback(run, path, lock, hosts, impossible, left_out, brought)


def _touched(run: Run) -> tuple[dict[str, list[tuple[str, str | None, str | None]]], dict[str, str]]:
    """Return (host -> packages that the run changed there, or may have changed; its other hosts -> why they are out).

    Judged by all sessions of the run: their plans, and its state, which says what was begun before it is begun.
    """
    folder = Path(run.folder or ".")
    state = own_state.read_or_none(folder / STATE, RunState)
    plans = plans_of(folder)
    changed: dict[str, list[tuple[str, str | None, str | None]]] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys([*(state.hosts if state else ()), *run.planned, *run.hosts, *run.left_alone]):
        record = run.hosts.get(name)
        found = merged([document.hosts[name] for document in plans or () if name in document.hosts])
        rows = [(change["name"], change["from_version"], change["version"]) for change in found]
        rows = rows or (record.packages if record else [])
        begun = record is not None or (
            state.hosts[name].began if state and name in state.hosts else name not in run.left_alone
        )
        if not begun:
            left_out[name] = "the run did not change it"
        elif rows or (plans is None and (record is None or record.status != "done")):
            changed[name] = rows
        else:
            left_out[name] = "the run changed no package there"
    return changed, left_out


def before_of(fleet: Fleet) -> tuple[dict[str, Entry], Callable[[str, Any], None]]:
    """Return (entries by host, what plan.run tells the facts of hosts that will change): see entry_before."""
    entries: dict[str, Entry] = {}
    catalog = load_catalog()

    def keep(name: str, facts: Any) -> None:
        found = entry_before(name, Facts.of_host(facts), fleet.values[name], catalog)
        if found is not None:
            entries[name] = found

    return entries, keep
