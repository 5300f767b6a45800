# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The proxy through which the system's dockerd pulls images: a drop-in of its unit.

dockerd does not see the proxy of a shell, nor apt's; it takes its own from its environment, only when it starts (source:
docker's documentation, "Configure the daemon to use a proxy server").

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags

# Behind http-proxy.conf of docker's documentation, by name: the later one counts.
PATH = "/etc/systemd/system/docker.service.d/zz-gpu-provision-proxy.conf"
# How messages and our mark name it, beside keys of daemon.json.
KEY = "its proxy"
_NAMES = (("HTTP_PROXY", "http"), ("HTTPS_PROXY", "https"), ("NO_PROXY", "no_proxy"))


def render(desired):
    """Text of the drop-in; "" without a proxy. desired: {http, https, no_proxy} of texts without passwords."""
    if not (desired.get("http") or desired.get("https")):
        return ""
    lines = ["# written by gpu-provision", "[Service]"]
    # A percent sign would be a specifier of systemd's, a quote would end the word; neither is in an address.
    lines += ['Environment="%s=%s"' % (name, desired[key]) for name, key in _NAMES if desired.get(key)]
    return "\n".join(lines) + "\n"


def elsewhere(tree, flags, keys):
    """Who else gives dockerd a proxy that goes before a drop-in, as text; "" where nobody does.

    flags: daemonflags.Flags; keys: names at the top of daemon.json.
    """
    if "proxies" in keys:
        return "%s, proxies" % flags.config
    for flag in flags.flags:
        if flag.key in ("http-proxy", "https-proxy", "no-proxy"):
            return "%s, --%s" % (flag.place, flag.key)
    for name, place in daemon_flags.environment_files(tree):
        if name in dict(_NAMES):
            return place
    return ""


def differs(desired, info):
    """True when a running daemon has another proxy than the desired one; info: of docker_api, where passwords are masked."""
    return bool(render(desired)) and any(
        (desired.get(key) or "") != info.get("proxy", {}).get(key, "") for _, key in _NAMES
    )


def of_info(answer):
    """{http, https, no_proxy} of docker's own answer, without user and password."""
    found = {key: str(answer.get(name) or "") for name, key in (("HttpProxy", "http"), ("HttpsProxy", "https"))}
    found = {key: re.sub(r"//[^/@]*@", "//", value) for key, value in found.items()}
    return dict(found, no_proxy=str(answer.get("NoProxy") or ""))
