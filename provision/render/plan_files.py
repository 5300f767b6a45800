"""plan --diff: what is written into files; the same text on several hosts once."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from provision.documents import PlanDocument
from provision.planning.contents import Content, contents
from provision.render.base import Text, indented, text
from provision.render.plan import among, changing


def view(document: PlanDocument) -> Iterator[RenderableType]:
    """Return the files of a plan with their new text. What is there now stays on the host: it is not read back."""
    plans = changing(document)
    hosts: dict[Content, list[str]] = {}
    for name, plan in plans.items():
        for one in contents(plan):
            hosts.setdefault(one, []).append(name)
    for (path, new), names in hosts.items():
        where = "" if len(names) == len(plans) else f"  {among(names, list(plans))}"
        yield text(
            "- " if new is None else "+ ", path, where, styles=("red" if new is None else "green", "bold", "cyan")
        )
        for line in (new or "").splitlines():
            yield indented(Text(line, style="green"), 4)
