"""Every part of a host, in the order in which they are decided, planned, checked and reported: a new one is a line here."""

from __future__ import annotations

from typing import Any

from provision.parts.base import Host, Part
from provision.parts.conda.part import PART as CONDA
from provision.parts.containers.part import PART as CONTAINERS
from provision.parts.cuda.part import PART as CUDA
from provision.parts.driver.part import PART as DRIVER

# The driver is the first: every other part has to work with it.
PARTS: list[Part[Any, Any]] = [DRIVER, CUDA, CONDA, CONTAINERS]
# Roles that plans name and that decide nothing: what they set goes into every plan.
SETTINGS = {"proxy": "gpu_proxy", "mirror": "gpu_mirror"}


def roles() -> dict[str, str]:
    """Part of a plan -> the role that carries it out. A plan is made for the roles of a play; the commands plan for all."""
    return {part.name: part.role for part in PARTS} | SETTINGS


def in_locks() -> list[Part[Any, Any]]:
    """The parts in the order of a lock: those with packages first."""
    return sorted(PARTS, key=lambda part: not part.apt)


def by_name(name: str) -> Part[Any, Any]:
    return next(part for part in PARTS if part.name == name)


def title_of(name: str) -> str:
    """What a part is called; the name itself of what is none (apt's own files)."""
    return next((part.title for part in PARTS if part.name == name), name)


def decide(host: Host, *, apt: bool | None = None) -> None:
    """Have the parts decide, each with the decisions before it. apt: only those whose packages do (or do not) come by apt."""
    for part in PARTS:
        if apt in (None, part.apt):
            host.decisions[part.name] = part.decide(host)
