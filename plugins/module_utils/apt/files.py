# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The files that we own in apt's configuration: where they lie and what is in them.

One renderer for the module that writes them and for the plan that asks whether they are as they should be.
Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import hashlib
import re

PREFERENCES = "/etc/apt/preferences.d/gpu-provision.pref"
UNATTENDED = "/etc/apt/apt.conf.d/52gpu-provision"
# Read last, whatever other files are called (90curtin-aptproxy of Ubuntu's installer, proxy.conf): what the inventory says counts.
PROXY = "/etc/apt/apt.conf.d/zz-gpu-provision-proxy"
HEADER = "written by gpu-provision; changes here are overwritten"


def sources_path(name):
    """Path of the deb822 file of one repository: name is ``cuda`` or ``ppa``."""
    return "/etc/apt/sources.list.d/gpu-provision-%s.sources" % name


def keyring_path(name, armored):
    """Path of the key that Signed-By names; apt wants .asc for armored and .gpg for binary keys."""
    return "/etc/apt/keyrings/gpu-provision-%s.%s" % (name, "asc" if armored else "gpg")


def render_sources(name, uris, suites, components="", armored=True, signed_by=None):
    """Return the deb822 text of one repository. signed_by: path of the keyring; our own key file without it."""
    lines = ["# " + HEADER, "Types: deb", "URIs: " + uris, "Suites: " + suites]
    if components:
        lines.append("Components: " + components)
    lines.append("Signed-By: " + (signed_by or keyring_path(name, armored)))
    return "\n".join(lines) + "\n"


def render_unattended(patterns):
    """Return the apt.conf text that keeps unattended-upgrades away from packages (regular expressions from the start)."""
    lines = ["// " + HEADER, "Unattended-Upgrade::Package-Blacklist {"]
    lines += ['    "%s";' % pattern for pattern in patterns]
    return "\n".join([*lines, "};"]) + "\n"


def unattended_names(data, names):
    """Those of the package names that the apt.conf text (bytes) of render_unattended keeps unattended-upgrades away from."""
    patterns = []
    for text in re.findall(r'^ +"(.+)";$', data.decode("utf-8", "replace"), re.M):
        # a person may have edited the file
        with contextlib.suppress(re.error):
            patterns.append(re.compile(text))
    return [name for name in names if any(pattern.match(name) for pattern in patterns)]


def render_proxy(http, https, direct=()):
    """Return the apt.conf text of a proxy. http, https: its addresses, may be empty; direct: hosts that need none.

    apt.conf knows single hosts only, no domains (apt.conf(5), ``Acquire::http::Proxy::<host>``).
    """
    lines = ["// " + HEADER]
    for scheme, url in (("http", http), ("https", https)):
        if url:
            lines.append('Acquire::%s::Proxy "%s";' % (scheme, url))
            lines += ['Acquire::%s::Proxy::%s "DIRECT";' % (scheme, host) for host in direct]
    return "\n".join(lines) + "\n"


def render_preferences(packages, pin, because):
    """Return an apt preferences text that refuses ``packages`` (globs) from ``pin``."""
    return "Explanation: %s\nExplanation: %s\nPackage: %s\nPin: %s\nPin-Priority: -1\n" % (
        HEADER,
        because,
        " ".join(packages),
        pin,
    )


def sha256(text):
    """Hash of a rendered text, as the probe reports it for the file on the host."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
