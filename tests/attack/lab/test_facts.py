"""A host that answers with code instead of facts, and one that is as it should be: nothing runs here, the other host is done."""

import base64
import json

import pytest

from tests.faults.conftest import Command
from tests.lab import Lab

LOOKUP = "{{ lookup('pipe', 'id > MARK; echo /usr/bin/python3') }}"
LINES = (
    "24.04\n      hosts: {evil: {}}\n      vars:\n        nvidia_driver_branch: \"{{ lookup('pipe', 'id > MARK; echo 580') }}\"\n"
    "    zz_x:\n      # "
)
PYTHON = "/usr/local/bin/python3"
# Passes everything on to the real Python, and changes one field of what the probe answers.
WRAPPER = '''#!/usr/bin/python3 -I
import os, sys
code = """
import json, sys
real = json.dumps
def dumps(data, *args, **kwargs):
    def change(inner):
        if not isinstance(inner, dict):
            return
        if isinstance(inner.get("host"), dict) and "python_path" in inner["host"]:
            at = inner
            for part in PLACE[:-1]:
                at = at[part]
            at[PLACE[-1]] = VALUE
        for value in list(inner.values()):
            change(value)
    change(data)
    return real(data, *args, **kwargs)
json.dumps = dumps
sys.executable = "/usr/local/bin/python3"
"""
words = sys.argv[1:]
if "-c" in words:
    at = words.index("-c") + 1
    words[at] = "PLACE, VALUE = @PLACE@, @VALUE@" + code + words[at]
os.execv("/usr/bin/python3", ["/usr/bin/python3", *words])
'''


def spoil(host, place, value):
    """Have a host's python3 answer with a value in the place of a fact."""
    # In a text of the wrapper: quoted twice.
    program = WRAPPER.replace("@PLACE@", _quoted(place)).replace("@VALUE@", _quoted(value))
    text = base64.b64encode(program.encode()).decode()
    host.run(f"echo {text} | base64 -d > {PYTHON} && chmod 755 {PYTHON}")


def _quoted(value):
    return repr(value).replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    hosts = [
        {"name": "evil", "gpus": ["A100"]},
        {"name": "good", "gpus": ["A100"], "installed": ["580-server open signed held"]},
    ]
    with Lab.start(hosts) as lab:
        yield Command(lab, tmp_path_factory.mktemp("state"))


def test_lines_in_the_release_that_init_writes_down(two, tmp_path):
    mark, groups = tmp_path / "PWNED", tmp_path / "groups.yml"
    spoil(two.lab.host("evil"), ["host", "os", "version_id"], LINES.replace("MARK", str(mark)))
    two.run("init", "--from-inventory", "-o", str(groups))
    assert "lookup" not in groups.read_text() and "good" in groups.read_text()
    planned = json.loads(two.run("-i", str(groups), "plan", "--json", rc=5).stdout)
    assert planned["hosts"]["evil"]["status"] == "blocked" and planned["hosts"]["good"]["status"] == "changes"
    assert any(
        "host.os.version_id: " in because for one in planned["hosts"]["evil"]["blockers"] for because in one["because"]
    )
    assert not mark.exists()


def test_no_facts_at_all(two):
    spoil(two.lab.host("evil"), ["host"], 5)
    document = two.json("scan", rc=1)
    assert [error["code"] for error in document["errors"]] == ["host.bad_answer"]
    assert document["errors"][0]["host"] == "evil" and document["hosts"]["good"]["status"] == "ok"


# tests/attack/test_facts.py: no such path is taken, and Ansible evaluates nothing that a host said.
@pytest.mark.thorough
def test_a_template_as_the_path_of_python(two, tmp_path):
    """Last, since it applies."""
    mark = tmp_path / "PWNED"
    spoil(two.lab.host("evil"), ["host", "python_path"], LOOKUP.replace("MARK", str(mark)))
    read = two.json("scan")
    assert read["hosts"]["evil"]["facts"]["unreadable"] == ["host.python_path: not the path of a program"]
    assert read["hosts"]["evil"]["facts"]["host"]["python_path"] is None
    assert "host.python_path: not the path of a program" in two.run("scan", "-l", "evil").stdout
    words = ("apply", "--yes", "-e", "nvidia_driver_branch=580-server", "--json")
    document = json.loads(two.run(*words, timeout=1500).stdout)
    assert {name: host["status"] for name, host in document["hosts"].items()} == {"evil": "done", "good": "done"}
    assert not mark.exists()
