"""Inventories through Ansible's own code: variables, vault, patterns, connections, and what is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from provision import inventory
from provision.collection import ROOT
from provision.errors import UsageError
from provision.inventory import variables
from tests.unit.test_docs import EXAMPLES

# Not the forked one of these tests.
READ = inventory._read
VAULT = Path(sys.executable).with_name("ansible-vault")

FLEET = """
all:
  vars:
    ansible_user: ops
  children:
    gpus:
      vars:
        nvidia_driver_branch: "580"
        nvidia_driver_version: "{{ nvidia_driver_branch }}.126.20"
      hosts:
        gpu01: {ansible_host: 10.0.0.1, ansible_port: 2222}
        gpu02: {nvidia_driver_branch: "570"}
        gpu03: {ansible_become: false, ansible_python_interpreter: /opt/python3}
    others:
      hosts:
        web01: {free_text: "{{ only_known_in_a_play }}"}
"""


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    """No ansible.cfg of the checkout or of the machine's user decides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY", "ANSIBLE_VAULT_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / "fleet.yml"
    path.write_text(FLEET)
    return str(path)


def refused(*args, **kwargs):
    with pytest.raises(UsageError) as caught:
        inventory.load(*args, **kwargs)
    assert caught.value.exit_code == 64
    return caught.value.issue


def test_variables_are_templated_per_host(fleet):
    found = {host.name: host.vars for host in inventory.load([fleet]).hosts}
    assert found["gpu01"]["nvidia_driver_version"] == "580.126.20"
    assert found["gpu02"]["nvidia_driver_version"] == "570.126.20"
    assert found["gpu01"]["ansible_user"] == "ops"


def test_connection(fleet):
    loaded = inventory.load([fleet])
    one, two, three = (loaded.host(name).connection for name in ("gpu01", "gpu02", "gpu03"))
    assert (one.kind, one.address, one.port, one.user) == ("ssh", "10.0.0.1", 2222, "ops")
    assert (two.address, two.port, two.become, two.python) == ("gpu02", None, None, None)
    assert (three.become, three.python) == (False, "/opt/python3")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("gpu*:!gpu03", ["gpu01", "gpu02"]), ("gpus[0]", ["gpu01"]), ("~gpu0[12]", ["gpu01", "gpu02"])],
)
def test_patterns_are_ansibles(fleet, pattern, names):
    assert [host.name for host in inventory.load([fleet], pattern).hosts] == names


def test_pattern_that_matches_nothing_names_the_nearest(fleet):
    issue = refused([fleet], "gpu1")
    assert issue.code == "inventory.no_match"
    assert issue.hint == "did you mean gpu01?"


def test_origins_say_where_a_variable_is_from(fleet, tmp_path):
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/gpus.yml").write_text("nvidia_driver_hold: true\n")
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars/gpu01.yml").write_text("nvidia_driver_hold: false\n")
    hosts = inventory.load([fleet], None, {"nvidia_driver_update": True})
    assert hosts.host("gpu01").vars["nvidia_driver_hold"] is False
    assert hosts.host("gpu01").origins["nvidia_driver_hold"] == "host gpu01"
    assert hosts.host("gpu02").vars["nvidia_driver_hold"] is True
    assert hosts.host("gpu02").origins["nvidia_driver_hold"] == "group gpus"
    assert hosts.host("gpu02").origins["nvidia_driver_branch"] == "host gpu02"
    assert hosts.host("gpu02").origins["nvidia_driver_update"] == "-e"


def test_extra_variables_win(fleet):
    given = [
        "nvidia_driver_branch=570",
        "a=1 b=2",
        '{"list": [1, {"x": null}], "truth": true}',
        "a=2",
        "derived={{ ansible_user }}-x",
    ]
    found = inventory.load([fleet], "gpu01", given).hosts[0].vars
    want = {
        "nvidia_driver_branch": "570",
        "a": "2",
        "b": "2",
        "list": [1, {"x": None}],
        "truth": True,
        "derived": "ops-x",
        "nvidia_driver_version": "570.126.20",
    }
    assert {name: found[name] for name in want} == want
    assert inventory.load([fleet], "gpu01", {"a": True}).hosts[0].vars["a"] is True


def test_extra_variables_from_a_file(fleet, tmp_path):
    (tmp_path / "more.yml").write_text("nvidia_driver_branch: '535'\nansible_user: root\n")
    host = inventory.load([fleet], "gpu01", [f"@{tmp_path}/more.yml"]).hosts[0]
    assert host.vars["nvidia_driver_branch"] == "535"
    assert host.connection.user == "root"


def test_extra_variables_that_make_no_sense(fleet):
    assert refused([fleet], None, ["{broken"]).code == "vars.extra"
    assert refused([fleet], None, ["@/nonexistent.yml"]).code == "vars.extra"


def test_a_host_list_and_localhost():
    hosts = inventory.load(["gpu01,gpu02"]).hosts
    assert [(host.name, host.connection.kind) for host in hosts] == [("gpu01", "ssh"), ("gpu02", "ssh")]
    (local,) = inventory.load(["localhost,"]).hosts
    assert (local.connection.kind, local.implicit_local) == ("local", True)


def test_localhost_in_a_file_means_what_ansible_means(tmp_path):
    (tmp_path / "hosts.ini").write_text("localhost\n")
    (host,) = inventory.load([str(tmp_path / "hosts.ini")]).hosts
    assert host.connection.kind == "ssh"
    (tmp_path / "hosts.ini").write_text("localhost ansible_connection=local\n")
    (host,) = inventory.load([str(tmp_path / "hosts.ini")]).hosts
    assert (host.connection.kind, host.implicit_local) == ("local", False)


def test_missing_inventories(tmp_path):
    issue = refused(["nothere.yml"])
    assert (issue.code, "provision init" in issue.hint) == ("inventory.missing", True)
    issue = refused(None)
    assert (issue.code, "provision init" in issue.hint) == ("inventory.missing", True)


def test_default_inventory_is_found(tmp_path):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/hosts.yml").write_text(FLEET)
    assert len(inventory.load().hosts) == 4
    (tmp_path / "elsewhere.ini").write_text("gpu99\n")
    (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = elsewhere.ini\n")
    assert [host.name for host in inventory.load().hosts] == ["gpu99"]


def test_empty_and_broken_inventories(tmp_path):
    (tmp_path / "empty.yml").write_text("all: {hosts: {}}\n")
    assert refused([str(tmp_path / "empty.yml")]).code == "inventory.empty"
    (tmp_path / "broken.yml").write_text("all: [unclosed\n")
    issue = refused([str(tmp_path / "broken.yml")])
    assert issue.code == "inventory.invalid"
    assert "broken.yml" in " ".join(issue.because)


def test_templates_without_a_value(fleet, tmp_path):
    # Not ours, and no connection: somebody else's play may know it.
    host = inventory.load([fleet], "web01").hosts[0]
    assert "free_text" in host.unresolved
    for name in ("nvidia_driver_branch", "ansible_host"):
        path = tmp_path / "bad.yml"
        path.write_text(yaml.safe_dump({"all": {"hosts": {"gpu01": {name: "{{ nowhere }}"}}}}))
        issue = refused([str(path)])
        assert (issue.code, issue.host) == ("vars.template", "gpu01")
        assert name in issue.message
        assert "nowhere" in issue.because[0]


DOAS = """\
DOCUMENTATION = "name: doas\\nshort_description: a stand-in\\noptions: {}"
from ansible.plugins.become import BecomeBase
class BecomeModule(BecomeBase):
    name = "community.general.doas"
"""


def test_how_root_is_become(tmp_path, monkeypatch, fleet):
    def connection(method, **more):
        found = inventory.load([fleet], "gpu01", {"ansible_become_method": method, **more}).hosts[0].connection
        return found.become_method, found.become_exe, found.become_known, found.become_password

    assert connection("ansible.builtin.sudo") == ("sudo", "sudo", True, None)
    assert connection("su", ansible_su_pass="x") == ("su", "su", True, "x")
    assert connection("doas") == ("doas", "doas", False, None)
    plugins = tmp_path / "found/ansible_collections/community/general/plugins/become"
    plugins.mkdir(parents=True)
    (plugins / "doas.py").write_text(DOAS)
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(tmp_path / "found"))
    for name in ("doas", "community.general.doas"):
        assert connection(name, ansible_become_exe="/bin/doas") == ("doas", "/bin/doas", True, None)


def test_options_of_ansible_cfg(tmp_path, fleet):
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\nhost_key_checking = false\ntimeout = 33\nprivate_key_file = ~/.ssh/farm\n"
        "[ssh_connection]\nssh_args = -o A=b\npipelining = true\n[privilege_escalation]\nbecome = true\n"
    )
    loaded = inventory.load([fleet], "gpu01", {"ansible_ssh_common_args": "-o ProxyJump=bastion"})
    found = loaded.hosts[0].connection
    assert (found.host_key_checking, found.timeout, found.become) == (False, 33, True)
    assert found.key_file == str(tmp_path / ".ssh/farm")
    assert (found.ssh_args, found.ssh_extra_args) == (("-o", "A=b"), ("-o", "ProxyJump=bastion"))
    assert loaded.settings["pipelining_configured"] is True


def test_passwords_are_not_shown(fleet):
    secrets = {"ansible_password": "geheim1", "ansible_become_password": "geheim2"}
    loaded = inventory.load([fleet], "gpu01", secrets, become_password="geheim3", vault_password="geheim4")
    found = loaded.hosts[0].connection
    # The inventory's own password goes before the one that was typed, as with Ansible.
    assert (found.password, found.become_password) == ("geheim1", "geheim2")
    assert inventory.load([fleet], "gpu02", become_password="geheim3").hosts[0].connection.become_password == "geheim3"
    assert "geheim" not in repr(loaded)


@pytest.fixture
def vaulted(tmp_path):
    (tmp_path / "pw").write_text("open sesame\n")
    value = subprocess.run(
        [
            str(VAULT),
            "encrypt_string",
            "--vault-password-file",
            str(tmp_path / "pw"),
            "--stdin-name",
            "ansible_become_password",
        ],
        input="geheim",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/gpus.yml").write_text(value)
    return tmp_path / "pw"


def test_vault(fleet, vaulted, monkeypatch):
    issue = refused([fleet])
    assert issue.code == "inventory.vault" or issue.code == "vars.template"
    assert "geheim" not in str(issue)

    def password(**options):
        return inventory.load([fleet], "gpu01", **options).hosts[0].connection.become_password

    assert password(vault_password="open sesame") == "geheim"
    assert password(vault_ids=[str(vaulted)]) == "geheim"
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(vaulted))
    assert password() == "geheim"


def test_wrong_vault_password(fleet, vaulted):
    issue = refused([fleet], vault_password="wrong")
    assert issue.code == "inventory.vault"
    assert "vault" in issue.hint
    assert refused([fleet], vault_ids=["/nonexistent"]).code == "inventory.vault"


def test_dynamic_inventory_that_prints_noise(tmp_path):
    script = tmp_path / "dynamic.py"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\nsys.stderr.write('talking\\n')\n"
        "print(json.dumps({'gpus': {'hosts': ['gpu01']}, '_meta': {'hostvars': {'gpu01': {'ansible_host': '10.0.0.9'}}}}))\n"
    )
    script.chmod(0o755)
    (host,) = inventory.load([str(script)]).hosts
    assert (host.connection.address, host.groups) == ("10.0.0.9", ("all", "gpus"))


def test_many_hosts_in_little_time(tmp_path):
    (tmp_path / "many.ini").write_text("[gpus]\ngpu[001:400]\n[gpus:vars]\nnvidia_driver_branch=580\n")
    assert len(inventory.load([str(tmp_path / "many.ini")]).hosts) == 400


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_inventories_load(example, monkeypatch, tmp_path):
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "none.cfg"))
    loaded = inventory.load([str(ROOT / "inventory/examples" / example)])
    # raises for a variable that no role knows
    values = variables.effective_all(loaded.hosts)
    assert loaded.hosts
    assert not loaded.warnings
    if example == "fleet":
        assert len(loaded.hosts) == 40
        assert values["hgx01.example.org"]["nvidia_driver_branch"] == "580-server"
        assert values["pcie01.example.org"]["nvidia_driver_branch"] == "580"
        assert values["hgx16.example.org"]["gpu_verify_strict"] is True


def test_a_vault_script_that_hangs_is_named_and_not_waited_for(fleet, monkeypatch, tmp_path):
    """It is Ansible's child and has the reader's stderr: who reads that to its end waits as long as the script runs."""
    monkeypatch.setattr(inventory, "_read", READ)
    script = tmp_path / "ask-pass"
    waits = "for _ in $(seq 300); do sleep 0.1; done"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{waits}\ntouch {tmp_path}/over\n")
    script.chmod(0o755)
    loading = inventory.start([fleet], vault_ids=[f"lab@{script}"])
    with pytest.raises(UsageError, match="was not read within 5 seconds"):
        loading.result(timeout=5)
    assert not (tmp_path / "over").exists()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
