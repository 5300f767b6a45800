"""The vault's password and extra variables: they reach the real ansible-playbook and lie in no file, whenever it is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from provision import inventory
from provision.runs import engine
from tests.sample import share

PASSWORD, VALUE, SEALED = "vaultS3CRETpassword", "extraS3CRETvalue", "sealedS3CRETvalue"
SECRETS = [text.encode() for text in (PASSWORD, VALUE, SEALED)]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Use both
      ansible.builtin.assert:
        that: [sealed == 'sealedS3' ~ 'CRETvalue', typed == 'extraS3' ~ 'CRETvalue', led == 'to ' ~ typed]
      no_log: true
    - name: Be slow
      ansible.builtin.wait_for: {timeout: 5}
    - name: Read the inventory once more
      ansible.builtin.meta: refresh_inventory
    - name: Use it again
      ansible.builtin.assert: {that: sealed | length == 17}
      no_log: true
"""
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
COMMAND = """
import sys
from pathlib import Path
from provision import inventory
from provision.runs import engine
fleet = inventory.load([sys.argv[1]], None, {"typed": sys.argv[3], "led": "to {{ typed }}"},
    vault_password=sys.stdin.readline().strip())
print("read", flush=True)
def look(event):
    if event["event"] == "host_start":
        print(event["task"], flush=True)
engine.run_playbook(Path(sys.argv[2]), fleet, ["a"], {}, engine.new_run_dir("test"), look)
"""


@pytest.fixture(autouse=True)
def own_places(monkeypatch, tmp_path):
    for name, folder in (("HOME", "home"), ("TMPDIR", "tmp")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fleet_file(tmp_path):
    """An inventory of one host, with a sealed variable."""
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    sealed = subprocess.run(
        [Path(sys.executable).with_name("ansible-vault"), "encrypt_string", "--vault-password-file", secret, SEALED],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    secret.unlink()
    block = "\n".join(" " * 8 + line.strip() for line in sealed.splitlines() if not line.startswith("!vault"))
    (tmp_path / "hosts.yml").write_text(
        f"all:\n  hosts:\n    a:\n      ansible_connection: local\n      ansible_python_interpreter: {sys.executable}\n"
        f"      sealed: !vault |\n{block}\n"
    )
    (tmp_path / "play.yml").write_text(PLAY)
    return tmp_path / "hosts.yml"


def holding(places):
    """Files below places that hold a secret."""
    found = set()
    for place in places:
        for folder, folders, names in os.walk(place):
            # Those of other tests, where they are kept in memory, and what is mounted: whoever reads /proc/kmsg waits.
            folders[:] = [
                name for name in folders if name[:10] != "pytest-of-" and not os.path.ismount(Path(folder, name))
            ]
            for name in names:
                path = Path(folder, name)
                try:
                    if (
                        path.is_file()
                        and not path.is_symlink()
                        and any(secret in path.read_bytes() for secret in SECRETS)
                    ):
                        found.add(str(path))
                except OSError:
                    # it went, or is not ours to read
                    continue
    return found


class Sampler(threading.Thread):
    """Looks for secrets in every file of the places that a run writes to, again and again."""

    def __init__(self, tmp_path):
        super().__init__(daemon=True)
        self.places, self.found, self.looks = (tmp_path, "/dev/shm"), set(), 0
        self.over = threading.Event()

    def run(self):
        # One look more when the run is over, however slow the machine is.
        last = False
        while not last:
            last = self.over.wait(0.02)
            self.found |= holding([*self.places, *Path("/tmp").glob("gpu-provision-*")])
            self.looks += 1


def test_it_is_used_and_lies_in_no_file(tmp_path, fleet_file):
    sampler = Sampler(tmp_path)
    fleet = inventory.load([str(fleet_file)], None, {"typed": VALUE, "led": "to {{ typed }}"}, vault_password=PASSWORD)
    sampler.start()
    result = engine.run_playbook(tmp_path / "play.yml", fleet, ["a"], {}, engine.new_run_dir("test"), verbosity=4)
    sampler.over.set()
    sampler.join()
    assert result.hosts["a"].status == "ok", (result.run_dir / "ansible.log").read_text()
    assert sampler.looks
    assert sampler.found == set()


def test_a_broken_template_shows_no_other_variable(tmp_path, fleet_file):
    fleet = inventory.load([str(fleet_file)], None, {"typed": VALUE}, vault_password=PASSWORD)
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.debug: {msg: '{{ led }}'}\n"
    )
    broken = {"led": "{{ nothing_of_that_name }}"}
    result = engine.run_playbook(tmp_path / "play.yml", fleet, ["a"], broken, engine.new_run_dir("test"), verbosity=4)
    assert result.hosts["a"].status == "failed"
    assert holding([result.run_dir]) == set()


@pytest.mark.parametrize("after", share([("Be slow", 0.1), ("read", 0.0), ("read", 0.3), ("read", 0.8)], 4))
def test_a_killed_run_leaves_none_of_it(tmp_path, fleet_file, after):
    sampler = Sampler(tmp_path)
    sampler.start()
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, fleet_file, tmp_path / "play.yml", VALUE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    command.stdin.write(PASSWORD + "\n")
    command.stdin.flush()
    word, seconds = after
    assert word in iter(lambda: command.stdout.readline().strip(), "")
    time.sleep(seconds)
    children = _children(command.pid)
    for pid in [command.pid, *children]:
        os.kill(pid, signal.SIGKILL)
    command.communicate()
    time.sleep(0.3)
    sampler.over.set()
    sampler.join()
    assert sampler.looks
    assert sampler.found == set()
    # The next run removes what could not be removed.
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n")
    subprocess.run(
        [sys.executable, "-c", COMMAND, fleet_file, tmp_path / "play.yml", VALUE],
        input=PASSWORD,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    left = [*(tmp_path / "tmp").iterdir(), *(tmp_path / "home").glob(".ansible/tmp/*")]
    assert left == []


def _children(pid):
    found = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it ended meanwhile
        return found
    for child in children:
        found += [int(child), *_children(child)]
    return found


def test_no_argument_list_and_no_environment_has_them(tmp_path, fleet_file):
    fleet = inventory.load([str(fleet_file)], None, {"typed": VALUE, "led": "to {{ typed }}"}, vault_password=PASSWORD)
    seen = []

    def look(event):
        if event.get("task") == "Be slow" and not seen:
            # Only what this test started: other tests beside it have the same texts on their command lines.
            for pid in [os.getpid(), *_children(os.getpid())]:
                for name in ("cmdline", "environ"):
                    path = Path(f"/proc/{pid}/{name}")
                    try:
                        seen.append((str(path), path.read_bytes()))
                    except OSError:
                        continue

    engine.run_playbook(tmp_path / "play.yml", fleet, ["a"], {}, engine.new_run_dir("test"), look)
    assert len(seen) > 4
    assert [path for path, text in seen if any(secret in text for secret in SECRETS)] == []


def test_names_are_names_and_what_was_found_reaches_ansible(tmp_path):
    names = [f"host{number}" for number in range(300)]
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": dict.fromkeys(names, LOCAL)}}))
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - run_once: true\n      ansible.builtin.set_fact:\n"
        "        seen: '{{ ansible_play_hosts }}'\n    - run_once: true\n      ansible.builtin.copy:\n"
        f"        dest: {tmp_path}/seen\n        content: '{{{{ seen | to_json }}}}'\n"
    )
    fleet = inventory.load([str(tmp_path / "hosts.json")])
    result = engine.run_playbook(tmp_path / "play.yml", fleet, names[:299], {}, engine.new_run_dir("test"))
    assert json.loads((tmp_path / "seen").read_text()) == names[:299], (result.run_dir / "ansible.log").read_text()
