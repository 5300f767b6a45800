"""Packages of one driver at several versions."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils import names
from provision.diagnose import look
from provision.diagnose.candidates import apt
from provision.diagnose.rule import Case, Found, Rule


def _differ(case: Case) -> Iterator[Found]:
    # Fabric manager's own rule compares it with the driver.
    rows = {
        name: version for name, version in look.locked_packages(case).items()
        if (parsed := names.parse(name)) and parsed.base not in names.FABRIC and case.facts.packages[name].status[1] != "H"
    }  # fmt: skip
    versions = sorted(set(rows.values()))
    if len(versions) < 2:
        return
    evidence = []
    for version in versions:
        having = [name for name in rows if rows[name] == version]
        held = [name for name in having if case.facts.packages[name].held]
        told = ", ".join(having[:6]) + (f" and {len(having) - 6} more" if len(having) > 6 else "")
        evidence.append(f"{version}: {told}" + (f" ({len(held)} held)" if held else ""))
    moved = [
        row for row in apt(case).transactions
        if any(change.name in rows and change.new and names.upstream(change.new) == rows[change.name] for change in row.changes)
    ]  # fmt: skip
    evidence += [f"moved by {row.title}" for row in moved[-3:]]
    repair = (
        look.realign("bring every package of the driver to one version in one transaction")
        if case.driver_managed
        else look.manual("bring every package of the driver to one version (nvidia_driver_manage is false)")
    )
    yield Found(
        f"packages of the driver are of {len(versions)} versions: {', '.join(versions)}",
        look.clip(evidence),
        (repair,),
    )


RULES = (
    Rule(
        code="family.versions_differ",
        level="error",
        title="the driver's packages are of several versions",
        explain=(
            "Libraries, programs and modules of a driver work at one version only. They come apart where a part was "
            "held and the rest moved, where only the top package was pinned (its '>=' dependencies take the newest), "
            "where two repositories were mixed, or where NVIDIA's names changed: from 590 on libnvidia-compute-580 is "
            "called libnvidia-compute, and a pattern with -580 does not match any more."
        ),
        breaks="nvidia-smi and CUDA: 'Driver/library version mismatch'; apt: unmet dependencies",
        repair="one transaction that names every package of the family with one version, then a reboot or a reload of the module",
        prevent="hold all of them by exact names; pin all of them, not the top",
        find=_differ,
        reboot=True,
        texts=(
            r"NVML library version: \d+\.\d+",
            r"(?:tensorrt|libnvinfer\S*) ?: Depends: libnvinfer\S* \(= [^)]+\) but \S+ is to be installed",
            r"install 'cuda-drivers=\S+' failed",
        ),
        after=("dpkg.unfinished", "holds.not_installed", "apt.mixed_origins"),
        sources=("scenarios G4, G6",),
    ),
)
