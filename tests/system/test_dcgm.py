"""dcgmi as a program of this machine: a stand-in that answers, hangs, writes without end, or has no host engine. Simulated."""

import os

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import dcgm as prove_dcgm
from provision.parts.driver import dcgm
from provision.parts.proof import Bounds

ANSWER = (
    '{"metadata": {"version": "4.5.2"}, "DCGM Diagnostic": {"test_categories": '
    '[{"tests": [{"name": "software", "results": [{"status": "Pass"}]}]}]}}'
)


@pytest.fixture
def dcgmi(open_folder, monkeypatch):
    """Write the stand-in: what it does on discovery, then on diag."""
    program = open_folder / "dcgmi"
    monkeypatch.setattr(prove_dcgm, "PROGRAM", str(program))
    monkeypatch.setattr(prove_dcgm, "_GRACE_S", 30.0)

    def write(diag, discovery="exit 0"):
        program.write_text(f'#!/bin/sh\n[ "$1" = discovery ] && {{ {discovery}; }}\n{diag}\n')
        program.chmod(0o755)

    return write


def said(level=1, timeout=60.0):
    return dcgm.judge({"uuids": {}, **prove_dcgm.run(level, timeout)}, Bounds())


def test_without_dcgm_there_is_nothing_to_run(dcgmi, open_folder):
    assert prove_dcgm.missing() == "DCGM is not installed"
    dcgmi("exit 0")
    if os.geteuid() == 0:
        assert prove_dcgm.missing() is None
        os.chown(open_folder / "dcgmi", 65534, 65534)
    assert "others than root may change" in prove_dcgm.missing()


def test_what_it_answers(dcgmi):
    dcgmi(f"""[ "$*" = "diag -r 2 -j" ] && echo '{ANSWER}'""")
    assert said(level=2)[:2] == ("pass", "DCGM 4.5.2: 1 test passed (dcgmi diag -r 2)")
    dcgmi("""echo '{"DCGM Diagnostic": '""")
    assert said()[0] == "not_run"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_it_is_asked_as_nobody(dcgmi):
    dcgmi("id -un >&2")
    assert said()[2] == ["nobody"]


def test_without_a_host_engine_no_diagnostic_starts(dcgmi, open_folder):
    open_folder.chmod(0o777)
    dcgmi(f"touch {open_folder}/started", discovery="echo Error: Unable to connect to host engine.; exit 235")
    status, message, evidence, _, _ = said()
    assert (status, evidence) == ("skip", ["Error: Unable to connect to host engine."])
    assert "no host engine" in message
    assert not (open_folder / "started").exists()


def test_one_that_hangs_may_stop_its_tests_before_it_ends(dcgmi, open_folder):
    open_folder.chmod(0o777)
    dcgmi(f"trap 'touch {open_folder}/stopped; exit 1' TERM; sleep 600 & wait")
    assert said(timeout=5.0)[1].startswith("dcgmi diag -r 1 did not end within 5 s and was stopped")
    assert (open_folder / "stopped").exists()


def test_one_that_writes_without_end_is_stopped(dcgmi):
    dcgmi("exec yes")
    assert said()[:2] == ("not_run", "dcgmi diag -r 1 writes without end and was stopped")
