"""The loop of rescue: what is asked, in which order, and what a host's end is called. Hosts and engine are stand-ins."""

import json
import time
from pathlib import Path

import pytest

from provision.commands import rescue
from provision.diagnose.finding import Cause, Diagnosis, Repair
from provision.documents import VerifiedHost, VerifyDocument
from provision.errors import HostFailedError, Issue, RefusedError, UnreachableError
from provision.facts import Facts
from provision.inventory import Connection, Host, Inventory
from provision.lib.findings import Check
from provision.render import Renderer
from provision.rescue.again import without_tried
from provision.rescue.rounds import next_round
from provision.rescue.session import Inspection
from provision.runs import engine
from provision.runs.engine import HostOutcome, RunResult
from provision.runs.fleet import Fleet

STALE = Cause(
    code="driver.stale_module",
    level="error",
    message="the loaded module is 580.126.20, the disk has 580.173.02",
    evidence=["/sys/module/nvidia/version: 580.126.20"],
    repairs=[Repair(action="module.reload", words="load the modules anew"), Repair(action="reboot", words="reboot")],
)
HALF = Cause(
    code="dpkg.unfinished",
    level="error",
    message="2 packages are not set up",
    repairs=[
        Repair(action="dpkg.configure", words="finish the interrupted dpkg run"),
        Repair(action="purge", words="purge"),
    ],
)
MANUAL = Cause(
    code="gpus.firmware",
    level="error",
    message="the card is too hot",
    repairs=[Repair(action="manual", words="cool it")],
)


class World:
    """Hosts as lists of what they show, one reading after the other; the last one stays. Actions answer from a table."""

    def __init__(self, monkeypatch, tmp_path):
        self.shows, self.boots, self.answers, self.played, self.events, self.locked = {}, {}, {}, [], [], {}
        self.failed, self.verdicts, self.readings, self.tmp_path = {}, {}, {}, tmp_path
        self.cards, self.runs_before = [], []
        monkeypatch.setattr(rescue, "ask_all", self.ask_all)
        monkeypatch.setattr(rescue, "inspect_host", self.inspect_host)
        monkeypatch.setattr(engine, "run_playbook", self.play)
        monkeypatch.setattr(rescue.verify, "run", self.verify)
        monkeypatch.setattr(rescue, "HostLocks", self.locks)

    def host(self, name, *shows, reboot="when_idle", local=False):
        self.shows[name] = list(shows)
        self.boots[name] = "b0071"
        connection = Connection(kind="local" if local else "ssh")
        return Host(name=name, connection=connection, vars={"nvidia_driver_reboot": reboot})

    def fleet(self, *hosts):
        inventory = Inventory(hosts=list(hosts), sources=["hosts.yml"])
        return Fleet(inventory, {host.name: dict(host.vars) for host in hosts})

    def run(self, *hosts, agree=lambda document: True, **options):
        options = rescue.Options(run_base=self.tmp_path, **options)
        return rescue.run(self.fleet(*hosts), options=options, agree=agree)

    # --- stand-ins

    def ask_all(self, fleet, hosts, title, ask, talk, **more):
        found = {}
        for host in hosts:
            try:
                found[host.name] = ask(host, self)
            except (UnreachableError, HostFailedError) as error:
                found[host.name] = error
        return found

    def call(self, program, args, timeout=60):
        return {"runs": self.runs_before, "unreadable": [], "lock": {}} if program == "run.record" else {}

    def inspect_host(self, name, call, values, catalog, history, limits, mode="mend", snapshot=None, past=None):
        rows = self.shows[name]
        shown = rows.pop(0) if len(rows) > 1 else rows[0]
        if isinstance(shown, Exception):
            raise shown
        if self.boots[name] not in history.boots:
            history.boots.append(self.boots[name])
        diagnosis = Diagnosis(findings=shown)
        facts = Facts.model_validate({"host": {"boot_id": self.boots[name]}, "smi": {"gpus": self.cards}})
        if any(finding.cards for finding in shown):
            diagnosis = without_tried(diagnosis, facts, past(diagnosis, facts), name)
        return Inspection(facts, diagnosis, diagnosis, next_round(diagnosis, history, facts, limits))

    def play(self, playbook, inventory, hosts, extra_vars, run_dir, on_event, **more):
        told = json.loads(Path(extra_vars["gpu_provision_rescue_file"]).read_text())["hosts"]
        self.played.append({name: told[name]["kind"] for name in hosts})
        outcomes = {}
        for name in hosts:
            steps = [
                dict(self.answers.get(step["action"], {"ok": True, "changed": True, "said": ["done"]}))
                for step in told[name]["steps"]
            ]
            on_event({"event": "ok", "host": name, "task": "t", "changed": True, "steps": steps})
            if told[name]["reboot"]["needed"]:
                self.boots[name] += "0"
            outcomes[name] = self.failed.get(name) or HostOutcome(status="changed", changed=["t"])
        return RunResult(
            hosts=outcomes, run_dir=run_dir, rc=0, interrupted=any(o.status == "interrupted" for o in outcomes.values())
        )

    def verify(self, fleet, talk, hosts, keep=False, memory=None):
        rows = {h.name: self.verdicts.get(h.name, "pass") for h in hosts}
        return VerifyDocument(
            hosts={
                name: VerifiedHost(status=status, checks=[Check(id="driver.smi", status=status, message="m")])
                for name, status in rows.items()
            }
        )

    def locks(self, fleet, command, run, talk, force=False):
        world = self

        class Locks:
            taken: set = set()
            notes: list = []
            took: dict = {}

            def take(self, names):
                self.taken |= {name for name in names if name not in world.locked}
                return {name: error for name, error in world.locked.items() if name in names}

            def kept(self):
                import contextlib

                return contextlib.nullcontext()

            def give_back(self, records):
                world.records = records
                return []

        return Locks()


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


def test_well(world):
    done = world.run(world.host("gpu01", []))
    assert (done.exit_code, done.hosts["gpu01"].status, done.run_dir) == (0, "well", None)
    assert not world.played


@pytest.mark.parametrize(("dry_run", "ended"), [(False, [{"a"}]), (True, [])])
def test_the_lock_of_an_ended_run_goes_where_nothing_is_to_be_done(world, monkeypatch, dry_run, ended):
    asked = []
    monkeypatch.setattr(rescue, "left_lock", lambda name, facts: Issue(code="x", message="") if name != "b" else None)
    monkeypatch.setattr(rescue.left_behind, "end", lambda fleet, names, base: asked.append(names) or [])
    world.run(world.host("a", []), world.host("b", []), world.host("c", [MANUAL]), dry_run=dry_run)
    assert asked == ended


def test_one_round(world):
    done = world.run(world.host("gpu01", [STALE], []))
    host = done.hosts["gpu01"]
    assert (done.exit_code, host.status, host.reboots) == (0, "rescued", 0)
    assert [f.code for f in host.found] == ["driver.stale_module"] and host.left == []
    assert [step.said for one in host.rounds for step in one.steps] == [["done"]]
    assert world.played == [{"gpu01": "restart"}]
    assert world.records["gpu01"]["status"] == "done"
    assert (Path(done.run_dir) / "result.json").exists()


def test_the_reload_fails_and_the_reboot_does_it(world):
    world.answers["module.reload"] = {"ok": False, "changed": False, "said": ["in use"], "code": "module.in_use"}
    done = world.run(world.host("gpu01", [STALE], [STALE], []))
    host = done.hosts["gpu01"]
    assert (host.status, host.reboots) == ("rescued", 1)
    assert [[step.action for step in one.steps] for one in host.rounds] == [["module.reload"], ["reboot"]]


@pytest.mark.parametrize("how", [{"reboot": "never"}, {"local": True}])
def test_a_reboot_that_is_left_to_the_owner(world, how):
    world.answers["module.reload"] = {"ok": False, "changed": False, "said": ["in use"]}
    done = world.run(world.host("gpu01", [STALE], **how))
    assert (done.exit_code, done.hosts["gpu01"].status) == (6, "reboot_needed")
    assert "provision rescue gpu01" in done.errors[0].hint
    assert world.played == [{"gpu01": "restart"}], "only the reload was tried"


def test_what_stays_is_told_with_what_comes_next(world):
    done = world.run(world.host("gpu01", [HALF]), world.host("gpu02", [MANUAL]))
    assert done.exit_code == 3
    assert done.hosts["gpu01"].status == "left" and done.hosts["gpu01"].next == "purge"
    assert done.hosts["gpu02"].status == "left" and done.hosts["gpu02"].next == "cool it"
    assert world.played == [{"gpu01": "mend"}]


def test_the_last_word_is_verifys(world):
    world.verdicts["gpu01"] = "fail"
    done = world.run(world.host("gpu01", [HALF], []))
    assert (done.exit_code, done.hosts["gpu01"].status) == (3, "check_failed")


def test_a_host_that_cannot_be_reached_is_told_the_way(world):
    lost = UnreachableError("connect.refused", "gpu02 refuses", hint="is it on?")
    done = world.run(world.host("gpu01", [HALF], []), world.host("gpu02", lost))
    assert done.exit_code == 4 and done.hosts["gpu01"].status == "rescued"
    assert done.hosts["gpu02"].status == "unreachable"
    assert done.errors[0].hint.startswith("is it on? at its console") and "--offline-script" in done.errors[0].hint


def test_a_lock_stops_the_host_and_not_the_others(world):
    world.answers["dpkg.configure"] = {
        "ok": False,
        "changed": False,
        "said": ["held by process 7 (unattended-upgr)"],
        "code": "apt.lock_timeout",
        "hint": "wait",
    }
    done = world.run(world.host("gpu01", [HALF]), world.host("gpu02", [STALE], []))
    assert done.exit_code == 5
    assert done.hosts["gpu01"].status == "blocked" and "unattended-upgr" in done.hosts["gpu01"].summary
    assert done.hosts["gpu02"].status == "rescued"


def test_somebody_else_is_at_work(world):
    world.locked["gpu01"] = RefusedError("host.locked", "ann is at work", host="gpu01", hint="ask")
    done = world.run(world.host("gpu01", [HALF]))
    assert (done.exit_code, done.hosts["gpu01"].status, world.played) == (5, "blocked", [])


def test_not_agreed_and_dry_run_change_nothing(world):
    asked = []
    done = world.run(world.host("gpu01", [HALF]), agree=lambda document: asked.append(document) or False)
    assert len(asked) == 1 and asked[0].hosts["gpu01"].rounds[0].steps[0].ok is None
    assert (done.exit_code, done.hosts["gpu01"].status, world.played) == (2, "planned", [])
    done = world.run(world.host("gpu01", [HALF]), dry_run=True, agree=lambda document: 1 / 0)
    assert (done.exit_code, world.played) == (2, [])


def test_each_round_is_asked_for(world):
    asked = []

    def agree(document):
        asked.append([step.action for one in document.hosts["gpu01"].rounds for step in one.steps if step.ok is None])
        return len(asked) < 2

    world.answers["module.reload"] = {"ok": False, "changed": False, "said": ["in use"]}
    done = world.run(world.host("gpu01", [STALE]), agree=agree)
    assert asked == [["module.reload"], ["reboot"]]
    assert done.hosts["gpu01"].status == "planned" and world.boots["gpu01"] == "b0071"


def test_a_failed_play_is_read_again(world):
    issue = Issue(code="apt.dpkg_failed", host="gpu01", message="nvidia-dkms failed", because=["make"], hint="mend")
    world.failed["gpu01"] = HostOutcome(status="failed", failed_task="t", issue=issue)
    world.answers = {"dpkg.configure": {"ok": True, "changed": True, "said": []}}
    done = world.run(world.host("gpu01", [HALF]))
    assert (done.exit_code, done.hosts["gpu01"].status) == (1, "failed")
    assert [error.code for error in done.errors] == ["apt.dpkg_failed"]


def test_interrupted(world, monkeypatch):
    monkeypatch.setattr(
        rescue.left_behind, "still_running", lambda fleet, names: dict.fromkeys(names, "dpkg still runs there")
    )
    issue = Issue(code="run.interrupted", host="gpu01", message="interrupted", hint="again")
    world.failed["gpu01"] = HostOutcome(status="interrupted", issue=issue)
    done = world.run(world.host("gpu01", [HALF]))
    assert (done.exit_code, done.hosts["gpu01"].status) == (130, "interrupted")
    assert done.errors[0].because == ["dpkg still runs there"]


def test_the_view(world, capsys):
    world.answers["module.reload"] = {
        "ok": False,
        "changed": False,
        "said": ["in use by Xorg (pid 7)"],
        "hint": "--stop-holders does",
    }
    shown = []
    done = world.run(
        world.host("gpu01", [STALE], [STALE], []),
        world.host("gpu02", []),
        world.host("gpu03", [MANUAL]),
        agree=lambda document: shown.append(document) or True,
    )
    renderer = Renderer()
    renderer.show(shown[0])
    before = capsys.readouterr().out
    assert "gpu01  to rescue" in before and "repair   load the modules anew" in before
    assert "/sys/module/nvidia/version: 580.126.20" in before
    renderer.show(shown[1])
    second = capsys.readouterr().out
    assert "not done load the modules anew" in second and "hint:    --stop-holders does" in second
    assert "round 2" in second and "gpu02" not in second, "hosts on which nothing is done are not told again"
    renderer.show(done)
    after = capsys.readouterr().out
    assert "gpu01  rescued" in after and "not done load the modules anew" in after and "in use by Xorg" in after
    assert "changed  no package, 1 reboot" in after
    assert "gpu02  well  nothing to rescue" in after
    assert "next     cool it" in after
    assert "rescue: 3 hosts: 1 rescued and proven, 1 well, 1 still broken" in after


def test_offline_needs_no_host(world, tmp_path):
    fleet = world.fleet(world.host("gpu01", []), world.host("gpu02", []))
    with pytest.raises(Exception, match="2 hosts need a script each"):
        rescue.offline(fleet)
    done = rescue.offline(fleet, tmp_path / "scripts", tmp_path)
    assert done.exit_code == 0
    for name in ("gpu01", "gpu02"):
        path = Path(done.hosts[name].path)
        assert path == tmp_path / "scripts" / f"{name}.py"
        assert path.read_text().startswith("#!/usr/bin/env python3") and path.stat().st_mode & 0o111
    alone = rescue.offline(world.fleet(world.host("gpu01", [])), None, tmp_path)
    assert alone.hosts["gpu01"].path is None and alone.hosts["gpu01"].script.startswith("#!/usr/bin/env python3")


# --- a card that is sick again

UUID = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def sick(uuid=UUID):
    reset = Repair(action="gpu.reset", words="reset the card", args={"cards": ["0000:9b:00.0"]})
    repairs = [
        reset,
        Repair(action="reboot", words="reboot, which resets every card"),
        Repair(action="manual", words="hardware: provision dossier HOST writes the report for the vendor"),
    ]
    message = "Xid 95 at 0000:9b:00: an uncontained error in the card's memory"
    return Cause(code="gpus.xid", level="error", message=message, repairs=repairs, cards=["0000:9b:00"])


@pytest.mark.parametrize("known_by", ["memory", "record of the host", "slot"])
def test_the_same_error_of_a_card_is_never_met_with_the_same_repair(world, known_by):
    """Reset, then reboot, then hardware: each rescue finds the error again after the one before had ended it."""
    world.cards = (
        [] if known_by == "slot" else [{"index": 0, "name": "H100", "uuid": UUID, "bus_id": "00000000:9B:00.0"}]
    )
    offered = []
    for _ in range(3):
        host = world.host("gpu01", [sick()], [])
        document = world.run(host)
        result = document.hosts["gpu01"]
        offered.append([step.action for one in result.rounds for step in one.steps] or result.next)
        if known_by != "memory":
            kept = sorted(world.tmp_path.glob("*/history.json"))[-1].read_text()
            world.runs_before.append(json.loads(kept)["hosts"]["gpu01"])
            for file in world.tmp_path.glob("cards/*"):
                file.unlink()
        # files of runs are named by the second
        time.sleep(1 if known_by != "memory" else 0)
    assert offered[:2] == [["gpu.reset"], ["reboot"]]
    assert offered[2] == (
        "hardware: a reset and a reboot did not last; provision dossier gpu01 writes the report for the vendor"
    )
    assert "tried before: reset " in " ".join(document.hosts["gpu01"].left[0].evidence)


def test_a_card_that_was_exchanged_starts_anew(world):
    world.cards = [{"index": 0, "name": "H100", "uuid": UUID, "bus_id": "00000000:9B:00.0"}]
    world.run(world.host("gpu01", [sick()], []))
    world.cards[0]["uuid"] = UUID.replace("0f1e", "1f1e")
    (one,) = world.run(world.host("gpu01", [sick()], [])).hosts["gpu01"].rounds
    assert one.steps[0].action == "gpu.reset"


def test_a_reset_that_could_not_be_tried_is_offered_again(world):
    world.cards = [{"index": 0, "name": "H100", "uuid": UUID, "bus_id": "00000000:9B:00.0"}]
    busy = {"ok": False, "changed": False, "said": ["in use"], "code": "gpu.in_use"}
    world.answers["gpu.reset"] = busy
    first = world.run(world.host("gpu01", [sick()], [sick()], []))
    assert [one.steps[0].action for one in first.hosts["gpu01"].rounds] == ["gpu.reset", "reboot"]
    world.answers.clear()
    (one,) = world.run(world.host("gpu01", [sick()], [])).hosts["gpu01"].rounds
    assert one.steps[0].action == "gpu.reset", "the reboot had its turn, the reset never"
