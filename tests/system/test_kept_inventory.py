"""Answers of the reader of inventories that are kept: when they hold, when not, and what is never kept."""

import json
import os
import subprocess
import sys
import time

import pytest

from provision import inventory
from provision.inventory import kept
from tests.sample import share

FLEET = "all:\n  hosts:\n    gpu01: {ansible_host: 10.0.0.1, ansible_user: ops}\n"


def edit(folder):
    (folder / "hosts.yml").write_text(FLEET.replace("10.0.0.1", "10.0.0.2"))


def add_group_vars(folder):
    (folder / "group_vars").mkdir()
    (folder / "group_vars/all.yml").write_text("nvidia_driver_branch: '580'\n")


def change_host_vars(folder):
    (folder / "host_vars/gpu01.yml").write_text("nvidia_driver_branch: '580'\n")


def add_configuration(folder):
    (folder / "ansible.cfg").write_text("[defaults]\nremote_user = other\n")


def change_extra(folder):
    (folder / "extra.yml").write_text("nvidia_driver_branch: '580'\n")


def damage(folder):
    (one,) = (folder / "state/gpu-provision/inventories").iterdir()
    one.write_bytes(one.read_bytes().replace(b"10.0.0.1", b"10.0.0.9"))


def cut_off(folder):
    (one,) = (folder / "state/gpu-provision/inventories").iterdir()
    one.write_bytes(one.read_bytes()[:200])


def show(folder):
    (one,) = (folder / "state/gpu-provision/inventories").iterdir()
    one.chmod(0o644)


CHANGES = (edit, add_group_vars, change_host_vars, add_configuration, change_extra, damage, cut_off, show)
NEVER = {
    "password": FLEET.replace("ansible_user: ops", "ansible_become_password: opensesame"),
    "named_secret": FLEET.replace("ansible_user: ops", "registry_token: opensesame"),
    "look_up": FLEET.replace("ops", "\"{{ lookup('env', 'HOME') }}\""),
    "look_up_elsewhere": FLEET.replace("ops", "ops, note: '{{ hostvars.gpu02.x }}'")
    + "    gpu02: {x: \"{{ lookup('env', 'HOME') }}\"}\n",
    "filter": FLEET.replace("ops", '"{{ [1, 2] | random }}"'),
    "reader": "plugin: ansible.builtin.constructed\nstrict: false\n",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each case, old enough that its times tell of a change."""
    base = tmp_path_factory.mktemp("kept")
    texts = {**dict.fromkeys(["same", "script", *(change.__name__ for change in CHANGES)], FLEET), **NEVER}
    texts["nobody"] = FLEET.replace("10.0.0.1", "127.0.0.1, ansible_port: 1")
    for name, text in texts.items():
        folder = base / name
        (folder / "host_vars").mkdir(parents=True)
        (folder / "hosts.yml").write_text(text)
        (folder / "host_vars/gpu01.yml").write_text("nvidia_driver_branch: '570'\n")
        (folder / "extra.yml").write_text("gpu_verify_deep: false\n")
    (base / "reader/static.yml").write_text(FLEET)
    (base / "script/hosts.yml").write_text(
        f"#!/bin/sh\ncat <<'E'\n{json.dumps({'all': {'hosts': ['gpu01']}, '_meta': {'hostvars': {}}})}\nE\n"
    )
    (base / "script/hosts.yml").chmod(0o755)
    time.sleep(2.2)
    return base


@pytest.fixture
def read(monkeypatch, folders, request):
    """Read an inventory of a folder; returns it, and whether a program was started for it."""

    def go(folder, sources=("hosts.yml",), **more):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        started = []
        real = inventory._read
        with monkeypatch.context() as patched:
            patched.setattr(inventory, "_read", lambda: (started.append(1), real())[1])
            found = inventory.load([str(folder / source) for source in sources], **more)
        return found, bool(started)

    return go


def test_the_same_inventory_is_read_once(read, folders):
    first, started = read(folders / "same")
    again, started_again = read(folders / "same")
    assert (started, started_again) == (True, False)
    assert again == first
    (one,) = (folders / "same/state/gpu-provision/inventories").iterdir()
    assert one.stat().st_mode & 0o777 == 0o600
    assert one.parent.stat().st_mode & 0o777 == 0o700
    for other in ({"limit": "gpu01"}, {"extra_vars": ["gpu_verify_deep=true"]}):
        assert read(folders / "same", **other)[1]


def test_a_command_with_a_kept_inventory_removes_what_a_killed_one_left(folders, tmp_path):
    temporary, state = tmp_path / "temporary", tmp_path / "state"
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "TMPDIR": str(temporary)}
    argv = [sys.executable, "-m", "provision", "scan", "-i", str(folders / "nobody/hosts.yml")]
    temporary.mkdir()
    for _ in range(2):
        (temporary / "gpu-provision-command-4194399-abcd").mkdir()
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 4, done.stderr
        assert list(temporary.iterdir()) == []
        assert list((state / "gpu-provision/inventories").iterdir())


def test_a_setting_of_ansible_counts(read, folders, monkeypatch):
    read(folders / "same")
    monkeypatch.setenv("ANSIBLE_REMOTE_PORT", "2222")
    found, started = read(folders / "same")
    assert started
    assert found.host("gpu01").connection.port == 2222


@pytest.mark.parametrize("change", share(CHANGES, 2), ids=lambda change: change.__name__)
def test_a_change_is_seen(read, folders, change):
    folder = folders / change.__name__
    given = {"extra_vars": [f"@{folder}/extra.yml"]}
    read(folder, **given)
    assert not read(folder, **given)[1]
    change(folder)
    found, started = read(folder, **given)
    assert started
    connection = found.host("gpu01").connection
    assert (connection.address, connection.user) == ("10.0.0.2" if change is edit else "10.0.0.1", "ops")
    assert found.host("gpu01").vars["nvidia_driver_branch"] == (
        "580" if change in (change_host_vars, change_extra) else "570"
    )


@pytest.mark.parametrize("name", share([*NEVER, "script"], 2))
def test_what_is_never_kept(read, folders, name):
    folder = folders / name
    sources = ("hosts.yml", "static.yml") if name == "reader" else ("hosts.yml",)
    given = {"limit": "gpu01"}
    read(folder, sources, **given)
    assert read(folder, sources, **given)[1]
    assert not list((folder / "state").rglob("*.json"))


def test_a_vault_password_keeps_nothing(read, folders):
    read(folders / "same")
    assert read(folders / "same", vault_password="opensesame")[1]  # noqa: S106 - a made one
    assert not any("opensesame" in one.read_text() for one in (folders / "same/state").rglob("*.json"))


def test_a_variable_of_the_command_line_lies_in_no_file(read, folders):
    for _ in range(2):
        assert read(folders / "same", extra_vars=["registry_key=opensesame"])[1]
    assert not any("opensesame" in one.read_text() for one in (folders / "same/state").rglob("*.json"))


def test_a_file_of_this_second_is_read_again(read, folders, tmp_path):
    (tmp_path / "hosts.yml").write_text(FLEET)
    # So it is of this second, however long the first read takes.
    os.utime(tmp_path / "hosts.yml", (time.time() + 60,) * 2)
    read(tmp_path)
    assert read(tmp_path)[1]


def test_few_answers_are_kept(read, folders, monkeypatch):
    monkeypatch.setattr(kept, "_MOST_ANSWERS", 2)
    for name in ("gpu01", "gpu0*", "all", "*"):
        read(folders / "same", limit=name)
    assert len(list((folders / "same/state").rglob("*.json"))) == 2
