"""apt_transaction with real apt and dpkg: what keeps a box alive."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import subprocess
import termios
import time
from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import progress as apt_progress
from provision.runs.following import described
from tests import sample

from .packages import NEW, OLD, driver, names, pinned
from .rootfs import Repo, Root, cut_power, kill_session

pytestmark = pytest.mark.rootfs
SWITCH = {"install": pinned("580", NEW), "remove": names("550"), "family_version": "580.126.20", "reserve_mib": 1}


def held(root: Root, wanted: list[str]) -> dict[str, str]:
    """dpkg's view of some packages."""
    now = root.selections()
    return {name: now.get(name, "absent") for name in wanted}


def test_branch_switch_in_one_transaction(host: Root) -> None:
    assert held(host, names("550")) == dict.fromkeys(names("550"), f"hi {OLD}")
    result = host.module("apt_transaction", **SWITCH)
    assert result.get("changed"), result
    assert result["held"] == names("580")
    assert result["unheld"] == names("550")
    assert held(host, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")
    assert host.selections()["lab-tool"] == "ii 1.0"
    assert not [name for name, state in held(host, names("550")).items() if state[1] == "i"]
    log = host.path / result["log"].lstrip("/")
    assert log.read_text().count("Setting up nvidia-dkms-580-open") == 1
    assert log.stat().st_mode & 0o777 == 0o640
    assert not (host.path / "var/lib/gpu-provision/transaction.json").exists()


def test_second_run_starts_nothing(host: Root) -> None:
    # Any program that is started would fail: apt, dpkg and apt-cache are gone.
    for program in ("apt-get", "apt-cache", "dpkg", "apt-mark"):
        (host.path / "usr/bin" / program).rename(host.path / "usr/bin" / (program + ".away"))
    logs = sorted((host.path / "var/log/gpu-provision").iterdir())
    result = host.module("apt_transaction", install=pinned("550", OLD), remove=names("580"), update_cache=True)
    assert result["changed"] is False, result
    assert (result["changes"], result["held"], result["unheld"], result["log"]) == ([], [], [], None)
    assert [(part["before"], part["after"]) for part in result["diff"]] == [("", "")]
    assert sorted((host.path / "var/log/gpu-provision").iterdir()) == logs


def test_check_mode_tells_what_a_run_does(host: Root) -> None:
    before = (host.path / "var/lib/dpkg/status").read_bytes()
    told = host.module("apt_transaction", check=True, **SWITCH)
    assert told.get("changed"), told
    assert (host.path / "var/lib/dpkg/status").read_bytes() == before
    done = host.module("apt_transaction", **SWITCH)
    assert {(c["action"], c["name"], c["version"]) for c in told["changes"]} == {
        (c["action"], c["name"], c["version"]) for c in done["changes"]
    }
    for part in ("held", "unheld"):
        assert told[part] == done[part]
    assert told["diff"] == done["diff"]
    assert "nvidia-utils-580 580.126.20-0ubuntu1 held\n" in done["diff"][0]["after"]
    again = host.module("apt_transaction", check=True, **SWITCH)
    assert again["changed"] is False


def test_check_mode_before_the_sources_are_there_shows_the_plan(root: Root) -> None:
    plan = [{"action": "install", "name": "nvidia-utils-580", "version": NEW, "from_version": None}]
    asked = {"install": [f"nvidia-utils-580={NEW}"], "update_cache": True}
    told = root.module("apt_transaction", check=True, **asked, expect=plan)
    assert (told.get("changed"), told.get("held")) == (True, ["nvidia-utils-580"]), told
    assert told["changes"] == plan
    unplanned = root.module("apt_transaction", check=True, **asked)
    assert unplanned["code"] == "apt.package_not_found", unplanned


def test_failing_script_gives_the_holds_back_and_the_next_run_finishes(root: Root, repo: Repo) -> None:
    script = """
echo "Building module nvidia"
if [ ! -e /cured ]; then
  echo "Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)"
  echo "Consult /var/lib/dkms/nvidia/580.126.20/build/make.log for more information."
  exit 10
fi
"""
    repo.add("lab-tool", "1.0")
    driver(repo, "550", OLD)
    driver(repo, "580", NEW, postinst=script)
    repo.publish()
    root.module("apt_sources", **repo.spec())
    first = root.module("apt_transaction", install=pinned("550", OLD), update_cache=True, reserve_mib=1)
    assert first.get("changed"), first
    result = root.module("apt_transaction", **SWITCH)
    assert result.get("failed"), result
    assert result["code"] == "apt.dpkg_failed"
    assert result["msg"] == "nvidia-dkms-580-open failed: its post-installation script ended with exit status 10"
    assert "Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)" in result["because"]
    assert "the compiler's messages: /var/lib/dkms/nvidia/580.126.20/build/make.log" in result["because"]
    assert result["hint"]
    states = held(root, names("580"))
    assert {state[0] for state in states.values()} == {"h"}, states
    assert states["nvidia-dkms-580-open"] == f"hF {NEW}"

    # Nothing is left to change, only to set up: that it still fails must not look like success.
    again = root.module("apt_transaction", **SWITCH)
    assert (again.get("failed"), again["code"]) == (True, "apt.dpkg_failed"), again
    assert again["msg"] == result["msg"]
    assert {state[0] for state in held(root, names("580")).values()} == {"h"}

    root.write("/cured", "")
    finished = root.module("apt_transaction", **SWITCH)
    assert finished.get("changed"), finished
    assert held(root, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")


def test_a_broken_old_package_is_replaced(root: Root, repo: Repo) -> None:
    # B4: the package that cannot be configured is the one that the transaction takes away.
    repo.add("lab-tool", "1.0")
    driver(repo, "550", OLD, postinst="exit 10")
    driver(repo, "580", NEW)
    repo.publish()
    root.module("apt_sources", **repo.spec())
    first = root.module("apt_transaction", install=pinned("550", OLD), update_cache=True, reserve_mib=1)
    assert first["code"] == "apt.dpkg_failed", first
    result = root.module("apt_transaction", **SWITCH)
    assert result.get("changed"), result
    assert result["warnings"] == ["nvidia-dkms-550-open could not be finished before the change"]
    assert held(root, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")


def test_killed_in_the_middle_the_worker_finishes_and_holds(root: Root, repo: Repo) -> None:
    script = "touch /reached\nn=0\nwhile [ ! -e /go ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done"
    repo.add("lab-tool", "1.0")
    driver(repo, "580", NEW, postinst=script)
    repo.publish()
    root.module("apt_sources", **repo.spec())
    process = root.start("apt_transaction", {"install": pinned("580", NEW), "update_cache": True, "reserve_mib": 1})
    root.wait_for((root.path / "reached").exists)
    kill_session(process)
    journal = root.path / "var/lib/gpu-provision/transaction.json"
    assert journal.exists()
    root.write("/go", "")
    root.wait_for(lambda: not journal.exists())
    assert held(root, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")
    again = root.module("apt_transaction", install=pinned("580", NEW))
    assert again["changed"] is False, again


def test_the_next_run_waits_for_the_worker_of_a_killed_one(root: Root, repo: Repo) -> None:
    repo.add("lab-tool", "1.0")
    driver(repo, "580", NEW, postinst="touch /reached; sleep 4")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    process = root.start("apt_transaction", {"install": pinned("580", NEW), "update_cache": True, "reserve_mib": 1})
    root.wait_for((root.path / "reached").exists)
    kill_session(process)
    result = root.module("apt_transaction", install=pinned("580", NEW))
    assert not result.get("failed"), result
    assert result["waited_for"]["comm"] == "gpu-provision"
    assert held(root, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")


def test_a_journal_without_a_worker_is_recovered(host: Root) -> None:
    # As after a power cut between unhold and hold: a journal, no worker, no holds.
    host.sh("for p in " + " ".join(names("550")) + "; do echo $p install; done | dpkg --set-selections")
    journal = {
        "started": "2026-11-28T03:12:00Z",
        "hold": True,
        "release": False,
        "extra_hold": [],
        "log": None,
        "held_before": names("550"),
        "install": [],
        "remove": [],
        "boot_id": None,
        "pid": 1,
    }
    host.write("/var/lib/gpu-provision/transaction.json", json.dumps(journal))
    result = host.module("apt_transaction", install=pinned("550", OLD))
    assert result.get("changed"), result
    assert result["recovered"] == {"started": "2026-11-28T03:12:00Z", "log": None, "held": names("550")}
    assert held(host, names("550")) == dict.fromkeys(names("550"), f"hi {OLD}")
    assert host.module("apt_transaction", install=pinned("550", OLD))["changed"] is False


DAMAGES = {
    "a brace": "echo '{' > {}",
    "empty": "true > {}",
    "a list": "echo '[]' > {}",
    "another object": "echo '{\"pid\": 1}' > {}",
    "cut off": "head -c 20 {}.whole > {}",
    "not UTF-8": "printf '\\377\\376' > {}",
    "NUL bytes": "head -c 4096 /dev/zero > {}",
    "a folder": "mkdir {}",
    "a FIFO": "mkfifo {}",
    "a link": "ln -s {}.whole {}",
    "1 GiB": "truncate -s 1G {}",
}


def test_a_damaged_journal_costs_no_hold(host: Root) -> None:
    journal, copy = (f"/var/lib/gpu-provision/transaction{part}.json" for part in ("", "-copy"))
    lost = {
        "started": "2026-11-28T03:12:00Z",
        "hold": True,
        "release": False,
        "extra_hold": [],
        "log": None,
        "held_before": [*names("550"), "lab-tool"],
        "install": [],
        "remove": [],
        "boot_id": None,
        "pid": 1,
    }
    host.write(journal + ".whole", json.dumps(lost))
    wanted = dict.fromkeys(names("550"), f"hi {OLD}")
    damages = dict(sample.share(list(DAMAGES.items()), 3))
    for how, command in damages.items():
        for has_copy in (True, False):
            where = f"{how}, {'with' if has_copy else 'without'} its copy"
            lifted = " ".join(names("550")) + (" lab-tool" if has_copy else "")
            host.sh(f"for p in {lifted}; do echo $p install; done | dpkg --set-selections")
            host.sh(f"rm -rf {journal}; " + command.replace("{}", journal))
            if has_copy:
                host.write(copy, json.dumps(lost))
            result = host.module("apt_transaction", install=pinned("550", OLD))
            assert result.get("changed"), (where, result)
            now = held(host, [*names("550"), "lab-tool"])
            assert now == wanted | {"lab-tool": "hi 1.0"}, where
            (told,) = result["warnings"]
            assert f"{journal} is damaged: " in told, where
            assert ("were restored from its copy" if has_copy else "is on hold again") in told, where
            again = host.module("apt_transaction", install=pinned("550", OLD))
            assert (again["changed"], again["warnings"]) == (False, []), where
    kept = list((host.path / "var/lib/gpu-provision").glob("transaction.json.damaged-*"))
    assert len(kept) == 2 * len(damages)


@pytest.mark.parametrize("old", [True, False])
def test_another_user_with_the_lock_is_named(host: Root, old: bool) -> None:
    lock = "/var/lib/gpu-provision/transaction.lock"
    if old:
        (host.path / lock.lstrip("/")).chmod(0o644)
    argv = ["chroot", "--userspec=1234:1234", str(host.path), "flock", "-x", lock, "sh", "-c", "echo; sleep 600"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            assert stranger.stderr is not None
            assert stranger.stdout.readline() == (b"\n" if old else b"")
            result = host.module("apt_transaction", **SWITCH, lock_timeout=1)
            if not old:
                assert b"Permission denied" in stranger.stderr.read()
                assert result.get("changed"), result
                return
            assert result["code"] == "apt.lock_timeout", result
            assert f"process {stranger.pid} (flock) of user 1234" in result["msg"]
            assert f"kill {stranger.pid}" in result["hint"]
            assert held(host, names("550")) == dict.fromkeys(names("550"), f"hi {OLD}")
        finally:
            stranger.kill()
            cut_power(host)
    assert host.module("apt_transaction", **SWITCH).get("changed")
    assert host.path.joinpath(lock.lstrip("/")).stat().st_mode & 0o777 == 0o600


# Stops at the n-th script of a package that is installed, of four packages with two scripts each.
STOP = """
echo >> /points
if [ "$(wc -l < /points)" = "$(cat /cut 2>&1)" ]; then touch /reached; sleep 600; fi
"""


def cut_off(root: Root, repo: Repo, point: int, *, removal: bool = False) -> None:
    """Branch 550 is installed and held; the power is cut in the middle of the way to 580, or of 550's removal."""
    repo.add("lab-tool", "1.0")
    driver(repo, "550", OLD, everywhere={"postrm": STOP} if removal else {})
    driver(repo, "580", NEW, everywhere={} if removal else {"preinst": STOP, "postinst": STOP})
    repo.publish()
    root.module("apt_sources", **repo.spec())
    asked = {"install": pinned("550", OLD), "family_version": "550.163.01", "reserve_mib": 1}
    assert root.module("apt_transaction", **asked, update_cache=True).get("changed")
    root.sh("echo lab-tool hold | dpkg --set-selections")
    root.write("/cut", f"{point}\n")
    process = root.start("apt_transaction", SWITCH)
    root.wait_for((root.path / "reached").exists)
    cut_power(root)
    process.communicate()
    (root.path / "cut").unlink()
    assert json.loads(root.read(apt_common.UNFINISHED))["install"] == SWITCH["install"]


def goes_on(root: Root) -> None:
    # As the planner asks: only what dpkg's record and its journal still have has to go.
    there = {p.name for p in apt_common.read_status(str(root.path / "var/lib/dpkg/status")) if p.present}
    asked = SWITCH | {"remove": [name for name in names("550") if name in there]}
    check = root.module("apt_transaction", check=True, **asked)
    assert not check.get("failed"), check
    result = root.module("apt_transaction", **asked, expect=check["changes"], update_cache=True)
    assert not result.get("failed"), result
    assert held(root, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")
    assert root.selections()["lab-tool"] == "hi 1.0"
    assert root.sh("dpkg --audit") == ""
    words = "an earlier run was interrupted; its packages were configured first"
    assert any(words in text for text in result["warnings"]), result["warnings"]
    assert not (root.path / apt_common.UNFINISHED.lstrip("/")).exists(), (
        "the note of the change that was interrupted stays"
    )
    assert root.module("apt_transaction", **SWITCH, expect=[])["changed"] is False


@pytest.mark.parametrize("point", range(1, 9))
def test_after_a_power_cut_the_plan_holds(root: Root, repo: Repo, point: int) -> None:
    cut_off(root, repo, point)
    goes_on(root)


@pytest.mark.parametrize("point", [2, 4])
def test_after_a_power_cut_while_the_old_branch_goes_the_plan_holds(root: Root, repo: Repo, point: int) -> None:
    # What is gone stands as gone in dpkg's journal alone, which apt does not read.
    cut_off(root, repo, point, removal=True)
    assert list((root.path / "var/lib/dpkg/updates").glob("[0-9]*"))
    goes_on(root)


@pytest.mark.parametrize("point", [3, 6])
def test_after_a_power_cut_in_a_later_call_of_dpkg_the_plan_holds(root: Root, repo: Repo, point: int) -> None:
    # The first call has written into the status file what it unpacked; what the second did is not in there yet.
    cut_off(root, repo, point)
    status = root.read("/var/lib/dpkg/status")
    before, after = (f"Package: lab-tool\nStatus: hold ok {state}\n" for state in ("installed", "unpacked"))
    assert before in status
    root.write("/var/lib/dpkg/status", status.replace(before, after))
    goes_on(root)


@pytest.mark.parametrize(
    ("package", "lists"), [("lab-tool", True), ("nvidia-utils-550", True), ("nvidia-utils-550", False)]
)
def test_what_dpkg_was_cut_off_at_is_put_in_again_whoever_it_belongs_to(
    host: Root, repo: Repo, package: str, lists: bool
) -> None:
    repo.add("lab-extra", "1.0", Depends="lab-tool, nvidia-utils")
    repo.publish()
    host.sh("apt-get -q update && apt-get -q -y install lab-tool")
    # Killed while it was unpacked, and apt takes it for installed.
    status = host.read("/var/lib/dpkg/status")
    at = status.index(f"Package: {package}\n")
    broken = re.sub("(install|hold) ok installed", "\\1 reinstreq half-installed", status[at:], count=1)
    host.write("/var/lib/dpkg/status", status[:at] + broken)
    asked = {"install": ["lab-extra=1.0"], "reserve_mib": 1}
    plan = host.module("apt_transaction", check=True, **asked)
    assert not plan.get("failed"), plan
    if not lists:
        host.sh("rm -r /var/lib/apt/lists/*")
    result = host.module("apt_transaction", **asked, expect=plan["changes"], update_cache=True)
    assert result.get("changed"), result
    assert host.selections()["lab-extra"] == "ii 1.0"
    assert host.selections()[package][1] == "i"
    assert host.sh("dpkg --audit") == ""


def test_what_dpkg_was_about_to_forget_goes_and_nobody_elses(root: Root, repo: Repo) -> None:
    cut_off(root, repo, 3)
    for name in ("nvidia-utils-535", "stranger"):
        row = f"Package: {name}\nStatus: purge ok config-files\nArchitecture: amd64\nVersion: 1.0\n"
        row += "Maintainer: nobody <root@localhost>\nDescription: gone\n"
        root.write("/var/lib/dpkg/status", root.read("/var/lib/dpkg/status").rstrip("\n") + f"\n\n{row}\n")
    goes_on(root)
    assert "stranger pc" in root.sh("dpkg-query -W -f '${Package} ${db:Status-Abbrev}' stranger")
    assert "nvidia-utils-535" not in root.read("/var/lib/dpkg/status")


def test_after_a_power_cut_a_moved_repository_is_refused(root: Root, repo: Repo) -> None:
    cut_off(root, repo, 3)
    plan = root.module("apt_transaction", check=True, **SWITCH)["changes"]
    stale = [dict(change, version="1.0") if change["name"] == "nvidia-utils-580" else change for change in plan]
    result = root.module("apt_transaction", **SWITCH, expect=stale)
    assert result["code"] == "apt.plan_moved", result
    assert result["msg"] == "apt's answer differs from the plan"
    assert any("nvidia-utils-580: planned install 1.0, now" in line for line in result["because"])
    assert "an earlier run was interrupted; its packages were configured first" in result["because"][-1]
    assert {state[0] for state in held(root, names("580")).values() if state != "absent"} <= {"h"}


def test_lock_is_waited_for_and_its_holder_named(host: Root) -> None:
    with open(host.path / "var/lib/dpkg/lock-frontend", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        late = host.module("apt_transaction", **SWITCH, lock_timeout=1)
        assert late["code"] == "apt.lock_timeout", late
        own = Path("/proc/self/comm").read_text().strip()
        assert f"process {os.getpid()} ({own})" in late["msg"]
        process = host.start("apt_transaction", SWITCH)
        time.sleep(2)
    out, _ = process.communicate(timeout=60)
    result = json.loads(out)
    assert result.get("changed"), result
    assert (result["waited_for"]["pid"], result["waited_for"]["comm"]) == (os.getpid(), own)
    assert result["waited_for"]["seconds"] > 0


PROMPTS = {
    "stdin": "echo 'MOK password:'; read answer && exit 3; exit 0",
    "terminal": "(echo 'MOK password:' >/dev/tty; read answer </dev/tty) 2>/dev/null; exit 0",
    "debconf": ". /usr/share/debconf/confmodule; db_input critical lab/secret || true; db_go || true; "
    '[ "$DEBIAN_FRONTEND" = noninteractive ]',
}


def at_a_terminal(root: Root, module: str, args: dict[str, object], timeout: float) -> str:
    """Run a module as a person at a terminal would, who never types anything; returns what it printed."""
    root.write("/args.json", json.dumps(args))
    master, slave = pty.openpty()

    def sit_down() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    try:
        done = subprocess.run(
            root.argv("python3", "/opt/test/driver.py", module, "/args.json"),
            preexec_fn=sit_down,
            text=True,
            stdin=slave,
            capture_output=True,
            timeout=timeout,
        )
    finally:
        os.close(master)
        os.close(slave)
    return done.stdout


@pytest.mark.parametrize("kind", PROMPTS)
def test_nothing_can_prompt(root: Root, repo: Repo, kind: str) -> None:
    repo.add("lab-prompt", "1.0", scripts={"postinst": PROMPTS[kind]})
    repo.publish()
    root.module("apt_sources", **repo.spec())
    asked = {"install": ["lab-prompt=1.0"], "update_cache": True, "reserve_mib": 1}
    result = json.loads(at_a_terminal(root, "apt_transaction", asked, 60))
    assert result.get("changed"), result
    assert root.selections()["lab-prompt"] == "ii 1.0"


def test_a_script_that_never_ends_is_stopped_and_held(root: Root, repo: Repo) -> None:
    repo.add("lab-tool", "1.0")
    driver(repo, "580", NEW, postinst="[ -e /cured ] || sleep 600")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    asked = {"install": pinned("580", NEW), "reserve_mib": 1}
    result = root.module("apt_transaction", **asked, update_cache=True, timeout=8)
    assert result["code"] == "apt.timeout", result
    assert {state[0] for state in held(root, names("580")).values() if state != "absent"} == {"h"}
    root.write("/cured", "")
    assert root.module("apt_transaction", **asked).get("changed")
    assert held(root, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")


def test_stale_hold_on_an_absent_package_is_cleared(root: Root, repo: Repo) -> None:
    # G2: 'hold ok not-installed' makes every later install fail.
    driver(repo, "580", NEW)
    repo.add("lab-tool", "1.0")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    with open(root.path / "var/lib/dpkg/status", "a") as status:
        status.write(
            "Package: libnvidia-compute-580\nStatus: hold ok not-installed\nPriority: optional\nSection: misc\n\n"
        )
    cleared = root.module("apt_transaction")
    assert (cleared["changed"], cleared["unheld"]) == (True, ["libnvidia-compute-580"]), cleared
    assert root.module("apt_transaction")["changed"] is False
    result = root.module("apt_transaction", install=pinned("580", NEW), update_cache=True, reserve_mib=1)
    assert result.get("changed"), result


def test_holds_of_other_people_stay(host: Root) -> None:
    host.sh("echo lab-tool hold | dpkg --set-selections")
    assert host.module("apt_transaction", **SWITCH).get("changed")
    assert host.selections()["lab-tool"] == "hi 1.0"
    released = host.module("apt_transaction", release=True, hold=False)
    assert released["unheld"] == names("580")
    assert host.selections()["lab-tool"] == "hi 1.0"
    extra = host.module("apt_transaction", hold=True, extra_hold=["lab-tool", "not-there"])
    assert extra["held"] == names("580")


def test_upgrade_of_somebody_elses_package_is_refused(host: Root, repo: Repo) -> None:
    repo.add("lab-tool", "2.0")
    repo.add(
        "nvidia-utils-580",
        "580.126.21-0ubuntu1",
        Depends="lab-tool (>= 2.0)",
        Conflicts="nvidia-utils",
        Provides="nvidia-utils",
    )
    repo.publish()
    asked = {"install": ["nvidia-utils-580=580.126.21-0ubuntu1"], "remove": ["nvidia-utils-550"], "reserve_mib": 1}
    status = (host.path / "var/lib/dpkg/status").read_bytes()
    result = host.module("apt_transaction", **asked, update_cache=True)
    assert result["code"] == "apt.unrelated", result
    assert "apt would upgrade lab-tool from 1.0 to 2.0" in result["msg"]
    assert (host.path / "var/lib/dpkg/status").read_bytes() == status
    named = asked | {"install": [*asked["install"], "lab-tool=2.0"]}
    assert host.module("apt_transaction", **named).get("changed")


def test_removal_that_nobody_named_is_refused(host: Root) -> None:
    status = (host.path / "var/lib/dpkg/status").read_bytes()
    result = host.module("apt_transaction", **SWITCH | {"remove": names("550")[:1]})
    assert result["code"] == "apt.removes", result
    assert (host.path / "var/lib/dpkg/status").read_bytes() == status


def test_young_lists_that_give_the_plan_are_not_fetched_again(host: Root) -> None:
    plan = host.module("apt_transaction", check=True, **SWITCH)["changes"]
    done = host.module("apt_transaction", **SWITCH, expect=plan, update_cache=True)
    assert done.get("changed"), done
    assert "InRelease" not in (host.path / done["log"].lstrip("/")).read_text()


def test_lists_from_before_a_change_of_the_sources_are_fetched(host: Root) -> None:
    plan = host.module("apt_transaction", check=True, **SWITCH)["changes"]
    host.write("/etc/apt/sources.list.d/later.list", "# nothing yet\n")
    done = host.module("apt_transaction", **SWITCH, expect=plan, update_cache=True)
    assert done.get("changed"), done
    assert "InRelease" in (host.path / done["log"].lstrip("/")).read_text()


def test_a_fetch_that_fails_with_young_lists_is_tried_again_with_new_ones(host: Root, repo: Repo) -> None:
    plan = host.module("apt_transaction", check=True, **SWITCH)["changes"]
    (repo.folder / f"nvidia-utils-580_{NEW}_amd64.deb").unlink()
    result = host.module("apt_transaction", **SWITCH, expect=plan, update_cache=True)
    assert result["code"] == "apt.fetch", result
    assert held(host, names("550")) == dict.fromkeys(names("550"), f"hi {OLD}")
    log = (host.path / result["log"].lstrip("/")).read_text()
    assert log.index("Failed to fetch") < log.index("InRelease") < log.rindex("Failed to fetch")


def test_moved_repository_is_refused(host: Root) -> None:
    plan = host.module("apt_transaction", check=True, **SWITCH)["changes"]
    stale = [dict(change, version="580.126.09-0ubuntu1") if change["version"] == NEW else change for change in plan]
    result = host.module("apt_transaction", **SWITCH, expect=stale)
    assert result["code"] == "apt.plan_moved", result
    assert "nvidia-utils-580: planned install 580.126.09-0ubuntu1, now install 580.126.20-0ubuntu1" in result["because"]
    assert host.module("apt_transaction", **SWITCH, expect=plan).get("changed")


def test_full_boot_is_refused_before_anything_is_touched(host: Root) -> None:
    host.mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", "/boot")
    (host.path / "boot/initrd.img-6.8.0-45-generic").write_bytes(b"x" * 1700000)
    result = host.module("apt_transaction", **SWITCH)
    assert result["code"] == "apt.disk_full", result
    assert result["because"] == ["/boot: 1 MiB free, 2 MiB needed, 1 MiB must stay free"]
    assert held(host, names("550")) == dict.fromkeys(names("550"), f"hi {OLD}")


def test_disk_that_fills_while_it_runs(host: Root, repo: Repo) -> None:
    repo.add("lab-big", "1.0", size=2 << 20, Installed_Size="1")
    repo.publish()
    host.mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", "/usr/share/lab-big")
    result = host.module("apt_transaction", install=["lab-big=1.0"], update_cache=True, reserve_mib=1)
    assert result["code"] == "apt.disk_full", result
    assert held(host, names("550")) == dict.fromkeys(names("550"), f"hi {OLD}")


def test_a_change_whose_packages_are_all_there_is_not_unfinished_however_apt_ended(host: Root) -> None:
    host.write("/etc/apt/apt.conf.d/99-hook", 'DPkg::Post-Invoke {"kill -9 $PPID";};\n')
    result = host.module("apt_transaction", **SWITCH)
    assert result.get("failed"), result
    assert held(host, names("580")) == dict.fromkeys(names("580"), f"hi {NEW}")
    assert not (host.path / apt_common.UNFINISHED.lstrip("/")).exists()


def test_another_session_can_read_how_far_apt_is(host: Root) -> None:
    look = f"cat {apt_progress.PATH} > /root/seen"
    host.write("/etc/apt/apt.conf.d/99-hook", f'DPkg::Post-Invoke {{"{look}";}};\n')
    result = host.module("apt_transaction", **SWITCH)
    assert result["changed"], result
    seen = (host.path / "root/seen").read_text().splitlines()
    shown = [described(line, 10**6, 2) for line in seen]
    assert any(line.startswith("dlstatus:") for line in seen) and None not in shown, seen
    assert {text.split()[0] for text in shown if text} >= {"downloading", "unpacking", "configuring", "installed"}, (
        shown
    )
    assert not (host.path / apt_progress.PATH.lstrip("/")).exists()


def test_the_note_of_an_unfinished_change_goes_when_it_is_done_by_whomever(host: Root) -> None:
    note = {"started": "", "log": "/x", "remove": ["gone"], "hold": True, "extra_hold": []}
    for install, stays in ((pinned("580", NEW), True), (pinned("550", OLD), False)):
        host.write(apt_common.UNFINISHED, json.dumps(note | {"install": install}))
        # nothing is asked for, as after dpkg --configure -a by rescue
        assert host.module("apt_transaction", hold=False)["changed"] is False
        assert (host.path / apt_common.UNFINISHED.lstrip("/")).exists() is stays
    host.write(apt_common.UNFINISHED, json.dumps(note | {"install": pinned("580", NEW)}))
    host.module("apt_transaction", check=True, install=pinned("550", OLD))
    assert (host.path / apt_common.UNFINISHED.lstrip("/")).exists(), "check mode changes nothing"
    host.module("apt_transaction", install=pinned("550", OLD))
    assert not (host.path / apt_common.UNFINISHED.lstrip("/")).exists()
