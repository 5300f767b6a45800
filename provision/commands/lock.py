"""lock: write down the exact versions of verified hosts, or move what is written on. Changes no host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from ansible_collections.gpu.provision.plugins.plugin_utils import lockfile
from provision import remote
from provision.catalog import Catalog, load_catalog
from provision.documents import Document
from provision.errors import Exit, ProvisionError, RefusedError, UsageError
from provision.facts import Facts, Package, Source
from provision.inventory import Host
from provision.lib import files
from provision.lock.compare import Change, changes
from provision.lock.make import Entry, Seen, entry, kind_of, make
from provision.lock.model import VARIABLE, WRITE_HINT, Lock, LockedGroup, dump, save
from provision.lock.pin import place, read
from provision.parts.plan import HostPlan
from provision.parts.registry import by_name, in_locks, roles
from provision.planning import plan_from_facts, read_facts
from provision.planning.verification import read_checks
from provision.runs.fleet import Fleet, Silent, Talk, ask_all


class LockedHostResult(BaseModel):
    status: Literal["locked", "refused", "unreachable", "failed"]
    group: str | None = None


class LockDocument(Document):
    """path: the lock's file; written: whether it was; changes: from what it said before."""

    schema_id: str = Field(default="provision/locked/1", alias="schema")
    hosts: dict[str, LockedHostResult] = Field(default_factory=dict)
    path: str = ""
    written: bool = False
    existed: bool = False
    changes: list[Change] = Field(default_factory=list)


def run(
    fleet: Fleet,
    output: Path | None = None,
    talk: Talk | None = None,
    *,
    update: bool = False,
    only: Collection[str] = (),
) -> LockDocument:
    """Read hosts, verify them, and write their lock.

    output: the file; None: the inventory's own. update: plan what is newest and lock that; only: parts (PARTS) that
    move, all when empty. Hosts that fail a check, or differ from the others of their kind, are refused (exit 5) and stay
    in the file as they were.
    """
    known = [part.name for part in in_locks()]
    odd = [part for part in only if part not in known]
    if odd or (only and not update):
        raise UsageError(
            "usage.part",
            f"no part of a lock is called {odd[0]}" if odd else "--only says what of --update moves",
            hint=f"provision lock --update --only {'|'.join(known)}",
        )
    values = next(iter(fleet.values.values()))
    path = output or place(values)
    files.check_writable(path, WRITE_HINT)
    existed = path.is_file()
    old = read(path, values) if existed else None
    nameless = old is not None and old.inventory is None
    if old is not None and nameless and output is None and old.hosts and not old.hosts.keys() & _names(fleet):
        raise UsageError(
            "lock.other_inventory",
            f"{path} names no inventory, and none of its hosts is in this one",
            because=[f"its hosts: {', '.join(list(old.hosts)[:4])}", f"this inventory is {values['inventory_source']}"],
            hint="write the lock to another file: -o FILE; or add the line inventory: FILE to the existing lock",
        )
    if update and old is None:
        raise UsageError(
            "lock.none", f"there is no lock at {path} to move on", hint="provision lock writes the first one"
        )
    catalog = load_catalog()
    moving = [part for part in known if part in (only or known)] if update else []
    answers = ask_all(fleet, fleet.hosts, "reading", _reader(fleet, catalog, old, path, moving), talk or Silent())
    # A file of its own without the line is for several inventories: AWX makes another file of the one in git.
    inventory = None if nameless and output else lockfile.relative(path, values["inventory_source"])
    return _concluded(answers, old, path, inventory, update, existed)


def _names(fleet: Fleet) -> set[str]:
    """All hosts of the inventory, also those that -l leaves out."""
    return {name for hosts in fleet.inventory.groups.values() for name in hosts}


class _Read(BaseModel):
    """What one host gave: its entry, and why its versions are what they are."""

    model_config = {"arbitrary_types_allowed": True}

    entry: Entry
    because: dict[str, str] = Field(default_factory=dict)


def _reader(
    fleet: Fleet, catalog: Catalog, old: Lock | None, path: Path, moving: list[str]
) -> Callable[[Host, remote.Session], _Read]:
    def read(host: Host, session: remote.Session) -> _Read:
        values = dict(fleet.values[host.name])
        facts = read_facts(session.call, values)
        if not moving:
            _refuse_unverified(facts, values, catalog)
            return _Read(entry=entry(Seen(host.name, facts, values), catalog))
        return _moved(host.name, facts, session.call, values, catalog, old, path, moving)

    return read


def _refuse_unverified(facts: Facts, values: dict[str, Any], catalog: Catalog) -> None:
    """Raise RefusedError where a check that reads fails: what is not proven is no example for others."""
    failed = [check for check in read_checks(facts, values, catalog) if check.level == "error"]
    if failed:
        raise RefusedError(
            "lock.not_verified",
            f"it does not verify: {', '.join(check.code for check in failed)}",
            because=[f"{check.code}: {check.message}" for check in failed[:6]],
            hint="provision verify shows the evidence; provision apply repairs what it can; or leave the host out: -l",
        )


def _moved(
    name: str,
    facts: Facts,
    call: Callable[[str, dict[str, Any]], Any],
    values: dict[str, Any],
    catalog: Catalog,
    old: Lock | None,
    path: Path,
    moving: list[str],
) -> _Read:
    """What a host will be by the newest plan for the moving parts; the others stay as locked."""
    changed = {**values, VARIABLE: str(path)}
    changed.update({f"{part.role}_update": True for part in map(by_name, moving) if part.apt})
    pinned = [part for part in roles() if part not in moving]
    plan = plan_from_facts(name, facts, call, changed, catalog, pinned=pinned)
    if plan.blockers:
        first = plan.blockers[0]
        raise RefusedError(first.code, first.message, because=first.because, hint=first.hint)
    found = entry(Seen(name, predicted(facts, plan), values, toolkits_of(plan)), catalog)
    locked = old.for_host(name) if old else None
    if locked:
        group = _kept_parts(found.group, locked.group, moving)
        found = Entry(name, group, found.host, (*kind_of(group), found.kind[-1]))
    reasons = {reason.what: reason.because for reason in plan.decisions}
    wanted = {what for part in moving for what in by_name(part).reasons}
    return _Read(entry=found, because={w: b for w, b in reasons.items() if any(w.startswith(one) for one in wanted)})


def _kept_parts(new: LockedGroup, old: LockedGroup, moving: Collection[str]) -> LockedGroup:
    """The new group with the parts that do not move as they were locked."""
    return new.model_copy(
        update={part.name: getattr(old, part.name, None) for part in in_locks() if part.name not in moving}
    )


def predicted(facts: Facts, plan: HostPlan) -> Facts:
    """The facts of a host after its plan, as far as packages and repositories go."""
    packages = dict(facts.packages)
    for change in plan.packages:
        if change.action == "remove":
            packages.pop(change.name, None)
            continue
        before = packages.get(change.name)
        packages[change.name] = Package(
            version=change.version or "", status="hi", arch=facts.host.arch, depends=before.depends if before else None
        )
    apt = plan.spec["apt"]
    for name in apt["extra_hold"] if apt else ():
        if name in packages:
            packages[name] = packages[name].model_copy(update={"status": "h" + packages[name].status[1]})
    sources = list(facts.apt.sources)
    for spec in ((apt or {}).get("configure") or {}).get("repositories", ()):
        own = apt_files.sources_path(spec["name"])
        sources = [source for source in sources if source.file != own]
        sources.append(
            Source(
                file=own,
                format="deb822",
                uris=[spec["uris"]],
                suites=[spec["suites"]],
                components=str(spec["components"] or "").split(),
            )
        )
    return facts.model_copy(update={"packages": packages, "apt": facts.apt.model_copy(update={"sources": sources})})


def toolkits_of(plan: HostPlan) -> tuple[str, ...]:
    """Packages of toolkits, cuDNN and NCCL that a plan brings or holds: their Depends are not known before they are there."""
    apt = plan.spec["apt"] or {"extra_hold": []}
    coming = [change.name for change in plan.packages if change.part == "cuda" and change.action != "remove"]
    return tuple(sorted({name for name in [*coming, *apt["extra_hold"]] if cuda_names.is_cuda_package(name)}))


def _concluded(
    answers: Mapping[str, _Read | ProvisionError],
    old: Lock | None,
    path: Path,
    inventory: str | None,
    update: bool,
    existed: bool,
) -> LockDocument:
    read = {name: answer for name, answer in answers.items() if not isinstance(answer, ProvisionError)}
    made = make([one.entry for one in read.values()], old, update=update)
    made.lock.inventory = inventory
    document = LockDocument(path=str(path), existed=existed, errors=list(made.issues))
    refused = {issue.host for issue in made.issues}
    codes = [Exit.REFUSED] if made.issues else []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            status: Any = {Exit.UNREACHABLE: "unreachable", Exit.REFUSED: "refused"}.get(answer.exit_code, "failed")
            document.hosts[name] = LockedHostResult(status=status)
            document.errors.append(answer.issue.model_copy(update={"host": name}))
            codes.append(answer.exit_code)
        elif name in refused or name not in made.lock.hosts:
            document.hosts[name] = LockedHostResult(status="refused")
        else:
            document.hosts[name] = LockedHostResult(status="locked", group=made.lock.hosts[name].group)
    document.changes = changes(old, made.lock, {name: one.because for name, one in read.items()})
    # A file that was edited by hand is written in its own order again only when something changes.
    if made.lock.hosts and (old is None or dump(made.lock) != dump(old)):
        save(made.lock, path)
        document.written = True
    return document.conclude(codes)
