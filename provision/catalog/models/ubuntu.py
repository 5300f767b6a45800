"""ubuntu.yml, repositories.yml and traps.yml: releases, where their packages come from, known failures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from provision.catalog.models.base import AsOf, Certainty, Data, Day, Fact, Fingerprint, Minor, Topic


class UbuntuRow(Fact):
    codename: str
    kernel_ga: Minor
    standard_support_until: Day | None
    support: Literal["standard", "esm", "ended"]
    gcc: str | None
    glibc: Minor | None = None


class OldUbuntu(Fact):
    codename: str
    standard_support_until: Day


class Ubuntu(Topic):
    releases: dict[str, UbuntuRow]
    too_old: dict[str, OldUbuntu] = Field(default_factory=dict)


class RepositoryRow(Fact):
    base_url: str
    url: str
    suite: str
    components: tuple[str, ...]
    machines: dict[str, str]
    # The Ubuntu releases that it serves, each with the name of its key.
    keys: dict[str, str | None]
    key_url: str | None = None
    key_file: str | None = None

    @property
    def ubuntu(self) -> tuple[str, ...]:
        return tuple(self.keys)


class Key(Fact):
    fingerprint: Fingerprint
    # as the file of the key is named in its repository
    short: str | None = None
    retired: Day | None

    @property
    def long_id(self) -> str:
        return self.fingerprint[-16:]


class UnknownKey(Fact):
    repository: str


class Sha1(Data):
    key: str
    verifiers: tuple[str, ...]
    affected: tuple[str, ...]
    text: str
    source: str


class UbuntuArchive(Fact):
    hosts: tuple[str, ...]
    keys: tuple[str, ...]


class Repositories(Topic):
    repositories: dict[str, RepositoryRow]
    archive: UbuntuArchive
    keys: dict[str, Key]
    unknown_keys: tuple[UnknownKey, ...]
    sha1: Sha1


class Trap(Data):
    """A known failure: the text that is seen, its cause, how to check, what helps."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    kind: Literal["error", "situation"]
    match: str
    also: tuple[str, ...] = ()
    cause: str
    check: str | None = None
    fix: str
    side_effect: str | None = None
    note: str | None = None
    source: str
    as_of: AsOf
    certainty: Certainty


class Traps(Data):
    as_of: AsOf
    traps: tuple[Trap, ...]
