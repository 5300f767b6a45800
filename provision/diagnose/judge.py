"""From one host to its diagnosis: run the rules, fold symptoms under causes, order, and say what stays unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.diagnose import pages, queries
from provision.diagnose.finding import Diagnosis, Finding
from provision.diagnose.pages import Page
from provision.diagnose.rule import Case, Found, finders
from provision.diagnose.rules import symptoms

_LEVELS = ("error", "warning", "note")


def judge(case: Case) -> Diagnosis:
    """Return the diagnosis of one host."""
    found = [finding_of(pages.page(code), hit) for code, find in finders().items() for hit in find(case)]
    causes = [finding for finding in found if finding.code not in symptoms.EXPLAINED_BY]
    ordered = in_order(folded(causes))
    diagnosis = Diagnosis(findings=ordered, unread=list(case.facts.unreadable))
    for symptom in found:
        if symptom.code not in symptoms.EXPLAINED_BY:
            continue
        cause = _explanation(symptom, ordered, case.facts.module.loaded is not None)
        if cause is not None:
            cause.folded.append(symptom)
        else:
            diagnosis.unknown += [symptom.message, *(f"  {line}" for line in symptom.evidence)]
    if diagnosis.unknown:
        diagnosis.unknown += ["looked at:", *(f"  {line}" for line in queries.looked_at(case))]
    return diagnosis


def finding_of(page: Page, found: Found) -> Finding:
    """Return what a rule found as data; words that are the same on every host come from the page."""
    return Finding(
        code=page.code,
        level=found.level or page.level,
        message=found.message,
        evidence=found.evidence,
        breaks=page.breaks,
        repairs=list(found.repairs),
        reboot=page.reboot if found.reboot is None else found.reboot,
        prevent=page.prevent,
    )


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """Put every finding whose rule names a cause that was found too under it; return those that stay on top.

    Nothing is lost: where causes name each other in a circle, the first of them stays on top. A cause is at least as
    grave as what follows from it.
    """
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.code, finding)
    parents: dict[int, Finding] = {}
    for finding in findings:
        for code in pages.page(finding.code).symptom_of:
            cause = first.get(code)
            if cause is not None and code != finding.code and not _above(cause, finding, parents):
                parents[id(finding)] = cause
                break
    for finding in findings:
        cause = parents.get(id(finding))
        if cause is not None:
            cause.folded.append(finding)
    top = [finding for finding in findings if id(finding) not in parents]
    for finding in top:
        _raise_level(finding)
    return top


def _above(finding: Finding, other: Finding, parents: dict[int, Finding]) -> bool:
    """True when other is finding itself or stands over it."""
    at: Finding | None = finding
    while at is not None:
        if at is other:
            return True
        at = parents.get(id(at))
    return False


def _raise_level(finding: Finding) -> None:
    for symptom in finding.folded:
        _raise_level(symptom)
    gravest = min((_LEVELS.index(each.level) for each in (finding, *finding.folded)), default=0)
    finding.level = _LEVELS[gravest]  # type: ignore[assignment]


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Order by what has to be mended first (``after``), then level, then area, then as found."""
    waiting = list(enumerate(findings))
    done: list[Finding] = []
    while waiting:
        left = {finding.code for _, finding in waiting}
        ready = [row for row in waiting if not (_before(row[1].code) & left - {row[1].code})]
        # A circle among ``after`` is a defect that a test of the rules finds; a host is judged all the same.
        chosen = min(ready or waiting, key=lambda row: (_rank(row[1]), row[0]))
        waiting.remove(chosen)
        done.append(chosen[1])
    return done


def _rank(finding: Finding) -> tuple[int, tuple[int, str]]:
    return (_LEVELS.index(finding.level), pages.area_rank(finding.code))


def _before(code: str) -> set[str]:
    """Every code that is mended before this one, also through codes that were not found here."""
    seen, todo = set[str](), [code]
    while todo:
        for other in pages.page(todo.pop()).after:
            if other not in seen and other != code:
                seen.add(other)
                todo.append(other)
    return seen


def _explanation(symptom: Finding, findings: Iterable[Finding], loaded: bool) -> Finding | None:
    """The error that explains what visibly does not work: by the symptom's own words, else by area, the first that can."""
    errors = [finding for finding in findings if finding.level == "error"]
    for words, codes in symptoms.MEANS:
        if words in symptom.message:
            for code in codes:
                for finding in errors:
                    if finding.code == code:
                        return finding
    for areas in symptoms.EXPLAINED_BY[symptom.code]:
        if loaded:
            areas -= symptoms.OF_NEXT_BOOT
        for finding in errors:
            if pages.area(finding.code) in areas:
                return finding
    return None
