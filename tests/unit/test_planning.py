"""The loop around the pure parts: what may not reach a host."""

import re

import pytest

from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.planning import _is_from, offer_args, source_spec
from provision.resolve.driver import DriverWish, kernel_flavours
from provision.resolve.offer import Candidate
from tests.unit.hosts import host


@pytest.mark.parametrize("url", [
    "https://mirror.test/cuda\nSigned-By: /dev/null", "https://mirror.test/a b", "mirror.test/cuda", "-o Dir=/", "https://ada:secret@mirror.test/",
])  # fmt: skip
@pytest.mark.parametrize("field", ["repo_url", "repo_key"])
def test_odd_addresses_are_refused(url, field):
    if field == "repo_key" and "://" not in url:
        url = "https:// " + url
    with pytest.raises(UsageError) as refused:
        source_spec("cuda", DriverWish(**{field: url}), host(["A100"]), load_catalog())
    assert "secret" not in str(refused.value.issue)
    assert refused.value.issue.hint


def test_a_mirror_is_taken():
    wish = DriverWish(repo_url="http://127.0.0.2:8000/compute/cuda/repos/ubuntu2404/x86_64")
    assert source_spec("cuda", wish, host(["A100"]), load_catalog())["uris"].endswith("/x86_64/")


def test_a_kernels_name_is_no_pattern():
    facts = host(["A100"], kernels={"running": "6.1.0-x+", "next": "6.1.0-x+"})
    patterns = offer_args("ubuntu", DriverWish(), facts, load_catalog())["patterns"]
    assert any(re.fullmatch(pattern, "linux-headers-6.1.0-x+") for pattern in patterns)


@pytest.mark.parametrize(("origin", "uri", "ours"), [
    ("Ubuntu", "http://archive.ubuntu.com/ubuntu/", True),
    ("", "http://mirror.test/ubuntu/", True),
    ("NVIDIA", "file:/srv/nvidia/", False),
    ("NVIDIA", "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/", False),
    ("LP-PPA-graphics-drivers", "https://mirror.test/ppa/ubuntu/", False),
])  # fmt: skip
def test_the_archive_is_not_whatever_else_is_configured(origin, uri, ours):
    candidate = Candidate("nvidia-dkms-580-open", "580.95.05-0ubuntu1", uri=uri, origin=origin)
    assert _is_from(candidate, "ubuntu", None) is ours


def test_arm64_has_a_repository_of_its_own():
    facts = host(["GH200"], host={"os": {"id": "ubuntu", "version_id": "24.04"}, "arch": "arm64"})
    assert source_spec("cuda", DriverWish(), facts, load_catalog())["uris"].endswith("/ubuntu2404/sbsa/")


@pytest.mark.parametrize(("metapackages", "flavours"), [
    (["linux-generic", "linux-image-generic", "linux-headers-generic"], ["generic"]),
    (["linux-generic-hwe-24.04-edge", "linux-image-generic-hwe-24.04-edge"], ["generic-hwe-24.04-edge"]),
    (["linux-aws", "linux-image-aws", "linux-headers-aws"], ["aws"]),
    (["linux-nvidia-64k-hwe-24.04", "linux-image-nvidia-64k-hwe-24.04"], ["nvidia-64k-hwe-24.04"]),
    (["linux-oem-24.04c", "linux-lowlatency"], ["lowlatency", "oem-24.04c"]),
    (["linux-virtual", "linux-image-virtual", "linux-image-extra-virtual"], ["virtual"]),
    ([], []),
])  # fmt: skip
def test_kernel_flavours(metapackages, flavours):
    facts = host([], kernels={"running": "x", "installed": [], "metapackages": metapackages})
    assert kernel_flavours(facts) == flavours
