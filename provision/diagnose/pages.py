"""The pages of ``findings/``, one a code: all that is said of a cause on every host. Each is read when it is first needed.

A page is Markdown with YAML front matter. Its title, the paragraphs under it and the three sections are what people read, here
and in the terminal; the front matter has what the program goes by.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provision.diagnose.finding import Level
from provision.errors import UsageError
from provision.lib import yaml_reader

FOLDER = Path(__file__).parent / "findings"
# What is mended first where neither ``after`` nor the level says: from what stands in every way to what only annoys.
# {first part of a code: heading in the index}; areas that are not listed come last, by name.
AREAS = {
    "host": "The host itself",
    "disk": "Disks",
    "dpkg": "dpkg",
    "apt": "apt",
    "holds": "Holds",
    "boot": "What boots",
    "secureboot": "Secure Boot",
    "kernel": "Kernel and module",
    "driver": "Driver",
    "nouveau": "nouveau and nova",
    "gpus": "GPUs",
    "fabric": "NVSwitch and fabric manager",
    "mig": "MIG",
    "reboot": "Reboots",
    "desktop": "Desktop and X",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "containers": "Containers",
    "conda": "conda",
    "proxy": "Proxies",
    "shell": "Shells",
}
_SECTIONS = {"## What it breaks": "breaks", "## The smallest repair": "repair", "## What prevents it": "prevent"}


class Page(BaseModel):
    """One cause that can be named. code: stable, ``area.what``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    code: str
    level: Level
    # the cause in a few words: "the loaded module is older than the driver on the disk"
    title: str = Field(min_length=1)
    # how it comes about: paragraphs of plain Markdown
    explain: str = Field(min_length=40)
    breaks: str = Field(min_length=1)
    # the smallest repair in general words
    repair: str = Field(min_length=1)
    prevent: str = ""
    reboot: bool = False
    # no rule looks for it: it happens to people and programs, and is known by its texts
    only_text: bool = False
    # it says that something does not work, never why: of a text, causes go before it
    messenger: bool = False
    # regular expressions over what people paste (``--text``), tried without case
    texts: tuple[str, ...] = ()
    # codes that have to be mended before this one
    after: tuple[str, ...] = ()
    # codes that explain this finding where they are found on the same host too; it is folded under the first of them
    symptom_of: tuple[str, ...] = ()
    # codes that it is folded under too, since their repair mends it; it does not follow from them
    beside: tuple[str, ...] = ()
    # where the rule is taken from
    sources: tuple[str, ...] = ()


@cache
def codes() -> tuple[str, ...]:
    """Return the codes of all pages, in the order of AREAS."""
    return tuple(sorted((path.stem for path in FOLDER.glob("*.md")), key=lambda code: (area_rank(code), code)))


@cache
def page(code: str) -> Page:
    """Return the page of a code; ValueError, with file and key, where it is missing or not as it should be."""
    path = FOLDER / f"{code}.md"
    try:
        found = Page.model_validate({"code": code, **_read(path.read_text(encoding="utf-8"))})
    except FileNotFoundError:
        raise ValueError(f"{path}: no such page") from None
    except (ValidationError, yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    for key in ("after", "symptom_of", "beside"):
        unknown = [other for other in getattr(found, key) if other not in codes() or other == code]
        if unknown:
            raise ValueError(f"{path}: {key}: no other code is {', '.join(unknown)}")
    return found


def _read(text: str) -> dict[str, Any]:
    parts = re.match(r"---\n(.*?)^---\n(.*)", text, re.MULTILINE | re.DOTALL)
    if not parts:
        raise ValueError("no front matter")
    values: dict[str, Any] = yaml_reader.load(parts[1])
    for section in re.split(r"^(?=##? )", parts[2], flags=re.MULTILINE)[1:]:
        heading, *paragraphs = (" ".join(part.split("\n")) for part in section.strip().split("\n\n"))
        prose = "\n\n".join(paragraphs)
        values |= (
            {"title": heading[2:], "explain": prose}
            if heading.startswith("# ")
            else {_SECTIONS.get(heading, heading): prose}
        )
    return values


@cache
def all_pages() -> tuple[Page, ...]:
    """Return all pages, in the order of AREAS."""
    return tuple(page(code) for code in codes())


def area(code: str) -> str:
    """``driver`` of ``driver.stale_module``."""
    return code.split(".")[0]


def area_rank(code: str) -> tuple[int, str]:
    """Sort key of a code: its area's place in AREAS."""
    name = area(code)
    return (list(AREAS).index(name) if name in AREAS else len(AREAS), name)


def page_named(code: str) -> Page:
    """Return the page of a code as people type it; UsageError (exit 64) that names the nearest codes."""
    wanted = code.strip().lower()
    if wanted in codes():
        return page(wanted)
    areas = sorted({area(name) for name in codes()})
    of_area = [name for name in codes() if area(name) == wanted.rstrip(".*")]
    nearest = of_area or difflib.get_close_matches(wanted, codes(), n=3, cutoff=0.6)
    nearest = nearest or [name for name in codes() if len(wanted) > 3 and wanted in name][:5]
    raise UsageError(
        "diagnose.unknown_code",
        f"no such code: {code}" if wanted else "no code was given",
        hint=f"{'its codes are' if of_area else 'did you mean'} {', '.join(nearest)}{'' if of_area else '?'}"
        if nearest
        else f"an area lists its codes: --explain {areas[0]} ({', '.join(areas)}); --text finds one by its error",
    )
