"""One apt transaction a host: what every part of a plan asks of apt, put together.

Pure. Each part (driver, CUDA, …) hands in an AptPart; ``combine`` makes of them the ``apt`` section of the plan's spec,
which roles/host_packages carries out, and the steps that people read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from provision.errors import Issue
from provision.facts import Facts, Source
from provision.inventory.proxy import HostProxy
from provision.parts.plan import Reboot, Step


@dataclass
class AptPart:
    """What one part of a plan asks of apt.

    repositories: SourceSpecs of apt.query with the words of their reason; absent: names of our repositories that are no longer
    wanted; omitted: entries of the host's sources that our
    own file replaces; old_keys: keyrings that apt trusts for every repository and that an old key goes from;
    preferences: stanzas of our file; unattended: patterns that unattended-upgrades must leave alone; before: packages that
    need a transaction of their own first;
    family: upstream version at which every driver package must end; hold, release: what becomes of the driver's holds;
    extra_hold, extra_release: exact names besides the driver's.
    """

    repositories: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    omitted: list[Source] = field(default_factory=list)
    old_keys: list[str] = field(default_factory=list)
    preferences: str | None = None
    preferences_because: str = ""
    unattended: list[str] = field(default_factory=list)
    unattended_because: str = ""
    before_install: list[str] = field(default_factory=list)
    before_remove: list[str] = field(default_factory=list)
    install: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    family: str | None = None
    hold: bool = False
    release: bool = False
    extra_hold: list[str] = field(default_factory=list)
    extra_release: list[str] = field(default_factory=list)


def kept(facts: Facts, patterns: Sequence[str]) -> AptPart | None:
    """What our file keeps unattended-upgrades away from for a role that this plan is not about: it stays so.

    patterns: that role's. They count as kept where what apt reads covers all of them.
    """
    have = facts.apt.blacklist
    covered = all(any(pattern.startswith(one) for one in have) for pattern in patterns)
    return AptPart(unattended=list(patterns)) if covered and apt_files.UNATTENDED in facts.own_files else None


@dataclass
class PartPlan:
    """What has to change for one part of a host.

    spec: for the part's role, field by field; apt: what is asked of apt; steps and reboot: for people; summary: a few words
    for the host's headline; reloads: systemd will read its units again;
    lost_at_reload: what that breaks, whoever causes it.
    """

    spec: dict[str, Any]
    apt: AptPart | None
    steps: list[Step]
    summary: str = ""
    reboot: Reboot | None = None
    reloads: bool = False
    lost_at_reload: Issue | None = None


def combine(
    parts: Sequence[AptPart],
    facts: Facts,
    steps: Sequence[Step],
    lock_timeout: int,
    proxy: HostProxy = HostProxy(),  # noqa: B008 - frozen
    alone: bool = False,
) -> tuple[dict[str, Any] | None, Step | None]:
    """Return (spec for apt_transaction, the step "configure apt"); None where nothing is to be done.

    steps: of the parts; holds and packages among them need the transaction. proxy: the host's, which it gets although no
    part asks anything. alone: apt is to read our own sources and no others (a mirror has everything).
    """
    configure, step = _configure(parts, facts, proxy)
    moves = any(part.install or part.remove or part.before_install for part in parts)
    if configure is None and not moves and not any(step.id in ("packages", "hold") for step in steps):
        return None, None
    spec: dict[str, Any] = {
        "configure": configure,
        "before": {
            "install": _union(part.before_install for part in parts),
            "remove": _union(part.before_remove for part in parts),
        },
        "install": _union(part.install for part in parts),
        "remove": _union(part.remove for part in parts),
        "family_version": next((part.family for part in parts if part.family), None),
        "hold": any(part.hold for part in parts),
        "release": any(part.release for part in parts),
        "extra_hold": _union(part.extra_hold for part in parts),
        "extra_release": _union(part.extra_release for part in parts),
        "update_cache": moves,
        "lock_timeout": lock_timeout,
        "environment": proxy.environment,
        "alone": alone,
        "expect": [],
    }
    return spec, step


def _configure(parts: Sequence[AptPart], facts: Facts, proxy: HostProxy) -> tuple[dict[str, Any] | None, Step | None]:
    """Our files of apt's configuration, where one of them is not as it should be."""
    details: list[str] = []
    because: list[str] = []
    have = facts.own_files
    repositories = {spec["name"]: (spec, why) for part in parts for spec, why in part.repositories}
    for spec, why in repositories.values():
        path = apt_files.sources_path(spec["name"])
        texts = [
            apt_files.render_sources(
                spec["name"], spec["uris"], spec["suites"], spec["components"], armored, spec.get("signed_by")
            )
            for armored in (True, False)
        ]
        if have.get(path) not in {apt_files.sha256(text) for text in texts}:
            details.append(f"write {path} for {spec['uris']}")
            because.append(why)
    absent = [name for name in _union(part.absent for part in parts) if apt_files.sources_path(name) in have]
    for name in absent:
        details.append(f"remove {apt_files.sources_path(name)}")
        because.append("the inventory no longer names it")
    omitted = {(entry.file, entry.line): entry for part in parts for entry in part.omitted}
    for entry in omitted.values():
        details.append(f"remove the entry from {entry.file}" + (f" line {entry.line}" if entry.line else ""))
        because.append("a repository has exactly one entry: others conflict with its Signed-By")
    for path in _union(part.old_keys for part in parts):
        details.append(f"remove the repository's key from {path}")
        because.append("gpu-provision's entry names its key: apt need not trust it for every repository")
    pinned = [part for part in parts if part.preferences]
    preferences = "\n".join(dict.fromkeys(str(part.preferences) for part in pinned)) or None
    if preferences and have.get(apt_files.PREFERENCES) != apt_files.sha256(preferences):
        details.append(f"write {apt_files.PREFERENCES}")
        because += [part.preferences_because for part in pinned]
    patterns = _union((part.unattended for part in parts), in_order=True)
    # They match from the start of a name: one that begins with another adds nothing.
    patterns = [one for one in patterns if not any(one != other and one.startswith(other) for other in patterns)]
    reasons = [part.unattended_because for part in parts if part.unattended_because]
    if patterns:
        if have.get(apt_files.UNATTENDED) != apt_files.sha256(apt_files.render_unattended(patterns)):
            details.append(f"write {apt_files.UNATTENDED}")
            because += reasons[:1]
    elif parts and apt_files.UNATTENDED in have:
        details.append(f"remove {apt_files.UNATTENDED}")
        because += reasons[:1]
    text = proxy.apt_text(_uris(facts, repositories, omitted))
    if text and have.get(apt_files.PROXY) != apt_files.sha256(text):
        details.append(f"write {apt_files.PROXY}: {proxy.address}")
        because.append("apt fetches through the proxy of the inventory (gpu_proxy_http, gpu_proxy_https)")
    elif not text and apt_files.PROXY in have:
        details.append(f"remove {apt_files.PROXY}")
        because.append("the inventory names no proxy")
    if not details:
        return None, None
    files = {
        "repositories": [
            *(spec for spec, _ in repositories.values()),
            *({"name": name, "uris": "", "state": "absent"} for name in absent),
        ],
        "preferences": preferences,
        # Without a part nobody knows what belongs there: it stays.
        "unattended_blacklist": patterns if parts else None,
        "proxy": text,
    }
    step = Step(
        id="sources",
        part="apt",
        title="configure apt",
        because="; ".join(dict.fromkeys(filter(None, because))),
        details=details,
        what="apt",
        value="; ".join(one for one in details if not one.startswith("write ")),
    )
    return files, step


def _uris(
    facts: Facts, repositories: Mapping[str, tuple[dict[str, Any], str]], omitted: Collection[tuple[str, int | None]]
) -> list[str]:
    """Of the repositories that the host will have: the same before and after the change."""
    theirs = [e for e in facts.apt.sources if e.enabled and (e.file, e.line) not in omitted]
    return [uri for entry in theirs for uri in entry.uris] + [str(spec["uris"]) for spec, _ in repositories.values()]


def _union(lists: Any, in_order: bool = False) -> list[str]:
    """Every item once; sorted, or in the order of the parts."""
    found = list(dict.fromkeys(item for items in lists for item in items))
    return found if in_order else sorted(found)
