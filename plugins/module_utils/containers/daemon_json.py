# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read docker's daemon.json as dockerd does, and change single keys of it.

Pure: bytes in, bytes out. A file that needs no change keeps every byte. One that does is written anew by ``json``: the order of
keys, the indentation of its first member, its line ends and its end stay, the spacing inside it may not. What cannot be read is
refused with line and column and never overwritten; so is a file in which a name stands twice.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring

# dockerd has no limit; a file of this size is something else that landed here.
MAX_BYTES = 1 << 20
_MOST_DIGITS = 100
MAX_DEPTH = 64
RUNTIME = "nvidia"
RUNTIME_PROGRAM = "nvidia-container-runtime"
CGROUP_DRIVER = "native.cgroupdriver="
BOM = b"\xef\xbb\xbf"
BOM_WARNING = "a byte order mark before the text, which is removed: dockerd before 23.0 refuses it"
_TWICE = "merge them into one: which of two takes effect is undefined"

# What dockerd wants of keys that are known and old enough to be sure of (source: dockerd's reference, "daemon
# configuration file"). Keys that are not here are dockerd's to judge.
_TYPES = {
    "bool": (
        "debug experimental icc init ip-forward ip-masq iptables ip6tables ipv6 live-restore "
        "no-new-privileges raw-logs selinux-enabled tls tlsverify userland-proxy"
    ),
    "string": (
        "bip bridge cgroup-parent containerd data-root default-cgroupns-mode default-gateway default-ipc-mode "
        "default-runtime exec-root fixed-cidr group init-path log-driver log-level pidfile seccomp-profile "
        "storage-driver tlscacert tlscert tlskey userns-remap"
    ),
    "list": (
        "authorization-plugins cdi-spec-dirs default-address-pools dns dns-opts dns-search exec-opts hosts "
        "insecure-registries labels registry-mirrors storage-opts"
    ),
    "object": "builder default-ulimits features log-opts runtimes proxies",
    "number": "max-concurrent-downloads max-concurrent-uploads mtu oom-score-adjust shutdown-timeout",
}
_TYPE_OF = {key: kind for kind, keys in _TYPES.items() for key in keys.split()}

# What stands where json stopped, and what to do.
_THERE = (
    (
        r"#|//|/\*",
        "a comment; JSON has none, and dockerd refuses the file",
        "move it elsewhere, for example into README.md beside the file",
    ),
    (r"<", "this is HTML, a page saved in place of the file", "put the right file there, or a backup"),
    ("[\u201c\u201d\u201e\u201f\u00ab\u00bb\u2018\u2019\u2033'`]", "%s is not a JSON quote", 'write "'),
    (r"\Z", "the text ends inside an object, a list or a string", "the file is truncated: complete its end"),
)
# What json says, by its beginning.
_HINTS = {
    "Extra data": (
        "%s after the end",
        "the file must be one object: a bracket closes too early, or there are two documents",
    ),
    "Expecting ','": ("a comma is missing", "put a comma there"),
    "Expecting ':'": ("%s where a colon should be", 'write "name": value'),
    "Expecting property": ("%s where a name in double quotes should be", 'write "name": value'),
    "Expecting value": ("%s is not a JSON value", "write text in double quotes, and true, false, null in lower case"),
    "Unterminated": ("a string that does not end", "close it with a double quote"),
    "Invalid control": ("a line break inside a string, or another control character", "close the string before it"),
    "Invalid \\": ("%s is not a JSON escape", "write a backslash as \\\\"),
}


class DaemonJsonError(Exception):
    """A file that is not changed. line and column count from 1 (columns in characters); hint is a way out."""

    def __init__(self, message, line, column, hint):
        Exception.__init__(self, "line %d, column %d: %s" % (line, column, message))
        self.message, self.line, self.column, self.hint = message, line, column, hint


class Document(object):
    """A daemon.json that could be read. text: as in the file, without BOM; value: a dict; warnings: texts for people."""

    def __init__(self, text, value, warnings=()):
        self.text, self.value, self.warnings = text, value, list(warnings)

    @property
    def data(self):
        """The text as bytes, ready to be written."""
        return self.text.encode("utf-8")

    def doubles(self):
        """(name, offset, offset) of names that stand twice; dockerd uses the last."""
        return _doubles(self.text, _skip(self.text, 0)) if self.value else ()

    def place(self, path):
        """Offset of the value at a path of names, which is there."""
        at = _skip(self.text, 0)
        for name in path:
            at = [value for other, _, value in _members(self.text, at) if _clean(other, 0) == name][-1]
        return at

    def set(self, path, new):
        """A new Document in which the key at path (tuple of names) has a value, and the others are as they were.

        Raises DaemonJsonError where something on the way is no object, or where a name stands twice in the file.
        """
        for name, first, last in self.doubles():
            where = "%s is there twice, first in line %d, column %d" % ((name,) + _position(self.text, first))
            raise _error(self.text, last, where, _TWICE)
        # slow to load, and a read changes nothing
        import copy

        value = copy.deepcopy(self.value)
        node = value
        for depth, name in enumerate(path[:-1], 1):
            if not isinstance(node.get(name), (dict, type(None))):
                message = "%s is a %s, not an object" % (".".join(path[:depth]), _kind(node[name]))
                raise _error(
                    self.text, self.place(path[:depth]), message, "write it as dockerd expects it, then run again"
                )
            # null, for dockerd, is nothing
            node[name] = node = node.get(name) or {}
        node[path[-1]] = new
        return Document(_written(value, self.text), value, self.warnings)


def parse(data):
    """Return the Document of a file's bytes. Raises DaemonJsonError. A missing file is b"".

    A byte order mark is left out (dockerd refuses it before 23.0: moby#44777), with a warning. Warnings also name keys
    that are there twice.
    """
    warnings = []
    if len(data) > MAX_BYTES:
        raise _error("", 0, "the file has %d bytes; this is no daemon.json" % len(data), "head shows what is in it")
    if data.startswith(BOM):
        data = data[len(BOM) :]
        warnings.append(BOM_WARNING)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _error("", 0, "the text is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8 makes it readable")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8")
        message = "a byte that is not UTF-8 (0x%02x)" % data[error.start]
        raise _error(good, len(good), message, "iconv -f LATIN1 -t UTF-8 is likely to make it readable") from None
    if "\x00" in text:
        message = "a NUL byte: the file was damaged, as after a power loss"
        hint = "restore a backup of it, or remove it if nothing else was in it"
        raise _error(text, text.index("\x00"), message, hint)
    value = _load(text) if text.strip(_SPACE) else None
    if not isinstance(value, (dict, type(None))):
        message = "the file is a %s, not an object" % _kind(value)
        raise _error(text, _skip(text, 0), message, "begin it with { and end it with }")
    document = Document(text, value or {}, warnings)
    for name, _, last in document.doubles():
        where = "line %d, column %d" % _position(text, last)
        document.warnings.append("%s: %s is there twice; dockerd uses the last" % (where, name))
    return document


def wanted(desired, value, exists=None):
    """Return the changes that a file with this value needs: [(path, new value)], empty where all is as asked for.

    desired: {runtime: bool, default_runtime: str, cdi: bool or None, shm_size: str, cgroup_driver: str}, all optional,
    empty meaning "leave it". exists(path): is there such a program; decides whether somebody's own absolute path of the
    runtime is kept. Without it every such path is.
    """
    changes = []
    runtimes = value.get("runtimes")
    if desired.get("runtime") and not _is_registered(runtimes, exists):
        entry = runtimes.get(RUNTIME) if isinstance(runtimes, dict) else None
        if isinstance(entry, dict) and entry:
            changes.append((("runtimes", RUNTIME, "path"), RUNTIME_PROGRAM))
        else:
            changes.append((("runtimes", RUNTIME), {"path": RUNTIME_PROGRAM, "args": []}))
    if desired.get("default_runtime") and value.get("default-runtime") != desired["default_runtime"]:
        changes.append((("default-runtime",), desired["default_runtime"]))
    if desired.get("cdi") is not None:
        features = value.get("features")
        if not isinstance(features, dict) or features.get("cdi") is not desired["cdi"]:
            changes.append((("features", "cdi"), desired["cdi"]))
    if desired.get("shm_size") and not _same_size(value.get("default-shm-size"), desired["shm_size"]):
        changes.append((("default-shm-size",), desired["shm_size"]))
    if desired.get("cgroup_driver"):
        options = value.get("exec-opts")
        have = list(options) if isinstance(options, list) else []
        option = CGROUP_DRIVER + desired["cgroup_driver"]
        others = [item for item in have if not str(item).startswith(CGROUP_DRIVER)]
        if [item for item in have if item not in others] != [option]:
            changes.append((("exec-opts",), others + [option]))
    return changes


def merge(document, desired, exists=None):
    """Return (Document with what is wanted, [dotted keys that changed]). Nothing that was there is lost.

    Raises DaemonJsonError for a key of the wrong type, wherever it is, and for a name that is there twice.
    """
    check_types(document)
    changes = wanted(desired, document.value, exists)
    for path, value in changes:
        if path == ("runtimes", RUNTIME, "path") and document.value["runtimes"][RUNTIME].get("runtimeType"):
            message = "runtimes.%s has a runtimeType, and what it runs is not %s" % (RUNTIME, RUNTIME_PROGRAM)
            hint = 'name it there: "options": {"BinaryName": "/usr/bin/%s"}, or remove the entry' % RUNTIME_PROGRAM
            raise _error(document.text, document.place(path[:2]), message, hint)
        document = document.set(path, value)
    check_types(document)
    return document, [".".join(path) for path, _ in changes]


def check_types(document):
    """Raise DaemonJsonError for the first known key whose value dockerd would refuse for its type."""
    for name, value in document.value.items():
        _check_type(document, (name,), value, _TYPE_OF.get(name))
        inside = {"runtimes": "object", "features": "bool", "log-opts": "string"}.get(name)
        for below in value if inside and value else ():
            _check_type(document, (name, below), value[below], inside)
            if name == "runtimes" and value[below]:
                _check_type(document, (name, below, "path"), value[below].get("path"), "string")
                other = [key for key in ("runtimeType", "options") if value[below].get(key)]
                if value[below].get("path") and other:
                    message = "runtimes.%s has path and %s; dockerd accepts only one of the two" % (below, other[0])
                    hint = "remove one of them by hand: dockerd would not start with both"
                    raise _error(document.text, document.place((name, below)), message, hint)
        if name in ("exec-opts", "hosts", "registry-mirrors", "insecure-registries", "dns"):
            for item in value or ():
                _check_type(document, (name,), item, "string", "an item of ")


def _check_type(document, path, value, kind, what=""):
    if kind in (None, _kind(value)) or value is None:
        return
    message = "%s%s is a %s; dockerd expects %s %s"
    message %= (what, ".".join(path), _kind(value), "an" if kind == "object" else "a", kind)
    raise _error(document.text, document.place(path), message, "correct it by hand: dockerd would not start with it")


def _kind(value):
    kinds = ((bool, "bool"), (dict, "object"), (list, "list"), (str, "string"), ((int, float), "number"))
    return next((name for types, name in kinds if isinstance(value, types)), "null")


def program_of(entry):
    """The program of an entry of runtimes, by path or, of a runtimeType, by its BinaryName; None where it says none."""
    if not isinstance(entry, dict):
        return None
    options = entry.get("options")
    by_type = options.get("BinaryName") if isinstance(options, dict) else None
    program = by_type if entry.get("runtimeType") else entry.get("path")
    return program if isinstance(program, str) else None


def _is_registered(runtimes, exists):
    path = program_of(runtimes.get(RUNTIME)) if isinstance(runtimes, dict) else None
    if path is None:
        return False
    if path == RUNTIME_PROGRAM:
        return True
    # An absolute path is somebody's choice, the GPU operator's for one, as long as it leads somewhere.
    return path.rsplit("/", 1)[-1].startswith(RUNTIME_PROGRAM) and (exists is None or exists(path))


def size_of(text):
    """Bytes of a size as docker writes it (8G, 64m, 1073741824, 1.5gb), or None for what is none.

    Source: docker/go-units, RAMInBytes: k, m, g, t, p, each of 1024, an optional b or ib behind it, any case.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    match = re.match(r"^([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([kmgtp]?)(?:i?b)?$", str(text).strip().lower())
    if not match:
        return None
    return int(float(match.group(1)) * 1024 ** " kmgtp".index(match.group(2) or " "))


def _same_size(have, want):
    return have is not None and size_of(have) is not None and size_of(have) == size_of(want)


# ---- reading and writing

_SPACE = " \t\r\n"


def _load(text):
    """The value of a text, as Go's encoding/json takes it: strict, and half of a surrogate pair is U+FFFD."""

    def number(digits):
        value = int(digits) if re.match(r"-?[0-9]+$", digits) and len(digits) <= _MOST_DIGITS else float(digits)
        if len(digits) > _MOST_DIGITS or value in (float("inf"), float("-inf")):
            message = "the number %s... is out of range" % digits[:20]
            raise _error(text, text.index(digits), message, "write a smaller one")
        return value

    def constant(name):
        raise json.JSONDecodeError("Expecting value", text, text.index(name))

    try:
        value = json.loads(text, parse_int=number, parse_float=number, parse_constant=constant)
        return _clean(value, 0)
    except json.JSONDecodeError as error:
        raise _explained(text, error) from None
    except RecursionError:
        raise _error(text, 0, "nested more than %d deep" % MAX_DEPTH, "this is no daemon.json") from None


def _clean(value, depth):
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {_clean(name, depth): _clean(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    return re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value


def _explained(text, error):
    """json's error, as a message that helps."""
    at = error.pos
    comma = re.search(r",[ \t\r\n]*$", text[:at]) if text[at : at + 1] in ("]", "}") else None
    if comma or re.match(r",[ \t\r\n]*[\]}]", text[at:]):
        return _error(text, comma.start() if comma else at, "a comma after the last entry", "remove it")
    shown = re.match(r"[^\s,\]}:]{1,20}|.|$", text[at:], re.S).group()
    for pattern, message, hint in _THERE:
        if re.match(pattern, text[at:]):
            return _error(text, at, message.replace("%s", shown[:1]), hint)
    found = [_HINTS[start] for start in _HINTS if error.msg.startswith(start)]
    message, hint = found[0] if found else (error.msg, "correct it by hand")
    # It belongs behind what stands before, which may be lines above.
    at = len(text[:at].rstrip(_SPACE)) if message == "a comma is missing" else at
    return _error(text, at, message.replace("%s", shown), hint)


def _skip(text, at):
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _members(text, at):
    """(name, where it stands, where its value begins) of each member of an object or, without names, of a list."""
    named, at = text[at] == "{", _skip(text, at + 1)
    while text[at] not in "}]":
        name, end = scanstring(text, at + 1) if named else (None, at)
        value = _skip(text, _skip(text, end) + 1) if named else at
        yield name, at, value
        at = _skip(text, json.JSONDecoder().raw_decode(text, value)[1])
        at = _skip(text, at + 1) if text[at] == "," else at


def _doubles(text, at):
    """(name, offset, offset) of names that stand twice in one object, wherever that is."""
    seen = {}
    for name, start, value in _members(text, at):
        if name is not None and seen.setdefault(name, start) != start:
            yield name, seen[name], start
        if text[value] in "{[":
            yield from _doubles(text, value)


def _written(value, text):
    """A value as text in the style of another: its indentation, line ends and end; one line where that was one."""
    body = text.strip(_SPACE)
    first = re.match(r'\{[ \t\r]*\n([ \t]+)"', body)
    flat = "\n" not in body and body.strip("{} ") not in ("", "null")
    dumped = json.dumps(value, indent=None if flat else first.group(1) if first else "    ", ensure_ascii=False)
    end = text[len(text.rstrip(_SPACE)) :] if body.startswith("{") else "\n"
    return dumped.replace("\n", "\r\n" if "\r\n" in text else "\n") + end


def _position(text, offset):
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def _error(text, offset, message, hint):
    return DaemonJsonError(message, *_position(text, offset), hint)
