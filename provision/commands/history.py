"""history: who changed what, when, with which inventory and lock. From this machine's runs, and from the hosts. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from provision import engine
from provision.commands.fleet import Fleet, Silent, Talk, ask_all
from provision.documents import Document
from provision.errors import Exit, ProvisionError, UsageError
from provision.history import HostRecord, Run, find, runs

_NEWEST = 50  # what a host keeps


class HostHistory(BaseModel):
    """What a host says of itself, newest first. locked_by: the run that is at work there now."""

    status: Literal["ok", "unreachable", "failed"]
    runs: list[HostRecord] = Field(default_factory=list)
    locked_by: dict[str, Any] | None = None
    stale: str | None = None  # the proof that this lock is


class HistoryDocument(Document):
    """runs: of this machine, newest first. hosts: what hosts say, where they were asked. asked: the run or host that was meant."""

    schema_id: str = Field(default="provision/history/1", alias="schema")
    hosts: dict[str, HostHistory] = Field(default_factory=dict)
    runs: list[Run] = Field(default_factory=list)
    asked: str | None = None
    folder: str = ""  # where this machine keeps its runs


def known(base: Path | None) -> list[Run]:
    """Return the runs of this machine, newest first. base: --run-dir."""
    return runs(base or engine.runs_folder())


def of_runs(found: Sequence[Run], base: Path | None, asked: str | None = None) -> HistoryDocument:
    """Say what runs of this machine did."""
    return HistoryDocument(runs=list(found), asked=asked, folder=str(base or engine.runs_folder()))


def one_run(word: str, base: Path | None) -> HistoryDocument | None:
    """Say what one run did, if the word means one; None where it means none."""
    found = find(word, known(base))
    return of_runs([found], base, found.run) if found else None


def of_hosts(
    fleet: Fleet, base: Path | None, talk: Talk | None = None, *, newest: int = _NEWEST
) -> HistoryDocument:
    """Ask hosts what was done to them, in one read each; runs from other machines are told there too."""

    def ask(host: Any, session: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = session.call("hostrecord", {"op": "read", "newest": newest})
        return answer

    answers = ask_all(fleet, fleet.hosts, "reading", ask, talk or Silent())
    names = set(answers)
    mine = [run for run in known(base) if names & {*run.planned, *run.hosts, *run.left_alone}]
    document = of_runs(mine, base)
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            unreachable = answer.exit_code == Exit.UNREACHABLE
            document.hosts[name] = HostHistory(status="unreachable" if unreachable else "failed")
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
            continue
        document.hosts[name] = HostHistory(
            status="ok", runs=_records(answer["runs"]), locked_by=answer["lock"]["held"], stale=answer["lock"]["stale"]
        )  # fmt: skip
    return document.conclude(codes)


def _records(told: Sequence[Any]) -> list[HostRecord]:
    """Records as hosts keep them; what an older or newer version wrote otherwise is passed over."""
    found = []
    for record in told:
        try:
            found.append(HostRecord.model_validate(record))
        except ValidationError:
            continue
    return found


def nothing(word: str, base: Path | None) -> UsageError:
    """The error for a word that is neither a run nor a host."""
    return UsageError(
        "usage.run", f"{word} is neither a run of this machine nor a host of the inventory",
        because=[f"the newest runs: {', '.join(run.run for run in known(base)[:3]) or 'none'}"],
        hint="provision history lists the runs; -i names another inventory",
    )  # fmt: skip
