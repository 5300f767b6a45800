"""Names of hosts from where people already have them: a list in a file, or ssh's own configuration. Reads files only."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from provision.errors import UsageError

SSH_CONFIG = Path("~/.ssh/config")
# as deep as ssh itself follows them (readconf.c: READCONF_MAX_DEPTH)
_MOST_INCLUDES = 16


def from_file(path: Path, check: Callable[[str], None]) -> list[str]:
    """Return the names of a list: one or more a line, apart by blanks or commas; ``#`` begins a comment.

    check: raises UsageError for what is no name. Raises UsageError, with the line, for a file that cannot be used.
    """
    names: list[str] = []
    for number, line in enumerate(_text(path, "a list of hosts").splitlines(), 1):
        for name in re.split(r"[\s,]+", line.partition("#")[0].strip()):
            if not name:
                continue
            try:
                check(name)
            except UsageError as error:
                raise UsageError(
                    error.issue.code, f"{path} line {number}: {error.issue.message}", hint=error.issue.hint
                ) from error
            names.append(name)
    if not names:
        raise UsageError("init.no_hosts", f"{path} names no host", hint="one name or address a line")
    return list(dict.fromkeys(names))


def from_ssh_config(path: Path, check: Callable[[str], None]) -> list[str]:
    """Return the hosts that ssh's configuration names: every word of its Host lines that is no pattern.

    check: raises UsageError for what is no name of a host (``Host git@example.org``): that is passed over, as patterns are.
    Files that it includes count. How to reach them (address, user, keys, jump hosts) stays there: ssh reads it at every
    login. Raises UsageError for a file that cannot be read or names none.
    """
    names = [name for name in dict.fromkeys(_hosts(path.expanduser(), 0, set())) if _is_name(name, check)]
    if not names:
        raise UsageError(
            "init.no_hosts",
            f"{path} names no host",
            because=["it has only patterns (Host *), or none"],
            hint="name the hosts: provision init gpu01 gpu02",
        )
    return names


def _is_name(word: str, check: Callable[[str], None]) -> bool:
    try:
        check(word)
    except UsageError:
        return False
    return True


def _hosts(path: Path, depth: int, read: set[Path]) -> list[str]:
    """Words of a file and of what it includes. read: files that were read, each of which counts once."""
    read.add(path.resolve())
    found: list[str] = []
    for line in _text(path, "an ssh configuration").splitlines():
        # "Host gpu01" and "Host=gpu01" are the same, and so are blanks and tabs (ssh_config(5)).
        key, *rest = re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1)
        words = _split(rest[0]) if rest and key.lower() in ("host", "include") else []
        if key.lower() == "host":
            found += [word for word in words if not re.search(r"[*?!]", word)]
        elif depth < _MOST_INCLUDES:
            for pattern in words:
                full = Path(pattern).expanduser()
                # Of a user's configuration, whichever -F names: beside ~/.ssh/config (readconf.c, SSHCONF_USERCONF).
                full = full if full.is_absolute() else SSH_CONFIG.expanduser().parent / full
                for match in map(Path, sorted(glob.glob(str(full)))):  # noqa: PTH207 - Path.glob takes no absolute pattern
                    if match.is_file() and match.resolve() not in read:
                        found += _hosts(match, depth + 1, read)
    return found


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        # a quote that is not closed: ssh refuses the file when it is used
        return text.split()


def _text(path: Path, what: str) -> str:
    try:
        # Editors of Windows put a mark at the beginning.
        return path.expanduser().read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(
            "init.unreadable", f"{path} cannot be read", because=[str(error)], hint=f"name {what}"
        ) from error
