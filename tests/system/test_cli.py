"""The command line: options in both places, errors in words, exit codes, one JSON object, what apply does and asks."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from provision import cli, inventory, remote
from provision.catalog import load_catalog
from provision.cli.base import Settings, app, finish
from provision.collection import ROOT
from provision.commands import actions
from provision.commands import plan as plan_command
from provision.commands import scan as scan_command
from provision.commands import verify as verify_command
from provision.documents import PlanDocument, VerifyDocument
from provision.errors import HostFailedError, RefusedError, UnreachableError, UsageError
from provision.facts import Facts
from provision.lib.findings import Check
from provision.parts.plan import HostPlan, PackageChange, Reason, Reboot, Step
from provision.rescue.model import RescueDocument
from tests.unit.hosts import host as facts_of

HOSTS = "gpu01,gpu02,gpu03"
LOCAL = ["-e", json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})]


class FakeSession:
    def __init__(self, host):
        self.host = host

    def call(self, module, args, *, timeout=60):
        if self.host.name == "gpu02":
            raise HostFailedError("host.no_python", "there is no Python 3", host="gpu02", hint="install it")
        if module == "run.lock":
            return {"taken": True, "held": None, "replaced": None, "why": None}
        if module == "run.record":
            return {"released": True, "held": None, "trouble": None}
        assert module == "probe.facts"
        return facts_of(["H100", "H100"], "580-server 580.126.20 open signed").model_dump(mode="json")

    def close(self):
        return


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY", "PROVISION_TRACEBACK", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


_LOADED = {}


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """Host lists mean the same every time: Ansible reads each once for all tests of this file."""
    real = inventory.start

    def start(sources=None, limit=None, extra_vars=(), **options):
        if not sources or not all("," in source for source in sources) or any(options.values()):
            return real(sources, limit, extra_vars, **options)
        key = json.dumps([sources, limit, extra_vars])
        if key not in _LOADED:
            _LOADED[key] = real(sources, limit, extra_vars, **options).result()
        return SimpleNamespace(at_hand=not _LOADED[key].warnings, result=lambda: _LOADED[key])

    monkeypatch.setattr(inventory, "start", start)


@pytest.fixture
def fleet(monkeypatch):
    """Three hosts: one answers, one has no Python, one is not reached."""

    def open_session(host):
        if host.name == "gpu03":
            raise UnreachableError("connect.refused", "connection refused", host=host.name, because=["b"], hint="h")
        return FakeSession(host)

    monkeypatch.setattr(remote, "open_session", open_session)
    return ["-i", HOSTS]


def run(capsys, *arguments):
    code = cli.run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    document = json.loads(out)
    assert document["exit_code"] == code
    assert document["ok"] is (code == 0)
    assert re.fullmatch(r"provision/[a-z]+/1", document["schema"])
    assert err == ""
    return document


# ---- starting up -------------------------------------------------------------------------------------------------


def test_version_imports_nothing_heavy():
    program = (
        "import sys; sys.argv = ['provision', '--version']\n"
        "from provision.__main__ import main\n"
        "before = set(sys.modules); code = main(); new = set(sys.modules) - before\n"
        "assert code == 0 and not new, new\n"
        "assert not {'typer', 'pydantic', 'yaml', 'paramiko', 'rich', 'ansible', 'json', 're'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"provision \d+\.\d+\.\d+\n", done.stdout)


def test_version_after_other_options(capsys):
    code, out, _ = run(capsys, "-v", "--version")
    assert (code, out.split()[0]) == (0, "provision")


@pytest.mark.parametrize("command", ["init", "scan", "plan", "apply", "verify", "compat"])
def test_help_of_every_command_has_examples_and_global_options(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"$ provision {command}" in out or f", {command}" in out
    assert "--inventory" in out
    assert "--json" in out


@pytest.mark.parametrize("command", sorted(typer.main.get_command(app).commands))
def test_help_shows_switches_without_a_value(capsys, command):
    assert "<bool>" not in run(capsys, command, "--help")[1]


def test_help_names_the_commands_that_exist(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in ("init", "scan", "plan", "apply", "verify", "compat"):
        assert re.search(rf"^\W*{command}\s", out, re.MULTILINE)
    assert "Exit codes" in out


def test_without_arguments_the_first_steps_are_shown(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (64, "")
    assert re.search(r"^ *\$ provision init gpu01 gpu02 ", out, re.MULTILINE)
    assert "<bool>" not in out.split("Global options")[1]


# ---- errors of usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["plna"], "error: no such command: plna", "did you mean plan?"),
        (["plan", "--limti", "x"], "error: no such option: --limti", "did you mean --limit?"),
        (["--invetory", "x", "plan"], "error: no such option: --invetory", "did you mean --inventory?"),
        (["compat", "--gup", "x"], "error: no such option: --gup", "did you mean --gpu?"),
        (["scan", "-i"], "error: option '-i' requires an argument", "--help"),
        (["scan", "--forks", "0", "-i", "a,"], "error: invalid value for '--forks'", "--help"),
        (["init"], "error: no hosts were named", "--from-ssh-config"),
        (["scan", "-i", "/nothere.yml"], "error: inventory /nothere.yml does not exist", "provision init"),
        (["scan"], "error: no inventory", "provision init"),
        (["scan", "-i", "gpu01,", "-l", "gpu9"], "error: no host matches 'gpu9'", "did you mean gpu01?"),
        (
            ["plan", "-i", "a,", "-e", "gpu_verify_stict=1"],
            "error: a: unknown variable gpu_verify_stict",
            "gpu_verify_strict?",
        ),
        (["compat"], "error: nothing to compare", "provision compat --gpu"),
        (
            ["--no-lock", "plan"],
            "error: --no-lock is an option of plan",
            "after the word plan: provision plan --no-lock",
        ),
        (["--canary", "2"], "error: --canary is an option of apply", "provision apply --canary"),
        (["--yes"], "error: --yes is an option of apply (also of catalog, rescue)", "provision apply --yes"),
        (["--no-lokc", "plan"], "error: no such option: --no-lokc", "did you mean --no-lock?"),
        (
            ["plan", "-i", "a,", "-e", '{"cuda_toolkit_cudnn": 9.10}'],
            "error: a: cuda_toolkit_cudnn: 9.10 without",
            "a text",
        ),
        (["init", "a b"], "error: 'a b' is no host name", "letters"),
        (["init", "ubuntu@gpu01"], "error: 'ubuntu@gpu01' is no host name", "--user ubuntu"),
    ],
)
def test_wrong_usage_says_what_and_a_way_out(capsys, arguments, message, hint):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (64, "")
    first, *rest = err.splitlines()
    assert first.startswith(message)
    assert rest[-1].startswith("  hint: ")
    assert hint in rest[-1]
    document = run_json(capsys, *arguments[:1], *arguments[1:]) if arguments[-1] != "-i" else None
    if document:
        assert document["schema"] == "provision/error/1"
        assert document["errors"][0]["message"] in first


def test_an_inventory_that_is_no_yaml_says_where(capsys, tmp_path):
    (tmp_path / "bad.yml").write_text("all:\n  hosts: [gpu01\n")
    code, out, err = run(capsys, "-i", "bad.yml", "scan")
    assert (code, out) == (64, "")
    assert re.search(r"because: .*YAML parsing failed: .*flow sequence", err)
    assert "hint: see what Ansible itself says of it" in err


def test_a_defect_is_short_and_says_how_to_get_the_traceback(capsys, monkeypatch, fleet):
    def broken(*args):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(scan_command, "run", broken)
    code, out, err = run(capsys, *fleet, "scan")
    assert (code, out) == (1, "")
    assert "unexpected ZeroDivisionError: a defect" in err
    assert "PROVISION_TRACEBACK=1" in err
    assert "Traceback" not in err
    assert "Traceback" in run(capsys, *fleet, "scan", "-v")[2]
    monkeypatch.setenv("PROVISION_TRACEBACK", "1")
    assert "Traceback" in run(capsys, *fleet, "scan")[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_is_130(capsys, monkeypatch, fleet, number):
    def slow(fleet, talk):
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        threading.Event().wait(10)

    monkeypatch.setattr(scan_command, "run", slow)
    code, out, err = run(capsys, *fleet, "scan")
    assert (code, out) == (130, "")
    assert err.splitlines() == ["error: interrupted: nothing was changed", "  hint: run the command again"]
    assert run_json(capsys, *fleet, "scan")["errors"][0]["code"] == "run.interrupted"


# ---- global options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["-i", HOSTS, "-l", "gpu01", "--json", "scan"],
        ["scan", "-i", HOSTS, "-l", "gpu01", "--json"],
        ["-i", HOSTS, "scan", "--limit=gpu01", "--json"],
        ["-i", "gpu02,", "scan", "-i", "gpu01,", "-l", "gpu01", "--json"],
    ],
)
def test_global_options_before_and_after_the_command(capsys, fleet, arguments):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert list(json.loads(out)["hosts"]) == ["gpu01"]


def test_json_never_asks_for_a_password(capsys, fleet):
    document = run_json(capsys, *fleet, "scan", "-K")
    assert document["errors"][0]["code"] == "usage.no_prompt"


def test_typed_password_reaches_the_hosts_and_no_output(capsys, monkeypatch, fleet):
    seen = []

    def open_session(host):
        seen.append(host.connection.become_password)
        return FakeSession(host)

    monkeypatch.setattr(remote, "open_session", open_session)
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: "geheim")
    code, out, err = run(capsys, "-i", "gpu01,", "scan", "-K", "-vv")
    assert (code, seen) == (0, ["geheim"])
    assert "geheim" not in out + err


# ---- scan, plan, verify ----------------------------------------------------------------------------------------------


def test_scan_tells_hosts_apart(capsys, fleet):
    code, out, err = run(capsys, *fleet, "scan")
    assert code == 4
    assert re.search(r"^gpu01 +2 x H100.*580\.126\.20 open", out, re.MULTILINE)
    assert "\ngpu02  failed  there is no Python 3\n" in out
    assert "\ngpu03  unreachable  connection refused\n" in out
    assert "error: gpu03: connection refused\n  because: b\n  hint: h\n" in err
    assert "\x1b" not in out + err


def test_scan_json_has_the_full_facts(capsys, fleet):
    document = run_json(capsys, *fleet, "scan")
    assert Facts.model_validate(document["hosts"]["gpu01"]["facts"]).smi is not None
    assert [error["code"] for error in document["errors"]] == ["host.no_python", "connect.refused"]
    assert document["hosts"]["gpu03"] == {
        "status": "unreachable",
        "gpus": [],
        "driver": None,
        "origin": None,
        "cuda": None,
        "summary": "connection refused",
        "remarks": [],
        "facts": None,
    }


def changes(name):
    return HostPlan(
        host=name,
        status="changes",
        gpus=["2 x H100 SXM5 80GB"],
        summary="driver 580.126.20 open",
        decisions=[Reason(what="branch", value="580", because="the production branch with the longest support")],
        steps=[Step(id="packages", title="Install packages", because="no driver is installed", details=["a", "b"])],
        packages=[
            PackageChange(
                action="install", name=f"nvidia-{n}", version="580.126.20-0ubuntu1", download_bytes=15_500_000
            )
            for n in range(20)
        ],
        download_bytes=310_000_000,
        reboot=Reboot(needed=True, because=["nouveau is loaded"]),
    )


@pytest.fixture
def planned(monkeypatch, fleet):
    """gpu01 changes, gpu02 is as wanted, gpu03 is not reached; gpu04 is blocked."""

    def plan_host(name, call, values, catalog):
        if name == "gpu04":
            raise RefusedError("driver.gpu_not_supported", "595 does not drive P100", hint="580 does")
        return (
            changes(name)
            if name in ("gpu01", "gpu11")
            else HostPlan(host=name, status="converged", summary="as wanted")
        )

    monkeypatch.setattr(plan_command, "plan_host", plan_host)
    return ["-i", "gpu01,gpu02,gpu03,gpu04"]


def test_plan_for_people(capsys, planned):
    code, out, err = run(capsys, *planned, "plan")
    assert code == 4
    assert "gpu01  2 x H100 SXM5 80GB\n  ~  driver  Install packages: no driver is installed  20 new\n" in out
    assert "     branch  580: the production branch with the longest support\n" in out
    assert "  !  reboot  nouveau is loaded\n" in out
    assert "  packages: 20 new; 310 MB to download" in out
    assert "  ! 1 reboot: gpu01; by apply, only while no process uses the GPUs" in out
    assert "gpu02  as requested  as wanted\n" in out
    assert "gpu04  blocked  595 does not drive P100\n" in out
    assert "plan: 4 hosts: 1 to change, 1 as requested, 1 blocked, 1 unreachable" in out
    assert "error: gpu04: 595 does not drive P100\n  hint: 580 does\n" in err
    code, out, _ = run(capsys, *planned, "plan", "-v", "-l", "gpu01")
    assert code == 2
    assert "gpu01  to change  2 x H100 SXM5 80GB\n  driver 580.126.20 open\n" in out
    assert "nvidia-19" in out
    assert f"\nfacts of {load_catalog().day}: " in out
    assert run(capsys, *planned, "plan", "--why", "-l", "gpu01")[1] == out


@pytest.mark.parametrize(
    ("limit", "code"), [("gpu01", 2), ("gpu02", 0), ("gpu03", 4), ("gpu04", 5), ("gpu01,gpu04", 5)]
)
def test_exit_codes_of_plan(capsys, planned, limit, code):
    document = run_json(capsys, *planned, "plan", "-l", limit)
    assert document["exit_code"] == code
    for name, host in document["hosts"].items():
        assert HostPlan.model_validate(host).host == name


def test_same_plans_are_told_once(capsys, planned):
    code, out, _ = run(capsys, "-i", "gpu01,gpu11", "plan")
    assert code == 2
    assert "gpu01, gpu11 (2 hosts)  2 x H100" in out
    assert out.count("Install packages") == 1


def test_a_value_that_cannot_be_used_is_64(capsys, monkeypatch, fleet):
    def plan_host(*args):
        raise UsageError("usage.key_unreadable", "cannot read the key")

    monkeypatch.setattr(plan_command, "plan_host", plan_host)
    assert run_json(capsys, "-i", "gpu01,", "plan")["exit_code"] == 64


def verdict(status, **more):
    said = {"id": "driver.versions", "status": status, "message": "m", "evidence": ["e1", "e2"], "hint": "do it"}
    return Check.model_validate(said | more)


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("warn", 0), ("fail", 3), ("skip", 0)])
def test_verify(capsys, monkeypatch, fleet, status, code):
    monkeypatch.setattr(verify_command, "verify_host", lambda call, values, catalog, selection: [verdict(status)])
    got, out, err = run(capsys, "-i", "gpu01,", "verify")
    assert got == code
    wrong = status in ("warn", "fail")
    assert bool(re.search(rf"^  {status} +driver\.versions  m", out, re.MULTILINE)) is wrong
    assert ("e1" in out) is wrong and ("hint: do it" in out) is wrong
    _, out, _ = run(capsys, "-i", "gpu01,", "verify", "-v")
    assert re.search(rf"^  {status} +driver\.versions  m", out, re.MULTILINE)
    assert ("e1" in out) is (status != "skip")
    document = run_json(capsys, "-i", "gpu01,", "verify")
    assert document["hosts"]["gpu01"]["checks"][0]["status"] == status
    assert [error["code"] for error in document["errors"]] == (["check.driver.versions"] if code else [])


# ---- apply -----------------------------------------------------------------------------------------------------------

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Do it
      ansible.builtin.copy:
        src: "{{ gpu_provision_plan_file }}"
        dest: "%s/{{ inventory_hostname }}.plan"
        mode: "0600"
    - name: Reboot flag
      ansible.builtin.set_fact:
        nvidia_driver_reboot_required: true
      when: gpu_flag | default(false)
    - name: Break
      ansible.builtin.fail: {msg: it broke}
      when: gpu_break | default(false)
"""


@pytest.fixture
def applying(monkeypatch, planned, tmp_path):
    playbook = tmp_path / "site.yml"
    playbook.write_text(PLAY % tmp_path)
    monkeypatch.setattr(actions, "_PLAYBOOK", playbook)
    monkeypatch.setattr(verify_command, "verify_host", lambda call, values, catalog, selection: [verdict("pass")])
    return [*planned, *LOCAL, "--run-dir", str(tmp_path / "runs")]


def test_apply_does_the_fine_hosts_and_tells_the_others_apart(capsys, applying, tmp_path):
    document = run_json(capsys, *applying, "apply", "--yes")
    assert document["exit_code"] == 4
    assert {name: host["status"] for name, host in document["hosts"].items()} == {
        "gpu01": "done",
        "gpu02": "unchanged",
        "gpu03": "unreachable",
        "gpu04": "blocked",
    }
    assert document["hosts"]["gpu01"]["changed"] == ["Do it"]
    assert document["hosts"]["gpu04"]["summary"] == "595 does not drive P100"
    assert document["hosts"]["gpu01"]["checks"][0]["status"] == "pass"
    shown = json.loads((tmp_path / "gpu01.plan").read_text())
    assert HostPlan.model_validate(shown["hosts"]["gpu01"]) == changes("gpu01")
    assert sorted(path.name for path in tmp_path.glob("*.plan")) == ["gpu01.plan"]
    run_dir = Path(document["run_dir"])
    assert {path.name for path in run_dir.iterdir()} == {
        "plan.json",
        "events.jsonl",
        "ansible.log",
        "result.json",
        "state.json",
        "history.json",
    }
    assert json.loads((run_dir / "result.json").read_text()) == document


def test_apply_with_nothing_to_do_starts_no_playbook(capsys, applying, tmp_path):
    document = run_json(capsys, *applying, "apply", "--yes", "-l", "gpu02")
    assert (document["exit_code"], document["run_dir"]) == (0, None)
    assert not (tmp_path / "runs").exists()


def test_apply_outcomes(capsys, applying, monkeypatch):
    base = [*applying, "apply", "--yes", "-l", "gpu01"]
    assert run(capsys, *base)[0] == 0
    document = run_json(capsys, *base, "-e", '{"gpu_flag": true}')
    assert (document["exit_code"], document["hosts"]["gpu01"]["status"]) == (6, "reboot_needed")
    assert document["errors"][0]["code"] == "reboot.needed"
    document = run_json(capsys, *base, "-e", '{"gpu_break": true}')
    assert (document["exit_code"], document["hosts"]["gpu01"]["status"]) == (1, "failed")
    assert document["hosts"]["gpu01"]["failed_task"] == "Break"
    _, out, err = run(capsys, *base, "-e", '{"gpu_break": true}')
    assert "  failed in  Break\n" in out
    assert "error: gpu01: it broke\n" in err, "the task is told where the host is"
    monkeypatch.setattr(verify_command, "verify_host", lambda call, values, catalog, selection: [verdict("fail")])
    document = run_json(capsys, *base)
    assert (document["exit_code"], document["hosts"]["gpu01"]["status"]) == (3, "check_failed")


def test_apply_asks_only_at_a_terminal(capsys, applying, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, err = run(capsys, *applying, "apply", "-l", "gpu01")
    assert code == 64
    assert "Install packages" in out, "the plan is shown anyway"
    assert "--yes" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["apply"], ["apply", "--resume", "last"], ["rescue"]])
def test_json_without_yes_is_refused_before_any_host_is_read(capsys, monkeypatch, words):
    monkeypatch.setattr("provision.inventory.start", lambda *words, **more: pytest.fail("the inventory was read"))
    document = run_json(capsys, "-i", "gpu01,", *words)
    assert (document["exit_code"], document["errors"][0]["code"]) == (64, "apply.not_confirmed")
    assert "--yes" in document["errors"][0]["hint"]


@pytest.mark.parametrize("option", ["-K", "--ask-vault-pass"])
def test_a_password_without_a_terminal_is_wrong_usage(option, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "provision", "-i", "gpu01,", option, "scan"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (64, "")
    error, hint = ended.stderr.splitlines()
    assert error.startswith("error: there is no terminal to ask for the ")
    assert "--vault-password-file" in hint


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "code"), [("\n", 2), ("n\n", 2), ("", 2), ("yes\n", 0), ("y\n", 0)])
def test_apply_does_what_is_answered(capsys, applying, monkeypatch, tmp_path, answer, code):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    got, _, err = run(capsys, *applying, "apply", "-l", "gpu01")
    assert got == code
    assert "Change 1 host? [y/N]" in err
    assert (tmp_path / "gpu01.plan").exists() is (code == 0)


def test_apply_in_check_mode_asks_and_changes_nothing(capsys, applying, tmp_path):
    document = run_json(capsys, *applying, "apply", "--check", "-l", "gpu01")
    assert (document["exit_code"], document["hosts"]["gpu01"]["status"]) == (0, "checked")
    assert not (tmp_path / "gpu01.plan").exists()


# ---- init and compat ----------------------------------------------------------------------------------------------------


def test_init_writes_an_inventory_that_loads(capsys, tmp_path):
    code, out, err = run(capsys, "init", "gpu[01:03]", "10.0.0.9", "localhost", "no", "--user", "ubuntu")
    assert (code, out.strip()) == (0, "wrote inventory/hosts.yml")
    assert "scan" in err
    from provision.inventory.variables import effective_all

    loaded = inventory.load()
    assert [host.name for host in loaded.hosts] == ["gpu01", "gpu02", "gpu03", "10.0.0.9", "localhost", "no"]
    assert loaded.host("localhost").connection.kind == "local"
    assert loaded.host("gpu01").connection.user == "ubuntu"
    assert effective_all(loaded.hosts)["gpu01"]["nvidia_driver_branch"] == "recommended"
    before = (tmp_path / "inventory/hosts.yml").read_text()
    code, _, err = run(capsys, "init", "other")
    assert code == 64
    assert "--force" in err
    assert (tmp_path / "inventory/hosts.yml").read_text() == before
    assert run(capsys, "init", "other", "--force")[0] == 0
    assert "other:" in (tmp_path / "inventory/hosts.yml").read_text()


def test_compat(capsys):
    code, out, _ = run(capsys, "compat", "--gpu", "H100", "--cuda", "12.4")
    assert code == 0
    assert "it fits" in out
    document = run_json(capsys, "compat", "--gpu", "P100", "--driver", "595")
    assert (document["exit_code"], document["fits"]) == (5, False)
    assert document["errors"] == document["conflicts"]
    assert {"support", "warnings", "driver", "cuda", "cudnn", "nccl", "python"} <= set(document)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (PlanDocument(hosts={"gpu01": changes("gpu01")}), "apply"),
        (PlanDocument(hosts={"gpu01": HostPlan(host="gpu01", status="converged")}), None),
        (VerifyDocument.model_validate({"hosts": {"gpu01": {"status": "fail"}}}), "diagnose"),
    ],
)
def test_the_last_line_is_the_next_command_as_it_can_be_typed(capsys, document, words):
    given = Settings(inventory=["my hosts.yml"], limit="gpu*:!gpu03", extra_vars=["a=1", "ansible_become_password=x"])
    given.catalog = Path("newer facts")
    finish(given, document)
    last = capsys.readouterr().err.splitlines()[-1:]
    options = "-i 'my hosts.yml' -l 'gpu*:!gpu03' -e a=1 -e '<secret>' --catalog 'newer facts'"
    assert last == ([f"next: provision {options} {words}"] if words else [])


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({"status": "planned", "rounds": [{"kind": "mend"}]}, "rescue"),
        ({"status": "planned", "rounds": [{"kind": "purge", "purge": {}}]}, "rescue --purge"),
        ({"status": "rescued", "checks": [{"id": "gpu.bus", "status": "pass", "message": "m"}]}, "verify -v"),
        ({"status": "well", "found": [{"code": "driver.unheld", "level": "warning", "message": "m"}]}, "diagnose"),
        ({"status": "well"}, None),
    ],
)
def test_the_next_command_after_rescue(capsys, host, words):
    document = RescueDocument.model_validate({"hosts": {"gpu01": host}})
    finish(Settings(inventory=["my hosts.yml"], limit="gpu01"), document)
    last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")]
    assert last == ([f"next: provision -i 'my hosts.yml' -l gpu01 {words}"] if words else [])
