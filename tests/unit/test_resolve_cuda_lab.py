"""resolve on the lab's repository, which has the whole package sets: every release, every profile."""

import re

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.parts.candidates import Candidate, Candidates
from provision.parts.cuda.packages import by_version
from provision.parts.cuda.resolve import CudaConfig
from provision.parts.decision import Decision
from tests.lab import cuda_repo
from tests.unit.cudahosts import apply, resolved
from tests.unit.hosts import host
from tests.unit.test_resolve_cuda_rules import unmet

RELEASES = [
    (ubuntu, release) for ubuntu in ("22.04", "24.04", "26.04") for release in cuda_repo.releases(ubuntu, later=True)
]


def lab(ubuntu):
    rows = {}
    for package in cuda_repo.packages(ubuntu, later=True):
        assert any(re.fullmatch(pattern, package.name) for pattern in cuda_names.PATTERNS), package.name
        assert cuda_names.parse(package.name), package.name
        words = {key.lower(): package.fields.get(key) or "" for key in ("Depends", "Provides", "Conflicts")}
        rows.setdefault(package.name, []).append(Candidate(package.name, package.version, origin="NVIDIA", **words))
    return Candidates({n: sorted(r, key=lambda c: by_version(c.version), reverse=True) for n, r in rows.items()})


CANDIDATES = {ubuntu: lab(ubuntu) for ubuntu in ("22.04", "24.04", "26.04")}


def facts_of(ubuntu):
    return host(["A100"], host={"os": {"id": "ubuntu", "version_id": ubuntu}})


@pytest.mark.parametrize(("ubuntu", "release"), RELEASES, ids=lambda value: value)
def test_a_release_is_made_of_its_own_parts(ubuntu, release):
    made = {package.name: package.version for package in cuda_repo.Toolkit(release).packages()}
    for profile in cuda_names.PROFILES:
        facts, config = (facts_of(ubuntu), CudaConfig(versions=(release,), profile=profile, cudnn="none", nccl="none"))
        target = resolved(config, facts, CANDIDATES[ubuntu], Decision()).target
        shared = {name for name in target.packages if name.endswith("config-common")}
        assert {n: v for n, v in target.packages.items() if n not in shared} == {
            name: made[name] for name in target.packages if name not in shared
        }
        after = apply(facts, target, CANDIDATES[ubuntu])
        assert unmet({n: p for n, p in after.packages.items() if cuda_names.parse(n)}) == []
        assert resolved(config, after, None, Decision()).target.installed


@pytest.mark.parametrize("ubuntu", CANDIDATES)
def test_every_toolkit_at_once(ubuntu):
    minors = tuple(sorted({release.rsplit(".", 1)[0] for u, release in RELEASES if u == ubuntu}))
    facts, config = facts_of(ubuntu), CudaConfig(versions=minors, cudnn="auto", nccl="auto")
    target = resolved(config, facts, CANDIDATES[ubuntu], Decision()).target
    assert set(target.releases) == set(minors)
    assert target.cudnn
    assert target.nccl
    after = apply(facts, target, CANDIDATES[ubuntu])
    assert unmet({n: p for n, p in after.packages.items() if cuda_names.parse(n)}) == []
    assert resolved(config, after, None, Decision()).target.installed
    # Removing one from the list and pruning leaves the rest whole.
    fewer = CudaConfig(versions=minors[1:], prune=True, cudnn="auto", nccl="auto")
    if fewer.versions:
        pruned = resolved(fewer, after, None, Decision()).target
        assert not pruned.packages
        assert pruned.remove
        left = apply(after, pruned, CANDIDATES[ubuntu])
        assert not [n for n in left.packages if (p := cuda_names.parse(n)) and p.version == minors[0]]
        assert resolved(fewer, left, None, Decision()).target.installed
