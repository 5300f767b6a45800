# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Take passwords and tokens out of texts, before they leave a host, are shown, or are written where others can read them.

Host and path of an address stay, so that one can still see what is meant: ``https://***@conda.h/t/***/main``. Redacting twice
is the same as once. Every pattern is bounded or runs over each character once: texts come from files of other people.

Standard library only, any Python from 3.8. The controller imports the same file.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

STARS = "***"
# No secret: the user name of ssh (git@…), which is how keys are used.
_WITHOUT_PASSWORD = ("ssh", "sftp", "rsh")
_ADDRESS = lazy_re.compile(r'://[^\s"]+')
_CONDA_TOKEN = lazy_re.compile(r"/t/[^/,;?#]+")
_PORT = lazy_re.compile(r":[0-9]{0,5}$")
_QUERY = lazy_re.compile(
    r"([?&;#][\w.~%-]{0,64}(?:token|sig|secret|passw|pwd|key|auth|cred|session|jwt)[\w.~%-]{0,64}=)[^&;#\s]+", re.I
)
_NAME = (
    r"(?:(?i:passw(?:or)?d|passphrase|(?:api|access|account|shared|signing|encryption)[_-]?key(?![a-z]))"
    r"|(?<![a-z])(?:(?:identity|registry|access|refresh|auth|session|api|private|deploy|bearer)[_-]?)?(?:token|secret)(?![a-z])"
    r"|(?:Token|Secret)(?![a-z])|(?:TOKEN|SECRET)(?![A-Z])|[_-](?:pass|PASS|pwd|PWD)(?![A-Za-z])|(?<![A-Za-z])_?auth(?=[\"'\\]|\Z)"
    r"|(?<=_)auth(?=\s?=))(?:[A-Z_.-][\w.-]{0,32})?"
)
_IS_NAME = lazy_re.compile(_NAME + r"\Z")
_VALUE = (
    r"""(?!\*\*\*)(?:"(?:[^"\\\n]|\\.)*"?[^\s"',;}\])]*|'[^'\n]*'?[^\s"',;}\])]*|(?:[^\s"']|"[^"\n]*"?|'[^'\n]*'?)+)"""
)
_BASE64 = r"[A-Za-z0-9+/=._~-]"
# (words of which one is in the text, pattern, replacement): most texts hold none of the words.
_MARKS = (
    (
        ("private key",),
        lazy_re.compile(
            r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----).*?(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.S,
        ),
        r"\1***\2",
    ),
    (
        ("authorization",),
        lazy_re.compile(r"""(authorization["'\\]{0,3}\s{0,4}[:=]\s{0,4}["'\\]{0,3})[^\r\n"'\\]+""", re.I),
        r"\1***",
    ),
    (("bearer",), lazy_re.compile(r"\b(bearer\s{1,4})%s{8,}" % _BASE64, re.I), r"\1***"),
    (("basic",), lazy_re.compile(r"\b([Bb]asic\s{1,4})(?=%s*[0-9=])%s{8,}" % (_BASE64, _BASE64)), r"\1***"),
    (
        ("proxy",),
        lazy_re.compile(r"""(proxy["'\\]{0,3}[\s:=]\s{0,4}["'\\]{0,3})[^\s"'\\/:]{0,128}:[^\s"'\\/]{0,256}@""", re.I),
        r"\1***@",
    ),
    (("password",), lazy_re.compile(r"\b(login\s{1,8}\S{1,128}\s{1,8}password\s{1,8})\S+"), r"\1***"),
    (
        (
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "hf_",
            "nvapi-",
            "pypi-",
            "akia",
            "asia",
            "eyj",
            "xox",
            "sk-",
            "npm_",
            "dckr_",
            "aiza",
            "ya29.",
        ),
        lazy_re.compile(
            r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{6,}|github_pat_\w{6,}|glpat-[\w.-]{6,}|hf_[A-Za-z0-9]{12,}|nvapi-[\w-]{6,}"
            r"|pypi-[\w-]{32,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|xox[a-z]-[\w-]{8,}|sk-[\w-]{20,}|npm_[A-Za-z0-9]{20,}|dckr_\w{3,4}_[\w-]{8,}"
            r"|AIza[\w-]{30,}|ya29\.[\w-]{12,}|(?<![\w-])eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?)"
        ),
        STARS,
    ),
)
# What stands in quotes as a whole: Environment="HF_TOKEN=a b".
_QUOTED = lazy_re.compile(r"""(["'])([A-Za-z_][\w.-]{0,64}=)([^"'\n]{1,512})\1""")
_ASSIGNED = lazy_re.compile(r"""(%s["'\\]{0,4}\s{0,8}(?:[:=]|\s(?=["']))\s{0,8})(%s)""" % (_NAME, _VALUE))
# One of these, in lower case, is in whatever _NAME finds; a bare "key" is in the path of every keyring.
_KEYS = ("api", "access", "account", "shared", "signing", "encryption")
_NAMES = ("passw", "passphrase", "token", "secret", "auth", "_pass", "-pass", "pwd") + tuple(
    kind + between + "key" for kind in _KEYS for between in ("", "_", "-")
)


def text(value):
    """Return a text without passwords and tokens."""
    return _text(value, *_active(value.lower()))


def has_secret(value):
    """True when a text of the inventory (a URL, a package) carries a login or a token.

    Assignments do not count: ``secret=1.0`` is a package of conda.
    """
    return _text(value, _active(value.lower())[0], ()) != value


def data(value):
    """Return plain data (dict, list, text, …) with every text redacted, and what is named as a password with it."""
    # Facts are thousands of short texts: which words are in any of them is asked once.
    return _data(value, *_active("\n".join(_texts(value)).lower()))


def is_name(name):
    """True for the name of a setting whose value is a password or a token: ``HF_TOKEN``, ``splunk-token``."""
    return bool(_IS_NAME.search(name))


def _active(lower):
    """What of _MARKS and of _NAMES can be in a text at all."""
    marks = [([word for word in words if word in lower], pattern, new) for words, pattern, new in _MARKS]
    return [mark for mark in marks if mark[0]], [name for name in _NAMES if name in lower]


def _texts(value):
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return [found for item in value for found in _texts(item)] if isinstance(value, (list, tuple)) else []


def _data(value, marks, names):
    if isinstance(value, str):
        return _text(value, marks, names)
    if isinstance(value, dict):
        return {
            _data(key, marks, names): STARS
            if item and isinstance(item, str) and isinstance(key, str) and _has(key.lower(), names) and is_name(key)
            else _data(item, marks, names)
            for key, item in value.items()
        }
    return [_data(item, marks, names) for item in value] if isinstance(value, (list, tuple)) else value


def _text(value, marks, names):
    if "://" in value:
        value = _ADDRESS.sub(_of_address, value)
    if marks or names:
        lower = value.lower()
        for words, pattern, new in marks:
            if _has(lower, words):
                value = pattern.sub(new, value)
        if _has(lower, names):
            value = _QUOTED.sub(_of_quoted, value)
            value = _ASSIGNED.sub(_of_assigned, value)
    return value


def _has(lower, words):
    for word in words:  # noqa: SIM110 - a generator costs more than the look itself, and this is asked of every text
        if word in lower:
            return True
    return False


def _of_address(match):
    # Several addresses may stand in one word, with commas between them.
    before = match.string[max(0, match.start() - 8) : match.start()]
    found = []
    for part in match.group()[3:].split("://"):
        found.append(_of_part(part, before.lower()))
        before = found[-1][-8:]
    return "://" + "://".join(found)


def _of_part(part, scheme):
    """What stands behind ``://``: without its login, conda's token and secret parameters."""
    place, slash, rest = part.partition("/")
    at = place.rfind("@")
    if at < 0 and ":" in place and not _PORT.search(place) and "@" in rest:
        # A slash in a password, which nobody encoded.
        first = part.find("@")
        end = part.find("/", first)
        at = part.rfind("@", first, end if end >= 0 else len(part))
    if at >= 0 and (":" in part[:at] or not scheme.endswith(_WITHOUT_PASSWORD)):
        part = STARS + part[at:]
    if place:
        part = _CONDA_TOKEN.sub("/t/" + STARS, part)
    return _QUERY.sub(r"\1***", part) if "=" in part else part


def _of_assigned(match):
    quote = match.group(2)[0] if match.group(2)[0] in "\"'" else ""
    return match.group(1) + quote + STARS + quote


def _of_quoted(match):
    quote, name, value = match.groups()
    return quote + name + (STARS if is_name(name[:-1]) else value) + quote
