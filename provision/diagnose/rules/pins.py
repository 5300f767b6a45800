"""Where apt would take packages from: origins that mix, branches that end, phased updates."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import Candidate, apt, candidate, moves
from provision.diagnose.finding import Level
from provision.diagnose.rule import Case, Found, Rule

_METAS = frozenset(
    {"nvidia-driver", "nvidia-headless", "nvidia-headless-no-dkms", "nvidia-open", "cuda-drivers", "nvidia-dkms"}
)


def _families(case: Case) -> dict[str, list[Candidate]]:
    """{series: candidates of its version-locked packages}; of the installed series all, of others what the lists told."""
    found: dict[str, list[Candidate]] = {}
    for name in sorted({offer.name for offer in apt(case).offers}):
        parsed = driver_names.parse(name)
        if (
            not parsed
            or not parsed.series
            or not driver_names.is_version_locked(name)
            or parsed.base in driver_names.FABRIC
        ):
            continue
        taken = candidate(case, name)
        if taken is not None and not _is_transitional(taken):
            found.setdefault(parsed.series, []).append(taken)
    return found


def _is_transitional(taken: Candidate) -> bool:
    """True for a name of one branch whose version is of another: the archive's way to end a branch."""
    parsed = driver_names.parse(taken.name)
    return bool(parsed and parsed.branch and driver_names.branch(taken.version) != parsed.branch)


def _mixed(case: Case) -> Iterator[Found]:
    installed = {
        parsed.series
        for parsed in map(driver_names.parse, queries.installed(case).packages)
        if parsed and parsed.series
    }
    families = _families(case)
    wanted = installed & set(families) or set(families)
    for series in sorted(wanted, reverse=True):
        rows = families[series]
        versions = {driver_names.upstream(row.version) for row in rows}
        origins = {row.origin for row in rows if row.source is not None}
        if len(versions) < 2 or len(origins) < 2:
            continue
        held = series in installed and all(
            case.facts.packages[row.name].held
            for row in rows
            if row.name in case.facts.packages and case.facts.packages[row.name].installed
        )
        evidence = [f"{row.name}: {row.version} from {row.origin}, priority {row.priority}{_by(row)}" for row in rows]
        # The odd ones out first.
        count = {version: sum(driver_names.upstream(row.version) == version for row in rows) for version in versions}
        rows.sort(key=lambda row: (count[driver_names.upstream(row.version)], row.name))
        stuck = [row.name for row in apt(case).unmet] + [row.name for row in apt(case).unfinished]
        broken = any(map(driver_names.is_driver_package, stuck))
        # What nobody has installed is only told where somebody wants it: a pin for the whole repository is common.
        level: Level = "note" if held or series not in installed else "warning"
        if broken and series in installed:
            level = "error"
        yield Found(
            f"packages of driver {series} would come from {' and '.join(sorted(origins))}: {', '.join(sorted(versions))}",
            queries.clip(evidence),
            (
                queries.realign(
                    "keep the driver's packages to one repository (an apt preference), and bring them to one version"
                ),
            )
            if broken
            else (queries.apply("keep the driver's packages to one repository (an apt preference)"),),
            level=level,
        )
        return


def _by(row: Candidate) -> str:
    return f" by {row.pin.file}" if row.pin else ""


def _branch_moves(case: Case) -> Iterator[Found]:
    rows = []
    for name, version in queries.installed(case).packages.items():
        parsed, package = driver_names.parse(name), case.facts.packages[name]
        if not parsed or not driver_names.is_version_locked(name) or package.held or not package.installed:
            continue
        taken = moves(case, name)
        if taken and driver_names.branch(taken.version) != driver_names.branch(version):
            rows.append((name, version, taken, parsed.base in _METAS))
    if not rows:
        return
    rows.sort(key=lambda row: not row[3])
    name, version, taken, _ = rows[0]
    yield Found(
        f"the next upgrade moves the driver from branch {driver_names.branch(version)} to {driver_names.branch(taken.version)}",
        queries.clip(
            f"{name}: {version} is installed and not held, {taken.version} from {taken.origin}"
            for name, version, taken, _ in rows
        ),
        (queries.apply("hold the installed driver by exact names, and pin its branch"),),
    )


def _phased(case: Case) -> Iterator[Found]:
    settings = {row.name: row.value for row in apt(case).settings}
    if any(
        name in settings
        for name in ("apt::get::always-include-phased-updates", "apt::get::never-include-phased-updates")
    ):
        return
    rows = []
    for offer in apt(case).offers:
        if offer.phased is None or offer.phased >= 100:
            continue
        package = case.facts.packages.get(offer.name)
        taken = moves(case, offer.name)
        if package and package.installed and not package.held and taken and taken.version == offer.version:
            rows.append(offer)
    if rows:
        yield Found(
            f"{rows[0].name} {rows[0].version} is handed out to {rows[0].phased} % of hosts so far: equal hosts will differ",
            queries.clip(
                f"{offer.name}: {case.facts.packages[offer.name].version} is installed, {offer.version} is at {offer.phased} %"
                for offer in rows
            ),
            (
                queries.manual(
                    "hold the driver, or set APT::Get::Always-Include-Phased-Updates (or Never-…) on the whole fleet"
                ),
            ),
        )


RULES = (
    Rule(
        code="apt.mixed_origins",
        level="warning",
        title="packages of one driver would come from two repositories",
        explain=(
            "The Ubuntu archive and NVIDIA's repository have packages of the same names. apt chooses package by "
            "package: with cuda-keyring's pin of 600 NVIDIA's wins where both have a package, and the archive's is "
            "taken where only it has one (or is newer, without the pin). A driver whose parts are joined by exact "
            "versions cannot be put together from both."
        ),
        breaks="installing or upgrading the driver: 'Depends: … but … is to be installed', 'held broken packages'",
        repair="an apt preference that keeps all driver packages to one repository; the CUDA toolkit may come from the other",
        prevent=(
            "choose one channel for the driver; provision writes /etc/apt/preferences.d/gpu-provision.pref where both "
            "are there"
        ),
        find=_mixed,
        texts=(
            r"nvidia-\S+ ?: Depends: (?:nvidia|libnvidia|xserver-xorg-video-nvidia)-\S+ \(>?= [^)]+\) but \S+ is to be",
            r"Depends: nvidia-kernel-common-\S+ \(>= [^)]+\) but \S+ is to be installed",
            r"cuda-drivers(?:-\d+)? ?: Depends: \S+ .*but (?:it is not going|\S+ is) to be installed",
        ),
        after=("apt.signed_by_conflict", "apt.malformed_source", "apt.key_missing", "apt.keyring_unusable"),
        sources=("apt_preferences(5)", "scenario F7"),
    ),
    Rule(
        code="apt.branch_moves",
        level="warning",
        title="the next upgrade changes the driver's branch",
        explain=(
            "cuda-drivers, nvidia-open and, from 590 on, every package of NVIDIA's repository carry no branch in "
            "their names: what keeps a host on its branch is a hold, or the package nvidia-driver-pinning-NNN. In the "
            "archive a branch that has ended becomes a transitional package: nvidia-driver-535 then brings 580. A guide's name "
            "of a branch that this release or repository does not have is 'Unable to locate package': `apt-cache policy` "
            "shows it, and whether `restricted` is among the sources' components."
        ),
        breaks="'Driver/library version mismatch' until the next boot; older GPUs drop out of a newer branch altogether",
        repair="hold the installed packages by exact names (and install nvidia-driver-pinning-NNN from NVIDIA's repository)",
        prevent="provision holds the closure, and pins the branch",
        find=_branch_moves,
        texts=(
            r"Version '[0-9.-]+\S*' for '(?:nvidia-fabricmanager|libnvidia|nvidia|cuda-drivers)\S*' was not found",
            r"transitional (?:dummy )?package.*nvidia-driver",
            r"Unable to locate package (?:libnvidia|nvidia|cuda-drivers)-\S*[0-9]{3}\S*",
            r"Package '?(?:libnvidia|nvidia|cuda-drivers)-\S*[0-9]{3}\S* has no installation candidate",
        ),
        after=("apt.signed_by_conflict", "apt.malformed_source"),
        symptom_of=("driver.mixed_versions",),
        sources=("catalog: driver branches, transitional", "scenario G6"),
    ),
    Rule(
        code="apt.phased",
        level="note",
        title="a phased update makes equal hosts differ",
        explain=(
            "Ubuntu hands updates out to a growing part of all machines; apt decides by the machine-id whether this "
            "one is in it. So two equal hosts are offered different drivers on the same day."
        ),
        breaks="nothing; versions of a fleet drift apart",
        repair="hold the driver, or one setting for phased updates on the whole fleet",
        prevent="exact versions (provision plans with phasing switched off, equal on every host)",
        find=_phased,
        texts=(r"deferred due to phasing", r"The following upgrades have been deferred"),
        sources=("apt.conf(5)", "scenario X1"),
    ),
)
