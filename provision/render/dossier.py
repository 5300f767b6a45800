"""The dossier of a host as Markdown, which is read as it is; and what the command prints of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from provision.commands.dossier import DossierCard, DossierDocument
from provision.render.base import Text, indented
from provision.render.plan_markdown import plain, table
from provision.render.text import clean, plural

_UNITS = {
    "gflops": "GFLOP/s",
    "memory_gb_per_s": "memory, GB/s",
    "host_to_card_gb_per_s": "host to card, GB/s",
    "card_to_host_gb_per_s": "card to host, GB/s",
}


def view(document: DossierDocument) -> Iterable[RenderableType]:
    """Return what to print: the cards against which something stands."""
    for card in document.cards:
        if card.sick:
            yield Text(f"{card.name or 'card'} at {card.bus_id}", style="bold")
            for line in [*(f"to be replaced: {rule}" for rule in card.rules), *card.findings]:
                yield indented(Text(line), 2)
    if document.findings:
        yield Text("machine", style="bold")
        yield from (indented(Text(line), 2) for line in document.findings)
    sick = sum(card.sick for card in document.cards)
    yield Text(f"dossier: {plural(len(document.cards), 'card')}, {sick} with something against it", style="bold")
    if document.path:
        yield Text(f"wrote {document.path}")


def markdown(document: DossierDocument) -> str:
    """Return the file."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: DossierDocument) -> Iterator[str]:
    sick = [card for card in document.cards if card.sick]
    what = ", ".join(f"{card.name or 'a card'} at {card.bus_id}" for card in sick) or "no card has anything against it"
    yield from (f"# Dossier of {plain(document.host)}: {plain(what)}", "")
    yield from (f"Made {document.made} by provision dossier" + (", without names." if document.anonymous else "."), "")
    rows = [("system", document.system), ("kernel", document.kernel), ("driver", document.driver)]
    rows += [(key.replace("_", " "), value) for key, value in sorted(document.machine.items())]
    yield from ("## Machine", "")
    yield from table(("", ""), [row for row in rows if row[1]])
    for card in [*sick, *(card for card in document.cards if not card.sick)]:
        yield from _card(card)
    if document.findings:
        yield from ("## What diagnose says of the machine", "", *(f"- {plain(line)}" for line in document.findings), "")
    if document.checks:
        yield from ("## What verify says", "")
        yield from table(("Check", "", ""), [(check.code, check.status, check.message) for check in document.checks])
    if document.log:
        yield from ("## The kernel's log about the driver", "")
        yield from (f"    {clean(line)}" for line in document.log)


def _card(card: DossierCard) -> Iterator[str]:
    yield from (f"## {plain(card.name or 'Card')} at {plain(card.bus_id)}", "")
    rows = [
        ("serial number", card.serial),
        ("UUID", card.uuid),
        ("slot of the board", card.slot),
        ("firmware", card.firmware),
    ]
    if told := [(name, value) for name, value in rows if value]:
        yield from table(("", ""), told)
    for title, lines in (
        ("Rules for a replacement that are met", card.rules),
        ("Findings", card.findings),
        ("Errors in the kernel's log, with NVIDIA's action", card.errors),
        ("Repairs that were tried", card.tried),
    ):
        if lines:
            yield from (f"**{title}**", "", *(f"- {plain(line)}" for line in lines), "")
    if card.counters:
        yield from table(("Counter", ""), list(card.counters.items()))
    if card.numbers:
        titles = (
            "Measured",
            "now",
            f"own median ({plural(card.runs, 'run')})",
            f"median of {plural(card.twins, 'twin')}",
        )
        yield from table(titles, [(_UNITS.get(key, key), *map(_figure, row)) for key, row in card.numbers.items()])


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
