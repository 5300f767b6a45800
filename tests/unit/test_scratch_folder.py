"""The folder for temporary files of a command leaves room for the sockets of Ansible's workers."""

import shutil
import socket
import tempfile

import pytest

from provision.lib import scratch


@pytest.mark.parametrize("deep", [False, True])
def test_sockets_of_multiprocessing_fit(tmp_path, monkeypatch, deep):
    base = tmp_path / ("d" * 60) if deep else tmp_path
    base.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(base) if deep else "/tmp")
    monkeypatch.setattr(scratch, "_made", [])
    folder = scratch.folder()
    try:
        assert folder.parent.as_posix() == "/tmp" and list(tmp_path.rglob("gpu-provision-*")) == []
        listener = folder / "pymp-12345678" / "listener-12345678"
        listener.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(listener))
    finally:
        shutil.rmtree(folder)
