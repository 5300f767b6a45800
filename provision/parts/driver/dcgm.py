"""What NVIDIA's own diagnostic (``dcgmi diag -j``) says of the cards. Pure.

Sources: NVIDIA/DCGM, dcgmi/Diag.cpp and nvvs/include/NvvsJsonStrings.h of 3.1.8, 3.3.9 and 4.5.2, dcgmlib/dcgm_errors.h,
testing/python3/dcgm_diag_schema.json. 3 and 4 name things differently, 3 leaves null in its lists, and neither ever writes
"Warn": dcgmi turns it into "Fail", and only the severity of the errors tells.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer
from provision.lib.text import Line
from provision.parts.proof import Bounds, Row, Verdict

# dcgmErrorSeverity_enum: the card can work and has to be watched, or somebody's settings are meant.
_MILD = frozenset({1, 5})
_GPU_ROW = re.compile(r"^\|\s*([0-9]{1,4})\s*\|")
_UUID_ROW = re.compile(r"\bDevice UUID: (GPU-[0-9a-fA-F-]{36})\b")
_LINES = 12


def _warnings(value: Any) -> Any:
    """A text alone until 3.1; later a list of mappings, whose key for the text differs too."""
    return [{"warning": value}] if isinstance(value, str) else _there(value)


def _there(value: Any) -> Any:
    return [item for item in value if item is not None] if isinstance(value, list) else value


# A number, or from 3 one in quotes.
_Number = Annotated[int | None, BeforeValidator(lambda value: integer(str(value)))]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Warning(_Row):
    text: Line = Field(default="", validation_alias=AliasChoices("warning", "warnings"))
    severity: _Number = Field(default=None, validation_alias="error_severity")
    code: _Number = Field(default=None, validation_alias="error_id")


class _Result(_Row):
    status: Line = ""
    entity: _Number = Field(default=None, validation_alias=AliasChoices("entity_id", "gpu_id", "gpu_ids"))
    group: Line = Field(default="GPU", validation_alias="entity_group")
    warnings: Annotated[list[_Warning], BeforeValidator(_warnings)] = []


class _Test(_Row):
    name: Line
    results: Annotated[list[_Result], BeforeValidator(_there)] = []
    summary: _Result = Field(default_factory=_Result, validation_alias="test_summary")


class _Category(_Row):
    tests: Annotated[list[_Test], BeforeValidator(_there)] = []


class _Diagnostic(_Row):
    categories: Annotated[list[_Category], BeforeValidator(_there)] = Field(
        default=[], validation_alias="test_categories"
    )
    version: Line = ""
    runtime_error: Line = ""


class _Metadata(_Row):
    version: Line = ""


class _Answer(_Row):
    diagnostic: _Diagnostic = Field(validation_alias=AliasChoices("DCGM Diagnostic", "DCGM GPU Diagnostic"))
    metadata: _Metadata = _Metadata()
    version: Line = ""


def indexes(discovery: str, uuids: Row) -> dict[int, str]:
    """{DCGM's id of a card: index as nvidia-smi counts} from what ``dcgmi discovery -l`` prints; uuids: by index."""
    found, number = dict[int, str](), None
    by_uuid = {str(uuid).lower(): index for index, uuid in uuids.items()}
    for line in discovery.splitlines():
        if match := _GPU_ROW.search(line):
            number = int(match[1])
        if (match := _UUID_ROW.search(line)) and number is not None and match[1].lower() in by_uuid:
            found[number] = by_uuid[match[1].lower()]
    return found


def judge(found: Row, bounds: Bounds) -> Verdict:
    """Return (status, message, evidence, hint, numbers) for gpu.dcgm."""
    command = f"dcgmi diag -r {found['level']}"
    engine, diag = found["engine"], found["diag"]
    for ran in (engine, diag or {}):
        if ran.get("refused"):
            return "not_run", f"dcgmi cannot be started: {ran['refused']}", [], None, {}
    if diag is None:
        said = _said(engine)
        return "skip", "no host engine of DCGM answers (systemctl start nvidia-dcgm)", said, None, {}
    if diag["ended"]:
        why = f"did not end within {found['timeout_s']:g} s" if diag["ended"] == "timeout" else "writes without end"
        more = "; gpu_verify_timeout gives it longer" if diag["ended"] == "timeout" else ""
        return "not_run", f"{command} {why} and was stopped{more}", _said(diag), None, {}
    try:
        answer = _Answer.model_validate(diag["answer"])
    except ValueError:
        return "not_run", f"{command} gave an answer that is not known here", _said(diag), None, {}
    return _judge(command, answer, indexes(engine["out"], found["uuids"]))


def _said(ran: Row) -> list[str]:
    return [line for line in f"{ran['out']}\n{ran['err']}".splitlines() if line.strip()][:3]


def _judge(command: str, answer: _Answer, cards: dict[int, str]) -> Verdict:
    diagnostic = answer.diagnostic
    name = f"DCGM {answer.metadata.version or answer.version or diagnostic.version}".rstrip()
    if diagnostic.runtime_error:
        return "warn", f"{name} did not run its tests: {diagnostic.runtime_error}", [], f"{command} tells more", {}
    counts = dict.fromkeys(("Pass", "Fail", "Skip"), 0)
    bad, mild, skipped = list[str](), list[str](), list[str]()
    for test in (test for category in diagnostic.categories for test in category.tests):
        # Without results of its own the summary tells; with them it repeats their errors.
        results = test.results or [test.summary]
        status = next((s for s in ("Fail", "Pass", "Skip") if any(row.status == s for row in results)), None)
        if status is None:
            # Not Run, or nothing
            continue
        counts[status] += 1
        for row in results:
            texts = [_text(test, row, warning, cards) for warning in row.warnings]
            severities = {warning.severity for warning in row.warnings}
            if row.status == "Fail" and not (severities and severities <= _MILD):
                bad += texts or [_text(test, row, _Warning(), cards)]
            else:
                (skipped if row.status == "Skip" else mild).extend(texts)
    numbers = {"tests": float(sum(counts.values())), "skipped": float(counts["Skip"])}
    evidence = [*bad, *mild, *skipped][:_LINES]
    if bad or mild:
        hint = "DCGM's message names the next step; nvidia-bug-report.sh, for NVIDIA or the vendor"
        return "fail" if bad else "warn", f"{name}: {'; '.join((bad or mild)[:4])}", evidence, hint, numbers
    if not counts["Pass"]:
        return "not_run", f"{name} left out every test ({counts['Skip']})", evidence, None, numbers
    left = f", {counts['Skip']} left out" if counts["Skip"] else ""
    tests = f"{counts['Pass']} test{'s' if counts['Pass'] > 1 else ''}"
    return "pass", f"{name}: {tests} passed{left} ({command})", evidence, None, numbers


def _text(test: _Test, row: _Result, warning: _Warning, cards: dict[int, str]) -> str:
    """``PCIe: card 3: a message (error 12)``."""
    where = ""
    if row.entity is not None and row.entity >= 0:
        where = f"{row.group} {row.entity}: "
        if row.group == "GPU":
            where = f"card {cards[row.entity]}: " if row.entity in cards else f"GPU {row.entity} of DCGM: "
    error = f" (error {warning.code})" if warning.code else ""
    return f"{test.name}: {where}{warning.text or row.status}{error}"
