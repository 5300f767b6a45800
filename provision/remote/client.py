"""An ssh connection with paramiko: one TCP connection, one key exchange, one login that is likely to work."""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from provision.errors import ProvisionError, UnreachableError
from provision.inventory import Host
from provision.lib import load
from provision.remote import explain, keys, knownhosts, target
from provision.remote.ssh_library import IncompatiblePeer, paramiko
from provision.remote.stream import Stream
from provision.remote.target import Target

# The fewest bytes first; the rest stays as the fallback. Measured with paramiko 5.1 against OpenSSH 9.2: no choice of
# key exchange or cipher makes 40 parallel logins faster than another, sshd's own work is the floor.
_FIRST_KEX = ("curve25519-sha256@libssh.org",)
_FIRST_CIPHERS = ("aes128-gcm@openssh.com", "aes128-ctr")
# The key exchange and login of a healthy host take milliseconds; sshd under load or with slow DNS takes seconds.
_LOGIN_SECONDS = 30.0
_LOGINS_PER_CORE = 8
_PIECE = 32 * 1024
# What paramiko itself takes without a limit: lines before the key exchange, one packet (OpenSSH sends 256 KiB at most), and
# what a host sends beyond the window that we gave it.
_GREETING, _PACKET, _UNREAD = 64 * 1024, 1024 * 1024, 4 * 1024 * 1024

# paramiko logs every refused key as an error with a traceback; the errors below say it better.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class NeedsOpenSsh(Exception):
    """paramiko cannot do what this host asks for; the OpenSSH client may."""


class ChannelStream:
    """A session channel of a paramiko transport."""

    def __init__(self, transport: paramiko.Transport, command: str, timeout: float) -> None:
        self._channel = transport.open_session(timeout=timeout)
        _limit_channel(self._channel)
        self._channel.set_combine_stderr(True)
        self._channel.settimeout(timeout)
        self._channel.exec_command(command)

    def send(self, data: memoryview, timeout: float) -> int:
        self._channel.settimeout(max(0.001, timeout))
        try:
            sent = self._channel.send(bytes(data[:_PIECE]))
        except (paramiko.SSHException, EOFError) as error:
            raise BrokenPipeError from error
        if not sent:
            raise BrokenPipeError
        return sent

    def recv(self, timeout: float) -> bytes:
        # paramiko's TimeoutError is socket.timeout, the same class since Python 3.10.
        self._channel.settimeout(max(0.001, timeout))
        try:
            return self._channel.recv(65536)
        except (paramiko.SSHException, EOFError):
            # Reading tells the host that there is room again, over a connection that just broke: the end of what it says.
            return b""

    def status(self) -> int:
        deadline = time.monotonic() + 2
        while not self._channel.exit_status_ready() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._channel.recv_exit_status() if self._channel.exit_status_ready() else -1

    def close(self) -> None:
        with contextlib.suppress(paramiko.SSHException, EOFError):
            self._channel.close()


class Client:
    """A logged-in connection, perhaps through jump hosts."""

    def __init__(self, host: str, transport: paramiko.Transport, goal: Target) -> None:
        self._host, self.transport, self.target = host, transport, goal

    def start(self, argv: list[str]) -> Stream:
        """Run a command; UnreachableError when the connection is gone or the host refuses a channel."""
        try:
            return ChannelStream(self.transport, shlex.join(argv), _login_seconds(self.target))
        except (paramiko.SSHException, EOFError, OSError) as error:
            if _timed_out(error):
                raise explain.slow(
                    self._host, "the host accepts the login and does not start a program in time"
                ) from error
            raise UnreachableError(
                "connect.closed",
                "the host accepts the login and refuses to run a command",
                host=self._host,
                because=[_reason(error)],
                hint="a forced command, a restricted shell or MaxSessions in the host's sshd_config can do that",
            ) from error

    def lost(self, text: str, status: int) -> ProvisionError | None:
        """The error of a connection that broke; None when it is up and only the program ended."""
        if self.transport.is_active():
            return None
        return UnreachableError(
            "connect.lost",
            "the connection broke",
            host=self._host,
            because=explain.tail(text, 2),
            hint="did the host go down or its network change? run the command again",
        )

    def close(self) -> None:
        self.transport.close()


def connect(host: Host, goal: Target) -> Client:
    """Return a logged-in client; UnreachableError otherwise, NeedsOpenSsh when paramiko is not enough."""
    sock = _open(host.name, goal)
    with _turns:
        # What a host is given time for begins with its turn.
        deadline = time.monotonic() + _login_seconds(goal)
        try:
            transport = _handshake(host.name, goal, sock)
        except BaseException:
            sock.close()
            raise
        try:
            own = _check_host_key(host.name, goal, transport)
            _login(host, goal, transport, deadline, password_allowed=own)
        except BaseException:
            transport.close()
            raise
    if goal.alive_interval:
        transport.set_keepalive(goal.alive_interval)
    return Client(host.name, transport, goal)


def _login_seconds(goal: Target) -> float:
    return load.stretched(goal.connect_timeout + _LOGIN_SECONDS)


def _timed_out(error: BaseException) -> bool:
    """True for what paramiko raises when its time is over: it has a class of its own for few of these."""
    return isinstance(error, TimeoutError) or bool(re.search(r"time(?:d )?out", str(error), re.IGNORECASE))


class _Turns:
    """Who may log in now: on a quiet machine everybody; on a busy one a few, whose encryption is then done in time."""

    def __init__(self) -> None:
        self._changed, self._taken = threading.Condition(), 0

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: load.patience() == 1 or self._taken < _LOGINS_PER_CORE * load.cores())
            self._taken += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()


_turns = _Turns()


# ---- the way there ---------------------------------------------------------------------------------------


def _open(host: str, goal: Target) -> Any:
    if goal.proxy_command is not None:
        values = {"h": goal.address, "p": str(goal.port), "r": goal.user, "%": "%"}
        return paramiko.ProxyCommand(re.sub("%([hpr%])", lambda token: values[token[1]], goal.proxy_command))
    if goal.proxy_jump is not None:
        return _through(host, goal)
    return _tcp(host, goal)


def _tcp(host: str, goal: Target) -> socket.socket:
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(goal.family, socket.AF_UNSPEC)
    where = f"{goal.address} port {goal.port}"
    try:
        places = socket.getaddrinfo(goal.address, goal.port, family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UnreachableError(
            "connect.dns",
            f"the name {goal.address} cannot be resolved",
            host=host,
            because=[_reason(error)],
            hint="check the spelling, or give the address: ansible_host",
        ) from error
    failure: OSError = OSError("no address")
    for kind, type_, protocol, _, address in places:
        sock = socket.socket(kind, type_, protocol)
        sock.settimeout(goal.connect_timeout)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise _not_connected(host, where, failure, goal.connect_timeout) from failure


def _not_connected(host: str, where: str, error: OSError, seconds: float) -> UnreachableError:
    if isinstance(error, ConnectionRefusedError):
        return UnreachableError(
            "connect.refused",
            f"connection refused by {where}",
            host=host,
            because=["the machine is there, and nothing listens on that port (or a firewall rejects)"],
            hint="is sshd running there? is the port right (ansible_port)?",
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(
            "connect.timeout",
            f"no answer from {where} within {seconds:.0f} s",
            host=host,
            because=["the machine is off, or a firewall drops the packets"],
            hint="check power and network; wait longer with ansible_ssh_timeout",
        )
    return UnreachableError(
        "connect.unreachable",
        f"{where} cannot be reached",
        host=host,
        because=[_reason(error)],
        hint="check the address (ansible_host), the route and the VPN",
    )


# ---- jump hosts: one connection each, shared by the whole fleet --------------------------------------------

_jumps: dict[str, Client | ProvisionError] = {}
_jump_locks: dict[str, threading.Lock] = {}
_jumps_lock = threading.Lock()


def _through(host: str, goal: Target) -> Any:
    jumps = [name.strip() for name in (goal.proxy_jump or "").split(",")]
    client = _jump(jumps)
    if isinstance(client, ProvisionError):
        issue = client.issue
        raise UnreachableError(
            issue.code, f"jump host {jumps[-1]}: {issue.message}", host=host, because=issue.because, hint=issue.hint
        )
    try:
        return client.transport.open_channel(
            "direct-tcpip", (goal.address, goal.port), ("127.0.0.1", 0), timeout=goal.connect_timeout
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise UnreachableError(
            "connect.refused",
            f"{goal.address} port {goal.port} cannot be reached from jump host {jumps[-1]}",
            host=host,
            because=[_reason(error)],
            hint=f"try there: ssh {jumps[-1]} nc -vz {goal.address} {goal.port}",
        ) from error


def _jump(names: list[str]) -> Client | ProvisionError:
    """Return the connection to the last of a chain of jump hosts; a failure is remembered for the other hosts."""
    key = ",".join(names)
    with _jumps_lock:
        lock = _jump_locks.setdefault(key, threading.Lock())
    with lock:
        found = _jumps.get(key)
        if found is None or (isinstance(found, Client) and not found.transport.is_active()):
            found = _jumps[key] = _connect_jump(names)
        return found


def _connect_jump(names: list[str]) -> Client | ProvisionError:
    goal = target.resolve_name(names[-1])
    if goal.reasons:
        raise NeedsOpenSsh(f"jump host {names[-1]}: {goal.reasons[0]}")
    if len(names) > 1:
        from dataclasses import replace

        goal = replace(goal, proxy_jump=",".join(names[:-1]), proxy_command=None)
    try:
        return connect(Host(name=names[-1]), goal)
    except ProvisionError as error:
        return error


def close_jumps() -> None:
    """Close the shared connections to jump hosts; for the end of a run."""
    with _jumps_lock:
        for client in _jumps.values():
            if isinstance(client, Client):
                client.close()
        _jumps.clear()


# ---- key exchange and host key ---------------------------------------------------------------------------


def _handshake(host: str, goal: Target, sock: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock)
    try:
        _choose_algorithms(transport, goal)
        _limit_transport(transport)
        seconds = transport.banner_timeout = _login_seconds(goal)
        # The time that start_client is given ends first: what this one raises looks like a closed connection.
        transport.handshake_timeout = seconds + 5
        transport.start_client(timeout=seconds)
        if not transport.initial_kex_done:
            raise TimeoutError(f"no key exchange within {seconds:.0f} s")
    except IncompatiblePeer as error:
        transport.close()
        raise NeedsOpenSsh(f"no common algorithms: {error}") from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport.close()
        where = f"{goal.address} port {goal.port}"
        if _timed_out(error):
            message = f"{where} accepts connections and does not answer as an ssh server within {seconds:.0f} s"
            raise explain.slow(host, message, ["the host is overloaded, or that is not the port of ssh"]) from error
        raise UnreachableError(
            "connect.closed",
            f"{where} closed the connection before login",
            host=host,
            because=[_reason(error)],
            hint="is that the ssh port? MaxStartups in sshd_config, fail2ban or a full process table do this too",
        ) from error
    return transport


def _limit_transport(transport: paramiko.Transport) -> None:
    packetizer: Any = transport.packetizer
    read_line, read_packet, greeting = packetizer._read_timeout, packetizer.read_all, 0

    def limited_line(timeout: float) -> Any:
        nonlocal greeting
        try:
            data = read_line(max(timeout, transport.banner_timeout))
        except TimeoutError:
            # paramiko's text is the same for a connection that was closed.
            raise TimeoutError(": timed out") from None
        greeting += len(data)
        if greeting > _GREETING:
            raise paramiko.SSHException(f"more than {_GREETING >> 10} KiB before the key exchange")
        return data

    def limited_packet(size: int, check_rekey: bool = False) -> Any:
        if size > _PACKET:
            raise paramiko.SSHException(f"a packet of more than {_PACKET >> 20} MiB")
        return read_packet(size, check_rekey)

    packetizer._read_timeout, packetizer.read_all = limited_line, limited_packet


def _limit_channel(channel: Any) -> None:
    unread, feed = channel.in_buffer, channel.in_buffer.feed

    def limited(data: bytes) -> None:
        if len(unread) > _UNREAD:
            raise paramiko.SSHException(f"more than {_UNREAD >> 20} MiB that nobody asked for")
        feed(data)

    unread.feed = limited


def _choose_algorithms(transport: paramiko.Transport, goal: Target) -> None:
    options = transport.get_security_options()
    options.kex = _first(options.kex, _FIRST_KEX)
    options.ciphers = _first(options.ciphers, _FIRST_CIPHERS)
    # As OpenSSH does: ask for the kinds of key that known_hosts has for this host.
    entries = knownhosts.lookup(goal.known_hosts, goal.alias, goal.port)
    kinds = {entry.type for entry in entries if entry.marker is None}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    options.key_types = _first(options.key_types, [kind for kind in options.key_types if kind in kinds])
    for name, wanted in goal.algorithms.items():
        setattr(options, name, _as_configured(tuple(getattr(options, name)), wanted))


def _first(have: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    have = tuple(have)
    front = tuple(name for name in wanted if name in have)
    return front + tuple(name for name in have if name not in front)


def _as_configured(have: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Apply an OpenSSH algorithm list ("a,b", "+a", "-a", "^a") to what paramiko has."""
    sign = wanted[0][0] if wanted[0][:1] in "+-^" else ""
    names = (wanted[0][len(sign) :], *wanted[1:])
    if sign == "-":
        left = tuple(name for name in have if name not in names)
    elif sign == "^":
        left = _first(have, names)
    elif sign == "+":
        left = have
    else:
        left = tuple(name for name in names if name in have)
    if not left:
        raise NeedsOpenSsh(f"algorithms {','.join(wanted)}")
    return left


def _check_host_key(host: str, goal: Target, transport: paramiko.Transport) -> bool:
    """Check the host key; return whether a password may be sent (never to a host whose key does not fit)."""
    key = transport.get_remote_server_key()
    blob, shown = key.get_base64(), keys.describe(key)
    entries = knownhosts.lookup(goal.known_hosts, goal.alias, goal.port)
    revoked = next((e for e in entries if e.marker == "@revoked" and e.blob == blob), None)
    if revoked:
        raise UnreachableError(
            "connect.host_key_revoked",
            "THE HOST KEY IS REVOKED",
            host=host,
            because=[f"{revoked.file}:{revoked.line} revokes {shown}"],
            hint="give the host a new key",
        )
    if any(entry.blob == blob for entry in entries if entry.marker is None):
        return True
    if any(entry.marker == "@cert-authority" for entry in entries):
        raise NeedsOpenSsh("host certificates (@cert-authority)")
    name = goal.alias if goal.port == 22 else f"[{goal.alias}]:{goal.port}"
    known = [entry for entry in entries if entry.marker is None]
    if known:
        if goal.strict == "no":
            return False
        entry = next((e for e in known if e.type == key.get_name()), known[0])
        raise UnreachableError(
            "connect.host_key_changed",
            "THE HOST KEY HAS CHANGED: this may be another machine, or someone between",
            host=host,
            because=[f"{entry.file}:{entry.line} has {_fingerprint(entry)}", f"the host shows {shown}"],
            hint=f"only if you know why (reinstalled?): ssh-keygen -f {shlex.quote(entry.file)} -R "
            f"{shlex.quote(name)}, then accept the new key",
        )
    if goal.strict in ("no", "accept-new"):
        knownhosts.add(
            goal.known_hosts[0] if goal.known_hosts else "none",
            goal.alias,
            goal.port,
            key.get_name(),
            blob,
            hashed=goal.hash_known_hosts,
        )
        return True
    port = "" if goal.port == 22 else f"-p {goal.port} "
    raise UnreachableError(
        "connect.host_key_unknown",
        f"the host key of {name} is not known",
        host=host,
        because=[f"it shows {shown}, and no known_hosts file has {name}"],
        hint=f"compare it on the host's console, then accept it once: ssh {port}{goal.address} true",
    )


def _fingerprint(entry: knownhosts.Entry) -> str:
    import base64
    import hashlib

    digest = hashlib.sha256(base64.b64decode(entry.blob)).digest()
    return f"{entry.type} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


# ---- login -------------------------------------------------------------------------------------------------


def _login(host: Host, goal: Target, transport: paramiko.Transport, deadline: float, *, password_allowed: bool) -> None:
    tried: list[str] = []
    allowed: set[str] = set()
    for key in _identities(host, goal, tried) if goal.use_keys else ():
        transport.auth_timeout = max(1.0, deadline - time.monotonic())
        try:
            transport.auth_publickey(goal.user, key)
            if transport.is_authenticated():
                return
            raise NeedsOpenSsh("a second factor")
        except paramiko.BadAuthenticationType as error:
            allowed |= set(error.allowed_types)
            break
        except paramiko.AuthenticationException as error:
            if _timed_out(error):
                raise _slow_login(host, goal) from error
            tried.append(f"key {keys.describe(key)}: refused")
        except (paramiko.SSHException, EOFError, OSError) as error:
            tried.append(f"the host closed the connection: {_reason(error)}")
            break
    password = host.connection.password
    transport.auth_timeout = max(1.0, deadline - time.monotonic())
    if password is not None and goal.use_password and password_allowed and transport.is_active():
        try:
            transport.auth_password(goal.user, password)
            if transport.is_authenticated():
                return
            raise NeedsOpenSsh("a second factor")
        except paramiko.BadAuthenticationType as error:
            allowed |= set(error.allowed_types)
            tried.append("password: not accepted by this host")
        except (paramiko.SSHException, EOFError, OSError) as error:
            if _timed_out(error):
                raise _slow_login(host, goal) from error
            tried.append("password (ansible_password): refused")
    if not tried and transport.is_active():
        # Nothing to try: ask the host what it would take, to say so.
        try:
            transport.auth_none(goal.user)
            return
        except paramiko.BadAuthenticationType as error:
            allowed |= set(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError) as error:
            tried.append(_reason(error))
    if "gssapi-with-mic" in allowed and target.has_kerberos_ticket():
        raise NeedsOpenSsh("GSSAPI")
    because = tried or ["there is no key, no agent and no password to try"]
    if allowed:
        because.append(f"the host accepts: {', '.join(sorted(allowed))}")
    raise UnreachableError(
        "connect.auth",
        f"login as {goal.user} refused",
        host=host.name,
        because=because,
        hint="check ansible_user and the key (ansible_ssh_private_key_file, ssh-add -l), or give ansible_password",
    )


def _slow_login(host: Host, goal: Target) -> ProvisionError:
    return explain.slow(host.name, f"the login as {goal.user} was not answered within {_login_seconds(goal):.0f} s")


def _identities(host: Host, goal: Target, tried: list[str]) -> Iterator[paramiko.PKey]:
    """Yield keys, likeliest first: named ones (the agent signs where it has them), the agent's, ssh's defaults."""
    passphrase = host.connection.key_passphrase
    if host.connection.private_key is not None:
        own = keys.from_text(host.connection.private_key, passphrase)
        if isinstance(own, keys.Unusable):
            tried.append(f"{own.path}: {own.why}")
        else:
            yield own
    used: set[bytes] = set()
    locked: list[keys.Unusable] = []
    files = []
    for path in goal.keys:
        key = keys.load(path, passphrase)
        if key is None and goal.explicit_keys:
            tried.append(f"{path}: no such file")
        if isinstance(key, keys.Unusable):
            locked.append(key)
        elif key is not None:
            files.append(key)
    if goal.explicit_keys:
        for key in files:
            used.add(key.asbytes())
            yield key
    if goal.use_agent:
        # an agent that does not answer has no keys
        with contextlib.suppress(paramiko.SSHException):
            for agent_key in keys.agent_keys():
                if agent_key.asbytes() in used or (goal.identities_only and not _named(agent_key, goal)):
                    continue
                used.add(agent_key.asbytes())
                yield agent_key
    for key in files:
        if key.asbytes() not in used:
            yield key
    tried += [f"{key.path}: {key.why}" for key in locked]


def _named(key: paramiko.AgentKey, goal: Target) -> bool:
    """True when a key of the agent is one of the identity files, by its .pub file."""
    for path in goal.keys:
        with contextlib.suppress(OSError), open(f"{path}.pub", encoding="utf-8") as public:
            if key.get_base64() in public.read().split():
                return True
    return False


def _reason(error: BaseException) -> str:
    text = (str(error) or type(error).__name__)[:300]
    return text.split("] ", 1)[1] if text.startswith("[Errno") and "] " in text else text
