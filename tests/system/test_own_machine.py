"""The machine that apply runs on is not rebooted under itself: by its boot, whatever it is called and however it is reached."""

import json
import sys

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.probe import gpu_users
from provision import inventory
from provision.runs import engine
from tests.system import sshd

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Look
      gpu.provision.host_may_reboot: {policy: "{{ wanted }}"}
      register: look
    - name: Say
      ansible.builtin.set_fact:
        nvidia_driver_reboot_required: "{{ not look.may }}"
        nvidia_driver_reboot_because: "{{ look.reasons }}"
"""


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def look(tmp_path, variables, policy, **options):
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"gpu01": variables}}}))
    fleet = inventory.load([str(tmp_path / "hosts.json")])
    run_dir = engine.new_run_dir("test", tmp_path / "runs")
    result = engine.run_playbook(tmp_path / "play.yml", fleet, ["gpu01"], {"wanted": policy}, run_dir, **options)
    outcome = result.hosts["gpu01"]
    assert outcome.issue is None, (outcome.issue, (run_dir / "ansible.log").read_text())
    return outcome


@pytest.mark.skipif(sshd.PROGRAM is None, reason=sshd.MISSING)
def test_reached_by_ssh(tmp_path):
    server = sshd.Sshd()
    variables = {
        "ansible_host": server.address,
        "ansible_port": server.port,
        "ansible_user": server.user,
        "ansible_ssh_private_key_file": str(server.key),
        "ansible_python_interpreter": sys.executable,
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={server.known_hosts}",
    }
    try:
        outcome = look(tmp_path, variables, "always")
    finally:
        server.stop()
    assert outcome.reboot_required and outcome.reboot_because == [gpu_users.OWN_MACHINE]
    assert outcome.exit_code == 6


@pytest.mark.parametrize(
    ("policy", "options", "reasons"),
    [
        ("always", {}, [gpu_users.OWN_MACHINE]),
        # the owner's wish needs no reason
        ("never", {}, []),
        ("always", {"check": True}, []),
    ],
)
def test_without_ssh(tmp_path, policy, options, reasons):
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    outcome = look(tmp_path, variables, policy, **options)
    assert outcome.reboot_required and outcome.reboot_because == reasons
