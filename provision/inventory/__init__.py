"""The fleet: an ordinary Ansible inventory, read by Ansible's own code in a process apart.

``start`` begins to read and returns at once, so that the program loads other things meanwhile; ``load`` waits.
Secrets (ssh, become and vault passwords) travel on pipes and live in memory only; repr never shows them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from provision.collection import ROOT
from provision.errors import UsageError
from provision.inventory import kept
from provision.lib import scratch

# A variable with one of these prefixes is ours; so is what connects.
PREFIXES = (
    "nvidia_driver_",
    "cuda_toolkit_",
    "miniconda_",
    "container_toolkit_",
    "gpu_verify_",
    "gpu_proxy_",
    "gpu_rollout_",
    "gpu_rescue_",
    "gpu_mirror_",
    "gpu_pull_",
)
_CONNECTION_PREFIX = "ansible_"
# Names that mean "find it yourself".
_DISCOVER = ("auto", "auto_silent", "auto_legacy", "auto_legacy_silent")


@dataclass(frozen=True)
class Connection:
    """How to reach a host and become root there. Passwords are not part of repr."""

    # ssh, local, or another of Ansible's names
    kind: str = "ssh"
    address: str = ""
    # None: ssh's configuration decides
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    key_file: str | None = None
    private_key: str | None = field(default=None, repr=False)
    key_passphrase: str | None = field(default=None, repr=False)
    # split as a shell would; these win over the inventory's port, user and key
    ssh_args: tuple[str, ...] = ()
    # ssh_common_args + ssh_extra_args; the inventory wins over these
    ssh_extra_args: tuple[str, ...] = ()
    ssh_executable: str = "ssh"
    host_key_checking: bool = True
    timeout: float = 10
    pkcs11_provider: str | None = None
    # None: find it
    python: str | None = None
    # None: not said; then root is become where the login user is not root
    become: bool | None = None
    # without its collection
    become_method: str = "sudo"
    # whether this Ansible has the plugin, without which no playbook runs
    become_known: bool = True
    become_user: str = "root"
    become_password: str | None = field(default=None, repr=False)
    become_exe: str = "sudo"
    become_flags: str = "-H -S -n"


@dataclass(frozen=True)
class Host:
    """One host: its variables with templates resolved, and its connection."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict, repr=False)
    groups: tuple[str, ...] = ()
    connection: Connection = Connection()
    # variable -> why it has no value
    unresolved: dict[str, str] = field(default_factory=dict, repr=False)
    # variable -> "-e", "host x", "group y"
    origins: dict[str, str] = field(default_factory=dict, repr=False)
    # local although the inventory does not say so
    implicit_local: bool = False


@dataclass(frozen=True)
class Inventory:
    """What the inventory says about the hosts that were asked for."""

    hosts: list[Host]
    sources: list[str]
    extra_vars: dict[str, Any] = field(default_factory=dict, repr=False)
    groups: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    # for ansible-playbook, which reads it all again
    vault_password: str | None = field(default=None, repr=False)
    # LABEL@FILE
    vault_ids: list[str] = field(default_factory=list)
    # typed by the user (-K)
    become_password: str | None = field(default=None, repr=False)
    # Ansible's own, for a run: collections_paths, ssh_args, ...
    settings: dict[str, Any] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)


def absolute_file(text: str) -> str:
    """``@file`` with its whole path: Ansible would look for it beside our playbooks."""
    return f"@{Path(text.strip()[1:]).expanduser().absolute()}" if text.lstrip().startswith("@") else text


def vault_id(text: str) -> str:
    """LABEL@FILE as Ansible's --vault-id takes it, with the whole path; a file without a label has Ansible's own, "default"."""
    label, at, path = text.partition("@")
    if not at or Path(text).expanduser().exists():
        label, path = "default", text
    return f"{label}@{Path(path).expanduser().absolute()}"


class Loading:
    """An inventory that is being read; result() waits for it."""

    def __init__(
        self,
        sources: Sequence[str] | None,
        limit: str | None,
        extra_vars: Mapping[str, Any] | Sequence[str],
        vault_password: str | None,
        vault_ids: Sequence[str],
        become_password: str | None,
    ) -> None:
        self._become_password = become_password
        self._vault_password = vault_password
        self._vault_ids = [vault_id(text) for text in vault_ids]
        given = [json.dumps(dict(extra_vars))] if isinstance(extra_vars, Mapping) else list(extra_vars)
        request = {
            "sources": list(sources) if sources else None,
            "limit": limit,
            "extra_vars": [absolute_file(text) for text in given if text and text != "{}"],
            "vault_password": vault_password,
            "vault_ids": self._vault_ids,
            "basedir": str(ROOT / "playbooks"),
        }
        self._request = request
        self._kept = kept.find(request)
        if self._kept is None:
            self._process = _read()
            stdin, self._process.stdin = self._process.stdin, None
            if stdin is not None:
                # it ended at once; what it said is read in result()
                with contextlib.suppress(BrokenPipeError):
                    stdin.write(json.dumps(request))
                    stdin.close()

    @property
    def at_hand(self) -> bool:
        """True where result() need not wait, and Ansible said nothing that is to be shown first."""
        return self._kept is not None and not self._kept["talk"]

    def result(self, timeout: float = 300) -> Inventory:
        """Wait and return the inventory; UsageError when it cannot be used."""
        answer = self._kept or self._answer(timeout)
        hosts = [_host(data, self._become_password) for data in answer["hosts"]]
        _refuse_unresolved(hosts)
        return Inventory(
            hosts=hosts,
            sources=answer["sources"],
            extra_vars=answer["extra_vars"],
            groups=answer["groups"],
            warnings=_warnings(answer["talk"]),
            vault_password=self._vault_password,
            vault_ids=self._vault_ids,
            become_password=self._become_password,
            settings=answer["settings"],
        )

    def _answer(self, timeout: float) -> dict[str, Any]:
        """Wait for the reader's answer."""
        try:
            out, talk = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            self._end()
            raise UsageError(
                "inventory.timeout",
                f"the inventory was not read within {timeout:.0f} seconds",
                hint="a dynamic inventory or a vault script hangs; try: ansible-inventory --list",
            ) from error
        except BaseException:
            self._end()
            raise
        if not out.strip():
            lines = talk.strip().splitlines()
            raise UsageError("inventory.invalid", "the inventory cannot be read", because=lines[-3:])
        answer: dict[str, Any] = json.loads(out)
        if not answer["ok"]:
            wrong = answer["error"]
            if wrong["code"] == "inventory.invalid":
                wrong["because"] += _why_unread(talk, wrong["because"])
                wrong["hint"] = wrong["hint"] or "see what Ansible itself says of it: ansible-inventory -i FILE --list"
            raise UsageError(wrong["code"], wrong["message"], because=wrong["because"], hint=wrong["hint"])
        kept.keep(self._request, answer, talk)
        return {**answer, "talk": talk}

    def _end(self) -> None:
        """End the reader; what it says is not waited for: a vault script that hangs has its stderr as well."""
        with self._process:
            self._process.kill()


def _read() -> subprocess.Popen[str]:
    """Start a reader of inventories; see dump.py for what it takes and gives."""
    # -P: the folder of the program, full of modules of ours, is not put before Ansible's imports.
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("dump.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(scratch.folder())},
    )


def start(
    sources: Sequence[str] | None = None,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | Sequence[str] = (),
    *,
    vault_password: str | None = None,
    vault_ids: Sequence[str] = (),
    become_password: str | None = None,
) -> Loading:
    """Begin to read an inventory.

    sources: what -i was given (files, folders, "host1,host2", "localhost,"), None for Ansible's own choice.
    limit: Ansible's host pattern. extra_vars: a mapping, or -e arguments as Ansible takes them (key=value, JSON,
    @file).
    """
    return Loading(sources, limit, extra_vars, vault_password, vault_ids, become_password)


def this_machine(extra_vars: Sequence[str] = ()) -> Inventory | None:
    """Return an inventory of this machine alone, without Ansible, which takes a second of processor time to say the same.

    extra_vars: -e arguments. None where one is neither a file (@file) nor plain data, or needs Ansible: templates, secrets.
    """
    found: dict[str, Any] = {}
    for given in extra_vars:
        try:
            text = Path(given[1:]).expanduser().read_text(encoding="utf-8") if given[:1] == "@" else given
            data = None if "{{" in text or "{%" in text or "!" in text else yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return None
        if not isinstance(data, dict) or not all(isinstance(name, str) and is_ours(name) for name in data):
            return None
        found |= data
    connection = Connection(kind="local", address="localhost")
    host = Host(
        name="localhost", vars=found, connection=connection, origins=dict.fromkeys(found, "-e"), implicit_local=True
    )
    return Inventory(hosts=[host], sources=["localhost,"], extra_vars=found)


def load(
    sources: Sequence[str] | None = None,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | Sequence[str] = (),
    *,
    vault_password: str | None = None,
    vault_ids: Sequence[str] = (),
    become_password: str | None = None,
) -> Inventory:
    """Read an inventory; UsageError when it is missing, wrong, empty or nothing matches the limit."""
    return start(
        sources, limit, extra_vars, vault_password=vault_password, vault_ids=vault_ids, become_password=become_password
    ).result()


def is_ours(name: str) -> bool:
    """True for a variable whose prefix is one of our roles'."""
    return name.startswith(PREFIXES)


def _host(data: dict[str, Any], become_password: str | None) -> Host:
    options = data["connection"]
    local = options["implicit_local"] or options["connection"] == "local"
    python = options["python"]
    connection = Connection(
        kind="local" if local else _kind(options["connection"]),
        address=str(options["host"] or data["name"]),
        port=int(options["port"]) if options["port"] else None,
        user=options["remote_user"] or None,
        password=_text(options["password"]),
        key_file=str(Path(options["private_key_file"]).expanduser()) if options["private_key_file"] else None,
        private_key=_text(options["private_key"]),
        key_passphrase=_text(options["private_key_passphrase"]),
        ssh_args=_split(data["name"], options, "ssh_args"),
        ssh_extra_args=_split(data["name"], options, "ssh_common_args", "ssh_extra_args"),
        ssh_executable=options["ssh_executable"] or "ssh",
        host_key_checking=bool(options["host_key_checking"]),
        timeout=float(options["timeout"] or 10),
        pkcs11_provider=options["pkcs11_provider"] or None,
        python=None if python in _DISCOVER else python,
        become=options["become"],
        become_method=str(options["become_method"]),
        become_known=bool(options["become_known"]),
        become_user=options["become_user"] or "root",
        become_password=_text(options["become_pass"]),
        become_exe=options["become_exe"] or str(options["become_method"]),
        become_flags=options["become_flags"] or "",
    )
    if become_password is not None and connection.become_password is None:
        connection = replace(connection, become_password=become_password)
    return Host(
        name=data["name"],
        vars=data["vars"],
        groups=tuple(data["groups"]),
        connection=connection,
        unresolved=data["unresolved"],
        origins=data["origins"],
        implicit_local=options["implicit_local"],
    )


def _kind(name: str) -> str:
    short = name.removeprefix("ansible.builtin.")
    return "ssh" if short in ("ssh", "smart", "paramiko", "paramiko_ssh") else short


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


# The same for every host of most fleets.
_words = functools.cache(shlex.split)


def _split(name: str, options: dict[str, Any], *wanted: str) -> tuple[str, ...]:
    found: list[str] = []
    for option in wanted:
        try:
            found += _words(options[option] or "")
        except ValueError as error:
            raise UsageError(
                "inventory.invalid", f"ansible_{option} cannot be split into arguments", host=name, because=[str(error)]
            ) from error
    return tuple(found)


def _refuse_unresolved(hosts: list[Host]) -> None:
    """A template that has no value is an error where it is ours or connects; others may need a play's facts."""
    for host in hosts:
        for name, why in sorted(host.unresolved.items()):
            if not is_ours(name) and not name.startswith(_CONNECTION_PREFIX):
                continue
            where = f"{name} ({host.origins.get(name, 'inventory')})"
            if "vault" in why.lower() or "decrypt" in why.lower():
                raise UsageError(
                    "inventory.vault",
                    f"the encrypted variable {where} cannot be opened",
                    host=host.name,
                    because=[why],
                    hint="give the vault password with --ask-vault-pass or --vault-password-file FILE",
                )
            raise UsageError(
                "vars.template",
                f"variable {where} cannot be resolved",
                host=host.name,
                because=[why],
                hint="facts of the host (ansible_facts, gathered later) cannot decide the desired state",
            )


def _why_unread(talk: str, sources: Sequence[str]) -> list[str]:
    """What Ansible's reader for this kind of file said: each of its readers complains, one of them matters."""
    said = dict(re.findall(r"Failed to parse inventory with '(\w+)' plugin: (.+)", talk))
    kind = "yaml" if re.search(r"\.(ya?ml|json)\b", " ".join(sources)) else "ini"
    why = said.get(kind) or next(iter(said.values()), None)
    where = re.search(r"^Origin: (/\S+:\d+)(?::\d+)?$", talk, re.MULTILINE)
    return [f"{where[1]}: {why}" if where else why] if why else []


def _warnings(talk: str) -> list[str]:
    """Ansible's warnings, one a line, without its folding."""
    found: list[str] = []
    for line in talk.splitlines():
        if line.startswith("[") and "]: " in line:
            found.append(line.split("]: ", 1)[1].strip())
        elif line.strip() and found:
            found[-1] += " " + line.strip()
    return found
