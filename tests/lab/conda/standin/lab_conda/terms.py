"""Terms of service of channels, kept where conda-anaconda-tos keeps them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time

from .failure import Failure
from .prefix import root
from .settings import chosen_channels


def terms_folder(channel, base):
    location, _, name = re.sub(r"^[a-z]+://", "", channel.rstrip("/")).partition("/")
    return os.path.join(base, hashlib.sha256((location + name).encode()).hexdigest())


def terms_roots():
    return [
        "/etc/conda/tos",
        "/var/lib/conda/tos",
        os.path.join(root(), "conda-meta/tos"),
        os.path.expanduser("~/.config/conda/tos"),
        os.path.expanduser("~/.conda/tos"),
    ]


def accepted(channel):
    for base in terms_roots():
        folder = terms_folder(channel, base)
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            with open(os.path.join(folder, name)) as file:
                if json.load(file).get("tos_accepted"):
                    return True
    return False


def needs_terms(channel):
    return re.match(r"https?://[^/]+(/.*)?/pkgs/(main|r|msys2)$", channel) is not None


def check_terms(channels):
    if os.environ.get("CONDA_PLUGINS_AUTO_ACCEPT_TOS", "").lower() in ("yes", "true", "1", "on"):
        return
    missing = [channel for channel in channels if needs_terms(channel) and not accepted(channel)]
    if missing:
        raise Failure(
            "CondaToSNonInteractiveError: Terms of Service have not been accepted for the following channels. "
            "Please accept or remove them before proceeding:\n%s\n\n"
            "To accept these channels' Terms of Service, run the following commands:\n%s\n\n"
            "For information on safely removing channels from your conda configuration,\n"
            "please see the official documentation:\n"
            "https://www.anaconda.com/docs/tools/working-with-conda/channels"
            % (
                "\n".join("    - " + channel for channel in missing),
                "\n".join("    conda tos accept --override-channels --channel " + channel for channel in missing),
            )
        )


def tos(args):
    base = {
        "site": "/etc/conda/tos",
        "system": os.path.join(root(), "conda-meta/tos"),
        "user": os.path.expanduser("~/.conda/tos"),
    }[args.location or "user"]
    channels = chosen_channels(args)
    for channel in channels:
        if not needs_terms(channel):
            continue
        if args.action == "view":
            print("viewing Terms of Service for %s:\n(stand-in)" % channel)
        elif args.action in ("accept", "reject"):
            folder = terms_folder(channel, base)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "1752537600.0.json"), "w") as file:
                json.dump(
                    {
                        "version": "2025-07-15T00:00:00Z",
                        "text": "(stand-in)",
                        "support": "",
                        "base_url": channel,
                        "tos_accepted": args.action == "accept",
                        "acceptance_timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    },
                    file,
                )
            print("%sed Terms of Service for %s" % (args.action, channel))
        else:
            print("%s  %s" % (channel, "accepted" if accepted(channel) else "-"))
    return 0
