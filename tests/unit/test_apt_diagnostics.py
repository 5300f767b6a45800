"""What diagnose reads of apt and dpkg: names of lists, signers, logs, dependencies; and files that are no such files."""

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import dpkg_logs, dpkg_state
from ansible_collections.gpu.provision.plugins.module_utils.apt import lists as apt_lists
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import apt_diagnostics, user_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.facts.diagnostics import AptDiagnostics, UserDiagnostics
from tests.unit import apthosts, trees

STATUS = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {}\n{}\n"
BASE = "".join(STATUS.format(name, 1, "") for name in ("dpkg", "libc6", "base-files"))


@pytest.mark.parametrize(
    ("uri", "suite", "name"),
    [
        # As apt 2.6 and 2.8 named them on hosts of the lab and on a real machine.
        ("http://127.0.0.1:18765/", "/", "127.0.0.1:18765_"),
        ("http://archive.ubuntu.com/ubuntu", "noble-updates", "archive.ubuntu.com_ubuntu_dists_noble-updates_"),
        (
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/",
            "/",
            "developer.download.nvidia.com_compute_cuda_repos_ubuntu2404_x86%5f64_",
        ),
        ("https://user:secret@mirror.example.org/a~b", "x", "mirror.example.org_a%7eb_dists_x_"),
        ("file:/srv/repo", "./", "_srv_repo_._"),
        ("file:///srv/repo/", "/", "_srv_repo_"),
        (
            "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
            "/",
            "nvidia.github.io_libnvidia-container_stable_deb_amd64_",
        ),
    ],
)
def test_lists_are_called_as_apt_calls_them(uri, suite, name):
    assert apt_lists.prefix(uri, suite, "amd64") == name


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("libnvidia-cfg1-580", True),
        # of no branch, and of another: those that show where it comes from
        ("nvidia-settings", True),
        ("nvidia-driver-550", True),
        ("libnvidia-cfg1-550", False),
        # a firmware for each version
        ("nvidia-firmware-580-580.142", False),
        # installed, or held
        ("libnvidia-decode-550", True),
        ("nvidia-firmware-580-580.95.05", True),
        ("nvidia-container-toolkit-base", True),
        ("libcudnn9-cuda-12", True),
        ("cuda-nvcc-12-8", False),
    ],
)
def test_which_packages_of_a_list_are_reported(name, reported):
    installed = {"libnvidia-decode-550", "nvidia-firmware-580-580.95.05"}
    assert apt_lists._is_reported(name, installed, {"580"}) is reported


@pytest.mark.parametrize("form", ["id", "fingerprint", "both"])
@given(ids=st.lists(st.text("0123456789ABCDEF", min_size=16, max_size=16), min_size=1, max_size=4, unique=True))
def test_signers_are_told_in_order(form, ids):
    text = "-----BEGIN PGP SIGNED MESSAGE-----\n\nOrigin: x\n" + apthosts.signature(ids, form)
    assert apt_lists.signers(text.encode()) == ids


def test_history_of_two_months_with_who_and_what(tmp_path):
    old = (
        "\nStart-Date: 2026-10-01  06:00:00\nCommandline: apt-get install http://u:p@h/x.deb\nRequested-By: ann (1000)\n"
        "Install: cuda-toolkit-12-4:amd64 (12.4.1-1), foo:amd64 (1, automatic)\nEnd-Date: 2026-10-01  06:01:00\n"
    )
    new = (
        "\nStart-Date: 2026-11-01  06:00:00\nCommandline: /usr/bin/unattended-upgrade\n"
        "Upgrade: libnvidia-gl-580:i386 (580.1-1, 580.2-1)\nRemove: nvidia-prime:amd64 (0.8)\n"
        "Error: Sub-process /usr/bin/dpkg returned an error code (1)\nEnd-Date: 2026-11-01  06:02:00\n"
        "\nStart-Date: 2026-11-02  06:00:00\nCommandline: apt-get upgrade\nUpgrade: vim:amd64 (1, 2)\n"
        "End-Date: 2026-11-02  06:00:01\n"
    )
    trees.write(tmp_path, dpkg_logs.HISTORY + ".1.gz", gzip.compress(old.encode()))
    trees.write(tmp_path, dpkg_logs.HISTORY, new)
    first, second = dpkg_logs.transactions(dpkg_logs.history(HostTree(tmp_path)))
    assert first["by"] == "ann (1000)" and not first["unattended"] and "u:p" not in first["command"]
    assert first["changes"] == [{"action": "install", "name": "cuda-toolkit-12-4", "old": None, "new": "12.4.1-1"}]
    assert second["unattended"] and second["error"]
    assert second["changes"] == [
        {"action": "upgrade", "name": "libnvidia-gl-580", "old": "580.1-1", "new": "580.2-1"},
        {"action": "remove", "name": "nvidia-prime", "old": "0.8", "new": None},
    ]


@pytest.mark.parametrize(
    ("needs", "unmet"),
    [
        ("libc6", []),
        ("libc6 (>= 1)", []),
        ("libc6 (= 1), dpkg (<< 2)", []),
        ("gone | libc6", []),
        ("libc6:any (>= 1)", []),
        ("awk", []),
        ("awk (= 3)", []),
        ("libc6 [amd64]", []),
        ("gone", ["gone"]),
        ("libc6 (>> 1)", ["libc6 (>> 1)"]),
        ("awk (= 4)", ["awk (= 4)"]),
        ("gone (>= 1) | libc6 (>= 2)", ["gone (>= 1) | libc6 (>= 2)"]),
        ("libc6 (<< 1),  gone", ["libc6 (<< 1)", "gone"]),
    ],
)
def test_dependencies_that_nothing_meets(needs, unmet, tmp_path):
    text = BASE + STATUS.format("mawk", 2, "Provides: awk (= 3)\n") + STATUS.format("x", 1, f"Depends: {needs}\n")
    trees.write(tmp_path, "/var/lib/dpkg/status", text.replace("\n\n", "\n\n"))
    rows, journal = dpkg_state.read(HostTree(tmp_path))
    assert [row["needs"] for row in dpkg_state.unmet(rows)] == unmet and not journal


def test_nothing_is_said_of_a_host_that_was_cut_down():
    rows = [
        {
            "name": "x",
            "arch": "amd64",
            "version": "1",
            "want": "install",
            "flag": "ok",
            "state": "installed",
            "depends": "gone",
            "provides": "",
        }
    ]
    assert dpkg_state.unmet(rows) == []


JUNK = st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
PLACES = (
    "/var/lib/dpkg/status",
    "/var/lib/dpkg/updates/0001",
    "/var/log/apt/history.log",
    "/var/log/apt/history.log.1.gz",
    "/var/log/apt/term.log",
    "/var/log/dpkg.log",
    "/var/log/unattended-upgrades/unattended-upgrades.log",
    "/var/lib/aptitude/pkgstates",
    "/usr/share/keyrings/k.gpg",
    "/etc/apt/trusted.gpg",
    "/etc/apt/apt.conf.d/99x",
    "/etc/apt/preferences.d/x",
    "/var/lib/apt/lists/x.example_dists_noble_InRelease",
    "/var/lib/apt/lists/x.example_dists_noble_restricted_binary-amd64_Packages",
    "/var/lib/apt/lists/partial/x.example_dists_noble_InRelease",
    "/etc/docker/daemon.json",
    "/etc/docker/daemon.json.bak",
    "/etc/environment",
    "/etc/sudoers",
    "/root/.bashrc",
    "/root/.condarc",
    "/etc/pip.conf",
    "/proc/locks",
    "/etc/systemd/system/docker.service.d/x.conf",
)


@given(data=st.lists(JUNK, min_size=len(PLACES), max_size=len(PLACES)))
def test_files_that_are_no_such_files_are_no_traceback(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("host")
    trees.write(
        root, "/etc/apt/sources.list", "deb [signed-by=/usr/share/keyrings/k.gpg] http://x.example/ noble restricted\n"
    )
    trees.write(root, "/etc/passwd", "root:x:0:0::/root:/bin/bash\n")
    for path, content in zip(PLACES, data, strict=True):
        trees.write(root, path, content)
    facts = probe_facts.collect(root=str(root))
    tree = HostTree(root)
    AptDiagnostics.model_validate(apt_diagnostics.read(tree, facts), strict=True)
    UserDiagnostics.model_validate(user_diagnostics.read(tree, facts), strict=True)


def test_no_password_is_told(tmp_path):
    trees.write(tmp_path, "/etc/passwd", "ann:x:1000:1000::/home/ann:/bin/bash\n")
    trees.write(tmp_path, "/home/ann/.profile", "export https_proxy=http://ann:hunter2@p.example:3128\n")
    trees.write(tmp_path, "/etc/apt/apt.conf.d/95proxy", 'Acquire::http::Proxy "http://ann:hunter2@p.example:3128";\n')
    trees.write(tmp_path, "/etc/apt/sources.list", "deb https://ann:hunter2@m.example/x noble main\n")
    trees.write(
        tmp_path,
        "/etc/systemd/system/docker.service.d/p.conf",
        '[Service]\nEnvironment="HTTPS_PROXY=http://ann:hunter2@p.example:3128"\n',
    )
    trees.write(tmp_path, "/etc/pip.conf", "[global]\nproxy = http://ann:hunter2@p.example:3128\n")
    trees.write(tmp_path, "/home/ann/.condarc", "proxy_servers:\n  https: http://ann:hunter2@p.example:3128\n")
    facts = probe_facts.collect(root=str(tmp_path))
    tree = HostTree(tmp_path)
    said = [apt_diagnostics.read(tree, facts), user_diagnostics.read(tree, facts)]
    assert "hunter2" not in repr(said)
    assert len(re.findall(r"p\.example:3128", repr(said))) == 5
