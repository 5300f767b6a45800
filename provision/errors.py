"""Errors and exit codes: one tree, one meaning each.

Every error says which host, what, why (``because``) and a way out (``hint``). ``Issue`` is the same as data: it
goes into plans, reports and JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact

# What errors say may quote a program or an address: no password or token stays in it.
Said = Annotated[str, AfterValidator(redact.text)]


class Exit(IntEnum):
    """Exit codes of the command; the order of PRECEDENCE decides where several hold."""

    OK = 0
    FAILED = 1
    CHANGES = 2
    CHECK_FAILED = 3
    UNREACHABLE = 4
    REFUSED = 5
    REBOOT_NEEDED = 6
    USAGE = 64
    INTERRUPTED = 130


PRECEDENCE = (
    Exit.INTERRUPTED,
    Exit.USAGE,
    Exit.UNREACHABLE,
    Exit.FAILED,
    Exit.REFUSED,
    Exit.CHECK_FAILED,
    Exit.REBOOT_NEEDED,
    Exit.CHANGES,
)


def worst(codes: Iterable[int]) -> Exit:
    """Return the exit code that stands for several: 64, 4, 1, 5, 3, 6, 2 in that order; 0 when there is none."""
    seen = set(codes)
    return next((code for code in PRECEDENCE if code in seen), Exit.OK)


class Issue(BaseModel):
    """A blocker, warning or error as data. code is stable (``driver.gpu_not_supported``)."""

    code: str
    message: Said
    host: str | None = None
    because: list[Said] = Field(default_factory=list)
    hint: Said | None = None


class ProvisionError(Exception):
    """Base of every expected error; exit_code is what the command ends with."""

    exit_code: Exit = Exit.FAILED

    def __init__(
        self, code: str, message: str, *, host: str | None = None, because: Iterable[str] = (), hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.issue = Issue(code=code, message=message, host=host, because=list(because), hint=hint)

    @property
    def host_status(self) -> Literal["unreachable", "failed"]:
        """What it makes of a host that was to be read, as the documents call it."""
        return "unreachable" if self.exit_code == Exit.UNREACHABLE else "failed"

    def __reduce__(self) -> tuple[Any, ...]:
        issue = self.issue
        return (_rebuild, (type(self), issue.model_dump()))


def _rebuild(cls: type[ProvisionError], data: dict[str, Any]) -> ProvisionError:
    return cls(data["code"], data["message"], host=data["host"], because=data["because"], hint=data["hint"])


class UsageError(ProvisionError):
    """Wrong command line, inventory or variable (exit 64)."""

    exit_code = Exit.USAGE


class UnreachableError(ProvisionError):
    """No session with the host: network, host key, login or sudo (exit 4)."""

    exit_code = Exit.UNREACHABLE


class HostFailedError(ProvisionError):
    """The host was reached and something on it failed (exit 1)."""

    exit_code = Exit.FAILED


class RefusedError(ProvisionError):
    """A blocker or a conflict: nothing was touched (exit 5)."""

    exit_code = Exit.REFUSED
