"""Drift in the text format of Prometheus, for the textfile collector of its node_exporter. Pure but for ``write``.

Source of the format: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4; of the collector's rules:
node_exporter's README (files *.prom, no time stamps on samples, written in one step).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from provision.drift.item import Item
from provision.lib import files
from provision.lib.clean import clean

_PREFIX = "gpu_provision_drift"
_AGAINST = ("inventory", "lock", "peers", "hardware")
_HINT = "name a file in the folder of node_exporter's --collector.textfile.directory, ending in .prom"
Labels = Mapping[str, str]


def render(hosts: Mapping[str, tuple[str, str | None, Sequence[Item]]], now: float, seconds: float) -> str:
    """Return the metrics of a fleet.

    hosts: name -> (status, group of the lock or None, items); status clean, drifted, unreachable or failed. now: Unix time
    of the look, seconds: how long it took.
    """
    read = {name: row for name, row in hosts.items() if row[0] in ("clean", "drifted")}
    lines = _family(
        "host_up",
        "Whether the host could be read (1) or not (0).",
        (({"host": name}, int(name in read)) for name in hosts),
    )
    lines += _family(
        "host_drifted",
        "Whether the host drifted (1) or is as it should be (0); hosts that were read.",
        (({"host": name}, int(status == "drifted")) for name, (status, _, _) in read.items()),
    )
    lines += _family(
        "items",
        "Number of differences of a host, by what it was compared with.",
        (
            ({"host": name, "against": against}, sum(item.against == against for item in items))
            for name, (_, _, items) in read.items()
            for against in _AGAINST
        ),
    )
    lines += _family(
        "item_info",
        "One thing that drifted; always 1.",
        (
            ({"host": name, "code": item.code, "what": item.what, "against": item.against}, 1)
            for name, (_, _, items) in read.items()
            for item in items
        ),
    )
    lines += _family(
        "host_info",
        "The group of the lock that a host is compared with; always 1.",
        (({"host": name, "group": group or ""}, 1) for name, (_, group, _) in read.items()),
    )
    lines += _family("last_run_timestamp_seconds", "When the fleet was checked, Unix time.", [({}, now)])
    lines += _family("last_run_duration_seconds", "How long the check of the fleet took.", [({}, round(seconds, 3))])
    return "\n".join(lines) + "\n"


def _family(name: str, help_: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    full = f"{_PREFIX}_{name}"
    return [
        f"# HELP {full} {help_}",
        f"# TYPE {full} gauge",
        *(f"{full}{_labels(labels)} {value}" for labels, value in samples),
    ]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def escaped(text: str) -> str:
    """A label's value as the format writes it: cleaned, with backslash and quote escaped."""
    return clean(text).replace("\\", "\\\\").replace('"', '\\"')


def check(path: Path) -> None:
    """Raise UsageError where the metrics could not be written: before the fleet is looked at, which may take long."""
    files.check_writable(path, _HINT)


def write(text: str, path: Path) -> None:
    """Write metrics in one step, for everybody to read: the collector may look at any moment. Raises UsageError."""
    files.write(path, text, _HINT, mode=0o644)
