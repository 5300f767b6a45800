"""verify: the checks of every host, with their evidence. Reads only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs
from ansible_collections.gpu.provision.plugins.plugin_utils import runrecord
from provision.catalog import load_catalog
from provision.documents import VerifiedHost, VerifyDocument
from provision.errors import Exit, Issue, ProvisionError, UsageError
from provision.inventory import Host
from provision.lib.findings import Check, status_of, worst
from provision.lib.text import one_line
from provision.planning import Call
from provision.planning.verification import EVERYTHING, CheckSelection, select, verify_host
from provision.remote import Session
from provision.runs import cards, engine
from provision.runs.cards import Memory
from provision.runs.fleet import Fleet, Silent, Talk, ask_all

_READ_SECONDS = 60.0


def run(
    fleet: Fleet,
    talk: Talk | None = None,
    hosts: Sequence[Host] | None = None,
    selection: CheckSelection = EVERYTHING,
    *,
    keep: bool = False,
    memory: Memory | None = None,
) -> VerifyDocument:
    """Check hosts (all of the fleet when None). Exit code 3 where a check failed; warnings do not fail.

    keep: their sessions stay open, for what is asked next; see fleet.ask_all. memory: what this machine remembers of cards,
    which this adds to; None: nothing is compared with earlier runs.
    """
    catalog = load_catalog()
    said: dict[str, dict[str, Any]] = {}

    def ask(host: Host, session: Session) -> list[Check]:
        heard: dict[str, Any] = {}
        said[host.name] = heard
        return verify_host(patient(session, heard), dict(fleet.values[host.name]), catalog, selection)

    answers = ask_all(
        fleet, fleet.hosts if hosts is None else hosts, "verifying", ask, talk or Silent(), keep=lambda checks: keep
    )
    if memory is not None and selection.wants(cards.NAME):
        _remember(fleet, memory, said, answers)
    document = VerifyDocument()
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = VerifiedHost(status=answer.host_status)
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
            continue
        document.hosts[name] = VerifiedHost(status=status_of(worst(answer)), checks=answer)
        failed = [check for check in answer if check.level == "error"]
        document.errors += [as_issue(name, check) for check in failed]
        codes.append(Exit.CHECK_FAILED if failed else Exit.OK)
    return document.conclude(codes)


def patient(session: Session, heard: dict[str, Any]) -> Call:
    """The session's call, with time for what runs on the host: each check there has a bound of its own.

    heard: gets the answers, for the memory of cards.
    """

    def call(program: str, args: dict[str, Any]) -> Any:
        more = proofs.longest(args) if program == "prove.proofs" else 0.0
        heard[program] = answer = session.call(program, args, timeout=_READ_SECONDS + more)
        return answer

    return call


def memory_of(base: Path | None) -> Memory:
    """Return this machine's memory of cards. base: --run-dir, where it keeps its runs."""
    return Memory(base or engine.runs_folder())


def _remember(fleet: Fleet, memory: Memory, said: Mapping[str, dict[str, Any]], answers: Mapping[str, Any]) -> None:
    """Add to the checks of hosts what their cards lost against their own past and their twins."""
    moment = runrecord.now()
    seen = {
        name: cards.seen(name, heard.get("prove.proofs"), _kernel(heard.get("probe.facts")), moment)
        for name, heard in said.items()
        if not isinstance(answers[name], ProvisionError)
    }
    for name, check in cards.compared(memory, seen).items():
        answers[name].extend(select([check], dict(fleet.values[name]), of_one=True))


def _kernel(facts: object) -> object:
    kernels = facts.get("kernels") if isinstance(facts, dict) else None
    return kernels.get("running") if isinstance(kernels, dict) else None


def as_issue(host: str, check: Check) -> Issue:
    return Issue(
        code=f"check.{check.code}",
        host=host,
        message=f"{check.code}: {check.message}",
        because=check.evidence,
        hint=check.hint,
    )


def for_monitor(document: VerifyDocument, *, nagios: bool) -> tuple[list[str], int]:
    """Return what a monitor reads, one line at most, and its exit code.

    nagios: GPU OK, WARNING, CRITICAL or UNKNOWN, and 0 to 3. Else as Slurm wants it: nothing and 0, or why the node has to be
    drained and 1; a warning is none.
    """
    rows = [
        (check.level, f"{name}: {check.code}: {check.message}")
        for name, host in document.hosts.items()
        for check in host.checks
    ]
    failed = [text for level, text in rows if level == "error"]
    warned = [text for level, text in rows if level == "warning"]
    silent = [issue.message for issue in document.errors if not (issue.code or "").startswith("check.")]
    if not nagios:
        bad = failed or silent
        return [_short(bad)] if bad else [], int(bool(bad))
    for word, code, texts in (("CRITICAL", 2, failed), ("UNKNOWN", 3, silent), ("WARNING", 1, warned)):
        if texts:
            return [f"GPU {word} - {_short(texts)}"], code
    return [f"GPU OK - {len(rows)} {'check' if len(rows) == 1 else 'checks'}"], 0


def _short(texts: Sequence[str]) -> str:
    """The first of several, without what a monitor reads as the beginning of its figures."""
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    return one_line(texts[0])[:200].replace("|", "/") + more


def write_junit(document: VerifyDocument, path: Path) -> None:
    """Write the results as JUnit XML: a suite a host, a case a check. Warnings pass, with their text as output.

    Raises UsageError when the file cannot be written.
    """
    suites = ElementTree.Element("testsuites", name="provision verify")
    for name, host in document.hosts.items():
        checks = host.checks or [Check(id="host", status="error", message=_why(document, name))]
        count = {status: str(sum(check.status == status for check in checks)) for status in ("fail", "skip")}
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=name,
            tests=str(len(checks)),
            failures=count["fail"],
            skipped=count["skip"],
            errors="0",
            time=f"{sum(check.seconds or 0 for check in checks):.3f}",
        )
        for check in checks:
            case = ElementTree.SubElement(
                suite, "testcase", classname=name, name=check.code, time=f"{check.seconds or 0:.3f}"
            )
            text = "\n".join([check.message, *check.evidence, *([f"hint: {check.hint}"] if check.hint else [])])
            if check.status == "fail":
                ElementTree.SubElement(case, "failure", message=_plain(check.message)).text = _plain(text)
            elif check.status == "skip":
                ElementTree.SubElement(case, "skipped", message=_plain(check.message))
            else:
                ElementTree.SubElement(case, "system-out").text = _plain(f"{check.status}: {text}")
    tree = ElementTree.ElementTree(suites)
    ElementTree.indent(tree)
    try:
        tree.write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise UsageError(
            "usage.file",
            f"cannot write {path}",
            because=[str(error)],
            hint="name a file in a folder that you can write",
        ) from error


def _why(document: VerifyDocument, host: str) -> str:
    return next((issue.message for issue in document.errors if issue.host == host), "the host could not be read")


def _plain(text: str) -> str:
    """Text without the control characters that XML 1.0 has no way to write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
