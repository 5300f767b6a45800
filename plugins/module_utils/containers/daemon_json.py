# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read docker's daemon.json as dockerd does, and change single keys of it without touching the rest of the text.

Pure: bytes in, bytes out. The text is edited where a key has to change, never written anew: order, indentation and
spelling of everything else stay. What cannot be read is refused with line and column and never overwritten.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import json
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

# dockerd has no limit; a file of this size is something else that landed here.
MAX_BYTES = 1 << 20
_MOST_DIGITS = 100
MAX_DEPTH = 64
RUNTIME = "nvidia"
RUNTIME_PROGRAM = "nvidia-container-runtime"
CGROUP_DRIVER = "native.cgroupdriver="
BOM = b"\xef\xbb\xbf"
BOM_WARNING = "a byte order mark before the text: dockerd before 23.0 refuses it, so it goes"

_SPACE = " \t\r\n"
_NUMBER = lazy_re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PLAIN = lazy_re.compile(r'[^"\\\x00-\x1f]*')
_WORDS = {"true": True, "false": False, "null": None}
_SMART = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2018\u2019\u2033"

# What dockerd wants of keys that are known and old enough to be sure of (source: dockerd's reference, "daemon
# configuration file"). Keys that are not here are dockerd's to judge.
_TYPES = {
    "bool": (
        "debug",
        "experimental",
        "icc",
        "init",
        "ip-forward",
        "ip-masq",
        "iptables",
        "ip6tables",
        "ipv6",
        "live-restore",
        "no-new-privileges",
        "raw-logs",
        "selinux-enabled",
        "tls",
        "tlsverify",
        "userland-proxy",
    ),
    "string": (
        "bip",
        "bridge",
        "cgroup-parent",
        "containerd",
        "data-root",
        "default-cgroupns-mode",
        "default-gateway",
        "default-ipc-mode",
        "default-runtime",
        "exec-root",
        "fixed-cidr",
        "group",
        "init-path",
        "log-driver",
        "log-level",
        "pidfile",
        "seccomp-profile",
        "storage-driver",
        "tlscacert",
        "tlscert",
        "tlskey",
        "userns-remap",
    ),
    "list": (
        "authorization-plugins",
        "cdi-spec-dirs",
        "default-address-pools",
        "dns",
        "dns-opts",
        "dns-search",
        "exec-opts",
        "hosts",
        "insecure-registries",
        "labels",
        "registry-mirrors",
        "storage-opts",
    ),
    "object": ("builder", "default-ulimits", "features", "log-opts", "runtimes", "proxies"),
    "number": ("max-concurrent-downloads", "max-concurrent-uploads", "mtu", "oom-score-adjust", "shutdown-timeout"),
}
_TYPE_OF = {key: kind for kind, keys in _TYPES.items() for key in keys}


class DaemonJsonError(Exception):
    """A file that is not changed. line and column count from 1 (columns in characters); hint is a way out."""

    def __init__(self, message, line, column, hint):
        Exception.__init__(self, "line %d, column %d: %s" % (line, column, message))
        self.message, self.line, self.column, self.hint = message, line, column, hint


class Node(object):
    """One value of the text: kind (object, list, string, number, bool, null), start and end as offsets, value.

    members of an object: [Member] in order, as written, a name twice included; items of a list: [Node].
    """

    def __init__(self, kind, start, end, value=None, members=None, items=None):
        self.kind, self.start, self.end, self.value = kind, start, end, value
        self.members, self.items = members or [], items or []

    def get(self, name):
        """The member's node that counts: dockerd takes the last of several. None where there is none."""
        found = [member.node for member in self.members if member.name == name]
        return found[-1] if found else None

    def plain(self):
        """The value as Python has it."""
        if self.kind == "object":
            return {member.name: member.node.plain() for member in self.members}
        if self.kind == "list":
            return [item.plain() for item in self.items]
        return self.value


class Member(object):
    """name of a member, where its name begins (offset), and its Node."""

    def __init__(self, name, start, node):
        self.name, self.start, self.node = name, start, node


class Document(object):
    """A daemon.json that could be read. text: as in the file, without BOM; root: Node; warnings: words for people."""

    def __init__(self, text, root, warnings=()):
        self.text, self.root, self.warnings = text, root, list(warnings)

    @property
    def value(self):
        """The whole file as a dict; an empty file, and null, are {}."""
        return self.root.plain() if self.root is not None and self.root.kind == "object" else {}

    @property
    def data(self):
        """The text as bytes, ready to be written."""
        return self.text.encode("utf-8")

    def at(self, offset):
        """(line, column) of an offset."""
        return _position(self.text, offset)

    def set(self, path, value):
        """A new Document in which the key at path (tuple of names) has value; all else is the same text.

        Raises DaemonJsonError where something on the way is no object, or a name on the way is there twice.
        """
        if self.root is None or self.root.kind != "object":
            text = _dump(_nest(path, value), "    ", "", "\n") + "\n"
            return parse(text.encode("utf-8"))
        node, style = self.root, _Style(self.text, self.root)
        for depth, name in enumerate(path):
            _only_once(self, node, name, path[: depth + 1])
            below = node.get(name)
            last = depth == len(path) - 1
            rest = value if last else _nest(path[depth + 1 :], value)
            if below is None:
                text = _insert(self.text, node, name, rest, style)
                break
            if last or below.kind == "null" or (below.kind == "object" and not below.members):
                flat = "\n" not in self.text[node.start : node.end]
                text = self.text[: below.start] + style.dump(rest, style.indent_at(node), flat) + self.text[below.end :]
                break
            if below.kind != "object":
                raise _error(
                    self.text,
                    below.start,
                    "%s is a %s, not an object" % (".".join(path[: depth + 1]), below.kind),
                    "write it as dockerd wants it, then run again",
                )
            node = below
        return parse(text.encode("utf-8"))


def parse(data):
    """Return the Document of a file's bytes. Raises DaemonJsonError. A missing file is b"".

    A byte order mark is left out (dockerd refuses it before 23.0: moby#44777), with a warning. Warnings also name keys
    that are there twice.
    """
    warnings = []
    if len(data) > MAX_BYTES:
        raise DaemonJsonError(
            "the file has %d bytes; this is no daemon.json" % len(data), 1, 1, "see with head what landed there"
        )
    if data.startswith(BOM):
        data = data[len(BOM) :]
        warnings.append(BOM_WARNING)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DaemonJsonError("the text is UTF-16, not UTF-8", 1, 1, "iconv -f UTF-16 -t UTF-8 makes it readable")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8")
        raise _error(
            good,
            len(good),
            "a byte that is not UTF-8 (0x%02x)" % data[error.start],
            "iconv -f LATIN1 -t UTF-8 is likely to make it readable",
        ) from None
    if "\x00" in text:
        raise _error(
            text,
            text.index("\x00"),
            "a NUL byte: the file was damaged, as after a power loss",
            "put a backup of it back, or remove it if nothing else was in it",
        )
    reader = _Reader(text)
    if reader.skip(0) == len(text):
        return Document("", None, warnings)
    root, end = reader.value(reader.skip(0), 0)
    end = reader.skip(end)
    if end < len(text):
        raise reader.rest(end)
    if root.kind not in ("object", "null"):
        raise _error(
            text, root.start, "the file is a %s, not an object" % root.kind, "begin it with { and end it with }"
        )
    for name, offset in reader.twice:
        line, column = _position(text, offset)
        warnings.append("line %d, column %d: %s is there twice; dockerd takes the last" % (line, column, name))
    return Document(text, root, warnings)


def wanted(wish, value, exists=None):
    """Return the changes that a file with this value needs: [(path, new value)], empty where all is as asked for.

    wish: {runtime: bool, default_runtime: str, cdi: bool or None, shm_size: str, cgroup_driver: str}, all optional,
    empty meaning "leave it". exists(path): is there such a program; decides whether somebody's own absolute path of the
    runtime is kept. Without it every such path is.
    """
    changes = []
    runtimes = value.get("runtimes")
    if wish.get("runtime") and not _is_registered(runtimes, exists):
        entry = runtimes.get(RUNTIME) if isinstance(runtimes, dict) else None
        if isinstance(entry, dict) and entry:
            changes.append((("runtimes", RUNTIME, "path"), RUNTIME_PROGRAM))
        else:
            changes.append((("runtimes", RUNTIME), {"path": RUNTIME_PROGRAM, "args": []}))
    if wish.get("default_runtime") and value.get("default-runtime") != wish["default_runtime"]:
        changes.append((("default-runtime",), wish["default_runtime"]))
    if wish.get("cdi") is not None:
        features = value.get("features")
        if not isinstance(features, dict) or features.get("cdi") is not wish["cdi"]:
            changes.append((("features", "cdi"), wish["cdi"]))
    if wish.get("shm_size") and not _same_size(value.get("default-shm-size"), wish["shm_size"]):
        changes.append((("default-shm-size",), wish["shm_size"]))
    if wish.get("cgroup_driver"):
        options = value.get("exec-opts")
        have = list(options) if isinstance(options, list) else []
        option = CGROUP_DRIVER + wish["cgroup_driver"]
        others = [item for item in have if not str(item).startswith(CGROUP_DRIVER)]
        if [item for item in have if item not in others] != [option]:
            changes.append((("exec-opts",), others + [option]))
    return changes


def merge(document, wish, exists=None):
    """Return (Document with what is wanted, [dotted keys that changed]). Nothing that was there is lost.

    Raises DaemonJsonError for a key of the wrong type, wherever it is, and for one of ours that is there twice.
    """
    check_types(document)
    changed = []
    warnings = document.warnings
    for path, value in wanted(wish, document.value, exists):
        document = document.set(path, value)
        changed.append(".".join(path))
    check_types(document)
    document.warnings = warnings
    return document, changed


def check_types(document):
    """Raise DaemonJsonError for the first known key whose value dockerd would refuse for its type."""
    if document.root is None or document.root.kind != "object":
        return
    for member in document.root.members:
        _check_type(document, member.name, member.node, _TYPE_OF.get(member.name))
        inside = {"runtimes": "object", "features": "bool", "log-opts": "string"}.get(member.name)
        for below in member.node.members if inside else ():
            _check_type(document, "%s.%s" % (member.name, below.name), below.node, inside)
        if member.name in ("exec-opts", "hosts", "registry-mirrors", "insecure-registries", "dns"):
            for item in member.node.items:
                _check_type(document, "an item of " + member.name, item, "string")
        if member.name == "runtimes":
            for below in member.node.members:
                path = below.node.get("path")
                if path is not None:
                    _check_type(document, "runtimes.%s.path" % below.name, path, "string")


def _check_type(document, name, node, kind):
    if kind in (None, node.kind) or node.kind == "null":
        return
    article = "an" if kind == "object" else "a"
    raise _error(
        document.text,
        node.start,
        "%s is a %s; dockerd wants %s %s" % (name, node.kind, article, kind),
        "mend it by hand: dockerd would not start with it",
    )


def _is_registered(runtimes, exists):
    entry = runtimes.get(RUNTIME) if isinstance(runtimes, dict) else None
    path = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(path, str):
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


# ---- reading -------------------------------------------------------------------------------------------------


class _Reader(object):
    """A strict reader (RFC 8259, as Go's encoding/json) that remembers where everything stands."""

    def __init__(self, text):
        self.text, self.twice = text, []

    def skip(self, at):
        while at < len(self.text) and self.text[at] in _SPACE:
            at += 1
        return at

    def value(self, at, depth):
        """(Node, offset behind it)."""
        text = self.text
        if depth > MAX_DEPTH:
            raise _error(text, at, "nested more than %d deep" % MAX_DEPTH, "this is no daemon.json")
        if at >= len(text):
            raise _error(text, at, "the text ends where a value should be", "the file was cut off: mend its end")
        sign = text[at]
        if sign == "{":
            return self.object(at, depth)
        if sign == "[":
            return self.list(at, depth)
        if sign == '"':
            word, end = self.string(at)
            return Node("string", at, end, word), end
        number = _NUMBER.match(text, at)
        if number:
            end = number.end()
            if end < len(text) and text[end] not in _SPACE + ",]}":
                raise _error(text, at, "%s is no number" % _glimpse(text, at), "write text in double quotes")
            digits = number.group()
            if len(digits) > _MOST_DIGITS:
                raise _error(
                    text, at, "the number has more than %d digits" % _MOST_DIGITS, "write a number that a computer has"
                )
            value = float(digits) if re.search("[.eE]", digits) else int(digits)
            return Node("number", at, end, value), end
        for word, value in _WORDS.items():
            if text.startswith(word, at) and not text[at + len(word) : at + len(word) + 1].isalnum():
                kind = "null" if value is None else "bool"
                return Node(kind, at, at + len(word), value), at + len(word)
        raise self.no_value(at)

    def object(self, start, depth):
        text, members = self.text, []
        at = self.skip(start + 1)
        if text[at : at + 1] == "}":
            return Node("object", start, at + 1), at + 1
        while True:
            if at >= len(text):
                raise _error(text, at, "the text ends inside an object", self.unclosed(start, "}"))
            if text[at] != '"':
                raise self.no_name(at, bool(members))
            name, end = self.string(at)
            if any(member.name == name for member in members):
                self.twice.append((name, at))
            colon = self.skip(end)
            if text[colon : colon + 1] != ":":
                raise _error(text, colon, "a colon is missing after %s" % json.dumps(name), 'write "name": value')
            node, end = self.value(self.skip(colon + 1), depth + 1)
            members.append(Member(name, at, node))
            at = self.skip(end)
            if text[at : at + 1] == "}":
                return Node("object", start, at + 1, members=members), at + 1
            at = self.comma(at, end, start, "}")

    def list(self, start, depth):
        text, items = self.text, []
        at = self.skip(start + 1)
        if text[at : at + 1] == "]":
            return Node("list", start, at + 1), at + 1
        while True:
            if items and text[at : at + 1] == "]":
                raise self.trailing_comma(at)
            node, end = self.value(at, depth + 1)
            items.append(node)
            at = self.skip(end)
            if text[at : at + 1] == "]":
                return Node("list", start, at + 1, items=items), at + 1
            at = self.comma(at, end, start, "]")

    def comma(self, at, end, start, closing):
        """Offset of what follows the comma that must stand at ``at``."""
        text = self.text
        if at >= len(text):
            kind = "an object" if closing == "}" else "a list"
            raise _error(text, at, "the text ends inside %s" % kind, self.unclosed(start, closing))
        if text[at] == ",":
            return self.skip(at + 1)
        self.refuse_comment(at)
        if text[at] in '"{[' or text[at].isalnum():
            raise _error(text, end, "a comma is missing", "put a comma there")
        if text[at] in "]}":
            raise _error(text, at, "%s closes what %s opened" % (text[at], text[start]), "one bracket is wrong there")
        raise _error(text, at, "%s where a comma or %s should be" % (_glimpse(text, at), closing), "mend it by hand")

    def string(self, start):
        """(the string, offset behind its quote)."""
        text, at, found = self.text, start + 1, []
        while True:
            match = _PLAIN.match(text, at)
            found.append(match.group())
            at = match.end()
            if at >= len(text):
                raise _error(text, start, "a string that does not end", "close it with a double quote")
            if text[at] == '"':
                return "".join(found), at + 1
            if text[at] != "\\":
                what = "a line break" if text[at] in "\r\n" else "a control character (0x%02x)" % ord(text[at])
                raise _error(text, at, "%s inside a string" % what, "close the string before it, or write it as \\n")
            simple = '"\\/bfnrt'.find(text[at + 1 : at + 2] or " ")
            if simple >= 0:
                found.append('"\\/\b\f\n\r\t'[simple])
                at += 2
            elif re.match(r"\\u[0-9a-fA-F]{4}", text[at : at + 6]):
                pair = re.match(r"(?:\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....)", text[at:]).group()
                # Half of a pair is U+FFFD for Go as well.
                word = json.loads('"%s"' % pair)
                found.append(re.sub("[\ud800-\udfff]", "\ufffd", word) if len(word) == 1 else word)
                at += len(pair)
            else:
                raise _error(text, at, "%s is no escape of JSON" % text[at : at + 2], "write a backslash as \\\\")

    # What is wrong, in words that help.

    def rest(self, at):
        text = self.text
        if text[at] in "}]":
            return _error(text, at, "one %s too many" % text[at], "remove it, or the one before that closed too early")
        if text[at] in "{[":
            return _error(text, at, "a second document begins", "make one object of them: dockerd reads only the first")
        if text[at] == ",":
            return _error(text, at, "a comma after the end", "a bracket before it closed too early")
        self.refuse_comment(at)
        return _error(text, at, "%s after the end" % _glimpse(text, at), "remove what follows the last bracket")

    def no_value(self, at):
        text = self.text
        self.refuse_comment(at)
        if text[at] == "<":
            return _error(
                text, at, "this is HTML, a page saved in place of the file", "put the right file there, or a backup"
            )
        if text[at] in _SMART + "'`":
            return _error(text, at, "%s is no quote of JSON" % text[at], 'write "')
        if text[at] in "]}":
            return _error(
                text, at, "%s where a value should be" % text[at], "a value is missing, or a comma is too many"
            )
        if text[at] == ",":
            return _error(text, at, "a comma where a value should be", "remove it")
        if text[at] == "\ufeff":
            return _error(text, at, "a byte order mark in the middle", "remove it: two files were put together")
        return _error(text, at, "%s is no value of JSON" % _glimpse(text, at), "write text in double quotes")

    def no_name(self, at, after_comma):
        text = self.text
        self.refuse_comment(at)
        if text[at] == "}" and after_comma:
            return self.trailing_comma(at)
        if text[at] in _SMART + "'`":
            return _error(text, at, "%s is no quote of JSON" % text[at], 'write "')
        if text[at] == ",":
            return _error(text, at, "a comma where a name should be", "remove it")
        return _error(
            text, at, "%s where a name in double quotes should be" % _glimpse(text, at), 'write "name": value'
        )

    def trailing_comma(self, at):
        comma = self.text.rindex(",", 0, at)
        return _error(self.text, comma, "a comma after the last entry", "remove it")

    def refuse_comment(self, at):
        if self.text[at] == "#" or self.text.startswith(("//", "/*"), at):
            raise _error(
                self.text,
                at,
                "a comment; JSON has none, and dockerd refuses the file",
                "move it out of the file, into README.md beside it for one",
            )

    def unclosed(self, start, closing):
        line, column = _position(self.text, start)
        return "add the missing %s of line %d, column %d" % (closing, line, column)


def _position(text, offset):
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def _error(text, offset, message, hint):
    line, column = _position(text, offset)
    return DaemonJsonError(message, line, column, hint)


def _glimpse(text, at):
    word = re.match(r"[^\s,\]}:]{1,20}", text[at:])
    return word.group() if word else repr(text[at])


# ---- writing -------------------------------------------------------------------------------------------------


class _Style(object):
    """How a file is written: its indentation and its line ends."""

    def __init__(self, text, root):
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        first = root.members[0].start if root.members else None
        found = re.search(r"\n([ \t]+)$", text[root.start : first]) if first is not None else None
        self.unit = found.group(1) if found else "    "

    def indent_at(self, node):
        """White space before the members of an object, as far as it is written over lines."""
        if node.members:
            start = self.text.rfind("\n", 0, node.members[0].start) + 1
            lead = re.match(r"[ \t]*", self.text[start:]).group()
            if start + len(lead) == node.members[0].start:
                return lead
        start = self.text.rfind("\n", 0, node.start) + 1
        return re.match(r"[ \t]*", self.text[start:]).group() + self.unit

    def dump(self, value, indent, flat=False):
        """A value as text, to stand behind a name that is indented so."""
        if flat:
            return json.dumps(value, ensure_ascii=False)
        return _dump(value, self.unit, indent, self.newline)


def _dump(value, unit, indent, newline):
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + unit
    lines = [
        "%s%s: %s" % (inner, json.dumps(name, ensure_ascii=False), _dump(item, unit, inner, newline))
        for name, item in value.items()
    ]
    return "{" + newline + ("," + newline).join(lines) + newline + indent + "}"


def _insert(text, node, name, value, style):
    """The text with one more member at the end of an object."""
    flat = "\n" not in text[node.start : node.end]
    head = json.dumps(name, ensure_ascii=False) + ": "
    if not node.members:
        start = text.rfind("\n", 0, node.start) + 1
        outer = re.match(r"[ \t]*", text[start:]).group()
        body = style.newline + outer + style.unit + head + style.dump(value, outer + style.unit)
        return text[: node.start] + "{" + body + style.newline + outer + "}" + text[node.end :]
    end = node.members[-1].node.end
    if flat:
        return text[:end] + ", " + head + style.dump(value, "", True) + text[end:]
    indent = style.indent_at(node)
    body = "," + style.newline + indent + head + style.dump(value, indent)
    # A bracket behind the last entry on its line gets a line of its own.
    closing = text[end : node.end - 1]
    tail = text[end:] if "\n" in closing else style.newline + _outer(text, node) + text[node.end - 1 :]
    return text[:end] + body + tail


def _outer(text, node):
    start = text.rfind("\n", 0, node.start) + 1
    return re.match(r"[ \t]*", text[start:]).group()


def _nest(path, value):
    for name in reversed(path):
        value = {name: value}
    return value


def _only_once(document, node, name, path):
    starts = [member.start for member in node.members if member.name == name]
    if len(starts) > 1:
        line, column = document.at(starts[0])
        raise _error(
            document.text,
            starts[-1],
            "%s is there twice, first in line %d, column %d" % (".".join(path), line, column),
            "make one of them: which of two counts is left to chance",
        )
