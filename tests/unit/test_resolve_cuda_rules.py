"""What must hold for any config of CUDA: no driver package, a fixpoint, and ways out that work."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version, driver_names
from provision.lib import yaml_reader
from provision.parts.candidates import relations
from provision.parts.cuda.resolve import PATTERNS, CudaConfig
from provision.parts.decision import Decision, DriverConfig
from tests.unit.cudacandidates import CANDIDATES
from tests.unit.cudahosts import apply, driver_of, resolved
from tests.unit.hosts import host

VERSIONS = (
    "11.7",
    "11.8",
    "12",
    "12.2",
    "12.4",
    "12.4.0",
    "12.4.9",
    "12.6",
    "12.7",
    "12.8",
    "12.9",
    "13.0",
    "13.0.2",
    "13.5",
)
GPUS = ([], ["K80"], ["V100"], ["RTX 4090"], ["RTX 5090"], ["V100", "RTX 4090"], ["unknown"], ["ancient"])
REPOSITORIES = (
    ("22.04", "jammy"),
    ("24.04", "noble"),
    ("26.04", "resolute"),
    ("22.04", "thirteen-only"),
    ("24.04", "torn"),
)
CONFIGS = st.builds(
    CudaConfig,
    versions=st.lists(st.sampled_from(VERSIONS), max_size=3).map(tuple),
    default=st.sampled_from(["", "12.4", "12.6", "13.0"]),
    profile=st.sampled_from(["runtime", "compiler", "full", "full", "small"]),
    cudnn=st.sampled_from(["none", "none", "auto", "8", "9", "8, 9", "9.14.0.64", "9.10.2.21", "9.1, 9.14", "newest"]),
    nccl=st.sampled_from(["none", "none", "auto", "2.21.5", "2.28.3-1+cuda13.0", "2.99", "latest"]),
    update=st.booleans(),
    prune=st.booleans(),
    remove_distribution=st.booleans(),
    unsupported_gpu=st.sampled_from(["refuse", "refuse", "warn"]),
)
HOSTS = st.tuples(st.sampled_from(GPUS), st.sampled_from(REPOSITORIES))
SETTING = re.compile(r"(cuda_toolkit|nvidia_driver)_(\w+): (\[[^]]*\]|\"[^\"]*\"|[\w.-]+)")


def facts_of(gpus, ubuntu, **extra):
    return host(gpus, host={"os": {"id": "ubuntu", "version_id": ubuntu}}, **extra)


def unmet(packages):
    """Relations between packages of CUDA that do not hold; other names are apt's business."""
    found = []
    for name, row in packages.items():
        for group in relations(row.depends):
            own = [r for r in group if cuda_names.parse(r.name)]
            if own and not any(r.name in packages and r.allows(packages[r.name].version) for r in own):
                found.append(f"{name}: {row.depends}")
    return found


@given(config=CONFIGS, where=HOSTS)
def test_what_is_decided_holds_together(config, where):
    gpus, (ubuntu, repository) = where
    facts, available = facts_of(gpus, ubuntu), CANDIDATES[repository]
    driver = driver_of(facts, DriverConfig(toolkits=config.versions))
    decision = resolved(config, facts, available, driver)
    if not config.versions and {config.cudnn, config.nccl} <= {"none", "auto"}:
        assert decision.target is None
        return
    assert bool(decision.target) != bool(decision.blockers)
    if decision.target is None:
        assert all(issue.because and issue.hint for issue in decision.blockers)
        return
    target = decision.target
    for name, version in target.packages.items():
        assert not driver_names.is_driver_package(name)
        assert cuda_names.parse(name, version).kind in ("toolkit", "cudnn", "nccl"), name
        assert version in [c.version for c in available.versions(name)]
    assert set(target.packages) <= set(target.names)
    assert not set(target.packages) & set(target.remove)
    assert target.default in target.versions
    after = apply(facts, target, available)
    assert unmet({n: p for n, p in after.packages.items() if cuda_names.parse(n)}) == []
    # The same config on the host as it is then changes nothing; apt is not even asked unless an update is wanted.
    again = resolved(config, after, available if config.update else None, driver)
    if again.ask:
        # Only where cuDNN does not serve the default toolkit: whether it could by now is for the repository to say.
        assert target.default.split(".")[0] not in target.cudnn
        again = resolved(config, after, available, driver)
    assert again.target, again
    assert again.target.installed, (again.target.packages, again.target.remove)
    assert again.target.names == target.names
    assert (again.target.cudnn, again.target.nccl, again.target.default) == (target.cudnn, target.nccl, target.default)


@given(first=CONFIGS, second=CONFIGS, gpus=st.sampled_from(GPUS))
def test_from_any_host_to_any_wish_in_one_step(first, second, gpus):
    """A host that an earlier config made is brought to a later one, and stays there."""
    facts, available = facts_of(gpus, "22.04"), CANDIDATES["jammy"]
    before = resolved(replace(first, unsupported_gpu="warn"), facts, available, Decision())
    if before.target:
        facts = apply(facts, before.target, available)
    driver = driver_of(facts, DriverConfig(toolkits=second.versions))
    decision = resolved(second, facts, available, driver)
    if decision.target is None:
        return
    after = apply(facts, decision.target, available)
    assert unmet({n: p for n, p in after.packages.items() if cuda_names.parse(n)}) == []
    for name, version in after.packages.items():
        for other in after.packages:
            if name < other and cuda_names.parse(name) and cuda_names.parse(name).kind == "cudnn":
                assert stands_beside(available, name, version.version, other), (name, other)
    again = resolved(second, after, available, driver)
    assert again.target is not None
    assert again.target.installed, (again.target.packages, again.target.remove)


def stands_beside(available, name, version, other):
    """Packaging's own word where the offer has it: Conflicts by name, and one libcudnn9 at a time."""
    left, right = cuda_names.parse(name), cuda_names.parse(other)
    if right is None or right.kind != "cudnn" or left.cudnn == right.cudnn:
        return cuda_names.can_stand_beside(name, other)
    rows = [c for n in (name, other) for c in available.versions(n) if n != name or c.version == version]
    return not any(
        r.name in (name, other) for c in rows for g in relations(c.conflicts) for r in g if c.name != r.name
    ) or (cuda_names.can_stand_beside(name, other) or {left.base, right.base} == {"libcudnn8-dev", "libcudnn9-dev"})


def changes_of(alternative):
    found = {"cuda_toolkit": {}, "nvidia_driver": {}}
    for role, name, value in SETTING.findall(alternative):
        read = yaml_reader.load(value)
        found[role][name] = tuple(read) if isinstance(read, list) else read
    return found["cuda_toolkit"], found["nvidia_driver"]


@pytest.mark.parametrize("gpus", GPUS, ids=lambda gpus: "+".join(gpus) or "none")
def test_a_way_out_that_is_named_works(gpus):
    followed = []

    @given(
        config=CONFIGS,
        where=st.sampled_from(REPOSITORIES),
        driver_config=st.sampled_from([DriverConfig(), DriverConfig(branch="470-server"), DriverConfig(branch="535")]),
        extra=st.sampled_from(
            [
                {},
                {"cuda": {"links": [{"path": "/usr/local/cuda", "kind": "directory"}]}},
                {"cuda": {"toolkits": [{"path": "/usr/local/cuda-12.6", "version": "12.6", "compiler": True}]}},
            ]
        ),
    )
    def follow(config, where, driver_config, extra):
        ubuntu, repository = where
        facts, available = facts_of(gpus, ubuntu, **extra), CANDIDATES[repository]
        driver_config = replace(driver_config, toolkits=config.versions)
        driver = driver_of(facts, driver_config)
        decision = resolved(config, facts, available, driver)
        for issue in decision.blockers[:1]:
            for alternative in re.split(r"; or |; ", issue.hint):
                cuda, other = changes_of(alternative)
                if not cuda and not other:
                    continue
                changed = replace(config, **cuda)
                if other:
                    driver_config = replace(driver_config, **other)
                    driver = driver_of(facts, driver_config)
                    assert not driver.blockers
                second = resolved(changed, facts, available, driver)
                same = [b for b in second.blockers if (b.code, b.message) == (issue.code, issue.message)]
                assert not same, f"{config}\n{issue}\n{alternative}"
                if alternative == re.split(r"; or |; ", issue.hint)[0] and not other:
                    folders = {"cuda.link_in_the_way", "cuda.folder_in_the_way"}
                    rest = [b for b in second.blockers if issue.code in folders or b.code not in folders]
                    assert not rest, f"{config}\n{issue}\n{alternative}\n{rest}"
                followed.append(issue.code)

    follow()
    assert followed


def test_apt_is_asked_for_every_name_that_may_be_chosen():
    for repository in CANDIDATES.values():
        for name in repository.packages:
            assert any(re.fullmatch(pattern, name) for pattern in PATTERNS), name


def test_a_set_is_the_one_that_a_release_was_made_of():
    """No part of a set is of a later release while one of its own is offered."""
    facts = facts_of(["RTX 4090"], "22.04")
    config = CudaConfig(versions=("12.4.0",), cudnn="none", nccl="none")
    target = resolved(config, facts, CANDIDATES["jammy"], Decision()).target
    alone = resolved(config, facts, CANDIDATES["old-12.4"], Decision()).target
    own = {n: v for n, v in target.packages.items() if cuda_names.parse(n).version == "12.4"}
    assert own == {n: v for n, v in alone.packages.items() if cuda_names.parse(n).version == "12.4"}
    assert all(deb_version.compare(v, "12.5") < 0 for n, v in own.items() if not n.startswith(("nsight", "lib")))
