"""A run over three hosts that is interrupted, goes on, and is taken back: what each host has, and what is said of it.

The hosts are folders of this machine that answer like hosts; Ansible, the locks, the records and the lock of before are real.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record
from ansible_collections.gpu.provision.plugins.module_utils.run import tasks
from provision import cli, inventory, remote
from provision.cli import applying
from provision.cli.base import Settings
from provision.commands import actions
from provision.commands import plan as plan_command
from provision.commands import verify as verify_command
from provision.facts import Facts
from provision.lock.model import load
from provision.parts.plan import HostPlan, PackageChange, Reboot, Step
from provision.rollout.options import RolloutOptions
from provision.runs.fleet import fleet_of
from tests.unit.hosts import host

OLD, NEW = "580.95.05", "580.126.20"
NAMES = ("gpu1", "gpu2", "gpu3")
STILL = "the change of packages (process 4711 (apt-get) of root)"
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# "slow" in the folder: the first host is not through with its packages when the run is interrupted.
PLAY = """
- hosts: all
  gather_facts: false
  vars:
    folder: "{{ lookup('env', 'FOLDER') }}/{{ inventory_hostname }}"
    plan: "{{ (lookup('ansible.builtin.file', gpu_provision_plan_file) | from_json).hosts[inventory_hostname] }}"
  tasks:
    - name: "host_packages : Change packages and holds, in one transaction"
      ansible.builtin.wait_for: {path: "{{ folder }}/slow", state: absent, timeout: 60}
    - name: Have them
      ansible.builtin.copy: {content: "{{ plan.summary }}", dest: "{{ folder }}/version", mode: "0600"}
    - name: Boot
      ansible.builtin.copy: {content: "{{ plan.summary }}", dest: "{{ folder }}/booted", mode: "0600"}
"""


class Host:
    """A folder that answers like a host."""

    def __init__(self, folder):
        self.folder, self.lock, self.history = folder, str(folder / "lock.json"), str(folder / "history")
        self.running = []

    def text(self, name):
        return (self.folder / name).read_text()

    def packages(self):
        return {name: row.version for name, row in facts(self.text("version")).packages.items()}

    def call(self, module, args, *, timeout=60):
        args = dict(args)
        if module == "probe.facts":
            lock = Path(self.lock)
            found = facts(self.text("version")).model_dump(mode="json", by_alias=True)
            return {**found, "run_lock": lock.read_text() if lock.exists() else None}
        if module == "run.tasks":
            return {"running": self.running}
        if module == "apt.settle":
            return {"settled": True}
        if module == "run.lock":
            op = {"acquire": run_lock.acquire, "renew": run_lock.renew, "read": run_lock.read}[args.pop("op")]
            return op(**args, path=self.lock)
        if args["op"] == "read":
            return {**run_record.read(args.get("newest"), self.history), "lock": run_lock.read(self.lock)}
        return run_record.leave(args["record"], args["run"], self.history, self.lock)

    def close(self):
        return


def facts(version):
    return host(["H100"], f"580-server {version} open signed")


def plan_host(name, call, values, *rest):
    """What differs from the wanted version, or from the lock: packages, then the reboot."""
    there = {n: row.version for n, row in Facts.of_host(call("probe.facts", {})).packages.items()}
    lock = values.get("gpu_provision_lock") or ""
    wanted = load(Path(lock)).for_host(name).packages if lock.endswith(".yml") else packages(NEW)
    changes = [
        PackageChange(action="upgrade", name=n, from_version=there.get(n), version=version)
        for n, version in wanted.items()
        if there.get(n) != version
    ]
    # The version is in the name of the firmware's package.
    gone = [n for n in there if n.startswith("nvidia-firmware") and n not in wanted]
    changes += [PackageChange(action="remove", name=n, from_version=there[n]) for n in gone]
    version = OLD if any(OLD in v for v in wanted.values()) else NEW
    booted = (Path(os.environ["FOLDER"]) / name / "booted").read_text() == version
    steps = [Step(id="packages", title="Install", because="it is older")] if changes else []
    return HostPlan(
        host=name,
        status="converged" if booted and not changes else "changes",
        summary=version,
        packages=changes,
        steps=steps,
        reboot=Reboot(needed=not booted, because=["the old driver runs"]),
    )


def packages(version):
    return {name: row.version for name, row in facts(version).packages.items()}


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    found = {name: Host(tmp_path / name) for name in NAMES}
    for one in found.values():
        one.folder.mkdir()
        (one.folder / "version").write_text(OLD)
        (one.folder / "booted").write_text(OLD)
    (tmp_path / "site.yml").write_text(PLAY)
    monkeypatch.setattr(remote, "open_session", lambda one: found[one.name])
    monkeypatch.setattr(actions, "_PLAYBOOK", tmp_path / "site.yml")
    monkeypatch.setattr(plan_command, "plan_host", plan_host)
    monkeypatch.setattr(verify_command, "verify_host", lambda call, values, catalog, look: [])
    for name, value in (("FOLDER", tmp_path), ("HOME", tmp_path), ("COLUMNS", "120")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": dict.fromkeys(NAMES), "vars": LOCAL}}))
    (tmp_path / "secrets.yml").write_text("my_token: gehe1m\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return found


def command(capsys, *words):
    code = cli.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def lists(hosts):
    return {name: one.packages() for name, one in hosts.items()}


def interrupted(capsys, folder, *words):
    """Run a command; Ctrl-C once it is in the first host's long task."""

    def wait():
        events = None
        for _ in range(600):
            events = next(folder.glob(".local/state/gpu-provision/runs/*/wave-01/events.jsonl"), None)
            if events and "Change packages" in events.read_text():
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=wait)
    thread.start()
    result = command(capsys, *words)
    thread.join()
    return result


def test_interrupted_gone_on_with_and_taken_back(capsys, hosts, monkeypatch, tmp_path):
    (hosts["gpu1"].folder / "slow").touch()
    hosts["gpu1"].running = [STILL]
    before = lists(hosts)
    words = ["-i", "hosts.json", "-l", "gpu*", "-e", "nvidia_driver_branch=580-server", "-e", "@secrets.yml"]
    code, out, err = interrupted(capsys, tmp_path, *words, "apply", "--canary", "1", "--batch", "1", "--yes")
    assert code == 130, err
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert error == "error: interrupted"
    assert (
        f"because: in the middle: gpu1: in 'Change packages and holds, in one transaction'; {STILL} still runs there"
        in err
    )
    assert "because: not begun: gpu2, gpu3 (2 hosts)" in err
    hint = err.split("hint: to continue: ")[1].splitlines()[0]
    assert err.count("hint:") == 1 and "gehe1m" not in err + out

    # The transaction on the host goes on to its end.
    (hosts["gpu1"].folder / "version").write_text(NEW)
    (hosts["gpu1"].folder / "slow").unlink()
    hosts["gpu1"].running = []
    between = lists(hosts)
    assert between == {"gpu1": packages(NEW), "gpu2": packages(OLD), "gpu3": packages(OLD)}
    monkeypatch.chdir(tmp_path / "elsewhere")
    program, *typed = shlex.split(hint)
    assert program == "provision"
    code, out, err = command(capsys, *typed, "--yes")
    assert code == 0 and "apply: 3 hosts in" in out and "3 done and proven" in out, out + err
    after = lists(hosts)
    assert after == dict.fromkeys(NAMES, packages(NEW))

    code, out, err = command(capsys, "history", "last")
    assert (
        "gpu1, gpu2, gpu3 (3 hosts)" not in out
        and "gpu1 to gpu3 (3 hosts)  done  driver 580.95.05 to 580.126.20" in out
    ), out
    shown = " ".join(out.split())
    assert "session 1" in shown and "interrupted: gpu1; not started: gpu2, gpu3 (2 hosts)" in shown, out
    assert "session 2" in shown and "done: gpu1 to gpu3 (3 hosts)" in shown, out
    for one in hosts.values():
        (record,) = run_record.read(folder=one.history)["runs"]
        assert record["status"] == "done" and {row[0] for row in record["packages"]} == _moved()

    code, out, err = command(capsys, "-i", str(tmp_path / "hosts.json"), "apply", "--rollback", "last", "--yes")
    assert code == 0 and "3 done and proven" in out, out + err
    assert lists(hosts) == before


def _moved():
    old, new = packages(OLD), packages(NEW)
    return {name for name in {*old, *new} if old.get(name) != new.get(name)}


# The one above rolls back too.
@pytest.mark.thorough
def test_a_rollback_names_every_host_that_it_leaves_out(capsys, hosts, tmp_path):
    """gpu1 was interrupted, and its packages are new; the others were not begun."""
    (hosts["gpu1"].folder / "slow").touch()
    code, _, err = interrupted(capsys, tmp_path, "-i", "hosts.json", "apply", "--batch", "1", "--yes")
    assert code == 130 and "nothing of it runs there any more" in err
    (hosts["gpu1"].folder / "version").write_text(NEW)
    (hosts["gpu1"].folder / "slow").unlink()
    code, out, err = command(capsys, "-i", "hosts.json", "apply", "--rollback", "last", "--yes")
    assert code == 0, out + err
    assert hosts["gpu1"].text("version") == OLD
    assert "gpu2, gpu3 (2 hosts)  left out  the run did not change it" in out
    assert "1 done and proven, 2 left out" in out

    code, out, err = command(capsys, "-i", "hosts.json", "apply", "--yes", "-l", "gpu1,gpu2")
    assert code == 0, out + err
    code, out, err = command(capsys, "-i", "hosts.json", "apply", "--rollback", "last", "--yes", "-l", "gpu2")
    assert code == 0 and "1 done and proven, 1 left out" in out, out + err
    assert "gpu1  left out  it is not among the hosts of this call" in out


def test_the_next_run_says_that_it_was_killed(capsys, hosts, tmp_path):
    code, _, _ = command(capsys, "-i", "hosts.json", "apply", "--yes", "-e", "my_token=gehe1m", "-l", "gpu1")
    (path,) = tmp_path.glob(".local/state/gpu-provision/runs/*/state.json")
    state = json.loads(path.read_text())
    text = json.dumps(state)
    assert "my_token" in text and "gehe1m" not in text
    state.update(ended=None, process={"pid": 4194303, "started": "1", "boot_id": "x"})
    state["hosts"]["gpu1"]["status"] = "running"
    path.write_text(json.dumps(state))
    record = path.with_name("history.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "ended": None}))
    cause = "this machine was restarted or lost power in the middle of it"
    shown = " ".join(command(capsys, "history", "last")[1].split())
    assert (
        f"it was interrupted: {cause}" in shown
        and f"provision apply --resume {state['run']} -e <my_token=...>" in shown
    ), shown
    code, _, err = command(capsys, "apply", "--resume", "last", "--yes")
    assert code == 64 and "was interrupted: this machine was restarted or lost power in the middle of it" in err
    assert (
        f"hint: give them again: provision apply --resume {state['run']} -e <my_token=" in err and "gehe1m" not in err
    )


# ---- what is kept of how a run was started, and what is not ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "values", "files", "again", "asks"),
    [
        (
            ["nvidia_driver_branch=580 nvidia_driver_update=true"],
            {"nvidia_driver_branch": "580", "nvidia_driver_update": "true"},
            0,
            [],
            [],
        ),
        (
            ['{"cuda_toolkit_versions": ["12.8"], "my_token": "gehe1m"}'],
            {"cuda_toolkit_versions": ["12.8"]},
            0,
            ["my_token"],
            [],
        ),
        (["@secrets.yml", "ansible_user=ada"], {"ansible_user": "ada"}, 1, [], []),
        (["ansible_become_password=gehe1m"], {}, 0, [], ["-K"]),
        (["gpu_proxy_https=http://ada:gehe1m@proxy:3128"], {}, 0, ["gpu_proxy_https"], []),
        (["gpu_proxy_https=http://proxy:3128"], {"gpu_proxy_https": "http://proxy:3128"}, 0, [], []),
    ],
)
def test_what_a_run_keeps_of_its_variables(tmp_path, monkeypatch, given, values, files, again, asks):
    monkeypatch.chdir(tmp_path)
    Path("secrets.yml").write_text("my_token: gehe1m\nnvidia_driver_branch: '595'\n")
    fleet = fleet_of(inventory.load(["a,"], None, given))
    where = applying._where(Settings(extra_vars=given, limit="@hosts.txt,a"), fleet, RolloutOptions())
    assert (where.values, len(where.files), where.extra_vars, where.asks) == (values, files, again, asks)
    assert "gehe1m" not in where.model_dump_json() and where.limit == f"@{tmp_path}/hosts.txt,a"


def test_variables_out_of_a_pipe_have_to_be_given_again(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fleet = SimpleNamespace(
        inventory=SimpleNamespace(extra_vars={"x": 1, "nvidia_driver_branch": "580"}, sources=["a,"], vault_ids=[])
    )
    where = applying._where(Settings(extra_vars=[f"@{pipe}"]), fleet, RolloutOptions())
    assert (where.files, where.extra_vars, where.values) == ([], ["x", "nvidia_driver_branch"], {})


# ---- what still runs on a host --------------------------------------------------------------------------------------------


def test_a_task_that_lost_its_ansible_is_found_by_how_it_was_started(tmp_path, monkeypatch):
    # Other tests of this moment have tasks too.
    monkeypatch.setattr(tasks, "_MOST", 1000)
    name = "gpu-provision-x"
    (tmp_path / name).symlink_to("/bin/sleep")
    task = subprocess.Popen(["sh", "-c", f"echo BECOME-SUCCESS-abcdefghijkl; {tmp_path}/{name} 60; true"])
    try:
        for _ in range(100):
            found = [text for text in tasks.running(str(tmp_path / "none")) if text.startswith(name)]
            if found:
                break
            time.sleep(0.05)
        assert len(found) == 1 and re.fullmatch(rf"{name} \(process \d+\)", found[0]), found
    finally:
        subprocess.run(["pkill", "-P", str(task.pid)], check=False)
        task.wait()


def test_a_transaction_that_goes_on_is_named(tmp_path):
    lock = tmp_path / "lock"
    lock.touch()
    holder = subprocess.Popen(["flock", str(lock), "sleep", "60"])
    try:
        for _ in range(100):
            found = tasks.running(str(lock))
            if found and found[0].startswith("the change of packages"):
                break
            time.sleep(0.05)
        assert len(found) == 1 and f"process {holder.pid} (flock)" in found[0], found
    finally:
        subprocess.run(["pkill", "-P", str(holder.pid)], check=False)
        holder.wait()
