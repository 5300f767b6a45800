"""dpkg: what it was cut off at, what nothing on the disk meets, what a removal took along."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import apt
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts.diagnostics import Transaction, Unfinished

CONFIGURE = Repair(
    action="dpkg.configure", words="finish the interrupted dpkg run (dpkg --configure -a, then apt --fix-broken)"
)
# Whose loss takes away a network card, a boot or every container.
_VITAL = re.compile(
    r"^(?:linux-(?:image|modules|modules-extra|generic|headers)\b|docker|containerd|(?:lib)?nvidia-container)"
)


@rule("dpkg.unfinished")
def _unfinished(case: Case) -> Iterator[Found]:
    diagnostics = apt(case)
    if not diagnostics.unfinished and not diagnostics.journal:
        return
    evidence = [line for row in diagnostics.unfinished for line in _evidence(row)]
    evidence += [f"{path}: dpkg's journal, not merged" for path in diagnostics.journal[:4]]
    evidence += [f"apt was interrupted: {row.title}" for row in diagnostics.transactions[-1:] if row.end is None]
    count = len(diagnostics.unfinished)
    names = ", ".join(row.name for row in diagnostics.unfinished[:3])
    if not count:
        message = "dpkg was interrupted: its journal is not merged"
    else:
        message = f"{count} package{'s are' if count > 1 else ' is'} not set up: {names}" + (", …" if count > 3 else "")
    waiting = bool(count) and all(
        row.state.startswith("triggers") and not row.reinstall for row in diagnostics.unfinished
    )
    # Triggers that wait are run by the next apt call.
    yield Found(message, evidence, CONFIGURE, level="warning" if waiting and not diagnostics.journal else None)


def _evidence(row: Unfinished) -> Iterator[str]:
    again = ", to be unpacked again" if row.reinstall else ""
    since = f" (since {row.since})" if row.since else ""
    yield f"{row.name} {row.version or ''}: {row.state}{again}{since}"
    if row.reason:
        yield f"{row.name}: {row.reason}"
    for line in row.context:
        yield f"{row.name}: {line}"


@rule("dpkg.change_unfinished")
def _change(case: Case) -> Iterator[Found]:
    """A change of ours that failed or was cut off, as far as something of it is not so."""
    change = apt(case).change
    if change is None:
        return
    wanted = dict(item.partition("=")[::2] for item in change.install)
    missing = [f"{n}={v}" for n, v in wanted.items() if n not in change.there or v not in ("", change.there[n])]
    left = [name for name in change.remove if name in change.there]
    held = [*change.extra_hold, *(name for name in wanted if change.hold and driver_names.is_driver_package(name))]
    on_hold = {row.name for row in apt(case).holds}
    loose = [name for name in held if name in change.there and name not in on_hold]
    evidence = [f"not installed: {', '.join(missing)}"] if missing else []
    evidence += [f"not removed: {', '.join(left)}"] if left else []
    evidence += [f"not on hold: {', '.join(loose)}"] if loose else []
    if not evidence:
        return
    since = f", begun {change.started}" if change.started else ""
    parts = [part for part, has in _PARTS.items() if any(has(name) for name in (*wanted, *change.remove))]
    yield Found(
        f"a change of packages by gpu-provision{since}, did not finish",
        [*evidence, *([f"its log: {change.log}"] if change.log else [])],
        queries.apply("finish it: install, remove and hold what it named", *parts),
        level=None if "driver" not in parts or case.driver_managed else "warning",
    )


# part -> whether a package is one of it
_PARTS: dict[str, Callable[[str], object]] = {
    "driver": driver_names.is_driver_package,
    "cuda": re.compile(r"cuda-|libcudnn|libnccl").match,
    "containers": re.compile(r"(?:lib)?nvidia-container").match,
}
_PAIRED = re.compile(r"libnccl-dev$|libcudnn[0-9]+-(?:dev|headers)(?:-cuda-[0-9]+)?$")


@rule("dpkg.unmet")
def _unmet(case: Case) -> Iterator[Found]:
    # A pair at two versions has a rule of its own (nccl.pair_differs, cudnn.pair_differs) and a smaller repair.
    rows = [row for row in apt(case).unmet if not (row.found and _PAIRED.match(row.name))]
    if not rows:
        return
    evidence = [
        f"{row.name} {row.version or ''} needs {row.needs}"
        + (f", {row.found} is there" if row.found else ", nothing of it is there")
        for row in rows
    ]
    driver = [row.name for row in rows if driver_names.is_driver_package(row.name)]
    repair = (
        queries.realign("bring the packages of the driver to one version")
        if driver and case.driver_managed
        else CONFIGURE
    )
    names = ", ".join(dict.fromkeys(row.name for row in rows[:3]))
    yield Found(f"dependencies of {names} are not met", evidence, repair)


@rule("dpkg.purged_too_much")
def _purged(case: Case) -> Iterator[Found]:
    packages = case.facts.packages
    for row in reversed(apt(case).transactions):
        lost = [
            change.name
            for change in row.changes
            if change.action in ("remove", "purge")
            and _VITAL.match(change.name)
            and not driver_names.is_driver_package(change.name)
            and not (packages.get(change.name) and packages[change.name].installed)
        ]
        driver = any(
            change.action in ("remove", "purge") and driver_names.is_driver_package(change.name)
            for change in row.changes
        )
        if not lost or not (driver or re.search(r"nvidia", row.command)) or _replaced(case, row, lost):
            continue
        running = case.facts.kernels.running
        grave = [name for name in lost if running and running in name]
        evidence = [row.title, *(f"removed and not there: {name}" for name in lost)]
        yield Found(
            f"a removal of the driver took {', '.join(lost[:3])} along",
            evidence,
            Repair(
                action="packages.install",
                words=f"install again what was lost: {', '.join(lost)}",
                args={"packages": lost},
            ),
            level="error" if grave else "warning",
        )
        return


def _replaced(case: Case, row: Transaction, lost: list[str]) -> bool:
    """True when a newer package of the same kind is there: kernels that autoremove took are no loss."""
    kinds = {re.sub(r"[0-9][0-9.-]*-", "", name) for name in lost if re.search(r"-[0-9]", name)}
    there = {re.sub(r"[0-9][0-9.-]*-", "", name) for name, package in case.facts.packages.items() if package.installed}
    plain = [name for name in lost if not re.search(r"-[0-9]", name)]
    return not plain and kinds <= there and case.facts.kernels.running not in " ".join(lost)


@rule("dpkg.file_conflict")
def _conflict(case: Case) -> Iterator[Found]:
    for row in apt(case).unfinished:
        text = " ".join([row.reason or "", *row.context])
        match = re.search(r"trying to overwrite '([^']+)', which is also in package (\S+)", text)
        if match:
            yield Found(
                f"{row.name} and {match[2]} both bring {match[1]}",
                _evidence(row),
                queries.realign("keep the packages of one origin")
                if driver_names.is_driver_package(row.name) and case.driver_managed
                else queries.manual(f"remove one of {row.name} and {match[2]}"),
                CONFIGURE,
            )
