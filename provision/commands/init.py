"""init: a starter inventory, commented so that it teaches."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from provision.documents import InitDocument
from provision.errors import UsageError

# RFC 1123 labels, or an IPv4 or IPv6 address; Ansible's ranges (gpu[01:04]) are allowed in names.
_NAME = re.compile(r"^[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?$")
_RANGE = re.compile(r"\[[A-Za-z0-9]+:[A-Za-z0-9]+(?::[0-9]+)?\]")
_IPV6 = re.compile(r"^[0-9a-fA-F:]*:[0-9a-fA-F:.]+$")
# YAML 1.1 reads these as something else than a text.
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_LOCAL = ("localhost", "127.0.0.1", "::1")

_TEXT = """\
# GPU hosts, as an ordinary Ansible inventory.
#   provision{source} scan      what is there
#   provision{source} plan      what would change, and why; changes nothing
#   provision{source} apply     shows the plan, asks, does it, and proves it
#   provision{source} verify    any time
---
all:
  children:
    gpus:
      hosts:
{hosts}
      vars:
        # How to log in; what ~/.ssh/config says holds too. Log in once by hand: unknown host keys are refused.
{login}
        # ansible_ssh_private_key_file: ~/.ssh/id_ed25519
        # sudo with a password: type it (provision -K plan), or keep it encrypted; put here what this prints:
        #   ansible-vault encrypt_string --name ansible_become_password

        # Which driver. "recommended" keeps a supported driver, and installs the newest long-term or production
        # branch that this Ubuntu offers and every GPU of the host can run.
        nvidia_driver_branch: recommended
        # nvidia_driver_branch: "580"          # a branch
        # nvidia_driver_version: 580.126.20    # exactly this one
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
        #   - {{name: py312cu128, python: "3.12", torch: "2.7.1", cuda: "12.8"}}

        # Containers that see the GPU. See docs/containers.md.
        # container_toolkit_runtimes: [docker]

        # Every host must have these cards; without it, what the PCI bus shows.
        # gpu_verify_expect: 8x H100
"""


def run(hosts: Sequence[str], path: Path, *, user: str | None = None, force: bool = False) -> InitDocument:
    """Write an inventory for the named hosts to path; UsageError for a bad name or a file that is there."""
    names = list(dict.fromkeys(hosts))
    for name in names:
        check_name(name)
    content = text(names, user, path)
    if path.exists() and not force:
        raise UsageError(
            "init.exists",
            f"{path} is there already",
            hint="--force overwrites it; -o FILE writes another file",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".new")
        scratch.write_text(content, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise UsageError("init.not_written", f"{path} cannot be written", because=[str(error)]) from error
    return InitDocument(path=str(path), content=content)


def check_name(name: str) -> None:
    """Raise UsageError for what is no host name, address or range of names."""
    plain = _RANGE.sub("0", name)
    if _IPV6.match(name) or (_NAME.match(plain) and len(plain) <= 253 and ".." not in plain):
        return
    user, at, rest = name.partition("@")
    hint = (
        f"write the host as {rest}, and the user with --user {user}"
        if at
        else "letters, digits, dots and hyphens"
    )
    raise UsageError("init.bad_name", f"{name!r} is no host name", hint=hint)


def text(hosts: Sequence[str], user: str | None, path: Path) -> str:
    """Return the inventory; path: where it will lie, for the commands in its comments."""
    lines = []
    for name in hosts:
        lines.append(f"        {_quoted(name)}:")
        if name in _LOCAL:
            lines.append("          ansible_connection: local   # this machine: no ssh")
    login = f"        ansible_user: {_quoted(user)}" if user else "        # ansible_user: ubuntu"
    # The place that is looked at anyway needs no -i.
    source = "" if path == Path("inventory/hosts.yml") else f" -i {shlex.quote(str(path))}"
    return _TEXT.format(hosts="\n".join(lines), login=login, source=source)


def _quoted(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and name.lower() not in _YAML_WORDS
    return name if plain else json.dumps(name)
