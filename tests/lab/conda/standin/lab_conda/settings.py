"""What .condarc files say, and which channels count."""

from __future__ import annotations

import os
import re

from .failure import Failure
from .prefix import root

DEFAULTS = ["https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"]


def read_rc(path):
    """Top-level keys of a .condarc, written as this stand-in and gpu-provision write them."""
    found, key = {}, None
    if not os.path.isfile(path):
        return found
    with open(path) as file:
        for line in file:
            line = line.split(" #")[0].rstrip()
            if not line or line.startswith("#"):
                continue
            item = re.match(r"\s*-\s*(.+)$", line)
            if item and key:
                found[key] = (found[key] if isinstance(found[key], list) else []) + [item.group(1).strip("\"'")]
                continue
            key, _, value = line.partition(":")
            value = value.strip().strip("\"'")
            found[key] = [] if value in ("", "[]") else {"true": True, "false": False}.get(value.lower(), value)
    return found


def rc_paths():
    return [
        "/etc/conda/.condarc",
        os.path.join(root(), ".condarc"),
        os.path.expanduser("~/.conda/.condarc"),
        os.path.expanduser("~/.condarc"),
    ]


def config():
    """What counts, from all files; channels of later files come first, as in conda."""
    found = {}
    for path in rc_paths():
        for key, value in read_rc(path).items():
            found[key] = value + [v for v in found.get(key, []) if v not in value] if isinstance(value, list) else value
    return found


def write_rc(path, values):
    lines = []
    for key, value in values.items():
        if isinstance(value, list):
            lines += [key + ":"] + ["  - " + item for item in value] if value else [key + ": []"]
        else:
            lines.append("%s: %s" % (key, str(value).lower() if isinstance(value, bool) else value))
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def channel_urls(names):
    """URLs of channels by name, with defaults written out and channel_alias put before bare names."""
    settings, urls = config(), []
    for name in names:
        if name == "defaults":
            urls += channel_urls(settings.get("default_channels") or DEFAULTS)
        elif "://" in name or name.startswith("/"):
            urls.append(("file://" + name if name.startswith("/") else name).rstrip("/"))
        else:
            alias = settings.get("channel_alias") or "https://conda.anaconda.org"
            urls.append(alias.rstrip("/") + "/" + name)
    return urls


def chosen_channels(args):
    names = list(args.channel or [])
    if not args.override_channels:
        names += config().get("channels") or ["defaults"]
    elif not names:
        raise Failure(
            "ArgumentError: At least one -c / --channel flag must be supplied when using --override-channels."
        )
    return channel_urls(names)
