"""``python -m tests.attack.kill``: kill runs of provision at chosen moments, run them again, and count what was lost."""

from __future__ import annotations

import argparse
import collections
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from .harness import Harness
from .kinds import KINDS
from .moments import VICTIMS

HEADING = (
    "SIMULATED hosts: ssh, systemd, apt and dpkg are real; GPUs, kernel and packages' contents are stand-ins. A power cut ends\n"
    "every process of a host at once and starts it again; what was written and not yet on the disk is not lost in it."
)


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when nothing was lost, 1 when something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.kill", description=__doc__)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="may be given again; all without it")
    parser.add_argument("--points", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the first one; a point has the next")
    parser.add_argument("--only", metavar="KIND:SEED", help="one point alone")
    parser.add_argument("--victims", default=",".join(VICTIMS))
    parser.add_argument("--batch", type=int, default=4, help="hosts of one command")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="commands at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows; points in it are done")
    parser.add_argument("--evidence", type=Path, metavar="FOLDER", help="keep outputs and logs of lost points")
    parser.add_argument(
        "--report", type=Path, nargs="+", metavar="FILE", help="only count rows that were written before"
    )
    options = parser.parse_args(argv)
    if options.report:
        return report([row for path in options.report for row in read(path)])
    kinds, seeds = options.kind or list(KINDS), range(options.seed, options.seed + options.points)
    batch, jobs = options.batch, options.jobs
    if options.only:
        kind, _, seed = options.only.partition(":")
        kinds, seeds, batch, jobs = [kind], range(int(seed), int(seed) + 1), 1, 1
    # Hosts are stopped too where the harness is ended in the background, where Ctrl-C is not heard.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(HEADING)
    rows = []
    for kind in kinds:
        begun = time.monotonic()
        with Harness(KINDS[kind], batch=batch, jobs=jobs, evidence=options.evidence) as harness:
            marks = ", ".join(f"{name} {at:.1f}" for name, at in harness.timeline.marks)
            say(
                f"\n{kind}: a clean run takes {harness.timeline.seconds:.1f} s: {marks}; {harness.timeline.lines} lines of dpkg"
            )
            done = {row["seed"] for row in read(options.json) if row["kind"] == kind}
            todo = [seed for seed in seeds if seed not in done]
            for row in harness.work(todo, options.victims.split(",")):
                rows.append(row)
                say(line_of(row))
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        say(f"{kind}: {(time.monotonic() - begun) / max(1, len(seeds)):.1f} s for each point, the lab's start included")
    return report(rows)


def read(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a file; none where there is no file yet."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def line_of(row: dict[str, Any]) -> str:
    """One point on one line, and a line for each loss."""
    killed = "; ".join(
        f"{', '.join(names) or 'nothing'} at {at}" for names, at in zip(row["killed"], row["at"], strict=True)
    )
    head = f"{row['kind']}:{row['seed']} {row['victim']} {row['moment']} -> {killed}; {row['seconds']} s"
    return "\n".join([head, *(f"  LOST {name}: {words[:600]}" for name, words in row["lost"].items())])


def report(rows: list[dict[str, Any]]) -> int:
    """Print points tried, with something killed, and lost, for each kind and commit; returns 1 when something was lost."""
    say(f"\n{HEADING}")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    for row in rows:
        groups[row["kind"], row["commit"]].append(row)
    for (kind, commit), there in groups.items():
        killed = [row for row in there if any(row["killed"])]
        lost = [row for row in there if row["lost"]]
        apart = len({row["lead"] for row in there})
        mean = sum(row["seconds"] for row in there) / len(there)
        say(
            f"{kind} at {commit}: {len(there)} points tried in {apart} separate kills, {len(killed)} with something killed, "
            f"{len(lost)} lost; {mean:.1f} s for each"
        )
        by_victim = collections.Counter(row["victim"] for row in killed)
        say("  killed: " + ", ".join(f"{name} {number}" for name, number in sorted(by_victim.items())))
        for note, number in collections.Counter(note for row in there for note in set(row["notes"])).most_common():
            say(f"  note: {note}: {number}")
        for name, number in collections.Counter(name for row in lost for name in row["lost"]).most_common():
            seeds = [f"{row['kind']}:{row['seed']}" for row in lost if name in row["lost"]]
            say(f"  lost: {name}: {number} ({', '.join(seeds[:8])}{', …' if len(seeds) > 8 else ''})")
    return 1 if any(row["lost"] for row in rows) else 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
