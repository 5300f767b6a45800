"""Holds: on packages that are not there, missing on parts of the driver, in aptitude's own store, in the way of a change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import apt, moves
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.parts.driver.installed import stale_holds

_CONTAINER = frozenset(
    {"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
)


def is_ours(name: str) -> bool:
    """True for names of the driver, CUDA and the container toolkit: holds on all others are their owner's affair."""
    bare = name.split(":")[0]
    # nvidia-384, nvidia-340: what drivers were called up to Ubuntu 18.04; a glob still matches their records.
    old = bool(re.match(r"^(?:lib)?(?:nvidia|cuda)[a-z0-9-]*-[0-9]{3}(?:-|$)", bare))
    return driver_names.is_driver_package(bare) or cuda_names.parse(bare) is not None or bare in _CONTAINER or old


@rule("holds.not_installed")
def _not_installed(case: Case) -> Iterator[Found]:
    gone = sorted(row.name for row in apt(case).holds if not row.present and is_ours(row.name))
    gone = gone or stale_holds(case.facts)
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
        [f"{name}: hold, not installed{' (of the installed branch)' if name in same else ''}" for name in gone],
        Repair(
            action="holds.clear",
            words=f"lift the holds on what is not installed: {', '.join(gone[:4])}{', …' if len(gone) > 4 else ''}",
            args={"packages": gone},
        ),
        level="error" if needed else None,
    )


@rule("holds.block_change")
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
            rows,
            queries.manual(
                "change the version in the inventory, then provision apply: it lifts the holds, changes all in "
                "one transaction, holds again"
            ),
        )


@rule("holds.aptitude_only")
def _aptitude(case: Case) -> Iterator[Found]:
    dpkg = {row.name for row in apt(case).holds}
    alone = [name for name in apt(case).aptitude_holds if is_ours(name) and name not in dpkg]
    there = queries.present(case, alone)
    if there:
        yield Found(
            f"{len(there)} packages are held by aptitude alone: apt-get and unattended-upgrades do not know of it",
            [f"{name}: held in /var/lib/aptitude/pkgstates, not in dpkg's status" for name in there],
            queries.apply("hold them where apt looks (apt-mark hold)"),
        )
