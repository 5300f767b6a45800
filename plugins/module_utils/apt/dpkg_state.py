# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Every package of a host by dpkg's own files: holds, states of a dpkg that was interrupted, dependencies that nothing meets.

The probe reports packages that concern GPUs; a half-configured libc6 or a hold on foo stops apt anyway. Pure
functions but for ``read``. Sources: dpkg(1), deb-control(5), dpkg's README.guide of its database.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, lazy_re

BASE = "/var/lib/dpkg"
_WANTED = frozenset(("Package", "Status", "Architecture", "Version", "Depends", "Pre-Depends", "Provides"))
_ALTERNATIVE = lazy_re.compile(r"^([^\s(:\[]+)(?::[^\s(]+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?")
_ON_DISK = frozenset(("installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending"))
_BASE = frozenset(("base-files", "dpkg", "libc6"))
_MOST = 60


def read(tree):
    """Return (rows, journal): [{name, arch, version, want, flag, state, depends, provides}] and files of dpkg's journal.

    A journal (``updates/0001``, …) is what an interrupted dpkg had not merged yet: its rows replace those of the file.
    """
    journal = ["%s/updates/%s" % (BASE, name) for name in tree.names(BASE + "/updates") if name.isdigit()]
    text = tree.read(BASE + "/status") or ""
    if journal:
        text = apt_common.merged(text, [tree.read(file) or "" for file in journal])
    rows = {}
    for fields in apt_common.parse_stanzas(text, _WANTED):
        if "Package" in fields:
            row = _row(fields)
            rows[row["name"], row["arch"]] = row
    return list(rows.values()), journal


def _row(fields):
    status = (fields.get("Status", "") + " ? ? ?").split()
    needs = [text for text in (fields.get("Pre-Depends"), fields.get("Depends")) if text]
    return {
        "name": fields["Package"],
        "arch": fields.get("Architecture", ""),
        "version": fields.get("Version"),
        "want": status[0],
        "flag": status[1],
        "state": status[2],
        "depends": ", ".join(needs),
        "provides": fields.get("Provides", ""),
    }


def native(rows):
    """dpkg's own architecture; amd64 where dpkg itself is not among the rows."""
    return next((row["arch"] for row in rows if row["name"] == "dpkg" and row["arch"]), "amd64")


def title(row, arch):
    """Name as apt writes it: with the architecture where it is a foreign one."""
    return row["name"] if row["arch"] in ("", "all", arch) else "%s:%s" % (row["name"], row["arch"])


def holds(rows):
    """[{name, version, state}] of every package on hold, whatever it is; version None where nothing of it is there."""
    arch = native(rows)
    return [
        {"name": title(row, arch), "version": row["version"], "state": row["state"]}
        for row in rows
        if row["want"] == "hold"
    ]


def unfinished(rows):
    """[{name, version, state, reinstall}] of packages that dpkg was cut off at, or that failed."""
    arch = native(rows)
    return [
        {
            "name": title(row, arch),
            "version": row["version"],
            "state": row["state"],
            "reinstall": row["flag"] == "reinstreq",
        }
        for row in rows
        if row["flag"] == "reinstreq" or row["state"] not in ("installed", "not-installed", "config-files", "?")
    ]


def versions(rows, names):
    """{name: version} of those of the names that are installed as a whole."""
    arch = native(rows)
    there = {title(row, arch): row["version"] for row in rows if row["state"] in _ON_DISK}
    return {name: there[name] for name in names if name in there}


def unmet(rows):
    """[{name, version, needs, found}]: packages on the disk whose dependencies nothing on the disk meets.

    needs: the dependency as it is written; found: the version that is there of its first name, or None. Architectures
    are not distinguished: a package of any meets it, so that nothing is reported that apt would not.
    """
    there = {}
    for row in rows:
        if row["state"] in _ON_DISK:
            there.setdefault(row["name"], []).append(row["version"])
            for part in row["provides"].split(","):
                match = _ALTERNATIVE.match(part.strip())
                if match:
                    there.setdefault(match.group(1), []).append(match.group(3) if match.group(2) == "=" else None)
    arch, found = native(rows), []
    if not set(there) >= _BASE:
        # a recorded host that was cut down to what concerns GPUs
        return []
    for row in rows:
        if row["state"] not in _ON_DISK:
            continue
        for part in row["depends"].split(","):
            needs = part.strip()
            if needs and not any(_met(one.strip(), there) for one in needs.split("|")):
                first = _ALTERNATIVE.match(needs)
                have = there.get(first.group(1)) if first else None
                found.append(
                    {
                        "name": title(row, arch),
                        "version": row["version"],
                        "needs": " ".join(needs.split()),
                        "found": have[0] if have else None,
                    }
                )
    return found[:_MOST]


def _met(alternative, there):
    match = _ALTERNATIVE.match(alternative)
    if not match:
        return True
    name, relation, version = match.groups()
    have = there.get(name)
    if have is None:
        return False
    return relation is None or any(other is not None and related(other, relation, version) for other in have)


def related(version, relation, other):
    """True when ``version RELATION other`` holds (deb-control(5): <<, <=, =, >=, >>); a version that is none meets all."""
    try:
        order = deb_version.compare(version, other)
    except ValueError:
        return True
    return {"<<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">>": order > 0}[relation]
