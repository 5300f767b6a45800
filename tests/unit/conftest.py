"""No test here starts a program: those that need one lie in tests/system."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

# The offline script is a program itself: it is handed to sh and to shellcheck.
STARTS_PROGRAMS = {"test_rescue_offline.py"}


@pytest.fixture(autouse=True)
def no_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.path.name in STARTS_PROGRAMS:
        yield
        return
    started: list[Any] = []

    def refuse(self: subprocess.Popen[Any], args: Any, *more: Any, **named: Any) -> None:
        started.append(args)
        raise OSError(f"a unit test starts {args}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    yield
    assert not started, f"starts {started[0]}: a test that needs a program lies in tests/system"
