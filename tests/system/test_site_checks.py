"""The site's own checks, as programs of this machine: one that passes, fails, hangs, prints rubbish or too much."""

import getpass
import json
import os
import subprocess
import sys
import time

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import site as prove_site
from provision.parts.proof import Bounds
from provision.parts.site import judge

ABOUT = {"version": 1, "host": "gpu01", "driver": "580.126.20", "gpus": []}


def said(open_folder, body, name="scratch", **row):
    program = open_folder / "check"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    user = "nobody" if os.geteuid() == 0 else getpass.getuser()
    found = prove_site.run({"name": name, "command": [str(program)], "user": user, "timeout": 30, **row}, ABOUT)
    # as it comes over a session
    return judge(json.loads(json.dumps(found)), Bounds())


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("""echo '{"status": "pass", "message": "12 TB free"}'""", "pass", "12 TB free"),
        ("""echo '{"status": "warn", "message": "90 % full", "hint": "clean up", "more": 1}'""", "warn", "90 % full"),
        ("""echo '{"status": "fail", "message": "not mounted"}'; exit 2""", "fail", "not mounted"),
        ("""echo '{"status": "pass", "message": "fine"}'; exit 3""", "fail", "says pass and ended with 3"),
        ("""echo oh no; echo trouble >&2""", "fail", "an invalid answer"),
        ("""echo '{"status": "great", "message": "x"}'""", "fail", "an invalid answer"),
        ("""echo '{"status": "pass"}'""", "fail", "an invalid answer"),
        ("""echo '[1, 2]'""", "fail", "an invalid answer"),
        ("", "fail", "an invalid answer"),
        ("yes", "fail", "writes without end"),
        (
            """grep -q '"check": "scratch"' && echo '{"status": "pass", "message": "it was asked"}'""",
            "pass",
            "it was asked",
        ),
        ("""env | grep -q SECRET_OF_OURS || echo '{"status": "pass", "message": "clean"}'""", "pass", "clean"),
    ],
)
def test_what_a_check_says(open_folder, monkeypatch, body, status, words):
    monkeypatch.setenv("SECRET_OF_OURS", "1")
    found = said(open_folder, body)
    assert found[0] == status, found
    assert words in found[1]


def test_a_check_that_hangs_is_stopped_with_all_that_it_started(open_folder):
    begun = time.monotonic()
    found = said(open_folder, "sleep 600 & sleep 600", timeout=2)
    assert found[:2] == ("fail", "it did not end within 2 s and was stopped")
    assert time.monotonic() - begun < 300


def test_what_cannot_be_run_is_said(open_folder):
    assert "no user" in said(open_folder, "", user="nobody-of-that-name")[1]
    assert "cannot be started" in said(open_folder, "", command=["/there/is/none"])[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_as_whom_it_runs(open_folder):
    assert said(open_folder, """echo "{\\"status\\": \\"pass\\", \\"message\\": \\"$(id -un)\\"}\"""")[1] == "nobody"
    os.chown(open_folder / "check", 65534, 65534)
    found = prove_site.run({"name": "x", "command": [str(open_folder / "check")], "user": "root"}, ABOUT)
    assert "others than root may change" in judge(found, Bounds())[1]


def test_the_next_command_is_about_this_machine_too(open_folder):
    given = open_folder / "v.yml"
    given.write_text("gpu_verify_site: [{name: odd, command: [/bin/false]}]\n")
    command = [sys.executable, "-m", "provision", "verify", "--local", "--check", "site.check", "-e", f"@{given}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    assert " ".join(done.stderr.split()).endswith(f"next: provision -i localhost, -e @{given} diagnose")
