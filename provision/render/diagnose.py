"""diagnose: the cause first, its evidence, the smallest repair; and the page of a code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from provision.commands.diagnose import DiagnosedHost, DiagnoseDocument, ExplainDocument, ExplainedCode
from provision.diagnose import pages
from provision.diagnose.finding import Cause
from provision.render.base import Text, columns, headline, indented, text, whole
from provision.render.text import format_counts, grouped, plural

_STATUS_TEXTS = (
    ("broken", "broken"),
    ("unexplained", "with symptoms that nothing explains"),
    ("warned", "with warnings"),
    ("well", "well"),
    ("unreachable", "unreachable"),
    ("failed", "could not be read"),
)
_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_FEW_LINES = 5


def diagnosed(document: DiagnoseDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a diagnosis."""
    groups = grouped(document.hosts.items(), lambda host: host.model_dump())
    for names, host in groups:
        rest = host.summary or "; ".join(
            filter(None, [", ".join(host.gpus) or "no NVIDIA GPU", host.driver or "no driver"])
        )
        notes = sum(finding.level == "note" for finding in host.findings)
        more = f"; {plural(notes, 'note')} (-v)" if notes and not verbosity else ""
        yield headline(names, host.status, rest + more, everything=bool(verbosity))
        yield from _host(host, verbosity, alone=len(document.hosts) == 1)
    counts = format_counts((host.status for host in document.hosts.values()), _STATUS_TEXTS)
    first = next((f for host in document.hosts.values() for f in host.findings if f.level == "error"), None)
    more = f"; evidence: -v; meaning: --explain {first.code}" if first and not verbosity else ""
    yield text(f"diagnose: {plural(len(document.hosts), 'host')}: {counts}", more, styles=("bold", "dim"))
    if document.exported:
        yield Text(f"written: {document.exported} (check it before you share it: case.json and the folder root)")
    if document.rescue:
        yield whole(f"to repair: {document.rescue}", "dim")


def _host(host: DiagnosedHost, verbosity: int, *, alone: bool) -> Iterable[RenderableType]:
    shown = [f for f in host.findings if f.level != "note" or verbosity]
    for finding in shown:
        yield from _finding(finding, 2, verbosity)
    if host.unknown:
        yield indented(text("unknown  ", host.unknown[0], styles=("bold red", "bold")), 2)
        lines = host.unknown[1:] if verbosity else host.unknown[1 : _FEW_LINES + 1]
        for line in lines:
            yield indented(Text(line, style="dim"), 11)
        if len(lines) < len(host.unknown) - 1:
            yield indented(Text(f"and {len(host.unknown) - 1 - len(lines)} more (-v)", style="dim"), 11)
    whole = bool(verbosity) or (alone and not shown)
    if whole and host.status in ("well", "warned") and not any(f.level == "error" for f in host.findings):
        word = "nothing else found" if host.findings else "nothing found"
        lines = host.looked_at
        yield indented(Text(f"{word}; checked:" if lines else word, style="green"), 2)
        for line in lines:
            yield indented(Text(line, style="dim"), 4)
    if host.unread:
        more = "" if verbosity or len(host.unread) <= _FEW_LINES else f" and {len(host.unread) - _FEW_LINES} more (-v)"
        parts = ", ".join(host.unread if verbosity else host.unread[:_FEW_LINES])
        yield indented(
            text("not read  ", parts + more + ": silence about these proves nothing", styles=("yellow", "")), 2
        )


def _finding(finding: Cause, indent: int, verbosity: int) -> Iterable[RenderableType]:
    head = text(
        f"{finding.level}  ", f"{finding.code}  ", finding.message, styles=(_LEVEL_STYLES[finding.level], "bold", "")
    )
    yield indented(head, indent)
    # Most messages quote what was read.
    evidence = finding.evidence if verbosity else [line for line in finding.evidence[:1] if line not in finding.message]
    rows: list[tuple[str | Text, str | Text]] = [
        ("because" if not number else "", Text(line, style="dim")) for number, line in enumerate(evidence)
    ]
    if finding.breaks and verbosity:
        rows.append(("breaks", finding.breaks))
    for number, repair in enumerate(finding.repairs):
        # Another way than the first one is for those who ask.
        if number and _alternative(finding, number) and not verbosity:
            break
        rows.append(("repair" if not number else "or" if _alternative(finding, number) else "then", repair.words))
    if finding.reboot and (verbosity or all(repair.action != "reboot" for repair in finding.repairs)):
        rows.append(("reboot", "yes, it ends with one"))
    if finding.prevent and verbosity:
        rows.append(("prevent", finding.prevent))
    if rows:
        yield columns(rows, indent + 2, style="dim")
    if verbosity:
        for symptom in finding.folded:
            yield from _symptom(finding, symptom, indent + 2)
        return
    words: dict[str, list[str]] = {}
    for symptom in _all_folded(finding):
        words.setdefault(_word(finding, symptom), []).append(symptom.code)
    if words:
        folded = "; ".join(f"{word}  {', '.join(codes)}" for word, codes in words.items())
        yield indented(Text(folded, style="dim"), indent + 2)


def _all_folded(finding: Cause) -> Iterable[Cause]:
    for symptom in finding.folded:
        yield symptom
        yield from _all_folded(symptom)


def _word(parent: Cause, symptom: Cause) -> str:
    """Whether a finding follows from the one above, or is only mended with it."""
    # A document that somebody else wrote may name a finding that has no page.
    beside = pages.page(symptom.code).beside if symptom.code in pages.codes() else ()
    return "also" if parent.code in beside else "and so"


def _alternative(finding: Cause, number: int) -> bool:
    """A step that only a person can do, after one that a program can: another way, not the next step."""
    return finding.repairs[number].action == "manual" and finding.repairs[number - 1].action != "manual"


def _symptom(parent: Cause, finding: Cause, indent: int) -> Iterable[RenderableType]:
    """What follows from the finding above, or is mended with it, with its evidence."""
    word = f"{_word(parent, finding):<8}"
    yield indented(text(word, f"{finding.code}  ", finding.message, styles=("dim", "bold", "")), indent)
    for line in finding.evidence:
        yield indented(Text(line, style="dim"), indent + 8)
    for symptom in finding.folded:
        yield from _symptom(finding, symptom, indent + 2)


def explained(document: ExplainDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of pages: one in full; of several the first in full, the others by name."""
    for number, page in enumerate(document.pages):
        if number and not verbosity:
            break
        yield from [Text("")] * bool(number)
        yield from _page(page)
    others = document.pages[1:] if not verbosity else []
    if others:
        yield Text("")
        yield Text("it may also be:", style="bold")
        yield columns([(page.code, f"{page.title}: {page.line or ''}".rstrip(": ")) for page in others])
        yield Text("-v shows all; provision diagnose reads the host itself and decides", style="dim")


def _page(page: ExplainedCode) -> Iterable[RenderableType]:
    yield text(f"{page.code}  ", page.title, styles=("bold", ""))
    if page.line:
        yield indented(text("known by  ", page.line, styles=("dim", "")), 2)
    for paragraph in page.explain.split("\n\n"):
        yield Text("")
        yield indented(Text(paragraph.replace("`", "")), 2)
    yield Text("")
    yield columns(_page_rows(page), style="dim")


def _page_rows(page: ExplainedCode) -> Sequence[tuple[str | Text, str | Text]]:
    rows: list[tuple[str | Text, str | Text]] = [("level", page.level)]
    for word, shown in (("breaks", page.breaks), ("repair", page.repair), ("prevent", page.prevent)):
        if shown:
            rows.append((word, shown.replace("`", "")))
    rows.append(("reboot", "part of the repair" if page.reboot else "not automatically"))
    rows += [("source" if not number else "", source) for number, source in enumerate(page.sources)]
    return rows
