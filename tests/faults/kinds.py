"""What a broken host of broken.py and broken_user.py is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Broken:
    """spec: keys of tests/lab/README.md. code: what diagnose names. rescued: a program can mend it all.

    level ``well``: nothing is broken, and no rescue may do anything.

    reboots: how many the right fix needs at most. config: role variables of the host. docker: a real one runs on it.
    person: what only a person can do, by the words of the finding, in which ``told`` stands; then rescued is False.
    proves: what must be true of the host after the rescue, beside what is of all.
    """

    spec: dict[str, Any]
    code: str
    breaks: Callable[[Any], None] | None = None
    later: Callable[[Any], None] | None = None
    folded: tuple[str, ...] = ()
    rescued: bool = True
    level: str = "error"
    reboots: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    person: Callable[[Any], None] | None = None
    told: str = ""
    docker: bool = False
    proves: Callable[[Any], None] | None = None
