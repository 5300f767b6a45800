"""What all entries of a lock are made of; each part has its own beside it (``part.py``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

# Debian policy 5.6.12 and 5.6.1; a name may carry its architecture (libnvidia-gl-580:i386).
DebianVersion = Annotated[str, StringConstraints(pattern=r"^(?:[0-9]+:)?[0-9][A-Za-z0-9.+~:-]*$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+(?::[a-z0-9]+)?$")]
Versions = dict[PackageName, DebianVersion]


class Locked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


def several(names: list[str]) -> str:
    """Names of packages that share something: the first two, and how many more."""
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(sorted(names)[:2]) + rest
