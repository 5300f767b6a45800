"""init: a starter inventory, commented so that it teaches; for a fleet by its hardware, after a look at every host."""

from __future__ import annotations

import ipaddress
import re
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from provision.catalog import Catalog, load_catalog
from provision.commands import scan
from provision.documents import InitDocument, InitGroup
from provision.errors import Exit, ProvisionError, RefusedError, UsageError
from provision.facts import Facts
from provision.lib import files
from provision.lib.text import one_line, plural
from provision.parts.hardware import NO_GPU, Kind, kinds
from provision.planning import read_facts
from provision.runs.fleet import Fleet, Silent, Talk, ask_all

# RFC 1123 labels, or an IPv4 or IPv6 address; Ansible's ranges (gpu[01:04]) are allowed in names.
_NAME = re.compile(r"^[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?$")
_RANGE = re.compile(r"\[([A-Za-z]|[0-9]+):([A-Za-z]|[0-9]+)(?::([0-9]+))?\]")
# YAML 1.1 reads these as something else than a text.
_YAML_KEYWORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# as Ansible orders them
_LETTERS = string.ascii_letters
_LOCAL = ("localhost", "127.0.0.1", "::1")
_UNREACHED = "unreached"
# of a line with a comment
_WIDTH = 110
_LOCAL_LINE = "          ansible_connection: local   # this machine: no ssh"

_COMMANDS = """\
#   provision{source} scan      what is installed
#   provision{source} plan      what would change, and why; changes nothing
#   provision{source} apply     shows the plan, asks, applies it, and tests the result
#   provision{source} verify    any time
"""

_LOGIN = """\
        # How to log in; ~/.ssh/config applies too. Log in once by hand: unknown host keys are refused.
{login}
        # ansible_ssh_private_key_file: ~/.ssh/id_ed25519
        # sudo with a password: type it (provision -K plan), or keep it encrypted; put here what this prints:
        #   ansible-vault encrypt_string --name ansible_become_password

"""

_VARIABLES = """\
        # Which driver. "recommended" keeps a supported driver, and installs the long-term or production branch
        # that this Ubuntu offers, every GPU of the host can run and that is supported longest.
        nvidia_driver_branch: recommended
        # nvidia_driver_branch: "580"          # a branch
        # nvidia_driver_version: 580.126.20    # exactly this one
        # nvidia_driver_prefer: newest         # not the one that is supported longest
        # nvidia_driver_update: true           # move on to the newest; without it an installed driver stays
        # nvidia_driver_manage: false          # leave the driver alone, only look

        # Driver packages are held, so that no update breaks them apart; with signed modules the kernel is held too.
        # Updates of both then wait for you: docs/decisions.md says what that costs and how to move on.
        # nvidia_driver_hold: false

        # Reboots that the driver needs: when_idle (never under a running job), always, never (you do it).
        nvidia_driver_reboot: when_idle

        # CUDA toolkits side by side, with cuDNN and NCCL; nothing is installed without this. See docs/cuda.md.
        # cuda_toolkit_versions: ["12.8", "13.0"]
        # cuda_toolkit_default: "12.8"         # nvcc of every login

        # conda environments, each checked against driver and cards first. See docs/conda.md.
        # miniconda_environments:
        #   - {name: py312cu128, python: "3.12", torch: "2.7.1", cuda: "12.8"}

        # Containers that see the GPU. See docs/containers.md.
        # container_toolkit_runtimes: [docker]

        # Every host must have these cards; without it, what the PCI bus shows.
        # gpu_verify_expect: 8x H100
"""

_TEXT = (
    "# GPU hosts, as an ordinary Ansible inventory.\n"
    + _COMMANDS
    + """\
---
all:
  children:
    gpus:
      hosts:
{hosts}
      vars:
"""
    + _LOGIN
)


@dataclass(frozen=True)
class Login:
    """How to log in, as far as it is said. config: ssh's configuration, where that is not the one that ssh reads anyway."""

    user: str | None = None
    config: Path | None = None

    @property
    def said(self) -> bool:
        return bool(self.user or self.config)

    @property
    def lines(self) -> str:
        """The lines of it, in an inventory."""
        found = [f"        ansible_user: {_scalar(self.user)}" if self.user else "        # ansible_user: ubuntu"]
        if self.config:
            found.append(f"        ansible_ssh_common_args: {_scalar(self.variables['ansible_ssh_common_args'])}")
        return "\n".join(found)

    @property
    def variables(self) -> dict[str, str]:
        """What the lines say."""
        found = {"ansible_user": self.user} if self.user else {}
        return {**found, **({"ansible_ssh_common_args": f"-F {shlex.quote(str(self.config))}"} if self.config else {})}


@dataclass(frozen=True)
class Source:
    """Where the names of hosts came from. overlay: inventories that know how to log in, so that only groups are written.

    leave_out: hosts without a GPU are left out, since nobody has named them as GPU hosts. login: how to log in.
    """

    title: str
    overlay: tuple[str, ...] = ()
    leave_out: bool = False
    login: Login = Login()


def run(
    hosts: Sequence[str],
    path: Path,
    *,
    login: Login = Login(),
    force: bool = False,  # noqa: B008 - frozen
) -> InitDocument:
    """Write an inventory for the named hosts to path; UsageError for a bad name or a file that is there."""
    names = list(dict.fromkeys(hosts))
    for name in names:
        check_name(name)
    content = text(names, login, path)
    refuse_existing(path, force)
    gpus = {"hosts": _named(names), "vars": {**login.variables, **yaml.safe_load(_VARIABLES)}}
    _write(path, content, {"all": {"children": {"gpus": gpus}}})
    return InitDocument(path=str(path), content=content)


def run_scanned(
    fleet: Fleet, path: Path, source: Source, talk: Talk | None = None, *, force: bool = False
) -> InitDocument:
    """Look at every host and write an inventory with a group for each kind of hardware.

    Hosts that cannot be read are in a group of their own, with the reason; exit code 4 or 1 says so, and the file is written
    anyway. UsageError for a file that is there.
    """
    refuse_existing(path, force)
    catalog = load_catalog()
    answers = ask_all(
        fleet, fleet.hosts, "scanning", lambda host, session: read_facts(session.call, {}), talk or Silent()
    )
    read = {name: answer for name, answer in answers.items() if isinstance(answer, Facts)}
    errors = {name: answer for name, answer in answers.items() if isinstance(answer, ProvisionError)}
    if not read:
        raise UsageError(
            "init.none_reached",
            "none of the hosts could be read, so nothing was written",
            because=[f"{name}: {error.issue.message}" for name, error in list(errors.items())[:4]],
            hint=next(iter(errors.values())).issue.hint or "--no-scan writes the names without reading the hosts",
        )
    found = kinds(read, catalog, taken={"all", "ungrouped", "gpus", _UNREACHED, *answers})
    without = next((kind for kind in found if kind.name.startswith(NO_GPU)), None) if source.leave_out else None
    shown = [kind for kind in found if kind is not without]
    if not shown:
        raise UsageError(
            "init.no_gpu",
            f"no host of {source.title} has an NVIDIA GPU, so nothing was written",
            because=[f"read {len(read)} of {len(answers)} hosts"],
            hint="name the hosts that have one",
        )
    left_out = without.hosts if without else []
    reasons = {name: error.issue.message for name, error in errors.items()}
    content = scanned_text(shown, read, catalog, source, path, unreached=reasons, left_out=left_out)
    _write(path, content, _says(shown, source, reasons))
    document = InitDocument(path=str(path), content=content, unreached=reasons, left_out=left_out)
    document.next_source = _source(path, source.overlay)
    document.groups = {
        kind.name: InitGroup(
            hosts=kind.hosts,
            cards=kind.cards,
            ubuntu=kind.releases,
            branches=kind.branches,
            recommended=kind.recommended,
            trouble=kind.refused,
        )
        for kind in shown
    }
    document.errors = [error.issue for error in errors.values()]
    return document.conclude([Exit(error.exit_code) for error in errors.values()])


def refuse_existing(path: Path, force: bool) -> None:
    """Raise UsageError where the file is there: what somebody has written is not overwritten."""
    if path.exists() and not force:
        raise UsageError(
            "init.exists", f"{path} already exists", hint="--force overwrites it; -o FILE writes another file"
        )


def _write(path: Path, content: str, meant: object) -> None:
    """Write an inventory that says what is meant when it is read again."""
    try:
        said = yaml.safe_load(content)
    except yaml.YAMLError:
        said = None
    if said != meant:
        raise RefusedError(
            "init.not_as_meant",
            "the inventory would differ from the request, so nothing was written",
            because=["read again, its hosts, groups or variables are others: this is a defect of gpu-provision"],
            hint="--no-scan writes the names alone",
        )
    hint = "-o FILE writes another file"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("usage.file", f"cannot write {path}", because=[str(error)], hint=hint) from error
    files.write(path, content, hint)


def check_name(name: str) -> None:
    """Raise UsageError for what is no host name, address or range of names."""
    plain = _RANGE.sub("0", name)
    if _is_ipv6(name) or (_NAME.match(plain) and len(plain) <= 253 and ".." not in plain):
        for span in _RANGE.finditer(name):
            _check_range(name, *span.groups())
        return
    raise UsageError("init.bad_name", f"{name!r} is no host name", hint=_meant(name))


def _check_range(name: str, begin: str, end: str, step: str | None) -> None:
    """Raise UsageError for a range that Ansible refuses or that holds nothing (plugins/inventory of ansible-core)."""
    numbers = begin.isdigit() and end.isdigit()
    padded = begin.startswith("0") and len(begin) > 1
    if begin.isdigit() != end.isdigit() or (padded and len(begin) != len(end)) or (step is not None and int(step) == 0):
        why = "write both ends alike: gpu[01:40], gpu[1:40], gpu[a:f]"
    elif (int(begin) > int(end)) if numbers else (_LETTERS.index(begin) > _LETTERS.index(end)):
        why = "the smaller end comes first: gpu[01:40]"
    else:
        return
    raise UsageError("init.bad_name", f"{name!r} is no range of names", hint=why)


def _is_ipv6(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).version == 6
    except ValueError:
        return False


def _meant(name: str) -> str:
    """What somebody may have meant by what is no host name."""
    user, at, host = name.partition("@")
    if at:
        return f"write the host as {host}, and the user with --user {user}"
    host, _, port = name.rpartition(":")
    if host and port.isdigit():
        return f"write the host as {host.strip('[]')}, and the port into the inventory (ansible_port: {port}) or ~/.ssh/config"
    if "=" in name or name.startswith("["):
        return "an inventory of Ansible's is taken with: provision init -i FILE --from-inventory"
    return "letters, digits, dots and hyphens"


def text(hosts: Sequence[str], login: Login, path: Path) -> str:
    """Return the inventory; path: where it will lie, for the commands in its comments."""
    lines = []
    for name in hosts:
        lines.append(f"        {_scalar(name)}:")
        if name in _LOCAL:
            lines.append(_LOCAL_LINE)
    return _TEXT.format(hosts="\n".join(lines), login=login.lines, source=_source(path)) + _VARIABLES


def _source(path: Path, others: Sequence[str] = ()) -> str:
    """What -i the commands need; nothing for the place that is looked at anyway."""
    if not others and path == Path("inventory/hosts.yml"):
        return ""
    # A folder is read whole: a file that lies in it needs no -i of its own.
    inside = any(Path(other).is_dir() and Path(other).resolve() == path.parent.resolve() for other in others)
    return one_line("".join(f" -i {shlex.quote(str(one))}" for one in [*others, *([] if inside else [path])]))


def _scalar(name: str) -> str:
    """A text as YAML writes it: plain, or in double quotes."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and name.lower() not in _YAML_KEYWORDS
    if plain:
        return name
    quoted: str = yaml.safe_dump(name, default_style='"', allow_unicode=True, width=10_000)
    return quoted.rstrip("\n")


def _value(text: str) -> str:
    """A text as YAML writes it as a value: plain wherever that can be."""
    written: str = yaml.safe_dump(text, allow_unicode=True, width=10_000)
    return written.removesuffix("\n").removesuffix("\n...")


def _named(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"ansible_connection": "local"} if name in _LOCAL else None for name in names}


def _says(found: Sequence[Kind], source: Source, unreached: Mapping[str, str]) -> dict[str, Any]:
    """What an inventory by kinds of hardware says, without its comments."""
    gpus: dict[str, Any] = {"children": {kind.name: None for kind in found if not kind.name.startswith(NO_GPU)}}
    if not source.overlay:
        gpus["vars"] = yaml.safe_load(_VARIABLES)
    children: dict[str, Any] = {"gpus": gpus}
    for kind in found:
        hosts = _named(kind.hosts)
        for name, own in kind.odd.items():
            hosts[name] = {**(hosts[name] or {}), **({"gpu_verify_expect": own} if own else {})} or None
        children[kind.name] = {"hosts": hosts}
        if kind.cards:
            children[kind.name]["vars"] = {"gpu_verify_expect": kind.cards}
    if unreached:
        children[_UNREACHED] = {"hosts": _named(list(unreached))}
    login = {"vars": source.login.variables} if source.login.said and not source.overlay else {}
    return {"all": {**login, "children": children}}


# ---- the text of a scanned fleet ---------------------------------------------------------------------------------------


def scanned_text(
    found: Sequence[Kind],
    facts: Mapping[str, Facts],
    catalog: Catalog,
    source: Source,
    path: Path,
    *,
    unreached: Mapping[str, str] | None = None,
    left_out: Sequence[str] = (),
) -> str:
    """Return the inventory of hosts that were looked at, by kinds of hardware. path: as for ``text``."""
    gpus = [kind for kind in found if not kind.name.startswith(NO_GPU)]
    lines = [f"# GPU hosts by their hardware, as an ordinary Ansible inventory; from {one_line(source.title)}."]
    if source.overlay:
        lines.append(
            "# Groups only: how to log in stays where it is. Give both, or put this file into the same folder."
        )
    lines += _COMMANDS.format(source=_source(path, source.overlay)).splitlines()
    if left_out:
        lines += ["# Left out, since they have no NVIDIA GPU:", *_folded(", ".join(left_out), "#   ")]
    lines += ["---", "all:"]
    if not source.overlay:
        # Of all hosts, those too that were not reached.
        login = _LOGIN.format(login=source.login.lines).splitlines()
        lines += ["  vars:" if source.login.said else "  # vars:", *(line.removeprefix("    ") for line in login)]
    lines += ["  children:", "    gpus:", "      children:"]
    lines += [f"        {kind.name}:" for kind in gpus] or ["        {}"]
    lines += ["      # vars:", *_commented(_VARIABLES)] if source.overlay else ["      vars:", *_VARIABLES.splitlines()]
    for kind in found:
        lines += _group(kind, facts, catalog)
    if unreached:
        lines += [
            "",
            f"    {_UNREACHED}:",
            "      # Not read: no group is known for them. provision -l unreached scan tries again; move them when it works.",
            "      hosts:",
        ]
        lines += [_host(name, why) for name, why in unreached.items()]
    return "\n".join(lines) + "\n"


def _group(kind: Kind, facts: Mapping[str, Facts], catalog: Catalog) -> list[str]:
    count = plural(len(kind.hosts), "host")
    what = [kind.cards or "no NVIDIA GPU", *(["NVSwitch"] if kind.nvswitch else [])]
    system = f"Ubuntu {' and '.join(kind.releases)}"
    comment = one_line(f"{count}: {', '.join(what)}; {system}")
    lines = ["", f"    {kind.name}:", f"      # {comment}", "      hosts:"]
    for name in kind.hosts:
        lines.append(_host(name, _comment(name, kind, facts[name])))
        own = kind.odd.get(name)
        if own:
            lines.append(f"          gpu_verify_expect: {_value(own)}   # most of its kind have {kind.cards}")
    if not kind.cards:
        return [
            *lines,
            "      # They are not changed; remove them, or find out why their cards are not on the PCI bus.",
        ]
    lines += [
        "      vars:",
        "        # verify fails when a card is gone.",
        f"        gpu_verify_expect: {_value(kind.cards)}",
    ]
    if kind.branches:
        first, last = kind.branches[0], kind.branches[-1]
        span = f"Branch {first} drives" if first == last else f"Branches {first} to {last} drive"
        lines += _folded(
            f"{span} these cards on {system}, by the catalog; recommended is the one that apt offers and that "
            f"is supported longest, {kind.recommended} where it is offered.",
            "        # ",
        )
        lines.append(f'        # nvidia_driver_branch: "{kind.recommended}"')
    elif not kind.refused:
        lines.append("        # The catalog knows no branch of the driver for them: provision plan says more.")
    for reason in dict.fromkeys(kind.refused.values()):
        lines += _folded(f"No driver can be chosen: {reason}.", "        # ")
    if kind.nvswitch:
        lines.append("        # Fabric manager is installed with the driver, at the same version.")
    if kind.newest_cuda:
        lines.append(f"        # CUDA up to {kind.newest_cuda} runs with that; see docs/cuda.md.")
        lines.append(f'        # cuda_toolkit_versions: ["{kind.newest_cuda}"]')
    return lines


def _comment(name: str, kind: Kind, facts: Facts) -> str:
    """What a person wants to know of a host beside its name: the driver that it has, or why it can have none."""
    if name in kind.refused:
        return f"no driver can be chosen: {kind.refused[name]}"
    seen = scan.describe(facts)
    parts = [
        f"driver {seen.driver}" if seen.driver else "no driver" if kind.cards else "",
        seen.cuda or "",
        seen.summary,
    ]
    return "; ".join(filter(None, parts))


def _host(name: str, comment: str) -> str:
    line = f"        {_scalar(name)}:"
    plain = " ".join(one_line(comment).split())
    room = _WIDTH - len(line) - 5
    shown = plain if len(plain) <= room else plain[: room - 3].rstrip() + "..."
    line = f"{line}   # {shown}" if shown else line
    return f"{line}\n{_LOCAL_LINE}" if name in _LOCAL else line


def _folded(text: str, start: str) -> list[str]:
    import textwrap

    return textwrap.wrap(one_line(text), _WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False)


def _commented(text: str) -> list[str]:
    """Lines of variables as comments: beside an inventory that may say the same, nothing is said twice."""
    return [
        line if not line.strip() or line.lstrip().startswith("#") else line.replace("        ", "        # ", 1)
        for line in text.splitlines()
    ]
