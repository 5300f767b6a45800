"""Which repository a channel means on a host, and by which key it is signed: the catalog's, or a mirror of yours."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp, redact
from provision.catalog import Catalog
from provision.errors import RefusedError, UsageError
from provision.facts import Facts
from provision.inventory import mirror_layout

NAMES = {
    "cuda": "NVIDIA's repository",
    "ppa": "the graphics-drivers PPA",
    "container_toolkit": "NVIDIA's container toolkit repository",
}
# as our file for the mirror's part of Ubuntu's archive is called
ARCHIVE_NAME = "mirror"


@dataclass(frozen=True)
class Mirror:
    """What the inventory says about a repository; empty: what the catalog says. variables: their common prefix."""

    url: str = ""
    # armored text, a file on the controller, or a URL
    key: str = ""
    fingerprint: str = ""
    variables: str = "nvidia_driver_repo"

    @property
    def given(self) -> bool:
        return bool(self.url or self.key or self.fingerprint)


@dataclass(frozen=True)
class FleetMirror:
    """The inventory's gpu_mirror_*: one folder with everything, made by `provision mirror`. Empty url: there is none.

    Without a key the mirror has the originals' signatures; with one, everything of apt in it is signed by that key.
    """

    # no slash at its end
    url: str = ""
    key: str = ""
    fingerprint: str = ""

    @classmethod
    def from_vars(cls, values: Mapping[str, Any]) -> FleetMirror:
        """Return the mirror of role variables. Raises UsageError for an address that cannot be used."""
        url = str(values.get("gpu_mirror_url") or "").rstrip("/")
        _refuse_odd_url(url)
        if url and not re.match(r"(?:https?://|file:/)", url):
            raise UsageError(
                "usage.url",
                f"gpu_mirror_url: {url!r} is not the address of a mirror",
                hint="write http://mirror.example.org/gpu, or file:/srv/mirror for a folder on each host",
            )
        key = str(values.get("gpu_mirror_key") or "")
        fingerprint = str(values.get("gpu_mirror_key_fingerprint") or "")
        if url.startswith("file:"):
            # Python's downloads and pip know no other form.
            url = "file:///" + url.removeprefix("file:").lstrip("/")
        if (key or fingerprint) and not url:
            raise UsageError(
                "usage.mirror",
                "gpu_mirror_key is given, and no gpu_mirror_url",
                hint="set gpu_mirror_url, or remove the key",
            )
        return cls(url, key, fingerprint)

    def __bool__(self) -> bool:
        return bool(self.url)

    @property
    def signed(self) -> bool:
        """True when the mirror has a signature of its own in the place of the originals'."""
        return bool(self.key or self.fingerprint)

    def instead_of(self, given: Mirror, kind: str, facts: Facts, catalog: Catalog) -> Mirror:
        """Return where a repository comes from: what its own variables say of it (given), else this mirror."""
        if not self or given.url:
            return given
        path = mirror_layout.repository_path(kind, facts.host.os.version_id, facts.host.arch, catalog)
        if not self.signed:
            return replace(given, url=f"{self.url}/{path}")
        return Mirror(f"{self.url}/{path}", self._key, self._wanted() or "", "gpu_mirror")

    def archive(self, facts: Facts, catalog: Catalog) -> dict[str, Any]:
        """The part of the mirror that stands for Ubuntu's archive, as apt.query's SourceSpec."""
        text, key_url = _load_key(self._key)
        spec: dict[str, Any] = {
            "name": ARCHIVE_NAME,
            "uris": f"{self.url}/{mirror_layout.archive_path(facts.host.arch)}/",
            "suites": mirror_layout.archive_suites(catalog.ubuntu(facts.host.os.version_id).codename),
            "components": mirror_layout.COMPONENTS,
            "key": text,
            "key_url": key_url,
            "fingerprint": self._wanted(),
        }
        if not self.signed:
            # the host has it
            spec["signed_by"] = mirror_layout.ARCHIVE_KEYRING
        return spec

    @property
    def _key(self) -> str:
        """The key, or where hosts fetch it: trusted only with the fingerprint."""
        return self.key or (f"{self.url}/{mirror_layout.KEY}" if self.fingerprint else "")

    def _wanted(self) -> str | None:
        """The fingerprint, by the key itself where it is not given."""
        text, key_url = _load_key(self.key)
        if self.fingerprint or text is None:
            if key_url and not self.fingerprint:
                raise UsageError(
                    "usage.mirror",
                    "gpu_mirror_key is an address, and there is no gpu_mirror_key_fingerprint",
                    because=["a key is trusted by its fingerprint, not by where it came from"],
                    hint="provision mirror --sign prints the fingerprint; or give the key as a file",
                )
            return _bare(self.fingerprint)
        try:
            found: list[str] = openpgp.primaries(text.encode("ascii", "replace"))
        except ValueError as error:
            raise UsageError(
                "usage.key_unreadable",
                "gpu_mirror_key is no OpenPGP key",
                because=[str(error)],
                hint="give key.asc of the mirror, as a file or as text",
            ) from error
        if len(found) != 1:
            raise UsageError(
                "usage.key_unreadable",
                "gpu_mirror_key holds more than one key",
                because=found,
                hint="a mirror is signed by one: gpu_mirror_key_fingerprint says which, or give that key alone",
            )
        return found[0]

    @property
    def conda(self) -> dict[str, str]:
        """What miniconda_* take where they are empty: installers, channels and both indexes of wheels."""
        if not self:
            return {}
        places = {
            "installer_url": mirror_layout.INSTALLERS + "/",
            "channel_alias": mirror_layout.CONDA,
            "wheel_index_url": mirror_layout.WHEELS,
            "pip_index_url": mirror_layout.SIMPLE,
        }
        return {name: f"{self.url}/{path}" for name, path in places.items()}


def agreed(first: Mirror, second: Mirror) -> Mirror:
    """What two roles say about one repository, put together. Raises UsageError where they contradict each other."""
    for name in ("url", "key", "fingerprint"):
        one, other = (getattr(mirror, name).rstrip("/") for mirror in (first, second))
        if one and other and one != other:
            tail = {"url": "_url", "key": "_key", "fingerprint": "_key_fingerprint"}[name]
            raise UsageError(
                "usage.repository_twice",
                f"{first.variables}{tail} and {second.variables}{tail} differ",
                because=["one repository holds drivers and toolkits, and a host has one entry of it"],
                hint="set one of them only",
            )
    return Mirror(
        first.url or second.url,
        first.key or second.key,
        first.fingerprint or second.fingerprint,
        first.variables if first.given or not second.given else second.variables,
    )


def source_spec(kind: str, mirror: Mirror, facts: Facts, catalog: Catalog) -> dict[str, Any]:
    """Return a repository ("cuda", "ppa", …) as apt.query's SourceSpec.

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
        key_url = repository.key_url if not url else f"{base}/{mirror_layout.key_name(repository)}"
    wanted = _bare(fingerprint or repository.fingerprint or "")
    if text is None and (wanted is None or key_url is None):
        prefix = mirror.variables + "_key"
        raise RefusedError(
            "apt.key_unknown",
            f"the key of {NAMES[kind]} for Ubuntu {facts.host.os.version_id} is not known to the catalog",
            because=[repository.note or "no source states its fingerprint", "nothing is installed on trust"],
            hint=f"set {prefix} to the key and {prefix}_fingerprint to its fingerprint as the vendor states it"
            + _archive_instead(mirror.variables, facts, catalog),
        )
    return {
        # as files are called
        "name": kind.replace("_", "-"),
        "uris": base + "/",
        "suites": repository.suite,
        "components": repository.components,
        "key": text,
        "key_url": key_url,
        "fingerprint": wanted,
    }


def _archive_instead(variables: str, facts: Facts, catalog: Catalog) -> str:
    """What the Ubuntu archive has in the place of NVIDIA's repository, as the end of a hint."""
    if variables.startswith("nvidia_driver"):
        return ", or nvidia_driver_channel: ubuntu"
    own = catalog.cuda_data.archive_ranges.get(facts.host.os.version_id)
    return f', or cuda_toolkit_channel: ubuntu with cuda_toolkit_versions: ["{own.last or own.first}"]' if own else ""


def archive_key(given: str, catalog: Catalog) -> tuple[list[str], str | None]:
    """Return (fingerprints, base64 of the ring or None) by which Ubuntu's archive is signed.

    given: fingerprint, armored text or file on this machine of a company's own archive; empty: Ubuntu's own keys.
    """
    if not given:
        return catalog.archive_keys, None
    try:
        return [openpgp.normalize(given)], None
    except ValueError:
        # a text or a file
        pass
    try:
        data = given.encode() if "BEGIN PGP" in given else Path(given).expanduser().read_bytes()
        ring = openpgp.dearmor(data)
        return openpgp.primaries(ring), base64.b64encode(ring).decode("ascii")
    except (OSError, ValueError) as error:
        raise UsageError(
            "usage.key_unreadable",
            "cannot read the key of the archive",
            because=[str(error)],
            hint="--archive-key (gpu_mirror_archive_key) takes a full fingerprint, or the key as a file on this machine",
        ) from error


def _bare(fingerprint: str) -> str | None:
    return fingerprint.replace(" ", "").upper() or None


def _refuse_odd_url(url: str) -> None:
    """Refuse what would break apt's file, and a password that plans, logs and a file for everyone would show."""
    if not url:
        return
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:/[^\s\x00-\x1f\x7f]*", url):
        raise UsageError(
            "usage.url",
            f"{url!r} is not the address of a repository",
            hint="write it as https://mirror.example.org/path/",
        )
    if redact.has_secret(url):
        raise UsageError(
            "usage.url_with_password",
            "a repository's address must not hold a user or password",
            because=[redact.text(url)],
            hint="put them into a file in /etc/apt/auth.conf.d on the host (apt_auth.conf(5))",
        )


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
            "usage.key_unreadable",
            f"cannot read the repository key {key}",
            because=[str(error)],
            hint="give an armored key (gpg --armor --export) as a file, as text, or as a URL",
        ) from error
