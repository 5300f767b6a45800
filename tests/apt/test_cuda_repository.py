"""The lab's CUDA packages under real apt and dpkg, on Ubuntu's own root file system where one is given.

What holds here is what the product counts on: a toolkit brings no driver, its namesakes do, and an unpinned library
goes with the wrong CUDA.
"""

from __future__ import annotations

import re

import pytest

from tests import sample
from tests.lab import LabError, aptrepo, debfile, repos
from tests.lab.releases import RELEASES

from . import rootfs

APT = "apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root"


def serve(root: rootfs.Root, ubuntu: str, *, nvidia: bool = True) -> rootfs.Root:
    """Let a root read the lab's repositories of a release, as files below /srv/lab; skip where they cannot be built."""
    try:
        built = repos.built(ubuntu)
        keys = dict(zip(("archive", "nvidia"), repos.keys(), strict=True))
    except (LabError, OSError) as problem:
        pytest.skip(f"the lab's repositories cannot be built: {problem}")
    root.mount("--bind", str(built), "/srv/lab")
    for name, key in keys.items():
        binary = aptrepo._gpg(key.home, "--export")
        (root.path / f"usr/share/keyrings/lab-{name}.gpg").write_bytes(binary)
    codename = RELEASES[ubuntu].codename
    lines = [
        "deb [signed-by=/usr/share/keyrings/lab-archive.gpg] file:/srv/lab/ubuntu "
        f"{codename} main universe restricted multiverse"
    ]
    if nvidia:
        path = repos.nvidia_path(ubuntu)
        lines.append(f"deb [signed-by=/usr/share/keyrings/lab-nvidia.gpg] file:/srv/lab/{path} /")
    root.write("/etc/apt/sources.list.d/lab.list", "\n".join(lines) + "\n")
    root.sh("apt-get -qq update")
    # The lab's archive leaves to the base what its hosts have anyway.
    (root.path / "srv/kmod.deb").write_bytes(debfile.build(debfile.Package("kmod", "31")))
    root.sh("dpkg -s kmod >/dev/null 2>&1 || dpkg -i /srv/kmod.deb")
    return root


@pytest.fixture
def lab_root(root: rootfs.Root) -> rootfs.Root:
    """A root whose sources are the lab's repositories of 22.04: the release that holds 11.8, 12.4 and 13.0."""
    return serve(root, "22.04")


def simulated(root: rootfs.Root, *words: str) -> dict[str, str]:
    """{package: version} that an installation would bring."""
    said = root.sh(f"{APT} -s install {' '.join(words)}")
    return dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", said, re.M))


def drivers(names: dict[str, str]) -> set[str]:
    return {name for name in names if re.match(r"(lib)?nvidia-|cuda-drivers|linux-modules-nvidia", name)}


@pytest.mark.parametrize("minor", sample.share(["11-8", "12-4", "13-0"], 3))
def test_a_toolkit_brings_no_driver_and_its_namesakes_do(lab_root: rootfs.Root, minor: str) -> None:
    toolkit = simulated(lab_root, f"cuda-toolkit-{minor}")
    assert f"cuda-nvcc-{minor}" in toolkit
    assert len(toolkit) > 50
    assert not drivers(toolkit)
    # Its namesake wants a driver: it brings the newest one, or apt finds none that fits and says so.
    said = lab_root.sh(f"{APT} -s install cuda-{minor} 2>&1", check=False)
    assert re.search(r"^(Inst nvidia-open| nvidia-driver : Depends: )", said, re.M)


def test_the_plain_name_brings_the_newest_toolkit_with_a_driver(lab_root: rootfs.Root) -> None:
    brought = simulated(lab_root, "cuda")
    assert "cuda-toolkit-13-3" in brought
    assert {"nvidia-open", "nvidia-dkms-open"} <= drivers(brought)


def test_unpinned_libraries_go_with_the_wrong_cuda(lab_root: rootfs.Root) -> None:
    assert simulated(lab_root, "libcudnn8")["libcudnn8"] == "8.9.7.29-1+cuda12.2"
    lab_root.sh(f"{APT} install libnccl2=2.25.1-1+cuda12.8 && apt-mark hold libnccl2")
    refused = lab_root.sh(f"{APT} -s install libnccl-dev 2>&1", check=False)
    assert re.search(r"libnccl-dev : Depends: libnccl2 \(= 2\.30\.7-1\+cuda13\.3\) but 2\.25\.1", refused)
    pair = simulated(lab_root, "libnccl2=2.25.1-1+cuda12.8", "libnccl-dev=2.25.1-1+cuda12.8")
    assert pair == {"libnccl-dev": "2.25.1-1+cuda12.8"}


@pytest.mark.thorough
def test_three_toolkits_side_by_side(lab_root: rootfs.Root) -> None:
    lab_root.sh(f"{APT} install cuda-toolkit-12-4")
    assert lab_root.sh("readlink -f /usr/local/cuda /usr/local/cuda-12").split() == ["/usr/local/cuda-12.4"] * 2
    lab_root.sh(f"{APT} install cuda-toolkit-13-0 cuda-toolkit-11-8")
    # The trap: a toolkit that comes later takes the link.
    assert lab_root.sh("readlink -f /usr/local/cuda").strip() == "/usr/local/cuda-13.0"
    shown = lab_root.sh("update-alternatives --query cuda")
    assert re.findall(r"^Alternative: (\S+)\nPriority: (\d+)", shown, re.M) == [
        ("/usr/local/cuda-11.8", "118"),
        ("/usr/local/cuda-12.4", "124"),
        ("/usr/local/cuda-13.0", "130"),
    ]
    for minor, version in (("11.8", "V11.8.89"), ("12.4", "V12.4.131"), ("13.0", "V13.0.88")):
        assert f"release {minor}, {version}" in lab_root.sh(f"/usr/local/cuda-{minor}/bin/nvcc -V")
        assert f'"{minor}' in lab_root.sh(f"grep -A2 'CUDA SDK' /usr/local/cuda-{minor}/version.json")
    # What an upgrade of the shared parts does to a person's choice: nothing.
    lab_root.sh("update-alternatives --set cuda /usr/local/cuda-12.4")
    lab_root.sh(f"{APT} install --reinstall cuda-toolkit-12-4-config-common cuda-toolkit-13-0-config-common")
    assert lab_root.sh("readlink -f /usr/local/cuda").strip() == "/usr/local/cuda-12.4"
    loader = lab_root.sh("ldconfig && ldconfig -p")
    assert "libcudart.so.11.0 (libc6,x86-64) => /usr/local/cuda-11/targets/x86_64-linux/lib/libcudart.so.11.0" in loader
    assert "libcudart.so.12 (libc6,x86-64) => /usr/local/cuda/targets/x86_64-linux/lib/libcudart.so.12" in loader
    lab_root.sh(f"{APT} autoremove --purge cuda-toolkit-11-8")
    assert not lab_root.sh("ls -d /usr/local/cuda-11 /usr/local/cuda-11.8 2>/dev/null", check=False)
    assert "cuda-11.8" not in lab_root.sh("update-alternatives --query cuda")


def test_cudnn_of_both_layouts(lab_root: rootfs.Root) -> None:
    both = {"8": "8.9.7.29-1+cuda12.2", "9": "9.8.0.87-1"}
    lab_root.sh(
        f"{APT} install libcudnn8={both['8']} libcudnn8-dev={both['8']} "
        f"libcudnn9-cuda-12={both['9']} libcudnn9-dev-cuda-12={both['9']}"
    )
    # Before 9.10 update-alternatives gives the headers to one of them, and to no package.
    assert lab_root.sh("readlink -f /usr/include/cudnn.h").strip() == "/usr/include/x86_64-linux-gnu/cudnn_v9.h"
    assert "no path found" in lab_root.sh("dpkg -S /usr/include/cudnn.h 2>&1", check=False)
    assert "CUDNN_MINOR 8" in lab_root.sh("cat /usr/include/cudnn_version.h")
    # From 9.10 on the headers are files, and keep those of 8 away.
    removed = lab_root.sh(
        f"{APT} -s install libcudnn9-dev-cuda-12=9.14.0.64-1 libcudnn9-cuda-12=9.14.0.64-1 "
        "libcudnn9-headers-cuda-12=9.14.0.64-1"
    )
    assert re.findall(r"^Remv (\S+)", removed, re.M) == ["libcudnn8-dev"]
    lab_root.sh(
        f"{APT} install libcudnn9-dev-cuda-12=9.14.0.64-1 libcudnn9-cuda-12=9.14.0.64-1 "
        "libcudnn9-headers-cuda-12=9.14.0.64-1"
    )
    assert "libcudnn9-headers-cuda-12" in lab_root.sh("dpkg -S /usr/include/x86_64-linux-gnu/cudnn.h")
    assert not lab_root.sh("ls /etc/alternatives/libcudnn 2>/dev/null", check=False)
    # The library for another CUDA major is the same file names: one at a time.
    other = lab_root.sh(f"{APT} -s install libcudnn9-cuda-13=9.14.0.64-1")
    assert "Remv libcudnn9-cuda-12" in other


def test_ubuntus_own_toolkit_comes_first_on_the_path(lab_root: rootfs.Root) -> None:
    lab_root.sh(f"{APT} install cuda-compiler-12-4 nvidia-cuda-toolkit")
    assert "release 11.5, V11.5.119" in lab_root.sh("PATH=/usr/bin:/usr/local/cuda/bin nvcc -V")
    assert "nvidia-cuda-toolkit" in lab_root.sh("dpkg -S /usr/bin/nvcc")
