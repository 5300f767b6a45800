"""Private keys and the agent: each read once for a whole fleet."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm

from provision.remote.once import once
from provision.remote.ssh_library import paramiko


@dataclass(frozen=True)
class Unusable:
    """A key file that is there and cannot be used, and why."""

    path: str
    why: str


def load(path: str, passphrase: str | None) -> paramiko.PKey | Unusable | None:
    """Return the private key in a file; None when there is no such file."""
    return _load(path, passphrase)


@once
def _load(path: str, passphrase: str | None) -> paramiko.PKey | Unusable | None:
    if not Path(path).is_file():
        return None
    try:
        # cryptography below wants bytes, whatever paramiko's annotation says.
        secret: Any = passphrase.encode() if passphrase is not None else None
        key = paramiko.PKey.from_path(path, secret)
    except (paramiko.PasswordRequiredException, TypeError):
        return Unusable(path, "it has a passphrase: ssh-add it, or set ansible_ssh_private_key_passphrase")
    except (paramiko.SSHException, UnsupportedAlgorithm, ValueError, OSError) as error:
        return Unusable(path, f"it cannot be read: {error}")
    certificate = Path(f"{path}-cert.pub")
    if certificate.is_file() and key.public_blob is None:
        key.load_certificate(str(certificate))
    return key


@once
def from_text(text: str, passphrase: str | None) -> paramiko.PKey | Unusable:
    """Return the private key that the inventory holds itself (ansible_ssh_private_key)."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(text.strip() + "\n"), passphrase)
        except (paramiko.SSHException, ValueError):
            continue
    return Unusable("ansible_ssh_private_key", "it is no private key that can be read")


@once
def agent() -> list[paramiko.AgentKey]:
    """Return the keys of the agent, asked once."""
    return list(_Agent().get_keys())


class _Agent(paramiko.Agent):
    """paramiko's agent client speaks on one socket; many hosts sign at once."""

    _turn = threading.Lock()

    def _send_message(self, msg: Any) -> Any:
        with self._turn:
            return super()._send_message(msg)  # type: ignore[misc]


def agent_keys() -> list[paramiko.AgentKey]:
    return agent()


def describe(key: Any) -> str:
    """Return "ssh-ed25519 SHA256:..." for a key."""
    return f"{key.get_name()} {key.fingerprint}" if hasattr(key, "fingerprint") else str(key.get_name())
