"""Holds: on packages that are not there, missing on parts of the driver, in aptitude's own store, in the way of a change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import apt, moves
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, Rule
from provision.parts import checks

_CONTAINER = frozenset(
    {"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
)


def is_ours(name: str) -> bool:
    """True for names of the driver, CUDA and the container toolkit: holds on all others are their owner's affair."""
    bare = name.split(":")[0]
    # nvidia-384, nvidia-340: what drivers were called up to Ubuntu 18.04; a glob still matches their records.
    old = bool(re.match(r"^(?:lib)?(?:nvidia|cuda)[a-z0-9-]*-[0-9]{3}(?:-|$)", bare))
    return driver_names.is_driver_package(bare) or cuda_names.parse(bare) is not None or bare in _CONTAINER or old


def _not_installed(case: Case) -> Iterator[Found]:
    gone = sorted(row.name for row in apt(case).holds if not row.present and is_ours(row.name))
    gone = gone or checks.stale_holds(case.plain)
    if not gone:
        return
    driver = queries.installed(case)
    branches = {parsed.branch for parsed in map(driver_names.parse, driver.packages) if parsed}
    missed = {need.split()[0] for row in apt(case).unmet for need in row.needs.split("|")}
    needed = [name for name in gone if name in missed]
    same = [name for name in gone for parsed in [driver_names.parse(name)] if parsed and parsed.branch in branches]
    yield Found(
        f"{len(gone)} hold{'s' if len(gone) > 1 else ''} on packages that are not installed: {', '.join(gone[:3])}"
        + (", …" if len(gone) > 3 else ""),
        queries.clip(
            [f"{name}: hold, not installed{' (of the installed branch)' if name in same else ''}" for name in gone]
        ),
        (
            Repair(
                action="holds.clear",
                words=f"lift the holds on what is not installed: {', '.join(gone[:4])}{', …' if len(gone) > 4 else ''}",
                args={"packages": gone},
            ),
        ),
        level="error" if needed else None,
    )


def _block_change(case: Case) -> Iterator[Found]:
    rows = [
        f"{name} {package.version}: held, {taken.version} from {taken.origin}"
        for name, package in sorted(case.facts.packages.items())
        if package.held and package.installed and is_ours(name)
        for taken in [moves(case, name)]
        if taken is not None
    ]
    if rows:
        yield Found(
            f"{len(rows)} held packages have newer versions: 'apt-get install' of one without its version fails",
            queries.clip(rows),
            (
                queries.manual(
                    "change the version in the inventory, then provision apply: it lifts the holds, changes all in "
                    "one transaction, holds again"
                ),
            ),
        )


def _aptitude(case: Case) -> Iterator[Found]:
    dpkg = {row.name for row in apt(case).holds}
    alone = [name for name in apt(case).aptitude_holds if is_ours(name) and name not in dpkg]
    there = [name for name in alone if name in case.facts.packages and case.facts.packages[name].installed]
    if there:
        yield Found(
            f"{len(there)} packages are held by aptitude alone: apt-get and unattended-upgrades do not know of it",
            queries.clip(f"{name}: held in /var/lib/aptitude/pkgstates, not in dpkg's status" for name in there),
            (queries.apply("hold them where apt looks (apt-mark hold)"),),
        )


RULES = (
    Rule(
        code="holds.not_installed",
        level="warning",
        title="holds stand on packages that are not installed",
        explain=(
            "`apt-mark hold 'nvidia-*'` takes every name that apt knows, installed or not. A hold on a package that is not there "
            "forbids installing it: a later driver that needs it fails with 'held broken packages'."
        ),
        breaks="installing or changing a driver that needs one of them",
        repair="lift these holds (apt-mark unhold NAME); the holds on installed packages stay",
        prevent="hold installed packages by exact names, never a pattern",
        find=_not_installed,
        texts=(
            r"(?:nvidia|libnvidia)-\S+ ?: Depends: (?:lib)?nvidia-\S+ \([^)]*\) but it is not going to be installed",
            r"Depends: (?:lib)?nvidia-\S+ \([^)]*\)(?: but it is not (?:going to be installed|installable))?$",
            r"Unable to correct problems, you have held broken packages",
            r"nvidia-\S+ set on hold",
        ),
        after=("dpkg.unfinished", "apt.signed_by_conflict"),
        sources=("apt-mark(8)", "scenarios A1, G2"),
    ),
    Rule(
        code="holds.block_change",
        level="note",
        title="held packages are in the way of a change",
        explain=(
            "Holds do their work: apt refuses to move a held package, and with -y it refuses a transaction that "
            "would. Changing a held driver or library takes three steps in one go: lift the holds of the whole "
            "family, change it in one transaction (the old branch's packages removed by name), hold again, also when "
            "it failed. `--allow-change-held-packages` alone does not solve a change of branch."
        ),
        breaks="'apt-get install' of another version, another branch, or a library that is joined to a held one",
        repair="provision apply with the wanted version in the inventory",
        prevent="nothing: the holds are right",
        find=_block_change,
        texts=(
            r"Held packages were changed and -y was used without --allow-change-held-packages",
            r"install '?nvidia-\S+'? '?nvidia-\S+'?.*failed: E: Unable to correct problems, you have held broken packages",
            r"Unable to correct problems, you have held broken packages",
            r"The following packages have been kept back",
        ),
        after=("holds.not_installed",),
        sources=("scenarios G1, G3, S1",),
    ),
    Rule(
        code="holds.aptitude_only",
        level="warning",
        title="packages are held in aptitude's own store only",
        explain=(
            "aptitude keeps holds and forbidden versions in /var/lib/aptitude/pkgstates. apt-get, unattended-upgrades "
            "and Ansible's apt module read dpkg's selections and move such packages."
        ),
        breaks="nothing yet; the next upgrade by apt-get moves them",
        repair="apt-mark hold the same packages",
        prevent="apt-mark hold, not aptitude hold; compare apt-mark showhold before and after",
        find=_aptitude,
        texts=(r"aptitude (?:hold|forbid-version)",),
        sources=("aptitude: aptcache.cc", "scenario S4"),
    ),
)
