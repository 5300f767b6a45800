"""Simulated hosts and the command against them, as a person would use both."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forked
from tests.lab import Lab

ROOT = Path(__file__).parents[2]


class Command:
    """``provision`` against a lab's inventory. run() gives the finished process; json() the document of --json."""

    def __init__(self, lab, state):
        self.lab, self.env = (lab, {**os.environ, "XDG_STATE_HOME": str(state), "NO_COLOR": "1", "COLUMNS": "110"})
        self.env.pop("ANSIBLE_CONFIG", None)

    def argv(self, *words):
        return [sys.executable, "-m", "provision", "-i", str(self.lab.inventory), *words]

    def run(self, *words, rc=0, timeout=300):
        done = forked.run(["-i", str(self.lab.inventory), *words], self.env, ROOT, timeout)
        said = f"$ provision {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == rc, f"exit {done.returncode}, expected {rc}\n{said}"
        return done

    def json(self, *words, rc=0):
        return json.loads(self.run(*words, "--json", rc=rc).stdout)

    def start(self, *words):
        return subprocess.Popen(
            self.argv(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.env, cwd=ROOT
        )

    def ansible(self, playbook, *words):
        """Plain ansible-playbook, no command of ours."""
        env = {**self.env, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        return subprocess.run(
            [
                str(Path(sys.executable).parent / "ansible-playbook"),
                "-i",
                str(self.lab.inventory),
                str(ROOT / "playbooks" / playbook),
                *words,
            ],
            capture_output=True,
            text=True,
            env=env,
            cwd=ROOT,
            timeout=300,
        )


@pytest.fixture
def fleet(tmp_path):
    """fleet([{host}, …]) starts simulated hosts and gives the command for them; they are stopped at the end."""
    started = []

    @contextmanager
    def one(hosts):
        with Lab.start(hosts) as lab:
            yield Command(lab, tmp_path / "state")

    def start(*hosts):
        context = one(list(hosts))
        started.append(context)
        return context.__enter__()

    yield start
    for context in reversed(started):
        context.__exit__(None, None, None)


def holds(host):
    """Names of the packages that are on hold on a host."""
    return set(host.run("apt-mark showhold").stdout.split())


def what_runs(host):
    """The processes, the state and the newest apt logs of a host, for the words of a failed test."""
    shown = host.run(
        "ps -eo pid,ppid,etimes,stat,args; ls -la /var/lib/gpu-provision; dpkg --audit; tail -n 40 /var/log/gpu-provision/*.log",
        check=False,
    )
    return shown.stdout + shown.stderr


def driver_packages(host):
    """{installed driver package: version}; by dpkg, with the name test that the product uses."""
    import provision.collection  # noqa: F401
    from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names

    rows = host.run("dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'").stdout.splitlines()
    rows = [row.split() for row in rows]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and driver_names.is_driver_package(row[1])}


def transactions(host):
    """Number of apt transactions in the history of a host."""
    return host.run("cat /var/log/apt/history.log 2>/dev/null | grep -c ^Start-Date || test $? = 1").stdout.strip()
