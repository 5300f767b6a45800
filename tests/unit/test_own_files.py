"""Every module that writes files of ours does it in one step, and names the file that it cannot write."""

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError


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
