# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Which kernel the boot loader will start next.

Sources: grub-mkconfig's 00_header (next_entry, saved_entry, boot_once), GRUB's get_entry_number (a default is
a number, a title or an id, ``>`` leads into submenus; one that does not exist means the first entry),
systemd-boot's loader.conf(5) and LoaderEntryOneShot/LoaderEntryDefault variables.
"""

from __future__ import annotations

import fnmatch
import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, lazy_re
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

_LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_ENTRY = lazy_re.compile(r"""^\s*(menuentry|submenu)\s+(?:'((?:[^']|'\\'')*)'|"([^"]*)")(.*)$""")
_ID = lazy_re.compile(r"""(?:\$menuentry_id_option|--id[ =])\s*(?:'([^']*)'|"([^"]*)"|(\S+))""")
_LINUX = lazy_re.compile(r"^[ \t]*linux(?:16|efi)?\s+(\S+)", re.M)
_RELEASE = lazy_re.compile(r"(?:^|/)(?:vmlinuz|vmlinux|kernel|linux)-([0-9][^/]*?)(?:\.efi)?$")


def next_kernel(tree, images, running, container):
    """Return (release or None, why) of the kernel that the next boot starts.

    tree: HostTree; images: releases that have a kernel image in /boot; running: release of the running
    kernel; container: name of the container kind or None (a container without kernels boots the machine's
    kernel).
    """
    if _loader(tree, "LoaderInfo", "").startswith("systemd-boot"):
        found = _systemd_boot(tree)
        if found:
            return found
    grub = tree.read("/boot/grub/grub.cfg")
    if grub is not None:
        return _grub(tree, grub)
    if tree.is_noted("/boot/grub/grub.cfg"):
        return None, "/boot/grub/grub.cfg cannot be read"
    found = _systemd_boot(tree)
    if found:
        return found
    for link in ("/boot/vmlinuz", "/vmlinuz"):
        if tree.is_link(link) and tree.exists(link):
            release = release_of(tree.resolve(link))
            if release:
                return release, "%s points to it; no boot loader configuration was found" % link
    if images:
        newest = max(images, key=deb_version.natural_key)
        return newest, "the newest image in /boot; no boot loader configuration was found"
    if container and running:
        return running, "a container runs the kernel of its machine"
    return None, "no boot loader configuration and no kernel image was found"


def release_of(path):
    """Kernel release in the name of an image: ``/boot/vmlinuz-6.8.0-45-generic``; None when it has none."""
    match = _RELEASE.search(path)
    return match.group(1) if match else None


def grub_menu(text):
    """Parse grub.cfg: nested [{"title", "id", "entries" (submenu) or None, "kernel" (path) or None}]."""
    top = []
    stack, depth = [(None, top)], []
    # Braces are counted only as grub-mkconfig writes them: at the end of a line, alone on a line.
    for line in text.splitlines():
        match = _ENTRY.match(line)
        if match and line.rstrip().endswith("{"):
            id_ = _ID.search(match.group(4))
            entry = {
                "title": (match.group(2) or match.group(3) or "").replace("'\\''", "'"),
                "id": next((g for g in id_.groups() if g is not None), None) if id_ else None,
                "entries": [] if match.group(1) == "submenu" else None,
                "kernel": None,
            }
            stack[-1][1].append(entry)
            depth.append("entry")
            stack.append((entry, entry["entries"] if entry["entries"] is not None else []))
        elif re.search(r"\{\s*$", line):
            depth.append("other")
        elif line.strip() == "}" and depth:
            if depth.pop() == "entry":
                stack.pop()
        else:
            linux = _LINUX.match(line)
            entry = stack[-1][0]
            if linux and entry is not None and entry["kernel"] is None:
                entry["kernel"] = linux.group(1)
    return top


def grub_default(text, env, default_grub):
    """Return (default entry as GRUB takes it, where it comes from)."""
    if env.get("next_entry"):
        return env["next_entry"], "grubenv's next_entry (one boot only)"
    head = re.split(r"^[ \t]*(?:menuentry|submenu)\s", text, maxsplit=1, flags=re.M)[0]
    values = [
        a or b or c for a, b, c in re.findall(r"""^[ \t]*set default=(?:"([^"]*)"|'([^']*)'|(\S+))""", head, re.M)
    ]
    values = [value for value in values if "next_entry" not in value]
    value, origin = "0", "GRUB's own"
    if values:
        value, origin = values[-1], "grub.cfg"
    elif default_grub:
        value, origin = default_grub, "/etc/default/grub"
    if value == "saved" or "saved_entry" in value:
        saved = env.get("saved_entry")
        return saved or "0", "grubenv's saved_entry" if saved else "GRUB's own, as nothing was saved"
    return value, origin


def grub_pick(menu, default):
    """Return (entry or None, exact) that a default (``1>2``, a title, an id) selects; else the first."""
    entry, rest, entries = None, default, menu
    exact = True
    while entries:
        # ">" divides levels, ">>" is a ">" in a title.
        parts = re.split(r"(?<!>)>(?!>)", rest, maxsplit=1)
        name = parts[0].replace(">>", ">").strip()
        rest = parts[1] if len(parts) > 1 else ""
        chosen = None
        number = integer(name)
        if number is not None:
            chosen = entries[number] if 0 <= number < len(entries) else None
        elif name:
            chosen = next((e for e in entries if name in (e["title"], e["id"])), None)
        if chosen is None:
            exact = exact and not name
            chosen, rest = entries[0], ""
        entry, entries = chosen, chosen["entries"]
    return entry, exact


def grub_env(text):
    """Parse a grubenv block into a dict."""
    lines = (line for line in (text or "").splitlines() if not line.startswith("#") and "=" in line)
    return {name: value.replace("\\\\", "\\") for name, _, value in (line.partition("=") for line in lines)}


def _grub(tree, text):
    env = grub_env(tree.read("/boot/grub/grubenv", 65536))
    default, origin = grub_default(text, env, _default_grub(tree))
    entry, exact = grub_pick(grub_menu(text), default)
    if entry is None:
        return None, "grub.cfg has no menu entry"
    because = "GRUB starts '%s' (default '%s', %s)" % (entry["title"], default, origin)
    if not exact:
        because = "GRUB starts its first entry '%s': the default '%s' (%s) is not in the menu" % (
            entry["title"],
            default,
            origin,
        )
    kernel = entry["kernel"]
    if kernel is None:
        return None, because + "; it starts no Linux kernel that is known"
    release = release_of(kernel)
    if release is None:
        # A plain /vmlinuz: its own link says which release it is. With /boot apart, paths start below it.
        for path in (kernel, "/boot" + kernel):
            release = release or release_of(tree.resolve(path))
    return release, because


def _default_grub(tree):
    """Value of GRUB_DEFAULT in /etc/default/grub and its .d folder, or None."""
    value = None
    folder = "/etc/default/grub.d"
    files = ["/etc/default/grub"] + ["%s/%s" % (folder, n) for n in tree.names(folder) if n.endswith(".cfg")]
    for file in files:
        for match in re.finditer(r"^[ \t]*GRUB_DEFAULT=(.*)$", tree.read(file) or "", re.M):
            value = match.group(1).strip().strip("\"'")
    return value


def _systemd_boot(tree):
    """Return (release, why) by the entries of the Boot Loader Specification, or None without any."""
    for esp in ("/boot/efi", "/efi", "/boot"):
        folder = esp + "/loader/entries"
        entries = {}
        for name in tree.names(folder):
            if name.endswith(".conf"):
                entries[name[:-5]] = _bls(tree.read("%s/%s" % (folder, name)) or "")
        if not entries:
            continue
        order = sorted(entries, key=lambda name: deb_version.natural_key(entries[name].get("version", name)))
        pattern = None
        for match in re.finditer(r"^[ \t]*default\s+(\S+)", tree.read(esp + "/loader/loader.conf") or "", re.M):
            pattern = match.group(1)
        chosen, why = order[-1], "the newest entry in " + folder
        for asked, origin in (
            (_loader(tree, "LoaderEntryOneShot", None), "LoaderEntryOneShot (one boot only)"),
            (_loader(tree, "LoaderEntryDefault", None), "LoaderEntryDefault"),
            (pattern, esp + "/loader/loader.conf"),
        ):
            names = [name for name in order if asked and fnmatch.fnmatch(name, re.sub(r"\.conf$", "", asked))]
            if names:
                chosen, why = names[-1], origin
                break
        entry = entries[chosen]
        release = entry.get("version") or release_of(entry.get("linux", ""))
        return release, "systemd-boot starts '%s' (%s)" % (entry.get("title", chosen), why)
    return None


def _bls(text):
    rows = (line.strip().split(None, 1) for line in text.splitlines() if not line.startswith("#"))
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


def _loader(tree, name, default):
    """Text of one of systemd-boot's EFI variables (four bytes of attributes, then UTF-16), or default."""
    path = "/sys/firmware/efi/efivars/%s-%s" % (name, _LOADER_GUID)
    if not os.path.lexists(tree.real(path)):
        return default
    data = tree.read_bytes(path)
    return default if data is None else data[4:].decode("utf-16-le", "replace").rstrip("\x00")
