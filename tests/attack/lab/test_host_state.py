"""Damaged state and a stranger's lock on a simulated host: what ``apply`` prints, and that holds are as they were."""

import re

import pytest

from tests import sample
from tests.faults.conftest import Command, driver_packages, holds
from tests.lab import Lab

pytestmark = pytest.mark.lab

STATE = "/var/lib/gpu-provision"
JOURNAL = STATE + "/transaction.json"
# Three of the many that tests/apt tries with real apt: what is printed is the same for all.
DAMAGES = {"a brace": "echo '{{' > {}", "a folder": "mkdir {}", "a FIFO": "mkfifo {}"}
APPLY = ("apply", "--yes", "-e", "nvidia_driver_branch=580")


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A host that we brought to branch 580, with a hold of a person."""
    spec = {"name": "gpu01", "gpus": ["RTX 4090"], "installed": ["580 open signed held"], "nouveau": False}
    with Lab.start([spec]) as lab:
        command, host = Command(lab, tmp_path_factory.mktemp("state")), lab.host("gpu01")
        command.run(*APPLY)
        host.run("echo sudo hold | dpkg --set-selections")
        yield command, host


def test_a_damaged_journal_is_told_and_costs_no_hold(held):
    command, host = held
    before = holds(host)
    assert set(driver_packages(host)) <= set(before)
    damages = dict(sample.share(list(DAMAGES.items()), len(DAMAGES)))
    for how, damage in damages.items():
        host.run("dpkg --get-selections | awk '/nvidia/ {print $1, \"install\"}' | dpkg --set-selections")
        host.run(damage.format(JOURNAL))
        done = command.run(*APPLY)
        print(f"--- {how}\n{done.stdout}{done.stderr}")
        said = re.sub(r"\s+", " ", done.stdout + done.stderr)
        assert f"{JOURNAL} is damaged: " in said, how
        assert "renamed to transaction.json.damaged-" in said, how
        assert holds(host) == before, how
        host.run(f"test ! -e {JOURNAL}")
    assert int(host.run(f"ls -d {JOURNAL}.damaged-* | wc -l").stdout) == len(damages)


# With real apt: tests/apt/test_transaction.py.
@pytest.mark.thorough
def test_a_user_with_the_lock_is_named(held):
    command, host = held
    before = holds(host)
    # As a version left it that let every user open the file.
    host.run(f"chmod 0644 {STATE}/transaction.lock")
    host.run("systemd-run --quiet --unit=stranger --uid=nobody flock -x " + STATE + "/transaction.lock sleep 900")
    pid = host.run("pgrep -u nobody -x flock").stdout.split()[0]
    host.run("dpkg --get-selections | awk '/nvidia/ {print $1, \"install\"}' | dpkg --set-selections")
    done = command.run(*APPLY, rc=1)
    print(done.stdout + done.stderr)
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert re.search(rf"held by process {pid} \(flock\) of nobody", said)
    assert "which is no run of gpu-provision" in said
    host.run("systemctl stop stranger")
    command.run(*APPLY)
    assert holds(host) == before
    host.run(f"! runuser -u nobody -- flock -n {STATE}/transaction.lock true")
