"""What must be true of a host once the command was run again, read from the host itself and not by the code under test."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kinds import FOREIGN, FOREIGN_HOLD, Kind

# What nobody may be told after a kill: a cause that is not the cause.
# The lab's repositories do not change during a run.
WRONG = ("apt.plan_moved", "internal.error", "Traceback", "a defect of")
_ASK = r"""
dpkg --audit; echo ==; apt-mark showhold; echo ==
dpkg-query -W -f '${Package}:${Architecture} ${Version} ${db:Status-Want} ${db:Status-Status} ${db:Status-Eflag}\n'; echo ==
said=$(nvidia-smi -L 2>&1); echo "rc $?"; echo "$said" | sed 's/ (UUID.*//'; echo ==
find /tmp /var/tmp /root /home/lab -xdev \( -name '*gpu-provision*' -o -name 'ansible-tmp-*' \) 2>/dev/null
find /etc /usr/local /opt -xdev \( -name '.*gpu-provision*' -o -name '*gpu-provision*.new' -o -name '*.gpu-provision-*' \) \
    -not -path '/etc/sim/*' 2>/dev/null
"""
# Files of /etc that differ between two hosts or two moments without anybody's fault.
_RESTLESS = (
    "etc/sim",
    "etc/machine-id",
    "etc/hostname",
    "etc/hosts",
    "etc/resolv.conf",
    "etc/mtab",
    "etc/ld.so.cache",
    # docker makes itself a key where it starts for the first time
    "etc/docker/key.json",
    "etc/ssh",
    "etc/shadow",
    "etc/gshadow",
    "etc/passwd",
    "etc/group",
    "etc/subuid",
    "etc/subgid",
    "etc/.pwd.lock",
    "etc/sudoers.d",
    "etc/.updated",
)


@dataclass
class Host:
    """One reading of a host."""

    audit: str
    holds: frozenset[str]
    packages: frozenset[str]
    smi: str
    litter: list[str]
    # path below / -> mode, owner and content, or where a link leads
    etc: dict[str, str]
    # the same of FOREIGN, with their dates
    foreign: dict[str, str]
    locks: list[str]
    damaged: list[str]
    records: int

    @classmethod
    def read(cls, root: Path, init: str) -> Host:
        """root: the host's disk as seen from here; init: id of the container's first process."""
        command = [
            "nsenter",
            "-t",
            init,
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "env",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "sh",
            "-c",
            _ASK,
        ]
        said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
        audit, held, packages, smi, litter = said.split("==\n")
        own = root / "var/lib/gpu-provision"
        files = [path for path in sorted(own.rglob("*.json")) if path.is_file()]
        return cls(
            audit.strip(),
            frozenset(held.split()),
            frozenset(packages.splitlines()),
            smi.strip(),
            litter.split(),
            {name: _state(root / name) for name in _walk(root)},
            {path: _state(root / path.lstrip("/"), dated=True) for path in FOREIGN},
            [
                str(path.relative_to(root))
                for path in files
                if path.name in ("lock.json", "transaction.json", "unfinished.json", "purge.json")
            ],
            [str(path.relative_to(root)) for path in files if not _is_json(path)]
            + [str(path.relative_to(root)) for path in own.rglob("*.damaged-*")],
            len(list((own / "history").glob("*.json"))),
        )


def _walk(root: Path) -> list[str]:
    found = []
    for folder, _, files in os.walk(root / "etc"):
        for name in files:
            path = str((Path(folder) / name).relative_to(root))
            if not path.startswith(_RESTLESS) and not path.endswith("-"):
                found.append(path)
    return sorted(found)


def _state(path: Path, dated: bool = False) -> str:
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            return f"-> {path.readlink()}"
        content = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if stat.S_ISREG(info.st_mode) else "no file"
    except OSError as error:
        return f"not there: {error.strerror}"
    return f"{info.st_mode:o} {info.st_uid}:{info.st_gid} {content}" + (f" {info.st_mtime_ns}" if dated else "")


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text()), dict)
    except (OSError, ValueError):
        return False


def of_host(kind: Kind, before: Host, now: Host, clean: Host) -> dict[str, str]:
    """Loss -> what is wrong, empty when nothing is. before: the start; clean: the end of a run that nobody killed."""
    lost: dict[str, str] = {}
    if now.audit:
        lost["dpkg"] = now.audit
    wrong = now.holds ^ clean.holds
    if wrong or FOREIGN_HOLD not in now.holds:
        lost["holds"] = f"other than after a clean run: {' '.join(sorted(wrong)) or FOREIGN_HOLD}"
    # dpkg that is killed between removing a package's files and forgetting the package leaves it known as removed. What would be
    # left of it in /etc is compared below.
    removed = {line for line in now.packages - clean.packages if line.endswith(" deinstall config-files ok")}
    if now.packages - removed != clean.packages:
        lost["packages"] = "\n".join(_differences(now.packages - removed, clean.packages))
    changed = [path for path, was in before.foreign.items() if path not in kind.edited and now.foreign[path] != was]
    if changed:
        lost["foreign files"] = " ".join(changed)
    other = [
        f"{path}: {now.etc.get(path, 'not there')}, clean: {clean.etc.get(path, 'not there')}"
        for path in sorted({*now.etc, *clean.etc})
        if now.etc.get(path) != clean.etc.get(path) and (path in now.etc or path not in kind.left_to_apply)
    ]
    if other:
        lost["files"] = "\n".join(other)
    if now.locks:
        lost["lock stays"] = " ".join(now.locks)
    if now.damaged:
        lost["own state"] = " ".join(now.damaged)
    if not now.records:
        lost["no record"] = "the host was changed and has no record of any run"
    if now.litter:
        lost["left on the host"] = " ".join(now.litter)
    if now.smi != clean.smi:
        lost["nvidia-smi"] = now.smi
    return lost


def _differences(now: frozenset[str], clean: frozenset[str]) -> list[str]:
    return [*(f"now {line}" for line in sorted(now - clean)), *(f"clean {line}" for line in sorted(clean - now))]


def of_document(text: str, code: int, host: str, statuses: frozenset[str]) -> dict[str, str]:
    """The same of what the command said: its exit code, the host's status, no error, no cause that is not the cause."""
    document = parsed(text)
    if document is None:
        return {"no answer": text[-2000:]}
    row = document["hosts"].get(host, {})
    lost: dict[str, str] = {}
    errors = [error for error in document.get("errors", ()) if error.get("host") in (host, None)]
    if row.get("status") not in statuses:
        lost["not done"] = (
            f"exit code {code}, status {row.get('status')}: {row.get('summary')} {json.dumps(errors)[:3000]}"
        )
    elif errors:
        lost["errors"] = json.dumps(errors)[:3000]
    lost.update(wrong_cause(json.dumps([row, errors])))
    return lost


def wrong_cause(text: str) -> dict[str, str]:
    """{"wrong cause": which} where a text has one of WRONG."""
    found = [words for words in WRONG if words in text]
    return {"wrong cause": f"{', '.join(found)}: {text[max(0, text.find(found[0]) - 300) :][:1500]}"} if found else {}


def parsed(text: str) -> dict[str, Any] | None:
    """The document that a command printed; None where it is none."""
    try:
        document = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    return document if isinstance(document, dict) and "hosts" in document else None


def left_here(folder: Path) -> dict[str, str]:
    """What the commands left in their temporary folder on this machine."""
    there = sorted(path.name for path in folder.iterdir())
    return {"left here": " ".join(there)} if there else {}
