"""plan --format markdown: the plan at a glance as a table, for a ticket or a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.documents import PlanDocument
from provision.render.plan import among, changing, counted, hardware, kinds, lines, totals, warnings
from provision.render.text import clean, format_hosts, same_issues

_SIGNS = {"+": "add", "~": "change", "-": "**remove**", "!": "**interrupt**", "": ""}


def view(document: PlanDocument) -> Iterator[str]:
    """Return the lines of a plan in Markdown."""
    plans = changing(document)
    total, *rest = [line.plain.strip() for line in totals(document)]
    yield from ["# Plan", "", plain(total), ""]
    yield from [*(f"- {plain(line)}" for line in rest), *([""] if rest else [])]
    if plans:
        yield from table(("Hosts", "Hardware"), [(format_hosts(names), hardware(plan)) for names, plan in kinds(plans)])
        rows = []
        for line in lines(plans):
            counts = ", ".join(shown for shown, _ in counted(line))
            value = "; ".join(filter(None, (line.value, counts)))
            rows.append((_SIGNS[line.sign], line.what, value, among(line.hosts, list(plans))))
        yield from table(("", "What", "Change", "Hosts"), rows)
    others = [(plan.host, plan.status, "; ".join(b.message for b in plan.blockers)) for plan in document.hosts.values()]
    others = [row for row in others if row[1] not in ("changes", "converged")]
    if others:
        yield from table(("Host", "State", "Why"), others)
    for hosts, warning in same_issues(warnings(document)):
        why = f": {'; '.join(warning.because)}" if warning.because else ""
        yield f"- Warning ({plain(among(hosts, list(document.hosts)))}): {plain(warning.message + why)}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table, and an empty one."""
    yield f"| {' | '.join(titles)} |"
    yield f"|{' --- |' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(one if one.startswith('**') and one in _SIGNS.values() else plain(one) for one in row)} |"
    yield ""


def plain(text: str) -> str:
    """Return text that no reader of Markdown takes for markup: what comes from hosts is only text."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~])", r"\\\1", clean(text))
