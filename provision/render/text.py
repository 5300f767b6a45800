"""Small pieces of text that every view uses: clean words, sizes, lists of hosts, grouping. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from provision.errors import Issue
from provision.lib.clean import clean as clean
from provision.lib.text import plural as plural
from provision.lib.text import size as size

T = TypeVar("T")

# Ansible puts the role before the name of a task; people see what is done, not which file says so.
_ROLE = re.compile(r"\b(?:gpu\.provision\.)?[a-z0-9_]+ : (?=[A-Z])")
_NUMBERED = re.compile(r"^(?P<stem>.*?)(?P<number>[0-9]+)(?P<tail>[^0-9]*)$")
_ADDRESS = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.])")
_SHOWN_HOSTS = 6
STYLES = {
    "rescued": "green",
    "undone": "green",
    "well": "green",
    "planned": "yellow",
    "left": "bold red",
    "pass": "green",
    "ok": "green",
    "done": "green",
    "converged": "green",
    "unchanged": "green",
    "checked": "green",
    "clean": "green",
    "drifted": "yellow",
    "warn": "yellow",
    "changes": "yellow",
    "changed": "yellow",
    "reboot_needed": "yellow",
    "restart_needed": "yellow",
    "interrupted": "yellow",
    "busy": "yellow",
    "skipped": "yellow",
    "fail": "bold red",
    "failed": "bold red",
    "unreachable": "bold red",
    "blocked": "bold red",
    "check_failed": "bold red",
    "not_started": "yellow",
    "left_out": "dim",
    "skip": "dim",
    "warned": "yellow",
    "broken": "bold red",
    "unexplained": "bold red",
}
STATUS_TEXTS = {
    "planned": "to rescue",
    "left": "still broken",
    "reboot_needed": "reboot needed",
    "restart_needed": "restart needed",
    "check_failed": "check failed",
    "not_started": "not started",
    "left_out": "left out",
    "busy": "in use",
    "skipped": "not drained",
    "clean": "as it should be",
    "converged": "as requested",
    "unchanged": "as requested, nothing done",
    "changes": "to change",
}


def format_task(text: str) -> str:
    """Return the name of a task, or a message that begins with one, without Ansible's ``role : ``."""
    return _ROLE.sub("", text)


def listed(items: Sequence[str], shown: int) -> str:
    """Return items with commas; after ``shown`` of them, how many more."""
    if len(items) <= shown + 1:
        return ", ".join(items)
    return f"{', '.join(items[:shown])} and {len(items) - shown} more"


def format_hosts(names: Sequence[str], *, everything: bool = False) -> str:
    """Return host names as one label: ``gpu01``; ``gpu01, gpu03 (2 hosts)``; ``gpu01 to gpu40 (40 hosts)``."""
    if len(names) == 1:
        return names[0]
    parts = list(names) if everything else runs(names)
    return f"{', '.join(parts) if everything else listed(parts, _SHOWN_HOSTS)} ({len(names)} hosts)"


def runs(names: Sequence[str], to: str = " to ") -> list[str]:
    """Join three and more neighbours that count up by one: gpu01, gpu02, gpu03 -> gpu01 to gpu03."""
    found: list[list[str]] = []
    for name in names:
        if found and _follows(found[-1][-1], name):
            found[-1].append(name)
        else:
            found.append([name])
    shown: list[str] = []
    for run in found:
        shown += [f"{run[0]}{to}{run[-1]}"] if len(run) > 2 else run
    return shown


def _follows(before: str, after: str) -> bool:
    a, b = _NUMBERED.match(before), _NUMBERED.match(after)
    return (
        a is not None
        and b is not None
        and a["stem"] == b["stem"]
        and a["tail"] == b["tail"]
        and len(b["number"]) >= len(a["number"])
        and int(b["number"]) == int(a["number"]) + 1
    )


def grouped(pairs: Iterable[tuple[str, T]], key: object) -> list[tuple[list[str], T]]:
    """Group (host, thing) by key(thing), in the order in which they come; the first thing stands for its group."""
    groups: dict[str, tuple[list[str], T]] = {}
    for name, thing in pairs:
        groups.setdefault(repr(key(thing)), ([], thing))[0].append(name)  # type: ignore[operator]
    return list(groups.values())


def format_counts(statuses: Iterable[str], texts: Sequence[tuple[str, str]]) -> str:
    """Return how many hosts are in which state: ``1 to change, 2 as wanted``; texts gives order and wording."""
    seen = list(statuses)
    return ", ".join(f"{seen.count(status)} {shown}" for status, shown in texts if status in seen)


def same_issues(issues: Iterable[Issue]) -> list[tuple[list[str], Issue]]:
    """Group issues that say the same of several hosts; where reasons differ, each is shown with its host.

    A host's own name or address inside a message does not make it another message.
    """
    groups: dict[tuple[str, str, str], list[Issue]] = {}
    for issue in issues:
        message, hint = unnamed(issue.message, issue.host), unnamed(issue.hint or "", issue.host)
        groups.setdefault((issue.code, message, hint), []).append(issue)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[Issue]) -> tuple[list[str], Issue]:
    first = group[0]
    hosts = list(dict.fromkeys(issue.host for issue in group if issue.host))
    if len(hosts) < 2:
        return hosts, first
    reasons = {tuple(unnamed(line, issue.host) for line in issue.because) for issue in group}
    if len(reasons) == 1:
        because = list(next(iter(reasons)))
    else:
        lines = list(dict.fromkeys(f"{issue.host}: {issue.because[0]}" for issue in group if issue.because))
        because = lines[:3] + ([f"and {len(lines) - 3} more"] if len(lines) > 3 else [])
    return hosts, first.model_copy(
        update={
            "message": unnamed(first.message, first.host),
            "because": because,
            "hint": unnamed(first.hint, first.host) if first.hint else None,
        }
    )


def unnamed(text: str, host: str | None) -> str:
    """Return text without what is one host's own: its name and addresses become HOST."""
    named = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text) if host else text
    return _ADDRESS.sub("HOST", named)
