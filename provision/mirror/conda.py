"""Conda's part of a mirror: installers, channels with only what the hosts have, and indexes of their wheels. Pure.

Channels' indexes are not signed by anybody. What is in them comes from an address that the inventory names, never from one that
only a host does, and has the sha256 that conda noted on a verified host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote, urlsplit

from provision.inventory import mirror_layout

FILES = f"{mirror_layout.CONDA}/wheels"
_MACHINES = {"amd64": "linux-64", "arm64": "linux-aarch64"}
# Of a record, what is of the installation and not of the index.
_NOT_INDEX = ("url", "fn", "channel")


@dataclass
class Channels:
    """files: what to fetch; records: (channel, subdir) -> file name -> its row of the index; problems: what cannot be kept."""

    files: list[dict[str, Any]] = field(default_factory=list)
    records: dict[tuple[str, str], dict[str, dict[str, Any]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def channels(packages: Iterable[Mapping[str, Any]], alias: str, named: Iterable[str], arch: str) -> Channels:
    """Return what a mirror holds of channels.

    packages: records of conda-meta; alias: address before names of channels on these hosts, empty for conda's own; named:
    channels that the inventory asks for, which must be there although nothing came from them; arch: dpkg's name.
    """
    found = Channels()
    for name in named:
        if "://" not in name and name != "defaults":
            for subdir in (_MACHINES.get(arch, "linux-64"), "noarch"):
                found.records.setdefault((name, subdir), {})
    bases = [base.rstrip("/") + "/" for base in (alias, *named) if "://" in base]
    for record in packages:
        url = str(record["url"])
        place = channel_of(url, alias)
        if not record.get("sha256") or place is None or not _is_of(record, place):
            found.problems.append(
                f"{record['name']} {record['version']}: its record has no sha256, an odd address, or that of another package"
            )
            continue
        if not url.startswith(tuple(bases)):
            found.problems.append(
                f"{record['name']} {record['version']}: {_server(url)} is named by a host alone: if it is the right one, set "
                f"miniconda_channel_alias to the address before the channels' names"
            )
            continue
        channel, subdir, file = place
        rows = found.records.setdefault((channel, subdir), {})
        found.records.setdefault((channel, "noarch"), {})
        if file not in rows:
            rows[file] = {name: value for name, value in record.items() if name not in _NOT_INDEX}
            found.files.append(
                {
                    "path": f"{mirror_layout.CONDA}/{channel}/{subdir}/{file}",
                    "url": record["url"],
                    "sha256": record["sha256"],
                    "size": record.get("size"),
                }
            )
    return found


def channel_of(url: str, alias: str) -> tuple[str, str, str] | None:
    """(channel, subdir, file) of a package's address: (conda-forge, linux-64, numpy-2.1.0-py312_0.conda)."""
    base = alias.rstrip("/") + "/" if alias else ""
    rest = url[len(base) :] if base and url.startswith(base) else urlsplit(url).path.lstrip("/")
    parts = rest.split("/")
    if parts[0] == "t" and len(parts) > 4:
        # /t/TOKEN/ of a private channel
        parts = parts[2:]
    plain = all(re.fullmatch(r"(?!\.)[A-Za-z0-9._+=!~-]+", part) for part in parts)
    return ("/".join(parts[:-2]), parts[-2], parts[-1]) if len(parts) >= 3 and plain else None


def _is_of(record: Mapping[str, Any], place: tuple[str, str, str]) -> bool:
    """Whether the file is that of the package that the record names: the record comes from a host."""
    stem = "-".join(str(record.get(name)) for name in ("name", "version", "build"))
    return place[2] in (f"{stem}.conda", f"{stem}.tar.bz2") and record.get("subdir") in (None, place[1])


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}"


def repodata(subdir: str, rows: Mapping[str, Mapping[str, Any]], present: str | None) -> str:
    """Text of repodata.json: rows, and what already exists (present: the text of before)."""
    before = json.loads(present) if present else {}
    found: dict[str, Any] = {
        "info": {"subdir": subdir},
        "packages": dict(before.get("packages", {})),
        "packages.conda": dict(before.get("packages.conda", {})),
        "removed": [],
        "repodata_version": 1,
    }
    for file, record in rows.items():
        found["packages.conda" if file.endswith(".conda") else "packages"][file] = dict(record)
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def tags(wheels: Iterable[Mapping[str, Any]]) -> list[str]:
    """CUDA tags that versions tell: torch 2.6.0+cu124 gives cu124."""
    found = {str(wheel["version"]).partition("+")[2] for wheel in wheels}
    return sorted(tag for tag in found if tag)


def indexes(files: Mapping[str, str], every_tag: Iterable[str]) -> dict[str, str]:
    """Pages of the wheel indexes. files: path in the mirror -> sha256; every_tag: of PyTorch's, each an index with all wheels.

    pip is given one index alone for PyTorch's wheels, so what they need has to be there too.
    """
    projects: dict[str, list[str]] = {}
    for path in sorted(files):
        if path.startswith(FILES + "/"):
            name = path.rpartition("/")[2]
            project = name.split("-")[0].lower().replace("_", "-").replace(".", "-")
            projects.setdefault(project, []).append(name)
    pages = {}
    for root in (mirror_layout.SIMPLE, *(f"{mirror_layout.WHEELS}/{tag}" for tag in every_tag)):
        up = "../" * (root.count("/") + 1)
        pages[f"{root}/index.html"] = _page([(f"{project}/", project) for project in sorted(projects)])
        for project, names in projects.items():
            links = [
                (f"{up}{FILES.partition('/')[2]}/{quote(name)}#sha256={files[f'{FILES}/{name}']}", name)
                for name in names
            ]
            pages[f"{root}/{project}/index.html"] = _page(links)
    return pages


def _page(links: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<a href="{escape(href)}">{escape(text)}</a><br>\n' for href, text in links)
    return f"<!DOCTYPE html>\n<html><body>\n{rows}</body></html>\n"
