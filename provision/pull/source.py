"""The inventory of a host that pulls: a git repository, an archive (.tar.gz) over http, or a folder that is there already."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from provision.errors import HostFailedError, UsageError

_LIMIT = 64 << 20  # bytes of an archive: an inventory is small
_SECONDS = 300
_ARCHIVE = re.compile(r"^(?:https?|file)://.*\.(?:tar\.gz|tgz)$")


@dataclass(frozen=True)
class Source:
    """Where the inventory comes from. version: branch, tag or commit of a repository; sha256: of an archive."""

    url: str
    version: str = ""
    sha256: str = ""
    ssh_key: str = ""
    verify_commit: bool = False

    @property
    def kind(self) -> str:
        """``archive``, ``folder`` or ``git``, by the address."""
        if _ARCHIVE.match(self.url):
            return "archive"
        path = Path(self.url.removeprefix("file://"))
        if self.url.startswith(("/", "file:///")) and path.is_dir() and not _is_repository(path):
            return "folder"
        return "git"


def fetch(source: Source, folder: Path) -> tuple[Path, str]:
    """Bring the source into a folder of ours; return where its files lie and which state that is (commit, checksum).

    Raises UsageError and HostFailedError; what was fetched before then stays as it was.
    """
    if source.url.startswith("-") or source.version.startswith("-") or not source.url:
        raise UsageError(
            "usage.source", f"{source.url!r} is no source of an inventory", hint="set gpu_pull_source"
        )
    if source.kind == "folder":
        return Path(source.url.removeprefix("file://")), "a folder"
    if source.kind == "archive":
        return _archive(source, folder / "archive")
    return _git(source, folder / "git")


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


# --- git


def _git(source: Source, folder: Path) -> tuple[Path, str]:
    """A shallow copy, put to what the source says; changes that somebody made in it are gone."""
    if not (folder / ".git").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _run(source, folder, "init", "--quiet")
    _run(source, folder, "fetch", "--quiet", "--depth", "1", "--", source.url, source.version or "HEAD")
    if source.verify_commit:
        _run(source, folder, "verify-commit", "FETCH_HEAD")
    _run(source, folder, "reset", "--quiet", "--hard", "FETCH_HEAD")
    _run(source, folder, "clean", "--quiet", "-ffdx")
    return folder, _run(source, folder, "rev-parse", "HEAD").strip()


def _run(source: Source, folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    if source.ssh_key:
        ssh += ["-i", source.ssh_key, "-o", "IdentitiesOnly=yes"]
    environment["GIT_SSH_COMMAND"] = " ".join(ssh)
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )  # fmt: skip
    except FileNotFoundError:
        raise HostFailedError("pull.no_git", "git is not installed here", hint="apt install git") from None
    except subprocess.TimeoutExpired:
        raise HostFailedError(
            "pull.fetch",
            f"git {words[0]} took longer than {_SECONDS} s",
            hint="is the server reachable from here?",
        ) from None
    if done.returncode:
        raise HostFailedError(
            "pull.fetch", f"git {words[0]} failed", because=_without_login(done.stderr).strip().splitlines()[-4:],
            hint="try it as root on this host: the server, its host key (known_hosts) or the login may be missing",
        )  # fmt: skip
    return done.stdout


def _without_login(text: str) -> str:
    return re.sub(r"(://)[^/\s@]+@", r"\1", text)


# --- archives


def _archive(source: Source, folder: Path) -> tuple[Path, str]:
    """Unpack an archive beside the old one and put it in its place, whole."""
    data = _download(source.url)
    digest = hashlib.sha256(data).hexdigest()
    if source.sha256 and digest != source.sha256.lower():
        raise HostFailedError(
            "pull.checksum", "the archive is not the one that was expected",
            because=[f"sha256 wanted: {source.sha256}", f"sha256 of {len(data)} bytes: {digest}"],
            hint="gpu_pull_sha256 is of one archive: leave it empty for one that changes, over https alone",
        )  # fmt: skip
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="archive.", dir=folder.parent))
    try:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:gz") as packed:
                packed.extractall(fresh, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        shutil.rmtree(fresh)
        raise HostFailedError(
            "pull.archive", "the archive cannot be unpacked", because=[str(error)], hint="make it with: tar -czf inventory.tar.gz ."
        ) from error  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return folder, f"sha256:{digest}"


def _download(url: str) -> bytes:
    try:
        with urllib.request.build_opener().open(url, timeout=60) as answer:
            data: bytes = answer.read(_LIMIT + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise HostFailedError(
            "pull.fetch", f"the archive cannot be fetched: {_without_login(str(error))}", because=[_without_login(url)],
            hint="is the server reachable from here? a proxy stands in the environment of gpu-pull.service",
        ) from error  # fmt: skip
    if len(data) > _LIMIT:
        raise HostFailedError(
            "pull.archive", "the archive is too large for an inventory", hint="look what is in it"
        )
    return data
