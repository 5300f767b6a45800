"""A host that pulls: where the inventory comes from, what a run does with it, and what it reports."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import provision
from provision.collection import COLLECTIONS_PATH
from provision.errors import HostFailedError, ProvisionError, UsageError
from provision.lib import yaml_reader
from provision.pull import report
from provision.pull import run as pulling
from provision.pull.source import Source, fetch

ROOT = Path(__file__).parents[2]


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path):
    """A bare repository with hosts.yml; commit(text) moves it on."""
    bare, work = tmp_path / "fleet.git", tmp_path / "work"
    work.mkdir()
    git(work, "init", "--quiet")
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(bare)], check=True)

    def commit(text):
        (work / "hosts.yml").write_text(text)
        git(work, "add", "hosts.yml")
        git(work, "commit", "--quiet", "-m", "change")
        git(work, "push", "--quiet", "--force", str(bare), "HEAD:main")
        return git(work, "rev-parse", "HEAD").strip()

    commit("one")
    return bare, commit


def archive(path, name="hosts.yml", text="one"):
    with tarfile.open(path, "w:gz") as packed:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        packed.addfile(entry, io.BytesIO(text.encode()))


# --- sources


def test_a_repository_is_followed_and_what_was_changed_here_is_gone(repository, tmp_path):
    bare, commit = repository
    source = Source(str(bare), "main")
    where, first = fetch(source, tmp_path / "state")
    assert (where / "hosts.yml").read_text() == "one"
    (where / "hosts.yml").write_text("changed here")
    (where / "stray").write_text("?")
    second = commit("two")
    where, state = fetch(source, tmp_path / "state")
    assert (state, first != second) == (second, True)
    assert sorted(path.name for path in where.iterdir()) == [".git", "hosts.yml"]
    assert (where / "hosts.yml").read_text() == "two"
    # History that was written anew is followed too.
    assert fetch(Source(f"file://{bare}"), tmp_path / "state")[1] == second
    unsigned = Source(str(bare), verify_commit=True)
    commit("three")
    with pytest.raises(HostFailedError):
        fetch(unsigned, tmp_path / "state")
    assert (where / "hosts.yml").read_text() == "two", "an unsigned commit changes nothing"


def test_an_archive_takes_the_place_of_the_old_one_whole(tmp_path):
    path = tmp_path / "inventory.tar.gz"
    archive(path)
    source = Source(f"file://{path}")
    where, state = fetch(source, tmp_path / "state")
    assert (where / "hosts.yml").read_text() == "one" and state.startswith("sha256:")
    fetch(Source(source.url, sha256=state.removeprefix("sha256:")), tmp_path / "state")
    archive(path, name="other.yml")
    where, _ = fetch(source, tmp_path / "state")
    assert [entry.name for entry in where.iterdir()] == ["other.yml"]
    with pytest.raises(HostFailedError, match="expected"):
        fetch(Source(source.url, sha256="0" * 64), tmp_path / "state")
    archive(path, name="../../outside")
    with pytest.raises(HostFailedError, match="unpacked"):
        fetch(source, tmp_path / "state")
    assert not (tmp_path / "outside").exists() and (where / "other.yml").exists()


def test_a_folder_is_taken_where_it_is(tmp_path):
    (tmp_path / "inventory").mkdir()
    assert fetch(Source(str(tmp_path / "inventory")), tmp_path / "state")[0] == tmp_path / "inventory"


@pytest.mark.parametrize("url", ["", "-upload-pack=x", "/nowhere/fleet.git", "file:///nowhere/x.tar.gz"])
def test_a_source_that_is_none(url, tmp_path):
    with pytest.raises(ProvisionError) as refused:
        fetch(Source(url), tmp_path / "state")
    assert refused.value.issue.hint


def test_passwords_are_in_no_message(tmp_path):
    with pytest.raises(HostFailedError) as refused:
        fetch(Source("https://me:secret@127.0.0.1:9/x.tar.gz"), tmp_path / "state")
    assert "secret" not in str(refused.value.issue)


# --- a run


@pytest.fixture
def host(tmp_path, repository, monkeypatch):
    """run(apply=…, drift=…) makes a run with a stand-in for the command, which notes how it was called."""
    bare, _ = repository
    config = pulling.Config(
        Source(str(bare), "main"), "gpu01", "hosts.yml", tmp_path / "state", tmp_path / "metrics", variables={"a": 1}
    )
    (tmp_path / "metrics").mkdir()
    real = pulling._command

    def run(apply, drift=0, **changes):
        said = tmp_path / "said"
        script = (
            "import json, sys\n"
            f"open({str(said)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"code, document = {apply!r} if 'apply' in sys.argv else ({drift}, '')\n"
            "print(document)\nsys.exit(code)\n"
        )
        monkeypatch.setattr(pulling, "_command", lambda *args: [sys.executable, "-c", script, *real(*args)[3:]])
        said.unlink(missing_ok=True)
        outcome = pulling.run(pulling.Config(**{**vars(config), **changes}))
        calls = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
        return outcome, calls, (tmp_path / "metrics" / report.FILE).read_text()

    return run


def document(status, *errors):
    return json.dumps({"hosts": {"gpu01": {"status": status, "summary": "driver"}}, "errors": list(errors)})


def numbers(text):
    return {
        line.split("{")[0].split(" ")[0].removeprefix("gpu_provision_pull_"): line.rsplit(" ", 1)[1]
        for line in text.splitlines()
        if not line.startswith("#")
    }


def test_a_run_that_ends_well(host):
    outcome, calls, text = host((0, document("unchanged")))
    apply, drift = calls
    assert apply[-4:] == ["apply", "--yes", "--no-reboot", "--json"] and apply[2:4] == ["-l", "gpu01"]
    assert json.loads(apply[5]) == {"a": 1} and apply[1].endswith("/state/git/hosts.yml")
    assert drift[-3:-1] == ["drift", "--metrics"] and drift[-1].endswith(report.DRIFT_FILE)
    found = numbers(text)
    assert (outcome.code, found["last_result"], found["reboot_needed"], found["drifted"]) == (0, "0", "0", "0")
    assert (
        float(found["last_success_timestamp_seconds"]) == outcome.started == float(found["last_run_timestamp_seconds"])
    )
    assert outcome.state in text


def test_a_reboot_that_is_needed_is_said_and_never_made(host):
    outcome, _, text = host((6, document("reboot_needed")), drift=2)
    found = numbers(text)
    assert (outcome.code, found["reboot_needed"], found["drifted"]) == (6, "1", "1")


def test_a_failure_is_reported_and_the_last_success_is_remembered(host, capsys):
    well, _, _ = host((0, document("unchanged")))
    error = {"code": "apt.unmet", "message": "apt finds no way", "because": ["x"], "hint": "plan again"}
    failed, calls, text = host((5, document("blocked", error)))
    assert (failed.code, len(calls)) == (5, 1), "no look at drift after a failure"
    found = numbers(text)
    assert (found["last_result"], float(found["last_success_timestamp_seconds"])) == ("5", well.started)
    assert "drifted" not in found
    said = capsys.readouterr().out
    assert "error: apt finds no way" in said and "hint: plan again" in said
    gone, calls, text = host((0, ""), source=Source("/nowhere/fleet.git"))
    assert (gone.code, calls, numbers(text)["last_result"]) == (1, [], "1")
    crashed, _, _ = host((1, "Traceback"))
    assert crashed.code == 1


def test_what_is_not_in_the_source(host):
    assert host((0, document("unchanged")), inventory="elsewhere.yml")[0].code == 64
    assert host((0, document("unchanged")), inventory="../..")[0].code == 64
    assert host((0, json.dumps({"hosts": {}})))[0].code == 64, "no such host"


def test_one_run_at_a_time(host, tmp_path):
    (tmp_path / "state").mkdir()
    with pulling._alone(tmp_path / "state"):
        outcome, calls, _ = host((0, document("unchanged")))
    assert (outcome.code, calls) == (1, [])


def test_the_configuration_that_the_role_writes(tmp_path, capsys):
    path = tmp_path / "pull.json"
    tasks = yaml_reader.load((ROOT / "roles/gpu_pull/tasks/units.yml").read_text())
    (written,) = [task["vars"]["__gpu_pull_config"] for task in tasks if "__gpu_pull_config" in task.get("vars", {})]
    written = {**written, "source": {**dict.fromkeys(written["source"], ""), "url": "/srv/x", "verify_commit": False}}
    path.write_text(json.dumps({**written, "metrics_dir": "/m", "vault_password_file": ""}))
    config = pulling.read_config(path)
    assert (config.metrics_dir, config.source.url, config.folder) == (Path("/m"), "/srv/x", Path("/var/lib/gpu-pull"))
    assert config.variables["ansible_connection"] == "local"
    path.write_text('{"odd": 1}')
    with pytest.raises(UsageError):
        pulling.read_config(path)
    assert pulling.main([str(path)]) == 64 and "hint:" in capsys.readouterr().out


def test_the_role_installs_this_version():
    defaults = yaml_reader.load((ROOT / "roles/gpu_pull/defaults/main.yml").read_text())
    assert defaults["gpu_pull_package"] == f"gpu-provision=={provision.__version__}"


def test_ansible_pull_runs_our_playbooks(repository, tmp_path):
    """The way of those who have no timer of ours: plain ansible-pull, an inventory and a playbook of one line."""
    bare, commit = repository
    (tmp_path / "work/plan.yml").write_text("- ansible.builtin.import_playbook: gpu.provision.plan\n")
    git(tmp_path / "work", "add", "plan.yml")
    commit("all: {hosts: {this: {ansible_connection: local, ansible_become: false}}}\n")
    argv = ["-U", f"file://{bare}", "-d", tmp_path / "copy", "-i", "hosts.yml", "-l", "this", "plan.yml"]
    env = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS_PATH),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(["ansible-pull", *map(str, argv)], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "changed=0" in done.stdout, done.stdout + done.stderr
    assert "no NVIDIA GPU" in done.stdout or "nothing to change" in done.stdout or "+ driver" in done.stdout, (
        done.stdout
    )
