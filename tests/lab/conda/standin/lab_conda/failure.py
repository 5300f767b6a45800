"""What ends a command."""

from __future__ import annotations


class Failure(Exception):
    """What conda prints and ends with 1 for: ``CondaToSNonInteractiveError: …``."""
