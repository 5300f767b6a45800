"""One run of a host that pulls: ``python -m provision.pull.run /etc/gpu-provision/pull.json``.

Why not ansible-pull: it would run the playbook and know that no task failed. ``provision apply`` plans first, refuses what is
unsafe, proves the result, and says by its exit code what is left: a reboot that nobody asked for is never made (6).
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, own_state
from provision.drift import metrics
from provision.errors import Exit, HostFailedError, ProvisionError, UsageError
from provision.lib.own_state import Damaged, text
from provision.pull import report
from provision.pull.source import Source, fetch

STATE = "state.json"
# An inventory that says how to reach this host from elsewhere: here it is this machine itself.
_LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}


@dataclass(frozen=True)
class Config:
    """The file that the role writes. host: name in the inventory; inventory: path in the source; folder: for what is fetched."""

    source: Source
    host: str
    inventory: str = "."
    folder: Path = Path("/var/lib/gpu-pull")
    metrics_dir: Path | None = None
    vault_password_file: str = ""
    variables: dict[str, Any] = field(default_factory=lambda: dict(_LOCAL))


def read_config(path: Path) -> Config:
    """Read the file. Raises UsageError for one that cannot be used."""
    try:
        data = json.loads(text(path) or "")
        source = Source(**data.pop("source"))
        values: dict[str, Any] = {name: value for name, value in data.items() if value not in ("", None)}
        for name in {"folder", "metrics_dir"} & set(values):
            values[name] = Path(values[name])
        return Config(source=source, **values)
    except (Damaged, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            "usage.config", f"{path} cannot be used: {error}", hint="the role gpu_pull writes it: run it again"
        ) from error


def run(config: Config) -> report.Outcome:
    """Fetch the inventory, apply it to this host, look what drifted, and report. Errors become part of the outcome."""
    started = time.time()
    code, state, drift = int(Exit.FAILED), "", None
    try:
        with _alone(config.folder):
            where, state = fetch(config.source, config.folder)
            inventory = _inventory(where, config.inventory)
            _say(f"{config.host}: inventory {state}")
            code = _apply(config, inventory)
            drift = _drift(config, inventory) if code in (0, 6) else None
    except ProvisionError as error:
        code = int(error.exit_code)
        _report(error.issue.model_dump())
    except own_files.FileError as error:
        _report({"message": error.message, "hint": error.hint})
    before = _last_success(config.folder)
    last = started if code in (0, 6) else before
    outcome = report.Outcome(config.host, code, started, time.time() - started, state, drift, last)
    try:
        _keep(config, outcome)
    except own_files.FileError as error:
        _report({"message": error.message, "hint": error.hint})
    return outcome


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One run at a time: a person may start the service while the timer does."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines: list[str] = []
    with os.fdopen(own_state.open_lock(str(folder / "lock"), lines), "r+b") as handle:
        for line in lines:
            _say(f"warning: {line}")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostFailedError(
                "pull.running",
                "another run of gpu-pull is running on this host",
                hint="systemctl status gpu-pull.service",
            ) from None
        yield


def _inventory(where: Path, inside: str) -> Path:
    path = (where / inside).resolve()
    if not path.is_relative_to(where.resolve()) or not path.exists():
        raise UsageError(
            "usage.inventory",
            f"there is no {inside} in the source",
            hint="gpu_pull_inventory is the path of the inventory in it",
        )
    return path


def _command(config: Config, inventory: Path) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "provision",
        "-i",
        str(inventory),
        "-l",
        config.host,
        "-e",
        json.dumps(config.variables),
    ]
    return command + (["--vault-password-file", config.vault_password_file] if config.vault_password_file else [])


def _apply(config: Config, inventory: Path) -> int:
    done = subprocess.run(
        [*_command(config, inventory), "apply", "--yes", "--no-reboot", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        _say(done.stderr.strip() or done.stdout.strip())
        return done.returncode or int(Exit.FAILED)
    for name, host in document.get("hosts", {}).items():
        _say(f"{name}: {host.get('status')}: {host.get('summary', '')}".rstrip(": "))
    for error in document.get("errors", ()):
        _report(error)
    if done.returncode == 0 and config.host not in document.get("hosts", {}):
        raise UsageError(
            "usage.host",
            f"the inventory has no host {config.host}",
            hint="gpu_pull_host is the name of this host in the inventory",
        )
    return done.returncode


def _drift(config: Config, inventory: Path) -> int:
    command = [*_command(config, inventory), "drift"]
    if config.metrics_dir:
        command += ["--metrics", str(config.metrics_dir / report.DRIFT_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        _say(done.stdout.strip() + "\n" + done.stderr.strip())
    return done.returncode


def _last_success(folder: Path) -> float:
    lines: list[str] = []
    state = own_state.take(str(folder / STATE), {"last_success": (float, int)}, lines, "its last success is not known")
    for line in lines:
        _say(f"warning: {line}")
    return float(state["last_success"]) if state else 0.0


def _keep(config: Config, outcome: report.Outcome) -> None:
    config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own_state.write(
        str(config.folder / STATE), {"last_success": outcome.last_success, "code": outcome.code, "state": outcome.state}
    )
    if config.metrics_dir:
        metrics.write(report.render(outcome), config.metrics_dir / report.FILE)


def _report(issue: dict[str, Any]) -> None:
    _say(f"error: {issue['message']}")
    for line in issue.get("because") or ():
        _say(f"  because: {line}")
    if issue.get("hint"):
        _say(f"  hint: {issue['hint']}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the journal's


def main(argv: list[str]) -> int:
    """Run as the service does; the exit code is provision's. Code 64 for a file that cannot be used."""
    try:
        return run(read_config(Path(argv[0]))).code
    except ProvisionError as error:
        _report(error.issue.model_dump())
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
