"""mirror for people: what is in it, what was new, and how hosts use it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from provision.commands.mirror import MirrorDocument
from provision.render.base import Text, indented, text
from provision.render.text import plural, size


def view(document: MirrorDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what is to be printed of a mirror that was filled or checked."""
    total = f"{plural(document.files, 'file')}, {size(document.total_bytes)}"
    yield text(document.path, f" on {document.where}: {total}", styles=("bold", ""))
    if document.verified:
        bad = len(document.errors)
        yield _line(f"{plural(bad, 'file')} wrong or missing" if bad else "every file is as the manifest says")
        for path in document.extra if verbosity else ():
            yield _line(f"not in the manifest: {path}")
        if document.extra and not verbosity:
            yield _line(f"{plural(len(document.extra), 'file')} that the manifest does not name: --prune removes them")
        return
    for label, group in document.groups.items():
        more = len(group.packages) - group.asked
        yield _line(
            f"Ubuntu {label}: {group.asked} packages of the lock"
            + (f", {more} more that they need" if more > 0 else "")
        )
        for name, version in sorted(group.packages.items()) if verbosity else ():
            yield indented(Text(f"{name} {version}"), 4)
    new = f"{plural(document.fetched, 'file')} new, {size(document.fetched_bytes)}"
    yield _line(new if document.fetched else "nothing had to be fetched")
    if document.removed:
        yield _line(f"{plural(len(document.removed), 'file')} removed: nothing needs them")
    for note in document.notes:
        yield _line(note)
    if document.signed:
        made = ", made now; keep its folder (~/.local/share/gpu-provision/mirror-key) safe" if document.key_made else ""
        yield _line(f"signed by {document.signed}{made}")
    else:
        yield _line("with the originals' signatures")
    yield from _usage(document)


def _usage(document: MirrorDocument) -> Iterable[RenderableType]:
    yield Text("in the inventory of hosts that use it:", style="dim")
    yield _line(f"gpu_mirror_url: file:{document.path}   # or the address at which a web server serves it")
    if document.signed:
        yield _line(f'gpu_mirror_key_fingerprint: "{document.signed}"')


def _line(text: str) -> RenderableType:
    return indented(Text(text), 2)
