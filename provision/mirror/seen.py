"""What a host says to a mirror (module_utils/mirrorread), checked where it comes in: it goes into apt's files and into indexes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from provision.errors import HostFailedError

_Token = Annotated[str, StringConstraints(pattern=r"^[!-~]*$", max_length=1000)]
_Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=20_000)]
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Keyring = Annotated[str, StringConstraints(max_length=1 << 20)]


class _Source(BaseModel):
    file: _Line
    uris: list[_Token]
    suites: list[_Token]
    components: list[_Token]
    signed_by: _Line | None
    key: _Keyring | None


class _Record(BaseModel):
    """A package of conda. What else conda noted (depends, license, …) goes into the index as it is, as JSON."""

    model_config = ConfigDict(extra="allow")
    name: _Token
    version: _Token
    build: _Token
    url: _Token
    sha256: _Sha256 | None = None
    size: int | None = Field(default=None, ge=0)
    subdir: _Token | None = None


class _Wheel(BaseModel):
    name: _Token
    version: _Token
    tags: list[_Token]


class _Environment(BaseModel):
    packages: list[_Record]
    wheels: list[_Wheel]
    problems: list[_Line]


class Seen(BaseModel):
    arch: _Token
    sources: list[_Source]
    archive_key: _Keyring | None
    packages: list[tuple[_Token, _Token, _Token, _Line]]
    conda: dict[_Line, _Environment]


def seen_of(host: str, answer: Any) -> dict[str, Any]:
    """The answer of a host, as mirrorread describes it. Raises HostFailedError ``host.bad_answer`` for anything else."""
    try:
        return Seen.model_validate(answer).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise HostFailedError(
            "host.bad_answer",
            f"{host} says what cannot be: {first['msg']}",
            because=[".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())],
            hint="check its apt sources and the environments that the lock names",
        ) from error
