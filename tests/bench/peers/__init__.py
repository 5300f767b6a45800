"""Tools that do the same work on the same hosts, in an environment of their own: pyinfra, Ansible, Ansible with Mitogen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from provision.lib import yaml_reader

HERE = Path(__file__).parent
_VENV = HERE.parents[2] / ".cache/peers"


def made() -> str | None:
    """Make the environment, once; why that is not possible, else None."""
    ready = _VENV / "ready"
    if ready.exists():
        return None
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(_VENV)], check=True)
    argv = [str(_VENV / "bin/pip"), "install", "-q", "pyinfra>=3,<4", "mitogen", "ansible-core>=2.19,<2.20"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    ready.touch()
    return None


def commands(
    inventory: Path, folder: Path, packages: list[str], file: str
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """{tool: (argv, environment)}: each has these packages (name=version) on hold, and this text in our file."""
    (folder / "file.conf").write_text(file)
    work = {"bench_packages": packages, "bench_file": str(folder / "file.conf")}
    (folder / "work.yml").write_text(yaml.safe_dump(work))
    group = yaml_reader.load(inventory.read_text())["all"]["children"]["gpu"]
    rows = [
        (name, _pyinfra(row, inventory.parent, group["vars"]["ansible_user"])) for name, row in group["hosts"].items()
    ]
    (folder / "hosts.py").write_text(f"gpu = {rows!r}\n")
    (folder / "group_data").mkdir()
    (folder / "group_data/all.py").write_text("".join(f"{name} = {value!r}\n" for name, value in work.items()))
    forks = str(len(rows))
    play = [str(_VENV / "bin/ansible-playbook"), "-i", str(inventory), "-f", forks, "-e", f"@{folder / 'work.yml'}"]
    play.append(str(HERE / "playbook.yml"))
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    own |= {"PATH": f"{_VENV / 'bin'}:{own['PATH']}", "ANSIBLE_PIPELINING": "1", "ANSIBLE_STDOUT_CALLBACK": "minimal"}
    (strategies,) = _VENV.glob("lib/*/site-packages/ansible_mitogen/plugins/strategy")
    mitogen = {"ANSIBLE_STRATEGY": "mitogen_linear", "ANSIBLE_STRATEGY_PLUGINS": str(strategies)}
    deploy = [str(_VENV / "bin/pyinfra"), "-y", "--parallel", forks, "--group-data", str(folder / "group_data")]
    return {
        "pyinfra": ([*deploy, str(folder / "hosts.py"), str(HERE / "deploy.py")], own),
        "ansible-playbook": (play, own),
        "ansible-playbook, Mitogen": (play, own | mitogen),
    }


def _pyinfra(row: dict[str, Any], folder: Path, user: str) -> dict[str, Any]:
    return {
        "ssh_hostname": row["ansible_host"],
        "ssh_port": row.get("ansible_port", 22),
        "ssh_user": user,
        "ssh_key": str(folder / "key"),
        "ssh_known_hosts_file": str(folder / "known_hosts"),
        "ssh_strict_host_key_checking": "yes",
    }
