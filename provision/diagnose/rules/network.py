"""The way out: without it nothing can be installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, Rule


def _away(case: Case) -> list[str]:
    """Enabled entries of apt's that are not on a disk of this host."""
    return [
        f"{source.file}: {uri}"
        for source in case.facts.apt.sources
        if source.enabled
        for uri in source.uris
        if not re.match(r"^(?:file|copy|cdrom):", uri)
    ]


def _no_network(case: Case) -> Iterator[Found]:
    trouble = queries.boot(case)
    away = _away(case)
    if case.facts.host.container or not away:
        return
    if trouble.default_route is False:
        yield Found(
            "no route leads out of this host: apt reaches none of its repositories",
            queries.clip(["/proc/net/route and ipv6_route: no default route", *away[:3]]),
            (
                queries.manual(
                    "bring the network up (ip route; networkctl), or give apt a mirror that this host reaches"
                ),
            ),
        )
    elif trouble.nameservers == []:
        yield Found(
            "no name server is set: names of repositories cannot be looked up",
            queries.clip(["/etc/resolv.conf: no line nameserver", *away[:3]]),
            (queries.manual("set a name server (netplan, resolvectl), or use a mirror by its address"),),
        )


RULES = (
    Rule(
        code="host.no_network",
        level="warning",
        title="no way leads out of this host",
        explain=(
            "The host has no default route, or no name server. What is installed goes on working; what a "
            "repair has to fetch cannot "
            "cannot come. A purge that took the modules of the network card along shows so too, and so does a kernel"
            " without them."
        ),
        breaks="every repair that needs packages: repositories are not reached",
        repair="the network first; or a mirror that the host reaches, or a repository on a disk",
        prevent="`provision mirror` puts everything that a lock needs into one folder",
        find=_no_network,
        texts=(
            r"Temporary failure resolving '",
            r"Could not resolve '[^']+'",
            r"Network is unreachable",
            r"Cannot initiate the connection to \S+",
        ),
        sources=("apt's own messages",),
    ),
)
