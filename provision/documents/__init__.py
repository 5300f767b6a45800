"""What every command returns: one document, the same for people (render) and programs (--json).

``schema`` names the shape and its version; a field is added freely, changed or removed only with a new number.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError

from provision.errors import Exit, Issue, ProvisionError, worst
from provision.facts import Facts
from provision.lib.clean import clean_json
from provision.lib.findings import Check, Finding
from provision.parts.plan import HostPlan

T = TypeVar("T", bound="Document")


class Document(BaseModel):
    """Base of all documents. ok is true exactly when exit_code is 0."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_id: str = Field(default="", alias="schema")
    ok: bool = True
    exit_code: int = 0
    hosts: dict[str, Any] = Field(default_factory=dict)
    errors: list[Issue] = Field(default_factory=list)

    def conclude(self: T, codes: list[Exit]) -> T:
        """Set exit_code and ok from the codes of the hosts; return self."""
        self.exit_code = int(worst(codes))
        self.ok = self.exit_code == 0
        return self

    def to_json(self) -> str:
        try:
            text = self.model_dump_json(by_alias=True, indent=2)
        except PydanticSerializationError:
            # a name of a file that is not UTF-8
            text = json.dumps(self.model_dump(by_alias=True), ensure_ascii=False, indent=2, default=str)
        return clean_json(text)


class ErrorDocument(Document):
    """A command that could not start: wrong usage, inventory or variables; or a defect."""

    schema_id: str = Field(default="provision/error/1", alias="schema")


class DescribedHost(BaseModel):
    """A host as a table shows it."""

    status: Literal["ok", "unreachable", "failed"]
    gpus: list[str] = Field(default_factory=list)
    # "580.126.20 open": the module that is loaded, else what is installed
    driver: str | None = None
    # "the Ubuntu archive", "NVIDIA's repository", …; "not from apt"
    origin: str | None = None
    # "CUDA 13.0, cuDNN 9.14.0.64, NCCL 2.28.3"
    cuda: str | None = None
    # what a person should notice: in one line, and as findings
    summary: str = ""
    remarks: list[Finding] = Field(default_factory=list)


class ScannedHost(DescribedHost):
    facts: Facts | None = None


class ScanDocument(Document):
    schema_id: str = Field(default="provision/scan/1", alias="schema")
    hosts: dict[str, ScannedHost] = Field(default_factory=dict)


class EnvsRow(BaseModel):
    """One installation of conda, or one environment."""

    kind: Literal["conda", "environment"]
    name: str
    path: str
    owner: str | None = None
    state: str = "whole"
    python: str | None = None
    # torch -> 2.6.0+cu124
    frameworks: dict[str, str] = Field(default_factory=dict)
    # torch -> cuda | cpu
    builds: dict[str, str] = Field(default_factory=dict)
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    # on disk; files that are linked from elsewhere count; None: not measured
    size_bytes: int | None = None
    # what would be free without it
    own_bytes: int | None = None
    made_by_us: bool = False
    # what a person should notice
    notes: list[str] = Field(default_factory=list)


class EnvsHost(BaseModel):
    status: Literal["ok", "unreachable", "failed"]
    # each installation, then its environments
    rows: list[EnvsRow] = Field(default_factory=list)


class EnvsDocument(Document):
    schema_id: str = Field(default="provision/envs/1", alias="schema")
    hosts: dict[str, EnvsHost] = Field(default_factory=dict)


class PlanDocument(Document):
    schema_id: str = Field(default="provision/plan/1", alias="schema")
    hosts: dict[str, HostPlan] = Field(default_factory=dict)
    # day of the facts that it rests on
    catalog: str = ""
    # of a rollback: hosts of the run before it that stay as they are -> why
    left_out: dict[str, str] = Field(default_factory=dict)


class VerifiedHost(BaseModel):
    status: Literal["pass", "warn", "fail", "skip", "unreachable", "failed"]
    checks: list[Check] = Field(default_factory=list)


class VerifyDocument(Document):
    schema_id: str = Field(default="provision/verify/1", alias="schema")
    hosts: dict[str, VerifiedHost] = Field(default_factory=dict)


class AppliedHost(BaseModel):
    status: Literal[
        "done",
        "unchanged",
        "checked",
        "reboot_needed",
        "restart_needed",
        "check_failed",
        "failed",
        "unreachable",
        "blocked",
        "interrupted",
        "not_started",
        # its GPUs are in use: left alone
        "busy",
        # it could not be drained: nothing was changed
        "skipped",
    ]
    summary: str = ""
    # tasks that changed something
    changed: list[str] = Field(default_factory=list)
    failed_task: str | None = None
    # nothing was changed on it in this session; a session before may have changed something
    untouched: bool = False
    checks: list[Check] = Field(default_factory=list)
    # counted from 1; None: in none of them
    wave: int | None = None
    # another boot answers: recognised by its boot_id
    rebooted: bool = False
    # of busy: the processes on the GPUs; of interrupted: where it was, and what still runs there
    because: list[str] = Field(default_factory=list)
    # what became of its hooks; None: there was none to run
    drain: Literal["ok", "failed"] | None = None
    resume: Literal["ok", "failed"] | None = None


class AppliedWave(BaseModel):
    # waited: hosts whose GPUs were in use
    kind: Literal["all", "canary", "batch", "waited"]
    status: Literal["done", "stopped", "not_begun"]
    hosts: list[str] = Field(default_factory=list)
    seconds: float | None = None


class ApplyDocument(Document):
    schema_id: str = Field(default="provision/apply/1", alias="schema")
    hosts: dict[str, AppliedHost] = Field(default_factory=dict)
    # of a rollback: hosts of the run before it that stay as they are -> why
    left_out: dict[str, str] = Field(default_factory=dict)
    waves: list[AppliedWave] = Field(default_factory=list)
    # why no further wave was begun
    stopped: str | None = None
    # a lock that was taken over, a record that was not written
    warnings: list[Issue] = Field(default_factory=list)
    run_dir: str | None = None
    seconds: float | None = None


class InitGroup(BaseModel):
    """Hosts of one kind of hardware. branches, recommended: of the driver, by the catalog alone."""

    hosts: list[str] = Field(default_factory=list)
    # "8x H100 SXM5 80GB"; empty: no NVIDIA GPU
    cards: str = ""
    ubuntu: list[str] = Field(default_factory=list)
    branches: list[int] = Field(default_factory=list)
    recommended: int | None = None
    # host -> why no driver can be chosen for it as it is
    trouble: dict[str, str] = Field(default_factory=dict)


class InitDocument(Document):
    schema_id: str = Field(default="provision/init/1", alias="schema")
    path: str = ""
    content: str = ""
    # of hosts that were looked at
    groups: dict[str, InitGroup] = Field(default_factory=dict)
    # host -> why
    unreached: dict[str, str] = Field(default_factory=dict)
    # no GPU, and nobody said that they have one
    left_out: list[str] = Field(default_factory=list)
    # what -i the next command needs, where that is not path
    next_source: str | None = None


def error_document(error: ProvisionError) -> ErrorDocument:
    """Return the document of an error that ends a command."""
    issues = getattr(error, "issues", None) or [error.issue]
    return ErrorDocument(errors=issues).conclude([error.exit_code])


DOCUMENTS: tuple[type[Document], ...] = (
    ErrorDocument,
    InitDocument,
    ScanDocument,
    EnvsDocument,
    PlanDocument,
    ApplyDocument,
    VerifyDocument,
)
