"""Proxies: each layer has its own, and one that was forgotten looks like a network that is down."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.candidates import apt
from provision.diagnose.checks import user
from provision.diagnose.rule import Case, Found, rule


def _apt(case: Case, kind: str) -> list[tuple[str, str]]:
    """[(value, file)] of apt's proxies for http or https, those of single hosts too; DIRECT is none."""
    name = f"acquire::{kind}::proxy"
    return [
        (row.value, row.file)
        for row in apt(case).settings
        if (row.name == name or row.name.startswith(name + "::")) and row.value.upper() != "DIRECT"
    ]


def _settled(case: Case) -> bool:
    """The inventory gives the proxy, and the roles hand it to every layer."""
    return bool(case.values.get("gpu_proxy_http") or case.values.get("gpu_proxy_https"))


@rule("proxy.layer_missing")
def _layers(case: Case) -> Iterator[Found]:
    diagnostics = user(case)
    everybody = [row for row in diagnostics.proxies if row.layer == "everybody"]
    users = [row for row in diagnostics.proxies if row.layer == "user"]
    http, https = _apt(case, "http"), _apt(case, "https")
    encrypted = [
        uri
        for source in case.facts.apt.sources
        if source.enabled
        for uri in source.uris
        if uri.lower().startswith("https:")
    ]
    by_hand = "set gpu_proxy_http and gpu_proxy_https in the inventory, or the proxy in that layer's own file"
    repair = (
        queries.apply("configure the inventory's proxy in every layer", "driver")
        if _settled(case)
        else queries.manual(by_hand)
    )
    lines = [f"{row.file}: {row.kind} through {row.value}" for row in everybody + users]
    lines += [
        f"{file}: apt, {kind} through {value}"
        for kind, rows in (("http", http), ("https", https))
        for value, file in rows
    ]
    # A cache of packages for one host or for http alone is no way out of the house.
    general = [row for row in http if not _is_cache(row[0])]
    wanted = encrypted or [row.file for row in everybody + users]
    if general and not https and wanted:
        yield Found(
            f"apt has a proxy for http ({general[0][0]}) and none for https, which then goes through the same one",
            [*lines, *(f"https: {uri}" for uri in encrypted[:3])],
            repair,
            # apt falls back to it (tried with 2.6), and most proxies let TLS through.
            level="note",
        )
    kinds = {row.kind for row in everybody}
    if "http" in kinds and not kinds & {"https", "all"}:
        row = everybody[0]
        yield Found(f"{row.file} sets http_proxy ({row.value}) and no https_proxy", lines, repair)
    if users and not everybody and not https:
        kept = "" if diagnostics.sudo_keeps_proxy else "; sudo does not hand it on"
        yield Found(
            f"only {users[0].file} knows the proxy ({users[0].value}): {'' if http else 'apt, '}docker and services do not{kept}",
            [*lines, f"apt.conf.d: no proxy{' for https' if http else ''}", "/etc/environment: no proxy"],
            repair,
        )


def _is_cache(value: str) -> bool:
    """apt-cacher-ng and its like: a port that is theirs by custom; they pass no https on, and nobody expects it."""
    return value.rpartition(":")[2] in ("3142", "9999")


@rule("proxy.docker_missing")
def _docker(case: Case) -> Iterator[Found]:
    docker, diagnostics = case.facts.containers.docker, user(case)
    if (
        not docker.engine
        or "proxies" in docker.file.keys
        or docker.proxy_elsewhere
        or (docker.info and any(docker.info.proxy.get(k) for k in ("http", "https")))
    ):
        return
    if any(row.layer == "docker" for row in diagnostics.proxies) or any(
        flag.key in ("http-proxy", "https-proxy") for flag in docker.flags
    ):
        return
    others = [
        f"{row.file}: {row.kind} through {row.value}"
        for row in diagnostics.proxies
        if row.layer in ("everybody", "user")
    ]
    # A proxy of apt's for http alone may be a cache of packages.
    others += [f"{file}: apt, https through {value}" for value, file in _apt(case, "https")]
    if others:
        yield Found(
            "dockerd has no proxy, and this host uses one",
            [*others, "/etc/systemd/system/docker.service.d: no proxy"],
            queries.apply("write dockerd's drop-in", "containers")
            if _settled(case)
            else queries.manual(
                "a drop-in /etc/systemd/system/docker.service.d/http-proxy.conf, then daemon-reload and restart; "
                "or gpu_proxy_https"
            ),
        )
