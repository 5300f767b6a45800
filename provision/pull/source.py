"""The inventory of a host that pulls: a git repository, an archive (.tar.gz), or a folder that already exists.

The inventory decides what root does here. So it comes by a way that proves who sent it (https, ssh, this host's own disk), or
the source names its content: the checksum of an archive, the full commit or a signed one of a repository.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import proxies
from provision.errors import HostFailedError, UsageError
from provision.pull.unpack import BadArchiveError, sync, unpack

# bytes of an archive: an inventory is small
_LIMIT = 64 << 20
_SECONDS = 300
# The role gpu_pull has the same three patterns (a test compares them).
_ARCHIVE = re.compile(r"^(?:https?|file)://.*\.(?:tar\.gz|tgz)$")
# A path, or user@host:path, which git takes as ssh.
_SAFE = re.compile(r"^(?:https://|ssh://|file:///|/|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:(?!:))")
_PINNED = re.compile(r"^(?:[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})$")
_OPEN = re.compile(r"^(?:http|git)://")


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
    refuse_unproven(source)
    if source.kind == "folder":
        return Path(source.url.removeprefix("file://")), "a folder"
    if source.kind == "archive":
        return _archive(source, folder)
    return _git(source, folder / "git")


def refuse_unproven(source: Source) -> None:
    """Raise UsageError for an address that is none, or that anybody on the way can answer for."""
    shown = without_login(source.url)
    if source.version.startswith("-") or not (_SAFE.match(source.url) or _OPEN.match(source.url)):
        raise UsageError(
            "usage.source",
            f"{shown!r} is no source of an inventory",
            hint="set gpu_pull_source to https://…, ssh://…, user@host:path, or a path on the host",
        )
    if source.sha256 and not re.fullmatch(r"[0-9A-Fa-f]{64}", source.sha256):
        raise UsageError(
            "usage.checksum",
            "gpu_pull_sha256 is no checksum",
            because=["a sha256 has 64 hexadecimal digits"],
            hint="sha256sum inventory.tar.gz prints it",
        )
    named = source.sha256 if source.kind == "archive" else source.verify_commit or _PINNED.match(source.version)
    if _OPEN.match(source.url) and not named:
        raise UsageError(
            "usage.source_unproven",
            f"{shown} is not encrypted, and nothing says what should come from there",
            because=["whoever sits between the server and this host could send another inventory, which root applies"],
            hint="use https:// or ssh://; or name the content: gpu_pull_sha256 of an archive, the full commit in "
            "gpu_pull_version, or gpu_pull_verify_commit: true",
        )


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


# --- git


def _git(source: Source, folder: Path) -> tuple[Path, str]:
    """A shallow copy, put to what the source says; a damaged one is made anew."""
    # One run is at work at a time: these are of a git that was killed, and would stop every later one.
    for lock in (folder / ".git").rglob("*.lock"):
        lock.unlink()
    try:
        return _bring(source, folder)
    except HostFailedError:
        if not (folder / ".git").exists() or _is_whole(folder):
            raise
        shutil.rmtree(folder)
        return _bring(source, folder)


def _is_whole(folder: Path) -> bool:
    command = ["git", "-C", str(folder), "--git-dir", ".git", "fsck", "--connectivity-only"]
    return subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False).returncode == 0


def _bring(source: Source, folder: Path) -> tuple[Path, str]:
    """Fetch and check out; changes that somebody made in the copy are gone."""
    if not (folder / ".git").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _run(source, folder, "init", "--quiet")
    _run(source, folder, "fetch", "--quiet", "--depth", "1", "--", source.url, source.version or "HEAD")
    came = _run(source, folder, "rev-parse", "FETCH_HEAD^{commit}").strip()
    if _PINNED.match(source.version) and came != source.version.lower():
        raise HostFailedError(
            "pull.checksum",
            "the repository sent another commit than the one that was asked for",
            because=[f"wanted: {source.version}", f"came: {came}"],
            hint="check gpu_pull_version and the server",
        )
    if source.verify_commit:
        _run(source, folder, "verify-commit", "FETCH_HEAD")
    _run(source, folder, "reset", "--quiet", "--hard", "FETCH_HEAD")
    _run(source, folder, "clean", "--quiet", "-ffdx")
    return folder, _run(source, folder, "rev-parse", "HEAD").strip()


def _run(source: Source, folder: Path, *command: str) -> str:
    # Redirections too: https may not lead to http.
    allowed = source.url.split(":")[0] if _OPEN.match(source.url) else "https:ssh:file"
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "GIT_ALLOW_PROTOCOL": allowed}
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    if source.ssh_key:
        ssh += ["-i", source.ssh_key, "-o", "IdentitiesOnly=yes"]
    environment["GIT_SSH_COMMAND"] = shlex.join(ssh)
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise HostFailedError("pull.no_git", "git is not installed here", hint="apt install git") from None
    except subprocess.TimeoutExpired:
        raise HostFailedError(
            "pull.fetch", f"git {command[0]} took longer than {_SECONDS} s", hint="is the server reachable from here?"
        ) from None
    if done.returncode:
        raise HostFailedError(
            "pull.fetch",
            f"git {command[0]} failed",
            because=without_login(done.stderr).strip().splitlines()[-4:],
            hint="try it as root on this host: the server, its host key (known_hosts) or the login may be missing",
        )
    return done.stdout


def without_login(text: str) -> str:
    return re.sub(r"(://)[^/\s@]+@", r"\1", text)


# --- archives


def _archive(source: Source, folder: Path) -> tuple[Path, str]:
    """Unpack an archive beside the old one and let the link ``archive`` lead to it: at any moment it leads to a whole one."""
    data = _download(source)
    digest = hashlib.sha256(data).hexdigest()
    if source.sha256 and digest != source.sha256.lower():
        raise HostFailedError(
            "pull.checksum",
            "the archive is not the one that was expected",
            because=[f"sha256 wanted: {source.sha256}", f"sha256 of {len(data)} bytes: {digest}"],
            hint="gpu_pull_sha256 is of one archive: leave it empty for one that changes, over https alone",
        )
    folder.mkdir(parents=True, exist_ok=True)
    link, kept = folder / "archive", None
    if link.is_symlink():
        kept = str(link.readlink())
    elif link.exists():
        # As earlier versions left it: the archive itself.
        kept = tempfile.mkdtemp(prefix="archive.", dir=folder)
        link.rename(kept)
    _remove_old(folder, kept)
    fresh = Path(tempfile.mkdtemp(prefix="archive.", dir=folder))
    try:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            unpack(file, fresh)
    except (BadArchiveError, OSError) as error:
        shutil.rmtree(fresh)
        raise HostFailedError(
            "pull.archive",
            "the archive cannot be unpacked",
            because=[str(error)],
            hint="make it of plain files, without links: tar --dereference -czf inventory.tar.gz .",
        ) from error
    new = folder / "archive.link"
    new.unlink(missing_ok=True)
    new.symlink_to(fresh.name)
    new.replace(link)
    sync(folder)
    _remove_old(folder, fresh.name)
    return link, f"sha256:{digest}"


def _remove_old(folder: Path, kept: str | None) -> None:
    """Remove what earlier runs unpacked, those that were killed too."""
    for path in folder.glob("archive.*"):
        if path.is_dir() and not path.is_symlink() and path.name != Path(kept or "").name:
            shutil.rmtree(path)


class _Encrypted(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https alone."""

    def redirect_request(self, *args: Any, **more: Any) -> urllib.request.Request | None:
        request = super().redirect_request(*args, **more)
        if request is not None and request.type != "https":
            raise urllib.error.URLError("the server redirects to an address that is not https")
        return request


def _download(source: Source) -> bytes:
    url = source.url
    opener = urllib.request.build_opener(*([] if source.sha256 else [_Encrypted()]))
    deadline, data = time.monotonic() + _SECONDS, bytearray()
    try:
        with opener.open(url, timeout=60) as answer:
            while len(data) <= _LIMIT and (chunk := answer.read1(1 << 16)):
                data += chunk
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it took longer than {_SECONDS} s")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise HostFailedError(
            "pull.fetch",
            f"the archive cannot be fetched: {without_login(proxies.why(error))}",
            because=[without_login(url)],
            hint="is the server reachable from here? a proxy is set in the environment of gpu-pull.service",
        ) from error
    if len(data) > _LIMIT:
        raise HostFailedError(
            "pull.archive",
            "the archive is too large for an inventory",
            because=[f"more than {_LIMIT >> 20} MiB"],
            hint="check its content",
        )
    return bytes(data)
