"""The key that a mirror is signed with anew: one of the user's GnuPG, or one made for it. It never leaves the controller."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from provision.errors import RefusedError, UsageError

NEW = "new"
_UID = "gpu-provision mirror"


@dataclass(frozen=True)
class Signer:
    """A secret key. home: its GnuPG home; None: the user's own. made: it was made just now."""

    fingerprint: str
    home: Path | None = None
    made: bool = False

    @property
    def public(self) -> str:
        """The public key, armored."""
        return _gpg(self.home, "--armor", "--export", self.fingerprint).decode("ascii")

    def clear(self, text: str) -> str:
        """The text of InRelease for that of Release."""
        return self._sign(text, "--clearsign")

    def detached(self, text: str) -> str:
        """The text of Release.gpg."""
        return self._sign(text, "--armor", "--detach-sign")

    def _sign(self, text: str, *how: str) -> str:
        words = ["--local-user", self.fingerprint + "!", "--digest-algo", "SHA512", *how]
        return _gpg(self.home, *words, data=text.encode()).decode(
            "ascii" if "--detach-sign" in how else "utf-8"
        )


def signer(wanted: str, folder: Path | None = None) -> Signer:
    """Return the key for signing. wanted: ``new``, or fingerprint, id or address of a secret key in the user's GnuPG.

    folder: where a key of ours is kept, for ``new``; made there once. Raises UsageError and RefusedError.
    """
    if wanted != NEW:
        found = _secret(None, wanted)
        if len(found) != 1:
            raise UsageError(
                "mirror.key", f"{'no' if not found else 'more than one'} secret key {wanted} in your GnuPG", because=found,
                hint="gpg --list-secret-keys shows them; --sign new makes one for mirrors",
            )  # fmt: skip
        return Signer(found[0])
    home = folder or _own_home()
    found = _secret(home, _UID) if home.is_dir() else []
    if found:
        return Signer(found[0], home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    # Ed25519: every gpgv from Ubuntu 18.04 on and sqv read it. No passphrase: it signs without a person.
    _gpg(home, "--quick-gen-key", _UID, "ed25519", "sign", "never")
    return Signer(_secret(home, _UID)[0], home, made=True)


def _own_home() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(base) / "gpu-provision" / "mirror-key"


def _secret(home: Path | None, wanted: str) -> list[str]:
    """Fingerprints of secret keys that can sign."""
    try:
        text = _gpg(home, "--with-colons", "--list-secret-keys", wanted).decode("utf-8", "replace")
    except RefusedError:
        return []
    return re.findall(r"^sec:(?![^\n]*:[er]:).*\n(?:(?!sec:|ssb:).*\n)*?fpr:+([0-9A-F]{40}):", text, re.M)


def _gpg(home: Path | None, *words: str, data: bytes | None = None) -> bytes:
    command = ["gpg", "--yes", "--quiet"]
    if home is not None:
        command += [
            "--homedir",
            str(home),
            "--batch",
            "--no-tty",
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            "",
        ]
    try:
        done = subprocess.run([*command, *words], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise RefusedError(
            "mirror.no_gpg", "gpg is not installed here",
            hint="apt install gpg; or leave --sign away and keep the originals' signatures",
        ) from None  # fmt: skip
    if done.returncode:
        raise RefusedError(
            "mirror.gpg", f"gpg {words[0]} failed", because=done.stderr.decode("utf-8", "replace").strip().splitlines()[-4:],
            hint="try it by hand: the key may want its passphrase (GPG_TTY=$(tty))",
        )  # fmt: skip
    return done.stdout
