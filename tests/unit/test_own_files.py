"""Every module that writes files of ours does it in one step, and names the file that it cannot write."""

from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree


def test_apt(tmp_path, monkeypatch):
    path = tmp_path / "apt/gpu-provision.pref"
    monkeypatch.setattr(apt_files, "PREFERENCES", str(path))
    given = {"preferences": "Package: *\nPin: release *\nPin-Priority: 1\n"}
    assert apt_configure.apply(given, check=False)["changed"]
    assert path.read_text() == given["preferences"]
    assert not apt_configure.apply(given, check=False)["changed"]
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(apt_files, "PREFERENCES", str(tmp_path / "file/gpu-provision.pref"))
    with pytest.raises(AptError, match="Not a directory") as caught:
        apt_configure.apply(given, check=False)
    assert caught.value.code == "apt.file" and caught.value.hint


class Noon:
    """A clock that stands still."""

    @staticmethod
    def time():
        return 0.0


def test_two_backups_of_one_second_are_both_kept(tmp_path):
    host = containers_host.Host(HostTree("/"), backup=str(tmp_path / "backup"), clock=Noon)
    path = tmp_path / "daemon.json"
    for text in ("{}", '{"mine": 1}', '{"mine": 2}'):
        path.write_text(text)
        kept = host.keep(str(path), host.read(str(path)))
        assert host.keep(str(path), host.read(str(path))) == kept
    assert {file.read_text() for file in Path(kept).parent.iterdir()} == {"{}", '{"mine": 1}', '{"mine": 2}'}


def test_a_dated_path_is_one_that_nothing_has(tmp_path):
    def path():
        return own_files.dated(str(tmp_path / "apt-"), ".log", now=0)

    assert path() == str(tmp_path / "apt-19700101T000000Z.log")
    Path(path()).write_text("")
    Path(path()).symlink_to("/nowhere")
    assert path() == str(tmp_path / "apt-19700101T000000Z-3.log")
