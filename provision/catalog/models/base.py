"""What every file of the catalog is made of: kinds of values, facts with their sources, files with theirs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

# How sure a value is. sourced is what an entry has that says nothing else.
Certainty = Literal["verified", "sourced", "knowledge", "inferred", "conflicting", "unknown"]
UNSURE: frozenset[str] = frozenset({"knowledge", "inferred", "conflicting", "unknown"})
Flavour = Literal["open", "proprietary"]
Support = Literal["native", "binary", "jit", "none"]
SUPPORT_ORDER: tuple[Support, ...] = ("native", "binary", "jit", "none")
Segment = Literal["datacenter", "workstation", "geforce", "titan", "mining", "embedded", "other", "unknown"]
Fabric = Literal["never", "nvswitch", "nvswitch+nvlsm", "nvl72", "depends", "unknown"]
# as uname -m says it
Machine = Literal["x86_64", "aarch64"]
Channel = Literal["ubuntu", "cuda", "ppa"]
DeviceId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}$")]
Cc = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9]$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*(\.post[0-9]+)?$")]
Minor = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
Series = Annotated[str, StringConstraints(pattern=r"^[0-9]{3}(-server)?$")]
Tag = Annotated[str, StringConstraints(pattern=r"^cu[0-9]{3}$")]
# A year, month or day, or two of them with a slash between; "~" means about.
AsOf = Annotated[str, StringConstraints(pattern=r"^~?\d{4}(-\d{2}(-\d{2})?)?(/\d{4}(-\d{2}(-\d{2})?)?)?$")]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]


class Data(BaseModel):
    """Base of everything here: unknown keys forbidden, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SourceNote(Data):
    """Where facts come from and when they were seen. reader: of ``catalog update``, which wrote them; else people did."""

    source: str
    as_of: AsOf
    certainty: Certainty = "sourced"
    reader: str | None = None


class Fact(Data):
    """A row: ``source`` names an entry of the file's sources; ``note`` says what the value alone does not."""

    source: str | None = None
    certainty: Certainty = "sourced"
    note: str | None = None


class Topic(Data):
    """A file: its sources, and the check that every source named inside is one of them."""

    sources: dict[str, SourceNote]

    @model_validator(mode="before")
    @classmethod
    def _sources_exist(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("sources"), dict):
            known = data["sources"]
            for name in _named_sources({k: v for k, v in data.items() if k != "sources"}):
                if name not in known:
                    raise ValueError(f"source {name!r} is not among the sources of this file")
        return data


def _named_sources(value: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(value, dict):
        for name, inner in value.items():
            if (name == "source" or str(name).endswith("_source")) and isinstance(inner, str):
                found.add(inner)
            elif isinstance(inner, (dict, list)):
                found |= _named_sources(inner)
    elif isinstance(value, list):
        for inner in value:
            found |= _named_sources(inner)
    return found


def last_day(text: str) -> date:
    """Last day of a year, month or day: ``2028-06`` gives 30 June 2028."""
    parts = [int(part) for part in text.split("-")]
    if len(parts) == 3:
        return date(*parts)
    year, month = parts[0], parts[1] if len(parts) > 1 else 12
    following = date(year + month // 12, month % 12 + 1, 1)
    return date.fromordinal(following.toordinal() - 1)
