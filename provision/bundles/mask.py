"""Takes the names of a host, of its people, of its network and of its parts out of texts, each for a word that stays the same."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from provision.facts.diagnostics import Diagnosed

# Repositories and registries of the public: who uses them is said by nobody's name.
_PUBLIC = re.split(
    " ",
    "nvidia.com ubuntu.com debian.org docker.com docker.io github.com github.io githubusercontent.com canonical.com kernel.org"
    " launchpad.net launchpadcontent.net anaconda.com anaconda.org conda-forge.org pypi.org pythonhosted.org pytorch.org nvcr.io"
    " ghcr.io quay.io google.com microsoft.com example example.org localhost",
)
# Words that name nobody: accounts and hosts of images.
_ANYBODY = re.split(
    " ", "root ubuntu debian admin user users nvidia docker localhost localdomain local host node server default none"
)
_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Za-z])")
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])")
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?!\w|[:-]\w)")
# Loopback and nothing: an address of every host.
_EVERYBODYS = re.compile(r"127\.|::1?\Z|0\.0\.0\.0\Z|00:00:00:00:00:00\Z|f[ef]0[0-9]::|255\.255")
_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?![\w:])")
# A version of four parts looks the same: it has a revision behind it, a name or a relation of dpkg before it, or stands alone.
_V4 = re.compile(r"(?<!\(= )(?<!\([<>]= )(?<!\(<< )(?<!\(>> )(?<![\w.+~-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.+~-])")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.)+[A-Za-z]{2,20}(?![\w-])")
_PLACE = re.compile(r"(://(?:[^\s/@\"']{0,256}@)?)([A-Za-z0-9][A-Za-z0-9.-]{0,253})")
_HOME = re.compile(r"(/(?:home|homes|users)/)([^/\s:;,'\"=\]\[)(]+)")
_SERIAL = re.compile(r"(serial(?:[ _-]?(?:number|no\.?))?[\"']?\s{0,4}[:=]\s{0,4}[\"']?)([\w-]{4,64})", re.I)


class Mask:
    """own: {"hosts", "users", "addresses", "serials", "containers", "images"}: what names this host.

    The same word becomes the same word everywhere. Of an image its registry and path are masked, with every tag.
    """

    def __init__(self, own: Mapping[str, Iterable[str]], packages: Iterable[str] = ()) -> None:
        self._made: dict[tuple[str, str], str] = {}
        self._news: set[str] = set()
        self._counts: dict[str, int] = {}
        words: dict[str, str] = {}
        common = {*_ANYBODY, *_words_of_schema(), *(part for name in packages for part in re.split(r"[-:.]", name))}
        for host in own.get("hosts", ()):
            label, _, domain = host.strip(".").partition(".")
            words |= {host: f"{self._new('host', label)}.example" if domain else self._new("host", label)}
            words |= {label: self._new("host", label)} | ({domain: "example"} if domain else {})
        words |= {name: self._new("user", name) for name in own.get("users", ())}
        words |= {name: self._new("container", name) for name in own.get("containers", ())}
        images = {re.sub(r"@sha256:.*|:[^/:]*$", "", image) for image in own.get("images", ())}
        words |= {
            image: self._new("image", image)
            for image in images
            if "/" in image and not _public(image.split("/")[0].lower())
        }
        words |= {name: self._new("serial", name) for name in own.get("serials", ()) if _is_serial(name)}
        addresses = {word.lower() for word in own.get("addresses", ()) if not _EVERYBODYS.match(word)}
        self._words = {
            word.lower(): new
            for word, new in words.items()
            if len(word) > 2 and not word.isdigit() and word.lower() not in common and not _public(word.lower())
        }
        self._own = _any(self._words, r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
        self._addresses = _any(addresses, r"(?<![\w.])(?<![0-9A-Fa-f]:)", r"(?!\w|[.:][0-9A-Fa-f])")

    def text(self, value: str, *, version: bool = False) -> str:
        """A text without what names this host. version: it may be a version and nothing else."""
        value = redact.text(value)
        if "://" in value:
            value = _PLACE.sub(self._place, value)
        if self._own:
            value = self._own.sub(lambda match: self._words[match.group().lower()], value)
        value = _UUID.sub(self._as("uuid"), value)
        value = _HEX.sub(self._as("hex"), value)
        value = _HOME.sub(lambda match: match[1] + self._new("user", match[2]), value)
        value = _SERIAL.sub(lambda match: match[1] + self._new("serial", match[2]), value)
        if "@" in value:
            value = _MAIL.sub(self._as("mail"), value)
        if self._addresses:
            value = self._addresses.sub(self._address, value)
        if ":" in value or "-" in value:
            value = _V6.sub(self._address, _MAC.sub(self._as("mac"), value))
        return value if version and _V4.fullmatch(value) else _V4.sub(self._address, value)

    def data(self, value: Any, key: str = "") -> Any:
        """The same of plain data; names of fields are no words of a host."""
        if isinstance(value, str):
            return self.text(value, version=key not in ("nameservers", "default_route"))
        if isinstance(value, dict):
            return {self.text(name, version=True): self.data(item, name) for name, item in value.items()}
        return [self.data(item, key) for item in value] if isinstance(value, list) else value

    def _as(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: self._new(kind, match.group())

    def _place(self, match: re.Match[str]) -> str:
        place = match[2].rstrip(".").lower()
        if _public(place) or _V4.fullmatch(place) or place in self._news:
            return match[0]
        return match[1] + self._new("mirror", place)

    def _address(self, match: re.Match[str]) -> str:
        # A colon that ends a word is none of the address.
        word = match.group() if match.group().endswith("::") else match.group().rstrip(":")
        rest = match.group()[len(word) :]
        try:
            address = ipaddress.ip_address(word)
        except ValueError:
            return self._new("mac", word) + rest if _MAC.fullmatch(word) else match.group()
        if address.is_loopback or address.is_unspecified or word.lower() in self._news:
            return match.group()
        return self._new(f"v{address.version}", str(address)) + rest

    def _new(self, kind: str, word: str) -> str:
        word = word.lower()
        # What is masked once stays as it is.
        if word in self._news or (kind, word) in self._made:
            return self._made.get((kind, word), word)
        self._counts[kind] = number = self._counts.get(kind, 0) + 1
        new = _FORMS[kind](number) if kind in _FORMS else f"{kind}{number}"
        self._news.add(new)
        return self._made.setdefault((kind, word), new)


_FORMS: Mapping[str, Callable[[int], str]] = {
    "uuid": lambda n: f"00000000-0000-0000-0000-{n:012d}",
    "hex": lambda n: f"{n:032d}",
    "mac": lambda n: f"00:00:5e:00:{n >> 8 & 255:02x}:{n & 255:02x}",
    # RFC 5737 and RFC 3849; a host with more addresses gets those of benchmarks, RFC 2544
    "v4": lambda n: f"192.0.2.{n}" if n < 255 else f"198.18.{n >> 8 & 255}.{n & 255}",
    "v6": lambda n: f"2001:db8::{n:x}",
    "mail": lambda n: f"user{n}@example.org",
    "mirror": lambda n: f"mirror{n}.example",
}


def _any(words: Iterable[str], before: str, after: str) -> re.Pattern[str] | None:
    listed = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(f"{before}(?:{listed}){after}", re.I) if listed else None


def _is_serial(word: str) -> bool:
    """Firmware says "To be filled by O.E.M." too; a UUID keeps its form."""
    return bool(re.search("[0-9]", word)) and len(word) > 4 and not (_UUID.search(word) or _HEX.search(word))


def _public(place: str) -> bool:
    return any(place == name or place.endswith("." + name) for name in _PUBLIC)


def _words_of_schema() -> Iterable[str]:
    return re.findall(r"[a-z0-9]+", json.dumps(Diagnosed.model_json_schema()).lower())
