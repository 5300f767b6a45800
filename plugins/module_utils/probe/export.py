# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read a host as diagnose does, and keep the files that it was read from: for ``provision diagnose --export``.

``main`` returns {"facts": of probe.diagnostics, "files": {path: {"text", "mtime"}}, "folders": [path], "links": {path:
target}, "own": {"hosts", "users", "addresses", "serials"}}. ``own`` is what names this host and its people, so that the
controller can take it out of everything else. Only system files that say what diagnose judges are kept: none of a home, no key,
no log. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import re
import stat

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree, integer
from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts

MOST_FILE, MOST_ALL, MOST_PATHS = 256 << 10, 8 << 20, 20000
_KEPT = re.compile(
    r"/(?:etc/(?:os-release|apt/(?!auth|keyrings|trusted)|modprobe\.d|modules|initramfs-tools/modules|ld\.so\.conf|X11/|default/grub"
    r"|prime-discrete|nv_tegra_release|systemd/system)|run/(?:systemd/system|reboot-required|nvidia)"
    r"|proc/(?:cmdline|modules|version|driver/nvidia|device-tree/compatible|sys/kernel/osrelease)"
    r"|sys/(?:bus/pci/devices|class/(?:dmi/id/(?:sys_vendor|product_name)|infiniband/[^/]*\Z)|kernel/security/lockdown"
    r"|module/(?:nvidia|nouveau|nova|mlx5_ib|ib_umad|module/))"
    r"|boot/(?:vmlinuz|initrd|grub)|boot\Z|dev/(?:nvidia|dxg)|dev\Z|lib\Z|(?:usr/)?lib/(?:modprobe\.d|modules/[^/]*(?:/build)?\Z"
    r"|systemd/system)|var/lib/dkms/(?!mok))"
)
# A device's folder is a link in the kernel's lists.
_DEVICE = re.compile(r"/sys/(?:bus/pci/devices|class/infiniband)/[^/]*\Z")
_BINARY = re.compile(r"\.ko(?:\.|\Z)|/vpd\Z|grubenv|/boot/(?:vmlinuz|initrd)")


class _Recorder(HostTree):
    """A host that remembers what was looked at."""

    def __init__(self, root):
        HostTree.__init__(self, root)
        self.files, self.folders, self.links, self._left = {}, set(), {}, MOST_ALL
        # Looks of its own leave no note of what is not readable.
        self._own = HostTree(root)

    def read_bytes(self, path, limit=None, head=False):
        data = HostTree.read_bytes(self, path, limit, head)
        if data is not None:
            self._keep(path, data)
        return data

    def names(self, path):
        found = HostTree.names(self, path)
        if found:
            self._keep(path)
            for name in found:
                self._keep("%s/%s" % (path, name))
        return found

    def stat(self, path, follow=True):
        found = HostTree.stat(self, path, follow)
        if found is not None:
            self._keep(path)
        return found

    def link(self, path):
        target = HostTree.link(self, path)
        if target is not None:
            self._keep(path)
        return target

    def _keep(self, path, data=b""):
        if not _KEPT.match(path) or len(self.files) + len(self.folders) + len(self.links) >= MOST_PATHS:
            return
        target = self._own.link(path)
        if target is not None and not _DEVICE.match(path):
            self.links[path] = target
            if not data:
                return
        found = self._own.stat(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            self.folders.add(path)
        elif found is not None and path not in self.links and (data or path not in self.files):
            whole = len(data) <= min(MOST_FILE, self._left) and not _BINARY.search(path)
            self._left -= len(data) if whole else 0
            text = data.decode("utf-8", "backslashreplace") if whole else ""
            self.files[path] = {"text": text, "mtime": found.st_mtime}


def main(args):
    """Entry of the fast read; returns what the module says, which the server redacts. args: as those of the probe."""
    return collect(
        root=args.get("root") or "/",
        smi_timeout=float(args.get("smi_timeout") or probe_facts.SMI_TIMEOUT),
        conda_prefixes=args.get("conda_prefixes") or (),
    )


def collect(root="/", run=None, smi_timeout=probe_facts.SMI_TIMEOUT, conda_prefixes=()):
    """As main; run: as of probe.diagnostics."""
    tree = _Recorder(root)
    facts = diagnostics.collect_all(root, run, smi_timeout, conda_prefixes, tree)
    return {
        "facts": facts,
        "files": tree.files,
        "folders": sorted(tree.folders),
        "links": tree.links,
        "own": read_own(HostTree(root)),
    }


def read_own(tree):
    """{"hosts", "users", "addresses", "serials"}: words that name this host, its network, its parts and its people."""
    hosts, users, addresses, serials = set(), set(), set(), set()
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname", "/etc/mailname"):
        hosts.add(tree.word(path))
    for line in (tree.read("/etc/hosts") or "").splitlines():
        words = line.split("#", 1)[0].split()
        addresses.update(words[:1])
        hosts.update(words[1:])
    for line in (tree.read("/etc/resolv.conf") or "").splitlines():
        words = line.split()
        if words[:1] in (["search"], ["domain"]):
            hosts.update(words[1:])
        elif words[:1] == ["nameserver"]:
            addresses.update(words[1:2])
    for line in (tree.read("/etc/passwd") or "").splitlines():
        row = line.split(":")
        if len(row) > 5 and 1000 <= (integer(row[2]) or 0) < 65534:
            users.update((row[0], row[5].rstrip("/").rpartition("/")[2], row[4].split(",")[0]))
    users.update(tree.names("/home"))
    addresses.update(re.findall(r"\|-- ([0-9.]+)", tree.read("/proc/net/fib_trie") or ""))
    for line in (tree.read("/proc/net/if_inet6") or "").splitlines():
        addresses.add(":".join(re.findall("....", line.split()[0])) if line.split() else None)
    for name in tree.names("/sys/class/net"):
        addresses.add(tree.word("/sys/class/net/%s/address" % name))
    for name in tree.names("/sys/class/dmi/id"):
        if name.endswith(("_serial", "_uuid", "_asset_tag")):
            serials.add(tree.word("/sys/class/dmi/id/" + name))
    for disk in tree.names("/sys/block"):
        for name in ("serial", "wwid", "device/serial", "device/wwid"):
            serials.add(tree.word("/sys/block/%s/%s" % (disk, name)))
    serials.update((tree.word("/etc/machine-id"), tree.word("/proc/sys/kernel/random/boot_id")))
    found = {"hosts": hosts, "users": users, "addresses": addresses, "serials": serials}
    return {kind: sorted(word for word in words if word)[:5000] for kind, words in found.items()}
