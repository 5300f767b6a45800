"""How busy this machine is: what the controller has no time for, no host is to blame for."""

from __future__ import annotations

import os

# The longest that a limit is stretched, in times of itself and in seconds.
_MOST, _MOST_SECONDS = 5, 60.0


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def patience(parallel: int = 1) -> int:
    """Return how many times longer to wait than on a quiet machine, 1 to 5. parallel: processes that are about to run here."""
    return max(1, min(_MOST, round(max(_load(), parallel) / (2 * cores()))))


def stretched(seconds: float) -> float:
    """Return a limit on time as it is while this machine is busy. Long limits have room already: they grow by minutes at most."""
    return seconds + min(seconds, _MOST_SECONDS) * (patience() - 1)


def described() -> str:
    """Return the load in words, for the error of a host that was too slow."""
    return f"the load of this machine is {_load():.0f} on {cores()} cores" + (
        ": it may be what is slow" if patience() > 1 else ""
    )


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
