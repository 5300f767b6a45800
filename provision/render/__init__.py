"""The one place that prints. Data goes to stdout, talk to stderr.

Tables and paragraphs for people, colour where the terminal has it and NO_COLOR is not set, plain lines elsewhere. Text
that came from hosts is cleaned (provision/lib/clean.py): base.Text does it, and the views use no other. One module a view: each
returns what is to be printed, Renderer prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from provision.documents import (
    ApplyDocument,
    Document,
    EnvsDocument,
    InitDocument,
    PlanDocument,
    ScanDocument,
    VerifyDocument,
)
from provision.errors import Issue
from provision.render.base import Text, console, indented, put, whole
from provision.render.progress import Progress
from provision.render.text import clean, format_hosts, format_task, plural, same_issues, size

COMPAT = "provision/compat/1"
__all__ = ["Progress", "Renderer", "clean", "plural", "size"]


class Renderer:
    """Prints documents, errors and progress. as_json: one object on stdout and nothing else."""

    def __init__(self, *, as_json: bool = False, verbosity: int = 0) -> None:
        self.as_json, self.verbosity = as_json, verbosity
        self.out = console(sys.stdout, stderr=False)
        self.err = console(sys.stderr, stderr=True)

    def document(self, document: Document) -> None:
        """Print what a command returned, and its errors."""
        if self.as_json:
            sys.stdout.write(document.to_json() + "\n")
            sys.stdout.flush()
            return
        self.show(document)
        self.errors(_untold(document))

    def show(self, document: Document) -> None:
        """Print a document for people, without its errors."""
        for thing in _view(document, self.out.width, self.verbosity):
            put(self.out, thing)
        if document.schema_id == "provision/offline/1":
            # A script goes into a file or a shell: as it is, whatever the terminal.
            for host in document.hosts.values():
                sys.stdout.write("" if host.path else host.script)
        if isinstance(document, InitDocument):
            source = _source(document.path) if document.next_source is None else document.next_source
            self.say(f"look into it, then: provision{source} {'plan' if document.groups else 'scan'}")
        # compat's warnings stand beside its verdict.
        for warning in getattr(document, "warnings", ()) if document.schema_id != COMPAT else ():
            self.issue(warning, "warning")
        run_dir = getattr(document, "run_dir", None)
        if run_dir:
            self.say(f"log, events and result: {run_dir}")

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines of data that belong to what was shown before, for people."""
        if not self.as_json:
            for line in lines:
                put(self.out, Text(line))

    def markdown(self, document: PlanDocument) -> None:
        """Print a plan as Markdown."""
        from provision.render import plan_markdown

        sys.stdout.write("\n".join(plan_markdown.view(document)) + "\n")

    def contents(self, document: PlanDocument) -> None:
        """Print what a plan writes into files."""
        from provision.render import plan_files

        for thing in plan_files.view(document) if not self.as_json else ():
            put(self.out, thing)

    def errors(self, issues: Iterable[Issue]) -> None:
        """Print errors: what, why, and a hint; what several hosts have in common is printed once."""
        for hosts, issue in same_issues(issues):
            self.issue(issue, hosts=hosts)

    def issue(self, issue: Issue, word: str = "error", hosts: Sequence[str] = ()) -> None:
        style = "bold red" if word == "error" else "yellow"
        named = list(hosts) or ([issue.host] if issue.host else [])
        where = f"{format_hosts(named, everything=bool(self.verbosity))}: " if named else ""
        self._line([(f"{word}: ", style), (where, "bold"), (format_task(issue.message), "")], indent=0)
        for reason in issue.because:
            self._line([("because: ", "dim"), (reason, "")])
        if issue.hint:
            self._line([("hint: ", "cyan"), (issue.hint, "")])

    def say(self, text: str) -> None:
        """Say something to the person at the terminal, on one line: what ends in a command or a path is copied."""
        if not self.as_json:
            put(self.err, whole(text))

    def warnings(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.issue(Issue(code="warning", message=text), "warning")

    def progress(self) -> Progress:
        """Return a Talk for this terminal."""
        return Progress(self.err, silent=self.as_json)

    def confirm(self, question: str) -> bool:
        """Ask a yes-or-no question on stderr until the answer is one; nothing is no."""
        while True:
            self.err.print(Text(f"{question} [y/N] "), end="")
            self.err.file.flush()
            try:
                answer = sys.stdin.readline()
            finally:
                if not sys.stdin.isatty():
                    self.err.print()
            word = answer.strip().lower()
            if word in ("y", "yes", "n", "no", ""):
                return word in ("y", "yes")
            self.err.print(Text("please answer y or n"))

    def _line(self, parts: Sequence[tuple[str, str]], indent: int = 2) -> None:
        line = Text.assemble(*parts)
        if self.err.is_terminal:
            put(self.err, indented(line, indent))
        else:
            self.err.print(Text(" " * indent) + line, soft_wrap=True)


def _view(document: Document, width: int, verbosity: int) -> Iterable[RenderableType]:
    # Imported when needed: a command shows one or two of them.
    if isinstance(document, ScanDocument):
        from provision.render import scan

        return scan.view(document, width, verbosity)
    if isinstance(document, EnvsDocument):
        from provision.render import envs

        return envs.view(document, width, verbosity)
    if isinstance(document, PlanDocument):
        from provision.render import plan

        return plan.view(document, width, verbosity)
    if isinstance(document, VerifyDocument):
        from provision.render import results

        return results.verified(document, verbosity)
    if isinstance(document, ApplyDocument):
        from provision.render import results

        return results.applied(document, verbosity)
    if isinstance(document, InitDocument):
        from provision.render import init

        return init.view(document)
    if document.schema_id == "provision/history/1":
        from provision.render import history

        return history.view(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/dossier/1":
        from provision.render import dossier

        return dossier.view(document)  # type: ignore[arg-type]
    if document.schema_id == "provision/report/1":
        from provision.render import report

        return report.view(document)  # type: ignore[arg-type]
    if document.schema_id == "provision/drift/1":
        from provision.render import drift

        return drift.view(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/locked/1":
        from provision.render import lock

        return lock.view(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/offline/1":
        from provision.render import rescue

        return rescue.offline(document)  # type: ignore[arg-type]
    if document.schema_id == "provision/rescue/1":
        from provision.render import rescue

        return rescue.view(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/diagnose/1":
        from provision.render import diagnose

        return diagnose.diagnosed(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/explain/1":
        from provision.render import diagnose

        return diagnose.explained(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/mirror/1":
        from provision.render import mirror

        return mirror.view(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/catalog/1":
        from provision.render import catalog

        return catalog.view(document, verbosity)  # type: ignore[arg-type]
    if document.schema_id == "provision/catalog-update/1":
        from provision.render import catalog

        return catalog.updated(document)  # type: ignore[arg-type]
    if document.schema_id == COMPAT:
        from provision.render import compat

        return compat.view(document)
    return []


def _untold(document: Document) -> list[Issue]:
    """Errors that the view has not shown in full: failed checks stand there with evidence and hint, tasks by name."""
    if document.schema_id == COMPAT:
        return []
    if isinstance(document, ApplyDocument):
        document = document.model_copy(update={"errors": [_without_task(document, e) for e in document.errors]})
    if document.schema_id == "provision/diagnose/1":
        # Findings are shown in the view in full; what is left are hosts that were not read.
        read = {name for name, host in document.hosts.items() if host.status not in ("unreachable", "failed")}
        return [issue for issue in document.errors if issue.host not in read]
    failed = [issue for issue in document.errors if issue.code.startswith("check.")]
    if not failed or not isinstance(document, (VerifyDocument, ApplyDocument)):
        return document.errors
    rest = [issue for issue in document.errors if issue not in failed]
    by_host: dict[str, list[str]] = {}
    for issue in failed:
        by_host.setdefault(issue.host or "", []).append(issue.code.removeprefix("check."))
    return [
        *rest,
        *(
            Issue(
                code="verify.failed",
                host=host,
                message=f"{plural(len(ids), 'check')} failed: {', '.join(ids)}",
                hint="docs/checks.md says what each check means and what to do",
            )
            for host, ids in by_host.items()
        ),
    ]


def _without_task(document: ApplyDocument, issue: Issue) -> Issue:
    host = document.hosts.get(issue.host or "")
    task = f"{host.failed_task}: " if host and host.failed_task else ""
    return issue.model_copy(update={"message": issue.message.removeprefix(task)})


def _source(path: str) -> str:
    """What -i the next command needs: nothing for the file that is looked for anyway."""
    return "" if path == "inventory/hosts.yml" else f" -i {path}"
