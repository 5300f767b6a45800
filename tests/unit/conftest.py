"""No test here starts a program: those that need one lie in tests/system."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    started: list[Any] = []

    def refuse(self: subprocess.Popen[Any], args: Any, *more: Any, **named: Any) -> None:
        started.append(args)
        raise OSError(f"a unit test starts {args}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    yield
    assert not started, f"starts {started[0]}: a test that needs a program lies in tests/system"
