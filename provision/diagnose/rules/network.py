"""The way out: without it nothing can be installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, rule


def _away(case: Case) -> list[str]:
    """Enabled entries of apt's that are not on a disk of this host."""
    return [
        f"{source.file}: {uri}"
        for source in case.facts.apt.sources
        if source.enabled
        for uri in source.uris
        if not re.match(r"^(?:file|copy|cdrom):", uri)
    ]


@rule("host.no_network")
def _no_network(case: Case) -> Iterator[Found]:
    diagnostics = queries.boot(case)
    away = _away(case)
    if case.facts.host.container or not away:
        return
    if diagnostics.default_route is False:
        yield Found(
            "no route leads out of this host: apt reaches none of its repositories",
            ["/proc/net/route and ipv6_route: no default route", *away[:3]],
            queries.manual("bring the network up (ip route; networkctl), or give apt a mirror that this host reaches"),
        )
    elif diagnostics.nameservers == []:
        yield Found(
            "no name server is set: names of repositories cannot be looked up",
            ["/etc/resolv.conf: no line nameserver", *away[:3]],
            queries.manual("set a name server (netplan, resolvectl), or use a mirror by its address"),
        )
