"""A run that is killed after its last change and before its proof: the next one has nothing to do, and ends it anyway."""

import json
import signal
from pathlib import Path

import pytest

from tests.faults.test_two_people import lock, records, until

pytestmark = pytest.mark.lab


# tests/system/test_history.py takes over what killed runs leave, tests/faults/test_two_people.py a host's lock.
@pytest.mark.thorough
def test_nothing_to_do_ends_what_was_cut_off(fleet, tmp_path):
    command = fleet({"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": False})
    host = command.lab.host("gpu01")
    own = tmp_path / "temporary"
    own.mkdir()
    command.env["TMPDIR"] = str(own)
    runs = Path(command.env["XDG_STATE_HOME"], "gpu-provision/runs")

    first = command.start("apply", "--yes")
    until(lambda: any('"stats"' in path.read_text() for path in runs.glob("*/events.jsonl")), 300)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    was = lock(host)
    assert was["run"]
    assert [item.name for item in own.iterdir() if item.name.startswith("gpu-provision-command-")]

    planned = command.json("plan")["hosts"]["gpu01"]
    assert planned["status"] == "converged"
    (warning,) = planned["warnings"]
    assert warning["code"] == "host.lock_stale" and was["run"] in warning["message"]
    assert "has ended" in warning["because"][0] and "apply" in warning["hint"]
    assert "a run that ended left its lock" in " ".join(command.run("scan").stdout.split())
    assert lock(host) == was, "who reads changes nothing"

    second = command.json("apply", "--yes")
    assert second["hosts"]["gpu01"]["status"] == "unchanged"
    (said,) = second["warnings"]
    assert said["message"].startswith("removed the lock of a run that has ended: ")
    assert was["run"] in said["message"] and "it changed " in said["because"][1]
    assert lock(host) == {}
    (record,) = records(host)
    assert (record["run"], record["status"]) == (was["run"], "interrupted")
    assert "nvidia-utils-580" in [row[0] for row in record["packages"]]
    assert list(own.iterdir()) == [], "what the killed one left on this machine is gone too"

    told = command.json("history", "gpu01")
    assert told["hosts"]["gpu01"]["runs"][0]["ended_by"] == record["ended_by"]
    (run,) = told["runs"]
    assert run["hosts"]["gpu01"]["packages"] == record["packages"]
    shown = command.run("history", was["run"]).stdout
    assert "found and ended by" in shown
    refused = json.loads(command.run("apply", "--yes", "--json", "--rollback", was["run"], rc=5).stdout)
    assert [issue["code"] for issue in refused["errors"]] == ["rollback.nothing_before"]

    third = command.json("apply", "--yes")
    assert third["warnings"] == []
    assert len(records(host)) == 1
