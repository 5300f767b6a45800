"""Reads the tables tests/cases/apt_*.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.lib import yaml_reader

CASES = Path(__file__).parents[1] / "cases"


def table(topic: str) -> list[Any]:
    """Cases of one topic as parameters, named by their ``name``."""
    cases = yaml_reader.load((CASES / f"apt_{topic}.yml").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in cases]
