"""Which repair comes next, what it may change, and what a rescue has touched: pure, from tables."""

from pathlib import Path

import pytest

from provision.diagnose.finding import ACTIONS, Cause, Diagnosis, Repair
from provision.errors import Issue
from provision.facts import Facts, Package
from provision.lib import yaml_reader
from provision.parts.plan import HostPlan, PackageChange
from provision.rescue import rounds
from provision.rescue.model import History, RescueStep, Round
from provision.rescue.narrow import narrowed
from provision.rescue.orders import orders, paths_of, record
from provision.rescue.rounds import Limits, next_level, next_round
from provision.rescue.touched import configured, touched
from tests.unit.hosts import host

CASES = Path(__file__).parents[1] / "cases"
ROUNDS = yaml_reader.load((CASES / "rescue_rounds.yml").read_text())
CONFIGS = yaml_reader.load((CASES / "rescue_narrow.yml").read_text())


def finding(code, repairs, level="error", reboot=False):
    made = [Repair(action=row[0], words=f"{row[0]} it", args=row[1] if len(row) > 1 else {}) for row in repairs]
    return Cause(code=code, level=level, message=code, repairs=made, reboot=reboot)


def history(tried, findings):
    """Rounds of [finding, action, ok]; a step has the arguments that its finding's repair has now, unless it says none."""
    args = {(f.code, r.action): r.args for f in findings for r in f.repairs if r.action != "sources.drop"}
    made = History()
    for row in tried:
        steps = [
            RescueStep(
                finding=code,
                action=action,
                words="",
                args=args.get((code, action), {}),
                ok=ok,
                changed=ok,
                code=row.get("code"),
            )
            for code, action, ok in row["steps"]
        ]
        made.rounds.append(Round(kind=row["kind"], steps=steps, reboot=row.get("reboot", False)))
    return made


@pytest.mark.parametrize("case", ROUNDS, ids=[case["name"] for case in ROUNDS])
def test_next_round(case):
    findings = [finding(**row) for row in case["findings"]]
    before = history(case.get("tried", []), findings)
    before.broken = case.get("broken", False)
    services = {name: {"present": True, "enabled": True, "running": True} for name in case.get("services", [])}
    facts = Facts.model_validate({"services": services})
    found = next_round(Diagnosis(findings=findings), before, facts, Limits())
    expect = case["expect"]
    if expect == "none":
        assert found is None
        told = next_level(findings, before)
        assert all(word in told for word in case.get("next", [])), told
        assert "not_next" not in case or case["not_next"] not in told, told
        return
    assert found is not None
    assert found.kind == expect["kind"]
    assert [step.action for step in found.steps] == expect["actions"]
    assert found.reboot is expect.get("reboot", False)
    assert found.stops == expect.get("stops", [])


def test_rounds_end():
    """Whatever a finding says, a rescue does not go on for ever."""
    stubborn = Diagnosis(findings=[finding("x.y", [[action] for action in ACTIONS])])
    seen, before = [], History()
    while (found := next_round(stubborn, before, Facts(), Limits())) is not None:
        for step in found.steps:
            step.ok, step.changed = len(seen) % 2 == 0, len(seen) % 2 == 0
        seen.append([step.action for step in found.steps])
        before.rounds.append(found)
    assert 3 <= len(seen) <= rounds.MOST_ROUNDS, seen
    carried = {action for row in seen for action in row}
    assert not carried & {"purge", "runfile.uninstall", "manual"}


def test_every_action_has_its_place():
    assert set(rounds._ORDER) | rounds._NOT_OURS == set(ACTIONS)


# ---- what a repair may change


@pytest.mark.parametrize("case", CONFIGS, ids=[case["name"] for case in CONFIGS])
def test_wishes(case):
    facts = host(**case["host"])
    packages = dict(facts.packages)
    for name, version in case.get("moved", {}).items():
        packages[name] = packages[name].model_copy(update={"version": version})
    for name, version in case.get("added", {}).items():
        packages[name] = Package(version=version)
    facts = facts.model_copy(update={"packages": packages})
    if "toolkits" in case:
        rows = [{"path": f"/usr/local/cuda-{v}", "version": v} for v in case["toolkits"]]
        facts.cuda.toolkits = [type(facts.cuda).model_fields["toolkits"].annotation.__args__[0](**r) for r in rows]
    steps = [
        RescueStep(
            finding=case.get("finding", "x.y"), action="apply", words="", args=case.get("args", {"parts": ["driver"]})
        )
    ]
    defaults = {
        "nvidia_driver_manage": True,
        "nvidia_driver_branch": "recommended",
        "nvidia_driver_version": "",
        "nvidia_driver_update": True,
        "nvidia_driver_channel": "auto",
        "cuda_toolkit_update": True,
    }
    found = narrowed({**defaults, **case.get("values", {})}, facts, steps)
    assert all(config["nvidia_driver_update"] is False and config["cuda_toolkit_update"] is False for config in found)
    shown = [{key: config.get(key) for key in case["expect"][0]} for config in found]
    assert shown == case["expect"]


# ---- what the role is told, and what comes back


def test_orders_leave_out_what_cannot_be_done_and_name_files():
    steps = [
        RescueStep(
            finding="a.b", action="sources.drop", words="w", args={"entries": [{"file": "/etc/apt/x.list", "line": 2}]}
        ),
        RescueStep(finding="a.c", action="sources.key", words="w", args={}, ok=False),
        RescueStep(finding="a.d", action="file.aside", words="w", args={"paths": ["/etc/modprobe.d/y.conf"]}),
    ]
    told = orders(Round(kind="mend", steps=steps), {"nvidia_driver_lock_timeout": 60}, Limits())
    assert [step["action"] for step in told["steps"]] == ["sources.drop", "file.aside"]
    assert told["paths"] == ["/etc/apt/x.list", "/etc/modprobe.d/y.conf"] == paths_of([steps[0], steps[2]])
    assert told["reason"] == "rescue: a.b, a.d"
    assert told["lock_timeout"] == 60 and told["apt"] is None and told["roles"] == []
    assert not told["reboot"]["needed"]


@pytest.mark.parametrize(
    ("limits", "policy"),
    [
        (Limits(), "when_idle"),
        (Limits(reboot="never"), "never"),
        (Limits(local=True), "never"),
        (Limits("always"), "always"),
    ],
)
def test_whose_reboot_it_is(limits, policy):
    steps = [RescueStep(finding="a.b", action="reboot", words="reboot: nouveau has the GPUs")]
    told = orders(Round(kind="restart", steps=steps, reboot=True), {}, limits)
    assert told["reboot"]["needed"] and told["reboot"]["policy"] == policy
    assert told["steps"] == []


def test_record():
    steps = [
        RescueStep(finding="a.a", action="dpkg.configure", words="w"),
        RescueStep(finding="a.b", action="sources.key", words="w", ok=False),
        RescueStep(finding="a.c", action="initramfs.build", words="w"),
    ]
    done = History(rounds=[Round(kind="mend", steps=steps)])
    record(
        done,
        [
            {"ok": False, "changed": False, "said": ["held"], "code": "apt.lock_timeout", "hint": "wait"},
            {"ok": True, "changed": True, "said": ["built"]},
        ],
    )
    assert [(step.ok, step.said, step.code) for step in steps] == [
        (False, ["held"], "apt.lock_timeout"),
        (False, [], None),
        (True, ["built"], None),
    ]
    apply = RescueStep(finding="a.d", action="apply", words="w")
    record(History(rounds=[Round(kind="apply", steps=[apply])]), [])
    assert apply.ok and apply.changed
    failed = RescueStep(finding="a.d", action="apply", words="w")
    issue = Issue(code="apt.dpkg_failed", message="nvidia-dkms-580 failed", because=["make: error"], hint="mend it")
    record(History(rounds=[Round(kind="apply", steps=[failed])]), [], failed=issue)
    assert failed.ok is False and failed.said == ["nvidia-dkms-580 failed", "make: error"]


# ---- what was touched


def test_touched_is_what_was_read_not_what_was_planned():
    def facts(**rows):
        return Facts.model_validate(
            {"packages": {name.replace("_", "-"): {"version": v, "status": s} for name, (v, s) in rows.items()}}
        )

    before = facts(a=("1", "hi"), b=("1", "ii"), c=("1", "iF"), d=("1", "ii"), e=("1", "rc"))
    after = facts(a=("2", "hi"), c=("1", "ii"), d=("1", "hi"), f=("3", "ii"))
    plan = HostPlan(
        host="h",
        status="changes",
        packages=[
            PackageChange(action="install", name="make", version="4.3"),
            PackageChange(action="upgrade", name="d", version="2"),
        ],
    )
    steps = [RescueStep(finding="x", action="apply", words="", ok=True, changed=True)]
    carried = History(rounds=[Round(kind="apply", steps=steps, plan=plan)])
    assert [(c.action, c.name) for c in touched(before, after, carried)] == [
        ("upgrade", "a"),
        ("remove", "b"),
        ("install", "f"),
        ("install", "make"),
    ]
    assert configured(before, after) == ["c"]
    steps[0].ok = False
    assert "make" not in [c.name for c in touched(before, after, carried)]


def test_reboots_are_counted_by_boots():
    assert History().reboots == 0
    assert History(boots=["a"]).reboots == 0
    assert History(boots=["a", "b", "c"]).reboots == 2
