"""Reads an Ansible inventory with Ansible's own code and writes it as JSON. Runs as a program of its own.

stdin: one JSON object {sources, limit, extra_vars, vault_password, vault_ids, basedir}
stdout: one JSON object, {"ok": true, "hosts": [...], ...} or {"ok": false, "error": {code, message, because, hint}}; marks in the
        first are of the files that decided, null where the answer must not be kept (see kept.py)
stderr: what Ansible says beside it (warnings)

Ansible's import costs a third of a second and its warnings, signal handlers and global state are its own: a
process apart keeps both away from the program, which loads other things meanwhile.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# Options of the ssh and sudo plugins, looked up as Ansible does: variables, environment, ansible.cfg, default.
SSH_OPTIONS = (
    "host",
    "port",
    "remote_user",
    "password",
    "private_key_file",
    "private_key",
    "private_key_passphrase",
    "ssh_args",
    "ssh_common_args",
    "ssh_extra_args",
    "ssh_executable",
    "host_key_checking",
    "timeout",
    "control_path",
    "pkcs11_provider",
)
# Ansible's own variables that mean nothing outside a play.
NOT_THEIRS = frozenset(
    {
        "groups",
        "hostvars",
        "omit",
        "vars",
        "ansible_facts",
        "ansible_local",
        "ansible_version",
        "ansible_config_file",
        "ansible_playbook_python",
        "playbook_dir",
        "inventory_dir",
        "inventory_file",
    }
)
BECOME_OPTIONS = ("become_user", "become_exe", "become_flags", "become_pass")
# ansible-core's readers of inventories: of files, but for script and auto, whose files are known.
STATIC_READERS = frozenset({"host_list", "script", "auto", "yaml", "ini", "toml", "advanced_host_list"})
SECRETS = ("password", "private_key", "private_key_passphrase", "become_pass")
# What makes a file of YAML or JSON a program: the reader that it names.
_NAMES_READER = re.compile(rb"""plugin["']?\s*:""")
# A template of names alone looks nothing up: no call, no filter, no statement, no variable of another host.
_NAMES_ONLY = re.compile(r"(?:[^{]|\{(?![{%#])|\{\{\s*(?!hostvars\b)[A-Za-z_][\w.]*\s*\}\})*")
_MOST_FILES = 5000
# A file that was changed so short a time before it was read may change again without another time.
_SETTLED_NS = 2_000_000_000


class Wrong(Exception):
    """The inventory cannot be used; the four fields of an Issue."""

    def __init__(self, code: str, message: str, because: list[str] | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "because": because or [], "hint": hint}


def plain(value: Any) -> Any:
    """Return value as JSON types: Ansible's tagged, lazy and encrypted values become ordinary ones."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {str(key): plain(value[key]) for key in value}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return str(value)


def holds_template(value: Any) -> bool:
    """True when a value or anything inside it may be a Jinja template."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or "{#" in value
    if isinstance(value, dict):
        return any(holds_template(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(holds_template(item) for item in value)


def names_only(value: Any) -> bool:
    """True when every template in a value only names variables, so that it gives the same whenever the variables do."""
    if isinstance(value, str):
        return _NAMES_ONLY.fullmatch(value) is not None
    if isinstance(value, dict):
        return all(names_only(item) for item in value.values())
    return not isinstance(value, (list, tuple)) or all(names_only(item) for item in value)


def marks_of(request: dict[str, Any], sources: list[str]) -> dict[str, list[int] | None] | None:
    """Return what shows that files changed since: of each file and folder that decides, its identity, mode, size and times.

    Of a file that is not there: None. None for more files than an inventory has, or a folder that cannot be read.
    """
    roots = [Path(source) for source in sources if "," not in source]
    places = [Path(text.strip()[1:]) for text in request.get("extra_vars") or () if text.lstrip().startswith("@")]
    for folder in {Path(request["basedir"]), *roots, *(root.parent for root in roots)}:
        places += [folder / "group_vars", folder / "host_vars"]
    configured = [
        os.environ.get("ANSIBLE_CONFIG") or "/dev/null",
        "ansible.cfg",
        "~/.ansible.cfg",
        "/etc/ansible/ansible.cfg",
    ]
    places += [Path(name).expanduser().absolute() for name in (*configured, "inventory/hosts.yml")]
    found: dict[str, list[int] | None] = {}
    try:
        for path in (path for place in [*roots, *places, Path(__file__), _ansible()] for path in _walk(place)):
            if len(found) > _MOST_FILES:
                return None
            found[str(path)] = _mark(path)
    except OSError:
        return None
    return found


def _mark(path: Path) -> list[int] | None:
    try:
        now = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [now.st_dev, now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns]


def _ansible() -> Path:
    """The file of ansible-core that names its version, without importing it."""
    spec = importlib.util.find_spec("ansible")
    return Path((spec and spec.origin) or "/nowhere").with_name("release.py")


def _walk(place: Path) -> Iterator[Path]:
    yield place
    if place.is_dir():
        for inner in sorted(place.iterdir()):
            yield from _walk(inner)


def may_be_kept(request: dict[str, Any], answer: dict[str, Any]) -> bool:
    """True when only files and settings decided, which give the same answer again, and no password of a login is in it."""
    from ansible import constants
    from ansible.plugins import loader as plugin_loader

    # a file of hosts, see ansible.inventory.manager.InventoryManager.subset
    if "@" in (request.get("limit") or ""):
        return False
    readers = {name.removeprefix("ansible.builtin.") for name in constants.INVENTORY_ENABLED}
    found = [plugin_loader.inventory_loader.find_plugin(name) for name in readers]
    found += [plugin._original_path for plugin in plugin_loader.vars_loader.all()]
    own = _ansible().parent
    if not readers <= STATIC_READERS or not all(path and Path(path).is_relative_to(own) for path in found):
        return False
    for source in answer["sources"]:
        for path in _walk(Path(source)) if "," not in source else ():
            if path.is_file() and (os.access(path, os.X_OK) or _NAMES_READER.search(path.read_bytes())):
                return False
    options = [host["connection"] for host in answer["hosts"]]
    return not any(one[name] for one in options for name in SECRETS) and all(
        one["become_method"] in ("sudo", "su") for one in options
    )


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return " ".join(text.split()) if text else type(error).__name__


def choose_sources(wanted: list[str] | None) -> list[str]:
    """Return the inventory sources: those asked for, else ansible.cfg's, else ./inventory/hosts.yml."""
    from ansible import constants

    if wanted:
        sources = list(wanted)
    else:
        configured, origin = constants.config.get_config_value_and_origin("DEFAULT_HOST_LIST")
        sources = [str(source) for source in configured]
        if origin == "default":
            own = Path("inventory/hosts.yml")
            if own.exists():
                sources = [str(own)]
            elif not any(Path(source).exists() for source in sources):
                raise Wrong(
                    "inventory.missing",
                    "no inventory: none was given and there is no inventory/hosts.yml here",
                    hint="name one with -i FILE (or -i HOST,), or write one with: provision init HOST...",
                )
    for source in sources:
        if "," not in source and not Path(source).exists():
            raise Wrong(
                "inventory.missing",
                f"inventory {source} does not exist",
                hint="provision init HOST... writes an inventory"
                + ("" if "/" in source else f"; -i {source}, (with the comma) means the host of that name"),
            )
    # By their whole path, as ansible's own command line has them: group_vars beside a file are not found otherwise.
    return [source if "," in source else str(Path(source).absolute()) for source in sources]


def vault_secrets(request: dict[str, Any], loader: Any) -> list[Any]:
    """Return Ansible's vault secrets: the prompted one, the given files, and what Ansible itself is set to."""
    from ansible import constants
    from ansible.errors import AnsibleError
    from ansible.parsing.vault import VaultSecret

    found: list[Any] = []
    if request.get("vault_password") is not None:
        found.append((constants.DEFAULT_VAULT_IDENTITY, VaultSecret(request["vault_password"].encode())))
    given = list(request.get("vault_ids") or [])
    if given or constants.DEFAULT_VAULT_PASSWORD_FILE or constants.DEFAULT_VAULT_IDENTITY_LIST:
        from ansible.cli import CLI

        try:
            found += CLI.setup_vault_secrets(
                loader,
                vault_ids=[*(constants.DEFAULT_VAULT_IDENTITY_LIST or []), *given],
                auto_prompt=False,
                initialize_context=False,
            )
        except AnsibleError as error:
            raise Wrong(
                "inventory.vault",
                "the vault password cannot be read",
                [first_line(error)],
                "see --vault-password-file, ANSIBLE_VAULT_PASSWORD_FILE and vault_password_file in ansible.cfg",
            ) from error
    return found


def read_inventory(request: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer for a request."""
    from ansible import context
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import InventoryManager
    from ansible.module_utils.common.collections import ImmutableDict
    from ansible.parsing.dataloader import DataLoader
    from ansible.parsing.vault import VaultSecretsContext
    from ansible.plugins.loader import init_plugin_loader
    from ansible.template import trust_as_template
    from ansible.utils.vars import load_extra_vars
    from ansible.vars.manager import VariableManager

    # As ansible's own command line does: collections first (their inventory plugins, filters and lookups), and what the
    # user typed may be a template.
    init_plugin_loader()
    given = tuple(trust_as_template(text) for text in request.get("extra_vars") or ())
    context.CLIARGS = ImmutableDict(extra_vars=given)
    sources = choose_sources(request.get("sources"))
    loader = DataLoader()
    if request.get("basedir"):
        loader.set_basedir(request["basedir"])
    found_secrets = vault_secrets(request, loader)
    begun, before = time.time_ns(), marks_of(request, sources)
    loader.set_vault_secrets(found_secrets)
    VaultSecretsContext.initialize(VaultSecretsContext(found_secrets))
    try:
        extra_vars = load_extra_vars(loader)
    except AnsibleError as error:
        raise Wrong(
            "vars.extra",
            "extra variables (-e) cannot be read",
            [first_line(error)],
            "write -e key=value, -e '{\"key\": [1, 2]}' or -e @file.yml",
        ) from error
    try:
        manager = InventoryManager(loader=loader, sources=sources)
        variables = VariableManager(loader=loader, inventory=manager)
        if request.get("limit"):
            manager.subset(request["limit"])
        hosts = manager.list_hosts("all")
        everyone = sorted(manager.hosts)
        if not everyone and not hosts:
            raise Wrong(
                "inventory.empty",
                f"the inventory {', '.join(sources)} has no hosts",
                hint="add hosts to it; provision init HOST... writes a commented example",
            )
        if not hosts:
            raise no_match(str(request["limit"]), everyone, sorted(manager.groups))
        looked_up: list[str] = []
        answer = {
            "ok": True,
            "settings": settings(),
            "sources": sources,
            "extra_vars": plain(extra_vars),
            "groups": {name: [h.name for h in group.get_hosts()] for name, group in manager.groups.items()},
            "hosts": [read_host(host, variables, loader, manager, looked_up) for host in hosts],
        }
        keeps = before and not found_secrets and not looked_up and may_be_kept(request, answer)
        newest = max((mark[-1] for mark in (before or {}).values() if mark), default=0)
        settled = newest < begun - _SETTLED_NS and before == marks_of(request, sources)
        return {**answer, "marks": before if keeps and settled else None}
    except AnsibleError as error:
        text = first_line(error)
        if "vault" in text.lower() or "decrypt" in text.lower():
            raise Wrong(
                "inventory.vault",
                "the inventory holds encrypted values that cannot be opened",
                [text],
                "give the password with --ask-vault-pass or --vault-password-file FILE",
            ) from error
        raise Wrong("inventory.invalid", "the inventory cannot be read", [text]) from error


def settings() -> dict[str, Any]:
    """Return what Ansible is set to beside the hosts, so that a run can add to it instead of replacing it."""
    from ansible import constants

    ssh_args = option("connection", "ssh", "ssh_args", {})
    # ANSIBLE_TIMEOUT, ANSIBLE_SSH_TIMEOUT, or ansible.cfg.
    timeout = max(constants.DEFAULT_TIMEOUT, int(option("connection", "ssh", "timeout", {}) or 0))
    _, origin = constants.config.get_config_value_and_origin("pipelining", plugin_type="connection", plugin_name="ssh")
    return {
        "collections_paths": plain(constants.COLLECTIONS_PATHS),
        "roles_path": plain(constants.DEFAULT_ROLES_PATH),
        "callbacks_enabled": plain(constants.CALLBACKS_ENABLED),
        "pipelining_configured": origin != "default",
        "ssh_args": ssh_args,
        "timeout": timeout,
        # Those that this ansible-core runs with, as python3.12.
        "pythons": plain(constants.config.get_config_value("INTERPRETER_PYTHON_FALLBACK")),
    }


def no_match(limit: str, hosts: list[str], groups: list[str]) -> Wrong:
    nearest = difflib.get_close_matches(limit, hosts + groups, n=1)
    known = ", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else "")
    return Wrong(
        "inventory.no_match",
        f"no host matches {limit!r}",
        [f"the inventory has: {known}"],
        f"did you mean {nearest[0]}?" if nearest else "patterns are Ansible's: gpu01, group, 'gpu*:!gpu03'",
    )


def read_host(host: Any, variables: Any, loader: Any, manager: Any, looked_up: list[str]) -> dict[str, Any]:
    """Return one host: its variables with templates resolved, and how to connect to it.

    looked_up gets the variables whose templates may have looked something up.
    """
    from ansible.errors import AnsibleError
    from ansible.template import Templar

    raw = variables.get_vars(host=host, include_hostvars=False)
    templar: Any = None
    found: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for name, value in raw.items():
        if name in NOT_THEIRS:
            continue
        try:
            if holds_template(value):
                if templar is None:
                    # hostvars only now: few inventories template at all.
                    templar = Templar(loader=loader, variables=variables.get_vars(host=host))
                if not names_only(value):
                    looked_up.append(name)
                value = templar.template(value)
            found[name] = plain(value)
        except AnsibleError as error:
            unresolved[name] = first_line(error)
    connection = connect_options(found)
    local = (
        host.name in LOCAL_NAMES
        and "ansible_connection" not in found
        and "ansible_host" not in found
        and "ansible_port" not in found
        and named_on_command_line(host.name, manager)
    )
    connection["implicit_local"] = local or bool(getattr(host, "implicit", False))
    return {
        "name": host.name,
        "groups": sorted(g.name for g in host.get_groups()),
        "vars": found,
        "unresolved": unresolved,
        "origins": origins(host, variables),
        "connection": connection,
    }


def origins(host: Any, variables: Any) -> dict[str, str]:
    """Return where each variable of a host was found: "-e", "host gpu01" or "group gpus"; the winner."""
    where: dict[str, str] = {}
    loader, inventory = variables._loader, variables._inventory
    from ansible.vars.plugins import get_vars_from_path

    for group in sorted(host.get_groups(), key=lambda g: (g.depth, g.priority, g.name)):
        names = set(group.get_vars())
        for source in inventory._sources:
            if "," not in str(source):
                names |= set(get_vars_from_path(loader, str(Path(source).absolute().parent), [group], "all"))
        where.update(dict.fromkeys(names, f"group {group.name}"))
    names = set(host.get_vars())
    for source in inventory._sources:
        if "," not in str(source):
            names |= set(get_vars_from_path(loader, str(Path(source).absolute().parent), [host], "all"))
    where.update(dict.fromkeys(names, f"host {host.name}"))
    where.update(dict.fromkeys(variables.extra_vars, "-e"))
    return {str(name): text for name, text in where.items()}


def named_on_command_line(name: str, manager: Any) -> bool:
    """True when a host list such as ``localhost,`` names the host: Ansible's habit there is no ssh to oneself."""
    return any("," in str(source) and name in str(source).split(",") for source in manager._sources)


def connect_options(found: dict[str, Any]) -> dict[str, Any]:
    """Return how Ansible would connect: every option by its own rules of precedence."""
    from ansible import constants
    from ansible.plugins import loader as plugin_loader

    options = {name: option("connection", "ssh", name, found) for name in SSH_OPTIONS}
    name = str(found.get("ansible_become_method", constants.DEFAULT_BECOME_METHOD))
    method = name.rpartition(".")[2]
    # Others come with a collection that may not be there: what all methods are asked is read as sudo's.
    plugin = method if method in ("sudo", "su") else "sudo"
    options.update({name: option("become", plugin, name, found) for name in BECOME_OPTIONS})
    if method != plugin:
        options["become_exe"] = found.get("ansible_become_exe")
    default, origin = constants.config.get_config_value_and_origin("DEFAULT_BECOME")
    become = found.get("ansible_become", default if origin != "default" else None)
    options["become"] = become if become is None else str(become).lower() in ("true", "yes", "1", "on")
    options["become_method"] = method
    options["become_known"] = method == plugin or plugin_loader.become_loader.get(name, class_only=True) is not None
    options["connection"] = found.get("ansible_connection", constants.DEFAULT_TRANSPORT)
    options["python"] = found.get("ansible_python_interpreter", constants.config.get_config_value("INTERPRETER_PYTHON"))
    return options


def option(kind: str, plugin: str, name: str, found: dict[str, Any]) -> Any:
    from ansible import constants
    from ansible.errors import AnsibleError
    from ansible.plugins import loader as plugin_loader

    loaders = {"connection": plugin_loader.connection_loader, "become": plugin_loader.become_loader}
    if not constants.config.has_configuration_definition(kind, plugin):
        loaders[kind].get(plugin, class_only=True)
    if name not in constants.config.get_configuration_definitions(kind, plugin):
        # this ansible-core does not have the option yet
        return None
    try:
        value, _ = constants.config.get_config_value_and_origin(
            name, plugin_type=kind, plugin_name=plugin, variables=found
        )
    except AnsibleError as error:
        raise Wrong("inventory.invalid", f"connection option {name} is wrong", [first_line(error)]) from error
    return plain(value)


def main() -> None:
    answer_fd = os.dup(1)
    # whatever Ansible or an inventory script prints is not the answer
    os.dup2(2, 1)
    # A source that no plugin can read is an error here; Ansible only warns.
    os.environ.setdefault("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "true")
    os.environ.setdefault("ANSIBLE_LOCALHOST_WARNING", "false")
    # Before the request is there: the process is started before the program knows what to ask.
    for name in ("ansible.inventory.manager", "ansible.vars.manager", "ansible.template", "ansible.plugins.loader"):
        importlib.import_module(name)
    text = sys.stdin.read()
    if not text:
        return
    request = json.loads(text)
    try:
        answer = read_inventory(request)
    except Wrong as wrong:
        answer = {"ok": False, "error": wrong.error}
    with os.fdopen(answer_fd, "w", encoding="utf-8") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    main()
