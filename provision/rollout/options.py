"""How a rollout goes: the options of the command line, checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel

from provision.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


class RolloutOptions(BaseModel):
    """What was asked for; kept in a run's state, so that --resume goes on with the same."""

    # hosts to do first; 0: none
    canary: int = 0
    # hosts at a time: "4" or "25%"; None: all the others at once
    batch: str | None = None
    # hosts that may fail: "1" or "10%"; None: see may_fail
    max_failures: str | None = None
    # seconds to wait for GPUs that are in use
    wait: float = 0
    # variables that options of the command stand for (--no-reboot, --prune, --lock)
    values: dict[str, str | bool] = {}
    # the run before which hosts are brought back
    rollback: str | None = None

    @property
    def staged(self) -> bool:
        """True where not all hosts are done at once."""
        return bool(self.canary or self.batch)

    def batch_size(self, total: int) -> int:
        """Return how many hosts a wave may have, of total hosts to change; a percentage is rounded down, to 1 at least."""
        if not self.batch:
            return max(total, 1)
        return max(_of(self.batch, total), 1)

    def may_fail(self, total: int) -> int | None:
        """Return how many hosts may fail before a rollout of total hosts stops; None: any number.

        Without --max-failures none may in a staged rollout, and one wave of all hosts has nothing to stop.
        """
        if self.max_failures is not None:
            return _of(self.max_failures, total)
        return 0 if self.staged else None


def parse(
    canary: int | None,
    batch: str | None,
    max_failures: str | None,
    wait: str | None,
    values: Mapping[str, str | bool] | None = None,
) -> RolloutOptions:
    """Return the options of the command line. Raises UsageError for what cannot be meant."""
    if batch is not None:
        _amount("--batch", batch, least=1)
    if max_failures is not None:
        _amount("--max-failures", max_failures, least=0)
    return RolloutOptions(
        canary=canary or 0,
        batch=batch,
        max_failures=max_failures,
        wait=seconds(wait) if wait else 0,
        values=dict(values or {}),
    )


def seconds(text: str, option: str = "--wait") -> float:
    """Return the seconds of ``90s``, ``15m``, ``2h``, ``1h30m``. Raises UsageError for anything else."""
    given = text.strip().lower()
    if not _DURATION.fullmatch(given):
        raise UsageError(
            "usage.duration", f"{option} {text}: that is no time", hint="a number with its unit: 90s, 15m, 2h, 1h30m"
        )
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", given))


def _amount(option: str, text: str, least: int) -> None:
    match = re.fullmatch(r"(\d+)(%?)", text.strip())
    if match is None or int(match[1]) < least or (match[2] and int(match[1]) > 100):
        raise UsageError(
            "usage.amount",
            f"{option} {text}: that is no number of hosts",
            hint=f"a number from {least} on, or a part of the hosts to change: {option} {max(least, 1)}, {option} 25%",
        )


def _of(text: str, total: int) -> int:
    number = text.strip()
    return int(number[:-1]) * total // 100 if number.endswith("%") else int(number)
