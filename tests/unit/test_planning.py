"""The loop around the pure parts: what is asked of a host, in which order, and what becomes of the answers."""

import pytest

from provision.errors import RefusedError
from provision.planning import plan_from_facts
from tests.unit.hosts import host
from tests.unit.offers import OFFERS

DEFAULTS = {"nvidia_driver_branch": "580", "nvidia_driver_channel": "ubuntu"}


def rows(offer):
    return {
        name: [
            {"version": c.version, "depends": c.depends, "provides": c.provides, "uri": c.uri}
            for c in candidates
        ]
        for name, candidates in offer.packages.items()
    }


class FakeHost:
    """Answers as aptquery does and keeps what it was asked."""

    def __init__(self, offer, simulation, errors=()):
        self.offer, self.simulation, self.errors, self.asked = offer, simulation, list(errors), []

    def __call__(self, program, args):
        assert program == "aptquery"
        self.asked.append(args["op"])
        if args["op"] == "offer":
            return {
                "workdir": "/tmp/w",
                "packages": rows(self.offer),
                "refreshed": True,
                "errors": self.errors,
            }
        return self.simulation if args["op"] == "simulate" else {"removed": 1}


CHANGES = {"ok": True, "error": None, "download_bytes": 7, "disk_bytes": 9, "changes": [
    {"action": "install", "name": "libnvidia-compute-580", "version": "580.142-0ubuntu0.24.04.1",
     "from_version": None, "download_bytes": 7},
]}  # fmt: skip


def test_a_changing_host_is_asked_twice_and_nothing_is_left_there():
    call = FakeHost(OFFERS["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    assert call.asked == ["offer", "simulate"], "the simulation takes the private folder over and removes it"
    assert (plan.status, plan.download_bytes, [p.name for p in plan.packages]) == (
        "changes", 7, ["libnvidia-compute-580"],
    )  # fmt: skip


def test_a_host_that_has_it_all_is_not_asked():
    call = FakeHost(OFFERS["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"], "580 580.142 open signed"), call, DEFAULTS)
    assert call.asked == []
    assert not plan.packages


def test_a_refusal_cleans_up():
    call = FakeHost(OFFERS["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, {**DEFAULTS, "nvidia_driver_branch": "590"})
    assert call.asked == ["offer", "cleanup"]
    assert plan.status == "blocked" and plan.blockers[0].host == "gpu01"


def test_a_repository_that_cannot_be_read_is_the_reason_that_is_told_first():
    unmet = {
        "ok": False,
        "error": "the packages cannot be installed together\ndkms is not installable",
        "changes": [],
    }
    call = FakeHost(OFFERS["noble"], unmet, ["archive.test: Could not resolve host"])
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    issue = plan.blockers[0]
    assert issue.because[0] == "archive.test: Could not resolve host"
    assert "reachable" in (issue.hint or "")
    assert not plan.steps


def test_what_apt_would_do_beyond_the_plan_is_refused():
    foreign = {
        "action": "remove",
        "name": "linux-image-generic",
        "version": None,
        "from_version": "6.8.0-48.48",
    }
    call = FakeHost(OFFERS["noble"], {**CHANGES, "changes": [*CHANGES["changes"], foreign]})
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    assert plan.status == "blocked"
    assert any("linux-image-generic" in issue.message for issue in plan.blockers)


def test_a_repository_without_a_known_key_is_not_trusted():
    call = FakeHost(OFFERS["cuda"], CHANGES)
    resolute = host(
        ["RTX 4090"], host={"os": {"id": "ubuntu", "version_id": "26.04", "codename": "resolute"}}
    )
    wish = {"nvidia_driver_branch": "595", "nvidia_driver_channel": "cuda"}
    with pytest.raises(RefusedError) as refused:
        plan_from_facts("gpu01", resolute, call, wish)
    assert refused.value.issue.code == "apt.key_unknown"
    assert "nvidia_driver_repo_key_fingerprint" in (refused.value.issue.hint or "")
    assert call.asked == []
    wish["nvidia_driver_repo_key_fingerprint"] = "AB" * 20
    with pytest.raises(RefusedError):
        plan_from_facts("gpu01", resolute, call, wish)  # a fingerprint, and no key that could have it
    wish["nvidia_driver_repo_key"] = "https://mirror.test/key.asc"
    plan_from_facts("gpu01", resolute, call, wish)
    assert call.asked[0] == "offer"
