"""verify and apply: what was proven, and what was done. Hosts with the same result are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from provision.documents import AppliedHost, ApplyDocument, VerifyDocument
from provision.lib.findings import Check
from provision.render.base import Text, columns, headline, indented, text
from provision.render.text import STYLES, format_counts, format_hosts, format_task, grouped, plural

if TYPE_CHECKING:
    from provision.rescue.model import RescuedHost

_VERIFIED = (
    ("pass", "passed"),
    ("warn", "passed with warnings"),
    ("fail", "failed"),
    ("skip", "with nothing to judge"),
    ("unreachable", "unreachable"),
    ("failed", "could not be read"),
)
_APPLIED = (
    ("done", "done and proven"),
    ("done_in_part", "done, not all of it proven"),
    ("checked", "checked"),
    ("unchanged", "as requested"),
    ("reboot_needed", "waiting for a reboot"),
    ("restart_needed", "waiting for a restart"),
    ("check_failed", "with failed checks"),
    ("failed", "failed"),
    ("blocked", "blocked"),
    ("busy", "in use"),
    ("skipped", "not drained"),
    ("unreachable", "unreachable"),
    ("interrupted", "interrupted"),
    ("not_started", "not started"),
    ("left_out", "left out"),
)
_BROKE_OFF = ("failed", "unreachable")


def verified(document: VerifyDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a verification."""
    for names, host in grouped(document.hosts.items(), lambda host: (host.status, _judged(host.checks, verbosity))):
        yield headline(names, host.status, counted(host.checks), everything=bool(verbosity))
        # Evidence of what is well differs from host to host: it is shown where it is one host's.
        yield from _checks(host.checks if verbosity else _noteworthy(host.checks), len(names) == 1 and verbosity > 0)
    counts = format_counts((host.status for host in document.hosts.values()), _VERIFIED)
    yield Text(f"verify: {plural(len(document.hosts), 'host')}: {counts}", style="bold")
    if not verbosity and any(host.checks for host in document.hosts.values()):
        yield Text("-v lists every check with its evidence", style="dim")


def _judged(checks: Sequence[Check], verbosity: int) -> list[object]:
    """What two hosts must have in common to be shown as one: of checks that pass only how many, unless all are listed."""
    found: list[object] = [counted(checks)]
    for check in checks if verbosity else _noteworthy(checks):
        wrong = check.status in ("warn", "fail")
        found.append(
            (check.code, check.status, check.message, check.evidence if wrong else [], check.hint if wrong else None)
        )
    return found


def _noteworthy(checks: Sequence[Check]) -> list[Check]:
    """The checks that warn or fail, and those that could not be run."""
    return alike_as_one(check for check in checks if check.status in ("warn", "fail") or check.not_run)


def counted(checks: Sequence[Check]) -> str:
    """Return ``12 checks pass, 1 skip``."""
    statuses = [check.status for check in checks]
    parts = [f"{statuses.count(s)} {s}" for s in ("pass", "warn", "fail", "skip") if s in statuses]
    return f"checks: {', '.join(parts)}" if parts else ""


def alike_as_one(checks: Iterable[Check]) -> list[Check]:
    """Checks that skip or fail for one and the same reason as one of all their names."""
    found: dict[object, Check] = {}
    for number, check in enumerate(checks):
        same = check.level in ("error", "skip") and (check.level, check.message, check.hint)
        first = found.get(same) if same else None
        if first is None:
            found[same or number] = check
        else:
            found[same] = first.model_copy(update={"code": f"{first.code}, {check.code}"})
    return list(found.values())


def _checks(checks: Sequence[Check], evidence: bool) -> Iterable[RenderableType]:
    for check in checks:
        line = Text.assemble((f"{check.status:<4}  ", STYLES[check.status]), (check.code, "bold"), "  ", check.message)
        yield indented(line, 2)
        wrong = check.status in ("warn", "fail")
        for rest in check.not_run if check.status != "skip" else ():
            yield indented(text("not run: ", rest, styles=("yellow", "")), 8)
        for fact in check.evidence if wrong or (evidence and check.status != "skip") else ():
            yield indented(Text(fact, style="dim"), 8)
        if wrong and check.hint:
            yield indented(text("hint: ", check.hint, styles=("cyan", "")), 8)


def applied(document: ApplyDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a run: what was done on each host, and what a fresh read proved."""
    for names, host in grouped(document.hosts.items(), lambda host: _done(host, verbosity)):
        yield headline(names, host.status, host.summary, everything=bool(verbosity))
        yield from _host(host, verbosity)
    for names, why in grouped(document.left_out.items(), lambda why: why):
        yield headline(names, "left_out", why)
    yield from _waves(document)
    statuses = [*(in_part(host) for host in document.hosts.values()), *("left_out" for _ in document.left_out)]
    counts = format_counts(statuses, _APPLIED)
    seconds = f" in {document.seconds:.0f} s" if document.seconds else ""
    yield Text(f"apply: {plural(len(statuses), 'host')}{seconds}: {counts}", style="bold")
    spared = [name for name, host in document.hosts.items() if host.untouched and host.status in _BROKE_OFF]
    if spared:
        yield Text(f"nothing was changed this time on {format_hosts(spared)}")
    yield from proven({name: host.checks for name, host in document.hosts.items()})


def in_part(host: AppliedHost | RescuedHost) -> str:
    """The status of a host; where something could be proven and was not, what counts do not call proven."""
    unproven = host.status in ("done", "rescued") and any(check.not_run for check in host.checks)
    return f"{host.status}_in_part" if unproven else host.status


def proven(checks: Mapping[str, Sequence[Check]]) -> Iterable[RenderableType]:
    """Return ``proven: 46 checks; not run: gpu.compute, gpu.nccl on gpu02 (card 0 is not loaded: …)`` of hosts that were read."""
    read = {host: found for host, found in checks.items() if found}
    if not read:
        return
    passed = sum(check.status == "pass" for found in read.values() for check in found)
    # For each reason, the hosts of each check.
    reasons: dict[str, dict[str, list[str]]] = {}
    for host, found in read.items():
        for check in found:
            if check.not_run:
                codes = reasons.setdefault("; ".join(map(_shortly, check.not_run)), {})
                codes.setdefault(check.code, []).append(host)
    rest = []
    for reason, of_reason in reasons.items():
        where = [
            ", ".join(codes) + (f" on {format_hosts(names)}" if names != list(read) else "")
            for codes, names in grouped(of_reason.items(), lambda names: names)
        ]
        rest.append(f"{'; '.join(where)} ({reason})")
    yield text(
        f"proven: {plural(passed, 'check')}", f"; not run: {'; '.join(rest)}" if rest else "", styles=("bold", "")
    )


def _shortly(reason: str) -> str:
    """A reason without what it quotes: ``excused (gpu_verify_excuse): the driver does not answer``; all of it is in -v."""
    return ": ".join(reason.split(": ")[:2])


_WAVES = {"canary": "canary", "batch": "batch", "waited": "was in use", "all": "all"}


def _waves(document: ApplyDocument) -> Iterable[RenderableType]:
    """Return a line a wave, where there was more than one."""
    if len(document.waves) < 2:
        return
    # verify shows its results without it
    from provision.rollout.state import FAILURES

    rows: list[tuple[str | Text, str | Text]] = []
    for number, wave in enumerate(document.waves, start=1):
        took = f" in {wave.seconds:.0f} s" if wave.status == "done" and wave.seconds is not None else ""
        ended = {"done": "done", "stopped": "interrupted", "not_begun": "not begun"}[wave.status]
        failed = sum(
            document.hosts[name].status in FAILURES and document.hosts[name].wave == number for name in wave.hosts
        )
        took += f", {failed} failed" if failed else ""
        style = "bold red" if failed else "green" if wave.status == "done" else "yellow"
        label = f"wave {number} of {len(document.waves)}, {_WAVES[wave.kind]}"
        rows.append((label, text(f"{ended}{took}", f": {format_hosts(wave.hosts)}", styles=(style, ""))))
    yield columns(rows, 0)


def _proven(passed: Sequence[Check]) -> Text:
    shown = Text()
    for number, check in enumerate(passed):
        shown.append("; " if number else "").append(check.code, style="dim").append(f" {check.message}")
    return shown


def _done(host: AppliedHost, verbosity: int) -> object:
    hooks, changed = (host.drain, host.resume), _tells_changes(host, verbosity) and host.changed
    checks = [check for check in host.checks if verbosity or check.status in ("warn", "fail")]
    return (host.status, host.summary, changed, host.failed_task, hooks, _judged(checks, 1))


def _tells_changes(host: AppliedHost, verbosity: int) -> bool:
    """What was done follows from the plan; where not all of it was, or it was only tried, it is said."""
    return verbosity > 0 or host.status not in ("done", "unchanged", "reboot_needed", "restart_needed")


def _host(host: AppliedHost, verbosity: int) -> Iterable[RenderableType]:
    rows: list[tuple[str | Text, str | Text]] = []
    if host.changed and _tells_changes(host, verbosity):
        word = "would do" if host.status == "checked" else "did"
        rows.append((word, "; ".join(format_task(task) for task in dict.fromkeys(host.changed))))
    if host.failed_task:
        rows.append(("failed in", format_task(host.failed_task)))
    if host.drain:
        drained = {"ok": "drained", "failed": "not drained"}[host.drain]
        rows.append(("hooks", drained + {"ok": ", resumed", "failed": ", NOT RESUMED", None: ""}[host.resume]))
    passed = [check for check in host.checks if check.status == "pass"]
    if passed and verbosity:
        rows.append(("proven", _proven(passed)))
    skipped = [check.code for check in host.checks if check.status == "skip"]
    if skipped and verbosity:
        rows.append(("skipped", ", ".join(skipped)))
    if rows:
        yield columns(rows, style="dim")
    yield from _checks(alike_as_one(check for check in host.checks if check.status in ("warn", "fail")), False)
