"""The site's own checks, as gpu_verify_site names them. Pure."""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check(rows: Any) -> None:
    """Raise ValueError (message, hint) for what the types of the variable do not say."""
    names: list[str] = []
    for row in rows or ():
        name, command = str(row.get("name") or ""), row.get("command") or ()
        if not _NAME.fullmatch(name):
            raise ValueError(f"a check of the site needs a name of letters, digits, - and _: {name!r}")
        if not command or not str(command[0]).startswith("/"):
            raise ValueError(
                f"{name}: the program needs its whole path", "command: [/usr/local/sbin/check-scratch, --quick]"
            )
        names.append(name)
    if len(set(names)) < len(names):
        raise ValueError("two checks of the site have one name")
