"""Proofs in containers, with stand-ins for docker and podman: what is pulled, what hangs, what stays."""

import os

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.prove import container as prove_container
from provision.parts.proof import Bounds, Measured
from provision.parts.proofs import judge


def program(tmp_path, text, name="podman"):
    """A program that writes down how it was called, then does as the text says."""
    path = tmp_path / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{text}\n')
    path.chmod(0o755)
    return path


def calls(tmp_path):
    return [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]


def podman(tmp_path, monkeypatch, text, timeout=20.0, **args):
    path = program(tmp_path, text)
    monkeypatch.setattr(prove_container, "_which", lambda name: str(path))
    return judge(Measured(id="container.run[podman]", **prove_container.prove_podman(args, timeout)), Bounds())


def test_podman_gets_gpus_by_cdi_and_nothing_stays(tmp_path, monkeypatch):
    script = 'case "$1" in run) echo "GPU 0: X (UUID: GPU-1)";; import) cat > /dev/null;; esac'
    said = podman(tmp_path, monkeypatch, script, gpus=1)
    assert (said.status, said.message) == ("pass", "podman run --device nvidia.com/gpu=all: 1 GPUs")
    assert calls(tmp_path) == ["import", "run", "rm", "rmi"]


def test_n4_a_pull_that_fails_is_a_skip(tmp_path, monkeypatch):
    script = 'case "$1" in image) exit 1;; pull) echo "net/http: TLS handshake timeout" >&2; exit 1;; esac'
    said = podman(tmp_path, monkeypatch, script, image="nvidia/cuda:12.6.0-base-ubuntu24.04")
    assert said.status == "skip" and "TLS handshake timeout" in said.message and said.hint is None
    assert calls(tmp_path) == ["image", "pull"], "no container is started, nothing is removed"


def test_a_pull_that_hangs_is_a_skip(tmp_path, monkeypatch):
    script = 'case "$1" in image) exit 1;; pull) sleep 60;; esac'
    said = podman(tmp_path, monkeypatch, script, timeout=1.0, image="big:1")
    assert said.status == "skip" and "did not end in time" in said.message


def test_an_image_that_was_pulled_goes_again_and_one_that_was_there_stays(tmp_path, monkeypatch):
    script = 'case "$1" in image) exit 1;; run) echo "GPU 0: X";; esac'
    assert podman(tmp_path, monkeypatch, script, image="x:1").status == "pass"
    assert calls(tmp_path) == ["image", "pull", "run", "rm", "rmi"]
    (tmp_path / "calls").unlink()
    assert podman(tmp_path, monkeypatch, 'test "$1" != run || echo "GPU 0: X"', image="x:1").status == "pass"
    assert calls(tmp_path) == ["image", "run", "rm"]


def test_a_hang_is_ended_and_cleaned_up(tmp_path, monkeypatch):
    script = 'case "$1" in run) sleep 60 & wait;; import) cat > /dev/null;; esac'
    said = podman(tmp_path, monkeypatch, script, timeout=4.0)
    assert said.status == "fail" and "did not end in time" in said.message
    assert calls(tmp_path) == ["import", "run", "rm", "rmi"]


def test_an_interruption_cleans_up_as_well(tmp_path, monkeypatch):
    path = program(tmp_path, "cat > /dev/null")
    runtime = prove_container._Runtime(str(path), [], dict(os.environ), 20.0)
    real = prove_container.run

    def interrupted(argv, *more):
        if argv[1] == "run":
            raise KeyboardInterrupt
        return real(argv, *more)

    monkeypatch.setattr(prove_container, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runtime.prove({}, [])
    assert calls(tmp_path) == ["import", "rm", "rmi"]
