"""cudanames: what a package name says, no name twice with the driver's, and what stands side by side."""

import re

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names
from tests.unit.cudacandidates import CANDIDATES, real


@pytest.mark.parametrize(
    ("name", "kind", "version", "major"),
    [
        ("cuda-toolkit-12-4", "toolkit", "12.4", "12"),
        ("cuda-nvcc-12-4", "toolkit", "12.4", "12"),
        ("libcublas-dev-12-4", "toolkit", "12.4", "12"),
        ("gds-tools-12-4", "toolkit", "12.4", "12"),
        ("cuda-toolkit-12-4-config-common", "toolkit", "12.4", "12"),
        ("cuda-toolkit-12-config-common", "toolkit", None, "12"),
        ("cuda-toolkit-config-common", "toolkit", None, None),
        ("cuda-toolkit", "toolkit", None, None),
        ("cuda-toolkit-12", "toolkit", None, "12"),
        ("nsight-compute-2025.3.1", "toolkit", None, None),
        ("nsight-systems-2024.6.2", "toolkit", None, None),
        ("libcublas-12-4:i386", "toolkit", "12.4", "12"),
        ("cuda", "meta_with_driver", None, None),
        ("cuda-12", "meta_with_driver", None, "12"),
        ("cuda-12-4", "meta_with_driver", "12.4", "12"),
        ("cuda-runtime-12-4", "meta_with_driver", "12.4", "12"),
        ("cuda-demo-suite-12-4", "meta_with_driver", "12.4", "12"),
        ("cuda-compat-12-4", "compat", "12.4", "12"),
        ("libcudnn8", "cudnn", None, None),
        ("libcudnn8-dev", "cudnn", None, None),
        ("libcudnn9-cuda-12", "cudnn", None, "12"),
        ("libcudnn9-headers-cuda-13", "cudnn", None, "13"),
        ("libcudnn9-static-cuda-13", "cudnn", None, "13"),
        ("cudnn9-cuda-12", "cudnn", None, "12"),
        ("cudnn", "cudnn", None, None),
        ("libnccl2", "nccl", None, None),
        ("libnccl-dev", "nccl", None, None),
        ("nvidia-cuda-toolkit", "distribution", None, None),
        ("nvidia-cuda-dev", "distribution", None, None),
        ("nvidia-cudnn", "distribution", None, None),
        ("libcudart11.0", "distribution", None, None),
        ("libcublaslt12", "distribution", None, None),
        ("libnppc12", "distribution", None, None),
        ("libnvrtc-builtins12.2", "distribution", None, None),
        ("libcuinj64-12.2", "distribution", None, None),
    ],
)
def test_what_a_name_says(name, kind, version, major):
    package = cuda_names.parse(name)
    assert (package.kind, package.version, package.major, package.name) == (kind, version, major, name)


@pytest.mark.parametrize(
    "name",
    [
        "cuda-drivers",
        "cuda-drivers-580",
        "cuda-drivers-fabricmanager-550",
        "libnvidia-compute-580",
        "nvidia-open",
        "nvidia-container-toolkit",
        "nvidia-fs-dkms",
        "libcurl4",
        "libnvinfer10",
        "cuda-keyring",
        "libcudnn-frontend-dev",
        "cuda-repo-ubuntu2404-12-8-local",
        "libcuda1-340",
        "build-essential",
        "libthrust-dev",
    ],
)
def test_other_products_and_the_driver_are_none_of_cudas(name):
    assert cuda_names.parse(name) is None
    assert not cuda_names.is_cuda_package(name)


def test_no_name_is_the_drivers_and_cudas():
    offered = {name for available in CANDIDATES.values() for name in available.packages} | {c.name for c in real()}
    assert len(offered) > 200
    for name in offered:
        assert cuda_names.is_cuda_package(name), name
        assert not driver_names.is_driver_package(name), name
        assert any(re.fullmatch(pattern, name) for pattern in cuda_names.PATTERNS), name


@pytest.mark.parametrize(
    ("name", "version", "held"),
    [
        ("libnccl2", "2.21.5-1+cuda12.4", True),
        ("libnccl2", "2.18.3-1", False),
        ("libnccl2", None, True),
        ("libcudnn8", "8.9.7.29-1+cuda12.2", True),
        ("libcudnn8", "8.9.2.26-0lambda0.22.04", False),
        ("libcudnn9-cuda-12", "9.1.0.70-1", True),
        ("nvidia-cuda-toolkit", "12.0.140~12.0.1-4build4", False),
        ("cuda", "12.6.3-1", True),
        ("cuda-compat-12-4", "550.54.15-0ubuntu1", True),
        ("cuda-drivers", "580.1-1", False),
    ],
)
def test_what_a_hold_covers(name, version, held):
    assert cuda_names.is_cuda_package(name, version) is held


def test_the_tops_of_the_profiles_never_pull_a_driver():
    for profile in cuda_names.PROFILES:
        for name in cuda_names.top_packages("12.4", profile):
            assert cuda_names.parse(name).kind == "toolkit"
            assert cuda_names.parse(name).version == "12.4"
        assert cuda_names.release_package("12.4", profile) == cuda_names.top_packages("12.4", profile)[0]
    assert cuda_names.top_packages("12.4") == ["cuda-toolkit-12-4"]
    assert set(cuda_names.top_packages("12.4", "runtime")) < set(cuda_names.top_packages("12.4", "compiler"))
    with pytest.raises(ValueError, match="not a profile"):
        cuda_names.top_packages("12.4", "small")


def test_versions():
    assert cuda_names.suffix("2.21.5-1+cuda12.4") == "12.4"
    assert cuda_names.suffix("9.1.0.70-1") is None
    assert cuda_names.upstream("2.21.5-1+cuda12.4") == "2.21.5"
    assert cuda_names.upstream("9.14.0.64-1") == "9.14.0.64"
    assert cuda_names.release("12.4.1-1") == "12.4.1"
    assert cuda_names.cudnn_packages("8", "12") == ("libcudnn8", "libcudnn8-dev")
    assert cuda_names.cudnn_packages("9", "12") == ("libcudnn9-cuda-12", "libcudnn9-dev-cuda-12")


@pytest.mark.parametrize(
    ("one", "other", "beside"),
    [
        ("libcudnn8", "libcudnn9-cuda-12", True),
        ("libcudnn8-dev", "libcudnn9-cuda-12", True),
        ("libcudnn8-dev", "libcudnn9-dev-cuda-12", False),
        ("libcudnn8-dev", "libcudnn9-headers-cuda-13", False),
        ("libcudnn9-cuda-12", "libcudnn9-cuda-13", False),
        ("libcudnn9-dev-cuda-12", "libcudnn9-dev-cuda-13", False),
        ("libcudnn9-cuda-12", "libcudnn9-dev-cuda-12", True),
        ("libcudnn9-samples", "libcudnn9-cuda-13", True),
        ("libnccl2", "libcudnn9-cuda-12", True),
        ("bash", "libcudnn8", True),
    ],
)
def test_what_stands_side_by_side(one, other, beside):
    assert cuda_names.can_stand_beside(one, other) is beside
    assert cuda_names.can_stand_beside(other, one) is beside


def test_the_control_file_of_a_real_host_says_the_same():
    """libcudnn9-cuda-13 is libcudnn9 and conflicts with it; its headers keep those of cuDNN 8 out."""
    rows = {c.name: c for c in real()}
    assert (rows["libcudnn9-cuda-13"].provides, rows["libcudnn9-cuda-13"].conflicts) == ("libcudnn9", "libcudnn9")
    assert "libcudnn8-dev" in rows["libcudnn9-headers-cuda-13"].conflicts
