"""Files of other people: whatever lies in a file's place, the read of the host ends, names it, and says the rest.

The places are those that the read itself opens: a rich host is read once and every path that was opened is noted. With
-s the table of all places is printed.
"""

import ast
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, kmod, outputs
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics as probe_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from ansible_collections.gpu.provision.plugins.module_utils.probe import smi
from tests.sample import share, turn
from tests.unit import condatrees, trees

ROOT = Path(__file__).resolve().parents[2]
HOME = "/home/ada"
_GRUB = "menuentry 'Ubuntu' --id 'a' {\n linux /boot/vmlinuz-6.8.0-45-generic root=/dev/sda\n}\n"
TREE = {
    "base": "h100x1",
    "running": "6.8.0-45-generic",
    "boot": ["6.8.0-45-generic"],
    "modules": [
        {"path": "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko", "version": "580.95.05", "signed_by": "x"},
        {"path": "/lib/modules/6.8.0-45-generic/kernel/nvidia-580/nvidia.ko.xz", "version": "580.95.05", "pack": "xz"},
    ],
    "efi": {"SecureBoot": 1, "MokListRT": "00"},
    "prefixes": [{"path": "/opt/miniforge3", "channel": "https://conda.anaconda.org/conda-forge"}],
    "environments": [{"path": HOME + "/.conda/envs/a", "packages": ["pytorch-2.3.1-py3.11_cuda12.1_cudnn8.9.2_0"]}],
    "files": {
        "/etc/passwd": f"root:x:0:0::/root:/bin/bash\nada:x:1000:1000::{HOME}:/bin/bash\n",
        "/etc/group": "docker:x:999:ada\n",
        HOME + "/.conda/environments.txt": HOME + "/.conda/envs/a\n",
        HOME + "/.condarc": "channels:\n  - conda-forge\n",
        HOME + "/.bashrc": "export PATH=/usr/local/cuda/bin:$PATH\nexport https_proxy=http://p:3128\n",
        HOME + "/.profile": "export LD_LIBRARY_PATH=/usr/local/cuda/lib64\n",
        HOME + "/.zshrc": "export CUDA_HOME=/usr/local/cuda\n",
        HOME + "/.config/pip/pip.conf": "[global]\nproxy = http://p:3128\n",
        HOME + "/.docker/config.json": '{"currentContext": "default"}\n',
        HOME + "/.config/docker/daemon.json": "{}\n",
        HOME + "/.config/systemd/user/docker.service": "[Service]\n",
        "/root/.bashrc": "export CUDA_HOME=/usr/local/cuda\n",
        "/opt/miniforge3/.condarc": "channels:\n  - conda-forge\n",
        "/etc/conda/.condarc": "channel_priority: strict\n",
        "/etc/environment": 'PATH="/usr/bin:/usr/local/cuda/bin"\n',
        "/etc/profile": "export CUDA_HOME=/usr/local/cuda\n",
        "/etc/profile.d/cuda.sh": "export PATH=$PATH:/usr/local/cuda/bin\n",
        "/etc/bash.bashrc": "# cuda\n",
        "/etc/login.defs": "ENV_PATH PATH=/usr/bin\n",
        "/etc/sudoers": "Defaults env_keep += https_proxy\n",
        "/etc/sudoers.d/a": "# nothing\n",
        "/etc/docker/daemon.json": '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}\n',
        "/etc/docker/daemon.json.bak": "{}\n",
        "/etc/systemd/system/docker.service.d/proxy.conf": '[Service]\nEnvironment="HTTP_PROXY=http://p:1"\n',
        "/usr/lib/systemd/system/docker.service": "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n",
        "/usr/bin/dockerd": "",
        "/etc/containerd/config.toml": "version = 2\n",
        "/etc/nvidia-container-runtime/config.toml": "[nvidia-container-cli]\n",
        "/etc/cdi/nvidia.yaml": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n",
        "/etc/apt/sources.list": "deb http://archive.ubuntu.com/ubuntu noble main\n",
        "/etc/apt/sources.list.d/x.list": "deb http://x.example/ubuntu noble main\n",
        "/etc/apt/sources.list.d/y.sources": "Types: deb\nURIs: http://y.example\nSuites: noble\nComponents: main\n",
        "/etc/apt/preferences.d/x": "Package: *\nPin: origin x.example\nPin-Priority: 100\n",
        "/etc/apt/apt.conf.d/99x": 'Acquire::http::Proxy "http://p:3128";\n',
        "/etc/modprobe.d/x.conf": "blacklist nouveau\n",
        "/etc/modules": "nvidia\n",
        "/etc/X11/xorg.conf": 'Section "Device"\n Driver "nvidia"\nEndSection\n',
        "/etc/crontab": "@reboot root nvidia-smi -pm 1\n",
        "/etc/default/grub": "GRUB_DEFAULT=0\n",
        "/etc/resolv.conf": "nameserver 9.9.9.9\n",
        "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "/boot/grub/grub.cfg": _GRUB,
        "/boot/grub/grubenv": "# GRUB Environment Block\nsaved_entry=a\n",
        "/var/log/syslog": "Nov 27 10:00:01 h kernel: NVRM: Xid 79\n",
        "/var/log/kern.log": "Nov 27 10:00:01 h kernel: NVRM: Xid 79\n",
        "/var/log/dpkg.log": "2026-01-01 00:00:00 install docker.io:amd64 <none> 1\n",
        "/var/log/apt/history.log": "Start-Date: 2026-01-01  00:00:00\nInstall: cuda:amd64 (1)\nEnd-Date: x\n",
        "/var/log/apt/term.log": "Log started\n",
        "/var/log/Xorg.0.log": "(EE) NVIDIA: no screens found\n",
        "/var/lib/dpkg/info/dkms.list": "/.\n",
        "/usr/share/keyrings/x.gpg": "x",
        "/run/reboot-required": "",
        "/run/reboot-required.pkgs": "linux-base\n",
        "/proc/uptime": "12.5 3.0\n",
        "/proc/mounts": "",
        "/usr/local/cuda-13.0/version.json": '{"cuda": {"name": "CUDA", "version": "13.0.1"}}',
        "/usr/local/cuda-13.0/include/cuda_runtime.h": "",
        "/usr/local/cuda-13.0/bin/nvcc": "",
    },
}
# Seconds that one read may take on a machine with nothing else to give: nobody waits longer than this for a hang.
PATIENCE = 240
MOST_MEMORY = 1 << 30


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends what takes longer than PATIENCE or more than MOST_MEMORY beyond what is there."""

    def late(number, frame):
        raise TimeoutError(f"the read did not end within {PATIENCE} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    old = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MOST_MEMORY, before[1]))
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, before)


def look(root) -> dict:
    """The facts that diagnose reads, as JSON has them, without what moves with the clock."""
    with bounded():
        facts = probe_diagnostics.collect(str(root), run=lambda command, timeout: (1, "", ""))
    facts["apt"]["lists_age_s"] = None
    return json.loads(json.dumps(facts))


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Path:
    return Path(condatrees.build(tmp_path_factory.mktemp("trees") / "host", TREE))


@pytest.fixture(scope="module")
def opened(host) -> dict[str, set[str]]:
    """{path: how it is read: text, head, whole} of every file that the read opens."""
    found: dict[str, set[str]] = {}
    read_bytes, read, tail, info = HostTree.read_bytes, HostTree.read, HostTree.tail, kmod.info

    def note(tree, path, how):
        if trees.at(host, tree.resolve(path)).is_file():
            found.setdefault(path, set()).add(how)

    def watched_bytes(self, path, limit=None, head=False):
        note(self, path, "head" if head else "whole")
        return read_bytes(self, path, limit, head)

    def watched_read(self, path, limit=None, head=False):
        note(self, path, "text")
        return read(self, path, limit, head)

    def watched_tail(self, path, size):
        note(self, path, "tail")
        return tail(self, path, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostTree, "read_bytes", watched_bytes)
        patch.setattr(HostTree, "read", watched_read)
        patch.setattr(HostTree, "tail", watched_tail)
        patch.setattr(kmod, "info", lambda path: note(HostTree(), path, "module") or info(path))
        look(host)
    prefix = str(host)
    for path in [path for path in found if path.startswith(prefix)]:
        found[path[len(prefix) :]] = found.pop(path)
    return found


def _fifo(place):
    os.mkfifo(place)


def _socket(place):
    # Its address has a limit that the paths of tests exceed.
    at = Path.cwd()
    os.chdir(place.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(place.name)
    finally:
        os.chdir(at)


def _loop(place):
    place.symlink_to(place.name)


def _device(place):
    os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def _sparse(place):
    place.touch()
    os.truncate(place, 3 << 30)


def _invalid(place):
    place.write_bytes(b"\xff\xfe\x00\xc3(\n\x80abc = \xff\n")


KINDS = {
    "FIFO": _fifo,
    "folder": Path.mkdir,
    "link loop": _loop,
    "socket": _socket,
    "device /dev/zero": _device,
    "3 GB": _sparse,
    "invalid UTF-8": _invalid,
}
WHY = {
    "FIFO": "not a regular file",
    "folder": "Is a directory",
    "link loop": "link loop",
    "socket": "not a regular file",
    "device /dev/zero": "not a regular file",
    "3 GB": "larger than",
    "invalid UTF-8": "not UTF-8",
}


def test_the_read_opens_what_a_host_has(opened):
    places = set(opened)
    assert len(places) >= 34
    assert {HOME + "/.conda/environments.txt", HOME + "/.condarc", HOME + "/.bashrc"} <= places
    assert {"/etc/passwd", "/var/lib/dpkg/status", "/etc/apt/sources.list.d/x.list", "/etc/ld.so.cache"} <= places


# Parts of the facts that a file feeds by more than what stands in it.
FEEDS = {"/etc/apt/": "apt", "/etc/ld.so.conf": "libraries"}


@contextlib.contextmanager
def replaced(host: Path, path: str, make) -> Iterator[None]:
    """Something else in a file's place, or nothing."""
    place = trees.at(host, HostTree(str(host)).resolve(path))
    aside = place.with_name(place.name + ".aside~")
    place.rename(aside)
    try:
        if make:
            make(place)
        yield
    finally:
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        elif os.path.lexists(place):
            place.unlink()
        aside.rename(place)


def must_be_named(kind: str, how: set[str]) -> bool:
    """What is read from its end or its beginning alone takes any size; what is read as bytes has no characters."""
    return not ((kind == "3 GB" and how & {"tail", "head"}) or (kind == "invalid UTF-8" and "text" not in how))


def attack(host: Path, healthy: dict, path: str, how: set[str], kind: str) -> list[str]:
    """What is wrong about the read of a host with a file replaced, in words."""
    with replaced(host, path, None):
        absent = look(host)
    begun = time.monotonic()
    try:
        with replaced(host, path, KINDS[kind]):
            facts = look(host)
    except (TimeoutError, MemoryError) as error:
        return [f"{path}: {error!r}"]
    named = [row for row in facts["unreadable"] if row not in healthy["unreadable"]]
    print(f"{kind:17} {time.monotonic() - begun:5.2f} s  {path:50} {'; '.join(named)}")
    wrong = []
    if must_be_named(kind, how) and not any(path in row for row in named):
        wrong.append(f"{path}: not named, {named}")
    if how == {"text"} and not any(WHY[kind] in row for row in named):
        wrong.append(f"{path}: {named}")
    wrong += [f"{path}: a part is lost: {row}" for row in lost_parts(facts)]
    # Other programs write to the disks of this machine meanwhile.
    for part in set(healthy) - {"unreadable", "trouble", "disks"}:
        feeds = any(path.startswith(begin) and part == name for begin, name in FEEDS.items())
        if healthy[part] == absent[part] != facts[part] and not feeds:
            wrong.append(f"{path}: {part} changed, which the file does not feed")
    return wrong


def lost_parts(facts: dict) -> list[str]:
    return [row for row in facts["unreadable"] if re.match(r"[a-z0-9_.]+: [A-Z]\w+(Error|Exception)$", row)]


def test_a_fifo_in_each_place_in_turn(host, opened):
    healthy = look(host)
    assert not [row for row in healthy["unreadable"] if ": " in row], healthy["unreadable"]
    wrong, folders = [], {}
    for path, how in sorted(opened.items()):
        # Two of a folder: every list of dpkg's and every device on the bus is read by the same line.
        folder = folders.setdefault(re.sub(r"\d+", "0", str(Path(path).parent)), [])
        folder.append(path)
        if len(folder) <= 2:
            wrong += attack(host, healthy, path, how, "FIFO")
    assert not wrong, "\n".join(wrong)
    assert len(folders) >= 34


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_in_all_places_at_once(kind, host, opened):
    if kind.startswith("device") and os.geteuid() != 0:
        pytest.skip("only root makes devices on this machine")
    with contextlib.ExitStack() as stack:
        for path in opened:
            # Without users there are no homes to look into.
            if path != "/etc/passwd":
                stack.enter_context(replaced(host, path, KINDS[kind]))
        facts = look(host)
    named = facts["unreadable"]
    assert not lost_parts(facts)
    for path in (HOME + "/.bashrc", HOME + "/.condarc", "/etc/apt/sources.list", "/etc/machine-id"):
        assert any(row.startswith(path + ": ") and WHY[kind] in row for row in named), (path, named)


# --- numbers, JSON, loops, sizes ----------------------------------------------------------------------------

ODD = ["\u00b2", "\u0663", "9" * 5000, "abc", "-1", "", "NaN", "1e999", "0x10", "\x00", "1_000", "+", "\ufeff1"]
NUMBERS = {
    "/proc/uptime": "{} 3.0",
    "/proc/stat": "btime {}",
    "/proc/1/stat": "1 (x) " + "{} " * 30,
    "/proc/locks": "1: POSIX ADVISORY WRITE {0} 08:01:{0} 0 EOF",
    "/proc/modules": "nvidia 1 {} - Live 0x0",
    "/sys/bus/pci/devices/0000:00:06.0/numa_node": "{}",
    "/sys/bus/pci/devices/0000:00:06.0/device": "0x{}",
    "/sys/bus/pci/devices/0000:00:06.0/max_link_width": "{}",
    "/sys/bus/pci/devices/0000:00:06.0/max_link_speed": "{} GT/s",
    "/sys/module/nvidia/refcnt": "{}",
    "/etc/passwd": "ada:x:{0}:{0}::" + HOME + ":/bin/bash",
    "/etc/apt/preferences": "Package: *\nPin: origin x\nPin-Priority: {}\n",
    "/etc/apt/apt.conf": 'APT::Periodic::Enable "{0}";\nAPT::Periodic::Unattended-Upgrade "{0}";',
    "/etc/docker/daemon.json": '{"default-shm-size": {0}, "mtu": "{0}"}',
    "/etc/containerd/config.toml": "version = {}\n",
    "/etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu\npath: /dev/nvidia{0}\npath: /dev/nvidia-caps/nvidia-cap{0}\n",
    "/boot/grub/grubenv": "next_entry={}\n",
    "/boot/loader/entries/x.conf": "version {}\nlinux /vmlinuz-{}\n",
    "/usr/local/cuda-13.0/version.json": '{"cuda": {"version": "{}"}}',
    "/usr/local/cuda-13.0/include/cuda.h": "#define CUDA_VERSION {}\n",
    "/var/lib/dpkg/alternatives/cuda": "auto\n/usr/local/cuda\n\n/usr/local/cuda-13.0\n{}\n\n",
    "/run/docker.pid": "{}",
    "/var/lib/dpkg/status": "Package: cuda-nvcc-13-0\nStatus: install ok installed\nArchitecture: amd64\nVersion: {0}\n\n"
    "Package: nvidia-driver-{0}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\n"
    "Package: libcudnn{0}-cuda-{0}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {0}:1\n",
    HOME + "/.conda/envs/a/conda-meta/python-{}-x_0.json": "",
}


@pytest.mark.parametrize("odd", ODD, ids=[repr(text[:8]) for text in ODD])
def test_a_number_that_is_none_costs_no_part(odd, tmp_path):
    root = Path(condatrees.build(tmp_path / "host", TREE))
    for path, text in NUMBERS.items():
        name = path.replace("{}", odd[:80].replace("\x00", ""))
        trees.write(root, name, text.replace("{}", odd).replace("{0}", odd))
    facts = look(root)
    assert not lost_parts(facts), facts["unreadable"]
    assert facts["host"]["os"]["id"] == "ubuntu"


def test_numbers_are_ascii_and_of_a_size_that_machines_have():
    for odd in ODD:
        assert host_tree.decimal(odd) is None or odd == "-1"
        assert host_tree.integer(odd) == (-1 if odd == "-1" else None)
    assert host_tree.decimal("12.50") == 12.5 and host_tree.integer("007") == 7 and host_tree.integer(None) is None


def test_json_of_others():
    assert host_tree.json_object("[" * 100_000) is None
    assert host_tree.json_object('{"a":' * 100_000) is None
    assert host_tree.json_object('{"a": %s, "b": NaN, "c": 1}' % ("9" * 100_000)) == {"a": None, "b": None, "c": 1}
    assert [host_tree.json_object(text) for text in (None, "", "[]", "3", "{", "\ufeff{}")] == [None] * 6


@pytest.mark.parametrize(
    "line", ["include *.conf", "include ../ld.so.conf.d/*.conf", "include deeper/*.conf", "include /etc/ld.so.conf"]
)
def test_includes_that_never_end(line, tmp_path):
    root = Path(condatrees.build(tmp_path / "host", TREE))
    for number in range(60):
        trees.write(root, f"/etc/ld.so.conf.d/{number:02}.conf", f"{line}\n/opt/own{number}\n")
    trees.link(root, "/etc/ld.so.conf.d/deeper", ".")
    facts = look(root)
    assert any(row.endswith(": include loop") for row in facts["unreadable"])
    tree = HostTree(str(root))
    assert {f"/opt/own{number}" for number in range(60)} <= set(probe_facts.library_folders(tree))


def test_a_folder_of_too_many_entries(tmp_path):
    folder = tmp_path / "host" / "etc" / "apt" / "sources.list.d"
    folder.mkdir(parents=True)
    for number in range(host_tree.MOST_NAMES + 10):
        os.close(os.open(folder / f"{number}.list", os.O_CREAT, 0o644))
    tree = HostTree(str(tmp_path / "host"))
    with bounded():
        names = tree.names("/etc/apt/sources.list.d")
    shutil.rmtree(folder)
    assert len(names) == host_tree.MOST_NAMES
    assert tree.unreadable == ["/etc/apt/sources.list.d: more than 50000 entries"]


def test_folders_a_thousand_deep_and_chains_of_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1000):
        Path("d").mkdir()
        os.chdir("d")
    os.chdir(tmp_path)
    for number in range(2000):
        Path(f"l{number}").symlink_to(f"l{number + 1}")
    for root, prefix in (("/", str(tmp_path)), (str(tmp_path), "")):
        tree = HostTree(root)
        deep = prefix + "/d" * 1000
        assert tree.read(deep + "/x") is None and tree.resolve(deep)
        assert tree.read(prefix + "/l0") is None and tree.names(prefix + "/l0") == [] and tree.resolve(prefix + "/l0")
        assert tree.unreadable == [prefix + "/l0: link loop"]
    # Python's own rmtree goes as deep as the folders do.
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_paths_that_no_file_has():
    tree = HostTree("/")
    for path in ("/etc/\0", "/etc/\ud800", "/" + "a" * 5000, "/" + "a/" * 3000):
        assert (tree.read(path), tree.names(path), tree.stat(path), tree.link(path)) == (None, [], None, None)
        assert tree.resolve(path) and not tree.exists(path)
    assert tree.unreadable == []


def test_a_file_that_grows_while_it_is_read_ends_where_it_ended(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1000)
    real = os.read

    def growing(handle, size):
        with log.open("ab") as file:
            file.write(b"y" * 1000)
        return real(handle, min(size, 100))

    monkeypatch.setattr(host_tree.os, "read", growing)
    assert host_tree.read_file(str(log)) == b"x" * 1000


def test_a_device_is_not_even_opened(tmp_path, monkeypatch):
    # To open a watchdog starts it. A link to /dev/null is how a file is masked.
    seen = []
    real = os.open
    monkeypatch.setattr(
        host_tree.os, "open", lambda path, flags, *rest: seen.append((path, flags)) or real(path, flags, *rest)
    )
    for name, target in (("zero", "/dev/zero"), ("tty", "/dev/ptmx"), ("null", "/dev/null")):
        (tmp_path / name).symlink_to(target)
    tree = HostTree("/")
    assert tree.read(f"{tmp_path}/zero") is None and tree.read(f"{tmp_path}/tty") is None
    assert all(flags & os.O_PATH for _, flags in seen)
    assert tree.read(f"{tmp_path}/null") == ""
    assert tree.unreadable == [f"{tmp_path}/zero: not a regular file", f"{tmp_path}/tty: not a regular file"]


def test_files_of_the_kernel_from_elsewhere_and_as_they_are(tmp_path):
    (tmp_path / "log").symlink_to("/proc/kmsg")
    with bounded():
        tree = HostTree("/")
        assert not tree.read(f"{tmp_path}/log")
        assert "MemTotal" in tree.read("/proc/meminfo") and tree.read("/proc/self/mounts")


def test_a_process_that_was_root_reads_its_files_still(tmp_path, monkeypatch):
    # The kernel closes /proc/self/fd to a process that changed its user: opened by its path then.
    real = os.open

    def closed(path, flags, *rest):
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *rest)

    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(host_tree.os, "open", closed)
    assert host_tree.read_text(str(tmp_path / "file")) == "text"
    with pytest.raises(host_tree.OddFileError, match="not a regular file"):
        host_tree.read_file(str(tmp_path / "fifo"))


# --- one part, not the whole read ----------------------------------------------------------------------------


READERS = [
    (probe_facts, "read_packages", "packages"),
    (probe_facts, "read_host", "host"),
    (probe_facts, "read_pci", "gpus"),
    (probe_facts, "read_kernels", "kernels"),
    (probe_facts, "read_disk_modules", "module"),
    (probe_facts, "read_loaded", "module"),
    (probe_facts, "read_libraries", "libraries"),
    (probe_facts, "read_modprobe", "modprobe"),
    (probe_facts, "_read_cuda", "cuda"),
    (probe_facts, "read_gpu_users", "gpu_users"),
    (probe_facts, "read_apt", "apt"),
    (probe_facts, "read_runfile", "runfile"),
    (probe_facts, "read_secure_boot", "secure_boot"),
    (probe_facts, "read_services", "services"),
    (probe_facts, "read_initrds", "initrds"),
    (probe_facts, "read_disks", "disks"),
    (probe_facts.containers_probe, "read", "containers"),
    (probe_facts.conda_probe, "read", "conda"),
    (probe_diagnostics.boot_diagnostics, "read", "trouble.boot"),
    (probe_diagnostics.apt_diagnostics, "read", "trouble.apt"),
    (probe_diagnostics.user_diagnostics, "read", "trouble.user"),
]
ERRORS = [KeyError("x"), RecursionError(), MemoryError()]


@pytest.mark.parametrize(
    ("module", "reader", "part", "error"),
    [(*row, error) for number, row in enumerate(READERS) for error in turn(ERRORS, number)],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_reader_that_fails_costs_its_part(module, reader, part, error, host, monkeypatch):
    from provision.facts.diagnostics import Diagnosed

    healthy, real = look(host), getattr(module, reader)

    def broken(tree, *given):
        if tree.root == str(host):
            raise error
        return real(tree, *given)

    monkeypatch.setattr(module, reader, broken)
    facts = look(host)
    assert set(facts["unreadable"]) - set(healthy["unreadable"]) == {f"{part}: {type(error).__name__}"}
    Diagnosed.model_validate(facts)
    if part == "secure_boot":
        assert facts["secure_boot"]["enabled"] is None
    if part == "host":
        assert facts["host"]["os"]["codename"] == ""


# --- programs -------------------------------------------------------------------------------------------------


def test_nvidia_smi_that_writes_without_end(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec yes '<gpu id=\"'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with bounded():
        answer = smi.start(HostTree("/"), None, 50).result()
    assert answer["timed_out"] and answer["error"]


def test_any_program_that_writes_without_end_or_hangs():
    with bounded():
        assert outputs.ask(["yes"], 50, most=1 << 20) is None
        assert outputs.ask(["sleep", "100"], 0.2) is None
        assert outputs.ask(["/no/such/program"], 5) is None
        assert outputs.ask(["sh", "-c", "echo hello; exit 3"], 50) == (3, b"hello\n")


def test_nvidia_smi_output_is_parsed_in_a_straight_line():
    with bounded():
        for text in ('<gpu id="' * 200_000, "<?xml" * 200_000, "<driver_version>" * 200_000, "<gpu" + " " * 1_000_000):
            assert smi.parse("/usr/bin/nvidia-smi", 0, text, "")["rc"] == 0


# --- one place, and patterns that a text of others cannot slow down -------------------------------------------

# (module, function): why it may open a file for reading without hosttree. /proc and /sys written out need no reason:
# nobody puts anything else there.
ALLOWED = {
    ("apt.common", "lock_holder"): "asks for a lock of dpkg's or apt's, in folders of root's alone; reads nothing",
    ("apt.settle", "settle"): "waits for our own lock, in a folder of root's alone; reads nothing",
    ("apt.detached", "_close_all"): "/dev/null",
    ("conda.common", "locked"): "flock on a marker, without blocking and without following; reads nothing",
    ("conda.common", "create_text"): "makes a file (O_CREAT | O_EXCL)",
    ("containers.docker", "_ask"): "the program dockerd, to start it by its descriptor",
    ("run.lock", "*"): "our own lock and record, in a folder of root's alone",
    ("mirror.store", "*"): "the mirror's own files, below a folder that the mirror alone writes",
    ("lib.own_state", "open_lock"): "our own lock, in a folder of root's alone; reads nothing",
    ("probe.facts", "_locked_by"): "asks for a lock of dpkg's or apt's, in folders of root's alone; reads nothing",
    ("prove.framework", "*"): "/proc/self/maps in the process of a check",
    ("prove.library", "*"): "/proc/self/maps in the process of a check",
    ("prove.xid", "*"): "/dev/kmsg, without blocking",
}


def test_no_other_place_opens_files_for_reading():
    bare, used = [], set()
    folder = ROOT / "plugins"
    for file in sorted([*folder.glob("module_utils/**/*.py"), *folder.glob("modules/*.py")]):
        name = ".".join(file.relative_to(folder).with_suffix("").parts[1:])
        if name == "lib.host_tree":
            continue
        for where, call in _calls(ast.parse(file.read_text()), None):
            if not _reads(call):
                continue
            allowed = {(name, where), (name, "*")} & set(ALLOWED)
            used |= allowed
            if not allowed:
                bare.append(f"{file.name}:{call.lineno} in {where}: {ast.unparse(call)}")
    assert not bare, "open them with lib.host_tree:\n" + "\n".join(bare)
    assert used == set(ALLOWED), f"no longer there: {set(ALLOWED) - used}"


def _calls(node, where):
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef) else where
        if isinstance(child, ast.Call):
            yield inside, child
        yield from _calls(child, inside)


def _reads(call: ast.Call) -> bool:
    name, text = ast.unparse(call.func), ast.unparse(call)
    if re.search(r"""open\(['"]/(proc|sys)/""", text):
        return False
    if name == "os.open":
        return "O_CREAT" not in text and "O_DIRECTORY" not in text
    if name in ("open", "io.open"):
        mode = [ast.unparse(one) for one in call.args[1:2]] + [
            ast.unparse(k.value) for k in call.keywords if k.arg == "mode"
        ]
        return not mode or "r" in mode[0] and "+" not in mode[0]
    return name.rsplit(".", 1)[-1] in ("read_text", "read_bytes") and "Path" in text


CONDA = "# >>> conda initialize >>>\n"
HOSTILE = [
    "\n" * 40_000,
    " " * 40_000,
    "\t \n" * 13_000,
    "a" * 40_000,
    "/" * 40_000,
    "-" * 40_000,
    "0" * 40_000,
    "." * 40_000,
    '"' * 40_000,
    "'" * 40_000,
    "`" * 40_000,
    "\\" * 40_000,
    "$(" * 20_000,
    "${" * 20_000,
    "[" * 40_000,
    "{" * 40_000,
    "# " * 20_000,
    "a=" * 20_000,
    "a:" * 20_000,
    "export " * 6_000,
    "set -a " * 6_000,
    " - - -" * 6_000,
    "a\n " * 13_000,
    "/a" * 20_000,
    "1.2-" * 10_000,
    "include * " * 4_000,
    "<a>" * 13_000,
    "::" * 20_000,
    "PATH=" * 8_000,
    "nvidia " * 6_000,
    "PATH=" + "$(" * 20_000,
    CONDA * 1_500,
    CONDA + "/" * 40_000 + "\n# <<< conda initialize <<<\n",
    "path=(" * 7_000,
]


def test_hostile_lines_in_every_file_at_once(host, opened, tmp_path):
    with contextlib.ExitStack() as stack:
        places = [path for path in opened if path.startswith(("/etc/", "/home/", "/root/", "/opt/", "/var/log/"))]
        for path in places:
            if path != "/etc/passwd":
                stack.enter_context(replaced(host, path, Path.touch))
        # Another text in each file; in make test a file has a third of them, and its neighbours the others.
        for first in share(range(len(HOSTILE)), 3):
            texts = {path: HOSTILE[(first + number) % len(HOSTILE)] for number, path in enumerate(places)}
            for path, text in texts.items():
                if path != "/etc/passwd":
                    trees.at(host, HostTree(str(host)).resolve(path)).write_text(text)
            assert not lost_parts(look(host)), {path: text[:8] for path, text in texts.items()}


def test_patterns_of_lines_stay_in_their_line():
    """A ``\\s`` behind the ``^`` of a multi-line pattern runs over the ends of lines: empty lines then cost their square."""
    wrong = []
    for file in sorted((ROOT / "plugins/module_utils").rglob("*.py")):
        text = file.read_text()
        for _, call in _calls(ast.parse(text), None):
            if re.match(r"(?:re|lazy_re)\.\w+$", ast.unparse(call.func)):
                source = ast.get_source_segment(text, call) or ""
                if re.search(r"\bre\.M\b|\(\?m\)", source) and re.search(r"\^\(?\\s[*+]", source):
                    wrong.append(f"{file.name}:{call.lineno}")
    assert not wrong, wrong
