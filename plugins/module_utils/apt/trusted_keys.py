# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Keys that apt trusts for every repository (apt-key add of the old instructions), and those files without them.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp

# Source: catalog/data/repositories.yml, keys.container_toolkit: NVIDIA's key of the container repositories, old and new.
CONTAINER_TOOLKIT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
RING, FOLDER = "/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d"
_MOST_FILES, _MOST_BYTES = 64, 1 << 20


class Found(object):
    """A file that trusts one of the keys. rest: its bytes without them, b"" when nothing is left.

    rest is None where that is not certain: a keybox of GnuPG, or an armored file with other keys in it.
    """

    def __init__(self, path, rest):
        self.path, self.rest = path, rest


def find(tree, fingerprints):
    """[Found] of the files that apt trusts for everything and that hold a primary key of these (full fingerprints)."""
    names = [name for name in tree.names(FOLDER) if name.endswith((".gpg", ".asc"))]
    paths = [RING] + ["%s/%s" % (FOLDER, name) for name in names[:_MOST_FILES]]
    found = []
    for path in paths:
        data = tree.read_bytes(path, _MOST_BYTES)
        row = _read_keyring(path, data, fingerprints) if data else None
        if row:
            found.append(row)
    return found


def _read_keyring(path, data, fingerprints):
    try:
        there = openpgp.primaries(data, checked=False)
    except ValueError:
        # A keybox of GnuPG 2.1 holds fingerprints in its records as they are.
        is_there = data[8:12] == b"KBXf" and any(bytes.fromhex(one) in data for one in fingerprints)
        return Found(path, None) if is_there else None
    if not set(there) & set(fingerprints):
        return None
    if set(there) <= set(fingerprints):
        return Found(path, b"")
    return Found(path, None if openpgp.is_armored(data) else openpgp.without(data, fingerprints))
