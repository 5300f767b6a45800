"""The command line that becomes another account, by the inventory's method. Pure."""

from __future__ import annotations

import secrets
import shlex

from provision.errors import UnreachableError
from provision.inventory import Connection

# A prompt of our own, so that no text of the host is taken for it.
_PROMPT = f"[sudo gpu-provision-{secrets.token_hex(8)}] password: "
# Linux-PAM's, which su asks with; LC_ALL=C keeps its language.
_SU_PROMPT = "Password: "


def command(host: str, connection: Connection, python: list[str]) -> tuple[list[str], bytes | None]:
    """Return the command that runs python as become_user and, where it may ask for a password, the prompt to wait for."""
    # In the program's own language, whatever the host's; env is there in every shell.
    program = ["env", "LC_ALL=C", *shlex.split(connection.become_exe)]
    user = connection.become_user
    if connection.become_method == "sudo":
        if connection.become_password is None:
            return [*program, "-H", "-u", user, "-n", "--", *python], None
        return [*program, "-H", "-u", user, "-S", "-p", _PROMPT, "--", *python], _PROMPT.encode()
    if connection.become_method == "su":
        # The password is that of user, and su asks without a terminal, too.
        return [*program, user, "-c", shlex.join(python)], _SU_PROMPT.encode()
    if not connection.become_known:
        raise UnreachableError(
            "become.unsupported",
            f"this Ansible has no become method {connection.become_method}",
            host=host,
            hint="doas: ansible-galaxy collection install community.general; sudo and su come with Ansible",
        )
    if connection.become_method == "doas":
        # It reads a password from a terminal only: -n fails at once where one is wanted.
        return [*program, "-n", "-u", user, *python], None
    raise UnreachableError(
        "become.unsupported",
        f"become method {connection.become_method} is not supported",
        host=host,
        hint="use sudo, su or doas (ansible_become_method), or log in as root",
    )
