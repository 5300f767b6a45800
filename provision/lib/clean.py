"""Text from outside, made safe to print: what a host says can neither steer a terminal nor look like a line of ours. Pure."""

from __future__ import annotations

import json
import re
import unicodedata

# What is not ASCII, or is ASCII and no character that is seen.
_SUSPECT = re.compile(r"[^ -~]")
_SUSPECT_IN_JSON = re.compile(r"[^ -~\n]")
# Letters and marks by their category, and nothing at all to see.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "    "}


def clean(text: object) -> str:
    """Return text as one line in which everything can be seen.

    Control and format characters (escape sequences, marks of direction, zero width), line separators, lone surrogates,
    private and unassigned characters are written out (``\\x1b``, ``\\u202e``, ``\\n``). Letters of all languages and emoji
    stay. Cleaning twice is cleaning once.
    """
    return _SUSPECT.sub(_seen, str(text).replace("\r\n", "\n"))


def clean_json(text: str) -> str:
    """Return JSON that says the same, in UTF-8 without what ``clean`` writes out: that is escaped, as JSON does it.

    Lone surrogates, which many readers of JSON refuse, become text.
    """
    return _SUSPECT_IN_JSON.sub(_escaped, text)


def _escaped(one: re.Match[str]) -> str:
    if _is_plain(one[0]):
        return one[0]
    return ("\\" if "\ud800" <= one[0] <= "\udfff" else "") + json.dumps(one[0])[1:-1]


def _seen(one: re.Match[str]) -> str:
    character = one[0]
    if _is_plain(character):
        return character
    number = ord(character)
    known = _SHORT.get(character)
    return known or (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )


def _is_plain(character: str) -> bool:
    if character in _INVISIBLE:
        return False
    return character.isprintable() or unicodedata.category(character) == "Zs"
