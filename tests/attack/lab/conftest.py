"""Simulated hosts and the command against them, as tests/faults has them."""

from tests.faults.conftest import fleet

__all__ = ["fleet"]
