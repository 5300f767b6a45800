"""report: all that the reading commands say of a fleet, from one read of each host. Changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from provision import remote
from provision.catalog import load_catalog
from provision.commands import diagnose, drift, history, scan
from provision.commands.diagnose import DiagnosedHost
from provision.commands.drift import DriftedHost, Judged
from provision.commands.history import HostHistory
from provision.diagnose.security import HeldUpdate, held_security_updates
from provision.documents import DescribedHost, Document, VerifiedHost
from provision.errors import Exit, Issue, ProvisionError
from provision.facts.diagnostics import Diagnosed
from provision.inventory import Host
from provision.lib import own_state
from provision.lib.findings import status_of, worst
from provision.planning import read_facts
from provision.planning.verification import read_checks
from provision.rollout.state import FILE as STATE
from provision.rollout.state import RunState, now
from provision.runs.fleet import Fleet, Silent, Talk, ask_all
from provision.runs.history import Run

# From the gravest on: the order of hosts on the page.
STATUSES = ("broken", "failed", "unreachable", "drifted", "warned", "ok")
# of this machine, and of what each host keeps
_RUNS = 20
_RECORDS = 10


class ReportedHost(BaseModel):
    """What each command says of a host; None where it could not be read.

    status: broken where something does not work or a check failed; else drifted; else warned. scan: without facts. verify:
    the checks that only read; what ran on the cards stands in history.
    """

    status: Literal["broken", "failed", "unreachable", "drifted", "warned", "ok"]
    ubuntu: str | None = None
    kernel: str | None = None
    scan: DescribedHost | None = None
    drift: DriftedHost | None = None
    diagnose: DiagnosedHost | None = None
    verify: VerifiedHost | None = None
    history: HostHistory | None = None
    # None: apt on the host has no list of security updates
    security: list[HeldUpdate] | None = None


class ReportDocument(Document):
    """created: UTC. command: ``provision`` with the options that lead to these hosts. path: the page, where it was written.

    at_work: host -> its state in the run of this machine that goes on now.
    """

    schema_id: str = Field(default="provision/report/1", alias="schema")
    hosts: dict[str, ReportedHost] = Field(default_factory=dict)
    created: str = ""
    command: str = "provision"
    lock: str | None = None
    # of this machine, newest first
    runs: list[Run] = Field(default_factory=list)
    at_work: dict[str, str] = Field(default_factory=dict)
    # records that cannot be read
    warnings: list[Issue] = Field(default_factory=list)
    path: str | None = None


@dataclass(frozen=True)
class _Read:
    """One host: all but what only its peers tell."""

    host: ReportedHost
    drift: Judged
    warnings: list[Issue]


def run(fleet: Fleet, base: Path | None, talk: Talk | None = None, options: Sequence[str] = ()) -> ReportDocument:
    """Read every host once. Exit code 4, 1 or 5 where one could not be read or judged; what is wrong with one is no failure.

    base: --run-dir; options: those of this call that the commands on the page need too. Raises LockError (exit 64).
    """
    document = ReportDocument(lock=drift.lock_path(fleet), command=shlex.join(["provision", *options]))

    def ask(host: Host, session: remote.Session) -> _Read:
        return _read(host.name, session, dict(fleet.values[host.name]))

    answers = ask_all(fleet, fleet.hosts, "reading", ask, talk or Silent())
    compared = drift.compared({name: answer.drift for name, answer in answers.items() if isinstance(answer, _Read)})
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = ReportedHost(status=answer.host_status)
            document.errors.append(answer.issue.model_copy(update={"host": name}))
            codes.append(answer.exit_code)
            continue
        document.hosts[name] = host = answer.host
        host.drift = compared[name]
        host.status = _status(host)
        document.warnings += answer.warnings
    document.created = now()
    add_runs(document, base)
    return document.conclude(codes)


def add_runs(document: ReportDocument, base: Path | None) -> None:
    """Put the newest runs of this machine into a document, and what becomes of hosts in those that go on."""
    found = history.of_runs(base, _RUNS)
    document.runs = found.runs
    document.at_work = {}
    for each in (run for run in found.runs if run.active):
        state = own_state.read_or_none(history.place(base) / each.run / STATE, RunState)
        document.at_work |= {name: host.status for name, host in state.hosts.items()} if state else {}


def _read(name: str, session: remote.Session, values: dict[str, object]) -> _Read:
    facts = read_facts(session.call, values, Diagnosed)
    kept, warnings = history.of_host(name, session.call, _RECORDS)
    checks = read_checks(facts, values, load_catalog())
    host = ReportedHost(
        status="ok",
        ubuntu=facts.host.os.version_id,
        kernel=facts.kernels.running,
        # facts of a whole fleet are not kept
        scan=DescribedHost(**scan.describe(facts).model_dump(exclude={"facts"})),
        diagnose=diagnose.judged(facts, values),
        verify=VerifiedHost(status=status_of(worst(checks)), checks=checks),
        history=kept,
        security=held_security_updates(facts),
    )
    return _Read(host, drift.judged(name, facts, values), warnings)


def _status(host: ReportedHost) -> Literal["broken", "drifted", "warned", "ok"]:
    said = {host.diagnose.status if host.diagnose else "", host.verify.status if host.verify else ""}
    if said & {"broken", "unexplained", "fail"}:
        return "broken"
    if host.drift and host.drift.items:
        return "drifted"
    return "warned" if said & {"warned", "warn"} else "ok"
