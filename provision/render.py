"""The one place that prints. Data goes to stdout, talk to stderr.

Tables and trees for people, colour where the terminal has it and NO_COLOR is not set, plain lines elsewhere. Text
that came from hosts is printed as it is, less what could steer a terminal.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from provision.documents import (
    AppliedHost,
    ApplyDocument,
    Check,
    Document,
    InitDocument,
    PlanDocument,
    ScanDocument,
    VerifyDocument,
)
from provision.errors import Issue
from provision.plan import HostPlan

# Below this width a table of hosts becomes blocks of lines.
_TABLE_WIDTH = 90
# A pipe has no width; wide enough that hardly anything is folded.
_PIPE_WIDTH = 160
_SHOWN = 8
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_STYLES = {
    "pass": "green", "ok": "green", "done": "green", "converged": "green", "unchanged": "green", "checked": "green",
    "warn": "yellow", "changes": "yellow", "changed": "yellow", "reboot_needed": "yellow", "interrupted": "yellow",
    "fail": "bold red", "failed": "bold red", "unreachable": "bold red", "blocked": "bold red",
    "check_failed": "bold red", "not_started": "yellow", "skip": "dim",
}  # fmt: skip
_WORDS = {"reboot_needed": "reboot needed", "check_failed": "check failed", "not_started": "not started"}


def clean(text: object) -> str:
    """Return text without control characters: a host must not steer the terminal."""
    return _CONTROL.sub("", str(text).replace("\r\n", "\n"))


def size(count: int) -> str:
    """Return bytes as people say them: 310 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count} B"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class Renderer:
    """Prints documents, errors and progress. as_json: one object on stdout and nothing else."""

    def __init__(self, *, as_json: bool = False, verbosity: int = 0) -> None:
        self.as_json, self.verbosity = as_json, verbosity
        self.out = _console(sys.stdout, stderr=False)
        self.err = _console(sys.stderr, stderr=True)

    # ---- what every command has -----------------------------------------------------------------------------

    def document(self, document: Document) -> None:
        """Print what a command returned, and its errors."""
        if self.as_json:
            sys.stdout.write(document.to_json() + "\n")
            sys.stdout.flush()
            return
        self.show(document)
        self.errors(document.errors)

    def show(self, document: Document) -> None:
        """Print a document for people, without its errors."""
        if isinstance(document, ScanDocument):
            self._scan(document)
        elif isinstance(document, PlanDocument):
            self._plan(document)
        elif isinstance(document, VerifyDocument):
            self._verify(document)
        elif isinstance(document, ApplyDocument):
            self._apply(document)
        elif document.schema_id == "provision/compat/1":
            self._compat(document)
        elif isinstance(document, InitDocument):
            self.out.print(Text(f"wrote {document.path}"))
            self.say(f"look at it, then: provision -i {document.path} scan")

    def errors(self, issues: Iterable[Issue]) -> None:
        """Print errors: what, why, and a way out."""
        for issue in issues:
            self.issue(issue)

    def issue(self, issue: Issue, word: str = "error") -> None:
        style = "bold red" if word == "error" else "yellow"
        where = f"{issue.host}: " if issue.host else ""
        self._line([(f"{word}: ", style), (where, "bold"), (issue.message, "")], indent=0)
        for reason in issue.because:
            self._line([("because: ", "dim"), (reason, "")])
        if issue.hint:
            self._line([("hint: ", "cyan"), (issue.hint, "")])

    def say(self, text: str) -> None:
        """Say something to the person at the terminal."""
        if not self.as_json:
            self.err.print(Text(clean(text)), soft_wrap=not self.err.is_terminal)

    def warnings(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.issue(Issue(code="warning", message=text), "warning")

    def progress(self) -> Progress:
        """Return a Talk for this terminal."""
        return Progress(self.err, silent=self.as_json)

    def confirm(self, question: str) -> bool:
        """Ask a yes-or-no question on stderr; anything but yes is no."""
        self.err.print(Text(f"{question} [y/N] "), end="")
        self.err.file.flush()
        try:
            answer = sys.stdin.readline()
        finally:
            if not sys.stdin.isatty():
                self.err.print()
        return answer.strip().lower() in ("y", "yes")

    def _line(self, parts: Sequence[tuple[str, str]], indent: int = 2) -> None:
        text = Text.assemble(*((clean(part), style) for part, style in parts))
        if self.err.is_terminal:
            self.err.print(Padding(text, (0, 0, 0, indent), expand=False))
        else:
            self.err.print(Text(" " * indent) + text, soft_wrap=True)

    # ---- scan ------------------------------------------------------------------------------------------------

    def _scan(self, document: ScanDocument) -> None:
        rows = []
        for name, host in document.hosts.items():
            gpus = ", ".join(host.gpus) or ("no NVIDIA GPU" if host.status == "ok" else "")
            system = host.facts.host.os.version_id if host.facts else ""
            kernel = host.facts.kernels.running if host.facts else ""
            driver = host.driver or ("none" if host.status == "ok" else "")
            note = host.summary if host.status == "ok" else f"{host.status}: {host.summary}"
            rows.append((name, gpus, driver, f"{system} {kernel}".strip(), note, host.status))
        if self.out.width >= _TABLE_WIDTH:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for title in ("host", "GPUs", "driver", "Ubuntu, kernel", "notes"):
                table.add_column(title, overflow="fold")
            for *cells, status in rows:
                style = "" if status == "ok" else "red"
                table.add_row(*(Text(clean(cell), style=style) for cell in cells))
            self._out(table)
            return
        for name, *cells, status in rows:
            self._out(Text(clean(name), style="bold" if status == "ok" else "bold red"))
            for cell in filter(None, cells):
                self._out(Padding(Text(clean(cell)), (0, 0, 0, 2), expand=False))

    # ---- plan ------------------------------------------------------------------------------------------------

    def _plan(self, document: PlanDocument) -> None:
        for names, plan in _same(document.hosts):
            self._out(self._plan_tree(names, plan))
        counts: dict[str, int] = {}
        for host in document.hosts.values():
            counts[host.status] = counts.get(host.status, 0) + 1
        order = (
            ("changes", "to change"), ("converged", "as wanted"), ("blocked", "blocked"),
            ("unreachable", "unreachable"), ("failed", "failed"),
        )  # fmt: skip
        told = [f"{counts[status]} {words}" for status, words in order if counts.get(status)]
        self._out(Text(f"plan: {plural(len(document.hosts), 'host')}: {', '.join(told)}", style="bold"))

    def _plan_tree(self, names: list[str], plan: HostPlan) -> Tree:
        tree = Tree(_head(names, plan.status, ", ".join(plan.gpus)), guide_style="dim")
        if plan.summary:
            tree.add(_t(plan.summary))
        if plan.status == "changes" or self.verbosity:
            for reason in plan.decisions:
                tree.add(
                    _t(
                        f"{reason.what} ",
                        f"{reason.value}",
                        f" because {reason.because}",
                        styles=("", "bold", "dim"),
                    )
                )
        for step in plan.steps:
            branch = tree.add(_t(step.title, f"  because {step.because}", styles=("bold", "dim")))
            for line in self._some(step.details):
                branch.add(_t(line))
        if plan.packages:
            branch = tree.add(_t(_package_line(plan)))
            for line in self._some([_change(change) for change in plan.packages]):
                branch.add(_t(line))
        if plan.reboot.needed:
            because = "; ".join(plan.reboot.because)
            tree.add(_t("reboot", f"  ({plan.reboot.policy})  because {because}", styles=("bold yellow", "")))
        for warning in plan.warnings:
            text = f"warning: {warning.message}" + (f"  hint: {warning.hint}" if warning.hint else "")
            tree.add(_t(text, styles=("yellow",)))
        for blocker in plan.blockers:
            tree.add(_t(f"{plan.status}: {blocker.message}", styles=("red",)))
        return tree

    def _some(self, lines: Sequence[str]) -> list[str]:
        """All lines with -v, else the first few and how many more."""
        if self.verbosity or len(lines) <= _SHOWN + 1:
            return list(lines)
        return [*lines[:_SHOWN], f"... and {len(lines) - _SHOWN} more (-v shows all)"]

    # ---- verify and apply ----------------------------------------------------------------------------------------

    def _verify(self, document: VerifyDocument) -> None:
        for name, host in document.hosts.items():
            self._out(_head([name], host.status, ""))
            for check in host.checks:
                self._check(check)
        counts: dict[str, int] = {}
        for host in document.hosts.values():
            counts[host.status] = counts.get(host.status, 0) + 1
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        self._out(Text(f"verify: {plural(len(document.hosts), 'host')}: {told}", style="bold"))

    def _check(self, check: Check) -> None:
        line = Text.assemble(
            (f"{check.status:<4}  ", _STYLES[check.status]), (check.id, "bold"), "  ", clean(check.message)
        )
        self._out(Padding(line, (0, 0, 0, 2), expand=False))
        wrong = check.status in ("warn", "fail")
        evidence = check.evidence if wrong or self.verbosity else check.evidence[:3]
        for fact in evidence if check.status != "skip" or self.verbosity else ():
            self._out(Padding(Text(clean(fact), style="dim"), (0, 0, 0, 8), expand=False))
        if wrong and check.hint:
            self._out(Padding(_t("hint: ", check.hint, styles=("cyan", "")), (0, 0, 0, 8), expand=False))

    def _apply(self, document: ApplyDocument) -> None:
        for name, host in document.hosts.items():
            self._out(_head([name], host.status, host.summary))
            for line in _applied_lines(host):
                self._out(Padding(Text(clean(line)), (0, 0, 0, 2), expand=False))
        if document.run_dir:
            self.say(f"log, events and result: {document.run_dir}")

    # ---- compat ----------------------------------------------------------------------------------------------------

    def _compat(self, answer: Any) -> None:
        verdict = ("it fits", "bold green") if answer.fits else ("it does not fit", "bold red")
        support = f"  support: {answer.support}" if answer.support else ""
        self._out(Text.assemble(verdict, support))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for title, told in _compat_rows(answer):
            table.add_row(title, clean(told))
        if table.row_count:
            self._out(table)
        for warning in answer.warnings:
            self._out(_t("warning: ", warning.message, styles=("yellow", "")))
            for reason in warning.because:
                self._out(Padding(_t("because: ", reason, styles=("dim", "")), (0, 0, 0, 2), expand=False))
            if warning.hint:
                self._out(
                    Padding(_t("hint: ", warning.hint, styles=("cyan", "")), (0, 0, 0, 2), expand=False)
                )
        for near in answer.nearest:
            self._out(_t("would fit: " if near.fits_all else "one step: ", near.text, styles=("green", "")))

    def _out(self, thing: Any) -> None:
        self.out.print(thing)


def _console(file: Any, *, stderr: bool) -> Console:
    terminal = file.isatty()
    width = None if terminal or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def _t(*parts: object, styles: Sequence[str] = ()) -> Text:
    padded = [*styles, *[""] * len(parts)]
    return Text.assemble(*((clean(part), style) for part, style in zip(parts, padded, strict=False)))


def _head(names: Sequence[str], status: str, rest: str) -> Text:
    label = names[0] if len(names) == 1 else f"{', '.join(names)} ({len(names)} hosts)"
    parts = [(clean(label), "bold"), ("  ", ""), (_WORDS.get(status, status), _STYLES.get(status, ""))]
    if rest:
        parts += [("  ", ""), (clean(rest), "")]
    return Text.assemble(*parts)


def _same(hosts: dict[str, HostPlan]) -> list[tuple[list[str], HostPlan]]:
    """Group hosts whose plans say the same, in the order of the inventory."""
    groups: dict[str, tuple[list[str], HostPlan]] = {}
    for name, plan in hosts.items():
        shown = plan.model_dump(exclude={"host", "spec"})
        for issue in (*shown["blockers"], *shown["warnings"]):
            issue["host"] = None
        groups.setdefault(repr(shown), ([], plan))[0].append(name)
    return list(groups.values())


def _package_line(plan: HostPlan) -> str:
    counts: dict[str, int] = {}
    for change in plan.packages:
        counts[change.action] = counts.get(change.action, 0) + 1
    parts = [f"{count} to {action}" for action, count in counts.items()]
    if plan.download_bytes:
        parts.append(f"{size(plan.download_bytes)} to download")
    if plan.disk_bytes:
        verb = "more" if plan.disk_bytes > 0 else "less"
        parts.append(f"{size(abs(plan.disk_bytes))} {verb} on disk")
    return f"packages: {', '.join(parts)}"


def _change(change: Any) -> str:
    if change.action == "remove":
        return f"remove {change.name} {change.from_version or ''}".rstrip()
    old = f" (from {change.from_version})" if change.from_version else ""
    return f"{change.action} {change.name} {change.version or ''}{old}"


def _applied_lines(host: AppliedHost) -> list[str]:
    lines = [f"changed: {task}" for task in host.changed]
    if host.failed_task:
        lines.append(f"failed: {host.failed_task}")
    if host.checks:
        counts: dict[str, int] = {}
        for check in host.checks:
            counts[check.status] = counts.get(check.status, 0) + 1
        told = ", ".join(
            f"{counts[status]} {status}" for status in ("pass", "warn", "fail", "skip") if status in counts
        )
        lines.append(f"verified: {told}")
    return lines


def _compat_rows(answer: Any) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for gpu in answer.gpus:
        facts = [gpu.name, gpu.architecture, f"compute capability {gpu.cc}" if gpu.cc else None, gpu.support]
        rows.append(("GPU", ", ".join(fact for fact in facts if fact)))
    driver = answer.driver
    if driver.branches:
        told = f"{driver.recommended} recommended; fit: " if driver.recommended else "fit: "
        rows.append(("driver", told + ", ".join(str(branch) for branch in driver.branches)))
        if driver.minimum:
            rows.append(("", f"at least {driver.minimum}"))
        if driver.modules:
            rows.append(("modules", ", ".join(driver.modules)))
    cuda = answer.cuda
    if cuda.chosen or cuda.range:
        parts = [
            cuda.release or cuda.chosen,
            cuda.package,
            f"range {' to '.join(cuda.range)}" if cuda.range else None,
        ]
        rows.append(("CUDA", ", ".join(part for part in parts if part)))
    for title, library in (("cuDNN", answer.cudnn), ("NCCL", answer.nccl)):
        if library:
            rows.append((title, f"{library.version} for CUDA {library.cuda}: {', '.join(library.pins)}"))
    if answer.torch:
        rows.append(("torch", f"{answer.torch.version}+{answer.torch.tag}, {answer.torch.index_url}"))
    if answer.tensorflow:
        rows.append(("TensorFlow", f"{answer.tensorflow.version}, CUDA {answer.tensorflow.cuda}"))
    if answer.python:
        rows.append(("Python", ", ".join(answer.python)))
    return rows


class Progress:
    """A live list of hosts on a terminal, a line an event elsewhere. Implements commands.fleet.Talk."""

    _ROWS = 20

    def __init__(self, console: Console, *, silent: bool = False) -> None:
        self._console, self._silent = console, silent
        self._live: Live | None = None
        self._title = ""
        self._hosts: dict[str, tuple[str, str, float]] = {}
        self._started = 0.0

    def begin(self, title: str, hosts: Sequence[str]) -> None:
        self._title, self._started = title, time.monotonic()
        self._hosts = dict.fromkeys(hosts, ("waiting", "waiting", self._started))
        if self._silent:
            return
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._picture, refresh_per_second=8, transient=True
            )
            self._live.start()
        else:
            self._plain(f"{title}: {plural(len(hosts), 'host')}")

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        self._hosts[name] = (state, clean(text), time.monotonic())
        # Without a terminal: only what ended, not every task that begins.
        if not self._silent and self._live is None and state in ("changed", "failed"):
            self._plain(f"{name}: {state}: {clean(text)}")

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _plain(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _picture(self) -> Group:
        finished = sum(state in ("ok", "failed", "unread") for state, _, _ in self._hosts.values())
        now = time.monotonic()
        head = f"{self._title}  {finished}/{len(self._hosts)}  {now - self._started:.0f} s"
        # The text gives way to the name, not the name to the text.
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, max_width=max(10, self._console.width // 3), overflow="ellipsis")
        table.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        # Those that run first: with a long fleet the quiet ones are not drawn.
        order = {"failed": 0, "unread": 0, "running": 1, "changed": 1, "waiting": 2, "ok": 3}
        rows = sorted(self._hosts.items(), key=lambda item: order.get(item[1][0], 1))
        room = max(3, min(self._ROWS, self._console.height - 3))
        for name, (state, text, since) in rows[:room]:
            style = {
                "failed": "red",
                "unread": "red",
                "ok": "green",
                "changed": "yellow",
                "waiting": "dim",
            }.get(state, "")
            told = text if state in ("ok", "waiting") else f"{text}  {now - since:.0f} s"
            table.add_row(Text(name, style="bold"), Text(told, style=style))
        rest = len(rows) - room
        more = Text(f"... and {rest} more", style="dim") if rest > 0 else Text("")
        return Group(Text(head, style="bold"), table, more)
