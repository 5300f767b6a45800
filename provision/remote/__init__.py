"""The fast read: a Python program sent to each host over ssh, in parallel, one connection and one channel a host.

    with closing(open_session(host)) as session:
        facts = session.call("probe.facts", {})

``for_each`` runs a function over many hosts in threads.
"""

from __future__ import annotations

import os
import sys

from provision.errors import UnreachableError
from provision.inventory import Host
from provision.remote.parallel import MAX_FORKS, for_each
from provision.remote.session import ProgramSession, Session

__all__ = ["MAX_FORKS", "Session", "close_shared", "for_each", "open_session"]


def open_session(host: Host) -> Session:
    """Return a session with a host, logged in; UnreachableError says why not, with a code.

    The program on the host starts with the first call. Close the session after use.
    """
    kind = host.connection.kind
    if kind == "local":
        return _local(host)
    if kind != "ssh":
        raise UnreachableError(
            "connect.unsupported",
            f"connection {kind} (ansible_connection) is not supported",
            host=host.name,
            hint="use ssh or local; playbooks/site.yml with ansible-playbook takes any connection",
        )
    from provision.remote import client, target

    goal = target.resolve(host.connection)
    if not goal.reasons:
        try:
            connected = client.connect(host, goal)
        except client.NeedsOpenSsh as reason:
            return _openssh(host, str(reason))
        return ProgramSession(
            host,
            connected.start,
            user=goal.user,
            is_root=goal.user == "root",
            on_close=connected.close,
            lost=connected.lost,
        )
    return _openssh(host, *goal.reasons)


def close_shared() -> None:
    """Close what sessions share (connections to jump hosts); for the end of a command."""
    client = sys.modules.get("provision.remote.client")
    if client is not None:
        client.close_jumps()


def _openssh(host: Host, *reasons: str) -> Session:
    from dataclasses import replace

    from provision.remote import openssh, target

    goal = replace(target.resolve(host.connection), reasons=reasons)
    ssh = openssh.OpenSsh(host, goal)
    user = ssh.user()
    return ProgramSession(host, ssh.start, user=user, is_root=user == "root", lost=ssh.lost)


def _local(host: Host) -> Session:
    import getpass

    from provision.remote.stream import ProcessStream

    def start(argv: list[str]) -> ProcessStream:
        try:
            return ProcessStream(argv)
        except FileNotFoundError:
            # As a shell says it, so that a missing Python or sudo is explained as on any other host.
            return ProcessStream(["sh", "-c", 'echo "sh: $0: not found"; exit 127', argv[0]])

    return ProgramSession(host, start, user=getpass.getuser(), is_root=os.geteuid() == 0)
