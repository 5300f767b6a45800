"""``make bench``: how fast the commands are, each beside its floor in the same run: three rounds, medians and ratios.

Simulated hosts share the processors with the controller, so processor time of the controller and of everything else on the machine
(the hosts, on a quiet one) stands beside wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import provision.collection  # noqa: F401
from provision.lib import yaml_reader
from tests.bench import peers
from tests.lab import Lab
from tests.lab.lab import LabHost
from tests.unit import ownfiles

ROOT = Path(__file__).parents[2]
# A Python whose bytecode no host runs: each gets sources and compiles them, as on a host of another minor release.
_ANOTHER_PYTHON = (
    "import sys; from provision.remote import session; session.MAGIC_NUMBER = b'another'; "
    "from provision.__main__ import main; sys.exit(main())"
)
# What a person does after apt-get for a driver that works now and after the next boot.
_FINISH = "update-initramfs -u -k all && systemctl daemon-reload && modprobe nvidia && systemctl enable --now nvidia-persistenced"
Run = tuple[float, float, float]
# A host as `provision apply` leaves it, baked into the lab's image so that forty of them start in seconds.
CONVERGED = {
    "gpus": ["H100 PCIe"],
    "installed": ["595-server open signed held"],
    "extra": dict(ownfiles.FILES[name] for name in ("modprobe", "persistence", "unattended")),
    "run": [
        "update-initramfs -u -k all",
        "systemctl add-wants multi-user.target nvidia-persistenced.service",
        "apt-mark hold linux-generic linux-image-generic linux-headers-generic",
    ],
}


def _busy() -> float:
    """Processor seconds that this machine has worked since it started (man proc_stat: user, nice, system, irq, softirq)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(ticks[place] for place in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def timed(argv: list[str], expect: int = 0, **options: Any) -> Run:
    """Run a command; return (wall seconds, processor seconds of it and its children, those of all else on this machine)."""
    before, begun, busy = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), _busy()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != expect:
        raise SystemExit(f"{argv} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, own, _busy() - busy - own


def show(
    title: str, ours: list[Run], floor: list[Run], aim: float, processor_aim: float | None = None
) -> dict[str, Any]:
    """Print one comparison; returns its figures."""
    medians = [[statistics.median(run[i] for run in runs) for i in range(3)] for runs in (ours, floor)]
    print(f"\n{title}  ({len(ours)} rounds, medians)")
    for name, (wall, own, rest) in zip(("ours", "floor"), medians, strict=True):
        print(f"  {name:5}  {wall:7.3f} s wall  {own:7.3f} s processor on the controller  {rest:7.3f} s elsewhere")
    ratio, processor = (medians[0][i] / medians[1][i] for i in range(2))
    print(f"  ratio  {ratio:7.2f}  (aim: {aim}){'' if ratio <= aim else '  MISSED'}")
    if processor_aim:
        missed = "" if processor <= processor_aim else "  MISSED"
        print(f"         {processor:7.2f}  of processor time on the controller (aim: {processor_aim}){missed}")
    sys.stdout.flush()
    return {"title": title, "ours": medians[0], "floor": medians[1], "ratio": ratio, "aim": aim, "processor": processor}


def provision(lab: Lab, *words: str) -> list[str]:
    return [sys.executable, "-m", "provision", "-i", str(lab.inventory), *words]


BARE = [sys.executable, str(Path(__file__).parent / "bare_read.py")]


def bare_hosts(lab: Lab, group: dict[str, Any]) -> str:
    """What bare_read.py reads: the hosts of a group of the lab's inventory."""
    own = {
        "user": group["vars"]["ansible_user"],
        "key": str(lab.folder / "key"),
        "known_hosts": str(lab.folder / "known_hosts"),
    }
    return json.dumps([{"address": row["ansible_host"], **own} for row in group["hosts"].values()])


def bench_version(rounds: int) -> list[dict[str, Any]]:
    """Start-up: ``provision --version`` beside ``python3 -c pass``."""
    command = str(Path(sys.executable).parent / "provision")
    ours, floor = [], []
    for _ in range(max(rounds * 7, 20)):
        ours.append(timed([command, "--version"]))
        floor.append(timed([sys.executable, "-c", "pass"]))
    return [show("start-up: provision --version, beside python3 -c pass", ours, floor, 3)]


def bench_plan(rounds: int, count: int) -> list[dict[str, Any]]:
    """``provision plan`` over converged hosts, beside a bare parallel paramiko read of them."""
    with Lab.start([{"name": f"gpu{i:02d}", **CONVERGED} for i in range(1, count + 1)]) as lab:
        hosts = bare_hosts(lab, yaml_reader.load(lab.inventory.read_text())["all"]["children"]["gpu"])
        # caches of both sides are warm for both
        timed(provision(lab, "plan"), cwd=ROOT)
        another = [sys.executable, "-c", _ANOTHER_PYTHON, *provision(lab, "plan")[3:]]
        ours, unlike, floor = [], [], []
        for _ in range(rounds):
            floor.append(timed(BARE, input=hosts))
            ours.append(timed(provision(lab, "plan"), cwd=ROOT))
            unlike.append(timed(another, cwd=ROOT))
        title = f"plan: {count} converged hosts{{}}, beside a bare parallel paramiko read"
        return [
            show(title.format(""), ours, floor, 1.5, 2),
            show(title.format(" of another Python than the controller's"), unlike, floor, 1.5, 2),
        ]


def measured(argv: list[str], expect: int) -> tuple[float, float, float]:
    """Run a command; return (wall seconds, its processor seconds, the most memory that it had, in MiB)."""
    begun = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stderr is not None  # noqa: S101
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expect:
        raise SystemExit(f"{argv} ended with {process.returncode}\n{said.decode()[-3000:]}")
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def bench_drift(rounds: int, count: int) -> list[dict[str, Any]]:
    """``provision drift`` of many hosts beside half as many: time and memory must grow no faster than the fleet.

    The names lead to a few simulated hosts, which answer each of them by a session of its own.
    """
    machines = 5
    many = {"/etc/ssh/sshd_config.d/bench.conf": "MaxStartups 200\nMaxSessions 200\n"}
    converged = {**CONVERGED, "extra": {**CONVERGED["extra"], **many}}
    with Lab.start([{"name": f"gpu{i:02d}", **converged} for i in range(1, machines + 1)]) as lab:
        text = yaml_reader.load(lab.inventory.read_text())
        group = text["all"]["children"]["gpu"]
        rows = list(group["hosts"].values())
        for number in (count // 2, count):
            group["hosts"] = {f"node{i:03d}": rows[i % machines] for i in range(1, number + 1)}
            lab.inventory.with_name(f"fleet{number}.yml").write_text(yaml.safe_dump(text))
        runs: dict[int, list[tuple[float, float, float]]] = {count // 2: [], count: []}

        def drift(number: int, *words: str) -> list[str]:
            inventory = str(lab.inventory.with_name(f"fleet{number}.yml"))
            return [sys.executable, "-m", "provision", "-i", inventory, *words]

        # every host against a lock, as in the field; caches are warm then
        measured(drift(count, "lock"), 0)
        floor, ours = [], []
        hosts = bare_hosts(lab, group)
        for _ in range(rounds):
            floor.append(timed(BARE, input=hosts))
            ours.append(timed(drift(count, "--json", "drift"), cwd=ROOT))
            for number, found in runs.items():
                found.append(measured(drift(number, "--json", "drift"), 0))
        figures = {n: [statistics.median(run[i] for run in found) for i in range(3)] for n, found in runs.items()}
        half, full = figures[count // 2], figures[count]
        print(f"\ndrift: {count} hosts against a lock, beside {count // 2}  ({rounds} rounds, medians)")
        for number, (wall, processor, memory) in figures.items():
            per = f"{1000 * wall / number:5.1f} ms a host"
            print(f"  {number:4d}   {wall:7.3f} s wall  {processor:7.3f} s processor  {memory:6.1f} MiB  {per}")
        ratio, aim = (full[0] / count) / (half[0] / (count // 2)), 1.15
        print(f"  ratio  {ratio:7.2f}  of the time a host (aim: {aim}){'' if ratio <= aim else '  MISSED'}")
        print(f"  memory {1024 * (full[2] - half[2]) / (count - count // 2):7.0f} KiB more a host", flush=True)
        row = show(
            f"drift: {count} sessions on {machines} machines, beside a bare parallel paramiko read", ours, floor, 1.5, 2
        )
        shares = {
            "title": f"drift: {count} hosts beside {count // 2}, time a host",
            "ours": full[0] / count,
            "floor": half[0] / (count // 2),
            "ratio": ratio,
            "aim": aim,
            "processor": [full[1], half[1]],
            "memory_mib": [full[2], half[2]],
        }
        return [row, shares]


def install_bare(host: LabHost, packages: list[str], finish: str = "") -> Run:
    """What a person would type to get the same packages, over ssh."""
    install = f"DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends {' '.join(packages)}"
    script = f"sudo sh -c '{' && '.join(filter(None, ('apt-get update -qq', install, finish)))}'"
    return timed(host.ssh_command(script))


def bench_scale(rounds: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """``provision plan`` of fleets of all sizes: the real pipeline with recorded facts, 50 ms a host, and no ssh (8 ms a host)."""
    figures: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            hosts = {
                f"node{i:04d}": {"ansible_host": f"10.0.{i // 250}.{i % 250}", "rack": i // 40} for i in range(size)
            }
            inventory = Path(folder) / f"fleet{size}.yml"
            every = {"nvidia_driver_branch": "580", "ansible_user": "ops"}
            inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": every}}))
            argv = [sys.executable, "-m", "tests.bench.scale", "0.05", "-i", str(inventory), "--json", "plan"]
            # the inventory is kept from the third second on
            time.sleep(3)
            measured(argv, 0)
            runs = [measured(argv, 0) for _ in range(rounds)]
            figures[size] = [statistics.median(run[i] for run in runs) for i in range(3)]
    print(f"\nscale: plan with recorded facts and no ssh  ({rounds} rounds, medians)")
    least = figures[min(sizes)]
    for size, (wall, own, memory) in figures.items():
        further = f"{1000 * (own - least[1]) / (size - min(sizes)):5.2f} ms" if size > min(sizes) else "      -"
        print(
            f"  {size:5d} hosts  {wall:7.2f} s wall  {own:7.2f} s processor, {further} a further host  {memory:6.0f} MiB"
        )
    sys.stdout.flush()
    return [{"title": "scale", "hosts": figures}]


def bench_apply(rounds: int) -> list[dict[str, Any]]:
    """A fresh ``provision apply`` on one host, beside apt-get install of the same packages over ssh.

    The fair floor also has what a person would do then: the initramfs, the units, the module.
    """
    with (
        Lab.start([{"name": "gpu01", "gpus": ["H100 PCIe"], "nouveau": False}]) as lab,
        tempfile.TemporaryDirectory() as state,
    ):
        environment = {**os.environ, "XDG_STATE_HOME": state}
        host = lab.host("gpu01")
        planned = subprocess.run(
            provision(lab, "--json", "plan"), capture_output=True, text=True, check=False, cwd=ROOT
        )
        changes = json.loads(planned.stdout)["hosts"]["gpu01"]["packages"]
        packages = [f"{change['name']}={change['version']}" for change in changes]
        ours, floor, fair = [], [], []
        for _ in range(rounds):
            floor.append(install_bare(host, packages))
            host.reset()
            fair.append(install_bare(host, packages, _FINISH))
            host.reset()
            ours.append(timed(provision(lab, "apply", "--yes"), cwd=ROOT, env=environment))
            host.reset()
        title = f"apply: one fresh host, {len(packages)} packages, beside bare apt-get install over ssh"
        return [show(title, ours, floor, 3), show(f"{title} with initramfs, units and module", ours, fair, 2.5)]


def bench_peers(rounds: int, count: int) -> list[dict[str, Any]]:
    """``provision apply`` that finds nothing to do, and other tools with the same work, beside a bare read."""
    why = peers.made()
    if why is not None:
        print(f"\npeers: left out: {why}")
        return []
    with (
        Lab.start([{"name": f"gpu{i:02d}", **CONVERGED} for i in range(1, count + 1)]) as lab,
        tempfile.TemporaryDirectory() as state,
    ):
        group = yaml_reader.load(lab.inventory.read_text())["all"]["children"]["gpu"]
        first = lab.host("gpu01")
        listed = first.run("dpkg-query -W -f '${Package}=${Version} ${db:Status-Want}\\n'").stdout.splitlines()
        packages = [line.split()[0] for line in listed if line.endswith(" hold")]
        file = first.run(["cat", "/etc/modprobe.d/gpu-provision.conf"]).stdout
        tools = peers.commands(lab.inventory, Path(state), packages, file)
        tools = {
            "provision apply": (provision(lab, "apply", "--yes"), {**os.environ, "XDG_STATE_HOME": state}),
            **tools,
        }
        runs: dict[str, list[Run]] = {name: [] for name in ("bare read", *tools)}
        for number in range(rounds + 1):
            once = {"bare read": timed(BARE, input=bare_hosts(lab, group))}
            once |= {name: timed(argv, env=environment, cwd=ROOT) for name, (argv, environment) in tools.items()}
            # the first round fills everybody's caches
            for name, run in once.items() if number else ():
                runs[name].append(run)
    print(f"\npeers: nothing to do on {count} converged hosts, {len(packages)} packages  ({rounds} rounds, medians)")
    medians = {name: [statistics.median(run[i] for run in found) for i in range(3)] for name, found in runs.items()}
    floor = medians["bare read"]
    for name, (wall, own, rest) in medians.items():
        ratios = f"{wall / floor[0]:6.1f} times its wall time, {own / floor[1]:6.1f} times its processor time"
        print(f"  {name:26} {wall:7.2f} s wall  {own:7.2f} s processor here  {rest:7.2f} s elsewhere  {ratios}")
    sys.stdout.flush()
    return [{"title": "peers", "hosts": count, "runs": medians}]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--peers-hosts", type=int, default=10)
    parser.add_argument("--drift-hosts", type=int, default=100)
    parser.add_argument("--only", choices=("version", "plan", "drift", "apply", "scale", "peers"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 40, 100, 300, 1000, 3000])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    print("Simulated hosts (containers on this machine); floors are measured in the same run.")
    benches = {
        "version": lambda: bench_version(options.rounds),
        "plan": lambda: bench_plan(options.rounds, options.hosts),
        "drift": lambda: bench_drift(options.rounds, options.drift_hosts),
        "apply": lambda: bench_apply(options.rounds),
        "scale": lambda: bench_scale(options.rounds, options.sizes),
        "peers": lambda: bench_peers(options.rounds, options.peers_hosts),
    }
    figures = [row for name, run in benches.items() if options.only in (None, name) for row in run()]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
