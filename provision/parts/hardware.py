"""Hosts by what they are: groups of the same cards, and what can be said of each. Pure functions of facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from provision.catalog import Catalog
from provision.compat import compat
from provision.compat.answer import CompatRequest
from provision.errors import UsageError
from provision.facts import Facts
from provision.parts.decision import DriverConfig
from provision.parts.driver.resolve import resolve_driver

NO_GPU = "without_gpu"
# Names that are longer than what they tell people apart by.
_LEFT_OUT = re.compile(r"\b(?:nvidia|geforce|tesla|quadro|generation|edition)\b", re.I)


@dataclass
class Kind:
    """Hosts with the same cards. cards: as verify expects them ("8x H100 SXM5 80GB"), of most hosts.

    branches, recommended: of the driver, by the catalog; refused: why no driver can be chosen for a host as it is. odd: hosts with
    another number of cards -> theirs.
    """

    name: str
    hosts: list[str]
    cards: str
    # of Ubuntu
    releases: list[str] = field(default_factory=list)
    nvswitch: bool = False
    branches: list[int] = field(default_factory=list)
    recommended: int | None = None
    newest_cuda: str | None = None
    refused: dict[str, str] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)


def kinds(facts: Mapping[str, Facts], catalog: Catalog, taken: Collection[str] = ()) -> list[Kind]:
    """Group hosts by their cards and whether they have a desktop; the largest group first, hosts without a GPU last.

    taken: names that a group cannot have. Names are those of variables, as Ansible asks of groups.
    """
    members: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for host, found in facts.items():
        names = sorted({catalog.gpu_by_id(gpu.device).name for gpu in found.gpus})
        members.setdefault((tuple(names), bool(names) and bool(found.desktop)), []).append(host)
    order = sorted(members.items(), key=lambda item: (not item[0][0], -len(item[1]), item[0]))
    made: list[Kind] = []
    for (cards, desktop), hosts in order:
        name = group_name(cards, desktop, {*taken, *facts, *(kind.name for kind in made)})
        made.append(_kind(name, list(cards), {host: facts[host] for host in hosts}, catalog))
    return made


def group_name(cards: Collection[str], desktop: bool, taken: Collection[str]) -> str:
    """``h100_sxm5_80gb``, ``rtx_4090_desktop``, ``v100_pcie_and_rtx_4090``: a name that Ansible takes for a group."""
    parts = [re.sub(r"[^a-z0-9]+", "_", _LEFT_OUT.sub("", card).lower()).strip("_") for card in cards]
    name = "_and_".join(parts) + ("_desktop" if desktop else "") if parts else NO_GPU
    name = name if re.match(r"[a-z_]", name) else f"gpu_{name}"
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def cards_of(facts: Facts, catalog: Catalog) -> str:
    """The cards of a host as gpu_verify_expect writes them: ``2x H100 PCIe + 1x Tesla T4``; empty without any."""
    counts = Counter(catalog.gpu_by_id(gpu.device).name for gpu in facts.gpus)
    return " + ".join(f"{number}x {name}" for name, number in sorted(counts.items()))


def _kind(name: str, cards: list[str], facts: Mapping[str, Facts], catalog: Catalog) -> Kind:
    have = {host: cards_of(found, catalog) for host, found in facts.items()}
    usual = Counter(have.values()).most_common(1)[0][0]
    kind = Kind(name, list(facts), usual, odd={host: own for host, own in have.items() if own != usual})
    kind.releases = sorted({found.host.os.version_id for found in facts.values()})
    kind.nvswitch = any(found.nvswitches or found.nvlink5_switch for found in facts.values())
    for host, found in facts.items():
        decision = resolve_driver(DriverConfig(), found, catalog, {})
        if decision.blockers:
            kind.refused[host] = decision.blockers[0].message
    if cards:
        _ask_catalog(kind, cards, catalog)
    return kind


def _ask_catalog(kind: Kind, cards: list[str], catalog: Catalog) -> None:
    """Which branches drive all of these cards: on the one Ubuntu of the group, on any where there are several."""
    try:
        answer = compat(
            CompatRequest(gpu=tuple(cards), ubuntu=kind.releases[0] if len(kind.releases) == 1 else None), catalog
        )
    except UsageError:
        # an Ubuntu or a card that the catalog does not know: nothing is said of it
        return
    if answer.fits:
        kind.branches, kind.recommended = answer.driver.branches, answer.driver.recommended
        # of those that run on the recommended branch
        kind.newest_cuda = answer.cuda.chosen
