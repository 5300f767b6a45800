"""Repairs in place: on file trees, and with programs that answer from a table. Real dpkg: tests/apt/test_rescue_step.py."""

import os

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError, Result
from ansible_collections.gpu.provision.plugins.module_utils.rescue import modules as rescue_modules
from ansible_collections.gpu.provision.plugins.module_utils.rescue import step as rescue_step

CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
LIST = "/etc/apt/sources.list.d/cuda.list"
DEB822 = "/etc/apt/sources.list.d/x.sources"


class Host:
    """A tree below a folder, and the programs that were started."""

    def __init__(self, root):
        self.root, self.ran, self.answers = root, [], {}

    def write(self, path, text):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path):
        return (self.root / path.lstrip("/")).read_text()

    def exists(self, path):
        return os.path.lexists(self.root / path.lstrip("/"))

    def command(self, argv, timeout, stdin=None, log=None, cwd="/"):
        self.ran.append([*argv, *([stdin] if stdin else [])])
        for words, answer in self.answers.items():
            if " ".join(argv).startswith(words):
                return answer() if callable(answer) else answer
        return Result(0)

    def steps(self, check=False, **params):
        return rescue_step.Steps(params, check, root=str(self.root), command=self.command)

    def do(self, action, check=False, **args):
        return self.steps(check).carry_out({"action": action, "args": args})


@pytest.fixture
def tree(tmp_path):
    return Host(tmp_path)


# ---- files


def test_a_line_is_taken_out_and_kept(tree):
    text = f"# ours\ndeb {CUDA} /\ndeb [signed-by=/k.gpg] {CUDA} /\n"
    tree.write(LIST, text)
    steps = tree.steps()
    done = steps.carry_out({"action": "sources.drop", "args": {"entries": [{"file": LIST, "line": 2}]}})
    assert done == {"ok": True, "changed": True, "said": [f"disabled the entry in line 2 of {LIST}"]}
    assert tree.read(LIST) == text.replace(f"deb {CUDA}", f"# taken out by gpu-provision: deb {CUDA}", 1)
    assert tree.read(steps.backup + LIST) == text


def test_check_mode_says_and_leaves(tree):
    tree.write(LIST, f"deb {CUDA} /\n")
    done = tree.do("sources.drop", check=True, entries=[{"file": LIST, "line": 1}])
    assert done["changed"] and tree.read(LIST) == f"deb {CUDA} /\n"
    assert tree.do("file.aside", check=True, paths=[LIST])["changed"] and tree.exists(LIST)
    tree.write("/boot/vmlinuz-6.8.0-45-generic", "")
    assert tree.do("initramfs.build", check=True)["changed"] and not tree.ran


STANZA = f"""\
Types: deb
URIs: {CUDA}
Suites: /

Types: deb
URIs: http://archive.ubuntu.com/ubuntu
Suites: noble
Components: main
"""


def test_a_stanza_is_switched_off(tree):
    tree.write(DEB822, STANZA)
    tree.do("sources.drop", entries=[{"file": DEB822, "line": 1}])
    assert tree.read(DEB822) == "Enabled: no\n" + STANZA


def test_a_stanza_that_cannot_be_read_is_commented_out(tree):
    broken = "Types: dbe\nURIs: http://a\nSuites: x\n\n" + STANZA
    tree.write(DEB822, broken)
    tree.do("sources.drop", entries=[{"file": DEB822, "line": 1}, {"file": DEB822, "line": 5}])
    first, rest = tree.read(DEB822).split("\n\n", 1)
    assert all(line.startswith("# taken out by gpu-provision: ") for line in first.splitlines())
    assert rest == "Enabled: no\n" + STANZA


def test_a_whole_file(tree):
    tree.write(LIST, "<html>\n404\n\n# x\n")
    tree.do("sources.drop", entries=[{"file": LIST}])
    assert tree.read(LIST) == ("# taken out by gpu-provision: <html>\n# taken out by gpu-provision: 404\n\n# x\n")


def test_an_address_is_rewritten_where_it_stands(tree):
    old, new = ("https://nvidia.github.io/libnvidia-container/stable/ubuntu22.04/$(ARCH)", "https://new/$(ARCH)")
    tree.write(LIST, f"deb {old} /\ndeb {old} /\n")
    tree.do("sources.rewrite", entries=[{"file": LIST, "line": 2, "uri": old, "to": new}])
    assert tree.read(LIST) == f"deb {old} /\ndeb {new} /\n"
    tree.write(DEB822, f"Types: deb\nURIs: {old}\nSuites: /\n\nURIs: {old}\n")
    tree.do("sources.rewrite", entries=[{"file": DEB822, "line": 1, "uri": old, "to": new}])
    assert tree.read(DEB822) == f"Types: deb\nURIs: {new}\nSuites: /\n\nURIs: {old}\n"


def test_what_is_gone_or_done_changes_nothing(tree):
    tree.write(LIST, f"deb {CUDA} /\n")
    for action, args in [
        ("sources.drop", {"entries": [{"file": "/etc/apt/sources.list.d/gone.list", "line": 1}]}),
        ("sources.rewrite", {"entries": [{"file": LIST, "line": 1, "uri": "http://other/", "to": "http://new/"}]}),
        ("file.aside", {"paths": ["/etc/modprobe.d/gone.conf"]}),
        ("boot.room", {"files": ["/boot/gone"]}),
    ]:
        done = tree.do(action, **args)
        assert done["ok"] and not done["changed"], (action, done)
        assert tree.read(LIST) == f"deb {CUDA} /\n"


def test_only_apts_files_are_edited_as_sources(tree):
    tree.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    for path in ("/etc/passwd", "/etc/apt/../passwd"):
        done = tree.do("sources.drop", entries=[{"file": path, "line": 1}])
        assert not done["ok"] and done["code"] == "rescue.usage"
    assert tree.read("/etc/passwd").startswith("root")


def test_a_file_is_put_aside(tree):
    tree.write("/etc/modprobe.d/nvidia-off.conf", "blacklist nvidia\n")
    done = tree.do("file.aside", paths=["/etc/modprobe.d/nvidia-off.conf"])
    assert done["changed"] and not tree.exists("/etc/modprobe.d/nvidia-off.conf")
    assert tree.read("/etc/modprobe.d/nvidia-off.conf.gpu-provision-disabled") == "blacklist nvidia\n"
    assert not tree.do("file.aside", paths=["/etc/modprobe.d/nvidia-off.conf"])["changed"]


def test_leftovers_in_boot_are_moved_not_lost(tree, monkeypatch):
    monkeypatch.setattr(apt_common, "read_status", lambda: [])
    tree.write("/boot/initrd.img-6.8.0-40-generic.new", "x" * 100)
    steps = tree.steps()
    done = steps.carry_out({"action": "boot.room", "args": {"files": ["/boot/initrd.img-6.8.0-40-generic.new"]}})
    assert done["changed"] and not tree.exists("/boot/initrd.img-6.8.0-40-generic.new")
    assert tree.read(steps.backup + "/boot/initrd.img-6.8.0-40-generic.new") == "x" * 100


def test_the_running_kernel_never_goes(tree, monkeypatch):
    running = os.uname()[2]
    row = {"Package": f"linux-image-{running}", "Status": "install ok installed", "Version": "1"}
    monkeypatch.setattr(apt_common, "read_status", lambda: [apt_common.Installed(row)])
    done = tree.do("boot.room", packages=[f"linux-image-{running}"])
    assert not done["ok"] and done["code"] == "rescue.running_kernel" and not tree.ran


# ---- programs


def test_an_initramfs_that_is_missing_is_made(tree, monkeypatch):
    monkeypatch.setattr(rescue_step.shutil, "which", lambda name, path: name == "update-initramfs")
    for kernel in ("6.8.0-44-generic", "6.8.0-45-generic"):
        tree.write(f"/boot/vmlinuz-{kernel}", "")
    tree.write("/boot/initrd.img-6.8.0-44-generic", "")
    assert tree.do("initramfs.build")["ok"]
    assert tree.ran == [
        ["update-initramfs", "-u", "-k", "6.8.0-44-generic"],
        ["update-initramfs", "-c", "-k", "6.8.0-45-generic"],
    ]
    tree.answers["update-initramfs"] = Result(1, "", "gzip: stdout: No space left on device\n")
    done = tree.do("initramfs.build", kernels=["6.8.0-45-generic"])
    assert not done["ok"] and "gzip: stdout: No space left on device" in done["said"] and "df" in done["hint"]


def status(*rows):
    return [
        apt_common.Installed({"Package": name, "Status": state, "Version": "1", "Architecture": "amd64"})
        for name, state in rows
    ]


def test_holds_are_lifted_by_what_is_there(tree, monkeypatch):
    rows = status(
        ("libnvidia-gl-570", "hold ok not-installed"),
        ("nvidia-utils-570", "hold ok config-files"),
        ("linux-generic", "hold ok installed"),
        ("mine", "hold ok installed"),
        ("dpkg", "install ok installed"),
    )
    monkeypatch.setattr(apt_common, "read_status", lambda: rows)
    monkeypatch.setattr(apt_common, "wait_for_locks", lambda paths, timeout: None)
    done = tree.do("holds.clear", packages=["libnvidia-gl-570", "nvidia-utils-570", "linux-generic", "dpkg"])
    assert done["changed"]
    assert tree.ran == [
        ["dpkg", "--set-selections", "libnvidia-gl-570 purge\nnvidia-utils-570 deinstall\nlinux-generic install\n"]
    ]
    assert not tree.do("holds.clear", packages=["dpkg"])["changed"]


def test_a_lock_that_is_not_given_up_is_named_once(monkeypatch):
    def wait(paths, timeout):
        raise AptError("apt.lock_timeout", "held by process 7 (unattended-upgr) after 1 s", hint="wait")

    rows = status(("mine", "hold ok installed"))
    monkeypatch.setattr(apt_common, "read_status", lambda: rows)
    monkeypatch.setattr(apt_common, "wait_for_locks", wait)
    step = {"action": "holds.clear", "words": "w", "args": {"packages": ["mine"]}}
    found = rescue_step.run({"steps": [step, dict(step, action="dpkg.configure")], "lock_timeout": 1})
    assert found["changed"] is False
    first, second = found["steps"]
    assert first["code"] == "apt.lock_timeout" and "unattended-upgr" in first["said"][0]
    assert second["said"] == ["not begun: " + first["said"][0]] and second["action"] == "dpkg.configure"


def test_lists_come_back_where_nothing_can_be_fetched(tree, monkeypatch):
    monkeypatch.setattr(apt_common, "wait_for_locks", lambda paths, timeout: None)
    failed = Result(100, "", "E: Failed to fetch http://a/InRelease  Could not resolve 'a'\n")
    monkeypatch.setattr(rescue_step.apt_query, "update", lambda argv, timeout: failed)
    monkeypatch.setattr(rescue_step.apt_query, "way", lambda: "directly")
    tree.write("/var/lib/apt/lists/a_Packages", "old")
    done = tree.do("lists.clean")
    assert not done["ok"] and done["code"] == "apt.fetch"
    assert tree.read("/var/lib/apt/lists/a_Packages") == "old"

    def fetch(argv, timeout):
        tree.write("/var/lib/apt/lists/a_Packages", "new")
        return Result(0)

    monkeypatch.setattr(rescue_step.apt_query, "update", fetch)
    assert tree.do("lists.clean")["ok"]
    assert tree.read("/var/lib/apt/lists/a_Packages") == "new"
    assert not tree.exists("/var/lib/apt/lists.gpu-provision")


# ---- modules

LSMOD = """\
Module                  Size  Used by
nvidia_uvm            4349952  0
nvidia_drm             122880  3
nvidia_modeset        1540096  1 nvidia_drm
nvidia              104071168  15 nvidia_uvm,nvidia_modeset
video                   73728  1 nvidia_modeset
"""


@pytest.fixture
def loaded(tree):
    """The disk has 580.173.02, 580.126.20 is loaded."""
    tree.write("/sys/module/nvidia/version", "580.126.20\n")
    tree.answers.update({"modinfo": Result(0, "580.173.02\n"), "lsmod": Result(0, LSMOD)})
    return tree


def test_modules_go_in_the_order_of_their_users():
    order = rescue_modules.unload_order(rescue_modules.modules(LSMOD))
    assert order == ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"]


def test_a_reload(loaded):
    loaded.write("/sys/fs/cgroup/system.slice/nvidia-persistenced.service/cgroup.procs", "66\n")
    done = loaded.do("module.reload")
    assert done["ok"] and done["said"][0] == "loaded nvidia 580.173.02 in place of 580.126.20", done
    ran = [" ".join(argv) for argv in loaded.ran]
    assert ran == [
        "modinfo -F version nvidia",
        "lsmod",
        "systemctl stop nvidia-persistenced.service",
        "rmmod nvidia_uvm",
        "rmmod nvidia_drm",
        "rmmod nvidia_modeset",
        "rmmod nvidia",
        "modprobe nvidia",
        "modprobe nvidia_modeset",
        "modprobe nvidia_drm",
        "modprobe nvidia_uvm",
        "nvidia-smi -L",
        "systemctl start nvidia-persistenced.service",
    ]


RESET = "GPU 00000000:9B:00.0 was successfully reset.\nAll done.\n"


def test_a_card_is_reset_and_the_kernel_log_says_so(tree):
    tree.write("/sys/fs/cgroup/system.slice/nvidia-persistenced.service/cgroup.procs", "66\n")
    tree.write("/dev/kmsg", "")
    tree.answers["nvidia-smi --gpu-reset"] = Result(0, RESET)
    done = tree.do("gpu.reset", cards=["0000:9b:00.0"])
    assert (done["ok"], done["changed"], done["said"]) == (True, True, ["reset 0000:9b:00.0"])
    assert [" ".join(argv) for argv in tree.ran] == [
        "systemctl stop nvidia-persistenced.service",
        "nvidia-smi --gpu-reset -i 0000:9b:00.0",
        "systemctl start nvidia-persistenced.service",
    ]
    assert tree.read("/dev/kmsg") == "GPU 00000000:9B:00.0 was successfully reset.\n"


def test_a_card_that_is_used_or_cannot_be_reset(tree):
    tree.answers["nvidia-smi --gpu-reset"] = Result(
        3, "GPU Reset couldn't run because GPU 00000000:9B:00.0 is in use\n"
    )
    done = tree.do("gpu.reset", cards=["0000:9b:00.0"])
    assert not done["ok"] and done["code"] == "gpu.reset_failed" and "couldn't run" in done["said"][1]
    tree.answers["nvidia-smi --gpu-reset"] = Result(-9, timed_out=True)
    done = tree.do("gpu.reset", cards=["0000:9b:00.0"])
    assert done["said"][1] == "nvidia-smi did not end within 90 s" and "powered off and on" in done["hint"]
    holder(tree, 700, "python3", "0::/user.slice/user-1000.slice/session-2.scope", 1000)
    tree.ran.clear()
    done = tree.do("gpu.reset", cards=["0000:9b:00.0"])
    assert done["code"] == "gpu.in_use" and "python3 (pid 700)" in done["said"] and not tree.ran
    assert tree.do("gpu.reset", cards=["0000:9b:00.0; reboot"])["code"] == "rescue.usage"


def test_a_module_that_the_kernel_holds_is_left_as_it_was(loaded):
    loaded.answers["rmmod nvidia_drm"] = Result(1, "", "rmmod: ERROR: Module nvidia_drm is in use\n")
    done = loaded.do("module.reload")
    assert not done["ok"] and done["code"] == "module.in_use"
    assert "rmmod: ERROR: Module nvidia_drm is in use" in done["said"]
    ran = [" ".join(argv) for argv in loaded.ran]
    assert ran[-2:] == ["rmmod nvidia_drm", "modprobe nvidia_uvm"], "what was unloaded is back"


def test_nothing_to_load(loaded):
    loaded.answers["modinfo"] = Result(1, "", "modinfo: ERROR: Module nvidia not found.\n")
    assert loaded.do("module.reload")["code"] == "module.not_on_disk"
    loaded.answers["modinfo"] = Result(0, "580.126.20\n")
    assert not loaded.do("module.reload")["changed"]


GROUPS = [
    ("0::/system.slice/nvidia-dcgm.service", "0::/init.scope", "nvidia-dcgm.service"),
    ("0::/user.slice/user-1000.slice/session-2.scope", "0::/init.scope", None),
    ("0::/system.slice/docker-0b2a9ff2b732.scope", "0::/init.scope", None),
    ("0::/system.slice/docker-0b2a.scope/system.slice/train.service", "0::/init.scope", None),
    ("0::/kubepods.slice/kubepods-pod7.slice/cri-containerd-1.scope", "0::/init.scope", None),
    ("0::/system.slice/slurmstepd.scope/job_12/step_0", "0::/init.scope", None),
    ("0::/machine/c1/system.slice/nvidia-dcgm.service", "0::/machine/c1/init.scope", "nvidia-dcgm.service"),
    ("1:name=systemd:/system.slice/ollama.service\n0::/system.slice/ollama.service", "", "ollama.service"),
    ("9:cpu:/\n0::/", "", None),
    ("", "", None),
]


@pytest.mark.parametrize(("group", "init", "unit"), GROUPS)
def test_which_service_a_process_belongs_to(group, init, unit):
    assert rescue_modules.unit_of(group, init) == unit


def holder(tree, pid, comm, group, uid=0):
    tree.write(f"/proc/{pid}/comm", comm + "\n")
    tree.write(f"/proc/{pid}/cgroup", f"0::{group}\n")
    tree.write(f"/proc/{pid}/status", f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (tree.root / f"proc/{pid}/fd").mkdir(parents=True)
    (tree.root / f"proc/{pid}/fd/3").symlink_to("/dev/nvidia0")


HOLDERS = [
    # comm, control group, uid; done without consent, done with it
    (("nvidia-persiste", "/system.slice/nvidia-persistenced.service", 110), True, True),
    (("nv-hostengine", "/system.slice/nvidia-dcgm.service", 0), False, True),
    (("Xorg", "/user.slice/user-1000.slice/session-2.scope", 1000), False, True),
    (("python3", "/user.slice/user-1000.slice/session-3.scope", 1000), False, False),
    (("python3", "/system.slice/slurmd.service", 1000), False, False),
    (("python3", "/system.slice/docker-1.scope", 0), False, False),
]


@pytest.mark.parametrize(("who", "alone", "agreed"), HOLDERS, ids=[row[0][0] + row[0][1] for row in HOLDERS])
def test_nobodys_work_is_ended(loaded, who, alone, agreed):
    loaded.write("/proc/1/cgroup", "0::/init.scope\n")
    comm, group, uid = who
    holder(loaded, 700, comm, group, uid)
    for consent, expected in ((False, alone), (True, agreed)):
        loaded.ran.clear()
        done = loaded.steps(stop_holders=consent).carry_out({"action": "module.reload"})
        assert done["ok"] is expected, done
        if not expected:
            assert comm in " ".join(done["said"]) and done["hint"]
            assert not [argv for argv in loaded.ran if argv[0] in ("rmmod", "systemctl", "kill")]


def test_an_action_that_nobody_knows():
    with pytest.raises(AptError, match="no such step"):
        rescue_step.run({"steps": [{"action": "format.disk", "args": {}}]})
