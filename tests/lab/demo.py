"""``make demo``: two simulated lab servers go from nothing to a verified driver and CUDA, with the commands a person types."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import setup
from .lab import Lab

ROOT = Path(__file__).parents[2]
HOSTS = [
    {"name": "gpu01", "gpus": ["H100 PCIe x2"], "nouveau": True},
    {"name": "gpu02", "gpus": ["RTX 4090"], "nouveau": True},
]
VARIABLES = {"gpu02": 'cuda_toolkit_versions: ["12.8", "13.0"]\ncuda_toolkit_default: "12.8"\n'}
INTRODUCTION = """\
Two servers of a lab: gpu01 with two H100, gpu02 with an RTX 4090, Ubuntu 24.04, nothing installed.
gpu02 is to have two CUDA toolkits besides its driver: that is all that the inventory says.
They are SIMULATED: containers with real ssh, systemd, apt and dpkg; the kernel, the GPUs and NVIDIA's programs are
stand-ins, and the packages are small ones with the real names, versions and relations. The commands are the real ones,
and what you see is what they print.
"""
LOGIN = ["bash", "-lc"]
ON_HOSTS = [
    ("gpu01", ["nvidia-smi", "-L"]),
    ("gpu01", ["apt-mark", "showhold"]),
    ("gpu02", [*LOGIN, "nvcc -V | tail -2; cuda-select --list"]),
]
STEPS = [
    ("What is there?", ["scan"], 0),
    ("What would be done, and why?", ["plan"], 2),
    ("Do it: packages, holds, reboot, proof.", ["apply", "--yes"], 0),
    ("Is it really so?", ["verify"], 0),
    ("One server, layer by layer.", ["scan", "-l", "gpu01"], 0),
    ("And now nothing is left to do.", ["apply", "--yes"], 0),
]


def main() -> int:
    """Run the demo; returns 0 when every step ended as it should."""
    setup.ensure()
    say(INTRODUCTION)
    begun = time.monotonic()
    with Lab.start(HOSTS) as lab, tempfile.TemporaryDirectory(prefix="gpu-provision-demo-") as state:
        for host, text in VARIABLES.items():
            file = lab.inventory.parent / "host_vars" / f"{host}.yml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        for title, words, expected in STEPS:
            say(f"\n# {title}\n$ provision -i {shlex.quote(lab.inventory.name)} {' '.join(words)}")
            command = [sys.executable, "-m", "provision", "-i", str(lab.inventory), *words]
            done = subprocess.run(command, cwd=ROOT, env=environment(state), check=False)
            if done.returncode != expected:
                say(f"\nerror: that ended with {done.returncode}, expected was {expected}")
                return 1
        say("\n# On the host itself")
        for host, words in ON_HOSTS:
            say(f"{host}$ {' '.join(words[2:] if words[:2] == LOGIN else words)}")
            say(lab.host(host).run(words).stdout.rstrip())
    say(
        f"\nDone in {time.monotonic() - begun:.0f} s; the simulated servers are stopped.\n"
        "Yours are next: README.md says how to point it at them (provision init HOST..., then scan, plan and apply)."
    )
    return 0


def environment(state: str) -> dict[str, str]:
    """Runs are recorded in a folder that goes with the demo; a pipe gets lines as long as a terminal's."""
    made = {**os.environ, "XDG_STATE_HOME": state}
    if not sys.stdout.isatty():
        made.setdefault("COLUMNS", "100")
    return made


def say(text: str) -> None:
    """Print at once: the commands write to the same terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
