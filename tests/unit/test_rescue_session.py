"""One host of a rescue: what was diagnosed becomes a round, or a reason why not. Diagnosis and plans are stand-ins."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import load_catalog
from provision.diagnose.finding import Cause, Diagnosis, Repair
from provision.errors import Issue
from provision.facts.diagnostics import Diagnosed
from provision.parts.plan import HostPlan, Reboot, Step
from provision.parts.registry import roles
from provision.rescue import session as rescue
from provision.rescue.model import History
from provision.rescue.rounds import Limits
from tests.unit.hosts import host

INSTALLED = "580-server 580.126.20 open signed"
USER = [{"pid": 812, "comm": "python3", "user": "ann", "devices": ["/dev/nvidia0"]}]
VALUES = {"nvidia_driver_manage": True, "nvidia_driver_branch": "recommended"}


def finding(code, *actions, level="error", reboot=False):
    repairs = [
        Repair(action=action, words=f"{action} it", args=args or {})
        for action, args in (a if isinstance(a, tuple) else (a, None) for a in actions)
    ]
    return Cause(code=code, level=level, message=code, repairs=repairs, reboot=reboot)


def plan(status, *, reboot=False, code="apt.unmet"):
    blockers = [Issue(code=code, message="no way", because=["why"], hint="so")] if status == "blocked" else []
    steps = [Step(id="packages", title="t", because="b")] if status == "changes" else []
    spec = {"roles": ["nvidia_driver"], "apt": None, "parts": {roles()["driver"]: {"boot": {"start": True}}}}
    return HostPlan(host="h", status=status, steps=steps, blockers=blockers, spec=spec, reboot=Reboot(needed=reboot))


@pytest.fixture
def inspect_host(monkeypatch):
    """look(facts, findings, plans=…) -> (Look, History); plans: answers for the wishes, the narrowest first."""

    def run(facts, findings, plans=(), unknown=(), answers=None, history=None, limits=None, **more):
        asked = iter(plans)
        narrowed = []

        def planned(name, facts, call, values, catalog, parts):
            narrowed.append((facts, values, parts))
            return next(asked)

        monkeypatch.setattr(rescue, "diagnose", lambda *a: Diagnosis(findings=findings, unknown=list(unknown)))
        monkeypatch.setattr(rescue, "plan_from_facts", planned)
        history = history or History()
        call = {"probe.diagnostics": facts.model_dump(), **(answers or {})}
        found = rescue.inspect_host(
            "h",
            lambda program, args: call[program],
            dict(VALUES, **more.pop("values", {})),
            load_catalog(),
            history,
            limits or Limits(),
            **more,
        )
        run.narrowed = narrowed
        return found, history

    return run


def test_the_narrowest_plan_that_changes_something_is_taken(inspect_host):
    facts = host(["A100"], INSTALLED)
    plans = [plan("converged"), plan("blocked"), plan("changes"), plan("changes")]
    found, _ = inspect_host(facts, [finding("kernel.no_module", ("apply", {"parts": ["driver"]}))], plans)
    assert found.round.plan is plans[2] and found.round.steps[0].ok is None
    assert [config[1].get("nvidia_driver_version") for config in inspect_host.narrowed] == ["580.126.20", "", ""]
    assert inspect_host.narrowed[0][1]["nvidia_driver_branch"] == "580-server"
    assert all(config[2] == ["driver"] for config in inspect_host.narrowed)


def test_where_no_plan_works_the_next_repair_has_its_turn(inspect_host):
    facts = host(["A100"])
    repairs = finding("kernel.no_module", "apply", "realign")
    found, history = inspect_host(facts, [repairs], [plan("blocked"), plan("changes")])
    assert [step.action for step in found.round.steps] == ["realign"]
    (tried,) = history.rounds
    assert tried.steps[0].said == ["no way", "why"] and tried.steps[0].code == "apt.unmet"
    found, history = inspect_host(facts, [finding("kernel.no_module", "apply")], [plan("converged")])
    assert found.round is None and "nothing to change" in history.rounds[0].steps[0].said[0]


def test_work_on_the_gpus_is_waited_for(inspect_host):
    found, history = inspect_host(
        host(["A100"]), [finding("kernel.no_module", "apply")], [plan("blocked", code="gpu.in_use")]
    )
    assert found.round.blockers[0].code == "gpu.in_use" and not history.rounds


def test_what_only_threatens_reboots_nobody(inspect_host):
    broken = History(broken=True)
    unheld = finding("driver.unheld", "apply", level="warning")
    found, history = inspect_host(host(["A100"]), [unheld], [plan("changes", reboot=True)], history=broken)
    assert found.round is None and "reboot" in history.rounds[0].steps[0].said[0]
    found, _ = inspect_host(host(["A100"]), [unheld], [plan("changes")], history=History(broken=True))
    assert found.round.plan.status == "changes"


STALE = finding("driver.stale_module", "module.reload", "reboot")


def test_a_reload_is_passed_over_where_somebody_works(inspect_host):
    facts = host(["A100"], INSTALLED, gpu_users=USER)
    found, history = inspect_host(facts, [STALE], limits=Limits("always"))
    assert [step.action for step in found.round.steps] == ["reboot"] and not found.round.blockers
    (passed,) = history.rounds
    assert passed.steps[0].code == "module.in_use" and "python3 (pid 812, ann)" in passed.steps[0].said
    found, _ = inspect_host(facts, [STALE])
    assert found.round.blockers[0].code == "gpu.in_use" and found.round.blockers[0].because == [
        "python3 (pid 812, ann)"
    ]
    found, _ = inspect_host(facts, [STALE], limits=Limits(stop_holders=True))
    assert [step.action for step in found.round.steps] == ["module.reload"]
    assert any("python3" in line for line in found.round.stops)


def test_no_reboot_into_a_kernel_without_a_module(inspect_host):
    facts = host(["A100"], INSTALLED, module={"on_disk": []})
    found, _ = inspect_host(facts, [finding("nouveau.in_use", "reboot")])
    (blocker,) = found.round.blockers
    assert blocker.code == "driver.next_boot" and blocker.because and blocker.hint
    found, _ = inspect_host(facts, [finding("nouveau.in_use", "reboot")], values={"nvidia_driver_manage": False})
    assert not found.round.blockers, "a driver that is not ours says nothing"


def test_a_key_is_the_catalogs_or_the_step_cannot_be_done(inspect_host):
    facts = host(["A100"])
    found, _ = inspect_host(facts, [finding("apt.key_missing", ("sources.key", {"name": "cuda"}))])
    repository = found.round.steps[0].args["repository"]
    assert repository["name"] == "cuda" and repository["fingerprint"] and repository["key_url"]
    found, history = inspect_host(facts, [finding("apt.key_missing", ("sources.key", {"name": "nosuch"}))])
    assert found.round is None
    assert history.rounds[0].steps[0].ok is False and history.rounds[0].steps[0].said


def test_symptoms_that_nothing_explains(inspect_host):
    found, _ = inspect_host(host(["A100"], INSTALLED), [], unknown=["the nvidia module is not loaded"])
    assert [(step.finding, step.action) for step in found.round.steps] == [("unknown", "module.reload")]
    found, _ = inspect_host(host(["A100"]), [], unknown=["x"], values={"nvidia_driver_manage": False})
    assert found.round is None


PURGE = {
    "packages": ["nvidia-utils-580-server"],
    "config": [],
    "changes": [],
    "kept": [],
    "problems": [],
    "uninstaller": None,
    "files": [],
    "trees": [],
    "aside": [],
    "dkms": [],
    "kernels": [],
    "unfinished": False,
    "left": [],
    "nothing": False,
}


def test_a_purge_and_then_the_inventory(inspect_host):
    loaded = {"loaded": {"version": "580.126.20"}}
    facts = host(["A100"], INSTALLED, module=loaded)
    found, history = inspect_host(facts, [], answers={"rescue.purge": PURGE}, mode="purge")
    assert found.round.kind == "purge" and found.round.purge.packages == PURGE["packages"]
    found.round.steps[0].ok = True
    history.rounds.append(found.round)
    found, history = inspect_host(host(["A100"], module=loaded), [], [plan("changes")], history=history, mode="purge")
    assert found.round.kind == "apply" and [step.finding for step in found.round.steps] == ["purge"]
    assert inspect_host.narrowed[0][0].module.loaded is None, "what is loaded of it is nobody's any more"
    assert found.round.plan.spec["parts"][roles()["driver"]]["boot"]["start"] is False
    found.round.steps[0].ok = True
    history.rounds.append(found.round)
    found, _ = inspect_host(host(["A100"], module=loaded), [STALE], history=history, mode="purge")
    assert [step.action for step in found.round.steps] == ["module.reload"]


def test_a_purge_is_not_under_somebodys_work(inspect_host):
    facts = host(["A100"], INSTALLED, gpu_users=USER)
    found, _ = inspect_host(facts, [], answers={"rescue.purge": PURGE}, mode="purge")
    assert [blocker.code for blocker in found.round.blockers] == ["gpu.in_use"]
    refused = dict(PURGE, problems=[{"code": "purge.removes", "message": "m", "because": ["b"], "hint": "h"}])
    found, _ = inspect_host(host(["A100"], INSTALLED), [], answers={"rescue.purge": refused}, mode="purge")
    assert [blocker.code for blocker in found.round.blockers] == ["purge.removes"]


def test_no_trace_to_purge(inspect_host):
    found, history = inspect_host(
        host(["A100"]),
        [],
        [plan("changes")],
        answers={"rescue.purge": dict(PURGE, packages=[], nothing=True)},
        mode="purge",
    )
    assert found.round.kind == "apply", "then the installation alone"
    assert history.rounds[0].steps[0].said == ["there is no trace of a driver"]


def test_undo(inspect_host):
    answer = {
        "id": "20261128T093012Z-1f2e3d",
        "made": "2026-11-28T09:30:12Z",
        "reason": "rescue",
        "install": ["a=1"],
        "remove": [],
        "purge": [],
        "hold": [],
        "release": [],
        "auto": [],
        "manual": [],
        "files": [],
        "left": [],
        "changes": [],
        "problems": [],
        "finished": True,
        "nothing": False,
    }
    found, history = inspect_host(host(["A100"]), [STALE], answers={"rescue.undo": answer}, mode="undo")
    assert found.round.kind == "undo" and found.round.undo.id == answer["id"]
    history.rounds.append(found.round)
    found, _ = inspect_host(host(["A100"]), [STALE], answers={"rescue.undo": answer}, history=history, mode="undo")
    assert found.round is None, "nothing is mended after it"
    found, _ = inspect_host(host(["A100"]), [STALE], answers={"rescue.undo": dict(answer, nothing=True)}, mode="undo")
    assert found.round is None


def test_boots_are_counted(inspect_host):
    history = History()
    for boot in ("a", "a", "b", "b"):
        inspect_host(host(["A100"], host={"boot_id": boot}), [], history=history)
    assert history.boots == ["a", "b"] and history.reboots == 1


def test_what_apt_removed_under_its_module_is_installed_again_as_it_was(inspect_host):
    """G8: not taken for a driver from elsewhere; nothing is started beside the module that is loaded."""
    before = host(gpus=["A100"], installed=INSTALLED)
    gone = [
        {"action": "purge", "name": name, "old": package.version}
        for name, package in before.packages.items()
        if driver_names.is_driver_package(name)
    ]
    rest = {name: row for name, row in before.packages.items() if not driver_names.is_driver_package(name)}
    trouble = {"apt": {"transactions": [{"start": "today", "end": "x", "changes": gone}]}}
    facts = Diagnosed.model_validate({**dict(before), "packages": rest, "trouble": trouble})
    found, _ = inspect_host(
        facts, [finding("driver.missing", ("apply", {"parts": ["driver"]}))], plans=[plan("changes")]
    )
    planned, values, _ = inspect_host.narrowed[0]
    assert planned.module.loaded is None and found.facts.module.loaded is not None
    assert (values["nvidia_driver_branch"], values["nvidia_driver_version"]) == ("580-server", "580.126.20")
    assert found.round.plan.spec["parts"][roles()["driver"]]["boot"]["start"] is False
    runfile = facts.runfile.model_copy(update={"uninstaller": "/usr/bin/nvidia-uninstall"})
    foreign = facts.model_copy(update={"runfile": runfile})
    inspect_host(foreign, [finding("driver.missing", ("apply", {"parts": ["driver"]}))], plans=[plan("changes")])
    assert inspect_host.narrowed[0][0].module.loaded is not None
