"""From the inventory and ssh's configuration to one answer: how to reach a host, and whether paramiko can.

Order, as OpenSSH and Ansible have it: ansible_ssh_args, then the inventory (port, user, key, host key checking,
timeout), then ansible_ssh_common_args and _extra_args, then ~/.ssh/config, then /etc/ssh/ssh_config; the first
value wins, identities add up. An option that is not understood here gives a reason to use the OpenSSH client, so
nothing is silently ignored.
"""

from __future__ import annotations

import getpass
import glob
import hashlib
import os
import shlex
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.inventory import Connection
from provision.remote import ssh_library
from provision.remote.once import once
from provision.remote.ssh_library import paramiko

_USER_CONFIG = "~/.ssh/config"
_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")

# Without effect on a command without a terminal, forwarding or a file that ssh would write.
_WITHOUT_EFFECT = frozenset(
    {
        "addkeystoagent",
        "batchmode",
        "canonicaldomains",
        "canonicalizemaxdots",
        "challengeresponseauthentication",
        "checkhostip",
        "clearallforwardings",
        "compression",
        "controlmaster",
        "controlpersist",
        "dynamicforward",
        "enableescapecommandline",
        "escapechar",
        "exitonforwardfailure",
        "fingerprinthash",
        "forkafterauthentication",
        "forwardagent",
        "forwardx11",
        "forwardx11timeout",
        "forwardx11trusted",
        "gatewayports",
        "gssapidelegatecredentials",
        "host",
        "ignoreunknown",
        "ipqos",
        "localforward",
        "loglevel",
        "logverbose",
        "match",
        "numberofpasswordprompts",
        "obscurekeystroketiming",
        "permitlocalcommand",
        "permitremoteopen",
        "protocol",
        "rekeylimit",
        "remoteforward",
        "requesttty",
        "rsaauthentication",
        "sendenv",
        "serveralivecountmax",
        "sessiontype",
        "stdinnull",
        "streamlocalbindmask",
        "streamlocalbindunlink",
        "syslogfacility",
        "tag",
        "tcpkeepalive",
        "updatehostkeys",
        "useprivilegedport",
        "useroaming",
        "visualhostkey",
        "warnweakcrypto",
        "xauthlocation",
    }
)
_UNDERSTOOD = frozenset(
    {
        "addressfamily",
        "canonicalizehostname",
        "certificatefile",
        "ciphers",
        "connectionattempts",
        "connecttimeout",
        "controlpath",
        "globalknownhostsfile",
        "gssapiauthentication",
        "gssapikeyexchange",
        "hashknownhosts",
        "hostbasedauthentication",
        "hostkeyalgorithms",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityagent",
        "identityfile",
        "kbdinteractiveauthentication",
        "kexalgorithms",
        "macs",
        "passwordauthentication",
        "pkcs11provider",
        "port",
        "preferredauthentications",
        "proxycommand",
        "proxyjump",
        "pubkeyacceptedalgorithms",
        "pubkeyacceptedkeytypes",
        "pubkeyauthentication",
        "serveraliveinterval",
        "stricthostkeychecking",
        "user",
        "userknownhostsfile",
        "verifyhostkeydns",
    }
)
_ALGORITHMS = {"ciphers": "ciphers", "macs": "digests", "kexalgorithms": "kex", "hostkeyalgorithms": "key_types"}
# Command-line switches of ssh: with an argument, and what option each is.
_SWITCH_OPTIONS = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump", "c": "ciphers", "m": "macs"}
_SWITCHES_WITHOUT_EFFECT = frozenset("CqvTtxXYAanN")


@dataclass(frozen=True)
class Target:
    """How to reach one host. reasons: why the OpenSSH client has to do it; empty where paramiko can."""

    address: str
    port: int
    user: str
    # identity files, in the order of trying
    keys: tuple[str, ...] = ()
    # they were named; otherwise they are ssh's defaults
    explicit_keys: bool = False
    identities_only: bool = False
    use_agent: bool = True
    use_keys: bool = True
    use_password: bool = True
    known_hosts: tuple[str, ...] = ()
    # yes, ask, accept-new, no
    strict: str = "ask"
    # name of the host in known_hosts
    alias: str = ""
    hash_known_hosts: bool = False
    proxy_command: str | None = None
    proxy_jump: str | None = None
    connect_timeout: float = 10
    alive_interval: int = 0
    # any, inet, inet6
    family: str = "any"
    # "kex" -> wanted, as written
    algorithms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def resolve(connection: Connection) -> Target:
    """Return the target of a connection."""
    reasons: list[str] = []
    options: dict[str, Any] = {"identityfile": []}
    config_file = _arguments(connection.ssh_args, options, reasons)
    _inventory_options(connection, options)
    config_file = _arguments(connection.ssh_extra_args, options, reasons) or config_file
    configured = _configured(connection.address, options, config_file, reasons)
    for key, value in configured.items():
        if key == "identityfile":
            options["identityfile"] += [path for path in value if path not in options["identityfile"]]
        else:
            options.setdefault(key, value)
    if connection.pkcs11_provider:
        reasons.append("PKCS#11 keys (pkcs11_provider)")
    return _target(connection, options, reasons)


def resolve_name(name: str) -> Target:
    """Return the target of a host that only ssh's configuration knows: a jump host, written [user@]host[:port]."""
    user, at, rest = name.rpartition("@")
    if rest.startswith("["):
        address, _, port = rest[1:].partition("]")
        port = port.lstrip(":")
    else:
        address, _, port = rest.partition(":")
    return resolve(Connection(address=address, user=user if at else None, port=int(port) if port else None))


def _inventory_options(connection: Connection, options: dict[str, Any]) -> None:
    if not connection.host_key_checking:
        options.setdefault("stricthostkeychecking", "no")
    if connection.port is not None:
        options.setdefault("port", str(connection.port))
    if connection.user is not None:
        options.setdefault("user", connection.user)
    if connection.key_file is not None:
        options["identityfile"].append(connection.key_file)
    options.setdefault("connecttimeout", str(int(connection.timeout)))


def _arguments(arguments: tuple[str, ...], options: dict[str, Any], reasons: list[str]) -> str | None:
    """Read ssh's command-line arguments into options (the first wins); return the file of -F."""
    config_file = None
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        letter, attached = word[1:2], word[2:]
        if not word.startswith("-") or not letter:
            reasons.append(f"ssh argument {word}")
            continue
        if letter in "oF" or letter in _SWITCH_OPTIONS:
            value = attached or (todo.pop(0) if todo else "")
            if letter == "o":
                key, value = _assignment(value)
            elif letter == "F":
                config_file = value
                continue
            else:
                key = _SWITCH_OPTIONS[letter]
            if key == "identityfile":
                options["identityfile"].append(value)
            else:
                options.setdefault(key, value)
        elif set(word[1:]) <= _SWITCHES_WITHOUT_EFFECT:
            continue
        else:
            reasons.append(f"ssh argument {word}")
    return config_file


def _assignment(text: str) -> tuple[str, str]:
    key, separator, value = text.strip().partition("=")
    if not separator or " " in key.strip():
        key, _, value = text.strip().partition(" ")
    key, value = key.strip().lower(), value.strip()
    # Lists of files keep their quotes, which hold a name with spaces together.
    return key, value if key in ("userknownhostsfile", "globalknownhostsfile") else value.strip('"')


@once
def _config(file: str | None) -> paramiko.SSHConfig | None:
    """Return ssh's configuration, parsed once; None where there is none. ConfigParseError: not understood."""
    if file == "none":
        return None
    files = [file] if file else [str(Path(_USER_CONFIG).expanduser()), _SYSTEM_CONFIG]
    lines: list[str] = []
    for name in files:
        # Each file starts outside of any Host block.
        lines += ["Host *", *_lines(Path(name), Path(name).parent, 0)]
    if all(line == "Host *" for line in lines):
        return None
    return paramiko.SSHConfig.from_text("\n".join(lines))


def _lines(path: Path, base: Path, depth: int) -> list[str]:
    """Return the lines of a configuration with Include carried out, which paramiko does not do."""
    if depth > 16 or not path.is_file():
        return []
    found: list[str] = []
    block = "Host *"
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.strip().replace("=", " ", 1).split(None, 1)
        key = words[0].lower() if words else ""
        if key in ("host", "match"):
            block = line
            _refuse_unknown_match(key, words)
        if key == "include" and len(words) == 2:
            for pattern in shlex.split(words[1]):
                full = Path(pattern).expanduser()
                # Path.glob takes no absolute pattern.
                for match in sorted(glob.glob(str(full if full.is_absolute() else base / full))):  # noqa: PTH207
                    found += _lines(Path(match), base, depth + 1)
            # an included file's last block ends with it
            found.append(block)
            continue
        found.append(line)
    return found


def _refuse_unknown_match(key: str, words: list[str]) -> None:
    """paramiko takes a Match keyword that it does not know for a match, and knows no user but the local one."""
    if key != "match" or len(words) < 2:
        return
    given = shlex.split(words[1])
    while given:
        word = given.pop(0).lstrip("!").lower()
        if word in ("all", "canonical", "final"):
            continue
        if word not in ("host", "originalhost", "localuser", "exec"):
            raise ValueError(f"Match {word}")
        if word == "exec":
            ssh_library.load_match_exec()
        given[:1] = []


def _configured(address: str, options: dict[str, Any], file: str | None, reasons: list[str]) -> dict[str, Any]:
    try:
        config = _config(file)
        return {} if config is None else dict(config.lookup(address))
    except Exception as error:  # noqa: BLE001 - whatever stops paramiko's parser, ssh itself reads the file
        reasons.append(f"ssh configuration: {error}")
        return {}


def _target(connection: Connection, options: dict[str, Any], reasons: list[str]) -> Target:
    known = _UNDERSTOOD | _WITHOUT_EFFECT
    ignored = str(options.get("ignoreunknown", "")).lower().split(",")
    reasons += [f"ssh option {key}" for key in options if key not in known and key not in ignored]
    if _yes(options.get("gssapiauthentication")) and has_kerberos_ticket():
        reasons.append("GSSAPIAuthentication")
    if _yes(options.get("hostbasedauthentication")):
        reasons.append("HostbasedAuthentication")
    if str(options.get("pkcs11provider", "none")).lower() != "none":
        reasons.append("PKCS11Provider")
    if _none(options.get("certificatefile")) is not None:
        reasons.append("CertificateFile")
    if _none(options.get("canonicalizehostname")) not in (None, "no"):
        reasons.append("CanonicalizeHostname")
    if _yes(options.get("gssapikeyexchange")) and has_kerberos_ticket():
        reasons.append("GSSAPIKeyExchange")
    if str(options.get("verifyhostkeydns", "no")) != "no":
        reasons.append("VerifyHostKeyDNS")
    accepted = str(options.get("pubkeyacceptedalgorithms", options.get("pubkeyacceptedkeytypes", "+")))
    if not accepted.startswith("+"):
        reasons.append("PubkeyAcceptedAlgorithms")
    if set(str(options.get("proxycommand") or "")) & set("|&;<>()$`*~'\"\\"):
        reasons.append("ProxyCommand that needs a shell")
    agent = str(options.get("identityagent", "SSH_AUTH_SOCK"))
    if agent not in ("SSH_AUTH_SOCK", "none", "$SSH_AUTH_SOCK", os.environ.get("SSH_AUTH_SOCK")):
        reasons.append("IdentityAgent")
    address = str(options.get("hostname") or connection.address)
    port = int(options.get("port") or 22)
    user = str(options.get("user") or getpass.getuser())
    jump = _none(options.get("proxyjump"))
    command = _none(options.get("proxycommand"))
    if _master_is_up(options, connection.address, address, port, user, jump):
        reasons.append("a shared connection is open (ControlPath)")
    methods = str(options.get("preferredauthentications", "publickey,keyboard-interactive,password")).lower()
    named = [str(Path(path).expanduser()) for path in options["identityfile"] if path != "none"]
    home_keys = [str(Path(path).expanduser()) for path in _DEFAULT_KEYS]
    return Target(
        address=address,
        port=port,
        user=user,
        keys=tuple(_expand(path, address, user) for path in named) or tuple(home_keys),
        explicit_keys=bool(named),
        identities_only=_yes(options.get("identitiesonly")),
        use_agent=agent != "none",
        use_keys="publickey" in methods and options.get("pubkeyauthentication", "yes") != "no",
        use_password=("password" in methods and options.get("passwordauthentication", "yes") != "no")
        or ("keyboard-interactive" in methods and options.get("kbdinteractiveauthentication", "yes") != "no"),
        known_hosts=_paths(options.get("userknownhostsfile"), _USER_KNOWN_HOSTS)
        + _paths(options.get("globalknownhostsfile"), _GLOBAL_KNOWN_HOSTS),
        strict=_strictness(options.get("stricthostkeychecking")),
        alias=str(options.get("hostkeyalias") or address),
        hash_known_hosts=_yes(options.get("hashknownhosts")),
        # ssh: whichever comes first wins; both at once only when one is in the arguments.
        proxy_command=None if jump else command,
        proxy_jump=jump,
        connect_timeout=float(options["connecttimeout"]) if options["connecttimeout"] != "none" else 30.0,
        alive_interval=int(options.get("serveraliveinterval") or 0),
        family=str(options.get("addressfamily", "any")).lower(),
        algorithms={name: tuple(str(options[key]).split(",")) for key, name in _ALGORITHMS.items() if options.get(key)},
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _expand(path: str, address: str, user: str) -> str:
    return path.replace("%d", str(Path.home())).replace("%h", address).replace("%r", user).replace("%%", "%")


def _paths(value: Any, default: Iterable[str]) -> tuple[str, ...]:
    if value is None:
        words = list(default)
    elif isinstance(value, list):
        words = [str(part) for part in value]
    else:
        words = shlex.split(str(value))
    return tuple(str(Path(word).expanduser()) for word in words if word != "none")


def _strictness(value: Any) -> str:
    text = str(value or "ask").lower()
    return {"true": "yes", "false": "no", "off": "no"}.get(text, text)


def _yes(value: Any) -> bool:
    return str(value).lower() in ("yes", "true")


def _none(value: Any) -> str | None:
    return None if value is None or str(value).lower() == "none" else str(value)


def has_kerberos_ticket() -> bool:
    """Debian's ssh_config says GSSAPIAuthentication yes to everyone; without a ticket ssh skips it."""
    return "KRB5CCNAME" in os.environ or Path(f"/tmp/krb5cc_{os.getuid()}").exists()  # noqa: S108


def _master_is_up(options: dict[str, Any], original: str, address: str, port: int, user: str, jump: str | None) -> bool:
    """True when the user's own ControlPath has a live master: it may carry what cannot be done again (a second factor)."""
    path = _none(options.get("controlpath"))
    if path is None:
        return False
    local = socket.gethostname()
    joined = local + address + str(port) + user + (jump or "")
    values = {
        "%%": "%",
        "%h": address,
        "%p": str(port),
        "%r": user,
        "%n": original,
        "%l": local,
        "%L": local.split(".")[0],
        "%u": getpass.getuser(),
        "%d": str(Path.home()),
        "%i": str(os.getuid()),
        "%j": jump or "",
        "%C": hashlib.sha1(joined.encode()).hexdigest(),  # noqa: S324 - OpenSSH's own naming
    }
    for token, value in values.items():
        path = path.replace(token, value)
    return Path(path).expanduser().is_socket()
