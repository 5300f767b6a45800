"""nvidia-smi beside the rest: found, read, given up when it hangs."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from ansible_collections.gpu.provision.plugins.module_utils.probe import smi
from provision.facts import Smi
from tests.unit import trees


def _script(folder, text):
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_answer_of_a_real_program(tmp_path):
    xml = trees.FIXTURES / "h100x2/nvidia-smi.xml"
    result = smi.Query(_script(tmp_path, f'[ "$*" = "-q -x" ] && cat {xml}\n'), 10).result()
    Smi.model_validate(result, strict=True)
    assert [gpu["bus_id"] for gpu in result["gpus"]] == ["00000000:00:06.0", "00000000:00:07.0"]
    assert result["rc"] == 0 and result["error"] is None and not result["timed_out"]


def test_failure_keeps_its_words_and_code(tmp_path):
    text = "echo 'Failed to initialize NVML: Unknown Error'; echo 'and more' >&2; exit 18\n"
    result = smi.Query(_script(tmp_path, text), 10).result()
    assert result["rc"] == 18 and result["error"] == "Failed to initialize NVML: Unknown Error and more"


def test_death_by_signal_is_a_negative_code(tmp_path):
    result = smi.Query(_script(tmp_path, "kill -SEGV $$\n"), 10).result()
    assert result["rc"] == -signal.SIGSEGV and result["error"] == "nvidia-smi ended with -11"


def test_hung_program_that_ignores_signals_is_given_up(tmp_path):
    pids = tmp_path / "pids"
    path = _script(tmp_path, f"trap '' TERM INT HUP\nsleep 60 &\necho $$ $! > {pids}\nwait\nsleep 60\n")
    start = time.monotonic()
    result = smi.Query(path, 0.5).result()
    assert time.monotonic() - start < 2
    Smi.model_validate(result, strict=True)
    assert result["timed_out"] and result["ran"] and result["rc"] is None and "did not end" in result["error"]
    deadline = time.monotonic() + 5
    running = [int(pid) for pid in pids.read_text().split()]
    assert len(running) == 2
    while any(map(_alive, running)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_alive, running)), "the script and its child are gone"


def test_time_counts_from_the_start_and_files_are_read_meanwhile(tmp_path, monkeypatch):
    """Each waits for the other: one after the other, neither would end."""
    begun, read = tmp_path / "begun", tmp_path / "read"
    _script(tmp_path, f"touch {begun}; while [ ! -e {read} ]; do sleep 0.01; done; exit 9\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def collect(tree, conda_prefixes):
        end = time.monotonic() + 20
        while not begun.exists() and time.monotonic() < end:
            time.sleep(0.01)
        read.touch()
        return {}

    monkeypatch.setattr(probe_facts, "_collect", collect)
    assert probe_facts.collect()["smi"]["rc"] == 9


def test_failing_probe_leaves_nothing_running(tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    _script(tmp_path, f"echo $$ > {pid}\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def fail(tree, conda_prefixes):
        while not (pid.exists() and pid.read_text().strip()):
            time.sleep(0.01)
        raise RuntimeError("broken")

    monkeypatch.setattr(probe_facts, "_collect", fail)
    with pytest.raises(RuntimeError):
        probe_facts.collect()
    deadline = time.monotonic() + 5
    while _alive(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(int(pid.read_text()))


def test_program_of_another_architecture(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 60)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = probe_facts.collect()
    Smi.model_validate(facts["smi"], strict=True)
    assert facts["smi"]["ran"] is False and "cannot be started: Exec format error" in facts["smi"]["error"]


def test_long_answers_do_not_block(tmp_path):
    path = _script(tmp_path, f"exec {sys.executable} -c 'print(\"x\" * 3000000)'\n")
    assert smi.Query(path, 20).result()["rc"] == 0


def test_path_order(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    root = trees.build(tmp_path / "host", {"base": "h100x1"})
    assert smi.find(HostTree(str(root))) == "/usr/local/nvidia/bin/nvidia-smi"
    trees.write(root, "/usr/bin/nvidia-smi", "").chmod(0o755)
    assert smi.find(HostTree(str(root))) == "/usr/bin/nvidia-smi"


def test_device_nodes_are_those_that_nvidia_smi_leaves(tmp_path):
    """NVIDIA's own, started by root, makes the nodes that are missing: those of the cards at once, nvidia-uvm seconds later."""
    root = trees.build(tmp_path / "host", {"base": "h100x1"})
    (root / "dev/nvidia-uvm").unlink()

    def run(argv, timeout):
        trees.write(root, "/dev/nvidia-uvm", "")
        return 6, "No devices were found\n", ""

    assert "/dev/nvidia-uvm" in probe_facts.collect(root=str(root), run=run)["devices"]


def test_nothing_is_started_for_a_recorded_host(tmp_path, monkeypatch):
    root = trees.build(tmp_path / "host", {"base": "h100x1"})
    monkeypatch.setattr(os, "posix_spawn", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert probe_facts.collect(root=str(root))["smi"]["ran"] is False


@pytest.mark.parametrize(
    ("mark", "field", "value"),
    [
        ("<persistence_mode>Enabled<", "persistence", False),
        ("<current_mig>Disabled<", "mig", "Enabled"),
        ("<current_ecc>Enabled<", "ecc", None),
        ("<product_name>NVIDIA H100 80GB HBM3<", "name", "NVIDIA A100"),
    ],
)
def test_fields(mark, field, value):
    tag = mark[1 : mark.index(">")]
    shown = {False: "Disabled", None: "N/A"}.get(value, value)
    xml = (trees.FIXTURES / "h100x1/nvidia-smi.xml").read_text()
    assert mark in xml
    result = smi.parse("/usr/bin/nvidia-smi", 0, xml.replace(mark, f"<{tag}>{shown}<"), "")
    assert result["gpus"][0][field] == value


def test_lost_gpu_keeps_the_others():
    xml = (trees.FIXTURES / "h100x2/nvidia-smi.xml").read_text()
    head, first, rest = xml.partition("<gpu ")
    lost = head + '<gpu id="00000000:00:05.0">\n<product_name>GPU is lost</product_name></gpu>\n' + first + rest
    result = smi.parse("/usr/bin/nvidia-smi", 15, lost + "Unable to determine the device handle\n", "")
    assert len(result["gpus"]) == 3 and result["gpus"][0]["uuid"] is None
    assert result["error"] == "Unable to determine the device handle"
