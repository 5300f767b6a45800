# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The proxy of a host as programs take it: three names of the environment, and a text for the way that was taken.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import os
import re
import urllib.error
import urllib.parse

# Lower case: apt and curl read no other for http, and Python and conda take these before upper case.
NAMES = ("http_proxy", "https_proxy", "no_proxy")
# no space, no control character, no user or password
_VALUE = re.compile(r"[A-Za-z0-9._:/,\[\]-]+")


def within(environment):
    """Return a context in which this process and what it starts have the proxy's names; it puts back what was there.

    environment: {one of NAMES: value}; empty or None changes nothing. Raises ValueError for anything else than a proxy.
    """
    environment = dict(environment or {})
    for name, value in environment.items():
        if name not in NAMES or not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError("%s is not one of %s with an address in it" % (name, ", ".join(NAMES)))
    return _within(environment)


@contextlib.contextmanager
def _within(environment):
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def way(url):
    """Say how Python's own downloads reach a URL: the proxy of the environment as host:port, or none."""
    import urllib.request

    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy:
        return "without a proxy (no %s_proxy in the environment)" % parts.scheme
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return "without a proxy (no_proxy names %s)" % parts.hostname
    return "through the proxy " + place(proxy)


def why(error):
    """Say why a download failed, without Python's own spelling (<urlopen error [Errno -2] Name or service not known>)."""
    if isinstance(error, urllib.error.HTTPError):
        return "%d %s" % (error.code, error.reason)
    while isinstance(getattr(error, "reason", None), BaseException):
        error = error.reason
    # An SSLError's reason is a word such as CERTIFICATE_VERIFY_FAILED.
    own = getattr(error, "verify_message", None) or getattr(error, "strerror", None)
    if not own and isinstance(error, urllib.error.URLError):
        own = error.reason
    return re.sub(r"\s+", " ", str(own or error) or type(error).__name__)


def of_environment(environ=None):
    """Say which proxies a program is given that looks for them itself: ``https through the proxy p:3128``."""
    environ = os.environ if environ is None else environ
    found = {scheme: environ.get(scheme + "_proxy") for scheme in ("http", "https")}
    words = ["%s through the proxy %s" % (scheme, place(found[scheme])) for scheme in found if found[scheme]]
    return ", ".join(words) or "without a proxy (no http_proxy or https_proxy in the environment)"


def place(proxy):
    """host:port of a proxy's address, without a user and a password."""
    return proxy.rpartition("://")[2].rpartition("@")[2].split("/")[0]
