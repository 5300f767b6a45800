"""Conda end to end on simulated hosts, from the lab's installer, channels and wheel index (a simulation; pip is real)."""

import signal
import time

import pytest
import yaml

from provision.lib import yaml_reader
from tests.lab.conda import publish

pytestmark = pytest.mark.lab

TWO = [
    {"name": "py311cu124", "python": "3.11", "torch": "2.6.0", "cuda": "12.4"},
    {"name": "py311cu118", "python": "3.11", "torch": "2.5.1", "cuda": "11.8"},
]
HOST = {
    "name": "gpu01",
    "gpus": ["RTX 4090"],
    "installed": ["580-server open signed held"],
    "nouveau": False,
    "extra": {"/etc/pip.conf": publish.PIP_CONF},
}


def ask(command, **values):
    """Write role variables for all hosts beside the lab's inventory, and give their content."""
    folder = command.lab.inventory.parent / "group_vars"
    folder.mkdir(exist_ok=True)
    asked = {**publish.variables(), **values}
    (folder / "all.yml").write_text(yaml.safe_dump(asked))
    return asked


def statuses(document):
    return {name: host["status"] for name, host in document["hosts"].items()}


def test_two_environments_on_two_cuda_versions_and_then_nothing_more(fleet):
    command = fleet(HOST)
    host = command.lab.host("gpu01")
    ask(command, miniconda_environments=TWO)
    assert statuses(command.json("plan", rc=2)) == {"gpu01": "changes"}
    assert host.run("test -e /opt/miniconda3", check=False).rc == 1
    assert statuses(command.json("apply", "--yes")) == {"gpu01": "done"}
    for name, cuda in (("py311cu124", "12.4"), ("py311cu118", "11.8")):
        python = f"/opt/miniconda3/envs/{name}/bin/python"
        said = host.run(f"{python} -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())'").stdout
        assert said == f"{cuda} True\n"
    rc = host.run("cat /opt/miniconda3/.condarc").stdout
    assert "conda-forge" in rc and "defaults" not in yaml_reader.load(rc)["channels"]
    assert statuses(command.json("plan")) == {"gpu01": "converged"}
    again = command.json("apply", "--yes")
    assert again["run_dir"] is None and statuses(again) == {"gpu01": "unchanged"}
    plain = command.ansible("site.yml")
    assert plain.returncode == 0 and "changed=0" in plain.stdout, plain.stdout


@pytest.mark.thorough
def test_a_third_one_that_cannot_work_is_refused_by_name_before_anything_is_touched(fleet):
    command = fleet(HOST)
    host = command.lab.host("gpu01")
    ask(command, miniconda_environments=[*TWO, {"name": "future", "torch": "9.9.9"}])
    refused = command.json("plan", rc=5)
    blockers = refused["hosts"]["gpu01"]["blockers"]
    assert any("future" in blocker["message"] for blocker in blockers) and all(b["hint"] for b in blockers)
    command.run("apply", "--yes", rc=5)
    assert host.run("test -e /opt/miniconda3", check=False).rc == 1
    assert host.run("test -e /var/cache/gpu-provision", check=False).rc == 1


# tests/system/test_conda_install.py.
@pytest.mark.thorough
def test_users_get_their_own_and_what_was_killed_is_finished(fleet):
    command = fleet(HOST)
    host = command.lab.host("gpu01")
    host.run("useradd -m -s /bin/bash alice && useradd -m -s /bin/bash -d '/home/bob the builder' bob")
    ask(command, miniconda_users=["alice"], miniconda_shell_init=["alice"])
    host.run("echo die=link > /home/alice/.lab-conda")
    failed = command.json("apply", "--yes", rc=1)
    error = next(error for error in failed["errors"] if error["host"] == "gpu01")
    assert error["code"] == "conda.installer_killed" and error["hint"]
    assert host.run("test -e /home/alice/.miniconda3/.gpu-provision-in-progress").rc == 0
    host.run("rm /home/alice/.lab-conda")
    assert statuses(command.json("apply", "--yes")) == {"gpu01": "done"}
    owners = host.run("find /home/alice/.miniconda3 -printf '%u\\n' | sort -u").stdout.split()
    assert owners == ["alice"]
    assert host.run("grep -c 'conda initialize >>>' /home/alice/.bashrc").stdout == "1\n"
    assert statuses(command.json("plan")) == {"gpu01": "converged"}
    # A home with a space: refused at plan time, with a way out that works.
    ask(command, miniconda_users=["alice", "bob"])
    blocker = command.json("plan", rc=5)["hosts"]["gpu01"]["blockers"][0]
    assert blocker["code"] == "conda.prefix_space" and "miniconda_users_prefix" in blocker["hint"]


@pytest.mark.thorough
def test_interrupted_while_an_environment_is_made(fleet):
    command = fleet(HOST)
    host = command.lab.host("gpu01")
    ask(command, miniconda_environments=TWO)
    host.run("echo pause=env:4 > /root/.lab-conda")
    run = command.start("apply", "--yes")
    deadline = time.monotonic() + 90
    while host.run("ls /opt/miniconda3/envs/.gpu-provision-* 2>/dev/null", check=False).rc:
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 130, output
    host.run("rm -f /root/.lab-conda")
    assert statuses(command.json("apply", "--yes")) == {"gpu01": "done"}
    assert statuses(command.json("plan")) == {"gpu01": "converged"}
    left = host.run("ls -A /opt/miniconda3/envs").stdout.split()
    assert left == ["py311cu118", "py311cu124"]


@pytest.mark.thorough
def test_m1_terms_only_by_the_owners_word(fleet):
    command = fleet(HOST)
    host = command.lab.host("gpu01")
    look = "find /opt/miniconda3/conda-meta/tos /root/.conda/tos -name '*.json' 2>/dev/null | wc -l"
    ask(command, miniconda_install=True)
    command.json("apply", "--yes")
    assert host.run(look).stdout == "0\n"
    said = host.run("/opt/miniconda3/bin/conda create -y -n x -c defaults python 2>&1", check=False)
    assert said.rc == 1 and "CondaToSNonInteractiveError" in said.stdout
    ask(command, miniconda_install=True, miniconda_accept_tos=True)
    assert statuses(command.json("apply", "--yes")) == {"gpu01": "done"}
    assert host.run(look).stdout == "2\n"
    assert statuses(command.json("plan")) == {"gpu01": "converged"}
