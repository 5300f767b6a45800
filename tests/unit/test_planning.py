"""The loop around the pure parts: what is asked of a host, in which order, and what becomes of the answers."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from provision.errors import HostFailedError, RefusedError, UnreachableError, UsageError
from provision.lib.findings import Check
from provision.parts.candidates import Candidates
from provision.parts.plan import Step
from provision.planning import _in_order, failed_plan, plan_from_facts
from provision.planning.verification import CheckSelection, select
from tests.unit.candidates import CANDIDATES, CUDA_URI
from tests.unit.cudacandidates import CANDIDATES as CUDA_CANDIDATES
from tests.unit.cudahosts import real_rows
from tests.unit.hosts import host

ROLES = Path(__file__).parents[2] / "roles"
DEFAULTS = {"nvidia_driver_branch": "580", "nvidia_driver_channel": "ubuntu"}


def rows(available):
    return {
        name: [
            {"version": c.version, "depends": c.depends, "provides": c.provides, "uri": c.uri, "origin": c.origin}
            for c in candidates
        ]
        for name, candidates in available.packages.items()
    }


class FakeHost:
    """Answers as aptquery does and keeps what it was asked."""

    def __init__(self, available, simulation, errors=()):
        self.available, self.simulation, self.errors = available, simulation, list(errors)
        self.asked, self.args = [], {}

    def __call__(self, program, args):
        assert program == "apt.query"
        self.asked.append(args["op"])
        self.args[args["op"]] = args
        if args["op"] == "offer":
            return {"workdir": "/tmp/w", "packages": rows(self.available), "refreshed": True, "errors": self.errors}
        return self.simulation if args["op"] == "simulate" else {"removed": 1}


CHANGES = {
    "ok": True,
    "error": None,
    "download_bytes": 7,
    "disk_bytes": 9,
    "changes": [
        {
            "action": "install",
            "name": "libnvidia-compute-580",
            "version": "580.142-0ubuntu0.24.04.1",
            "from_version": None,
            "download_bytes": 7,
        }
    ],
}


def test_lists_are_fetched_where_the_next_kernel_has_no_module():
    """Lists of minutes ago, which brought the kernel, may be older than its signed modules: DKMS would be chosen."""
    facts, call = host(["RTX 4090"], "580 580.142 open signed"), FakeHost(CANDIDATES["noble"], CHANGES)
    facts.kernels.next = "6.8.0-99-generic"
    plan_from_facts("gpu01", facts, call, DEFAULTS)
    assert call.asked.count("offer") == 1 and call.args["offer"]["refresh"] == "always"


def test_a_changing_host_is_asked_twice_and_nothing_is_left_there():
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    assert call.asked == ["offer", "simulate"], "the simulation takes the private folder over and removes it"
    assert (plan.status, plan.download_bytes, [p.name for p in plan.packages]) == (
        "changes",
        7,
        ["libnvidia-compute-580"],
    )


def test_a_change_that_has_no_room_is_blocked():
    lines = ["/boot: 50 MiB free, 40 MiB needed, 64 MiB must stay free"]
    call = FakeHost(CANDIDATES["noble"], {**CHANGES, "full": lines})
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    (blocker,) = plan.blockers
    assert (plan.status, blocker.code, blocker.because) == ("blocked", "apt.disk_full", lines)
    call.simulation = {**CHANGES, "full": "everything"}
    with pytest.raises(ValidationError):
        plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)


@pytest.mark.parametrize(
    ("channel", "offered", "version"),
    [("ppa", "ppa", "580.159.04-0ubuntu0~gpu24.04.1"), ("ubuntu", "mirrored-ppa", "580.142-0ubuntu0.24.04.1")],
)
def test_what_a_ppa_has_is_no_package_of_the_archive(channel, offered, version):
    call = FakeHost(CANDIDATES[offered], CHANGES)
    config = {"nvidia_driver_branch": "580", "nvidia_driver_channel": channel, "nvidia_driver_build": "dkms"}
    if channel == "ppa":
        config |= {"nvidia_driver_ppa_key": "https://mirror.test/k", "nvidia_driver_ppa_key_fingerprint": "AB" * 20}
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, config)
    assert f"nvidia-dkms-580-open={version}" in plan.spec["apt"]["install"]


@pytest.mark.parametrize(
    ("mirrored", "config", "status"),
    [
        (CUDA_URI, {}, "changes"),
        ("http://mirror.test/cuda", {"nvidia_driver_repo_url": "http://mirror.test/cuda/"}, "changes"),
        ("http://other.test/cuda", {"nvidia_driver_repo_url": "http://mirror.test/cuda/"}, "blocked"),
    ],
)
def test_what_the_named_mirror_has_counts_and_nothing_else(mirrored, config, status):
    available = Candidates(
        {n: [replace(c, uri=mirrored) for c in found] for n, found in CANDIDATES["cuda"].packages.items()}
    )
    config = {"nvidia_driver_channel": "cuda", "nvidia_driver_branch": "595", **config}
    if "nvidia_driver_repo_url" in config:
        config |= {"nvidia_driver_repo_key": "https://mirror.test/k", "nvidia_driver_repo_key_fingerprint": "AB" * 20}
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), FakeHost(available, {**CHANGES, "changes": []}), config)
    assert plan.status == status, plan.blockers


def test_a_question_names_what_its_sources_may_have_and_what_is_held():
    def wanted(name, call):
        return any(re.fullmatch(pattern, name) for pattern in call.args["offer"]["patterns"])

    call = FakeHost(CANDIDATES["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    assert wanted("libnvidia-compute-580", call) and not wanted("cuda-nvcc-12-4", call)
    asked = {item.split("=")[0] for item in plan.spec["apt"]["install"]}
    assert asked and asked <= set(call.args["simulate"]["unhold"])
    available = Candidates({**CANDIDATES["noble"].packages, **CUDA_CANDIDATES["jammy"].packages})
    call = FakeHost(available, CHANGES)
    facts = host(["RTX 4090"], host={"os": {"version_id": "22.04"}})
    plan_from_facts("gpu01", facts, call, {**DEFAULTS, "cuda_toolkit_versions": ["12.4"]})
    assert wanted("libnvidia-compute-580", call) and wanted("cuda-nvcc-12-4", call)


@pytest.mark.parametrize(("status", "blocked"), [("hi", True), ("rc", False), ("hn", False)])
def test_only_what_is_installed_can_stay_behind(status, blocked):
    """Configuration files of an older driver, or a hold on nothing, are no driver in two versions."""
    row = {"libnvidia-extra-580": {"version": "580.95.05-0ubuntu0.24.04.1", "status": status}}
    there = host(["RTX 4090"])
    packages = {**there.packages, **type(there).model_validate({"packages": row}).packages}
    there = there.model_copy(update={"packages": packages})
    plan = plan_from_facts("gpu01", there, FakeHost(CANDIDATES["noble"], CHANGES), DEFAULTS)
    assert (plan.status == "blocked") is blocked, plan.blockers


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnreachableError("connect.refused", "m"), "unreachable"),
        (RefusedError("driver.not_offered", "m"), "blocked"),
        (HostFailedError("host.read_failed", "m"), "failed"),
    ],
)
def test_a_host_without_a_plan_says_why(error, status):
    plan = failed_plan("gpu01", error)
    assert (plan.status, plan.exit_code) == (status, error.exit_code)
    assert [(issue.host, issue.code) for issue in plan.blockers] == [("gpu01", error.issue.code)]


@pytest.mark.parametrize(
    ("values", "only", "levels"),
    [
        ({}, (), {"driver.loaded": "warning", "gpu.ecc": "pass"}),
        ({"gpu_verify_skip": ["driver.*"]}, (), {"driver.loaded": "skip", "gpu.ecc": "pass"}),
        ({"gpu_verify_skip": ["driver.*"]}, ("driver.loaded",), {"driver.loaded": "warning"}),
        ({"gpu_verify_strict": True}, (), {"driver.loaded": "error", "gpu.ecc": "pass"}),
        (
            {"gpu_verify_strict": True, "gpu_verify_skip": ["driver.loaded"]},
            (),
            {"driver.loaded": "skip", "gpu.ecc": "pass"},
        ),
    ],
)
def test_a_check_that_is_left_out_is_judged_where_it_is_asked_for_by_name(values, only, levels):
    found = [
        Check(code="driver.loaded", level="warning", message="m"),
        Check(code="gpu.ecc", level="pass", message="m"),
    ]
    assert {check.code: check.level for check in select(found, values, CheckSelection(only=only))} == levels


@pytest.mark.parametrize(
    ("patterns", "runs"),
    [
        ([], True),
        (["*"], True),
        (["container.run"], True),
        (["container.*"], True),
        (["container.shm"], False),
        (["python.*"], True),
        (["python.torch"], True),
        (["site.disk"], True),
        (["gpu.compute"], True),
        (["cuda.compile"], True),
        (["cuda.?ompile"], True),
        (["cuda.loader"], False),
        (["apt.hold", "driver.*"], False),
        (["apt.hold", "gpu.xid"], True),
    ],
    ids=str,
)
def test_a_host_runs_something_only_where_a_pattern_may_mean_that(patterns, runs):
    assert CheckSelection(only=tuple(patterns)).wants_to_run() is runs


def test_sources_come_first_and_the_reboot_last():
    given = ["reboot", "boot", "hold", "conda", "packages", "sources"]
    steps = [Step(id=name, title=name, because="") for name in given]
    assert [step.id for step in _in_order(steps)] == ["sources", "packages", "hold", "boot", "conda", "reboot"]


def test_a_host_that_has_it_all_is_not_asked():
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"], "580 580.142 open signed"), call, DEFAULTS)
    assert call.asked == []
    assert not plan.packages


def test_a_refusal_cleans_up():
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, {**DEFAULTS, "nvidia_driver_branch": "590"})
    assert call.asked == ["offer", "cleanup"]
    assert plan.status == "blocked" and plan.blockers[0].host == "gpu01"


def test_a_repository_that_cannot_be_read_is_the_reason_that_is_told_first():
    unmet = {"ok": False, "error": "the packages cannot be installed together\ndkms is not installable", "changes": []}
    call = FakeHost(CANDIDATES["noble"], unmet, ["archive.test: Could not resolve host"])
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    issue = plan.blockers[0]
    assert issue.because[0] == "archive.test: Could not resolve host"
    assert "reachable" in (issue.hint or "")
    assert not plan.steps


def test_what_apt_would_do_beyond_the_plan_is_refused():
    foreign = {"action": "remove", "name": "linux-image-generic", "version": None, "from_version": "6.8.0-48.48"}
    call = FakeHost(CANDIDATES["noble"], {**CHANGES, "changes": [*CHANGES["changes"], foreign]})
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DEFAULTS)
    assert plan.status == "blocked"
    assert any("linux-image-generic" in issue.message and issue.because for issue in plan.blockers)


def test_a_repository_without_a_known_key_is_not_trusted():
    call = FakeHost(CANDIDATES["cuda"], CHANGES)
    resolute = host(["RTX 4090"], host={"os": {"id": "ubuntu", "version_id": "26.04", "codename": "resolute"}})
    config = {"nvidia_driver_branch": "595", "nvidia_driver_channel": "cuda"}
    with pytest.raises(RefusedError) as refused:
        plan_from_facts("gpu01", resolute, call, config)
    assert refused.value.issue.code == "apt.key_unknown"
    assert "nvidia_driver_repo_key_fingerprint" in (refused.value.issue.hint or "")
    assert call.asked == []
    config["nvidia_driver_repo_key_fingerprint"] = "AB" * 20
    with pytest.raises(RefusedError):
        # a fingerprint, and no key that could have it
        plan_from_facts("gpu01", resolute, call, config)
    config["nvidia_driver_repo_key"] = "https://mirror.test/key.asc"
    plan_from_facts("gpu01", resolute, call, config)
    assert call.asked[0] == "offer"


def test_what_goes_before_the_transaction_is_no_part_of_its_expectation():
    """595's pinning package goes as that of 620 comes, first: the transaction itself finds both done."""
    rows = {
        "libnvidia-compute": "595.71.05-1ubuntu1",
        "nvidia-open": "595.71.05-1ubuntu1",
        "nvidia-driver-pinning-595": "595-1",
    }
    there = host(["RTX 4090"])
    packages = {name: {"version": version, "status": "hi"} for name, version in rows.items()}
    there = there.model_copy(
        update={"packages": {**there.packages, **type(there).model_validate({"packages": packages}).packages}}
    )
    changes = [
        {"action": "install", "name": "nvidia-driver-pinning-620", "version": "620-1", "from_version": None},
        {"action": "remove", "name": "nvidia-driver-pinning-595", "version": None, "from_version": "595-1"},
        {
            "action": "upgrade",
            "name": "nvidia-open",
            "version": "620.70.06-1ubuntu1",
            "from_version": "595.71.05-1ubuntu1",
        },
    ]
    config = {"nvidia_driver_branch": "620", "nvidia_driver_channel": "cuda"}
    plan = plan_from_facts("gpu01", there, FakeHost(CANDIDATES["cuda"], {**CHANGES, "changes": changes}), config)
    assert plan.spec["apt"]["before"]["remove"] == ["nvidia-driver-pinning-595"]
    assert plan.spec["apt"]["expect"] == [changes[-1]]


# --- CUDA in the same plan --------------------------------------------------------------------------------------------


def with_cuda(status="ii", **facts):
    """A host whose image brought CUDA 13.0 with nvcc and headers, and a driver that is not ours."""
    toolkit = {"path": "/usr/local/cuda-13.0", "version": "13.0", "compiler": True, "headers": True, "runtime": True}
    module = {"loaded": {"version": "580.159.04", "flavour": "open"}}
    made = host(["H100"], module=module, cuda={"toolkits": [toolkit]}, **facts)
    rows = type(made).model_validate({"packages": real_rows(status)}).packages
    return made.model_copy(update={"packages": {**made.packages, **rows}})


CUDA_13 = {
    "nvidia_driver_manage": False,
    "cuda_toolkit_versions": ["13.0"],
    "cuda_toolkit_profile": "compiler",
    "cuda_toolkit_cudnn": "none",
    "cuda_toolkit_nccl": "none",
}


def test_toolkits_that_are_there_need_no_repository():
    call = FakeHost(CANDIDATES["cuda"], CHANGES)
    plan = plan_from_facts("gpu01", with_cuda(), call, CUDA_13)
    assert call.asked == []
    assert plan.status == "changes", plan.blockers
    assert plan.spec["apt"]["configure"]["repositories"] == [], "nothing is fetched: the host may have no internet"
    assert len(plan.spec["apt"]["extra_hold"]) > 40 and plan.spec["apt"]["install"] == []
    assert not plan.spec["apt"]["hold"] and not plan.spec["apt"]["release"], "the driver is not ours"


def test_driver_and_toolkits_are_asked_for_in_one_question():
    available = Candidates({**CANDIDATES["noble"].packages, **CUDA_CANDIDATES["jammy"].packages})
    call = FakeHost(available, CHANGES)
    config = {"cuda_toolkit_versions": ["12.4"], "nvidia_driver_branch": "580", "nvidia_driver_channel": "ubuntu"}
    plan = plan_from_facts("gpu01", host(["RTX 4090"], host={"os": {"version_id": "22.04"}}), call, config)
    assert plan.status == "changes", plan.blockers
    assert call.asked == ["offer", "simulate"]
    asked = {item.split("=")[0] for item in plan.spec["apt"]["install"]}
    assert {"cuda-toolkit-12-4", "nvidia-utils-580"} <= asked
    assert plan.spec["apt"]["configure"]["preferences"].count("release o=NVIDIA") == 1


def test_a_plan_for_the_toolkits_alone_leaves_the_driver_alone():
    plan = plan_from_facts("gpu01", with_cuda("hi"), FakeHost(CANDIDATES["cuda"], CHANGES), CUDA_13, parts=["cuda"])
    assert plan.spec["roles"] == ["cuda_toolkit"]
    assert {step.part for step in plan.steps} == {"apt", "cuda"}
    assert not any(reason.what == "driver" for reason in plan.decisions)


def test_a_driver_that_a_toolkit_drags_along_is_refused():
    available = Candidates({**CANDIDATES["noble"].packages, **CUDA_CANDIDATES["jammy"].packages})
    driver = {"action": "install", "name": "nvidia-driver-590", "version": "590.48.01-1ubuntu1", "from_version": None}
    call = FakeHost(available, {**CHANGES, "changes": [driver]})
    ours = host(["RTX 4090"], "580 580.142 open signed", host={"os": {"version_id": "22.04"}})
    plan = plan_from_facts("gpu01", ours, call, {"cuda_toolkit_versions": ["12.4"]})
    assert [issue.code for issue in plan.blockers] == ["apt.drags_driver"]


# --- roles in plays of their own share our files of apt's configuration -----------------------------------------------


def as_written(facts, configure):
    """The host after the plan's files were written: what apt reads then, and the hashes that the probe tells."""
    own = {apt_files.UNATTENDED: apt_files.sha256(apt_files.render_unattended(configure["unattended_blacklist"]))}
    if configure["preferences"]:
        own[apt_files.PREFERENCES] = apt_files.sha256(configure["preferences"])
    sources = []
    for spec in configure["repositories"]:
        path = apt_files.sources_path(spec["name"])
        sources.append({"file": path, "types": ["deb"], "uris": [spec["uris"]], "suites": [spec["suites"]]})
        text = apt_files.render_sources(spec["name"], spec["uris"], spec["suites"], spec["components"])
        own[path] = apt_files.sha256(text)
    pins, errors = apt_conf.parse_preferences(configure["preferences"] or "", apt_files.PREFERENCES)
    assert not errors
    apt = facts.apt.model_copy(update={"blacklist": configure["unattended_blacklist"]})
    read = {"preferences": pins} if pins else {}
    read |= {"sources": sources} if sources else {}
    apt = type(apt).model_validate({**apt.model_dump(), **read})
    return facts.model_copy(update={"apt": apt, "own_files": {**facts.own_files, **own}})


@pytest.mark.parametrize(
    ("ubuntu", "repository", "version", "stanzas"),
    [
        ("22.04", "jammy", "12.4", ["release o=NVIDIA"]),
        # From 26.04 on the archive has CUDA under the same names.
        ("26.04", "resolute", "13.3", ["release o=NVIDIA", "release o=Ubuntu"]),
    ],
)
def test_roles_in_plays_of_their_own_do_not_write_over_each_other(ubuntu, repository, version, stanzas):
    available = Candidates({**CANDIDATES["noble"].packages, **CUDA_CANDIDATES[repository].packages})
    facts = host(["RTX 4090"], "580 580.142 open signed", host={"os": {"version_id": ubuntu}})
    config = {
        "cuda_toolkit_versions": [version],
        "nvidia_driver_channel": "ubuntu",
        "cuda_toolkit_repo_key": "https://mirror.test/key.asc",
        "cuda_toolkit_repo_key_fingerprint": "A" * 40,
    }
    empty = {**CHANGES, "changes": []}

    def configure(now, parts):
        plan = plan_from_facts("gpu01", now, FakeHost(available, empty), config, parts=parts)
        assert not plan.blockers
        return (plan.spec["apt"] or {}).get("configure")

    both = configure(facts, ["driver", "cuda"])
    assert re.findall("^Pin: (.*)$", both["preferences"], re.M) == stanzas
    for order in (["driver"], ["cuda"]), (["cuda"], ["driver"]), (["driver", "cuda"], ["cuda"]):
        now = facts
        for parts in order:
            if written := configure(now, parts):
                now = as_written(now, written)
        for parts in [*order, ["driver", "cuda"]]:
            written = configure(now, parts)
            now = as_written(now, written) if written else now
        assert configure(now, ["driver"]) is None and configure(now, ["cuda"]) is None, order
        assert now.own_files[apt_files.UNATTENDED] == as_written(facts, both).own_files[apt_files.UNATTENDED]
        assert now.own_files[apt_files.PREFERENCES] == as_written(facts, both).own_files[apt_files.PREFERENCES]


@pytest.mark.parametrize(("driver", "stanzas"), [("cuda", ["release o=Ubuntu", "release o=NVIDIA"]), ("ubuntu", [])])
def test_cuda_of_the_archive_is_kept_from_nvidias_where_that_is_there(driver, stanzas):
    """The driver may come from NVIDIA's repository and CUDA from the archive; without that repository nothing is pinned."""
    archive = CUDA_CANDIDATES["archive-13.1"].packages
    available = Candidates({**CANDIDATES["noble" if driver == "ubuntu" else "cuda"].packages, **archive})
    call = FakeHost(available, {**CHANGES, "changes": []})
    config = {
        "cuda_toolkit_versions": ["13.1"],
        "nvidia_driver_channel": driver,
        "nvidia_driver_repo_key": "https://mirror.test/key.asc",
        "nvidia_driver_repo_key_fingerprint": "A" * 40,
    }
    facts = host(["RTX 4090"], host={"os": {"version_id": "26.04"}})
    plan = plan_from_facts("gpu01", facts, call, config)
    assert not plan.blockers
    assert "cuda-toolkit-13-1=13.1.1-0ubuntu1" in plan.spec["apt"]["install"]
    text = (plan.spec["apt"]["configure"] or {}).get("preferences") or ""
    assert re.findall("^Pin: (.*)$", text, re.M) == stanzas
    assert any(re.fullmatch(one, "cuda-toolkit-13-1") for one in call.args["offer"]["patterns"])


def test_a_role_that_is_planned_for_lets_its_own_go():
    held = {
        "apt": {"blacklist": ["nvidia-", "cuda-(?!drivers)", "libcudnn", "libnccl"]},
        "own_files": {apt_files.UNATTENDED: "x"},
    }
    plan = plan_from_facts(
        "gpu01",
        with_cuda("hi", **held),
        FakeHost(CANDIDATES["cuda"], CHANGES),
        {**CUDA_13, "cuda_toolkit_hold": False},
        parts=["cuda"],
    )
    assert plan.spec["apt"]["configure"]["unattended_blacklist"] == []


SITES = {
    "a driver that is not ours, and toolkits": {"nvidia_driver_manage": False, "cuda_toolkit_versions": ["12.4"]},
    "nothing wanted": {"nvidia_driver_manage": False},
    "a driver": {"nvidia_driver_channel": "ubuntu"},
}


@pytest.mark.parametrize("values", SITES.values(), ids=SITES)
@pytest.mark.parametrize("gpus", [["RTX 4090"], []], ids=["a GPU", "no GPU"])
def test_what_the_tasks_of_a_role_read_is_in_every_plan(values, gpus):
    available = Candidates({**CANDIDATES["noble"].packages, **CUDA_CANDIDATES["jammy"].packages})
    facts = host(gpus, host={"os": {"version_id": "22.04"}})
    plan = plan_from_facts("gpu01", facts, FakeHost(available, {**CHANGES, "changes": []}), values)
    assert not plan.blockers
    for role, spec in plan.spec["parts"].items():
        read = set(re.findall(r"__\w+\.spec((?:\.\w+)+)", (ROLES / role / "tasks/main.yml").read_text()))
        assert read or not spec, role
        for path in read:
            at = spec
            for name in path.strip(".").split("."):
                # none as a whole: its task asks for that
                at = at[name] if at is not None else None


MIRROR = {"cuda_toolkit_repo_url": "http://mirror.test/cuda", "cuda_toolkit_repo_key": "https://mirror.test/key.asc"}


def test_a_mirror_counts_for_both_roles_whichever_is_planned_for():
    facts = host(["RTX 4090"], host={"os": {"version_id": "22.04"}})
    config = {
        **MIRROR,
        "nvidia_driver_channel": "cuda",
        "nvidia_driver_branch": "595",
        "cuda_toolkit_versions": ["12.4"],
    }
    for parts in (["driver"], ["cuda"], ["driver", "cuda"]):
        asked = []

        def call(_, args, asked=asked):
            asked.append(args)
            return {"workdir": "/tmp/w", "packages": {}, "refreshed": True, "errors": []}

        plan_from_facts("gpu01", facts, call, config, parts=parts)
        assert {source["uris"] for source in asked[0]["sources"]} == {"http://mirror.test/cuda/"}, parts


def test_two_roles_that_name_different_mirrors_are_told():
    facts = host(["RTX 4090"], host={"os": {"version_id": "22.04"}})
    config = {**MIRROR, "nvidia_driver_repo_url": "http://other.test/cuda", "cuda_toolkit_versions": ["12.4"]}
    with pytest.raises(UsageError) as refused:
        plan_from_facts("gpu01", facts, FakeHost(CUDA_CANDIDATES["jammy"], CHANGES), config)
    assert "nvidia_driver_repo_url and cuda_toolkit_repo_url" in refused.value.issue.message
    config["nvidia_driver_repo_url"] = "http://mirror.test/cuda/"
    plan_from_facts("gpu01", facts, FakeHost(CUDA_CANDIDATES["jammy"], CHANGES), config)


@pytest.mark.parametrize(
    ("unreadable", "words"),
    [
        (["/home/ada/.bashrc: not UTF-8"], "check these files"),
        (["/root/.condarc: not a regular file", "host.python_path: not the path of a program"], "compromised"),
    ],
)
def test_a_file_that_cannot_be_read_is_no_sign_of_an_intruder(unreadable, words):
    facts = host(["H100"]).model_copy(update={"unreadable": unreadable})
    plan = plan_from_facts("gpu01", facts, FakeHost(Candidates(), CHANGES), {"nvidia_driver_manage": False})
    (warning,) = [warning for warning in plan.warnings if warning.code == "host.unreadable"]
    assert words in warning.hint


def test_what_apt_says_no_size_of_has_none():
    bare = {"ok": True, "error": None, "changes": [dict(CHANGES["changes"][0])]}
    del bare["changes"][0]["download_bytes"]
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), FakeHost(CANDIDATES["noble"], bare), DEFAULTS)
    (change,) = plan.packages
    assert (change.download_bytes, change.disk_bytes, plan.download_bytes, plan.disk_bytes) == (0, 0, 0, 0)
