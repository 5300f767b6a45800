"""The file for a console as a program: it starts, and what is damaged or only a part of it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provision.rescue.offline import offline_script


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(path), *words], capture_output=True, text=True)


@pytest.fixture(scope="module")
def script() -> str:
    return offline_script("gpu01.example.org", {"nvidia_driver_branch": "580"})


def test_it_starts_from_anywhere_and_knows_its_options(script: str, tmp_path: Path) -> None:
    path = tmp_path / "rescue.py"
    path.write_text(script)
    done = run(path, "--help")
    assert done.returncode == 0 and all(word in done.stdout for word in ("--debs", "--purge", "--undo", "--look", "-y"))
    # A paste through a Windows machine changes the ends of lines.
    path.write_bytes(script.replace("\n", "\r\n").encode() + b"\r\n")
    assert run(path, "--nope").returncode == 64


def test_what_is_damaged_or_cut_off_does_not_run(script: str, tmp_path: Path) -> None:
    path, lines = tmp_path / "rescue.py", script.splitlines(keepends=True)
    checked = next(at for at, line in enumerate(lines) if line.startswith("import importlib"))
    packed = script.index("# --- program")
    damaged = [
        "".join(lines[: checked + 3]),
        script[: packed + 5000],
        script[: script.rindex("# --- sha256") + 40],
        script.replace('"managed": true', '"managed": false'),
        script[: packed + 2000] + ("A" if script[packed + 2000] != "A" else "B") + script[packed + 2001 :],
    ]
    for text in damaged:
        path.write_text(text)
        done = run(path, "--help")
        assert (done.returncode, done.stdout) == (64, ""), text[-200:]
        assert "is damaged, or only a part of it is here" in done.stderr


def test_it_has_to_be_a_file(script: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-"], input=script, capture_output=True, text=True)
    assert done.returncode == 64 and "save it as one" in done.stderr
