"""The folders for temporary files of a command: in $TMPDIR, but for the sockets of Ansible's workers, which need a short path."""

import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from provision.lib import scratch
from provision.runs import engine


@pytest.mark.parametrize("deep", [False, True])
def test_sockets_of_multiprocessing_fit(tmp_path, monkeypatch, deep):
    base = tmp_path / ("d" * 60)
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base) if deep else "/tmp")
    monkeypatch.setattr(scratch, "_made", {})
    own, short = scratch.folder(), scratch.for_sockets()
    try:
        assert own.parent == (base if deep else Path("/tmp"))
        assert short.parent == Path("/tmp") and (short == own) is not deep
        assert (scratch.folder(), scratch.for_sockets()) == (own, short)
        listener = short / "pymp-12345678" / "listener-12345678"
        listener.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(listener))
    finally:
        shutil.rmtree(own, ignore_errors=True)
        shutil.rmtree(short, ignore_errors=True)


def test_a_play_gets_the_short_one(monkeypatch):
    monkeypatch.setattr(scratch, "for_sockets", lambda: Path("/tmp/short"))
    fleet = type("Fleet", (), {"settings": {}, "hosts": []})
    assert engine._environment(fleet)["TMPDIR"] == "/tmp/short"
