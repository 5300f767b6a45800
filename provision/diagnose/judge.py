"""From one host to its diagnosis: run the rules, fold symptoms under causes, order, and say what stays unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.diagnose import pages, queries
from provision.diagnose.finding import Cause, Diagnosis
from provision.diagnose.pages import Page
from provision.diagnose.rule import Case, Found, finders
from provision.diagnose.rules import symptoms
from provision.lib.findings import explained, in_order


def judge(case: Case) -> Diagnosis:
    """Return the diagnosis of one host."""
    elsewhere = queries.ELSEWHERE.get(queries.world(case) or "", frozenset())
    found = [
        finding_of(pages.page(code), hit)
        for code, find in finders().items()
        if elsewhere.isdisjoint((code, pages.area(code)))
        for hit in find(case)
    ]
    causes = [finding for finding in found if finding.code not in symptoms.EXPLAINED_BY]
    listed = ordered(folded(causes))
    diagnosis = Diagnosis(findings=listed, unread=list(case.facts.unreadable))
    for symptom in found:
        if symptom.code not in symptoms.EXPLAINED_BY:
            continue
        cause = _explanation(symptom, listed, case.facts.module.loaded is not None)
        if cause is not None:
            cause.folded.append(symptom)
        else:
            diagnosis.unknown += [symptom.message, *(f"  {line}" for line in symptom.evidence)]
    if diagnosis.unknown:
        diagnosis.unknown += ["looked at:", *(f"  {line}" for line in queries.sources_read(case))]
    return diagnosis


def finding_of(page: Page, found: Found) -> Cause:
    """Return what a rule found as data; texts that are the same on every host come from the page."""
    return Cause(
        code=page.code,
        level=found.level or page.level,
        message=found.message,
        evidence=found.evidence,
        breaks=page.breaks,
        repairs=list(found.repairs),
        reboot=page.reboot if found.reboot is None else found.reboot,
        prevent=page.prevent,
    )


def folded(findings: Sequence[Cause]) -> list[Cause]:
    """Put every finding whose page names a cause, or a neighbour, that was found too under it; return those that stay on top.

    Nothing is lost. A cause is at least as grave as what follows from it.
    """
    first: dict[str, Cause] = {}
    for finding in findings:
        first.setdefault(finding.code, finding)

    def causes(finding: Cause) -> list[Cause]:
        page = pages.page(finding.code)
        codes = (*page.symptom_of, *page.beside)
        return [first[code] for code in codes if code in first and code != finding.code]

    parents = explained(findings, causes)
    for finding in findings:
        if id(finding) in parents:
            parents[id(finding)].folded.append(finding)
    top = [finding for finding in findings if id(finding) not in parents]
    for finding in top:
        _raise_level(finding)
    return top


def _raise_level(finding: Cause) -> None:
    for symptom in finding.folded:
        _raise_level(symptom)
    finding.level = min((finding, *finding.folded), key=lambda each: each.gravity).level


def ordered(found: Sequence[Cause]) -> list[Cause]:
    """Order by what has to be mended first (``after``), then level, then area, then as found."""
    return in_order(found, _before, pages.area_rank)


def _before(code: str) -> set[str]:
    """Every code that is mended before this one, also through codes that were not found here."""
    seen, todo = set[str](), [code]
    while todo:
        for other in pages.page(todo.pop()).after:
            if other not in seen and other != code:
                seen.add(other)
                todo.append(other)
    return seen


def _explanation(symptom: Cause, findings: Iterable[Cause], loaded: bool) -> Cause | None:
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
