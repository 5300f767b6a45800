"""report: the page of a fleet, one HTML file; and what is printed where it was written.

The template escapes every value, and ``clean`` writes out what cannot be seen: what a host says is text on the page, and no
more. Its style and its script are named by their hashes in the page's own policy, so that nothing else runs there.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import RenderableType

from provision.commands.report import STATUSES, ReportDocument, ReportedHost
from provision.diagnose import pages
from provision.diagnose.finding import Cause
from provision.drift.item import Item
from provision.lib.text import natural
from provision.render.base import Text
from provision.render.history import short, when
from provision.render.text import STATUS_TEXTS, clean, format_counts, format_hosts, plural, same_issues
from provision.runs.history import HostRecord, Judged, describe_changes

T = TypeVar("T")
_STATUS_TEXTS = (
    ("broken", "broken"),
    ("failed", "could not be read"),
    ("unreachable", "unreachable"),
    ("drifted", "drifted"),
    ("warned", "with warnings"),
    ("ok", "as they should be"),
)
_AGAINST = {"inventory": "the inventory", "lock": "the lock", "peers": "its peers", "hardware": "its earlier hardware"}
# A command with more names is one that nobody reads.
_NAMED_HOSTS = 20


@dataclass
class Group:
    """Hosts of which the same is said. first: what is said of the first of them."""

    first: Any
    hosts: list[str] = field(default_factory=list)

    @property
    def named(self) -> str:
        return format_hosts(self.hosts)


class Details:
    """What the tile of a host tells."""

    def __init__(self, host: ReportedHost) -> None:
        findings = host.diagnose.findings if host.diagnose else []
        checks = host.verify.checks if host.verify else []
        runs = host.history.runs if host.history else []
        items = host.drift.items if host.drift else []
        # Left out: what is no news (notes, holds), and the failed checks of drift, which stand among the checks.
        self.findings = [finding for finding in findings if finding.level != "note"]
        self.checks = [check for check in checks if check.level in ("error", "warning")]
        self.items = [item for item in items if item.area != "check"]
        self.remarks = [remark for remark in host.scan.remarks if remark.code != "holds"] if host.scan else []
        unknown = host.diagnose.unknown if host.diagnose else []
        # Runs alone are no reason for details: what each changed stands in its row of the runs.
        self.any = any((self.findings, unknown, self.checks, self.items, host.security, self.remarks))
        held = (
            "security updates not known" if host.security is None else _no(len(host.security), "held security update")
        )
        said = [_no(len(self.findings) + len(unknown), "finding"), _no(len(self.items), "difference"), held]
        said[1:1] = [f"{plural(len(self.checks), 'check')} not passed"] if self.checks else []
        self.open = ", ".join(said).capitalize()
        proven = next((record for record in runs if record.verify), None)
        self.proof = f"Proven {when(proven.ended or proven.started)}: {_judged(proven.verify)}" if proven else ""


def _no(count: int, noun: str) -> str:
    return plural(count, noun) if count else f"no {noun}s"


def view(document: ReportDocument) -> Iterable[RenderableType]:
    """Return what is to be printed of a report: the counts, and where the page is."""
    counts = format_counts((host.status for host in document.hosts.values()), _STATUS_TEXTS)
    yield Text(f"report: {plural(len(document.hosts), 'host')}: {counts}", style="bold")
    if document.path:
        yield Text(f"the page: {document.path}")


def html(document: ReportDocument, live: str = "") -> str:
    """Return the page of a report. live: the tag by which a server knows this state of it; the page then asks for newer ones."""
    names = sorted(document.hosts, key=lambda name: (STATUSES.index(document.hosts[name].status), natural(name)))
    hosts = {name: document.hosts[name] for name in names}
    findings = _findings(hosts)
    codes = dict.fromkeys(group.first.code for group in findings if group.first.code in pages.codes())
    statuses = [host.status for host in hosts.values()]
    page: str = _template().render(
        document=document,
        live=live,
        hosts=hosts,
        counts=[(status, shown, statuses.count(status)) for status, shown in _STATUS_TEXTS if status in statuses],
        unread=same_issues(document.errors),
        findings=findings,
        checks=_checks(hosts),
        differences=_differences(hosts),
        updates=_updates(hosts),
        versions=_versions(hosts),
        runs=_runs(document),
        codes=codes,
        pages=[pages.page(code) for code in codes],
    )
    return page


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"digest": _digest, "when": when, "plural": plural}
    environment.globals |= {
        "against": _AGAINST,
        "hosts_named": format_hosts,
        "details": Details,
        "changed": _changed,
        "rescue": _rescue,
        "status_texts": STATUS_TEXTS | {"ok": "as it should be", "warned": "warned", "failed": "not read"},
    }
    return environment.get_template("report.html.j2")


def _digest(text: str) -> str:
    """The hash of an inline style or script, as a policy names it. Source: W3C, Content Security Policy Level 3, hash-source."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _grouped(pairs: Iterable[tuple[str, T]], key: Any) -> list[Group]:
    groups: dict[Hashable, Group] = {}
    for name, thing in pairs:
        groups.setdefault(key(thing), Group(thing)).hosts.append(name)
    for group in groups.values():
        group.hosts.sort(key=natural)
    return list(groups.values())


def _findings(hosts: dict[str, ReportedHost]) -> list[Group]:
    """What diagnose found, the gravest first: hosts with the same case of a code are one."""
    found = [(name, finding) for name, host in hosts.items() if host.diagnose for finding in host.diagnose.findings]
    groups = _grouped(found, lambda finding: (finding.code, finding.message))
    return sorted(groups, key=lambda group: (group.first.gravity, -len(group.hosts)))


def _checks(hosts: dict[str, ReportedHost]) -> list[Group]:
    """The checks that do not pass, the gravest first."""
    found = [(name, check) for name, host in hosts.items() for check in Details(host).checks]
    groups = _grouped(found, lambda check: (check.code, check.message))
    return sorted(groups, key=lambda group: (group.first.gravity, -len(group.hosts)))


def _differences(hosts: dict[str, ReportedHost]) -> list[Group]:
    """What drift found, the most hosts first."""
    found = [(name, item) for name, host in hosts.items() for item in Details(host).items]
    groups = _grouped(found, _difference)
    return sorted(groups, key=lambda group: -len(group.hosts))


def _difference(item: Item) -> Hashable:
    return item.code, item.what, item.found, item.expected, item.against


def _updates(hosts: dict[str, ReportedHost]) -> list[tuple[str, list[str]]]:
    """Held security updates: from which version to which, and the packages with their hosts; the most packages first."""
    found = [(name, update) for name, host in hosts.items() for update in host.security or ()]
    moves: dict[str, list[str]] = {}
    for group in _grouped(found, lambda update: (update.package, update.version, update.available)):
        moves.setdefault(f"{group.first.version} → {group.first.available}", []).append(
            f"{group.first.package}: {group.named}"
        )
    return sorted(moves.items(), key=lambda move: -len(move[1]))


def _versions(hosts: dict[str, ReportedHost]) -> list[Group]:
    """The combinations of versions that there are, the most hosts first."""
    read = [(name, host) for name, host in hosts.items() if host.scan]
    groups = _grouped(read, _version)
    return sorted(groups, key=lambda group: -len(group.hosts))


def _version(host: ReportedHost) -> Hashable:
    scan = host.scan
    return scan and (*scan.gpus, scan.driver, scan.cuda, host.ubuntu, host.kernel)


def _runs(document: ReportDocument) -> list[dict[str, str]]:
    """Runs of this machine, and those that hosts tell of beside them, newest first."""
    rows = [
        {
            "run": run.run,
            "started": run.started,
            "who": run.who,
            "state": run.state,
            "hosts": _counted([*(record.status for record in run.hosts.values()), *run.left_alone.values()]),
            "what": _changed(run.hosts.values()) or run.command,
            "again": run.again or "",
        }
        for run in document.runs
    ]
    mine = {run.run for run in document.runs}
    elsewhere: dict[str, list[HostRecord]] = {}
    for host in document.hosts.values():
        for record in host.history.runs if host.history else ():
            if record.run not in mine:
                elsewhere.setdefault(record.run, []).append(record)
    rows += [
        {
            "run": run,
            "started": records[0].started,
            "who": records[0].who,
            "state": "known from its hosts",
            "hosts": _counted([record.status for record in records]),
            "what": _changed(records),
            "again": "",
        }
        for run, records in elsewhere.items()
    ]
    return [row | {"short": short(row["run"])} for row in sorted(rows, key=lambda row: row["run"], reverse=True)]


def _counted(statuses: Sequence[str]) -> str:
    return ", ".join(f"{statuses.count(one)} {STATUS_TEXTS.get(one, one)}" for one in dict.fromkeys(statuses))


def _changed(records: Iterable[HostRecord]) -> str:
    """What runs changed on hosts; without packages, the command."""
    records = list(records)
    changes = [*filter(None, dict.fromkeys(_changes(tuple(record.packages)) for record in records))]
    shown = "; ".join([*changes[:2], *(["and more"] if len(changes) > 2 else [])])
    return shown or (records[0].command if records else "")


@lru_cache
def _changes(packages: tuple[tuple[str, str | None, str | None], ...]) -> str:
    """Hosts of one run have mostly the same changes."""
    return describe_changes(packages)


def _judged(verify: Judged | None) -> str:
    if verify is None:
        return ""
    counts = {"passed": verify.passed, "warned": verify.warn, "failed": verify.fail, "not run": verify.skip}
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number)


def _rescue(document: ReportDocument, findings: Iterable[Cause], hosts: Sequence[str]) -> str:
    """The command that carries the repairs out, as it has to be typed; empty where no program can, or for too many hosts."""
    repairs = [repair for finding in findings for repair in finding.repairs]
    if len(hosts) > _NAMED_HOSTS or not any(repair.action != "manual" for repair in repairs):
        return ""
    return f"{document.command} rescue {shlex.join(hosts)}"
