"""Containers in the plan of a host: what apt is asked, what is simulated and judged, which sources give way."""

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from provision.catalog import load_catalog
from provision.facts import Facts
from provision.inventory.repositories import Mirror, source_spec
from provision.parts.candidates import Candidate, Candidates
from provision.parts.containers.packages import LEGACY_URIS, is_toolkit_uri
from provision.planning import plan_from_facts
from provision.render.plan import _of_step
from tests.unit.containershosts import SET, URI, VERSIONS, archive_candidates, case_host, toolkit_candidates

CONFIG = {"nvidia_driver_manage": False, "container_toolkit_runtimes": ["docker"]}
DOCKER = {"docker": {"engine": "/usr/bin/dockerd", "package": "docker.io", "version": "28.2.2"}, "cgroups": "v2"}
CUDA_URI = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64"


class FakeHost:
    """Answers as aptquery does, and keeps what it was asked."""

    def __init__(self, available, changes=()):
        self.available, self.changes, self.asked = available, list(changes), []

    def __call__(self, program, args):
        assert program == "apt.query"
        self.asked.append(args)
        if args["op"] == "offer":
            rows = {
                name: [{"version": c.version, "uri": c.uri, "also": list(c.also), "origin": c.origin} for c in found]
                for name, found in self.available.packages.items()
            }
            return {"workdir": "/tmp/w", "packages": rows, "refreshed": True, "errors": []}
        answer = {"ok": True, "error": None, "download_bytes": 7, "disk_bytes": 9, "changes": self.changes}
        return answer if args["op"] == "simulate" else {"removed": 1}

    @property
    def operations(self):
        return [args["op"] for args in self.asked]


def change(action, name, version=None, old=None):
    return {"action": action, "name": name, "version": version, "from_version": old}


def everything(*more):
    available = Candidates({**toolkit_candidates(VERSIONS).packages, **archive_candidates("24.04").packages})
    for candidate in more:
        available.packages.setdefault(candidate.name, []).insert(0, candidate)
    return available


def planned(case, call, **config):
    return plan_from_facts("gpu01", case_host(case), call, {**CONFIG, **config})


def test_the_toolkit_is_asked_for_once_simulated_and_in_the_spec():
    call = FakeHost(everything(), [change("install", name, "1.20.0-1") for name in SET])
    plan = planned({"containers": DOCKER}, call)
    assert plan.status == "changes", plan.blockers
    assert call.operations == ["offer", "simulate"]
    source = call.asked[0]["sources"][0]
    assert (source["name"], source["fingerprint"][-8:]) == ("container-toolkit", "F796ECB0")
    assert sorted(plan.spec["apt"]["install"]) == sorted(f"{name}=1.20.0-1" for name in SET)
    assert set(plan.spec["apt"]["extra_hold"]) == set(SET)
    assert plan.spec["parts"]["container_toolkit"]["runtimes"]["docker"]["runtime"] is True
    assert "container toolkit 1.20.0 for docker 28.2.2" in plan.summary


def test_docker_and_the_toolkit_are_one_question():
    call = FakeHost(everything(), [change("install", "docker.io", "28.2.2-0ubuntu1~24.04.1")])
    plan = planned({}, call, container_toolkit_install_docker=True)
    assert plan.status == "changes", plan.blockers
    assert call.operations == ["offer", "simulate"]
    assert "docker.io=28.2.2-0ubuntu1~24.04.1" in plan.spec["apt"]["install"]


def test_a_host_that_did_not_ask_is_not_asked():
    call = FakeHost(everything())
    plan = plan_from_facts("gpu01", case_host({"containers": DOCKER}), call, {"nvidia_driver_manage": False})
    assert plan.status == "converged" and call.asked == []
    assert plan.spec["parts"]["container_toolkit"] == {"runtimes": None}


def test_a_plan_for_another_role_says_nothing_of_containers():
    plan = plan_from_facts("gpu01", case_host({"containers": DOCKER}), FakeHost(everything()), CONFIG, parts=["cuda"])
    assert plan.status == "converged" and not plan.decisions and not plan.warnings


def test_the_same_version_in_two_repositories_counts_for_ours_whichever_apt_names_first():
    both = [Candidate(name, "1.20.0-1", uri=CUDA_URI, also=(URI,), origin="NVIDIA") for name in SET]
    call = FakeHost(
        Candidates({candidate.name: [candidate] for candidate in both}), [change("install", SET[0], "1.20.0-1")]
    )
    assert planned({"containers": DOCKER}, call).spec["apt"]["install"]


def test_a_newer_version_of_another_origin_is_passed_over():
    newer = [Candidate(name, "1.21.0-1", uri=CUDA_URI, origin="NVIDIA") for name in SET]
    call = FakeHost(everything(*newer), [change("install", SET[0], "1.20.0-1")])
    plan = planned({"containers": DOCKER}, call)
    assert set(plan.spec["apt"]["install"]) == {f"{name}=1.20.0-1" for name in SET}


@pytest.mark.parametrize(
    ("policy", "jobs", "left"),
    [
        ("when_idle", False, False),
        ("when_idle", True, True),
        ("always", True, False),
        ("never", False, True),
        ("never", True, True),
    ],
)
def test_who_restarts_docker(policy, jobs, left):
    set_ = {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "features": {"cdi": True}}
    docker = {"engine": "/usr/bin/dockerd", "version": "26.1.0", "pid": 5}
    docker["file"] = {"present": True, "keys": ["runtimes", "features"], "value": set_}
    job = [{"id": "abc", "runtime": "docker", "name": "job", "image": "tiny"}] if jobs else []
    case = {
        "toolkit": "1.20.0",
        "containers": {"docker": docker, "pending": {"docker": ["features.cdi"]}, "running": job},
    }
    config = {"container_toolkit_docker_cdi": "always", "container_toolkit_restart": policy}
    plan = planned(case, FakeHost(everything()), **config)
    (step,) = [step for step in plan.steps if step.id == "restart"]
    assert ("left to you" in step.title) is left
    assert step.details == ([f"{'would end' if left else 'ends'} job (docker, tiny)"] if jobs else [])


SIGNED = {
    "file": "/etc/apt/sources.list.d/nvidia-container-toolkit.list",
    "line": 1,
    "types": ["deb"],
    "suites": ["/"],
    "uris": ["https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64"],
    "signed_by": "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
}
UNSIGNED = {**SIGNED, "file": "/etc/apt/sources.list.d/nvidia-docker.list", "signed_by": None}
CONFLICT = (
    "Conflicting values set for option Signed-By regarding source "
    "https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64/ /: "
    "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg != "
)


def test_f2_two_entries_that_contradict_each_other_give_way_to_ours():
    case = {"containers": DOCKER, "apt": {"sources": [SIGNED, UNSIGNED], "errors": [CONFLICT]}}
    call = FakeHost(everything(), [change("install", name, "1.20.0-1") for name in SET])
    plan = planned(case, call)
    assert plan.status == "changes", plan.blockers
    assert call.asked[0]["omit"] == [{"file": entry["file"], "line": 1} for entry in (SIGNED, UNSIGNED)]
    details = next(step for step in plan.steps if step.id == "sources").details
    assert sum("remove the entry from" in line for line in details) == 2
    spec = plan.spec["apt"]["configure"]["repositories"][0]
    assert spec["legacy_uris"] == LEGACY_URIS


def test_f2_without_our_role_the_contradiction_is_a_blocker():
    case = {"apt": {"sources": [SIGNED, UNSIGNED], "errors": [CONFLICT]}, "driver": ""}
    plan = plan_from_facts("gpu01", case_host(case), FakeHost(everything()), {"nvidia_driver_manage": True})
    assert [issue.code for issue in plan.blockers] == ["apt.sources_broken"]


def test_f2_f5_what_is_written_takes_the_old_entries_out(tmp_path, monkeypatch):
    """The pattern and apt's own files: every form of the old instructions, and nobody else's."""
    lines = [
        ("nvidia-docker.list", "deb https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/$(ARCH) /", True),
        ("nvidia-docker.list", "deb https://nvidia.github.io/nvidia-docker/ubuntu18.04/$(ARCH) /", True),
        (
            "libnvidia-container.list",
            "deb https://nvidia.github.io/libnvidia-container/stable/ubuntu22.04/$(ARCH) /",
            True,
        ),
        (
            "nvidia-container-runtime.list",
            "deb https://nvidia.github.io/nvidia-container-runtime/ubuntu20.04/$(ARCH) /",
            True,
        ),
        ("new.list", "deb [signed-by=/k.gpg] https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /", True),
        ("docker.list", "deb https://download.docker.com/linux/ubuntu noble stable", False),
        ("cuda.list", f"deb {CUDA_URI}/ /", False),
    ]
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    for name, line, _ in lines:
        with (parts / name).open("a") as file:
            file.write(line + "\n")
    monkeypatch.setattr(apt_sources, "PARTS", str(parts))
    monkeypatch.setattr(apt_sources, "MAIN", str(tmp_path / "sources.list"))
    spec = source_spec("container_toolkit", Mirror(), case_host({}), load_catalog())
    repository = dict(apt_configure._DEFAULTS, **spec, legacy_uris=LEGACY_URIS)
    wanted = {}
    migrated = apt_configure._migrate([repository], wanted)
    assert len(migrated) == sum(old for *_, old in lines)
    gone = {path.rsplit("/", 1)[-1] for path, text in wanted.items() if text is None}
    assert gone == {name for name, _, old in lines if old}


def test_l8_nvidia_docker2_may_go_and_nothing_else():
    case = {"containers": DOCKER, "packages": {"nvidia-docker2": "2.13.0-1"}}
    ours = [change("install", name, "1.20.0-1") for name in SET] + [change("remove", "nvidia-docker2", old="2.13.0-1")]
    plan = planned(case, FakeHost(everything(), ours))
    assert plan.status == "changes", plan.blockers
    assert plan.spec["apt"]["remove"] == ["nvidia-docker2"]
    more = planned(case, FakeHost(everything(), [*ours, change("remove", "docker-ce", old="5:27.0-1")]))
    assert [issue.code for issue in more.blockers] == ["apt.protected"]
    kept = planned(case, FakeHost(everything(), ours), container_toolkit_remove_legacy=False)
    assert [issue.code for issue in kept.blockers] == ["apt.protected"], "only where it was asked for"


@pytest.mark.parametrize(
    ("installs", "shown"),
    [
        (
            {},
            {
                "install NVIDIA's container toolkit 1.20.0": {*SET, "libseccomp2"},
                "remove nvidia-docker2": {"nvidia-docker2"},
            },
        ),
        (
            {"container_toolkit_install_docker": True},
            {
                "install NVIDIA's container toolkit 1.20.0": set(SET),
                "install docker.io 28.2.2-0ubuntu1~24.04.1": {"docker.io", "libseccomp2"},
                "remove nvidia-docker2": {"nvidia-docker2"},
            },
        ),
    ],
)
def test_every_package_is_shown_under_one_step(installs, shown):
    """Also what is drawn in by dependencies: nothing twice, nothing left out."""
    fresh = "container_toolkit_install_docker" in installs
    case = {"containers": {} if fresh else DOCKER, "packages": {"nvidia-docker2": "2.13.0-1"}}
    names = [*SET, "libseccomp2", *(["docker.io"] if fresh else [])]
    changes = [change("install", name, "1") for name in names] + [change("remove", "nvidia-docker2", old="1")]
    plan = planned(case, FakeHost(everything(), changes), **installs)
    found = {step.title: {one.name for one in _of_step(step, plan)} for step in plan.steps if step.id == "packages"}
    assert found == shown


def test_a_toolkit_that_only_the_driver_drags_along_is_refused():
    plan = planned(
        {"containers": DOCKER},
        FakeHost(
            everything(),
            [
                *[change("install", name, "1.20.0-1") for name in SET],
                change("upgrade", "containerd.io", "1.8.0-1", "1.7.28-1"),
            ],
        ),
    )
    assert [issue.code for issue in plan.blockers] == ["apt.unrelated"]


def test_a_mirror_is_taken_at_its_word():
    spec = source_spec(
        "container_toolkit",
        Mirror("https://mirror.test/nct/", "", "", "container_toolkit_repo"),
        Facts(),
        load_catalog(),
    )
    assert (spec["uris"], spec["key_url"]) == ("https://mirror.test/nct/", "https://mirror.test/nct/gpgkey")
    available = {name: [Candidate(name, "1.20.0-1", uri="https://mirror.test/nct")] for name in SET}
    call = FakeHost(Candidates(available), [change("install", SET[0], "1.20.0-1")])
    plan = planned({"containers": DOCKER}, call, container_toolkit_repo_url="https://mirror.test/nct/")
    assert plan.spec["apt"]["install"], plan.blockers
    assert apt_sources.render(spec, signed_by=False).startswith("# written by")


@pytest.mark.parametrize(
    ("uri", "ours"),
    [
        ("https://nvidia.github.io/libnvidia-container/stable/deb/amd64", True),
        (URI, True),
        ("https://nvidia.github.io/nvidia-docker/ubuntu18.04/amd64", True),
        ("https://mirror.test/libnvidia-container/", True),
        ("https://nvidia.github.io/libnvidia-container", True),
        (CUDA_URI, False),
        ("https://download.docker.com/linux/ubuntu", False),
        (CONFLICT, True),
    ],
)
def test_which_addresses_are_of_the_toolkit(uri, ours):
    assert is_toolkit_uri(uri) is ours


def test_apt_names_every_repository_of_a_version():
    tables = {
        "p": {
            "candidate": "1",
            "versions": [
                {"version": "1", "priority": 500, "where": [f"{CUDA_URI}  Packages".replace("  Packages", ""), URI]}
            ],
        }
    }
    found = apt_query.available_versions(tables, [{"Package": "p", "Version": "1"}], {})
    assert (found["p"][0]["uri"], found["p"][0]["also"]) == (CUDA_URI, [URI])
    assert (found["p"][0]["size"], found["p"][0]["installed_size"]) == (0, 0), "a repository may leave sizes out"


JOB = {"id": "7d64db074abf", "runtime": "docker", "pid": 99, "gpu": True, "name": "training"}
ROBBED = {
    "docker": {**DOCKER["docker"], "pid": 700, "info": {"cgroup_driver": "systemd", "runtimes": {"nvidia": "x"}}},
    "running": [JOB],
    "device_links_missing": ["/dev/nvidia0"],
}
OWN_CGROUPS = {
    **ROBBED,
    "docker": {**ROBBED["docker"], "info": {"cgroup_driver": "cgroupfs", "runtimes": {"nvidia": "x"}}},
}


def reload_warnings(case, **variables):
    call = FakeHost(everything(), [change("install", name, "1.20.0-1") for name in SET])
    plan = plan_from_facts("gpu01", case_host(case), call, {"nvidia_driver_manage": False, **variables})
    return plan, [issue.message for issue in plan.warnings if issue.code == "containers.daemon_reload"]


@pytest.mark.parametrize(
    ("containers", "variables", "names"),
    [
        (ROBBED, CONFIG, ["training"]),
        (OWN_CGROUPS, CONFIG, []),
        ({**ROBBED, "device_links_missing": []}, CONFIG, []),
        ({**ROBBED, "running": [{**JOB, "gpu": False}]}, CONFIG, []),
        # podman's containers are systemd's whatever docker says.
        ({**OWN_CGROUPS, "running": [{**JOB, "runtime": "podman"}]}, CONFIG, ["training"]),
        # A plan for the driver alone reloads too, where it writes a unit's file; without steps nothing does.
        (ROBBED, {"nvidia_driver_manage": True}, ["training"]),
        (ROBBED, {}, []),
    ],
)
def test_l3_whatever_reloads_names_the_containers_that_it_robs(containers, variables, names):
    """Said once, by the plan, whichever part has systemd read its units again."""
    plan, told = reload_warnings({"containers": containers}, **variables)
    assert not plan.blockers, plan.blockers
    assert len(told) == bool(names), (told, [step.title for step in plan.steps])
    assert all(name in told[0] for name in names)


def test_l3_a_proxy_of_docker_reloads():
    """Its file is a unit's, among other steps that are no reload."""
    case = {"containers": ROBBED, "toolkit": "1.20.0"}
    plan, told = reload_warnings(
        case, **CONFIG, container_toolkit_shm_size="8G", gpu_proxy_http="http://proxy.test:3128"
    )
    assert len({step.id for step in plan.steps}) > 1 and len(told) == 1, plan.warnings


def test_l3_a_plan_that_does_not_reload_says_nothing():
    """A key of daemon.json is taken up without systemd."""
    case = {"containers": ROBBED, "toolkit": "1.20.0"}
    plan, told = reload_warnings(case, **CONFIG, container_toolkit_shm_size="8G")
    assert plan.status == "changes" and told == [], plan.warnings
