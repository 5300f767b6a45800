# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What apt downloaded of its repositories, and by which keys it may trust it: /var/lib/apt/lists and the keyrings.

Nothing is fetched and no signature is checked: what a list says of its signer (the key's id) is compared with the keys
that are there, as apt would have to. Sources: apt's own naming of lists (apt-pkg: URItoFileName), RFC 9580 (signature
packets, subpackets 16 and 33), apt-key's rules for the form of keyrings, what apt 2.6 leaves in lists/partial (tried).

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import base64
import binascii
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import (
    cuda_names,
    deb_version,
    driver_names,
    lazy_re,
    openpgp,
    redact,
)
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer

LISTS = "/var/lib/apt/lists"
# The lists of universe have 80 MB.
_KEYRING_BYTES, _RELEASE_BYTES, _LIST_BYTES = 1 << 20, 1 << 22, 1 << 28
_SIGNATURE = lazy_re.compile(rb"-----BEGIN PGP SIGNATURE-----[ \t]*\r?\n(.*?)-----END PGP SIGNATURE-----", re.DOTALL)
_FIELD = lazy_re.compile(
    r"^(Origin|Label|Suite|Codename|Date|NotAutomatic|ButAutomaticUpgrades):\s*(.*)$", re.MULTILINE
)
_HASH_ROW = lazy_re.compile(r"^ ([0-9a-f]{64})\s+([0-9]+)\s+(\S+)$", re.MULTILINE)
_INDEX = lazy_re.compile(r"(?:^|_)Packages$")
# The archive's lists without drivers: some 80 MB of a host's lists.
_SKIPPED = lazy_re.compile(r"_(?:main|universe)_binary-[a-z0-9]+_Packages$")
_STANZA = lazy_re.compile(
    rb"(?:\A|\n\n)Package: ((?:lib)?(?:nvidia|cuda|cudnn|nccl|nvsdm|xnvctrl)[a-z0-9.+-]*|"
    rb"xserver-xorg-video-nvidia[a-z0-9-]*|nvlsm)\n"
)
# Of branches that are not installed only these are reported: enough to see where a branch comes from.
_TOPS = frozenset(("nvidia-driver", "nvidia-dkms", "nvidia-kernel-common", "libnvidia-compute", "libnvidia-gl"))
_ALWAYS = ("libnvidia-container", "nvidia-container-toolkit")
_MOST_PACKAGES = 1500


def prefix(uri, suite, arch):
    """Begin of the names of a repository's lists: ``developer.download.nvidia.com_compute_…_x86_64_``."""
    uri = uri.replace("$(ARCH)", arch)
    suite = suite.replace("$(ARCH)", arch)
    full = uri.rstrip("/") + "/"
    if suite.endswith("/"):
        full += suite.lstrip("/")
    else:
        full += "dists/%s/" % suite.strip("/")
    rest = full.partition("://")[2] if "://" in full else full.partition(":")[2]
    host, slash, path = rest.partition("/")
    rest = host.rpartition("@")[2] + slash + path
    quoted = "".join("%%%02x" % ord(char) if char in '\\|{}[]<>"^~_=!@#$%^&*' else char for char in rest)
    return quoted.replace("/", "_")


# --- keys ---------------------------------------------------------------------------------------------------


def keyring(tree, path):
    """{path, state, primaries, ids} of one file of keys.

    state: ok, absent, unreadable, empty, damaged (no OpenPGP data: an error page, a file that was interrupted), form (its
    name promises the other form: apt ignores it), hidden (apt's own user may not read it), keybox (GnuPG's own format), unknown.
    ids: the last 16 digits of every key in it.
    """
    row = {"path": path, "state": "ok", "primaries": [], "ids": []}
    found = tree.stat(path)
    if found is None and not any(map(tree.names, ("/usr/share/keyrings", "/etc/apt/trusted.gpg.d"))):
        # A recorded host without any key: apt's own are on every real one.
        row["state"] = "unknown"
        return row
    data = tree.read_bytes(path, _KEYRING_BYTES) if found is not None else None
    if found is None or data is None:
        row["state"] = "absent" if found is None else "unreadable"
        return row
    if not data.strip():
        row["state"] = "empty"
        return row
    if data[8:12] == b"KBXf":
        row["state"] = "keybox"
        return row
    try:
        keys = openpgp.keys(data)
    except ValueError:
        row["state"] = "damaged"
        return row
    row["primaries"] = [fingerprint for is_primary, fingerprint in keys if is_primary]
    row["ids"] = [fingerprint[-16:] if len(fingerprint) == 40 else fingerprint[:16] for _, fingerprint in keys]
    armored = openpgp.is_armored(data)
    if (path.endswith(".gpg") and armored) or (path.endswith(".asc") and not armored):
        row["state"] = "form"
    elif not found.st_mode & 0o004:
        row["state"] = "hidden"
    return row


def keyrings(tree, sources):
    """[keyring] of every file that a source names, and of those that apt trusts for all others."""
    paths = []
    for source in sources:
        for word in (source.get("signed_by") or "").replace(",", " ").split():
            if word.startswith("/"):
                paths.append(word)
    names_ = [name for name in tree.names("/etc/apt/trusted.gpg.d") if name.endswith((".gpg", ".asc"))]
    paths += ["/etc/apt/trusted.gpg.d/" + name for name in names_[:64]]
    if tree.exists("/etc/apt/trusted.gpg"):
        paths.append("/etc/apt/trusted.gpg")
    return [keyring(tree, path) for path in dict.fromkeys(paths)]


def signers(data):
    """Ids (16 digits) of the keys that signed an InRelease or a Release.gpg, in order; what cannot be read is left out."""
    found = []
    for block in _SIGNATURE.findall(data) or ([] if data.startswith(b"-----") else [None]):
        try:
            raw = data if block is None else base64.b64decode(_payload(block))
            for tag, body in openpgp.packets(raw):
                if tag == 2:
                    found += [ident for ident in [_issuer(body)] if ident and ident not in found]
        except (ValueError, IndexError, binascii.Error):
            continue
    return found


def _payload(block):
    lines = [line.strip() for line in block.splitlines()]
    if b"" in lines:
        lines = lines[lines.index(b"") + 1 :]
    return b"".join(line for line in lines if line and not line.startswith(b"=") and b": " not in line)


def _issuer(body):
    """Id of the key that made a signature packet: of its subpackets, the unhashed ones last."""
    if body[0] == 3:
        return body[7:15].hex().upper()
    if body[0] not in (4, 6):
        return None
    width, at, ident = (2, 4, None) if body[0] == 4 else (4, 4, None)
    for _ in range(2):
        size = int.from_bytes(body[at : at + width], "big")
        at += width
        end = at + size
        while at < end:
            length = body[at]
            at += 1
            if length == 255:
                length = int.from_bytes(body[at : at + 4], "big")
                at += 4
            elif length >= 192:
                length = ((length - 192) << 8) + body[at] + 192
                at += 1
            kind, value = body[at] & 0x7F, body[at + 1 : at + length]
            if kind == 16:
                return value.hex().upper()
            if kind == 33 and value:
                ident = value[1:].hex().upper()
                ident = ident[-16:] if value[0] == 4 else ident[:16]
            at += length
        at = end
    return ident


# --- lists --------------------------------------------------------------------------------------------------


def lists(tree, sources, arch):
    """[{uri, suite, file, line, prefix, origin, label, release, date, signers, fetched_signers, failed, differs}].

    One row an enabled repository. release: Suite and Codename. signers: of the list that apt uses; fetched_signers: of
    one that lies in partial/ because apt did not take it. failed: names in partial/ that apt marked as FAILED. differs:
    [{name, expected, found}] sizes (bytes) of indexes that are not what the Release file says.
    """
    found, seen = [], set()
    there, partial = tree.names(LISTS), tree.names(LISTS + "/partial")
    for source in sources:
        if not source.get("enabled", True) or "deb" not in source.get("types", ["deb"]):
            continue
        for uri in source["uris"]:
            for suite in source["suites"]:
                begin = prefix(uri, suite, arch)
                if begin not in seen:
                    seen.add(begin)
                    row = {
                        "uri": redact.text(uri),
                        "suite": suite,
                        "file": source["file"],
                        "line": source["line"],
                        "prefix": begin,
                    }
                    row.update(_release(tree, begin, there, partial))
                    found.append(row)
    return found


def _release(tree, begin, there, partial):
    name = next((begin + one for one in ("InRelease", "Release") if begin + one in there), None)
    data = (tree.read_bytes("%s/%s" % (LISTS, name), _RELEASE_BYTES) or b"") if name else b""
    text = data.decode("utf-8", "replace")
    fields = dict(_FIELD.findall(text[:8192]))
    signed = signers(data) if name and name.endswith("InRelease") else []
    if name and name.endswith("_Release"):
        signed = signers(tree.read_bytes("%s/%s.gpg" % (LISTS, name), _KEYRING_BYTES) or b"-----")
    fetched = tree.read_bytes("%s/partial/%sInRelease" % (LISTS, begin), _RELEASE_BYTES)
    return {
        "there": name is not None,
        "origin": fields.get("Origin"),
        "label": fields.get("Label"),
        "date": fields.get("Date"),
        "release": [fields[key] for key in ("Suite", "Codename") if fields.get(key)],
        "automatic": fields.get("NotAutomatic", "").lower() != "yes",
        "upgrades": fields.get("ButAutomaticUpgrades", "").lower() == "yes",
        "signers": signed,
        "fetched_signers": signers(fetched) if fetched else [],
        "failed": [one for one in partial if one.startswith(begin) and one.endswith(".FAILED")][:8],
        "differs": _differs(tree, begin, there, text),
    }


def _differs(tree, begin, there, text):
    sizes = {file.replace("_", "%5f").replace("/", "_"): integer(size) for _, size, file in _HASH_ROW.findall(text)}
    found = []
    for name in there:
        if name.startswith(begin) and _INDEX.search(name):
            inside = name[len(begin) :]
            stat = tree.stat("%s/%s" % (LISTS, name))
            if inside in sizes and stat is not None and stat.st_size != sizes[inside]:
                found.append({"name": name, "expected": sizes[inside], "found": stat.st_size})
    return found[:8]


# --- what the lists have ------------------------------------------------------------------------------------


def packages_in_lists(tree, rows, packages):
    """[{name, version, list, phased}]: newest version of NVIDIA's packages in each list that apt has.

    rows: of ``lists``; list: a row's prefix. packages: of the probe: those that are installed or held are reported, and of
    other branches just the packages that show where a branch comes from. phased: its Phased-Update-Percentage, or None.
    """
    branches = {parsed.branch for parsed in map(driver_names.parse, packages) if parsed and parsed.branch}
    prefixes = sorted((row["prefix"] for row in rows), key=len, reverse=True)
    best = {}
    for file in tree.names(LISTS):
        begin = next((one for one in prefixes if file.startswith(one)), None)
        if begin is None or not _INDEX.search(file) or _SKIPPED.search(file):
            continue
        data = tree.read_bytes("%s/%s" % (LISTS, file), _LIST_BYTES) or b""
        for match in _STANZA.finditer(data):
            name = match.group(1).decode("ascii")
            if not _is_reported(name, packages, branches):
                continue
            end = data.find(b"\n\n", match.end())
            stanza = data[match.start() : end if end >= 0 else len(data)].decode("utf-8", "replace")
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
            version, phased = fields.get("Version"), fields.get("Phased-Update-Percentage", "")
            if version and ((name, begin) not in best or deb_version.compare(version, best[name, begin][0]) > 0):
                best[name, begin] = (version, integer(phased))
    return [
        {"name": name, "list": begin, "version": version, "phased": phased}
        for (name, begin), (version, phased) in sorted(best.items())
    ][:_MOST_PACKAGES]


def hide_secrets(rows, offered, arch):
    """Name lists by their redacted address in what lists and packages_in_lists returned: names of files hold it too."""
    for row in rows:
        real, shown = row["prefix"], prefix(row["uri"], row["suite"], arch)
        if real != shown:
            row["prefix"] = shown
            row["failed"] = [shown + name[len(real) :] for name in row["failed"]]
            for named in row["differs"]:
                named["name"] = shown + named["name"][len(real) :]
            for offer in offered:
                offer["list"] = shown if offer["list"] == real else offer["list"]


def _is_reported(name, packages, branches):
    if name in packages or name.startswith(_ALWAYS):
        return True
    parsed = driver_names.parse(name)
    if parsed is not None:
        if parsed.exact:
            return False
        return parsed.branch in branches or parsed.branch is None or parsed.base in _TOPS
    cuda = cuda_names.parse(name)
    return cuda is not None and cuda.kind in ("cudnn", "nccl", "meta_with_driver")
