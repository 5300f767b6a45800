"""A script for a host that ssh cannot reach: the same steps as rescue, in plain POSIX sh, for its console.

Pure but for ``known_of`` (reads the lock and earlier runs) and the fragments in ``script/``, which are joined here with the
inventory's wish for one host. Names of packages and files come from where the rest of the program has them; nothing of
them is written a second time.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.rescue import traces as rescue_traces
from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.lib.text import one_line
from provision.lock import hold
from provision.parts.desired import Desired
from provision.parts.driver.plan import MODPROBE_PATH, MODPROBE_TEXT
from provision.runs import history

_FRAGMENTS = Path(__file__).with_name("script")
# As names.is_version_locked: companions, and firmware that carries its version in its name, have no part in the one version.
_LOOSE = (
    f"^({'|'.join(sorted(driver_names.COMPANIONS))}|nvidia-driver-pinning-.*|libnvidia-egl-.*|linux-signatures-.*"
    r"|.*-[0-9][0-9][0-9]\.[0-9.]+)$"
)
# Of the driver's version, and no driver without the rest.
_FABRIC = f"^({'|'.join(sorted(driver_names.FABRIC))}|cuda-drivers-fabricmanager)(-[0-9][0-9][0-9])?$"


@dataclass(frozen=True)
class Known:
    """The driver that is known to be right on a host. packages: exact versions; source: where that comes from, in words."""

    # "580", "580-server"
    series: str = ""
    flavour: str = "auto"
    build: str = "auto"
    channel: str = "auto"
    variant: str = "auto"
    packages: Mapping[str, str] = field(default_factory=dict)
    source: str = ""


def offline_script(host: str, values: Mapping[str, Any], known: Known | None = None, made: str | None = None) -> str:
    """Return the script for a host.

    values: its effective role variables; known: see known_of; made: when, UTC, for its head. Without known packages the
    script takes what the inventory names (nvidia_driver_branch) and else what it finds on the host. Raises UsageError for
    a branch that cannot be one.
    """
    made = made or time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    options = " \\\n        ".join(f"-o {shlex.quote(option)}" for option in apt_common.OPTIONS)
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(_FRAGMENTS.glob("*.sh")))
    replaced = {"@HOST@": host, "@MADE@": made, "@APT_OPTIONS@": options, "@SETTINGS@": _settings(host, values, known)}
    for mark, value in replaced.items():
        text = text.replace(mark, value)
    return text


def known_of(host: str, values: Mapping[str, Any], runs: Path | None = None) -> Known | None:
    """What the lock says of a host's driver, else what earlier runs from this machine installed there; None for neither.

    runs: the folder of runs (engine.runs_folder). Raises LockError for a lock that cannot be used.
    """
    found = hold.find(values)
    listed = found[0].for_host(host, found[1]) if found else None
    if listed is not None and listed.group.driver is not None:
        locked = listed.group.driver
        return Known(
            locked.series,
            locked.flavour,
            locked.build,
            locked.channel,
            locked.variant,
            dict(locked.packages),
            f"the lock {listed.path}",
        )
    return _of_history(host, runs) if runs is not None else None


def _of_history(host: str, runs: Path) -> Known | None:
    packages: dict[str, str | None] = {}
    last = ""
    for run in reversed(history.runs(runs)):
        record = run.hosts.get(host)
        if record is None:
            continue
        moved = {name: after for name, _, after in record.packages if driver_names.is_driver_package(name)}
        packages.update(moved)
        last = run.run if moved else last
    there = {name: version for name, version in packages.items() if version}
    return of_packages(there, f"the run {last}") if there else None


def of_packages(packages: Mapping[str, str], source: str) -> Known | None:
    """What installed packages say of a driver; None where they are of no one series."""
    parsed = [driver_names.parse(name) for name in packages]
    series = {package.series for package in parsed if package.base == "nvidia-utils"}
    if len(series) != 1 or None in series:
        return None
    dkms = any(package.base == "nvidia-dkms" for package in parsed)
    modules = [package for package in parsed if package.base in ("nvidia-dkms", "linux-modules-nvidia")]
    flavour = "auto" if not modules else "open" if all(package.open for package in modules) else "proprietary"
    desktop = any(package.base in driver_names.DESKTOP for package in parsed)
    return Known(
        str(series.pop()),
        flavour,
        "dkms" if dkms else "signed" if modules else "auto",
        "auto",
        "desktop" if desktop else "headless",
        dict(packages),
        source,
    )


def _settings(host: str, values: Mapping[str, Any], known: Known | None) -> str:
    """The lines that the script's steps go by."""
    wish = Desired(values).driver
    have = known or Known()
    series = have.series or ("" if wish.branch == "recommended" else str(wish.branch))
    if series and not re.fullmatch(r"[0-9]{3}(-server)?", series):
        raise UsageError(
            "driver.branch",
            f"no branch of the driver is called {series}",
            host=host,
            hint="nvidia_driver_branch is a number (580), a series (580-server) or recommended",
        )
    channel = _first(wish.channel, have.channel)
    build = "dkms" if channel == "cuda" else _first(wish.build, have.build)
    variant = _first(wish.variant, have.variant)
    driver, foreign = driver_names.expressions()
    decided = (_or(channel, "ubuntu"), series), (_or(build, "signed"), _or(variant, "headless"))
    top = {
        flavour: driver_names.top_packages(*decided[0], flavour, *decided[1]) if series else []
        for flavour in ("open", "proprietary")
    }
    # Modules of single kernels are asked for by the kernels that the host has when the script runs.
    wanted = [
        f"{name}={version}"
        for name, version in sorted(have.packages.items())
        if not getattr(driver_names.parse(name), "kernel", None)
    ]
    groups: list[tuple[str, dict[str, str]]] = [
        ("", {"HOST": host, "MANAGED": _yes(wish.manage), "HOLD": _yes(wish.hold)}),
        (
            f"from {have.source}" if known else "",
            {
                "SERIES": series,
                "FLAVOUR": _first(wish.modules, have.flavour),
                "BUILD": build,
                "VARIANT": variant,
                "WANTED": " ".join(wanted),
                "TOP_OPEN": " ".join(top["open"]),
                "TOP_PROPRIETARY": " ".join(top["proprietary"]),
            },
        ),
        (
            "names of the driver's packages, and what is called like them and is none",
            {
                "DRIVER_RE": f"{driver}|{rescue_purge.LEGACY}",
                "FOREIGN_RE": foreign,
                "LOOSE_RE": _LOOSE,
                "FABRIC_RE": _FABRIC,
            },
        ),
        ("open or proprietary: each branch's order, and device numbers that take one alone", _flavours()),
        (
            "what a driver leaves that no package owns",
            {
                "LIBRARY_FOLDERS": " ".join(rescue_traces.LIBRARY_FOLDERS),
                "LIBRARY_RE": rescue_traces.LIBRARY_NAMES,
                "INNER_RE": rescue_traces.INNER_NAMES,
                "MODULE_RE": rescue_traces.MODULE_PATHS,
                "BINARIES": " ".join(sorted(rescue_traces.BINARIES)),
                "UNITS": " ".join(rescue_traces.UNITS),
                "TRACE_FILES": " ".join(rescue_traces.FILES),
                "TRACE_TREES": " ".join(rescue_traces.TREES),
            },
        ),
        (
            "what keeps nouveau away, and what a snapshot holds",
            {
                "NOUVEAU_PATH": MODPROBE_PATH,
                "NOUVEAU_TEXT": MODPROBE_TEXT.rstrip("\n"),
                "SNAPSHOT_FOLDERS": " ".join(rescue_snapshot.FOLDERS),
                "SNAPSHOT_FILES": " ".join(rescue_snapshot.FILES),
            },
        ),
    ]
    lines = []
    for words, group in groups:
        lines += [f"# {one_line(words)}"] if words else []
        lines += [f"{name}={shlex.quote(value)}" for name, value in group.items()]
    return "\n".join(lines)


@lru_cache(maxsize=1)
def _flavours() -> dict[str, str]:
    """The catalog's rule of modules as data: the order of each branch, and ranges of PCI ids that take one flavour alone."""
    catalog = load_catalog()
    orders = [f"{branch.number}:{','.join(catalog.flavours((), branch.number))}" for branch in catalog.branches]
    alone: dict[str, list[list[int]]] = {"open": [], "proprietary": []}
    for number in range(0x10000):
        modules = catalog.gpu_by_id(f"{number:04x}").modules
        if len(modules) == 1:
            ranges = alone[modules[0]]
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
    words = {kind: " ".join(f"{first}-{last}" for first, last in ranges) for kind, ranges in alone.items()}
    return {"FLAVOUR_ORDERS": " ".join(orders), "OPEN_ONLY": words["open"], "PROPRIETARY_ONLY": words["proprietary"]}


def _first(wish: str, have: str) -> str:
    """What the inventory asks for goes before what is known."""
    return wish if wish != "auto" else have


def _or(value: str, default: str) -> str:
    return default if value == "auto" else value


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
