"""A part is a folder and a line in the registry: one that nobody knows is planned, verified, locked and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import load_catalog
from provision.drift import judge_host
from provision.errors import UsageError
from provision.facts import Package
from provision.lock.compare import changes
from provision.lock.make import Seen, entry, make
from provision.lock.model import LockError, dump, parse
from provision.parts import checks, registry
from provision.parts.apt import AptPart, PartPlan
from provision.parts.base import Difference, Headline, Part, headline
from provision.parts.candidates import Candidate, Candidates
from provision.parts.check import check, failed, passed
from provision.parts.decision import BaseDecision
from provision.parts.desired import Desired
from provision.parts.locked import Locked, Versions
from provision.parts.plan import Reboot, Step
from provision.planning import plan_from_facts, plan_without_apt
from provision.planning.verification import expect_of
from tests.unit.fleethosts import healthy
from tests.unit.test_planning import CHANGES, FakeHost

VALUES = {"metrics_exporter_version": "1.2"}
NAME = "gpu-exporter"


@dataclass(frozen=True)
class Target:
    packages: dict
    names: tuple = (NAME,)


class ExporterDecision(BaseDecision):
    target = None


class ExporterExpect(BaseModel):
    version: str = ""


class LockedExporter(Locked):
    version: str
    packages: Versions = {}


def installed(facts):
    return facts.packages[NAME].version.split("-")[0] if NAME in facts.packages else ""


@check("exporter.version")
def is_as_asked(facts, expect):
    if installed(facts) == expect.exporter.version:
        return passed("as asked")
    return failed("another one", [installed(facts)], "provision apply")


class Exporter(Part[ExporterDecision, LockedExporter]):
    name, role = "exporter", "metrics_exporter"
    title, one = "the exporter", "an exporter"
    unattended = ("gpu-exporter",)
    checks = (is_as_asked,)
    locked, models = LockedExporter, (LockedExporter,)

    def config(self, desired):
        version = desired.values.get("metrics_exporter_version", "") if desired.plans(self.name) else ""
        return SimpleNamespace(version=version, update=False, wanted=bool(version))

    def decide(self, host):
        decision, wanted = ExporterDecision(), self.config(host.desired).version
        if not wanted or installed(host.facts) == wanted:
            decision.target = Target({}) if wanted else None
        elif "ubuntu" not in host.candidates:
            decision.ask = "ubuntu"
        else:
            decision.target = Target({NAME: host.candidates["ubuntu"].packages[NAME][0].version})
            decision.reason("exporter", wanted, "asked for")
        return decision

    def patterns(self, host, sources):
        return [NAME]

    def channel(self, host, decision):
        return "ubuntu" if decision.target else None

    def plan(self, host, decision, source):
        packages = decision.target.packages if decision.target else {}
        if not packages:
            apt = AptPart(unattended=list(self.unattended)) if decision.target else None
            return PartPlan({"start": False}, apt, [])
        step = Step(id="packages", part=self.name, title=f"install {NAME}", because="asked for")
        apt = AptPart(install=[f"{name}={version}" for name, version in packages.items()])
        reboot = Reboot(needed=True, because=["the exporter asks for one"])
        return PartPlan({"start": True}, apt, [step], f"exporter {self.config(host.desired).version}", reboot)

    def group_of(self, package):
        return "exporter" if package == NAME else ""

    def expect(self, host, decision):
        return ExporterExpect(version=self.config(host.desired).version)

    def exact(self, locked, desired):
        asked = self.config(desired).version
        against = [] if asked == locked.version else [f"asked for is {asked}, the lock has {locked.version}"]
        return {"metrics_exporter_version": locked.version}, against

    def channel_of(self, locked):
        return "ubuntu"

    def entry(self, host, decision, more=()):
        return LockedExporter(version=installed(host.facts), packages={NAME: host.facts.packages[NAME].version})

    def flat(self, locked):
        return {"exporter": locked.version}

    def headlines(self, old, new) -> Iterator[Headline]:
        yield headline("exporter", (old, new), lambda locked: locked.version)

    def differences(self, facts, locked, own):
        have = installed(facts)
        return [Difference("exporter.version", "the exporter", locked.version, have, "")] * (have != locked.version)


@pytest.fixture(autouse=True)
def exporter():
    registry.PARTS.append(Exporter())
    yield
    registry.PARTS.pop()


def having(version):
    facts = healthy()
    package = Package(version=f"{version}-1", status="hi", arch="amd64")
    return facts.model_copy(update={"packages": {**facts.packages, NAME: package}})


def locked(facts, values):
    return make([entry(Seen("gpu01", facts, values), load_catalog())]).lock


def with_lock(tmp_path, version="1.2"):
    (tmp_path / "fleet.lock.yml").write_text(dump(locked(having(version), {"metrics_exporter_version": version})))
    return {**VALUES, "inventory_source": str(tmp_path / "hosts.yml")}


def offered(version):
    available = Candidates({})
    available.packages[NAME] = [Candidate(NAME, f"{version}-1", uri="http://archive.test/ubuntu/")]
    change = {"action": "install", "name": NAME, "version": f"{version}-1", "from_version": None}
    return FakeHost(available, {**CHANGES, "changes": [change]})


def test_it_is_planned():
    plan = plan_from_facts("gpu01", healthy(), offered("1.2"), VALUES)
    assert [(step.id, step.part) for step in plan.steps if step.part == "exporter"] == [("packages", "exporter")]
    assert plan.spec["parts"]["metrics_exporter"] == {"start": True} and "metrics_exporter" in plan.spec["roles"]
    assert [(p.name, p.part, p.group) for p in plan.packages] == [(NAME, "exporter", "exporter")]
    assert plan.summary.endswith("exporter 1.2")
    assert plan.reboot.because == ["the exporter asks for one"], "the driver's that needs none does not hide it"
    assert plan_without_apt("gpu01", healthy(), VALUES, load_catalog())[1] == ["exporter"]
    assert plan_from_facts("gpu01", healthy(), offered("1.2"), VALUES, parts=["driver"]).status == "converged"
    there = plan_from_facts("gpu01", having("1.2"), offered("1.2"), VALUES)
    assert [step.id for step in there.steps] == ["sources"], "unattended-upgrades is to leave it alone"


@pytest.mark.parametrize(("version", "level"), [("1.2", "pass"), ("1.1", "error")])
def test_it_is_verified(version, level):
    facts = having(version)
    found = {one.code: one.level for one in checks.run(facts, expect_of(facts, VALUES))}
    assert found["exporter.version"] == level


def test_it_is_locked_and_written(tmp_path):
    lock = locked(having("1.2"), VALUES)
    group = lock.groups["ubuntu-24.04-amd64-580-open-signed-exporter"]
    assert group.exporter == LockedExporter(version="1.2", packages={NAME: "1.2-1"})
    assert group.by_part["exporter"] == {NAME: "1.2-1"}
    assert parse(dump(lock)) == lock
    assert locked(having("1.2"), {}).groups["ubuntu-24.04-amd64-580-open-signed"].by_part.keys() == {"driver"}
    with pytest.raises(LockError, match=r"line \d+: groups\.\S+\.exporter\.version is missing"):
        parse(dump(lock).replace("      version: '1.2'\n", ""))


def test_a_lock_holds_it_and_says_what_contradicts(tmp_path):
    values = with_lock(tmp_path)
    plan = plan_from_facts("gpu01", having("1.1"), offered("1.2"), values)
    assert plan.spec["apt"]["install"] == [f"{NAME}=1.2-1"]
    assert {"exporter": "locked"}.items() <= {one.what: one.because for one in plan.decisions}.items()
    other = plan_from_facts("gpu01", having("1.2"), offered("1.2"), {**values, "metrics_exporter_version": "1.3"})
    assert [issue.code for issue in other.blockers] == ["lock.contradicts"]
    gone = plan_from_facts("gpu01", having("1.1"), offered("1.3"), values)
    assert [issue.code for issue in gone.blockers] == ["lock.not_offered"]


def test_it_is_compared(tmp_path):
    values, facts = with_lock(tmp_path), having("1.1")
    found = {item.code for item in judge_host("gpu01", facts, values, load_catalog())[0]}
    assert {"exporter.version", "packages.behind", "packages.exporter", "check.exporter.version"} <= found
    old, new = (locked(having(version), VALUES) for version in ("1.1", "1.2"))
    assert {(c.part, c.what, c.old, c.new) for c in changes(old, new)} == {
        ("exporter", "exporter", "1.1", "1.2"),
        ("exporter", "packages", "1.1-1", "1.2-1"),
    }


def test_what_a_part_that_waits_for_apt_has_in_our_files_is_no_step():
    """The driver's packages would change; that its names are kept from unattended-upgrades stays as it is."""
    patterns = [*driver_names.UNATTENDED_PATTERNS, *Exporter.unattended]
    facts = having("1.2")
    facts.own_files[apt_files.UNATTENDED] = apt_files.sha256(apt_files.render_unattended(patterns))
    facts.apt.blacklist[:] = patterns
    plan, asking = plan_without_apt("gpu01", facts, {**VALUES, "nvidia_driver_update": True}, load_catalog())
    assert (asking, plan.steps) == (["driver"], [])


def test_nothing_is_asked_of_a_part_that_is_not_planned_for():
    values = {
        "cuda_toolkit_versions": ["12.8"],
        "miniconda_install": True,
        "container_toolkit_runtimes": ["docker"],
        "gpu_proxy_http": "http://proxy.example.org:3128",
        "gpu_mirror_url": "http://mirror.example.org/gpu",
    }
    every, conda = Desired(values), Desired(values, ["conda"])
    assert (every.driver.toolkits, every.driver.manage) == (("12.8",), True)
    assert (conda.driver.toolkits, conda.driver.manage) == ((), False)
    assert every.cuda.versions and every.containers.wanted
    assert not conda.cuda.versions and not conda.containers.wanted and not Desired(values, ["cuda"]).conda.wanted
    assert conda.conda.pip_index_url.startswith("http://mirror.example.org/gpu/")
    assert conda.proxy == every.proxy and conda.proxy.http and conda.mirror == every.mirror


def test_variables_that_are_not_used_are_not_judged():
    odd = Desired({"gpu_proxy_http": "socks5://x", "cuda_toolkit_versions": ["12.8"]})
    assert odd.cuda.versions == ("12.8",)
    with pytest.raises(UsageError):
        _ = odd.proxy


@pytest.mark.parametrize(
    ("variable", "refresh"), [("miniconda_update", "if_stale"), ("nvidia_driver_update", "always"), ("x", "if_stale")]
)
def test_apts_lists_are_read_anew_for_packages_that_are_to_move(variable, refresh):
    call = offered("1.2")
    plan_from_facts("gpu01", healthy(), call, {**VALUES, variable: True})
    assert call.args["offer"]["refresh"] == refresh
