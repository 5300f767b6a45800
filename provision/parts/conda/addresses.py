"""Addresses in what is asked of conda and pip: which of them bring code to a host that nothing verifies. Pure.

apt checks signatures, so its repositories may come over http; conda's indexes and pip's have none.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{0,20}:/{1,3}(?:[^\s/]{0,256}@)?(?:\[[0-9a-f:.]{2,45}\])?[^\s\"',;\]]*", re.I)
_VERIFIED = re.compile(r"[#&]sha256[=:][0-9a-f]{64}(?![0-9a-f])", re.I)
_SAFE = ("https", "ssh", "file")
# pip's option that takes a server without a valid certificate.
_TRUSTED = re.compile(r"--trusted-host\b[= ]*\S*")


def unverified(text: str) -> str:
    """Return the first address in a text that is neither encrypted nor of this host nor given with its sha256; "" without one."""
    for match in _ADDRESS.finditer(text):
        scheme = match[0].partition(":")[0].rpartition("+")[2].lower()
        if scheme not in _SAFE and not _VERIFIED.search(match[0]) and not _is_loopback(match[0]):
            return match[0]
    trusted = _TRUSTED.search(text)
    return trusted[0] if trusted else ""


def unverified_in_file(content: str) -> str:
    """The same of an environment's file, without its comments."""
    lines = (re.sub(r"(^|\s)#.*$", "", line) for line in content.splitlines())
    return next(filter(None, map(unverified, lines)), "")


def _is_loopback(address: str) -> bool:
    try:
        host = urlsplit(address).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
