# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Indexes of an apt repository as text: read what the originals say, write those of a mirror. Pure functions.

Source of the formats: https://wiki.debian.org/DebianRepository/Format. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import gzip
import hashlib
import re

_PACKAGE = re.compile(r"^Package: (\S+)", re.M)
_SIGNED = "-----BEGIN PGP SIGNED MESSAGE-----"
_SIGNATURE = "-----BEGIN PGP SIGNATURE-----"
# What a mirror takes over of the original, so that pins by origin, label and suite mean the same on hosts.
_KEPT = ("Origin", "Label", "Suite", "Version", "Codename", "Description")


def names(texts):
    """Names of all packages in the texts of Packages files."""
    return {name for text in texts for name in _PACKAGE.findall(text)}


def stanzas(text, wanted=None):
    """Yield the stanzas of a Packages file, as they stand there; only of the packages wanted, if given (names)."""
    for block in text.split("\n\n"):
        found = _PACKAGE.search(block)
        if found and (wanted is None or found.group(1) in wanted):
            yield block.strip("\n")


def fields(stanza):
    """First lines of the fields of a stanza: {"Package": "cuda-nvcc-12-8", …}."""
    found = {}
    for line in stanza.split("\n"):
        name, colon, value = line.partition(":")
        if colon and name and name[0] not in " \t#":
            found[name] = value.strip()
    return found


def unsigned(text):
    """The text inside a clear-signed one (RFC 9580, 7.2); another text as it is."""
    if _SIGNED not in text:
        return text
    body = text.split(_SIGNED, 1)[1].split("\n\n", 1)[1].split(_SIGNATURE, 1)[0]
    return "\n".join(line[2:] if line.startswith("- ") else line for line in body.split("\n"))


def listed_files(release):
    """Files that a Release names with sha256: {name: (sha256, size)}. release: text of Release or InRelease."""
    found, inside = {}, False
    for line in unsigned(release).split("\n"):
        if line[:1] not in (" ", "\t"):
            inside = line.strip() == "SHA256:"
        elif inside and len(line.split()) == 3:
            digest, size, name = line.split()
            found[name] = (digest, int(size))
    return found


def by_hash(release):
    """True when clients may ask for indexes by their checksum."""
    return fields(unsigned(release)).get("Acquire-By-Hash", "").lower() == "yes"


def index_files(release, components, archs):
    """The Packages files of a suite that a mirror keeps, as the Release names them.

    components: empty for a flat repository. Returns [[(name, sha256, size), …], …]: of each inner list one file at least is
    needed (the same index, in other compressions; the small ones first), all that the server has are better: clients differ
    in what they ask for.
    """
    listed = listed_files(release)
    stems = ["Packages"]
    if components:
        stems = ["%s/binary-%s/Packages" % (component, arch) for component in components for arch in archs]
    found = []
    for stem in stems:
        row = [(stem + end, *listed[stem + end]) for end in (".xz", ".gz", "") if stem + end in listed]
        if row:
            found.append(row)
    return found


def merged(present, new):
    """Stanzas of a Packages file with others put in; one of the same package, version and architecture is replaced.

    Sorted, so that the same content is the same text.
    """
    found = {}
    for stanza in list(present) + list(new):
        one = fields(stanza)
        found[(one["Package"], one["Version"], one["Architecture"])] = stanza
    return [found[key] for key in sorted(found)]


def packages_text(rows):
    """Text of a Packages file."""
    return "".join(stanza + "\n\n" for stanza in rows)


def list_files(texts):
    """The files of the indexes: {"main/binary-amd64/Packages": text} gives names -> bytes, packed ones with them."""
    found = {}
    for name, text in texts.items():
        data = text.encode("utf-8")
        found[name] = data
        found[name + ".gz"] = gzip.compress(data, 6, mtime=0)
    return found


def release_text(original, files, components, archs, date):
    """Text of a Release for files ({name: bytes}). original: the Release that it stands for; date: as RFC 5322 has it."""
    said = fields(unsigned(original))
    lines = ["%s: %s" % (name, said[name]) for name in _KEPT if name in said]
    lines += ["Date: " + date, "Architectures: " + " ".join(archs)]
    if components:
        lines.append("Components: " + " ".join(components))
    lines += ["Acquire-By-Hash: yes", "SHA256:"]
    lines += [
        " %s %16d %s" % (hashlib.sha256(files[name]).hexdigest(), len(files[name]), name) for name in sorted(files)
    ]
    return "\n".join(lines) + "\n"


def same_content(one, other):
    """True when two Releases differ in nothing but their date."""
    first, second = (
        [line for line in unsigned(text).split("\n") if line.strip() and not line.startswith("Date:")]
        for text in (one, other)
    )
    return first == second
