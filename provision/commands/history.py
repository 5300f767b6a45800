"""history: who changed what, when, with which inventory and lock. From this machine's runs, and from the hosts. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from provision.documents import Document
from provision.errors import Exit, Issue, ProvisionError, UsageError
from provision.lib.text import answered
from provision.planning import Call
from provision.runs import engine
from provision.runs.fleet import Fleet, Silent, Talk, ask_all
from provision.runs.history import HostRecord, Run, folders, meant, read

# what a host keeps
_NEWEST = 50


class HostHistory(BaseModel):
    """What a host says of itself, newest first. locked_by: the run that is at work there now."""

    status: Literal["ok", "unreachable", "failed"]
    runs: list[HostRecord] = Field(default_factory=list)
    locked_by: dict[str, Any] | None = None
    # the proof that this lock is
    stale: str | None = None


class HistoryDocument(Document):
    """runs: of this machine, newest first. hosts: what hosts say, where they were asked. asked: the run or host that was meant."""

    schema_id: str = Field(default="provision/history/1", alias="schema")
    hosts: dict[str, HostHistory] = Field(default_factory=dict)
    runs: list[Run] = Field(default_factory=list)
    asked: str | None = None
    # where this machine keeps its runs
    folder: str = ""
    # records that cannot be read
    warnings: list[Issue] = Field(default_factory=list)


def place(base: Path | None) -> Path:
    """Where this machine keeps its runs. base: --run-dir."""
    return base or engine.runs_folder()


def of_runs(base: Path | None, newest: int) -> HistoryDocument:
    """Say what the newest runs of this machine did."""
    document = HistoryDocument(folder=str(place(base)))
    _read(document, folders(place(base))[:newest])
    return document


def one_run(word: str, base: Path | None) -> HistoryDocument | None:
    """Say what one run did, if the word means one; None where it means none."""
    name = meant(word, [folder.name for folder in folders(place(base))])
    if name is None:
        return None
    document = HistoryDocument(folder=str(place(base)), asked=name)
    _read(document, [place(base) / name])
    if not document.runs:
        document.errors, document.warnings = document.warnings, []
    return document.conclude([Exit.FAILED for _ in document.errors])


def _read(document: HistoryDocument, found: Sequence[Path]) -> None:
    """Put the runs of these folders into a document, and name those that cannot be read."""
    broken = []
    for folder in found:
        run = read(folder)
        if run is None:
            broken.append(folder.name)
        else:
            document.runs.append(run)
    if broken:
        document.warnings.append(_unreadable(broken, "their folders may have more: events.jsonl, ansible.log"))


def _unreadable(broken: Sequence[str], hint: str, host: str | None = None) -> Issue:
    more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
    one = "the record of a run" if len(broken) == 1 else f"the records of {len(broken)} runs"
    return Issue(
        code="history.unreadable", host=host, message=f"{one} cannot be read", because=[*broken[:5], *more], hint=hint
    )


def of_hosts(fleet: Fleet, base: Path | None, talk: Talk | None = None, *, newest: int = _NEWEST) -> HistoryDocument:
    """Ask hosts what was done to them, in one read each; runs from other machines are included."""

    def ask(host: Any, session: Any) -> tuple[HostHistory, list[Issue]]:
        return of_host(host.name, session.call, newest)

    answers = ask_all(fleet, fleet.hosts, "reading", ask, talk or Silent())
    document = HistoryDocument(folder=str(place(base)))
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = HostHistory(status=answer.host_status)
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
            continue
        document.hosts[name], warnings = answer
        document.warnings += warnings
    document.runs = _of_these(place(base), document, newest)
    return document.conclude(codes)


def of_host(name: str, call: Call, newest: int = _NEWEST) -> tuple[HostHistory, list[Issue]]:
    """Ask one host what was done to it; return that, and a warning where records of it cannot be read."""
    answer = answered(call("run.record", {"op": "read", "newest": newest}), runs=list, unreadable=list, lock=dict)
    records, broken = _records(answer["runs"])
    broken += answer["unreadable"]
    hint = "look into /var/lib/gpu-provision/history there"
    lock = answer["lock"]
    said = HostHistory(status="ok", runs=records, locked_by=lock.get("held"), stale=lock.get("stale"))
    return said, [_unreadable(broken, hint, name)] if broken else []


def _of_these(base: Path, document: HistoryDocument, newest: int) -> list[Run]:
    """The runs of this machine that hosts tell of, and the newest others that had to do with them."""
    names = set(document.hosts)
    listed = {record.run for host in document.hosts.values() for record in host.runs}
    found: list[Run] = []
    for folder in folders(base):
        if folder.name not in listed and len(found) >= newest:
            continue
        run = read(folder)
        if run is not None and (run.run in listed or names & {*run.planned, *run.hosts, *run.left_alone}):
            found.append(run)
    return found


def _records(listed: Sequence[Any]) -> tuple[list[HostRecord], list[str]]:
    """(records as hosts keep them, names of those that another version wrote otherwise)."""
    found, odd = [], []
    for record in listed:
        try:
            found.append(HostRecord.model_validate(record))
        except ValidationError:
            odd.append(str(record.get("run")) if isinstance(record, Mapping) else "a record without a name")
    return found, odd


def nothing(word: str, base: Path | None) -> UsageError:
    """The error for a word that is neither a run nor a host."""
    return UsageError(
        "usage.run",
        f"{word} is neither a run of this machine nor a host of the inventory",
        because=[f"the newest runs: {', '.join(folder.name for folder in folders(place(base))[:3]) or 'none'}"],
        hint="provision history lists the runs; -i names another inventory",
    )
