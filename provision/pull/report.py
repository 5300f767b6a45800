"""What a host that pulls tells: metrics for node_exporter's textfile collector, in the form of provision.drift.metrics."""

from __future__ import annotations

from dataclasses import dataclass

from provision.drift.metrics import escaped

PREFIX = "gpu_provision_pull"
FILE = f"{PREFIX}.prom"
DRIFT_FILE = "gpu_provision_drift.prom"


@dataclass(frozen=True)
class Outcome:
    """One run. code: exit code of provision (0 done, 6 a reboot is needed); drift: of its look afterwards, None without."""

    host: str
    code: int
    # Unix time
    started: float
    seconds: float
    # commit or checksum of the inventory
    state: str = ""
    drift: int | None = None
    # Unix time of the last run that ended well; 0: there was none
    last_success: float = 0.0

    @property
    def well(self) -> bool:
        return self.code in (0, 6)


def render(outcome: Outcome) -> str:
    """Return the metrics of a run."""
    labels = f'{{host="{escaped(outcome.host)}",state="{escaped(outcome.state)}"}}'
    rows: list[tuple[str, str, str, float]] = [
        ("last_run_timestamp_seconds", "When this host last fetched its inventory, Unix time.", "", outcome.started),
        ("last_run_duration_seconds", "How long the run took.", "", round(outcome.seconds, 3)),
        (
            "last_result",
            "Exit code of provision apply: 0 done, 6 a reboot is needed, others are failures.",
            "",
            outcome.code,
        ),
        ("last_success_timestamp_seconds", "When it last ended well, Unix time; 0: never.", "", outcome.last_success),
        ("reboot_needed", "Whether this host waits for a reboot (1) or not (0).", "", int(outcome.code == 6)),
        ("source_info", "The inventory that was applied; always 1.", labels, 1),
    ]
    if outcome.drift in (0, 2):
        rows.append(
            (
                "drifted",
                "Whether anything is not as it should be afterwards (1) or nothing (0).",
                "",
                outcome.drift // 2,
            )
        )
    lines = []
    for name, help_, labels, value in rows:
        full = f"{PREFIX}_{name}"
        lines += [f"# HELP {full} {help_}", f"# TYPE {full} gauge", f"{full}{labels} {value}"]
    return "\n".join(lines) + "\n"
