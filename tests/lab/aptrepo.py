"""Signed apt repositories in a folder: pool, Packages, Release and InRelease, in the layouts of the real ones."""

from __future__ import annotations

import concurrent.futures
import gzip
import hashlib
import json
import os
import subprocess
import time
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from .debfile import Package, build, stanza


@dataclass(frozen=True)
class Key:
    """A signing key in a GnuPG home of its own: fingerprint and the file of its public part."""

    home: Path
    fingerprint: str
    public: Path


def make_key(folder: Path, name: str) -> Key:
    """Return the key kept in a folder, made on first use."""
    public, home = folder / "public.asc", folder / "gnupg"
    if not public.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _gpg(home, "--quick-gen-key", f"{name} <{folder.name}@example.invalid>", "rsa2048", "sign", "never")
        public.write_bytes(_gpg(home, "--armor", "--export"))
    fingerprint = next(
        line.split(":")[9]
        for line in _gpg(home, "--with-colons", "--list-keys").decode().splitlines()
        if line.startswith("fpr")
    )
    return Key(home, fingerprint, public)


def _gpg(home: Path, *words: str, data: bytes | None = None) -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--no-tty", "--quiet", "--pinentry-mode", "loopback"]
    done = subprocess.run([*command, "--passphrase", "", *words], input=data, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gpg {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


class Index:
    """What a repository lists: suite -> component -> paragraphs of Packages; ``/`` is the suite of a flat one."""

    def __init__(self, paragraphs: dict[str, dict[str, list[str]]] | None = None) -> None:
        self.paragraphs: dict[str, dict[str, list[str]]] = paragraphs or {}

    def add(self, package: Package, text: str) -> None:
        """List a built package in its suites."""
        for suite in package.suites or ("/",):
            self.paragraphs.setdefault(suite, {}).setdefault(package.component, []).append(text)

    def names(self) -> set[str]:
        """Names of all packages and of what they provide."""
        found: set[str] = set()
        for components in self.paragraphs.values():
            for texts in components.values():
                for text in texts:
                    for line in text.splitlines():
                        key, _, value = line.partition(": ")
                        if key == "Package":
                            found.add(value)
                        elif key == "Provides":
                            found.update(item.split(" ")[0] for item in value.split(", "))
        return found


def add_to_pool(root: Path, packages: list[Package], index: Index) -> None:
    """Build packages into the pool below root and list them; one that is there is not built again."""

    def one(package: Package) -> str:
        if package.suites:
            folder = f"pool/{package.component}/{package.fields.get('Source', package.name)[:1]}/{package.name}"
        else:
            folder = "."
        path = os.path.normpath(f"{folder}/{package.file_name}")
        deb = build(package)
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(deb)
        return stanza(package, path if package.suites else "./" + path, deb)

    for package in packages:
        index.add(package, one(package))


def publish(
    root: Path, index: Index, key: Key, *, origin: str, label: str, codename: str = "", version: str = ""
) -> None:
    """Write Packages, Release and InRelease of every suite; clients see the old state until the last rename."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(_suite, root, suite, components, key, origin, label, codename, version)
            for suite, components in index.paragraphs.items()
        ]
    for job in jobs:
        job.result()


def _suite(
    root: Path,
    suite: str,
    components: dict[str, list[str]],
    key: Key,
    origin: str,
    label: str,
    codename: str,
    version: str,
) -> None:
    flat = suite == "/"
    folder = root if flat else root / "dists" / suite
    lists: dict[str, bytes] = {}
    for component, texts in components.items():
        data = "\n".join(texts).encode()
        prefix = "" if flat else f"{component}/binary-amd64/"
        lists[prefix + "Packages"] = data
        lists[prefix + "Packages.gz"] = gzip.compress(data, 6, mtime=0)
    for name, data in lists.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
        by_hash = target.parent / "by-hash" / "SHA256" / hashlib.sha256(data).hexdigest()
        by_hash.parent.mkdir(parents=True, exist_ok=True)
        if not by_hash.exists():
            by_hash.write_bytes(data)
    lines = [f"Origin: {origin}", f"Label: {label}"]
    if not flat:
        lines += [
            f"Suite: {suite}",
            f"Version: {version}",
            f"Codename: {codename}",
            f"Components: {' '.join(components)}",
        ]
    lines += [
        f"Date: {formatdate(time.time(), usegmt=True)}",
        "Architectures: amd64",
        "Acquire-By-Hash: yes",
        "SHA256:",
    ]
    lines += [f" {hashlib.sha256(data).hexdigest()} {len(data):16d} {name}" for name, data in sorted(lists.items())]
    text = ("\n".join(lines) + "\n").encode()
    _replace(folder / "Release", text)
    _replace(folder / "InRelease", _gpg(key.home, "--digest-algo", "SHA512", "--clearsign", data=text))
    _replace(folder / "Release.gpg", _gpg(key.home, "--digest-algo", "SHA512", "--armor", "--detach-sign", data=text))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)


def save(index: Index, path: Path) -> None:
    """Keep an index for later publications."""
    path.write_text(json.dumps(index.paragraphs))


def load(path: Path) -> Index:
    """Read a kept index."""
    return Index(json.loads(path.read_text()))
