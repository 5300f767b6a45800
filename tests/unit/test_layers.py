"""What scan says of one host, layer by layer; first of all of the real H200 machine."""

import json
from pathlib import Path

import pytest

from provision.commands.layers import cuda_in_words, layers, origin_in_words
from provision.commands.scan import describe
from provision.facts import Facts
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
    assert told["CUDA"] == [
        "13.0: 51 packages, no toolkit metapackage (cuda-toolkit-13-0)",
        "/usr/local/cuda-13.0: 13.0",
    ]
    assert told["cuDNN"] == ["9.14.0.64 for CUDA 13 (libcudnn9-cuda-13)"]
    assert told["NCCL"] == ["2.28.3 for CUDA 13.0, with headers"]
    assert told["nvidia-smi"][0].endswith("driver 580.159.04, carries CUDA 13.0")
    assert "services" not in told, "nothing is said of what is not there"


def test_a_host_with_a_driver_of_the_archive():
    facts = host(["H100", "H100"], "580-server 580.126.20 open signed")
    assert origin_in_words(facts) == "the Ubuntu archive"
    told = dict(layers(facts))
    assert told["packages"][0].endswith("580.126.20 open (580-server), from the Ubuntu archive, all held")
    assert "signed" in told["on disk"][0]
    loose = host(["H100"], "580-server 580.126.20 open signed unheld")
    assert dict(layers(loose))["packages"][0].endswith("none held")


def test_an_empty_host():
    facts = host(["H100"])
    assert origin_in_words(facts) is None
    assert cuda_in_words(facts) is None
    told = dict(layers(facts))
    assert told["module"] == ["nvidia is not loaded"]
    assert told["nvidia-smi"] == ["not installed"]


def test_toolkit_metapackages_are_named():
    packages = {
        "cuda-toolkit-12-4": {"version": "12.4.1-1"}, "cuda-cudart-12-4": {"version": "12.4.127-1"},
        "cuda-toolkit-12-4-config-common": {"version": "12.4.127-1"}, "libcudnn9-cuda-12": {"version": "9.1.0.70-1"},
        "libnccl2": {"version": "2.21.5-1+cuda12.4"},
    }  # fmt: skip
    facts = host(["H100"], packages=packages)
    assert cuda_in_words(facts) == "CUDA 12.4, cuDNN 9.1.0.70, NCCL 2.21.5"
    assert dict(layers(facts))["CUDA"] == ["12.4: 2 packages, cuda-toolkit-12-4 12.4.1-1"]
