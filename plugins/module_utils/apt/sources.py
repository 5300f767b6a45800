# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Sources of a host as files: which repository stands where, how an entry is taken out, how a key is checked.

Texts go in and come out; only ``read_sources``, ``installed_key`` and ``fetch_key`` touch the host. Standard library
only, any Python from 3.8.
"""

from __future__ import annotations

import base64
import binascii
import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, openpgp, proxies, redact

MAIN = "/etc/apt/sources.list"
PARTS = "/etc/apt/sources.list.d"
# Where packages and administrators put keys; see apt-secure(8) and sources.list(5).
KEYRINGS = ("/usr/share/keyrings", "/etc/apt/keyrings", "/etc/apt/trusted.gpg.d")
_KEY_SIZE = 1 << 20
_OFF = "# taken out by gpu-provision: "


def read_sources(root="/"):
    """Return (sources, errors, texts) of a host: parsed entries, apt's error texts, {path: text} of every file."""
    tree = host_tree.HostTree(root)
    paths = [MAIN] + [
        "%s/%s" % (PARTS, name) for name in tree.names(PARTS) if apt_conf.is_read(name, ("list", "sources"))
    ]
    sources, errors, texts = [], [], {}
    for path in paths:
        text = tree.read(path)
        if text is None:
            continue
        texts[path] = text
        parse = apt_conf.parse_deb822 if path.endswith(".sources") else apt_conf.parse_list
        found, wrong = parse(text, path)
        sources += found
        errors += wrong
    return sources, errors + ["%s is not readable" % path for path in tree.unreadable], texts


def repositories(source, arch="amd64"):
    """Return [(normalised URI, suite)] of a source, to compare sources by.

    http and https, a user name, a default port and slashes at the end make no difference; $(ARCH) is filled in.
    """
    return [
        (normalise(uri, arch), suite.replace("$(ARCH)", arch).rstrip("/") or "/")
        for uri in source["uris"]
        for suite in source["suites"]
    ]


def normalise(uri, arch="amd64"):
    """Canonical form of a repository's URI: lower-case host, no scheme of http(s), no login, no slash at the end."""
    uri = uri.replace("$(ARCH)", arch)
    match = re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):/+(?:([^/]*)(/.*)?)?$", uri)
    if not match:
        return uri.rstrip("/")
    scheme, host, path = match.group(1).lower(), match.group(2) or "", match.group(3) or ""
    path = re.sub(r"/+", "/", path).rstrip("/")
    if scheme in ("http", "https"):
        return re.sub(r":(?:80|443)$", "", host.rpartition("@")[2].lower()) + path
    return "%s:/%s%s" % (scheme, host, path)


def without(text, path, entries):
    """Text of a sources file in which the given entries (parsed sources of that file) no longer count.

    A line is commented out, a stanza gets ``Enabled: no``; everything else stays as it was.
    """
    gone = {entry["line"] for entry in entries}
    if not gone:
        return text
    lines = text.splitlines(True)
    if not path.endswith(".sources"):
        return "".join(_OFF + line if number in gone else line for number, line in enumerate(lines, 1))
    out = []
    inside = False
    for number, line in enumerate(lines, 1):
        if number in gone:
            inside = True
            out.append("Enabled: no\n")
        elif not line.strip():
            inside = False
        if inside and line.lower().startswith("enabled:"):
            continue
        out.append(line)
    return "".join(out)


def is_empty(text, path):
    """True when nothing in a sources file counts any more."""
    sources, errors = (apt_conf.parse_deb822 if path.endswith(".sources") else apt_conf.parse_list)(text, path)
    return not errors and not any(source["enabled"] for source in sources)


def spec_source(spec):
    """A source description (name, uris, suites, …) in the form that the parsers give: words as lists."""
    return {
        "uris": split_words(spec.get("uris")),
        "suites": split_words(spec.get("suites")) or ["/"],
        "components": split_words(spec.get("components")),
        "architectures": split_words(spec.get("architectures")),
    }


def split_words(value):
    """Words of a text or of a list of texts."""
    if value is None:
        return []
    return value.split() if isinstance(value, str) else [word for item in value for word in str(item).split()]


def render(spec, signed_by=None):
    """Text of our deb822 file for one source. signed_by: path of another key file than our own; False for none.

    A spec with ``signed_by`` names a keyring that the host has already, such as that of its own archive.

    Raises AptError ``apt.usage`` when apt could not read the result.
    """
    source = spec_source(spec)
    name = spec["name"]
    if not re.match(r"^[a-z0-9][a-z0-9.-]*$", name):
        raise AptError("apt.usage", "a source name has only lower-case letters, digits, dots and dashes: %r" % name)
    text = apt_files.render_sources(
        name, " ".join(source["uris"]), " ".join(source["suites"]), " ".join(source["components"]), False
    )
    if source["architectures"]:
        text = text.replace("Signed-By:", "Architectures: %s\nSigned-By:" % " ".join(source["architectures"]))
    own = "Signed-By: %s\n" % apt_files.keyring_path(name, False)
    signed_by = spec.get("signed_by") or signed_by
    if signed_by is False:
        text = text.replace(own, "")
    elif signed_by:
        text = text.replace(own, "Signed-By: %s\n" % signed_by)
    _, errors = apt_conf.parse_deb822(text, apt_files.sources_path(name))
    if errors:
        raise AptError("apt.usage", "the source %s cannot be written: %s" % (name, errors[0]))
    return text


# --- keys


def installed_key(name):
    """Return (path, data) of the key that we installed for a source, or (None, None)."""
    for armored in (True, False):
        path = apt_files.keyring_path(name, armored)
        try:
            return path, host_tree.read_file(path, _KEY_SIZE)
        except FileNotFoundError:
            continue
    return None, None


def key_on_host(fingerprint, folders=KEYRINGS):
    """Return the key with this fingerprint from the keyrings of the host (cuda-keyring and its like), or None.

    The fingerprint is what makes it the right one, wherever it lies; so a host without internet needs no download.
    """
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if not name.endswith((".gpg", ".asc")) or not os.path.isfile(path) or os.path.getsize(path) > _KEY_SIZE:
                continue
            data = host_tree.read_file(path, _KEY_SIZE)
            if key_is(data, fingerprint):
                return data
    return None


def key_bytes(spec, fetch=None):
    """Return the checked key of a source in its binary form, or None when the source names none.

    Binary always: apt needs awk to read an armored one (apt-key up to 2.8), and small images have no awk.
    ``key`` (armored text, or base64 of the binary form) is taken as it is; with ``key_url`` the installed key stays
    when it has the fingerprint, a keyring of the host that has it is taken next, and it is fetched otherwise. Raises
    AptError ``apt.key`` when the key cannot be had or its fingerprint is another than expected.
    """
    name, fingerprint = spec["name"], spec.get("fingerprint")
    if spec.get("key"):
        data = _decode(spec["key"], name)
        check_key(data, fingerprint, "the key of %s" % name)
        return openpgp.dearmor(data)
    if not fingerprint:
        if spec.get("key_url"):
            raise AptError(
                "apt.key",
                "the key of %s has a URL but no fingerprint" % name,
                hint="give the fingerprint: a key is trusted by its fingerprint, not by where it came from",
            )
        return None
    _, data = installed_key(name)
    if data is not None and key_is(data, fingerprint):
        return openpgp.dearmor(data)
    data = key_on_host(fingerprint)
    if data is not None:
        return openpgp.dearmor(data)
    if not spec.get("key_url"):
        raise AptError("apt.key", "there is no key for the source %s" % name, hint="give the key itself, or its URL")
    data = (fetch or fetch_key)(spec["key_url"])
    check_key(data, fingerprint, "the key at %s" % redact.text(spec["key_url"]))
    return openpgp.dearmor(data)


def check_key(data, fingerprint, what):
    """Raise AptError ``apt.key`` unless every primary key in data has one of the fingerprints (a text, or a list).

    Every one, because apt trusts every key of the file. Without a fingerprint the data must at least be a key: an
    error page saved as a key ends here.
    """
    try:
        found = openpgp.primaries(data)
        wanted = [
            openpgp.normalize(item) for item in ([fingerprint] if isinstance(fingerprint, str) else fingerprint or [])
        ]
    except ValueError as error:
        raise AptError("apt.key", "%s cannot be used: %s" % (what, error)) from None
    strange = [item for item in found if wanted and item not in wanted]
    if strange:
        raise AptError(
            "apt.key",
            "%s has the wrong fingerprint" % what,
            because=["found %s" % " ".join(strange), "expected %s" % " ".join(wanted)],
            hint="if the vendor really changed the key, confirm the new fingerprint with the vendor and set it",
        )


def fetch_key(url, timeout=30):
    """Fetch a key over http, https or file, through the proxies of the environment. Raises AptError ``apt.key``."""
    if not re.match(r"^(https?|file)://", url):
        raise AptError("apt.key", "not a URL of a key: %s" % redact.text(url))
    # Imported only here: with ssl it takes long.
    import urllib.request

    try:
        # Not urlopen: it keeps the proxies of its first call.
        with urllib.request.build_opener().open(url, timeout=timeout) as answer:
            return answer.read(1 << 20)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise AptError(
            "apt.key",
            "the key at %s cannot be fetched: %s" % (redact.text(url), proxies.why(error)),
            because=["key download: " + proxies.way(url)],
            hint="give the key itself, a URL that this host can reach, or its proxy (gpu_proxy_http, gpu_proxy_https)",
        ) from None


def _decode(text, name):
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    if openpgp.is_armored(data):
        return data
    try:
        return base64.b64decode(b"".join(data.split()), validate=True)
    except binascii.Error:
        raise AptError("apt.key", "the key of %s is neither armored nor base64" % name) from None


def key_is(data, fingerprint):
    """True when data holds keys, all of them with the wanted fingerprints."""
    try:
        check_key(data, fingerprint, "")
    except AptError:
        return False
    return True
