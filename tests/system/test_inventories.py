"""What ansible-inventory says of an inventory, provision sees too: hosts, groups and variables, over a table of kinds.

tests/cases/inventories.yml: ``files`` of the inventory's folder, ``sources`` (default: hosts.yml), ``cfg`` lines of ansible.cfg,
``vault`` passwords by label, and ``vars``: what templates give for a host (ansible-inventory prints templates as they stand).
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from provision import inventory
from provision.collection import ROOT
from provision.lib import yaml_reader
from tests.sample import share
from tests.unit.brokenhosts import CASES

BIN = Path(sys.executable).parent
TABLE = yaml_reader.load((CASES / "inventories.yml").read_text(encoding="utf-8"))
# Ansible's own, which ansible-inventory leaves out or adds.
OWN = ("inventory_hostname", "inventory_hostname_short", "group_names")


class Cmdb(http.server.BaseHTTPRequestHandler):
    """A stand-in for the service that a dynamic inventory asks: pages of two hosts, as such services give them."""

    def do_GET(self):
        page = int(self.path.partition("page=")[2] or 1)
        hosts = TABLE["service"][2 * page - 2 : 2 * page]
        text = json.dumps({"results": hosts, "next": page + 1 if 2 * page < len(TABLE["service"]) else None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        """Nothing is said of it."""


@pytest.fixture(scope="module")
def service():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cmdb) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hosts"
        server.shutdown()


@pytest.fixture
def place(tmp_path, monkeypatch, service):
    for name in ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY", "ANSIBLE_VAULT_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SITE_ADDRESS", "127.0.9.9")
    monkeypatch.setenv("CMDB", service)
    monkeypatch.chdir(tmp_path)
    for name, text in TABLE["collection"].items():
        write(tmp_path / "site/ansible_collections/acme/inv" / name, text)
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("PYTHON", sys.executable))
    path.chmod(0o755 if text.startswith("#!") else 0o644)


def bare(value):
    """A value without ansible-inventory's marks of what is no template."""
    if isinstance(value, dict):
        return value.get("__ansible_unsafe", {key: bare(item) for key, item in value.items()})
    return value


def sealed(text, label, place):
    """The text with each ``!seal VALUE`` encrypted for a vault of that label."""
    lines = []
    for line in text.splitlines():
        name, seal, value = line.partition(": !seal ")
        if seal:
            command = [
                BIN / "ansible-vault",
                "encrypt_string",
                "--vault-id",
                f"{label}@{place / label}",
                "--stdin-name",
                name,
            ]
            line = subprocess.run(command, input=value, capture_output=True, text=True, check=True).stdout
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", share(TABLE["cases"], 3), ids=lambda case: case["name"])
def test_provision_sees_what_ansible_sees(case, place):
    (place / "ansible.cfg").write_text(
        "\n".join(["[defaults]", f"collections_path = {place}/site", *case.get("cfg", [])])
    )
    vaults = case.get("vault", {})
    for label, password in vaults.items():
        (place / label).write_text(password)
    for name, text in case["files"].items():
        write(place / name, sealed(text, case.get("seal", next(iter(vaults), "")), place))
    sources = case.get("sources", ["hosts.yml"])
    ids = [f"{label}@{label}" for label in vaults]
    command = [BIN / "ansible-inventory", "--list"]
    command += [word for source in sources for word in ("-i", source)] + [
        word for given in ids for word in ("--vault-id", given)
    ]
    command += ["--playbook-dir", ROOT / "playbooks"]
    asked = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}
    )
    theirs = json.loads(asked.stdout)
    ours = inventory.load(sources, vault_ids=ids)
    hosts = {name for group in theirs.values() for name in group.get("hosts", ())}
    assert {host.name for host in ours.hosts} == hosts != set()
    for name, group in theirs.items():
        if name not in ("_meta", "all", "ungrouped"):
            assert set(ours.groups[name]) >= set(group.get("hosts", ())), name
    for host in ours.hosts:
        plain = theirs["_meta"]["hostvars"].get(host.name, {})
        for name, value in plain.items():
            text = json.dumps(value)
            if "{{" not in text and "__ansible_vault" not in text:
                assert host.vars[name] == bare(value), name
        assert set(host.vars) | set(host.unresolved) == set(plain) | set(OWN), host.name
    for name, wanted in case["vars"].items():
        host = ours.host(name)
        assert {key: host.vars.get(key) for key in wanted} == wanted, host.unresolved
