"""The one proxy of a host: what the inventory says, checked, and as each layer takes it.

Pure. ``environment`` is for programs (apt, Python's downloads, conda, pip), ``apt_text`` our file of apt's configuration, by
which apt on the host keeps it. No layer gets a password: environments of tasks are part of command lines, apt's file is
read by everyone.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from provision.errors import UsageError

_ADDRESS = re.compile(r"http://(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]*)|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})/?")
_DIRECT = re.compile(r"\.?[A-Za-z0-9](?:[A-Za-z0-9._-]*)(?:/[0-9]{1,3})?|\[?[0-9A-Fa-f:]+\]?(?:/[0-9]{1,3})?")
# What a host reaches by itself, whatever the inventory says.
_ALWAYS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class HostProxy:
    """The proxy of the inventory. http, https: ``http://HOST:PORT`` or empty; no_proxy: hosts, domains and networks without it."""

    http: str = ""
    https: str = ""
    no_proxy: tuple[str, ...] = ()

    @classmethod
    def from_vars(cls, values: Mapping[str, Any]) -> HostProxy:
        """Return the proxy of role variables. Raises UsageError for what cannot be used, and for a password."""
        http = _address("gpu_proxy_http", str(values.get("gpu_proxy_http") or ""))
        https = _address("gpu_proxy_https", str(values.get("gpu_proxy_https") or ""))
        given = values.get("gpu_proxy_no_proxy") or ()
        items = [given] if isinstance(given, str) else given
        words = [word for item in items for word in re.split(r"[,\s]+", str(item)) if word]
        for word in words:
            if not _DIRECT.fullmatch(word):
                raise UsageError(
                    "usage.no_proxy",
                    f"gpu_proxy_no_proxy: {word!r} is no host, domain or network",
                    hint="write names and addresses: [mirror.example.org, .example.org, 10.0.0.0/8]",
                )
        return cls(http, https, tuple(words))

    def __bool__(self) -> bool:
        return bool(self.http or self.https)

    @property
    def for_https(self) -> str:
        """The proxy of https addresses: that of http, unless it has its own."""
        return self.https or self.http

    @property
    def environment(self) -> dict[str, str]:
        """What programs are given: http_proxy, https_proxy and no_proxy; empty without a proxy."""
        if not self:
            return {}
        found = {"http_proxy": self.http, "https_proxy": self.for_https}
        found["no_proxy"] = ",".join(dict.fromkeys([*_ALWAYS, *self.no_proxy]))
        return {name: value for name, value in found.items() if value}

    @property
    def address(self) -> str:
        """host:port, for people."""
        places = [urlsplit(url).netloc for url in dict.fromkeys(filter(None, (self.http, self.for_https)))]
        return " and ".join(places) if len(places) < 2 else f"{places[0]}, for https {places[1]}"

    def apt_text(self, uris: Iterable[str] = ()) -> str:
        """Return apt's file; empty without a proxy.

        uris: of the repositories that the host will have. apt.conf takes no domains and networks, so hosts among these that
        no_proxy covers are named one by one.
        """
        if not self:
            return ""
        hosts = [word for word in self.no_proxy if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", word)]
        hosts += [host for uri in uris if (host := urlsplit(uri).hostname) and self.covers(host)]
        named = sorted({host.lower() for host in hosts if ":" not in host})
        text: str = apt_files.render_proxy(self.http, self.for_https, named)
        return text

    def covers(self, host: str) -> bool:
        """True when no_proxy names a host, a domain that it is in, or its network."""
        host = host.lower()
        return any(_covers(word.lower().strip("[]"), host) for word in (*_ALWAYS, *self.no_proxy))


def _covers(word: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(word, strict=False)
    except ValueError:
        return host == word.lstrip(".") or host.endswith("." + word.lstrip("."))


def _address(name: str, url: str) -> str:
    """Return ``http://HOST:PORT`` or empty. The value itself is shown only where it cannot hold a password."""
    if not url:
        return ""
    if "@" in url:
        raise UsageError(
            "usage.url_with_password",
            f"{name} must not hold a user or password",
            because=["environments of tasks appear in command lines, and every user of the host can read apt's file"],
            hint="name a proxy that knows hosts by their address, or one nearby that logs in for them (cntlm, squid with "
            "cache_peer login=); apt alone takes them from the host's /etc/apt/auth.conf.d: machine http://HOST:PORT login …",
        )
    found = _ADDRESS.fullmatch(url)
    if found is None or not 0 < int(found["port"]) < 65536:
        scheme = url.partition("://")[0].lower()
        because = []
        if scheme in ("https", "socks4", "socks5", "socks5h"):
            because = [
                f"Python's own downloads (keys, conda's installer) cannot use a proxy that is spoken to by {scheme}"
            ]
        raise UsageError(
            "usage.url",
            f"{name}: {url!r} is not the address of a proxy",
            because=because,
            hint="write it as http://HOST:PORT, for https addresses too: the proxy passes them on unread; the port is needed, "
            "for programs differ in which one they take without",
        )
    return url.rstrip("/")
