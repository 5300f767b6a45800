"""From one host to its diagnosis: run the rules, fold symptoms under causes, order, and say what stays unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from provision.diagnose import pages, queries
from provision.diagnose.finding import Cause, Diagnosis, Repair
from provision.diagnose.pages import Page
from provision.diagnose.rule import Case, Find, Found, finders
from provision.diagnose.rules import symptoms
from provision.errors import ProvisionError
from provision.lib.findings import explained, in_order


def judge(case: Case, unsaid: Set[str] = frozenset(), quotes: Set[str] = frozenset()) -> Diagnosis:
    """Return the diagnosis of one host.

    unsaid: dotted fields of the facts that nobody read, as in a bundle. A rule that asks for one finds nothing, unless what
    it found quotes a line or a file of ``quotes``: absence is no evidence there. What was not judged stands under unread.
    """
    unjudged: dict[str, list[str]] = {}
    elsewhere = queries.ELSEWHERE.get(queries.world(case) or "", frozenset())
    said = Case(_veiled(case.facts, unsaid), case.values, case.catalog) if unsaid else case
    found = [
        finding_of(pages.page(code), hit)
        for code, find in finders().items()
        if elsewhere.isdisjoint((code, pages.area(code)))
        for hit in (_said(code, find, case, said, quotes, unjudged) if unsaid else find(case))
    ]
    causes = [finding for finding in found if finding.code not in symptoms.EXPLAINED_BY]
    listed = ordered(folded(causes))
    diagnosis = Diagnosis(findings=listed, unread=list(case.facts.unreadable))
    diagnosis.unread += [
        f"{field}: not in the bundle, so that {', '.join(codes)} cannot be said"
        for field, codes in sorted(unjudged.items())
    ]
    if not unsaid:
        _plan_first(case, listed)
    for symptom in found:
        if symptom.code not in symptoms.EXPLAINED_BY:
            continue
        cause = _explanation(symptom, listed, case.facts.module.loaded is not None)
        if cause is not None:
            cause.folded.append(symptom)
        else:
            diagnosis.unknown += [symptom.message, *(f"  {line}" for line in symptom.evidence)]
    for finding in listed:
        _agree(finding, finding.folded)
    if diagnosis.unknown:
        diagnosis.unknown += ["looked at:", *(f"  {line}" for line in queries.sources_read(case))]
    return diagnosis


# What a plan refuses by facts alone, whatever apt offers: no other finding's repair changes it.
_REFUSED = frozenset(
    {"driver.outside_apt", "driver.no_common_flavour", "driver.no_common_branch", "host.not_ubuntu", "host.container"}
)


def _plan_first(case: Case, findings: Sequence[Cause]) -> None:
    """Where the roles are to repair, and the plan for this host refuses or changes nothing, say that it is by hand, and why."""
    for finding in findings:
        if finding.level != "error" or not finding.repairs or finding.repairs[0].action not in ("apply", "realign"):
            continue
        why = cannot_work(case, finding.repairs[0])
        if why:
            finding.repairs[0] = queries.manual(f"by hand, because {why}: {finding.repairs[0].words}")


def cannot_work(case: Case, repair: Repair) -> str | None:
    """Why the roles' repair does nothing on this host, by facts alone; None where it may work."""
    # it knows every part, which most diagnoses do not need
    from provision.planning import plan_without_apt

    values, parts = {**case.values, **repair.args.get("values", {})}, repair.args.get("parts", ())
    try:
        plan, asks = plan_without_apt("", case.facts, values, case.catalog)
    except ProvisionError:
        # of the inventory: every command says so
        return None
    works = any(part in asks for part in parts) or any(step.part in parts for step in plan.steps)
    refused = next((one for one in plan.blockers if not works or (one.code in _REFUSED and "driver" in parts)), None)
    if refused is not None:
        return f"{refused.message} ({refused.hint}); after that"
    return None if works else "the inventory asks for nothing that a plan would change here"


class _NotSaidError(Exception):
    """A rule asked for a field that nobody read."""


def _said(
    code: str, find: Find, case: Case, said: Case, quotes: Set[str], unjudged: dict[str, list[str]]
) -> Iterable[Found]:
    """What a rule finds in ``said``, the case whose facts raise where nobody read them; else what it has a quote for."""
    try:
        return list(find(said))
    except _NotSaidError as error:
        own = (
            quotes | set(case.facts.packages)
            if code in _OF_PACKAGES or pages.area(code) in ("dpkg", "holds")
            else quotes
        )
        hits = [hit for hit in find(case) if any(_words(line) & own for line in hit.evidence)]
        if not hits:
            unjudged.setdefault(str(error), []).append(code)
        return hits


# What dpkg's list alone proves, whatever else is not known.
_OF_PACKAGES = frozenset({"driver.mixed_versions", "driver.unheld"})


def _words(line: str) -> set[str]:
    """A line of evidence whole, what stands behind its place, and its words."""
    return {line, *line.split(": "), *(word.strip(",:;()") for word in line.split())}


def _veiled(model: Any, unsaid: Set[str]) -> Any:
    """A copy of facts that raises _NotSaidError where a field is asked for that nobody read."""
    hidden = {name for name in unsaid if "." not in name}
    inner: dict[str, set[str]] = {}
    for name in unsaid - hidden:
        head, _, rest = name.partition(".")
        inner.setdefault(head, set()).add(rest)

    class Veiled(type(model)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in hidden:
                raise _NotSaidError(name)
            return super().__getattribute__(name)

    fields = {name: getattr(model, name) for name in type(model).model_fields}
    fields.update({name: _veiled(fields[name], rest) for name, rest in inner.items() if fields[name] is not None})
    return Veiled.model_construct(**fields)


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
        cards=found.cards,
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


def _agree(top: Cause, folded: Iterable[Cause]) -> None:
    """What is folded is mended by what it is folded under: it offers no other repair, and no other reboot."""
    actions = {repair.action for repair in top.repairs}
    for symptom in folded:
        symptom.repairs = [repair for repair in symptom.repairs if repair.action in actions]
        symptom.reboot = top.reboot
        _agree(top, symptom.folded)


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
