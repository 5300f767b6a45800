"""The role cuda_toolkit against Ubuntu's own apt, dpkg and Python, without an init system, a driver or a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import aptrepo, repos

from . import rootfs
from .test_cuda_repository import APT, lab_root, serve  # noqa: F401 - lab_root is a fixture

CONFIG = {"cuda_toolkit_versions": ["12.8", "13.0"], "cuda_toolkit_default": "12.8", "cuda_toolkit_profile": "compiler"}
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  roles:
    - role: gpu.provision.cuda_toolkit
"""
Play = Callable[..., str]


@pytest.fixture
def ubuntu_root(root: rootfs.Root) -> rootfs.Root:
    """A root that can reach the lab's Ubuntu archive of its release; NVIDIA's repository is the role's business."""
    release = re.search(r'^VERSION_ID="?([0-9.]+)', root.read("/etc/os-release"), re.M)
    if not release or release[1] != "24.04":
        pytest.skip("not Ubuntu 24.04: give LAB_APT_ROOTFS")
    return serve(root, "24.04", nvidia=False)


@pytest.fixture
def play(ubuntu_root: rootfs.Root, tmp_path: Path) -> Play:
    """Run the role with Ansible itself: play(check=True, config={…}) returns what was said; it must succeed."""
    _, key = repos.keys()
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    (tmp_path / "key.asc").write_bytes(aptrepo._gpg(key.home, "--armor", "--export"))
    hosts = {
        "ansible_connection": "root_of_test",
        "root_of_test_folder": str(ubuntu_root.path),
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_remote_tmp": "/tmp/ansible",
        "cuda_toolkit_repo_url": f"file:/srv/lab/{repos.nvidia_path('24.04')}/",
        "cuda_toolkit_repo_key": str(tmp_path / "key.asc"),
        "cuda_toolkit_repo_key_fingerprint": key.fingerprint,
    }
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"root": hosts}}}))
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(rootfs.CHECKOUT / "ansible.cfg"),
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
    }

    def run(*words: str, config: dict[str, object] | None = None) -> str:
        argv = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(tmp_path / "hosts.json"),
            "-e",
            json.dumps(CONFIG if config is None else config),
            str(tmp_path / "play.yml"),
            *words,
        ]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=rootfs.CHECKOUT, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_role_on_ubuntus_own_root_file_system(ubuntu_root: rootfs.Root, play: Play) -> None:
    packages = ubuntu_root.sh("dpkg-query -W")
    checked = play("--check", "--diff")
    assert "changed=0" not in checked
    assert ubuntu_root.sh("dpkg-query -W") == packages, "check mode changed something"

    assert "changed=0" not in play()
    etc = ubuntu_root.sh(
        "find /etc -type f -print0 | sort -z | xargs -0 sha256sum; find /etc -type l -printf '%p %l\\n' | sort"
    )
    assert "changed=0" in play()
    assert "changed=0" in play("--check")
    assert etc == ubuntu_root.sh(
        "find /etc -type f -print0 | sort -z | xargs -0 sha256sum; find /etc -type l -printf '%p %l\\n' | sort"
    )

    assert "release 12.8, V12.8.93" in ubuntu_root.sh("bash -lc 'nvcc -V'")
    assert "release 13.0, V13.0.88" in ubuntu_root.sh("bash -lc 'cuda-select 13.0 && nvcc -V'")
    assert ubuntu_root.sh("readlink -f /usr/local/cuda /usr/local/cuda-12 /usr/local/cuda-13").split() == [
        "/usr/local/cuda-12.8",
        "/usr/local/cuda-12.8",
        "/usr/local/cuda-13.0",
    ]
    held = set(ubuntu_root.sh("apt-mark showhold").split())
    assert {"cuda-nvcc-12-8", "cuda-nvcc-13-0", "libcublas-12-8", "libnccl2", "libnccl-dev"} <= held
    versions = ubuntu_root.sh("dpkg-query -W -f '${Version}\\n' libnccl2 libnccl-dev").split()
    assert len(set(versions)) == 1
    assert versions[0].endswith("+cuda12.8")
    assert not re.search(r"^(lib)?nvidia-|^cuda-drivers", ubuntu_root.sh("dpkg-query -W -f '${Package}\\n'"), re.M)
    upgrade = ubuntu_root.sh(f"{APT} -s dist-upgrade")
    assert not re.search(r"^Inst (cuda|lib(cu|npp|nv|nccl))", upgrade, re.M)
    loader = ubuntu_root.sh("ldconfig -p")
    assert "libcudart.so.12 (libc6,x86-64) => /usr/local/cuda" in loader
