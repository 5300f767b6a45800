"""What an undo takes back and what it leaves: tables in tests/cases/rescue_undo.yml."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.rescue import undo as rescue_undo
from provision.lib import yaml_reader

CASES: dict[str, Any] = yaml_reader.load(Path(__file__).parents[1].joinpath("cases/rescue_undo.yml").read_text())


def cases(topic: str) -> Any:
    return pytest.mark.parametrize("case", CASES[topic], ids=lambda case: case["name"])


def rows(reading: dict[str, str] | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    found = {}
    for name, text in reading.items():
        version, want = text.split()
        state = {"absent": "not-installed", "config": "config-files"}.get(version, "installed")
        found[name] = {"version": None if state == "not-installed" else version, "want": want, "state": state}
    return found


@cases("packages")
def test_packages(case: dict[str, Any]) -> None:
    now = case.get("now", case["after"])
    changes = rescue_undo.package_changes(rows(case["before"]), rows(case["after"]), rows(now))
    expect = case["expect"]
    left = [row["what"].split(":")[0] for row in changes.pop("left")]
    assert changes == {key: expect.get(key, []) for key in ("install", "remove", "purge", "hold", "release")}
    assert left == expect.get("left", [])


@cases("missing")
def test_missing(case: dict[str, Any]) -> None:
    wanted = {"install": list(case["install"]), "remove": list(case["remove"]), "purge": [], "hold": []}
    left = rescue_undo._drop_missing(wanted, {name: set(rows) for name, rows in case["offered"].items()})
    assert (wanted["install"], wanted["remove"]) == (case["expect"]["install"], case["expect"]["remove"])
    assert [row["what"] for row in left] == case["expect"]["left"]


def _state(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


@cases("files")
def test_files(case: dict[str, Any], tmp_path: Path) -> None:
    kinds = case.get("kinds", {})
    entries = [
        {"path": path, "kind": kinds.get(path, "watched"), "state": _state(text)}
        for path, text in case["before"].items()
    ]
    after = case["after"] and {path: _state(text) for path, text in case["after"].items()}
    for path, text in (case.get("now") or case["after"]).items():
        if text is not None:
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    changes, left = rescue_undo.file_changes(entries, after, rescue_snapshot.Host(str(tmp_path)))
    assert {change["path"]: change["action"] for change in changes} == case.get("expect", {})
    assert [row["what"] for row in left] == case.get("left", [])


def test_the_plan_in_words() -> None:
    from provision.rescue.undo import undo_plan

    change = {"action": "downgrade", "name": "a", "version": "1", "from_version": "2", "origin": None}
    plan = undo_plan(
        "gpu01",
        {
            "id": "20261128T093012Z-1f2e3d",
            "made": "2026-11-28T09:30:12Z",
            "reason": "rescue",
            "install": ["a=1"],
            "remove": [],
            "purge": [],
            "hold": ["a"],
            "release": [],
            "auto": [],
            "manual": ["a"],
            "changes": [change],
            "problems": [],
            "files": [{"path": "/etc/a", "action": "restore"}],
            "left": [{"what": "b 1", "why": "gone"}],
            "nothing": False,
            "finished": True,
        },
    )
    assert [step.details for step in plan.steps] == [["a 2 -> 1"], ["a"], ["/etc/a"]]
    assert plan.arguments() == {"action": "undo", "id": "20261128T093012Z-1f2e3d", "expect": [change]}
