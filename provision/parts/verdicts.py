# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a check says. Standard library only, Python 3.8 and later."""

from __future__ import annotations


def verdict(check, status, message, evidence=(), hint=None):
    """Return {"id", "status": pass | warn | fail | skip, "message", "evidence": [..], "hint": str or None}."""
    return {"id": check, "status": status, "message": message, "evidence": list(evidence), "hint": hint}
