"""Where apt would take packages from: origins that mix, branches that end, phased updates."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import Candidate, apt, candidate, hidden, moves
from provision.diagnose.finding import Level
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Preference
from provision.parts import addresses

_METAS = frozenset(
    {"nvidia-driver", "nvidia-headless", "nvidia-headless-no-dkms", "nvidia-open", "cuda-drivers", "nvidia-dkms"}
)


def _families(case: Case) -> dict[str, list[Candidate]]:
    """{series: candidates of its version-locked packages}; of the installed series all, of others what the lists have."""
    found: dict[str, list[Candidate]] = {}
    for name in sorted({listed.name for listed in apt(case).offers}):
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


@rule("apt.mixed_origins")
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
        there = queries.present(case, (row.name for row in rows))
        held = series in installed and all(package.held for package in there.values())
        evidence = [f"{row.name}: {row.version} from {row.origin}, priority {row.priority}{_by(row)}" for row in rows]
        # The odd ones out first.
        count = {version: sum(driver_names.upstream(row.version) == version for row in rows) for version in versions}
        rows.sort(key=lambda row: (count[driver_names.upstream(row.version)], row.name))
        stuck = [row.name for row in apt(case).unmet] + [row.name for row in apt(case).unfinished]
        broken = any(map(driver_names.is_driver_package, stuck))
        # What nobody has installed is only reported where somebody wants it: a pin for the whole repository is common.
        level: Level = "note" if held or series not in installed else "warning"
        if broken and series in installed:
            level = "error"
        yield Found(
            f"packages of driver {series} would come from {' and '.join(sorted(origins))}: {', '.join(sorted(versions))}",
            evidence,
            queries.realign(
                "keep the driver's packages to one repository (an apt preference), and bring them to one version"
            )
            if broken
            else queries.apply("keep the driver's packages to one repository (an apt preference)"),
            level=level,
        )
        return


def _wanted(case: Case) -> Iterator[tuple[str, set[str]]]:
    """(package, the catalog's repositories that have it) of what the inventory asks for by name and is not here."""
    values = case.values
    rows = [
        (f"cuda-toolkit-{str(minor).replace('.', '-')}", {"cuda"})
        for minor in values.get("cuda_toolkit_versions") or ()
    ]
    if values.get("container_toolkit_runtimes"):
        rows.append(("nvidia-container-toolkit", {"cuda", "container_toolkit"}))
    if case.driver_managed and values.get("nvidia_driver_channel") == "cuda" and not queries.installed(case).packages:
        rows += [(name, {"cuda"}) for name in ("nvidia-driver", "nvidia-open", "cuda-drivers")]
    have = queries.present(case, (name for name, _ in rows))
    yield from (row for row in rows if row[0] not in have)


@rule("apt.pinned_away")
def _pinned_away(case: Case) -> Iterator[Found]:
    found: dict[str, tuple[Preference, list[str]]] = {}
    for name, repositories_ in _wanted(case):
        having = [row for row in apt(case).lists if addresses.name_of(row.uri) in repositories_]
        for pin in hidden(case, name, having):
            where = pin.file + (f", line {pin.line}" if pin.line else "")
            names = found.setdefault(where, (pin, []))[1]
            names += [name] if name not in names else []
    for where, (pin, names) in found.items():
        yield Found(
            f"{where} hides what is asked for: {queries.some(names, 3)}",
            [f"{where}: Package: {pin.package}, Pin: {pin.pin}, Pin-Priority: {pin.priority}"]
            + [f"{name}: never installed, for its priority is below 0" for name in names],
            queries.manual(f"remove the stanza from {where}, or limit its Package line, then apt-get update"),
        )


def _by(row: Candidate) -> str:
    return f" by {row.pin.file}" if row.pin else ""


@rule("apt.branch_moves")
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
        [
            f"{name}: {version} is installed and not held, {taken.version} from {taken.origin}"
            for name, version, taken, _ in rows
        ],
        queries.apply("hold the installed driver by exact names, and pin its branch"),
    )


@rule("apt.phased")
def _phased(case: Case) -> Iterator[Found]:
    settings = {row.name: row.value for row in apt(case).settings}
    if any(
        name in settings
        for name in ("apt::get::always-include-phased-updates", "apt::get::never-include-phased-updates")
    ):
        return
    rows = []
    for listed in apt(case).offers:
        if listed.phased is None or listed.phased >= 100:
            continue
        package = case.facts.packages.get(listed.name)
        taken = moves(case, listed.name)
        if package and package.installed and not package.held and taken and taken.version == listed.version:
            rows.append(listed)
    if rows:
        yield Found(
            f"{rows[0].name} {rows[0].version} is rolled out to {rows[0].phased} % of hosts so far: identical hosts will differ",
            [
                f"{listed.name}: {case.facts.packages[listed.name].version} is installed, {listed.version} is at {listed.phased} %"
                for listed in rows
            ],
            queries.manual(
                "hold the driver, or set APT::Get::Always-Include-Phased-Updates (or Never-…) on the whole fleet"
            ),
        )
