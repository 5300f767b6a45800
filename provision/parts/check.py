"""What a check that reads is: a pure function of a host's facts and of what the host is held to (``Expect``).

Each part has its checks beside it (``checks.py``), as a tuple ``CHECKS``; its plan says what to expect of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provision.errors import UsageError
from provision.facts import Facts
from provision.lib.findings import Check, Level


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class DriverExpect(_Part):
    # exact upstream version; None: any
    version: str | None = None
    branch: str | None = None
    flavour: str | None = None
    manage: bool = True
    hold: bool = True
    persistence: bool = True
    fabric_manager: bool = False
    # number of cards; 0: as many as there are
    gpus: int = 0
    # as gpu_verify_expect names them, with their kinds
    cards: str = ""
    # no driver is asked for
    none: bool = False


class DriverNeed(_Part):
    """The driver of a CUDA minor: for everything, and by minor-version compatibility."""

    full: str | None = None
    minimum: str | None = None


class CudaExpect(_Part):
    """Where nothing is asked for (manage), checks that find damage still look."""

    manage: bool = False
    # minors of toolkits
    versions: list[str] = Field(default_factory=list)
    default: str | None = None
    profile: str = "full"
    # CUDA major -> version
    cudnn: dict[str, str] = Field(default_factory=dict)
    # with or without its suffix
    nccl: str | None = None
    hold: bool = False
    # packages that must be there and held
    names: list[str] = Field(default_factory=list)
    # logins get the default on their PATH
    environment: bool = False
    # by minor
    needs: dict[str, DriverNeed] = Field(default_factory=dict)


class PrefixExpect(_Part):
    path: str
    # what its .condarc should say; None: not ours
    channels: list[str] | None = None


class EnvironmentExpect(_Part):
    name: str
    path: str
    # cuda, cpu, or empty
    build: str = ""
    frameworks: dict[str, str] = Field(default_factory=dict)
    lib64: bool = False


class CondaExpect(_Part):
    prefixes: list[PrefixExpect] = Field(default_factory=list)
    environments: list[EnvironmentExpect] = Field(default_factory=list)
    # sentences: what is asked for and cannot be here
    refused: list[str] = Field(default_factory=list)


class ContainersExpect(_Part):
    """Where nothing is asked for (manage), damage is still found, and what somebody may have meant is left alone."""

    manage: bool = False
    # docker, containerd, podman
    runtimes: list[str] = Field(default_factory=list)
    # users with a docker of their own
    rootless: list[str] = Field(default_factory=list)
    # the toolkit's packages, and those of the old days
    names: list[str] = Field(default_factory=list)
    legacy: list[str] = Field(default_factory=list)
    version: str | None = None
    hold: bool = False
    default_runtime: str = ""
    shm_size: str = ""
    # to be in the group docker
    users: list[str] = Field(default_factory=list)
    # a CDI specification is to be there
    cdi: bool = False
    device_links: bool = False
    # sentences: what is asked for and cannot be here
    refused: list[str] = Field(default_factory=list)


class Expect(_Part):
    """What a host is held to: what the inventory asks for, and where that leaves a choice, what resolve keeps."""

    # what the registry's other parts expect, by their names
    model_config = ConfigDict(extra="allow")

    driver: DriverExpect = DriverExpect()
    cuda: CudaExpect = CudaExpect()
    conda: CondaExpect = CondaExpect()
    containers: ContainersExpect = ContainersExpect()

    def overlaid(self, changes: Mapping[str, Any]) -> Expect:
        """With what a task says (module gpu_verify, ``expect``): keys of the driver, and other parts whole.

        Raises UsageError for a key or a value that cannot be.
        """
        others = {
            name: value for name, value in changes.items() if name != "driver" and name in type(self).model_fields
        }
        own = {name: value for name, value in changes.items() if name not in others}
        try:
            driver = DriverExpect.model_validate({**self.driver.model_dump(), **own})
            return Expect.model_validate({**dict(self), "driver": driver, **others})
        except ValidationError as error:
            because = [f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors()]
            hint = f"it takes {', '.join(DriverExpect.model_fields)}, and cuda, conda and containers, each as a whole"
            raise UsageError("vars.invalid", "this cannot be expected of a host", because=because, hint=hint) from error


@dataclass(frozen=True)
class Judge:
    """One check: its code, and the function that judges a host by it."""

    code: str
    function: Callable[[Facts, Expect], Check]

    def __call__(self, facts: Facts, expect: Expect) -> Check:
        said = self.function(facts, expect)
        said.code = self.code
        return said


def check(code: str) -> Callable[[Callable[[Facts, Expect], Check]], Judge]:
    """Make a function the check of a code; it returns one of passed, skipped, warned and failed."""
    return lambda function: Judge(code, function)


def _say(level: Level, message: str, evidence: Iterable[str], hint: str | None = None) -> Check:
    return Check(id="", status=level, message=message, evidence=list(evidence), hint=hint)


def passed(message: str, evidence: Iterable[str] = ()) -> Check:
    return _say("pass", message, evidence)


def skipped(message: str, evidence: Iterable[str] = ()) -> Check:
    return _say("skip", message, evidence)


def warned(message: str, evidence: Iterable[str], hint: str | None) -> Check:
    return _say("warning", message, evidence, hint)


def failed(message: str, evidence: Iterable[str], hint: str | None) -> Check:
    return _say("error", message, evidence, hint)
