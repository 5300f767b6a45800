"""diagnose: the cause of what is broken on each host, its evidence and its smallest repair. Reads only."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from provision.catalog import Trap, load_catalog
from provision.commands.scan import describe_driver
from provision.diagnose import diagnose, pages, paste, queries
from provision.diagnose.finding import Cause, Diagnosis
from provision.diagnose.pages import Page
from provision.diagnose.rule import Case
from provision.diagnose.text import matches, traps
from provision.documents import Document
from provision.errors import Exit, Issue, ProvisionError, UsageError
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.inventory import Host, variables
from provision.lib import files, scratch
from provision.planning import describe_gpus, probe_args, read_facts
from provision.runs.fleet import Fleet, Silent, Talk, ask_all

if TYPE_CHECKING:
    from provision.bundles import Bundle

# before the ids of the catalog's known errors
_TRAP = "trap."


class DiagnosedHost(BaseModel):
    """broken: an error was found. unexplained: something does not work, and nothing that was found says why."""

    status: Literal["well", "warned", "broken", "unexplained", "unreachable", "failed"]
    gpus: list[str] = Field(default_factory=list)
    driver: str | None = None
    # what has to be mended first stands first
    findings: list[Cause] = Field(default_factory=list)
    # symptoms that nothing explains, and what was looked at
    unknown: list[str] = Field(default_factory=list)
    # what could not be read: silence about it proves nothing
    unread: list[str] = Field(default_factory=list)
    # shown where nothing was found
    looked_at: list[str] = Field(default_factory=list)
    summary: str = ""


class DiagnoseDocument(Document):
    schema_id: str = Field(default="provision/diagnose/1", alias="schema")
    hosts: dict[str, DiagnosedHost] = Field(default_factory=dict)
    # the command that mends every broken host, as it has to be typed
    rescue: str | None = None
    # of --export: the file that was written
    exported: str | None = None


class ExplainedCode(BaseModel):
    """The page of one code; of an error text: why it was found."""

    code: str
    level: Literal["error", "warning", "note"]
    title: str
    explain: str
    breaks: str = ""
    repair: str = ""
    prevent: str = ""
    reboot: bool = False
    texts: list[str] = Field(default_factory=list)
    sources: list[str] = Field(default_factory=list)
    # of the text, where one was given: the line that it was known by
    line: str | None = None


class ExplainDocument(Document):
    """Of --explain: one page. Of --text: the pages that know the text, the surest first; none: exit_code 3."""

    schema_id: str = Field(default="provision/explain/1", alias="schema")
    pages: list[ExplainedCode] = Field(default_factory=list)


def run(fleet: Fleet, talk: Talk | None = None, options: Sequence[str] = ()) -> DiagnoseDocument:
    """Read every host once and say what is wrong with it. Exit code 3 where something does not work.

    options: those of this call that rescue needs too.
    """
    answers = ask_all(
        fleet,
        fleet.hosts,
        "looking for causes",
        lambda host, session: read_facts(session.call, fleet.values[host.name], Diagnosed),
        talk or Silent(),
    )
    document = DiagnoseDocument()
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = DiagnosedHost(status=answer.host_status, summary=answer.issue.message)
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
            continue
        host = judged(answer, fleet.values[name])
        document.hosts[name] = host
        document.errors += issues(name, host)
        if host.status in ("broken", "unexplained"):
            codes.append(Exit.CHECK_FAILED)
    broken = [name for name, host in document.hosts.items() if host.status == "broken"]
    if broken:
        document.rescue = shlex.join(["provision", *options, "rescue", *broken])
    return document.conclude(codes)


def judged(facts: Facts, values: dict[str, object]) -> DiagnosedHost:
    """Return what is said of one host. facts: of the host program ``probe.diagnostics``."""
    catalog = load_catalog()
    found = diagnose(facts, values, catalog)
    return DiagnosedHost(
        status=_status(found),
        gpus=describe_gpus(facts, catalog),
        driver=describe_driver(facts),
        findings=found.findings,
        unknown=found.unknown,
        unread=found.unread,
        looked_at=[] if found.errors or found.unknown else queries.sources_read(Case(facts, values, catalog)),
    )


_EXPORT_HINT = "name a file that can be written: --export case.tar"


def export(fleet: Fleet, path: Path, talk: Talk | None = None) -> DiagnoseDocument:
    """Write one host to a file for others, without the names of anybody (see provision.bundles.case), and return its diagnosis.

    The case is replayed before it is written. Raises UsageError for several hosts, for a file that cannot be written, and where
    the case leads to another diagnosis than the host.
    """
    from provision import bundles
    from provision.bundles import case

    if len(fleet.hosts) != 1:
        raise UsageError("usage.arguments", "--export is for one host", hint="name it: -l HOST")
    files.check_writable(path, _EXPORT_HINT)
    (host,), values = fleet.hosts, fleet.values[fleet.hosts[0].name]
    (answer,) = ask_all(
        fleet,
        fleet.hosts,
        "reading the host",
        lambda host, session: session.call("probe.export", probe_args(values), timeout=180),
        talk or Silent(),
    ).values()
    if isinstance(answer, ProvisionError):
        raise answer
    here = judged(Diagnosed.of_host(answer["facts"]), values)
    users = [host.connection.user] if host.connection.user else []
    names = {"hosts": [host.name], "users": users, "addresses": [host.connection.address]}
    known = variables.known()
    given = {name: value for name, value in values.items() if name in known and value != known[name].default}
    data = case.make(answer, given, names)
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        trial = Path(folder) / "case.tar"
        trial.write_bytes(data)
        bundle = bundles.read(trial)
    again = judged(bundle.facts, _values_of(bundle))
    if _signature(here.findings) != _signature(again.findings) or bool(here.unknown) != bool(again.unknown):
        raise UsageError(
            "diagnose.export_differs",
            "the exported case would lead to another diagnosis than the host",
            host=host.name,
            because=[f"the host: {_signature(here.findings)}", f"the case: {_signature(again.findings)}"],
            hint="report it with both lines: a name of the host is a word that diagnosis goes by",
        )
    files.write(path, data, _EXPORT_HINT, 0o600)
    document = DiagnoseDocument(hosts={host.name: here}, errors=issues(host.name, here), exported=str(path))
    return document.conclude([Exit.CHECK_FAILED] if here.status in ("broken", "unexplained") else [])


def _signature(findings: Sequence[Cause]) -> list[object]:
    """What makes two diagnoses the same: codes, levels, repairs and what is folded, in order."""
    return [(one.code, one.level, [r.action for r in one.repairs], _signature(one.folded)) for one in findings]


def _values_of(bundle: Bundle) -> dict[str, object]:
    """Effective role variables of an exported case, checked as those of an inventory."""
    return variables.effective(Host(name="case", vars=dict(bundle.values)))


def of_bundle(path: Path, values: dict[str, object]) -> DiagnoseDocument:
    """Return what a bundle says of its host (see provision.bundles). Raises UsageError for what is none."""
    from provision import bundles
    from provision.diagnose.judge import judge

    bundle, catalog = bundles.read(path), load_catalog()
    values = {**values, **_values_of(bundle)} if bundle.values else values
    found = judge(Case(bundle.facts, values, catalog), bundle.unsaid, bundle.quotes)
    name = bundle.facts.host.hostname or path.name
    host = DiagnosedHost(
        status=_status(found),
        gpus=describe_gpus(bundle.facts, catalog),
        driver=describe_driver(bundle.facts),
        findings=found.findings,
        unknown=found.unknown,
        unread=found.unread,
        summary=f"read from {bundle.kind} {path.name}",
    )
    document = DiagnoseDocument(hosts={name: host}, errors=issues(name, host))
    return document.conclude([Exit.CHECK_FAILED] if host.status in ("broken", "unexplained") else [])


def _status(found: Diagnosis) -> Literal["well", "warned", "broken", "unexplained"]:
    if found.errors:
        return "broken"
    if found.unknown:
        return "unexplained"
    return "warned" if any(finding.level == "warning" for finding in found.findings) else "well"


def issues(name: str, host: DiagnosedHost) -> list[Issue]:
    """Return the errors of a host as a document tells them."""
    rows = [
        Issue(
            code=finding.code,
            message=finding.message,
            host=name,
            because=finding.evidence,
            hint="; then ".join(repair.words for repair in finding.repairs) or None,
        )
        for finding in host.findings
        if finding.level == "error"
    ]
    if host.unknown:
        rows.append(
            Issue(
                code="diagnose.unexplained",
                message=host.unknown[0],
                host=name,
                because=host.unknown[1:],
                hint="nothing that was read explains it: nvidia-bug-report.sh collects what NVIDIA would ask for",
            )
        )
    return rows


def explain(code: str) -> ExplainDocument:
    """Return the page of a code; UsageError (exit 64) with the nearest codes where there is none."""
    if code.startswith(_TRAP):
        found = [trap for trap in load_catalog().traps if trap.id == code.removeprefix(_TRAP)]
        if found:
            return ExplainDocument(pages=[_trap(found[0])])
    return ExplainDocument(pages=[_explained(pages.page_named(code))])


def by_text(text: str) -> ExplainDocument:
    """Return the pages that know an error or a log, the surest first; exit code 3 where none does."""
    document = ExplainDocument(pages=[_explained(match.page, match.line) for match in matches(text)])
    document.pages += [_trap(trap, line) for trap, line in traps(text, load_catalog())]
    if not document.pages:
        words, hint = paste.unknown(text)
        document.errors.append(
            Issue(
                code="diagnose.text_unknown",
                message="no finding knows this text" if text.strip() else "the text is empty",
                because=[f"{len(pages.codes())} findings were tried, line by line and as a whole", *words],
                hint=hint,
            )
        )
    return document.conclude([] if document.pages else [Exit.CHECK_FAILED])


def _trap(trap: Trap, line: str | None = None) -> ExplainedCode:
    """The page of an error that the catalog knows and no rule can see on a host."""
    parts = [trap.cause, *([f"Look: {trap.check}"] if trap.check else []), *([trap.note] if trap.note else [])]
    return ExplainedCode(
        code=_TRAP + trap.id,
        level="note",
        title=trap.match,
        explain="\n\n".join(parts),
        breaks=trap.side_effect or "",
        repair=trap.fix,
        texts=[trap.match, *trap.also],
        sources=[f"{trap.source} ({trap.as_of}, {trap.certainty})"],
        line=line,
    )


def _explained(page: Page, line: str | None = None) -> ExplainedCode:
    return ExplainedCode(**page.model_dump(), line=line)
