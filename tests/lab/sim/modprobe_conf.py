"""Blacklists as modprobe reads them."""

from __future__ import annotations

import glob
import os

FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")


def blacklisted():
    """Names that modprobe.d keeps from being loaded by alias: ``blacklist X``, ``install X /bin/false``, ``alias X off``.

    A file in an earlier folder covers one of the same name in a later folder (man modprobe.d).
    """
    files = {}
    for folder in FOLDERS:
        for path in glob.glob(folder + "/*.conf"):
            files.setdefault(os.path.basename(path), path)
    names = set()
    for path in files.values():
        with open(path) as handle:
            for line in handle:
                words = line.split("#")[0].split()
                if (
                    len(words) >= 2
                    and words[0] == "blacklist"
                    or len(words) >= 3
                    and words[0] == "install"
                    and words[2] in ("/bin/false", "/bin/true", "/usr/bin/false", "/usr/bin/true")
                    or len(words) >= 3
                    and words[0] == "alias"
                    and words[2] == "off"
                ):
                    names.add(words[1].replace("-", "_"))
    return sorted(names)
