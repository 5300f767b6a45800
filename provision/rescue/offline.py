"""A file for a host that ssh cannot reach: the steps of rescue in one Python program, for its console.

What the catalog, the lock and the inventory decide is written into it as data (``decisions``); everything else is the code
that the online rescue runs on hosts, packed from plugins/module_utils (rescue.console is its entry). Pure but for
``known_of`` (reads the lock and earlier runs) and for reading our own code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision import __version__
from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.lib.text import one_line
from provision.lock import pin
from provision.parts.desired import Desired
from provision.parts.driver.plan import MODPROBE_PATH, MODPROBE_TEXT
from provision.remote import bundle
from provision.remote.once import once
from provision.runs import history

_ENTRY = "rescue.console"
_HEAD = """\
#!/usr/bin/env python3
# Repairs the NVIDIA driver of {host}, run as root at its console: no ssh and no network are needed.
# Made by gpu-provision {version} on {made} from what the inventory asks of this host.
# The driver: {driver}.
#
#   sudo python3 FILE              reads the host, shows what it found, then asks before each step, the smallest first
#   sudo python3 FILE --look       only reads the host
#   sudo python3 FILE --dry-run    shows what it would do, changes nothing
#   sudo python3 FILE -y           does not ask (it never reboots automatically)
#   sudo python3 FILE --debs DIR   takes packages from a folder with .deb files (a USB stick, a mirror), not the network
#   sudo python3 FILE --series 580 installs the newest of another branch than the inventory asks for
#   sudo python3 FILE --purge      removes every trace of the driver by exact names first, then installs it
#   sudo python3 FILE --undo       goes back to the earlier state, as far as apt still has the packages
#
# A driver that the inventory leaves to others, or that works and came from outside apt, is not changed: then only apt's
# sources, holds, dpkg and the initramfs are repaired. It stops as soon as the driver is correct. The earlier state is kept in
# /var/lib/gpu-provision/snapshots; `provision rescue HOST --undo` goes back to it too, once the host can be reached. Its log is
# /var/log/gpu-provision/offline-*.log, and what apt and dpkg said is in apt-*.log beside it.
# Exit codes: 0 correct, or correct from the next boot on; 1 a step failed; 3 still broken; 5 refused or declined; 64 wrong usage.
#
# Below: a short program that checks this file and starts; what was decided for this host, as JSON; and gpu-provision's own
# code for hosts, packed (one JSON object of file texts, zlib, base64).
"""


@dataclass(frozen=True)
class Known:
    """The driver that is known to be right on a host. packages: exact versions; source: where that comes from, as text."""

    # "580", "580-server"
    series: str = ""
    flavour: str = "auto"
    build: str = "auto"
    channel: str = "auto"
    variant: str = "auto"
    packages: Mapping[str, str] = field(default_factory=dict)
    source: str = ""


def offline_script(host: str, values: Mapping[str, Any], known: Known | None = None, made: str | None = None) -> str:
    """Return the file for a host, in ASCII.

    values: its effective role variables; known: see known_of; made: when, UTC, for its head. Without known packages the
    program takes what the inventory names (nvidia_driver_branch) and else what it finds on the host. Raises UsageError for
    a branch that cannot be one.
    """
    decided = decisions(host, values, known)
    made = made or time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    named = {"host": host, "made": made, "version": __version__, "driver": _driver(decided)}
    head = _HEAD.format(**{name: json.dumps(one_line(text))[1:-1] for name, text in named.items()})
    code = Path(__file__).with_name("_offline_head.py").read_text(encoding="utf-8").partition("\n\n")[2]
    code = code.replace("# IMPORTER\n", bundle.program("_importer").partition("\n\n")[2])
    # A terminal takes no lines of any length.
    data = "".join(f"# {line}\n" for line in json.dumps(decided, indent=1).splitlines())
    body = f"{head}\n{code}\n# --- decisions: JSON ---\n{data}# --- program: JSON, zlib, base64 ---\n{_packed()}"
    return f"{body}# --- sha256 {hashlib.sha256(body.encode('ascii')).hexdigest()} of all lines above\n"


@once
def _packed() -> str:
    """The code for hosts, as lines of comments."""
    texts = {name: bundle.source(name) for name in sorted(bundle.needed(_ENTRY))}
    data = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode("ascii")
    return "".join(f"# {data[at : at + 100]}\n" for at in range(0, len(data), 100))


def _driver(decided: Mapping[str, Any]) -> str:
    """What the program will install, as text."""
    if not decided["managed"]:
        return "left to others (nvidia_driver_manage: false)"
    known = f"the versions of {decided['source']}" if decided["wanted"] else ""
    return known or (
        f"branch {decided['series']}, its newest version" if decided["series"] else "the branch that it finds"
    )


def known_of(host: str, values: Mapping[str, Any], runs: Path | None = None) -> Known | None:
    """What the lock says of a host's driver, else what earlier runs from this machine installed there; None for neither.

    runs: the folder of runs (engine.runs_folder). Raises LockError for a lock that cannot be used.
    """
    found = pin.find(values)
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


def decisions(host: str, values: Mapping[str, Any], known: Known | None = None) -> dict[str, Any]:
    """Return what the program on the host goes by, as plain data: see rescue/console.py and console_packages.py."""
    config = Desired(values).driver
    have = known or Known()
    series = have.series or ("" if config.branch == "recommended" else str(config.branch))
    if series and not driver_names.SERIES.match(series):
        raise UsageError(
            "driver.branch",
            f"no branch of the driver is called {series}",
            host=host,
            hint="nvidia_driver_branch is a number (580), a series (580-server) or recommended",
        )
    channel, flavour = _first(config.channel, have.channel), _first(config.modules, have.flavour)
    return {
        "host": host,
        "managed": config.manage,
        "hold": config.hold,
        "source": have.source,
        "series": series,
        "channel": "ubuntu" if channel == "auto" else channel,
        "build": "dkms" if channel == "cuda" else _first(config.build, have.build),
        "variant": "desktop" if _first(config.variant, have.variant) == "desktop" else "headless",
        # Modules of single kernels are asked for by the kernels that the host has when the program runs.
        "wanted": [
            f"{name}={version}"
            for name, version in sorted(have.packages.items())
            if not getattr(driver_names.parse(name), "kernel", None)
        ],
        "nouveau": [MODPROBE_PATH, MODPROBE_TEXT],
        "flavour": flavour,
        **(_flavours() if flavour == "auto" else {}),
    }


@once
def _flavours() -> dict[str, Any]:
    """The catalog's rule of modules as data: the order of each branch, and ranges of PCI ids that take one flavour alone."""
    catalog = load_catalog()
    listed = [int(device, 16) for device in catalog.gpu_data.devices]
    ranges = [(int(row.first, 16), int(row.last, 16)) for row in catalog.gpu_data.id_ranges]
    ends = {0, 0x10000, int(catalog.architectures.turing_or_newer.first_id, 16)}
    # Between two of these, every id has the same answer.
    ends.update(number for first, last in [*zip(listed, listed, strict=True), *ranges] for number in (first, last + 1))
    alone: dict[str, list[list[int]]] = {"open": [], "proprietary": []}
    for first, end in pairwise(sorted(ends)):
        modules = catalog.gpu_by_id(f"{first:04x}").modules
        if len(modules) == 1:
            rows = alone[modules[0]]
            if rows and rows[-1][1] == first - 1:
                rows[-1][1] = end - 1
            else:
                rows.append([first, end - 1])
    orders = {row.number: " ".join(catalog.flavours((), row.number)) for row in catalog.branches}
    return {"orders": orders, "alone": alone}


def _first(config: str, have: str) -> str:
    """What the inventory asks for goes before what is known."""
    return config if config != "auto" else have
