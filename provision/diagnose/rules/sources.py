"""apt's sources: entries that contradict each other, cannot be read, lead nowhere, or are of another release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from provision.diagnose import queries, repositories
from provision.diagnose.candidates import apt
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Source
from provision.parts import addresses

_CONFLICT = "Conflicting values set for option Signed-By"
_LIST_ERROR = re.compile(r"(?:entry (\d+) in list file (\S+)|on line (\d+) in source list (\S+))")
_STANZA_ERROR = re.compile(r"(?:entry|stanza) (\d+) in (?:sources file|source list) (\S+\.sources)")
_FILE = re.compile(r"(/etc/apt/\S+?)(?:[,:;]?)(?=\s|$)")
_DAY = 86400.0
_CUDA = re.compile(r"/compute/cuda/repos/([a-z]+)([0-9]{2,4})/")
_STABLE_DEB = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"


def _drop(text: str, rows: Sequence[Source]) -> Repair:
    return Repair(action="sources.drop", words=text, args={"entries": [repositories.entry(row) for row in rows]})


def _named(rows: Sequence[Source]) -> str:
    return " and ".join(dict.fromkeys(addresses.place(row) for row in rows))


def conflicts(case: Case) -> list[list[Source]]:
    """Groups of entries of one repository whose Signed-By differ; apt refuses them all, or takes the first."""
    return [rows for rows in repositories.groups(case) if len({row.signed_by or "" for row in rows}) > 1]


@rule("apt.signed_by_conflict")
def _signed_by_conflict(case: Case) -> Iterator[Found]:
    said = [error for error in case.facts.apt.errors if error.startswith(_CONFLICT)]
    if not said:
        return
    rows: list[Source] = []
    reported: list[Source] = []
    for group in conflicts(case):
        keep = repositories.keeper(case, group)
        # An entry that repeats what stays is no conflict; it goes along, for only one is needed.
        others = [row for row in group if row is not keep and row not in rows]
        reported += [row for row in group if row not in reported]
        rows += others
    evidence = [*said, *(repositories.shown(row) for row in reported)]
    loose = [row for row in rows if repositories.can_be_dropped(row)]
    fixed = [row for row in rows if row not in loose]
    repairs: list[Repair] = []
    if loose:
        repairs.append(_drop(f"remove {_named(loose)}: the repository is configured twice", loose))
    for row in fixed:
        repairs.append(queries.manual(f"write the same Signed-By into {addresses.place(row)} as its other entry has"))
    yield Found(
        f"apt refuses all its sources: {_named(reported) or 'two entries'} name other keys for one repository",
        evidence,
        *repairs,
    )


@rule("apt.malformed_source")
def _malformed(case: Case) -> Iterator[Found]:
    said = [error for error in case.facts.apt.errors if not error.startswith(_CONFLICT)]
    if not said:
        return
    stanzas = apt(case).stanzas
    entries: list[dict[str, object]] = []
    aside = []
    for error in said:
        line, stanza, path = _LIST_ERROR.search(error), _STANZA_ERROR.search(error), _FILE.search(error)
        starts = stanzas.get(stanza[2], []) if stanza else []
        if line and (line[2] or line[4]).endswith(".list"):
            entries.append({"file": line[2] or line[4], "line": int(line[1] or line[3])})
        elif stanza and 0 < int(stanza[1]) <= len(starts):
            entries.append({"file": stanza[2], "line": starts[int(stanza[1]) - 1]})
        elif path and not path[1].endswith(".sources"):
            aside.append(path[1])
    repairs: list[Repair] = []
    if entries:
        where = ", ".join(f"{entry['file']} line {entry['line']}" for entry in entries)
        repairs.append(Repair(action="sources.drop", words=f"comment out {where}", args={"entries": entries}))
    if aside:
        paths = list(dict.fromkeys(aside))
        repairs.append(Repair(action="file.aside", words=f"move {', '.join(paths)} aside", args={"paths": paths}))
    yield Found(
        f"apt cannot read its files: {said[0]}",
        said,
        *(tuple(repairs) or (queries.manual("correct the file by hand"),)),
    )


@rule("apt.twice")
def _twice(case: Case) -> Iterator[Found]:
    refused = bool(case.facts.apt.errors)
    for rows in repositories.groups(case):
        differ = len({row.signed_by or "" for row in rows}) > 1
        if (refused and differ) or not _same_parts(rows):
            continue
        keep = repositories.keeper(case, rows)
        others = [row for row in rows if row is not keep and repositories.can_be_dropped(row)]
        if not others:
            continue
        nvidia = any(addresses.is_nvidia(uri) for row in rows for uri in row.uris)
        yield Found(
            f"one repository is configured {len(rows)} times: {_named(rows)}",
            [repositories.shown(row) for row in rows],
            _drop(f"remove {_named(others)}", others),
            level="warning" if nvidia else "note",
        )


def _same_parts(rows: Sequence[Source]) -> bool:
    """True when two entries of the group bring the same lists: deb beside deb-src, or main beside universe, are no doubles."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        parts = {(kind, component) for kind in row.types for component in row.components or [""]}
        if parts & seen:
            return True
        seen |= parts
    return False


@rule("apt.dead_repository")
def _dead(case: Case) -> Iterator[Found]:
    enabled = [row for row in case.facts.apt.sources if row.enabled]
    alive = any(
        apt_sources.normalise(uri).startswith("nvidia.github.io/libnvidia-container/stable/deb")
        for row in enabled
        for uri in row.uris
    )
    rewrite, drop, evidence = [], [], []
    for row in enabled:
        for uri in row.uris:
            kind = repositories.gone(uri)
            folder = repositories.folder(uri)
            if folder in apt(case).folders_gone:
                evidence.append(f"{addresses.place(row)}: {uri}, and there is no folder {folder} on this host")
                drop.append(row)
                continue
            if kind is None:
                continue
            more = " (discontinued; its packages are in the CUDA repository)" if kind == "merged" else ""
            evidence.append(f"{addresses.place(row)}: {uri}{more}")
            # One entry of the set is enough: the others bring nothing that it does not.
            if alive or kind != "moved":
                drop.append(row)
            else:
                rewrite.append((row, uri))
                alive = True
    repairs = []
    if rewrite:
        repairs.append(
            Repair(
                action="sources.rewrite",
                words=f"lead {_named([row for row, _ in rewrite])} to {_STABLE_DEB}",
                args={"entries": [{**repositories.entry(row), "uri": uri, "to": _STABLE_DEB} for row, uri in rewrite]},
            )
        )
    if drop:
        repairs.append(_drop(f"remove {_named(drop)}", drop))
    if repairs:
        reported = _named([row for row, _ in rewrite] + drop)
        yield Found(f"{reported}: the repository is gone from there", evidence, *repairs)


@rule("apt.no_such_release")
def _no_such_release(case: Case) -> Iterator[Found]:
    host = case.facts.host.os
    own = host.version_id.replace(".", "")
    reported = False
    for row in case.facts.apt.sources:
        for uri in row.uris if row.enabled else ():
            why = addresses.impossible(row, uri, case.facts.host.arch)
            if why and repositories.gone(uri) is None:
                yield Found(
                    f"{addresses.place(row)}: there is no repository at this address",
                    (f"{addresses.place(row)}: {uri} {' '.join(row.suites)}", why),
                    *_right_address(case, row, uri),
                )
                continue
            release = addresses.no_release(uri)
            if release is None:
                continue
            reported = True
            yield Found(
                f"NVIDIA has no repository {release}",
                (f"{addresses.place(row)}: {uri}", f"this host: {host.pretty or host.id + ' ' + host.version_id}"),
                _drop(f"remove {addresses.place(row)}", [row]),
                queries.manual("take the repository of the long-term release that this system is made from"),
            )
    # Derived and interim releases: what is made of their names does not exist.
    known = set(case.catalog.repositories.repositories["cuda"].ubuntu)
    if not reported and host.id not in ("", "debian") and (host.id != "ubuntu" or host.version_id not in known) and own:
        yield Found(
            f"NVIDIA has no repository for {host.id.capitalize()} {host.version_id}",
            (f"os-release: {host.pretty or host.version_id}", f"known releases: {', '.join(sorted(known))}"),
            queries.manual("use the driver of Ubuntu's own archive, or a long-term release"),
            level="note",
        )


def _right_address(case: Case, row: Source, uri: str) -> list[Repair]:
    """The entry goes where another one brings the repository, else to the address that the catalog has."""
    name = addresses.name_of(uri) or ("cuda" if "/compute/cuda/repos" in uri else None)
    right = repositories.of_catalog(case, name) if name else None
    others = [
        other
        for other in case.facts.apt.sources
        if other.enabled and other is not row and any(addresses.name_of(one) == name for one in other.uris) and name
    ]
    healthy = [o for o in others if not any(addresses.impossible(o, one, case.facts.host.arch) for one in o.uris)]
    drop = _drop(f"remove {addresses.place(row)}", [row])
    if healthy or right is None or name != "cuda" or row.suites != ["/"]:
        more = f": {_named(healthy)} has the repository" if healthy else ""
        return [_drop(f"remove {addresses.place(row)}{more}", [row])]
    to = right.url
    rewrite = {**repositories.entry(row), "uri": uri, "to": to}
    words = f"lead {addresses.place(row)} to {to}"
    return [Repair(action="sources.rewrite", words=words, args={"entries": [rewrite]}), drop]


@rule("apt.other_release")
def _other_release(case: Case) -> Iterator[Found]:
    host = case.facts.host.os
    own = host.version_id.replace(".", "")
    known = case.catalog.repositories.repositories["cuda"].ubuntu
    if host.id != "ubuntu" or host.version_id not in known:
        return
    right = [
        row
        for row in case.facts.apt.sources
        if row.enabled and any(f"/compute/cuda/repos/ubuntu{own}/" in f"{apt_sources.normalise(u)}/" for u in row.uris)
    ]
    for row in case.facts.apt.sources:
        for uri in row.uris if row.enabled else ():
            match = _CUDA.search(apt_sources.normalise(uri) + "/")
            # what no release of Ubuntu is called has a finding of its own
            ubuntu = match and match[1] == "ubuntu" and len(match[2]) == 4 and match[2].endswith("04")
            if match and (ubuntu or match[1] != "ubuntu") and match[1] + match[2] != f"ubuntu{own}":
                release = f"Ubuntu {match[2][:2]}.{match[2][2:]}" if ubuntu else f"{match[1]} {match[2]}"
                message = f"NVIDIA's repository is that of {release}, this is {host.version_id}"
                if right:
                    beside = [repositories.shown(other) for other in right]
                    text = f"remove {addresses.place(row)}: {_named(right)} has the repository of {host.version_id}"
                    yield Found(message, [repositories.shown(row), *beside], _drop(text, [row]))
                    continue
                yield Found(
                    message,
                    (f"{addresses.place(row)}: {uri}",),
                    Repair(
                        action="sources.rewrite",
                        words=f"lead {addresses.place(row)} to ubuntu{own}",
                        args={
                            "entries": [
                                {
                                    **repositories.entry(row),
                                    "uri": uri,
                                    "to": uri.replace(match[1] + match[2], "ubuntu" + own),
                                }
                            ]
                        },
                    ),
                )


@rule("apt.lists_contradict")
def _contradicts(case: Case) -> Iterator[Found]:
    rows = [row for row in apt(case).lists if row.failed or row.differs]
    if not rows:
        return
    evidence = [f"{row.place}: {row.uri} {row.suite}" for row in rows]
    evidence += [
        f"{one.name}: {one.found} bytes, its Release file says {one.expected}" for row in rows for one in row.differs
    ]
    evidence += [f"lists/partial/{name}: apt fetched it and found it wrong" for row in rows for name in row.failed]
    broken = any(row.differs for row in rows)
    yield Found(
        f"the lists of {rows[0].uri} contradict their Release file",
        evidence,
        Repair(
            action="lists.clean",
            words="delete the downloaded lists and fetch them again, later if a mirror is being updated",
        ),
        level="error" if broken else "warning",
    )


@rule("apt.clock")
def _clock(case: Case) -> Iterator[Found]:
    now = apt(case).clock
    for row in apt(case).lists:
        written = _date(row.date)
        if now is not None and written is not None and written > now + _DAY:
            days = (written - now) / _DAY
            yield Found(
                f"this host's clock is at least {days:.0f} days behind: the lists of {row.uri} are from the future",
                (
                    f"{row.place}: {row.uri} {row.suite}, Date: {row.date}",
                    f"clock: {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC",
                ),
                queries.manual("timedatectl set-ntp true (or chronyc makestep), then apt-get update"),
            )
            return


def _date(text: str | None) -> float | None:
    """Seconds since 1970 of a Release file's Date; None where there is none."""
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None
