# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Parse apt's files: sources, preferences, apt.conf. Pure functions of text.

Sources: sources.list(5), apt_preferences(5), apt.conf(5); error texts are apt's own (apt-pkg/sourcelist.cc).
A source is a dict as provision.facts.Source has it.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

# apt reads only these names in its .d folders (apt-pkg: GetListOfFilesInDir).
_FILE_NAME = lazy_re.compile(r"^[A-Za-z0-9_.-]+$")
_OPTIONS = lazy_re.compile(r"^\s*(\S+)\s+\[([^\]]*)\]\s*(.*)$")


def is_read(name, extensions):
    """True when apt reads a file of this name in a .d folder; extensions like ("list", ""), "" for none."""
    if not _FILE_NAME.match(name) or name.startswith("."):
        return False
    return (name.rsplit(".", 1)[1] if "." in name else "") in extensions


def parse_list(text, file):
    """Parse a one-line-style file. Returns (sources, errors)."""
    sources, errors = [], []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        options, words = {}, content.split()
        match = _OPTIONS.match(content)
        if match:
            words = [match.group(1)] + match.group(3).split()
            for pair in match.group(2).split():
                name, equals, value = pair.partition("=")
                if equals:
                    options[name.rstrip("+-").lower()] = value
        elif len(words) > 1 and words[1].startswith("["):
            errors.append("Malformed entry %d in list file %s ([option] unparseable)" % (number, file))
            continue
        kind, uri, suite, components = words[0], words[1:2], words[2:3], words[3:]
        if kind not in ("deb", "deb-src"):
            errors.append("Type '%s' is not known on line %d in source list %s" % (kind, number, file))
            continue
        wrong = _wrong_source(uri, suite, components)
        if wrong:
            errors.append("Malformed entry %d in list file %s (%s)" % (number, file, wrong))
            continue
        sources.append(
            {
                "file": file,
                "line": number,
                "format": "list",
                "types": [kind],
                "uris": uri,
                "suites": suite,
                "components": components,
                "signed_by": options.get("signed-by"),
                "enabled": True,
                "trusted": _yes(options.get("trusted")),
            }
        )
    return sources, errors


def parse_deb822(text, file):
    """Parse a .sources file. Returns (sources, errors); line is that of the stanza's first field."""
    sources, errors = [], []
    for at, (line, fields) in enumerate(stanzas(text), 1):
        types, uris = fields.get("types", "").split(), fields.get("uris", "").split()
        suites, components = fields.get("suites", "").split(), fields.get("components", "").split()
        wrong = None
        if not types:
            wrong = "Type"
        elif not set(types) <= {"deb", "deb-src"}:
            odd = sorted(set(types) - {"deb", "deb-src"})[0]
            errors.append("Type '%s' is not known on stanza %d in source list %s" % (odd, at, file))
            continue
        else:
            wrong = next((w for w in (_wrong_source(uris, [suite], components) for suite in suites or [""]) if w), None)
        if wrong:
            errors.append("Malformed entry %d in sources file %s (%s)" % (at, file, wrong))
            continue
        sources.append(
            {
                "file": file,
                "line": line,
                "format": "deb822",
                "types": types,
                "uris": uris,
                "suites": suites,
                "components": components,
                "signed_by": _signed_by(fields.get("signed-by")),
                "enabled": not _no(fields.get("enabled")),
                "trusted": _yes(fields.get("trusted")),
            }
        )
    return sources, errors


def stanzas(text):
    """Yield (line of the first field, {lower-case field: value}) of deb822 text; comments are left out."""
    fields, start, last = {}, 0, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield start, fields
            fields, last = {}, None
        elif line[0] in " \t":
            if last:
                fields[last] += "\n" + line.strip()
        elif ":" in line:
            if not fields:
                start = number
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.strip()
    if fields:
        yield start, fields


def conflicts(sources, arch):
    """Return apt's error texts for enabled sources of one repository whose Signed-By differ.

    Sources must stand in the order in which apt reads them: a key named first and left out later is an error,
    the
    other way round apt takes the key for both.
    """
    seen, errors = {}, []
    for source in sources:
        if not source["enabled"]:
            continue
        new = source["signed_by"] or ""
        for uri in source["uris"]:
            for suite in source["suites"]:
                name = (uri.replace("$(ARCH)", arch).rstrip("/") + "/", suite.replace("$(ARCH)", arch))
                old = seen.get(name, "")
                if not old:
                    seen[name] = new
                elif old != new:
                    text = "Conflicting values set for option Signed-By regarding source %s %s: %s != %s"
                    errors.append(text % (name + (old, new)))
    return list(dict.fromkeys(errors))


def parse_preferences(text, file):
    """Parse a preferences file. Returns ([{"file", "line" (of its stanza), "package", "pin", "priority"}], errors)."""
    found, errors = [], []
    for line, fields in stanzas(text):
        if not ({"package", "pin", "pin-priority"} & set(fields)):
            continue
        package, pin = " ".join(fields.get("package", "").split()), " ".join(fields.get("pin", "").split())
        priority = fields.get("pin-priority", "")
        if not package:
            errors.append("Invalid record in the preferences file %s, no Package header (line %d)" % (file, line))
        elif not pin or not re.match(r"^[+-]?[0-9]{1,9}$", priority):
            what = "no Pin" if not pin else "No priority (or zero) specified for pin"
            errors.append("Invalid record in the preferences file %s: %s (line %d)" % (file, what, line))
        else:
            found.append({"file": file, "line": line, "package": package, "pin": pin, "priority": int(priority)})
    return found, errors


_TOKEN = lazy_re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/ | (?P<hash>\#[^\n]*) | "(?P<quoted>[^"\n]*)" | (?P<mark>[{};]) |
    (?P<word>[^\s"{};]+)""",
    re.X | re.S,
)


def parse_conf(text, into=None):
    """Add the settings of an apt.conf text to a dict and return it: {"a::b": value, "a::list::": [values]}.

    Names are lower-cased, as apt does not tell them apart. ``#clear NAME;`` is honoured,
    ``#include`` is not followed.
    """
    result = {} if into is None else into
    scope, words = [], []
    for match in _TOKEN.finditer(text):
        if match.group("hash"):
            clear = re.match(r"#clear\s+([^\s;]+)", match.group("hash"))
            if clear:
                gone = "::".join(scope + [clear.group(1).lower()]).rstrip(":")
                for name in [n for n in result if n == gone or n.startswith(gone + "::")]:
                    del result[name]
        elif match.group("quoted") is not None:
            words.append((True, match.group("quoted")))
        elif match.group("word"):
            words.append((False, match.group("word")))
        elif match.group("mark") == "{":
            scope.append("".join(text for _, text in words).lower())
            words = []
        elif match.group("mark"):
            _set(result, scope, words)
            words = []
            if match.group("mark") == "}" and scope:
                scope.pop()
    _set(result, scope, words)
    return result


def _set(result, scope, words):
    if not words:
        return
    path = "::".join(scope)
    if words[0][0] or len(words) == 1:
        # A bare value: an item of the list that the braces stand for.
        result.setdefault(path + "::", []).append(words[0][1])
        return
    name = "::".join(part for part in (path, words[0][1].lower()) if part)
    value = " ".join(text for _, text in words[1:])
    if name.endswith("::"):
        result.setdefault(name, []).append(value)
    else:
        result[name] = value


def truth(value, default=False):
    """apt's reading of a boolean setting (StringToBool): numbers, yes/no, true/false, on/off,
    with/without."""
    text = (value or "").strip().lower()
    if re.match(r"^[0-9]+$", text):
        return text.strip("0") != ""
    if text in ("yes", "true", "with", "on", "enable"):
        return True
    if text in ("no", "false", "without", "off", "disable"):
        return False
    return default


def _wrong_source(uris, suites, components):
    """Name of the part that apt cannot take, in apt's words, or None."""
    if not uris:
        return "URI"
    if any(not re.match(r"^[A-Za-z][A-Za-z0-9+.-]*:", uri) for uri in uris):
        return "URI parse"
    if not suites or not suites[0]:
        return "Suite"
    if suites[0].endswith("/"):
        return "absolute Suite Component" if components else None
    return None if components else "Component"


def _signed_by(value):
    """Path or fingerprint as written; a key that stands in the file itself is named by its fingerprint."""
    if not value:
        return None
    if "BEGIN PGP" not in value:
        return " ".join(value.split())
    # Here, because most hosts have no such key and start-up time is counted.
    from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp

    armor = "\n".join("" if line.strip() == "." else line.strip() for line in value.splitlines())
    try:
        return "embedded:" + ",".join(openpgp.primaries(armor.strip().encode()))
    except ValueError:
        return "embedded:unreadable"


def _yes(value):
    return truth(value)


def _no(value):
    return value is not None and not truth(value, default=True)
