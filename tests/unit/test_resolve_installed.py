"""What driver is installed, and where it came from, by the versions and names of its packages."""

import pytest

from provision.facts import Facts
from provision.parts.driver.installed import channel_of, installed_driver, is_cuda_uri

NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
LOCAL = "file:///var/cuda-repo-ubuntu2404-12-8-local"
ARCHIVE = "http://archive.ubuntu.com/ubuntu/"


def driver(*rows, sources=(ARCHIVE,)):
    packages = {}
    for row in rows:
        name, _, version = row.partition("=")
        packages[name] = {"version": version, "status": "hi"}
    entries = [{"file": f"/etc/apt/sources.list.d/{n}.list", "uris": [uri]} for n, uri in enumerate(sources)]
    return installed_driver(Facts.model_validate({"packages": packages, "apt": {"sources": entries}}))


@pytest.mark.parametrize(
    ("rows", "sources", "channel"),
    [
        (["libnvidia-compute-580=580.126.20-0ubuntu0.24.04.2"], [ARCHIVE, NVIDIA], "ubuntu"),
        (["libnvidia-compute-570=570.211.01-0ubuntu1.24.04.1"], [ARCHIVE, NVIDIA], "ubuntu"),
        (["libnvidia-compute-535=535.171.04-0ubuntu2"], [ARCHIVE, NVIDIA], "ubuntu"),
        (["libnvidia-compute-580-server=580.95.05-0ubuntu1"], [ARCHIVE, NVIDIA], "ubuntu"),
        (
            ["libnvidia-compute-595=595.58.03-0ubuntu1", "linux-modules-nvidia-595-open-7.0.0-14-generic=7.0.0-14.14"],
            [ARCHIVE, NVIDIA],
            "ubuntu",
        ),
        (["libnvidia-compute-580=580.105.08-0ubuntu0~gpu24.04.1"], [ARCHIVE, NVIDIA], "ppa"),
        (["libnvidia-compute-580=580.95.05-0ubuntu1"], [ARCHIVE, NVIDIA], "cuda"),
        (["libnvidia-compute-570=570.124.06-0ubuntu1"], [ARCHIVE, LOCAL], "cuda"),
        (["libnvidia-compute-595=595.58.03-0ubuntu1"], [ARCHIVE], "ubuntu"),
        (["libnvidia-compute=595.71.05-1ubuntu1"], [ARCHIVE], "cuda"),
        (["libnvidia-compute-580=580.95.05-1"], [ARCHIVE, NVIDIA], "cuda"),
    ],
)
def test_channel(rows, sources, channel):
    assert driver(*rows, sources=sources).channel == channel


def test_gl_libraries_make_no_desktop_and_companions_no_driver():
    compute = "libnvidia-compute-580=580.142-0ubuntu0.24.04.1"
    assert driver(compute, "libnvidia-gl-580=580.142-0ubuntu0.24.04.1").variant == "headless"
    assert driver(compute, "nvidia-driver-580-open=580.142-0ubuntu0.24.04.1").variant == "desktop"
    assert driver("libnvidia-egl-wayland21=1.0.1-1").packages == {}


def test_foreign_architectures_belong_to_the_driver():
    found = driver("libnvidia-gl-580:i386=580.126.20-0ubuntu0.24.04.1", "libnvidia-gl-580=580.142-0ubuntu0.24.04.1")
    assert found.version is None and found.versions == ("580.126.20", "580.142")


def test_local_repositories_of_nvidia_are_nvidias():
    assert is_cuda_uri(LOCAL) and is_cuda_uri("file:/var/nvidia-driver-local-repo-ubuntu2404-580.95.05")
    assert not is_cuda_uri("file:/srv/mirror/ubuntu")


def test_firmware_of_the_driver_before_is_no_second_version():
    """Its name holds its version, so an update leaves it beside the new one until somebody asks for autoremove."""
    found = driver(
        "libnvidia-compute-580-server=580.173.02-0ubuntu0.24.04.1",
        "nvidia-firmware-580-server-580.173.02=580.173.02-0ubuntu0.24.04.1",
        "nvidia-firmware-580-server-580.126.20=580.126.20-0ubuntu0.24.04.2",
    )
    assert found.version == "580.173.02"
    assert "nvidia-firmware-580-server-580.126.20" in found.packages


@pytest.mark.parametrize(
    ("locked", "channel"),
    [
        ({}, None),
        ({"nvidia-driver-580": "580.95.05-0ubuntu0~gpu24.04.1"}, "ppa"),
        ({"nvidia-driver-580-server": "580.95.05-0ubuntu1"}, "ubuntu"),
        ({"nvidia-driver-580": "580.95.05-0ubuntu0.24.04.2", "nvidia-settings": "510.47.03-0ubuntu1"}, "ubuntu"),
        # one name with a branch is enough to leave the question to the sources
        ({"nvidia-driver-580": "580.95.05-0ubuntu1", "nvidia-settings": "580.95.05-0ubuntu1"}, "ubuntu"),
        ({"nvidia-driver": "590.48.01-1ubuntu1", "nvidia-settings": "590.48.01-1ubuntu1"}, "cuda"),
    ],
)
def test_the_channel_of_locked_versions(locked, channel):
    assert channel_of(Facts(), locked) == channel
