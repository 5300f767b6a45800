"""What only diagnose reads of kernel, DKMS, X and services: pure parts by table, files in a tree, programs that hang."""

import os
from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree

# isort: skip - trees makes it importable
from ansible_collections.gpu.provision.plugins.module_utils.probe import boot_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics as probe_diagnostics
from provision.lib import yaml_reader
from tests.unit import trees

TABLE = yaml_reader.load((Path(__file__).parents[1] / "cases/boot_diagnostics.yml").read_text(encoding="utf-8"))
RUNNING = "6.8.0-45-generic"
PROBED = {
    "host": {"systemd": True, "container": None},
    "kernels": {"running": RUNNING},
    "module": {"on_disk": [{"kernel": "6.8.0-1", "path": "/b.ko"}, {"kernel": RUNNING, "path": "/a.ko"}]},
}


@pytest.mark.parametrize("case", TABLE["log"], ids=[case["line"][:40] for case in TABLE["log"]])
def test_lines_of_the_log(case):
    assert boot_diagnostics.interesting([case["line"]]) == ([case["kept"]] if case["kept"] else [])


@pytest.mark.parametrize("case", TABLE["errors"], ids=[case["name"] for case in TABLE["errors"]])
def test_the_line_of_make_log_that_decides(case):
    assert boot_diagnostics.decisive_error(case["log"]) == case["error"]


def test_a_line_that_comes_again_is_kept_once_and_long_logs_end_somewhere():
    assert boot_diagnostics.interesting(["[1.0] NVRM: x", "[2.0] NVRM: x"]) == ["NVRM: x"]
    assert len(boot_diagnostics.interesting([f"NVRM: {n}" for n in range(2000)])) == 300


def test_only_this_boot_counts():
    lines = ["a Linux version 1", "old", "b Linux version 2", "new"]
    assert boot_diagnostics.this_boot(lines) == ["b Linux version 2", "new"]
    assert boot_diagnostics.this_boot(["no start in sight"]) == ["no start in sight"]


@pytest.mark.parametrize(("booted", "before"), [(-60, False), (60, True)])
def test_a_module_that_was_there_before_this_boot(tmp_path, monkeypatch, booted, before):
    (tmp_path / "a.ko").touch()
    tree = HostTree(str(tmp_path))
    assert boot_diagnostics.read_module_before_boot(tree, PROBED) is None, "a recorded host has other times"
    monkeypatch.setattr(boot_diagnostics, "read_start", lambda _: (tmp_path / "a.ko").stat().st_ctime + booted)
    assert boot_diagnostics.read_module_before_boot(tree, PROBED) is before
    assert boot_diagnostics.read_module_before_boot(tree, {**PROBED, "kernels": {"running": "6.9"}}) is None


def read(root, run=None, **tree):
    return boot_diagnostics.read(HostTree(str(trees.build(root, tree))), PROBED, run)


def test_an_empty_host_has_an_answer_of_the_right_shape(tmp_path):
    from provision.facts.diagnostics import BootDiagnostics

    found = read(tmp_path)
    assert set(found) == set(BootDiagnostics.model_fields), "what is read and what is kept are the same"
    assert BootDiagnostics.model_validate(found) == BootDiagnostics()


def test_the_log_of_programs_goes_before_files(tmp_path):
    def run(command, timeout):
        assert timeout <= 5
        return (0, "[1.0] NVRM: live\n", "") if command[0] == "dmesg" else (1, "", "")

    found = read(tmp_path, run, files={"/var/log/kern.log": "NVRM: old\n"})
    assert (found["log"], found["log_from"]) == (["NVRM: live"], ["dmesg"])


def test_the_journal_answers_where_dmesg_may_not(tmp_path):
    def run(command, timeout):
        return (
            (0, "2026-11-28T10:00:00+0000 h kernel: NVRM: journal\n", "")
            if command[:2] == ["journalctl", "-k"]
            else (1, "", "")
        )

    assert read(tmp_path, run)["log"] == ["NVRM: journal"]


def test_failed_units_and_why(tmp_path):
    def run(command, timeout):
        if command[0] == "systemctl":
            return (
                0,
                "nvidia-fabricmanager.service loaded failed failed x\n* other.service loaded failed failed y\n",
                "",
            )
        if command[:3] == ["journalctl", "-u", "nvidia-fabricmanager"]:
            return 0, "line one\nversion 1 don't match\n", ""
        return 1, "", ""

    found = read(tmp_path, run)
    assert "nvidia-fabricmanager.service" in found["failed_units"]
    assert found["unit_log"] == {"nvidia-fabricmanager": ["line one", "version 1 don't match"]}


def test_without_systemd_units_are_not_known(tmp_path):
    tree = HostTree(str(trees.build(tmp_path, {})))
    assert (
        boot_diagnostics.read(tree, {**PROBED, "host": {"systemd": False, "container": None}}, None)["failed_units"]
        is None
    )


def test_a_file_in_etc_hides_its_namesake(tmp_path):
    found = read(
        tmp_path,
        files={
            "/etc/modprobe.d/a.conf": "blacklist nouveau\n",
            "/usr/lib/modprobe.d/a.conf": "blacklist nvidia\n",
            "/usr/lib/modprobe.d/b.conf": "options snd x=1\nalias nvidia off\n",
        },
    )
    assert [(row["file"], row["line"], row["text"]) for row in found["modprobe"]] == [
        ("/etc/modprobe.d/a.conf", 1, "blacklist nouveau"),
        ("/usr/lib/modprobe.d/b.conf", 2, "alias nvidia off"),
    ]


def test_what_dkms_has(tmp_path):
    (row,) = read(
        tmp_path,
        dirs=[
            "/var/lib/dkms/nvidia/580.1/6.8/x86_64/module",
            "/var/lib/dkms/nvidia/580.1/6.5/x86_64/module",
            "/var/lib/dkms/zfs/2/6.8",
        ],
        links={
            "/var/lib/dkms/nvidia/kernel-6.8-x86_64": "580.1/6.8/x86_64",
            "/var/lib/dkms/nvidia/580.1/source": "/usr/src/nvidia-580.1",
        },
        files={
            "/var/lib/dkms/nvidia/580.1/build/make.log": "DKMS make.log for nvidia-580.1 for kernel 6.9 (x86_64)\na.c:1: error: x\n"
        },
    )["dkms"]
    assert row["source_missing"] and row["make_kernel"] == "6.9" and row["make_error"] == "a.c:1: error: x"
    assert row["builds"] == [{"kernel": "6.5", "installed": False}, {"kernel": "6.8", "installed": True}]


def test_x_sections(tmp_path):
    text = 'Section "Device" # one\n Identifier "a"\n  Driver "nvidia"\n BusID "PCI:1:0:0"\nEndSection\n'
    text += 'Section "Screen"\n Driver "no"\nEndSection\n'
    found = read(tmp_path, files={"/etc/X11/xorg.conf": text})
    assert found["xorg"] == [{"file": "/etc/X11/xorg.conf", "line": 1, "driver": "nvidia", "bus": "PCI:1:0:0"}]


def test_the_last_execstart_counts(tmp_path):
    base = "/usr/lib/systemd/system/nvidia-persistenced.service"
    found = read(
        tmp_path,
        files={
            base: "ExecStart=/usr/bin/nvidia-persistenced --user x --no-persistence-mode\n",
            "/etc/systemd/system/nvidia-persistenced.service.d/a.conf": "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced -V\n",
        },
    )
    assert found["persistenced_options"] == "-V"


@pytest.mark.parametrize(
    ("route", "six", "found"),
    [
        (None, None, None),
        ("h\neth0 00000000 1 3 0 0 0 00000000 0 0 0\n", None, True),
        ("h\neth0 0001A8C0 0 1 0 0 0 00FFFFFF 0 0 0\n", None, False),
        ("h\n", "0" * 32 + " 00 " + "0" * 32 + " 00 " + "0" * 32 + " 1 1 0 1 eth0\n", True),
        ("h\n", "0" * 32 + " 00 " + "0" * 32 + " 00 " + "0" * 32 + " 1 1 0 1 lo\n", False),
    ],
)
def test_ways_out(tmp_path, route, six, found):
    files = {
        path: text for path, text in (("/proc/net/route", route), ("/proc/net/ipv6_route", six)) if text is not None
    }
    assert read(tmp_path, files=files)["default_route"] is found


def test_no_program_is_started_for_a_recorded_host(tmp_path):
    assert boot_diagnostics._asker(HostTree(str(tmp_path)), None)(["dmesg"]) is None


def test_the_host_program_adds_to_the_probes_facts(tmp_path):
    facts = probe_diagnostics.main({"root": str(trees.build(tmp_path, {"running": "6.8.0-45-generic"}))})
    assert facts["kernels"]["running"] == "6.8.0-45-generic"
    assert set(facts["trouble"]) == {"boot", "apt", "user"}


@pytest.mark.parametrize(
    ("mode", "group", "closed"),
    [
        (0o20666, 0, None),
        (0o20660, 44, None),
        (0o20660, 0, "0660"),
        (0o20644, 0, "0644"),
        (0o20600, 44, "0600"),
        (0o20640, 44, "0640"),
        # a recorded host's own file
        (0o100600, 0, None),
    ],
)
def test_nodes_that_only_root_can_open(mode, group, closed):
    class Tree:
        def stat(self, path):
            return os.stat_result((mode, 1, 1, 1, 0, group, 0, 0, 0, 0))

    found = boot_diagnostics.read_closed_nodes(Tree(), ["/dev/nvidia0", "/dev/nvidia-caps", "/dev/nvidia-modeset"])
    assert found == ({"/dev/nvidia0": closed} if closed else {})
