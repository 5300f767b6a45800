"""The plan at a glance: how many lines it takes, and that nothing a person has to know is missing from them."""

import io
import re

import pytest
from rich.console import Console

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from provision.documents import PlanDocument
from provision.parts.plan import HostPlan, PackageChange, Reboot, Step
from provision.planning.contents import contents
from provision.render import Renderer, plan_files, plan_markdown
from provision.render.plan import lines
from tests.unit import fleetplans


def shown(document, width=100, verbosity=0, colour=False):
    made = Renderer(verbosity=verbosity)
    system = "standard" if colour else None
    made.out = Console(
        file=io.StringIO(), width=width, force_terminal=colour, highlight=False, markup=False, color_system=system
    )
    made.err = Console(file=io.StringIO(), width=width)
    made.show(document)
    return made.out.file.getvalue()


@pytest.fixture(scope="module")
def documents():
    return {name: getattr(fleetplans, name)() for name in ("unlike", "equal", "mixed", "each_unlike")}


@pytest.mark.parametrize(
    ("name", "width", "most"),
    [
        ("unlike", 100, 60),
        ("equal", 100, 25),
        ("equal", 80, 32),
        ("unlike", 80, 75),
        ("mixed", 120, 75),
        ("each_unlike", 100, 75),
    ],
)
def test_a_plan_is_short(documents, name, width, most):
    printed = shown(documents[name], width).splitlines()
    assert len(printed) <= most, "\n".join(printed)
    assert max(map(len, printed)) <= width


@pytest.mark.parametrize("name", ["unlike", "equal", "mixed", "each_unlike"])
def test_every_step_of_every_host_is_in_a_line_with_that_host(documents, name):
    plans = {host: plan for host, plan in documents[name].hosts.items() if plan.status == "changes"}
    found = lines(plans)
    for host, plan in plans.items():
        mine = [line for line in found if host in line.hosts]
        for step in plan.steps:
            assert step.what, f"{step.title}: a step of a part says what it is in a word"
            files = any(re.match("(write|remove) /", one) for one in step.details)
            values = re.split({"hold": ", ", "boot": ", ", "docker": "; "}.get(step.what, "$"), step.value)
            for value in filter(None, values):
                told = any(line.what == step.what and value in line.value for line in mine)
                assert told or step.what == "CUDA paths", (host, step)
            assert step.value or files, (host, step)
        assert any(line.what == "reboot" for line in mine) == plan.reboot.needed
        gone = [change.name for change in plan.packages if change.action == "remove"]
        assert any(line.sign == "-" for line in mine) == bool(gone)


def test_totals_and_what_interrupts_work_come_last(documents):
    *_, packages, danger, more, down, hint = shown(documents["equal"]).splitlines()
    assert re.match(r"  packages: \d+ new, \d+ removed; \d+ GB to download, at most .* a host", packages)
    assert danger.startswith("  ! 40 reboots: all 40 hosts; by apply, only while no process uses the GPUs")
    assert down == "  ! driver down: all 40 hosts; new GPU programs fail until the reboot"
    assert "15 min" in more and hint.startswith("reasons and packages: -v")


def test_questions_of_a_stranger_about_forty_unlike_hosts_have_one_place_each(documents):
    document = documents["each_unlike"]
    plans = {host: plan for host, plan in document.hosts.items() if plan.status == "changes"}
    found = lines(plans)
    named = [line.what for line in found]
    assert named[named.index("containers") :][:3] == ["containers", "docker", "docker"], "docker in one look"
    for host in plans:
        docker = [line for line in found if line.what == "docker" and line.sign == "~" and host in line.hosts]
        assert len({line.value.split("; ")[0] for line in docker}) == len(docker) <= 2, "what happens to docker on it"
        driver = [line for line in found if line.what == "driver" and host in line.hosts]
        branch = [line for line in found if line.what == "branch" and host in line.hosts]
        assert len(driver) <= 1 and (len(branch) == 1 or not driver), "why this branch"
        assert all(value in branch[0].value for value in ("supported until", "archive")) or not driver
    total, packages, reboot = shown(document, 400).splitlines()[-5:-2]
    reboots = sum(plan.reboot.needed for plan in plans.values())
    gone = sum(change.action == "remove" for plan in plans.values() for change in plan.packages)
    assert total.startswith("plan: 40 hosts: ") and reboot.startswith(f"  ! {reboots} reboots: "), "which hosts reboot"
    assert f", {gone} removed; " in packages and re.search(r"; \d+ GB to download, at most .* a host", packages)
    assert " a host, without conda; " in packages


@pytest.mark.parametrize("name", ["mixed", "each_unlike"])
def test_hosts_that_return_are_named_after_the_one_line_that_names_them(documents, name):
    plans = {host: plan for host, plan in documents[name].hosts.items() if plan.status == "changes"}
    found, printed = lines(plans), shown(documents[name])
    named = set(re.findall(r"  as (\w+) \((\d+)\)$", printed, re.MULTILINE))
    assert {"containers", "removed"} <= {what for what, _ in named}
    for what, count in named:
        (line,) = [line for line in found if line.what == what]
        assert len(line.hosts) == int(count)


def test_a_reason_that_holds_with_and_without_cuda_is_one(documents):
    plans = {host: plan for host, plan in documents["each_unlike"].hosts.items() if plan.status == "changes"}
    (branch,) = [line for line in lines(plans) if line.what == "branch"]
    assert branch.value.endswith(" for these GPUs and their CUDA") and branch.hosts == list(plans)


def test_what_goes_is_red():
    packages = [
        PackageChange(action="downgrade", name="libx", version="1", from_version="2"),
        PackageChange(action="remove", name="old", from_version="1"),
        PackageChange(action="install", name="new", version="1"),
    ]
    step = Step(id="packages", title="install", because="x", sign="~", what="driver", value="2 -> 1")
    restart = Step(id="restart", title="restart docker", because="x", sign="!", what="restart", value="docker")
    plan = HostPlan(
        host="a", status="changes", steps=[step, restart], packages=packages, reboot=Reboot(needed=True, because=["y"])
    )
    document = PlanDocument(hosts={"a": plan})
    printed = shown(document, colour=True)
    red = re.findall(r"\x1b\[1;31m([^\x1b]*)", printed)
    assert {"1 downgraded", "1 removed", "libx", "old; replaced"} <= {part.strip() for part in red}
    assert "+" not in red and re.search(r"\x1b\[1;33m *!", printed)
    plain = shown(document).splitlines()
    assert plain[-4:-1] == [
        "  ! 1 reboot: a; by apply, only while no process uses the GPUs",
        "  ! driver down: a; new GPU programs fail until the reboot",
        "  ! restart docker: a",
    ]


def test_all_reasons_and_packages_are_there_on_request(documents):
    printed = " ".join(shown(documents["unlike"], verbosity=1).split())
    for plan in documents["unlike"].hosts.values():
        for reason in plan.decisions:
            assert " ".join(f"{reason.value}: {reason.because}".split()) in printed
        for change in plan.packages:
            assert change.name in printed


def test_contents_of_files_are_those_that_the_steps_name(documents):
    document = documents["unlike"]
    console = Console(file=io.StringIO(), width=200)
    for thing in plan_files.view(document):
        console.print(thing)
    printed = console.file.getvalue()
    named = {
        path
        for plan in document.hosts.values()
        for step in plan.steps
        for line in step.details
        for path in re.findall(r"^write (/\S+)", line)
    }
    assert named and set(re.findall(r"^\+ (/\S+)", printed, re.MULTILINE)) == named
    assert "    blacklist nouveau\n" in printed


def test_a_password_of_a_proxy_is_in_no_contents():
    text = 'Acquire::http::Proxy "http://user:geheim@proxy.test:3128";\n'
    step = Step(id="sources", title="t", because="b", details=[f"write {apt_files.PROXY}: p"])
    spec = {"apt": {"configure": {"proxy": text}}}
    plan = HostPlan(host="a", status="changes", steps=[step], spec=spec)
    found = "".join(one.text or "" for one in contents(plan))
    assert "proxy.test" in found and "geheim" not in found


def test_markdown_is_a_table_and_a_host_writes_no_markup():
    step = Step(id="packages", title="t", because="b", sign="-", what="driver", value="<script>|`x`|</script>")
    plan = HostPlan(host="a|b", status="changes", gpus=["1 x *bold*"], steps=[step])
    document = PlanDocument(hosts={"a|b": plan, "c": plan.model_copy(update={"host": "c", "status": "converged"})})
    text = "\n".join(plan_markdown.view(document))
    assert "| **remove** | driver | \\<script\\>\\|\\`x\\`\\|\\</script\\> | a\\|b |" in text
    assert "1 x \\*bold\\*" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3, 5}


def test_a_typo_at_the_question_asks_again(monkeypatch):
    made = Renderer()
    made.err = Console(file=io.StringIO(), width=80)
    for typed, answer in (("yse\nyes\n", True), ("\n", False), ("q\nn\n", False), ("", False), ("Y\n", True)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert made.confirm("Change 1 host?") is answer
