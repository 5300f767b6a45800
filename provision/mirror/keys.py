"""The key that a mirror is signed with anew: one of the user's GnuPG, or one made for it. It never leaves the controller."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch
from provision.errors import RefusedError, UsageError

NEW = "new"
FILE = "secret-key.asc"
_UID = "gpu-provision mirror"


@dataclass(frozen=True)
class Signer:
    """A secret key. file: a key of ours, as a file; None: it is in the user's own GnuPG. made: it was made just now."""

    fingerprint: str
    file: Path | None = None
    made: bool = False

    @property
    def public(self) -> str:
        """The public key, armored."""
        return self._run("--armor", "--export", self.fingerprint).decode("ascii")

    def clear(self, text: str) -> str:
        """The text of InRelease for that of Release."""
        return self._sign(text, "--clearsign")

    def detached(self, text: str) -> str:
        """The text of Release.gpg."""
        return self._sign(text, "--armor", "--detach-sign")

    def _sign(self, text: str, *how: str) -> str:
        return self._run(
            "--local-user", self.fingerprint + "!", "--digest-algo", "SHA512", *how, data=text.encode()
        ).decode()

    def _run(self, *arguments: str, data: bytes | None = None) -> bytes:
        if self.file is None:
            return _gpg(None, *arguments, data=data)
        with _home() as home:
            _gpg(home, "--import", str(self.file))
            return _gpg(home, *arguments, data=data)


def signer(wanted: str, folder: Path | None = None) -> Signer:
    """Return the key for signing. wanted: ``new``, or fingerprint, id or address of a secret key in the user's GnuPG.

    folder: where a key of ours is kept, for ``new``; made there once. Raises UsageError and RefusedError.
    """
    if wanted != NEW:
        found = _secret(None, wanted)
        if len(found) != 1:
            raise UsageError(
                "mirror.key",
                f"{'no' if not found else 'more than one'} secret key {wanted} in your GnuPG",
                because=found,
                hint="gpg --list-secret-keys shows them; --sign new makes one for mirrors",
            )
        return Signer(found[0])
    file = (folder or _own_folder()) / FILE
    made = not file.is_file()
    with _home() as home:
        if made:
            # Ed25519: every gpgv from Ubuntu 18.04 on and sqv read it. No passphrase: it signs without a person.
            _gpg(home, "--quick-gen-key", _UID, "ed25519", "sign", "never")
            _keep(file, _gpg(home, "--armor", "--export-secret-keys"))
        else:
            _gpg(home, "--import", str(file))
        return Signer(_secret(home, _UID)[0], file, made)


def _own_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(base) / "gpu-provision" / "mirror-key"


def _keep(file: Path, data: bytes) -> None:
    """Write a secret key, for its owner alone; a file that is there is never written over."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as out:
        out.write(data)


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """A GnuPG home for a moment, with a short path: its agent's socket may not have a long one (108 bytes)."""
    with scratch.Folder("gpg", "/tmp") as folder:  # noqa: S108 - made for us alone, 0700
        try:
            yield Path(folder)
        finally:
            subprocess.run(["gpgconf", "--homedir", folder, "--kill", "all"], capture_output=True, check=False)


def _secret(home: Path | None, wanted: str) -> list[str]:
    """Fingerprints of secret keys that can sign."""
    try:
        text = _gpg(home, "--with-colons", "--list-secret-keys", wanted).decode("utf-8", "replace")
    except RefusedError as error:
        if error.issue.code == "mirror.no_gpg":
            raise
        return []
    return re.findall(r"^sec:(?![er]:).*\n(?:(?!sec:|ssb:).*\n)*?fpr:+([0-9A-F]{40}):", text, re.M)


def _gpg(home: Path | None, *arguments: str, data: bytes | None = None) -> bytes:
    command = ["gpg", "--yes", "--quiet"]
    if home is not None:
        command += ["--homedir", str(home), "--batch", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""]
    try:
        done = subprocess.run([*command, *arguments], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise RefusedError(
            "mirror.no_gpg",
            "gpg is not installed here",
            hint="apt install gpg; or leave --sign away and keep the originals' signatures",
        ) from None
    if done.returncode:
        raise RefusedError(
            "mirror.gpg",
            f"gpg {next(word for word in arguments if word.startswith('--'))} failed",
            because=done.stderr.decode("utf-8", "replace").strip().splitlines()[-4:],
            hint="try it by hand: the key may want its passphrase (GPG_TTY=$(tty))",
        )
    return done.stdout
