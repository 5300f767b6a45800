# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a mirror has to know of a verified host: its repositories with their keys, and all that is in its conda environments.

Reads only. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import base64
import email.parser
import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, redact

# Of a conda package's record: what the index of a channel says of it.
_RECORD = (
    "name",
    "version",
    "build",
    "build_number",
    "depends",
    "constrains",
    "license",
    "license_family",
    "md5",
    "sha256",
    "size",
    "subdir",
    "timestamp",
    "track_features",
    "features",
    "noarch",
    "python_site_packages_path",
    "url",
    "fn",
    "channel",
)
_FIELDS = ("Package", "Status", "Version", "Architecture", "Provides")
ARCHIVE_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
# Where pip goes when nobody tells it another index: it says so itself.
_PIP_INDEX = re.compile(r'^PyPI = PackageIndex\(\s*"([^"]+)"', re.M)
_WHEEL = re.compile(r"^Tag: (\S+)$", re.M)


def main(args):
    """Return {"arch", "sources": [{file, uris, suites, components, signed_by, key}], "archive_key", "packages": [[name, version,
    arch, provides]], "conda": {path: {"packages", "wheels", "problems"}}}. args: conda, paths of environments. Keys are
    in base64.
    """
    status = apt_common.read_status()
    sources, _, _ = apt_sources.read_sources()
    return {
        "arch": apt_common.native_arch(status),
        "sources": [_source(one) for one in sources if one["enabled"] and "deb" in one["types"]],
        "archive_key": _encoded(_bytes(ARCHIVE_KEYRING)),
        "packages": _installed(),
        "conda": {path: environment(path) for path in args.get("conda") or ()},
    }


def _installed():
    stanzas = apt_common.parse_stanzas(apt_common.status_text(), _FIELDS)
    rows = [one for one in stanzas if one.get("Status", "").split()[-1:] == ["installed"]]
    return [[one["Package"], one["Version"], one["Architecture"], one.get("Provides", "")] for one in rows]


def _encoded(data):
    return base64.b64encode(data).decode("ascii") if data else None


def _source(source):
    key = source.get("signed_by")
    if key and not key.startswith("/"):
        # the key itself, or a fingerprint: the file that has it is not known
        key = None
    data = _bytes(key.split(",")[0]) if key else None
    return {
        "file": source["file"],
        "suites": source["suites"],
        # To be fetched by who has no login, or another one.
        "uris": [redact.text(uri).replace(redact.STARS + "@", "") for uri in source["uris"]],
        "components": source["components"],
        "signed_by": key,
        "key": _encoded(data),
    }


def environment(path):
    """All packages of a conda environment: conda's with their addresses, pip's with the tags of their wheels.

    Returns {"packages": [records], "wheels": [{"name", "version", "tags"}], "problems": [texts]}.
    """
    packages, problems, wheels, owned = [], [], [], set()
    folder = os.path.join(path, "conda-meta")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not name.endswith(".json"):
            continue
        data = _bytes(os.path.join(folder, name))
        record = host_tree.json_object((data or b"").decode("utf-8", "replace")) or {}
        owned.add((str(record.get("name", "")).lower().replace("_", "-"), record.get("version")))
        if not record.get("url") or not (record.get("sha256") or record.get("md5")):
            problems.append("%s: its record names no address or no checksum" % name)
            continue
        packages.append({key: record[key] for key in _RECORD if key in record})
    for site in _sites(path):
        for name in sorted(os.listdir(site)):
            if name.endswith(".dist-info"):
                found = _wheel(os.path.join(site, name), owned)
                if isinstance(found, dict):
                    wheels.append(found)
                elif found:
                    problems.append(found)
    return {"packages": packages, "wheels": wheels, "problems": problems}


def pip_index(site):
    """Address of the index that the pip in a folder of packages has as its own, or None."""
    said = _PIP_INDEX.search(
        (_bytes(os.path.join(site, "pip/_internal/models/index.py")) or b"").decode("utf-8", "replace")
    )
    return said.group(1).rstrip("/") + "/simple" if said else None


def _sites(path):
    library = os.path.join(path, "lib")
    for name in sorted(os.listdir(library)) if os.path.isdir(library) else ():
        site = os.path.join(library, name, "site-packages")
        if re.match(r"^python3\.[0-9]+$", name) and os.path.isdir(site):
            yield site


def _wheel(folder, owned):
    """A distribution that pip installed, a text that says why it cannot be mirrored, or None: conda's own."""
    name = os.path.basename(folder)
    metadata = _bytes(os.path.join(folder, "METADATA"))
    installer = (_bytes(os.path.join(folder, "INSTALLER")) or b"").decode("utf-8", "replace").strip()
    if metadata is None or installer == "conda":
        return None
    said = email.parser.HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    project = re.sub(r"[-_.]+", "-", said.get("Name", "")).lower()
    if (project, said.get("Version")) in owned:
        return None
    if os.path.exists(os.path.join(folder, "direct_url.json")):
        return "%s: it came from an address of its own, not from an index" % name
    tags = _WHEEL.findall((_bytes(os.path.join(folder, "WHEEL")) or b"").decode("utf-8", "replace"))
    return {"name": project, "version": said.get("Version"), "tags": tags}


def _bytes(path):
    try:
        return host_tree.read_file(path)
    except OSError:
        return None
