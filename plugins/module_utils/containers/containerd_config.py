# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""containerd's config.toml: add NVIDIA's runtime to it without writing anew what somebody else wrote.

Pure: text in, text out. There is no TOML writer in the standard library, and none that keeps comments: a file of ours
that the main one imports, or else a marked block at its end, is all that is ever written. Which of the two depends on
the containerd: up to 1.7 a section of an imported file replaces the main file's section whole (mergeConfig in
containerd's cmd/containerd/server/config), so that registry and cgroup settings would be lost. Whether that happens is
not looked up but tried: ``containerd config dump`` says what a file means, and ``lost`` compares.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

PROGRAMS = ("/usr/bin/containerd", "/usr/local/bin/containerd", "/bin/containerd")
CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-gpu-provision-nvidia.toml"
HEADER = "# written by gpu-provision"
BEGIN = "# BEGIN gpu-provision: NVIDIA's container runtime"
END = "# END gpu-provision"
PROGRAM = "/usr/bin/nvidia-container-runtime"
RUNTIME_TYPE = "io.containerd.runc.v2"
# Name of the plugin with the runtimes, by version of the file (source: containerd's docs/cri/config.md).
PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}

_SECTION = lazy_re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = lazy_re.compile(r"^\s*([A-Za-z0-9_-]+|\"[^\"]*\")\s*=\s*(.*?)\s*$")
# Values that mean the same as no value (Go's zero values).
_NOTHING = ('""', "[]", "0", "false")
_NAME = lazy_re.compile(r'"([^"]*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)')


def sections(text):
    """{section (tuple of names): {key: value as written}} of a text with one key on a line, as ``config dump`` prints."""
    found, current = {(): {}}, ()
    for line in text.splitlines():
        header = _SECTION.match(line)
        if header:
            current = tuple(a or b or c for a, b, c in _NAME.findall(header.group(1)))
            found.setdefault(current, {})
            continue
        pair = _KEY.match(line)
        if pair:
            found[current][pair.group(1).strip('"')] = pair.group(2)
    return found


def version_of(text):
    """Version of a file; 1 where it does not say, as containerd has it; None for an empty file."""
    if not text.strip():
        return None
    word = sections(text)[()].get("version", "1").split("#")[0].strip()
    number = integer(word)
    return 1 if number is None else number


def runtime_of(dump, plugin, name="nvidia"):
    """Path of the program of a runtime (its BinaryName, or ""), or None when it is not registered."""
    base = ("plugins", plugin, "containerd", "runtimes", name)
    if base not in dump and base + ("options",) not in dump:
        return None
    return dump.get(base + ("options",), {}).get("BinaryName", '""').strip("\"'")


def default_of(dump, plugin):
    """Name of the default runtime."""
    return dump.get(("plugins", plugin, "containerd"), {}).get("default_runtime_name", '""').strip("\"'")


def is_registered(dump, plugin, default=""):
    """True when nvidia is there with NVIDIA's program, and is the default where that is asked for."""
    program = runtime_of(dump, plugin)
    if program is None or not program.rsplit("/", 1)[-1].startswith("nvidia-container-runtime"):
        return False
    return not default or default_of(dump, plugin) == default


def is_cri_disabled(dump):
    """True when the plugin with the runtimes is switched off."""
    return re.search(r"[\"'](?:io\.containerd\.grpc\.v1\.)?cri[\"']", dump[()].get("disabled_plugins", "")) is not None


def registered_in(tree):
    """By files alone: {runtime: bool, default: str, path: the main file or None} of a host's containerd."""
    text = tree.read(CONFIG)
    texts = [text or ""] + [tree.read(path) or "" for path in _imported(tree, text or "")]
    found, default = False, ""
    for one in texts:
        dump = sections(one)
        for plugin in PLUGINS.values():
            found = found or is_registered(dump, plugin)
            default = default_of(dump, plugin) or default
    return {"runtime": found, "default": default, "path": CONFIG if text is not None else None}


def _imported(tree, text):
    import fnmatch

    found = []
    for pattern in imports_of(text) or ():
        folder, _, wanted = pattern.rpartition("/")
        found += ["%s/%s" % (folder, name) for name in tree.names(folder) if fnmatch.fnmatch(name, wanted)]
    return found


def imports_of(text):
    """Patterns of the ``imports`` of a file; None when they are written over several lines."""
    value = sections(text)[()].get("imports")
    if value is None:
        return []
    if not re.match(r"^\[.*\]\s*(?:#.*)?$", value):
        return None
    return [a or b for a, b in re.findall(r'"([^"]*)"|\'([^\']*)\'', value)]


def fragment(plugin, runc, default="", beside=None, nvidia=True):
    """Tables of the runtime as TOML; nvidia: its own too.

    runc: {key: value} of runc's options, which nvidia's runtime shares (it runs runc). beside: {table below runtimes:
    {key: value}} of runtimes that have to be said too, see ``unsaid``.
    """
    base = 'plugins."%s".containerd' % plugin
    lines = ["[%s]" % base, '  default_runtime_name = "%s"' % default] if default else []
    tables = {name: _said(keys) for name, keys in (beside or {}).items()}
    if nvidia:
        tables[("nvidia",)] = {"runtime_type": '"%s"' % RUNTIME_TYPE}
        tables[("nvidia", "options")] = dict(_said(runc), BinaryName='"%s"' % PROGRAM)
    for name in sorted(tables):
        lines.append("[%s.runtimes.%s]" % (base, ".".join(name)))
        lines += ["  %s = %s" % (key, tables[name][key]) for key in sorted(tables[name])]
    return "\n".join(lines) + "\n"


def _said(keys):
    return {key: value for key, value in keys.items() if value not in _NOTHING}


def unsaid(before, text, plugin):
    """Runtimes that are there by default only: naming one in a file makes containerd up to 1.7 forget the others."""
    base = ("plugins", plugin, "containerd", "runtimes")
    written = sections(text)
    return {
        section[4:]: keys
        for section, keys in before.items()
        if section[:4] == base and len(section) in (5, 6) and section[4] != "nvidia" and section[:5] not in written
    }


def drop_in(version, plugin, runc, default="", beside=None):
    """Text of a file of ours that the main file imports."""
    return "%s\nversion = %d\n%s" % (HEADER, version, fragment(plugin, runc, default, beside))


def with_import(text, version, pattern):
    """The main file's text with one more import; the same where it is there; None where that cannot be written."""
    have = imports_of(text)
    if have is None:
        return None
    if pattern in have:
        return text
    if have:
        return re.sub(r"(?m)^([ \t]*imports[ \t]*=\s*\[)", lambda m: '%s"%s", ' % (m.group(1), pattern), text, count=1)
    line = 'imports = ["%s"]\n' % pattern
    if not text.strip():
        return "%s\nversion = %d\n%s" % (HEADER, version, line)
    # Keys of the whole file stand before its first table: behind the version there is room.
    place = re.search(r"(?m)^[ \t]*version[ \t]*=.*(?:\n|$)", text)
    if not place or re.search(r"(?m)^[ \t]*\[", text[: place.start()]):
        return line + text
    head = text[: place.end()]
    return head + ("" if head.endswith("\n") else "\n") + line + text[place.end() :]


def with_block(text, version, plugin, runc, default="", beside=None):
    """The main file's text with our marked block at its end, in place of the one that was there."""
    text = without_block(text)
    if not text.strip():
        text = "version = %d\n" % version
    if default:
        text = with_default(text, plugin, default)
        if default_of(sections(text), plugin) == default:
            # its table stands elsewhere, and TOML allows it once
            default = ""
    there = ("plugins", plugin, "containerd", "runtimes", "nvidia") in sections(text)
    if there and not default:
        return text
    return "%s%s\n%s%s\n" % (_ended(text), BEGIN, fragment(plugin, runc, default, beside, not there), END)


def without_block(text):
    """The text without our block."""
    return re.sub(r"(?ms)^%s\n.*?^%s\n?" % (re.escape(BEGIN), re.escape(END)), "", text)


def with_default(text, plugin, name):
    """The text with another default runtime in the table that already is there; the same text where none is."""
    lines, current, table = text.splitlines(True), (), None
    for at, line in enumerate(lines):
        header = _SECTION.match(line)
        if header:
            current = tuple(a or b or c for a, b, c in _NAME.findall(header.group(1)))
            if current == ("plugins", plugin, "containerd"):
                table = at
            continue
        pair = _KEY.match(line)
        if current == ("plugins", plugin, "containerd") and pair and pair.group(1) == "default_runtime_name":
            lines[at] = re.sub(r"=.*", '= "%s"' % name, line.rstrip("\r\n")) + "\n"
            return "".join(lines)
    if table is None:
        return text
    indent = re.match(r"\s*", lines[table]).group().replace("\n", "")
    lines[table] = _ended(lines[table])
    lines.insert(table + 1, '%s  default_runtime_name = "%s"\n' % (indent, name))
    return "".join(lines)


def _ended(text):
    return text if not text or text.endswith("\n") else text + "\n"


def lost(before, after, plugin, default=""):
    """What a changed file loses or changes of what it meant: ["section: key = value"]; dumps as of ``sections``."""
    gone = []
    for section, keys in before.items():
        for key, value in keys.items():
            if not section and key == "imports":
                continue
            if default and section == ("plugins", plugin, "containerd") and key == "default_runtime_name":
                continue
            if section[:5] == ("plugins", plugin, "containerd", "runtimes", "nvidia"):
                continue
            now = after.get(section, {}).get(key)
            if now != value and not (now is None and value in _NOTHING):
                gone.append("%s: %s = %s" % (".".join(section) or "the file", key, value))
    return gone
