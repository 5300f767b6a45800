# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What diagnose reads of a host beyond the probe: provision.facts.diagnostics.AptTrouble. Standard library only, Python 3.8.

Keys, lists, logs, locks and states of apt and dpkg. Files alone; nothing is fetched and no program is started.
"""

from __future__ import annotations

import os
import time

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.apt import dpkg_logs, dpkg_state
from ansible_collections.gpu.provision.plugins.module_utils.apt import lists as apt_lists
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re, own_state, proxies
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import decimal, integer

_SETTINGS = lazy_re.compile(
    r"^(?:acquire::(?:https?|ftp)::proxy(?:::.*)?|acquire::https?::(?:verify-peer|verify-host|proxy-auto-detect)|"
    r"acquire::(?:allowinsecurerepositories|check-valid-until|languages)|apt::get::(?:always|never)-include-phased-updates|"
    r"apt::machine-id|apt::default-release|apt::periodic::.*|unattended-upgrade::(?:automatic-reboot|minimalsteps)|"
    r"unattended-upgrade::(?:allowed-origins|origins-pattern|package-blacklist)::|dpkg::options::)$"
)
_LOCKS = (*apt_common.DPKG_LOCKS, apt_common.LISTS_LOCK, apt_common.ARCHIVES + "/lock")
_LOCAL = lazy_re.compile(r"^(?:file|copy):(?://)?(/.*)$")
_AUTO = "/var/lib/apt/extended_states"
_APTITUDE = "/var/lib/aptitude/pkgstates"
# pkgCache::State::Hold, as aptitude writes it (aptitude: aptcache.cc)
_HOLD = "2"
# of 10 ms on every Linux that programs see (USER_HZ, proc(5))
_TICKS = 100.0


def read(tree, facts):
    """Return the fields of the model as a dict. tree: HostTree; facts: what the probe said of the same host."""
    rows, journal = dpkg_state.read(tree)
    sources, packages = facts["apt"]["sources"], facts["packages"]
    there = apt_lists.lists(tree, sources, facts["host"]["arch"])
    listed = apt_lists.packages_in_lists(tree, there, packages)
    apt_lists.hide_secrets(there, listed, facts["host"]["arch"])
    return {
        "holds": dpkg_state.holds(rows),
        "unfinished": _unfinished(tree, rows),
        "change": _change(tree, rows),
        "journal": journal,
        "unmet": dpkg_state.unmet(rows),
        "transactions": dpkg_logs.transactions(dpkg_logs.history(tree)),
        "unattended": dpkg_logs.unattended(dpkg_logs.tail(tree, dpkg_logs.UNATTENDED)),
        "folders_gone": _folders_gone(tree, sources),
        "keyrings": apt_lists.keyrings(tree, sources),
        "lists": there,
        "offers": listed,
        "settings": _settings(tree),
        "stanzas": _stanzas(tree, facts["apt"]["errors"]),
        "aptitude_holds": _aptitude_holds(tree),
        "locks": _locks(tree),
        "disks": _disks(tree),
        "largest_initrd": _largest_initrd(tree),
        "clock": time.time() if tree.live else None,
        "verifier": next((path for path in ("/usr/bin/sqv", "/usr/bin/gpgv") if tree.exists(path)), None),
    }


def _unfinished(tree, rows):
    found = dpkg_state.unfinished(rows)
    if not found:
        return []
    failed = dpkg_logs.failures(dpkg_logs.tail(tree, dpkg_logs.TERM))
    bare = [row["name"].split(":")[0] for row in found]
    since = dpkg_logs.since(dpkg_logs.tail(tree, dpkg_logs.DPKG), bare)
    for row, name in zip(found, bare):  # noqa: B905 - strict= came with Python 3.10
        last = failed.get(name, {})
        row.update(
            since=since.get(name), action=last.get("action"), reason=last.get("reason"), context=last.get("context", [])
        )
    return found


def _change(tree, rows):
    """What apt_transaction wrote down of a change that has not come to its end, with what is there of it; or None."""
    text = tree.read(apt_common.UNFINISHED)
    try:
        found = own_state.parse((text or "").encode(), apt_common.UNFINISHED_SHAPE, apt_common.UNFINISHED)
    except own_state.Damaged:
        return None
    names = [item.partition("=")[0] for item in found["install"]] + found["remove"] + found["extra_hold"]
    fields = {key: found[key] for key in apt_common.UNFINISHED_SHAPE if key != "schema"}
    return dict(fields, there=dpkg_state.versions(rows, names))


def _folders_gone(tree, sources):
    """Folders of enabled file: and copy: sources (sources.list(5)) that are not there; one that is not readable is not gone."""
    found = []
    for uri in (uri for row in sources if row["enabled"] for uri in row["uris"]):
        match = _LOCAL.match(uri)
        path = "/" + match.group(1).strip("/") if match else None
        if not path or path in found or ".." in path.split("/"):
            continue
        if tree.stat(path) is None and not tree.is_noted(path):
            found.append(path)
    return found[:50]


def _settings(tree):
    """[{name, value, file}] of apt.conf, each where it is set last; a proxy's user and password are left out."""
    files = [
        "/etc/apt/apt.conf.d/" + name
        for name in tree.names("/etc/apt/apt.conf.d")
        if apt_conf.is_read(name, ("", "conf"))
    ]
    conf, found = {}, {}
    for path in [*files, "/etc/apt/apt.conf"]:
        before = {name: list(value) if isinstance(value, list) else value for name, value in conf.items()}
        apt_conf.parse_conf(tree.read(path) or "", conf)
        for name, value in conf.items():
            if _SETTINGS.match(name) and before.get(name) != value:
                found[name] = path
    rows = []
    for name, path in found.items():
        if name in conf:
            value = conf[name]
            text = ", ".join(value) if isinstance(value, list) else value
            if "::proxy" in name and text.upper() != "DIRECT" and "auto-detect" not in name:
                text = proxies.place(text)
            rows.append({"name": name, "value": text, "file": path})
    return rows


def _stanzas(tree, errors):
    """{path: [first line of each stanza]} of the .sources files that apt's errors name: they count stanzas, not lines."""
    paths = [word.strip(",:;") for error in errors for word in error.split() if word.strip(",:;").endswith(".sources")]
    return {path: [line for line, _ in apt_conf.stanzas(tree.read(path) or "")] for path in dict.fromkeys(paths)}


def _aptitude_holds(tree):
    """[name] of packages that aptitude alone holds or forbids a version of; its own store, which apt-get never reads."""
    found = []
    for fields in apt_common.parse_stanzas(tree.read(_APTITUDE) or ""):
        own = fields.get("State") == _HOLD and fields.get("Dselect-State") != _HOLD
        if fields.get("Package") and (own or "ForbidVer" in fields):
            found.append(fields["Package"])
    return found[:200]


def _locks(tree):
    """[{path, pid, comm, state, age_s}] of apt's and dpkg's locks that somebody holds. state: of proc(5), T is stopped."""
    # Root may ask for a lock of a recorded host too: nobody holds it, unless somebody made it so to try this.
    ask = os.geteuid() == 0
    table = {}
    if not ask:
        for line in (tree.read("/proc/locks") or "").splitlines():
            parts = line.split()
            if len(parts) >= 6 and "->" not in parts and integer(parts[4]):
                table[parts[5].rpartition(":")[2]] = integer(parts[4])
    found = []
    for path in _LOCKS:
        stat = tree.stat(path)
        if stat is None:
            continue
        holder = apt_common.lock_holder(tree.real(path)) if ask else None
        pid = holder[0] if holder else table.get(str(stat.st_ino))
        if pid is None:
            continue
        state, age = _process(tree, pid)
        found.append(
            {
                "path": path,
                "pid": pid,
                "comm": tree.word("/proc/%d/comm" % pid) or apt_common.comm(pid),
                "state": state,
                "age_s": age,
            }
        )
    return found


def _process(tree, pid):
    """(state, seconds since its start) of a process, each None where it is not known."""
    # The name in brackets may hold spaces and brackets itself.
    fields = (tree.read("/proc/%d/stat" % pid, 4096) or "").rpartition(")")[2].split()
    uptime = (tree.word("/proc/uptime") or "").split()
    if len(fields) < 20:
        return None, None
    now, then = decimal(uptime[0]) if uptime else None, integer(fields[19])
    age = None if now is None or then is None else now - then / _TICKS
    return fields[0], age


def _largest_initrd(tree):
    """Bytes of the largest initramfs in /boot: what the next one needs; None where there is none."""
    found = (tree.stat("/boot/" + name) for name in tree.names("/boot") if name.startswith("initrd.img-"))
    return max((row.st_size for row in found if row), default=None)


def _disks(tree):
    """[{path, free, size, files_free, read_only}] of the file systems that apt writes to; files_free None: not counted."""
    rows = []
    for path in ("/", "/var", "/var/cache/apt/archives", "/boot"):
        if not tree.exists(path):
            continue
        try:
            found = os.statvfs(tree.real(path))
        except OSError:
            continue
        rows.append(
            {
                "path": path,
                "free": found.f_bavail * found.f_frsize,
                "size": found.f_blocks * found.f_frsize,
                "files_free": found.f_favail if found.f_files else None,
                "read_only": bool(found.f_flag & os.ST_RDONLY),
            }
        )
    return rows
