"""Which repository a channel means on a host, and by which key it is signed: the catalog's, or a mirror of yours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils import aptcommon
from provision.catalog import Catalog
from provision.errors import RefusedError, UsageError
from provision.facts import Facts

NAMES = {
    "cuda": "NVIDIA's repository", "ppa": "the graphics-drivers PPA", "container_toolkit": "NVIDIA's container toolkit repository",
}  # fmt: skip


@dataclass(frozen=True)
class Mirror:
    """What the inventory says about a repository; empty: what the catalog says. variables: their common prefix."""

    url: str = ""
    key: str = ""  # armored text, a file on the controller, or a URL
    fingerprint: str = ""
    variables: str = "nvidia_driver_repo"

    @property
    def given(self) -> bool:
        return bool(self.url or self.key or self.fingerprint)


def agreed(first: Mirror, second: Mirror) -> Mirror:
    """What two roles say about one repository, put together. Raises UsageError where they contradict each other."""
    for name in ("url", "key", "fingerprint"):
        one, other = (getattr(mirror, name).rstrip("/") for mirror in (first, second))
        if one and other and one != other:
            tail = {"url": "_url", "key": "_key", "fingerprint": "_key_fingerprint"}[name]
            raise UsageError(
                "usage.repository_twice", f"{first.variables}{tail} and {second.variables}{tail} differ",
                because=["one repository holds drivers and toolkits, and a host has one entry of it"], hint="set one of them only",
            )  # fmt: skip
    return Mirror(
        first.url or second.url,
        first.key or second.key,
        first.fingerprint or second.fingerprint,
        first.variables if first.given or not second.given else second.variables,
    )


def source_spec(kind: str, mirror: Mirror, facts: Facts, catalog: Catalog) -> dict[str, Any]:
    """Return a repository ("cuda", "ppa", …) as aptquery's SourceSpec.

    Raises UsageError when the catalog has no such repository for this Ubuntu and none is given, and RefusedError when
    neither the catalog nor the inventory says by which key it is signed.
    """
    repository = catalog.repository(kind, ubuntu=facts.host.os.version_id, arch=facts.host.arch)
    url, key, fingerprint = mirror.url, mirror.key, mirror.fingerprint
    for value in (url, key if "://" in key else ""):
        _refuse_odd_url(value)
    text, key_url = _load_key(key)
    base = (url or repository.url).rstrip("/")
    if not text and not key_url:
        key_url = (
            repository.key_url if not url else f"{base}/{Path(repository.key_url or '3bf863cc.pub').name}"
        )
    wanted = (fingerprint or repository.fingerprint or "").replace(" ", "").upper() or None
    if text is None and (wanted is None or key_url is None):
        prefix = mirror.variables + "_key"
        raise RefusedError(
            "apt.key_unknown",
            f"the key of {NAMES[kind]} for Ubuntu {facts.host.os.version_id} is not known to the catalog",
            because=[repository.note or "no source states its fingerprint", "nothing is installed on trust"],
            hint=f"set {prefix} to the key and {prefix}_fingerprint to its fingerprint as the vendor states it"
            + (", or nvidia_driver_channel: ubuntu" if mirror.variables.startswith("nvidia_driver") else ""),
        )
    return {
        "name": kind.replace("_", "-"),  # as files are called
        "uris": base + "/",
        "suites": repository.suite,
        "components": repository.components,
        "key": text,
        "key_url": key_url,
        "fingerprint": wanted,
    }


def _refuse_odd_url(url: str) -> None:
    """Refuse what would break apt's file, and a password that plans, logs and a file for everyone would show."""
    if not url:
        return
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:/[^\s\x00-\x1f\x7f]*", url):
        raise UsageError(
            "usage.url", f"{url!r} is not the address of a repository", hint="write it as https://mirror.example.org/path/"
        )  # fmt: skip
    if "@" in url.split("//", 1)[-1].split("/", 1)[0]:
        raise UsageError(
            "usage.url_with_password", "a repository's address must not hold a user or password",
            because=[aptcommon.redact(url)], hint="put them into a file in /etc/apt/auth.conf.d on the host (apt_auth.conf(5))",
        )  # fmt: skip


def _load_key(key: str) -> tuple[str | None, str | None]:
    """Return (armored text, URL) of a key that was given as text, file on the controller, or URL."""
    if not key:
        return None, None
    if "BEGIN PGP" in key:
        return key, None
    if "://" in key:
        return None, key
    path = Path(key).expanduser()
    try:
        return path.read_text(encoding="ascii"), None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "usage.key_unreadable", f"cannot read the repository key {key}", because=[str(error)],
            hint="give an armored key (gpg --armor --export) as a file, as text, or as a URL",
        ) from error  # fmt: skip
