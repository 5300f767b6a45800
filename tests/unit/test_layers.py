"""What scan says of one host, layer by layer; first of all of the real H200 machine."""

import json
from pathlib import Path

import pytest

from provision.commands.scan import describe
from provision.facts import Facts
from provision.layers.cuda import describe_cuda
from provision.layers.driver import describe_origin, layers
from tests.unit.hosts import host

RECORDED = Path(__file__).parents[1] / "fixtures/h200x1/scan.json"


@pytest.fixture(scope="module")
def h200():
    """Facts that `provision -i localhost, scan --json` gave on a real machine; names and serials replaced."""
    return Facts.model_validate(json.loads(RECORDED.read_text())["hosts"]["localhost"]["facts"])


def test_the_real_machine_in_a_line(h200):
    told = describe(h200)
    assert told.driver == "580.159.04 open"
    assert told.origin == "not from apt"
    assert told.cuda == "CUDA 13.0, cuDNN 9.14.0.64, NCCL 2.28.3"
    assert told.summary == "5 packages held"


def test_the_real_machine_layer_by_layer(h200):
    told = dict(layers(h200))
    assert told["machine"] == ["Ubuntu 24.04.3 LTS, amd64, virtual (vm-other), no systemd, Python 3.12.3"]
    assert told["GPUs"] == ["1 x H200 SXM 141GB (10de:2335), bound to nvidia: 0000:00:06.0"]
    assert told["module"] == ["nvidia 580.159.04 is loaded, open"]
    assert told["on disk"] == ["no nvidia module on disk for any kernel"]
    assert told["packages"][0] == "none of a driver"
    assert told["CUDA"] == ["13.0: 51 packages, no toolkit on the disk", "no toolkit in /usr/local/cuda-13.0"], (
        "recorded"
    )
    assert told["cuDNN"] == ["9.14.0.64 for CUDA 13 (libcudnn9-cuda-13)"]
    assert told["NCCL"] == ["2.28.3 for CUDA 13.0, with headers"]
    assert told["nvidia-smi"][0].endswith("driver 580.159.04, carries CUDA 13.0")
    assert "services" not in told, "nothing is said of what is not there"


def test_a_host_with_a_driver_of_the_archive():
    facts = host(["H100", "H100"], "580-server 580.126.20 open signed")
    assert describe_origin(facts) == "the Ubuntu archive"
    told = dict(layers(facts))
    assert told["packages"][0].endswith("580.126.20 open (580-server), from the Ubuntu archive, all held")
    assert "signed" in told["on disk"][0]
    loose = host(["H100"], "580-server 580.126.20 open signed unheld")
    assert dict(layers(loose))["packages"][0].endswith("none held")


def test_an_empty_host():
    facts = host(["H100"])
    assert describe_origin(facts) is None
    assert describe_cuda(facts) is None
    told = dict(layers(facts))
    assert told["module"] == ["nvidia is not loaded"]
    assert told["nvidia-smi"] == ["not installed"]


def test_toolkit_metapackages_are_named():
    packages = {
        "cuda-toolkit-12-4": {"version": "12.4.1-1"},
        "cuda-cudart-12-4": {"version": "12.4.127-1"},
        "cuda-toolkit-12-4-config-common": {"version": "12.4.127-1"},
        "libcudnn9-cuda-12": {"version": "9.1.0.70-1"},
        "libnccl2": {"version": "2.21.5-1+cuda12.4"},
    }
    facts = host(["H100"], packages=packages)
    assert describe_cuda(facts) == "CUDA 12.4, cuDNN 9.1.0.70, NCCL 2.21.5"
    assert dict(layers(facts))["CUDA"] == ["12.4: 3 packages, no toolkit on the disk"]


CUDA = {
    "toolkits": [
        {"path": "/usr/local/cuda-11.8", "version": "11.8", "release": "11.8.0", "compiler": True, "uninstaller": "/x"},
        {"path": "/usr/local/cuda-12.4", "version": "12.4", "package": "cuda-nvcc-12-4", "compiler": True},
        {"path": "/usr/local/cuda", "version": "10.1", "release": "10.1.243"},
    ],
    "nvccs": [
        {
            "path": "/usr/bin/nvcc",
            "version": "12.0",
            "build": "12.0.140",
            "package": "nvidia-cuda-toolkit",
            "on_path": True,
        },
        {"path": "/usr/local/cuda-12.4/bin/nvcc", "version": "12.4"},
    ],
    "links": [{"path": "/usr/local/cuda", "target": "/etc/alternatives/cuda", "resolved": "/usr/local/cuda-12.4"}],
    "alternatives": [{"name": "cuda", "link": "/usr/local/cuda", "manual": True}],
    "libraries": [
        {"soname": "libcudnn.so.8", "path": "/usr/local/cuda/lib64/libcudnn.so.8", "version": "8.0.3"},
        {"soname": "libnccl.so.2", "path": "/usr/lib/x86_64-linux-gnu/libnccl.so.2", "package": "libnccl2"},
    ],
    "shell_lines": [
        {"file": f"/home/{name}/.bashrc", "line": 1, "text": "", "variable": "PATH"}
        for name in ("a", "a", "b", "c", "d")
    ],
}


def test_cuda_on_the_disk():
    packages = {
        "cuda-toolkit-12-4": {"version": "12.4.1-1"},
        "cuda-nvcc-12-4": {"version": "12.4.131-1"},
        "libcudnn8": {"version": "8.9.7.29-1+cuda12.2"},
    }
    facts = host(
        ["H100"], packages=packages, cuda=CUDA, cuda_dirs={"/usr/local/cuda-9.0": None, "/usr/local/cuda-12.4": "12.4"}
    )
    assert describe_cuda(facts) == "CUDA 10.1, 11.8, 12.4, cuDNN 8.9.7.29"
    told = dict(layers(facts))
    assert told["CUDA"] == [
        "11.8.0, of no package (a runfile)",
        "12.4.1, 2 packages, the default",
        "10.1.243, in /usr/local/cuda, of no package, no compiler",
        "no toolkit in /usr/local/cuda-9.0",
        "/usr/local/cuda stays where it is",
        "nvcc at a login: 12.0.140, /usr/bin/nvcc, 1 more",
        "5 lines about CUDA in start files: /home/a/.bashrc (2), /home/b/.bashrc, /home/c/.bashrc and 1 more",
    ]
    assert told["cuDNN"] == [
        "8.9.7.29 for CUDA 12.2 (libcudnn8)",
        "8.0.3, /usr/local/cuda/lib64/libcudnn.so.8 (of no package)",
    ]


def test_cuda_of_which_little_is_known():
    cuda = {"toolkits": [{"path": "/opt/cuda"}], "nvccs": [{"path": "/opt/cuda/bin/nvcc"}]}
    told = dict(layers(host(["H100"], cuda=cuda)))
    assert told["CUDA"] == [
        "version not known, in /opt/cuda, of no package, no compiler",
        "nvcc: 1, none on the PATH of a login",
    ]


CONTAINERS = {
    "docker": {
        "engine": "/usr/bin/dockerd",
        "version": "27.5.1",
        "pid": 7,
        "group": ["alice", "bob"],
        "desktop": ["carol"],
        "info": {"runtimes": {"runc": "runc", "nvidia": "x", "io.containerd.runc.v2": ""}, "default_runtime": "runc"},
        "rootless": [{"user": "dave", "uid": 1003}],
    },
    "containerd": {"path": "/usr/bin/containerd", "version": "1.7.24", "runtime": True, "default_runtime": "nvidia"},
    "podman": {"path": "/usr/bin/podman", "version": "4.9.3"},
    "cdi": [
        {"path": "/etc/cdi/nvidia.yaml", "versions": ["550.54.15"], "stale": "it is for driver 550.54.15"},
        {"path": "/var/run/cdi/nvidia.yaml", "versions": ["580.126.20"]},
    ],
    "old_keys": {"/etc/apt/trusted.gpg": True},
    "running": [
        {"id": "7d64db074abf", "runtime": "docker", "gpu": True, "name": "training"},
        {"id": "8d64db074abf", "runtime": "docker", "name": "web"},
    ],
}


def test_containers_in_lines():
    rows = {
        name: {"version": "1.18.2-1", "status": "hi"} for name in ("nvidia-container-toolkit", "libnvidia-container1")
    }
    rows["nvidia-docker2"] = {"version": "2.13.0-1", "status": "ii"}
    facts = host(["H100"], containers=CONTAINERS)
    packages = {**facts.packages, **Facts.model_validate({"packages": rows}).packages}
    assert dict(layers(facts.model_copy(update={"packages": packages})))["containers"] == [
        "docker 27.5.1, runtimes nvidia, runc, default runc",
        "Docker Desktop of carol",
        "rootless docker of dave",
        "containerd 1.7.24, has runtime nvidia, default nvidia",
        "podman 4.9.3",
        "toolkit 1.18.2-1",
        "obsolete: nvidia-docker2",
        "NVIDIA's key trusted for every repository: /etc/apt/trusted.gpg",
        "CDI /etc/cdi/nvidia.yaml: driver 550.54.15, stale: it is for driver 550.54.15",
        "CDI /var/run/cdi/nvidia.yaml: driver 580.126.20",
        "group docker: alice, bob",
        "running: with GPUs training (docker), 1 without",
    ]


def test_a_docker_that_is_broken_or_stands_in_lines():
    error = {"line": 2, "column": 3, "message": "a comment"}
    docker = {"engine": "/usr/bin/dockerd", "version": "24.0.7", "file": {"present": True, "error": error}}
    facts = host(["H100"], containers={"docker": docker})
    assert dict(layers(facts))["containers"] == [
        "docker 24.0.7, does not run",
        "daemon.json cannot be read, line 2: a comment",
    ]
    file = {"present": True, "value": {"runtimes": {"nvidia": {"path": "x"}}}}
    facts = host(["H100"], containers={"docker": {**docker, "pid": 7, "file": file}})
    assert dict(layers(facts))["containers"] == ["docker 24.0.7, daemon.json: nvidia, not asked"]
