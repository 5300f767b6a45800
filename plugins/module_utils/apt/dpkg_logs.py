# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What apt and dpkg wrote about themselves: who changed what, what a maintainer script failed at, when a package stopped.

Logs are read from their ends, a bounded part of each. Source of the forms: apt's history.log and term.log, dpkg.log.
Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import zlib

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re, redact

HISTORY, TERM, DPKG = "/var/log/apt/history.log", "/var/log/apt/term.log", "/var/log/dpkg.log"
UNATTENDED = "/var/log/unattended-upgrades/unattended-upgrades.log"
_TAIL, _MOST_UNPACKED = 1 << 19, 1 << 24
_MOST_TRANSACTIONS, _MOST_PACKAGES = 12, 80
_ACTIONS = ("Install", "Upgrade", "Downgrade", "Reinstall", "Remove", "Purge")
_CHANGE = lazy_re.compile(r"([a-z0-9][a-z0-9.+-]{0,200})(?::([a-z0-9-]+))? \(([^)]*)\)")
_FAILED = lazy_re.compile(r"^dpkg: error processing (?:package|archive) (\S+)(?: \((\S+?)\))?:\s*$")
_TELLING = lazy_re.compile(
    r"^(?:Error!|ERROR|E: |error:|Bad return|Consult |dkms|modprobe|update-initramfs: failed|\S+: error)|"
    r"No space left|cannot stat|trying to overwrite|Unable to|not supported|failed with|/usr/sbin/dkms"
)
_CONCERNS = lazy_re.compile(
    r"nvidia|cuda|cudnn|nccl|^linux-(?:image|headers|modules|generic)|^docker|^containerd|^libxnvctrl"
)


def tail(tree, path, size=_TAIL):
    """Text of the end of a log, whole lines; "" where there is none."""
    data = tree.tail(path, size) or b""
    whole = data if len(data) < size else data.partition(b"\n")[2]
    return whole.decode("utf-8", "replace")


def history(tree):
    """Text of apt's history, that of the last month before it first."""
    packed = tree.read_bytes(HISTORY + ".1.gz", _TAIL)
    old = ""
    if packed:
        try:
            old = zlib.decompressobj(31).decompress(packed, _MOST_UNPACKED).decode("utf-8", "replace")[-_TAIL:]
        except zlib.error:
            # cut off while it was written; the current log is read anyway
            old = ""
    return old + "\n" + tail(tree, HISTORY)


def transactions(text):
    """[{start, end, command, by, unattended, error, changes}] that concern GPUs or failed, oldest first.

    changes: [{action, name, old, new}] of interesting packages. end None: apt was cut off. by: user that asked, or None.
    """
    found = []
    for block in text.split("\n\n"):
        fields = {}
        for line in block.splitlines():
            name, colon, value = line.partition(": ")
            if colon and name and name[0].isupper():
                fields[name] = value.strip()
        if "Start-Date" not in fields:
            continue
        changes = [row for action in _ACTIONS if action in fields for row in _changes(action, fields[action])]
        command = redact.text(fields.get("Commandline", ""))[:400]
        row = {
            "start": fields["Start-Date"],
            "end": fields.get("End-Date"),
            "command": command,
            "by": fields.get("Requested-By"),
            "unattended": "unattended-upgrade" in command,
            "error": fields.get("Error"),
            "changes": [change for change in changes if _CONCERNS.search(change["name"])][:_MOST_PACKAGES],
        }
        if row["changes"] or row["error"] or row["end"] is None:
            found.append(row)
    return found[-_MOST_TRANSACTIONS:]


def _changes(action, text):
    for name, _, inside in _CHANGE.findall(text):
        versions = [part.strip() for part in inside.split(",") if part.strip() != "automatic"]
        old, new = (versions[0], versions[-1]) if len(versions) > 1 else (None, versions[0] if versions else None)
        if action in ("Remove", "Purge"):
            old, new = new, None
        yield {"action": action.lower(), "name": name, "old": old, "new": new}


def failures(text):
    """{package: {action, reason, context}} of what dpkg failed at last, by its term.log.

    reason: the line that follows dpkg's own; context: up to four telling lines before it.
    """
    found, lines = {}, text.splitlines()
    for at, line in enumerate(lines):
        match = _FAILED.match(line.strip())
        if not match:
            continue
        reason = lines[at + 1].strip() if at + 1 < len(lines) else ""
        # Only what stands after the last package that went through belongs to this failure.
        start = max(0, at - 40)
        for before in range(at - 1, start, -1):
            if lines[before].startswith(("Setting up ", "Unpacking ", "Log started", "Processing triggers")):
                start = before
                break
        context = [one.strip()[:200] for one in lines[start:at] if _TELLING.search(one)]
        name = match.group(1).rsplit("/", 1)[-1]
        if name.endswith(".deb"):
            name = name.split("_")[0]
        found[name.split(":")[0]] = {
            "action": (match.group(2) or "").strip("-"),
            "reason": reason[:300],
            "context": context[-4:],
        }
    return found


def since(text, names):
    """{package: "2026-11-28 06:12:01 half-configured"} of the last state that dpkg noted for packages."""
    wanted, found = set(names), {}
    for line in text.splitlines():
        parts = line.split(" ")
        if len(parts) >= 5 and parts[2] == "status":
            name = parts[4].split(":")[0]
            if name in wanted:
                found[name] = "%s %s %s" % (parts[0], parts[1], parts[3])
    return found


def unattended(text):
    """[{at, packages}] of unattended-upgrades' runs that moved packages which concern GPUs, the last five."""
    found = []
    for line in text.splitlines():
        head, mark, rest = line.partition("Packages that will be upgraded:")
        packages = [name for name in rest.split() if _CONCERNS.search(name)] if mark else []
        if packages:
            found.append({"at": " ".join(head.split()[:2]).split(",", 1)[0], "packages": packages[:_MOST_PACKAGES]})
    return found[-5:]
