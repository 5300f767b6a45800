"""What people see: small terminals, no colour where none is wanted, nothing from a host that steers the terminal."""

import errno
import io
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from provision.cli.schemas import MODELS
from provision.documents import ApplyDocument, Document, PlanDocument, ScanDocument, ScannedHost, VerifyDocument
from provision.errors import Exit, Issue
from provision.parts.plan import HostPlan, PackageChange, Reason, Step
from provision.render import Progress, Renderer, size
from provision.render.text import format_hosts
from provision.rescue.model import RescueDocument

LONG = "a reason that goes on for quite some time so that it has to be folded on every small terminal " * 2

SCAN = ScanDocument(
    hosts={
        "gpu-node-01.rack-7.example.org": ScannedHost(
            status="ok", gpus=["8 x H100 SXM5 80GB"], driver="580.126.20 open", summary="12 held; reboot pending"
        ),
        "gpu02": ScannedHost(status="unreachable", summary=LONG),
    }
)
PLAN = PlanDocument(
    hosts={
        "gpu01": HostPlan(
            host="gpu01",
            status="changes",
            gpus=["8 x H100 SXM5 80GB"],
            summary="driver 580.126.20 open, " + LONG,
            decisions=[Reason(what="branch", value="580", because=LONG)],
            steps=[Step(id="packages", title="Install", because=LONG, details=[LONG])],
            packages=[
                PackageChange(action="install", name="linux-modules-nvidia-580-open-6.8.0-48-generic", version="6.8.0")
            ],
            warnings=[Issue(code="w", message=LONG, hint=LONG)],
        )
    }
)
VERIFY = VerifyDocument.model_validate(
    {
        "hosts": {
            "gpu01": {
                "status": "fail",
                "checks": [
                    {"id": "driver.versions", "status": "fail", "message": LONG, "evidence": [LONG], "hint": LONG}
                ],
            }
        }
    }
)
APPLY = ApplyDocument.model_validate(
    {"hosts": {"gpu01": {"status": "done", "summary": LONG, "changed": [LONG]}}, "run_dir": "/x/" + "y" * 30}
)


def renderer(width, terminal=False):
    made = Renderer()
    made.out = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        color_system="standard" if terminal else None,
    )
    made.err = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        color_system="standard" if terminal else None,
    )
    return made


def text_of(console):
    return console.file.getvalue()


def bare(printed):
    """What is left without the colours and movements of our own."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)


@pytest.mark.parametrize("document", [SCAN, PLAN, VERIFY, APPLY], ids=["scan", "plan", "verify", "apply"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(document, width):
    made = renderer(width)
    made.show(document)
    printed = text_of(made.out)
    assert max(len(line) for line in printed.splitlines()) <= width
    squeezed = "".join(printed.split())
    for name in document.hosts:
        assert name in squeezed
    assert "..." not in printed


def test_errors_are_folded_on_a_terminal_and_whole_in_a_pipe():
    issue = Issue(code="x", host="gpu01", message=LONG.strip(), because=[LONG.strip()], hint=LONG.strip())
    made = renderer(60)
    made.issue(issue)
    assert [line.split(":")[0].strip() for line in text_of(made.err).splitlines()] == ["error", "because", "hint"]
    made = renderer(60, terminal=True)
    made.issue(issue)
    assert max(len(line) for line in bare(text_of(made.err)).splitlines()) <= 60


def test_a_host_does_not_steer_the_terminal():
    made = renderer(100)
    bad = "\x1b]0;title\x07\x1b[2Jevil\x1b[31m [bold]not markup[/bold]\r\x9b31m"
    made.issue(Issue(code="x", host="gpu01", message=bad, because=[bad], hint=bad))
    made.show(ScanDocument(hosts={"gpu01": ScannedHost(status="ok", summary=bad, driver=bad)}))
    printed = text_of(made.err) + text_of(made.out)
    assert not set("\x1b\x07\r\x9b") & set(printed)
    assert "[bold]not markup[/bold]" in printed


def test_no_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    made = renderer(80)
    made.err = console
    made.issue(Issue(code="x", message="m"))
    assert "\x1b[31" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (310_000_000, "310 MB"), (2_340_000_000, "2.3 GB")],
)
def test_sizes(count, text):
    assert size(count) == text


def test_progress_on_a_terminal_leaves_nothing_behind():
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=12)
    progress = Progress(console)
    progress.begin("applying", [f"gpu{n:02d}" for n in range(40)])
    progress.host("gpu00", "Install packages " * 10)
    progress.host("gpu01", "broke", state="failed")
    console.print(progress._picture())
    progress.end()
    printed = console.file.getvalue()
    assert re.search(r"gpu00 +0 s +Install", bare(printed)), "a long text does not eat the name"
    assert "gpu01" in printed
    assert "... and" in printed
    assert "gpu01: failed: broke" in bare(printed), "a failure stays on the screen"
    assert printed.count("\x1b[?25l") == printed.count("\x1b[?25h"), "the cursor is shown again"


def test_progress_tells_how_far_a_task_is(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=12)
    progress, clock = Progress(console), SimpleNamespace(now=100.0)
    monkeypatch.setattr("provision.render.progress.time", SimpleNamespace(monotonic=lambda: clock.now))
    progress.begin("applying", ["gpu01", "gpu02", "gpu03"])
    for name in ("gpu01", "gpu02"):
        progress.host(name, "Change packages")
    progress.host("gpu02", "Change packages: no space", state="failed")
    clock.now += 7
    for name in ("gpu01", "gpu02", "gpu03"):
        progress.host(name, "unpacking x (44 %)", state="step")
    with console.capture() as capture:
        console.print(progress._picture())
    progress.end()
    shown = bare(capture.get())
    assert re.search(r"gpu01 +7 s +unpacking x \(44 %\)", shown), "the seconds are those of the task"
    assert re.search(r"gpu02 +Change packages: no space", shown), (
        "what has ended counts no seconds and keeps its reason"
    )
    assert re.search(r"gpu03 +waiting", shown)
    assert not Progress(Console(file=io.StringIO())).live and not Progress(console, silent=True).live and progress.live


class Closed(io.StringIO):
    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_goes_on_without_its_terminal(terminal):
    progress = Progress(Console(file=io.StringIO(), force_terminal=terminal, width=60))
    progress.begin("applying", ["gpu01"])
    progress._console.file = Closed()
    progress.host("gpu01", "broke", state="failed")
    progress.host("gpu01", "Install", state="changed")
    progress.end()


def test_progress_in_a_pipe_is_a_line_an_event():
    console = Console(file=io.StringIO(), width=60)
    progress = Progress(console)
    progress.begin("applying", ["gpu01"])
    progress.host("gpu01", "Ask")
    progress.host("gpu01", "gpu.provision.nvidia_driver : Install", state="changed")
    progress.host("gpu01", "broke", state="failed")
    progress.end()
    assert console.file.getvalue() == "applying: 1 host\ngpu01: done: Install\ngpu01: failed: broke\n"


COMMANDS = (
    "catalog catalog-update compat init scan envs plan apply verify diagnose dossier explain rescue offline drift locked history "
    "mirror report error"
)


def fitting(schemas, data):
    return [name for name, validator in schemas.items() if validator.is_valid(data)]


def test_a_document_fits_one_schema_and_a_wrong_one_none(schemas):
    """What the commands' own tests print is held against the schemas too: documents_fit in tests/conftest.py."""
    assert set(schemas) == {f"provision/{word}/1" for word in COMMANDS.split()}
    assert fitting(schemas, {}) == []
    for model in MODELS:
        if any(field.is_required() for field in model.model_fields.values()):
            continue
        data = json.loads(model().to_json())
        assert fitting(schemas, data) == [data["schema"]]
        for name in data:
            assert fitting(schemas, {key: value for key, value in data.items() if key != name}) == [], name
        for wrong in ({"schema": "nonsense/9"}, {"more": 1}, {"exit_code": "zero"}, {"errors": [{"code": "a.b"}]}):
            assert fitting(schemas, data | wrong) == [], wrong


@pytest.mark.parametrize(
    ("codes", "want"),
    [
        ([], 0),
        ([Exit.OK], 0),
        ([Exit.CHANGES, Exit.UNREACHABLE, Exit.FAILED], 4),
        ([Exit.REFUSED, Exit.CHECK_FAILED], 5),
        ([Exit.REBOOT_NEEDED, Exit.CHANGES], 6),
        ([Exit.USAGE, Exit.UNREACHABLE], 64),
    ],
)
def test_conclusion(codes, want):
    document = Document().conclude(codes)
    assert (document.exit_code, document.ok) == (want, want == 0)


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["gpu01"], "gpu01"),
        (["gpu01", "gpu02"], "gpu01, gpu02 (2 hosts)"),
        (["gpu01", "gpu02", "gpu03", "gpu07"], "gpu01 to gpu03, gpu07 (4 hosts)"),
        ([f"n{n}.example.org" for n in range(8, 12)], "n8.example.org to n11.example.org (4 hosts)"),
        ([f"{c}1" for c in "abcdefghij"], "a1, b1, c1, d1, e1, f1 and 4 more (10 hosts)"),
    ],
)
def test_hosts_in_words(names, told):
    assert format_hosts(names) == told


def test_forty_hosts_do_not_scroll_for_pages():
    wanted = {
        f"gpu{n:02d}": HostPlan(host=f"gpu{n:02d}", status="converged", gpus=["8 x H100"], summary="driver 580.126.20")
        for n in range(1, 39)
    }
    down = Issue(code="connect.refused", message="gpu39: port 22 refuses", because=["10.0.0.39:22"], hint="is it up?")
    broken = {
        name: HostPlan(
            host=name,
            status="unreachable",
            blockers=[
                down.model_copy(update={"host": name, "message": f"{name}: port 22 refuses", "because": [address]})
            ],
        )
        for name, address in (("gpu39", "10.0.0.39:22"), ("gpu40", "10.0.0.40:22"))
    }
    made = renderer(80)
    made.document(
        PlanDocument(hosts=wanted | broken, errors=[issue for plan in broken.values() for issue in plan.blockers])
    )
    assert text_of(made.out).splitlines() == [
        "gpu01 to gpu38 (38 hosts)  as requested  8 x H100; driver 580.126.20",
        "gpu39, gpu40 (2 hosts)  unreachable  HOST: port 22 refuses",
        "plan: 40 hosts: 38 as requested, 2 unreachable",
    ]
    assert text_of(made.err).splitlines() == [
        "error: gpu39, gpu40 (2 hosts): HOST: port 22 refuses",
        "  because: HOST:22",
        "  hint: is it up?",
    ]


def test_failed_checks_are_told_once():
    document = VERIFY.model_copy(deep=True)
    document.errors = [Issue(code="check.driver.versions", host="gpu01", message="m", because=["b"], hint="h")]
    made = renderer(80)
    made.document(document)
    assert "fail  driver.versions" in text_of(made.out)
    assert text_of(made.err).startswith("error: gpu01: 1 check failed: driver.versions\n  hint: docs/checks.md")


def test_packages_stand_with_the_step_that_they_belong_to():
    plan = HostPlan(
        host="gpu01",
        status="changes",
        steps=[
            Step(id="packages", title="install driver 580.2", because="none is there"),
            Step(id="packages", part="cuda", title="install CUDA 12.4", because="listed"),
            Step(
                id="packages",
                part="cuda",
                title="remove CUDA 11.8",
                because="not listed",
                details=["cuda-nvcc-11-8"],
                sign="-",
            ),
        ],
        packages=[
            PackageChange(action="install", name="nvidia-utils-580", version="580.2-1"),
            PackageChange(
                action="install",
                name="cuda-nvcc-12-4",
                version="12.4.131-1",
                part="cuda",
                group="CUDA 12.4",
                download_bytes=5_000_000,
            ),
            PackageChange(
                action="install", name="libcublas-12-4", version="12.4.5.8-1", part="cuda", group="CUDA 12.4"
            ),
            PackageChange(
                action="remove", name="cuda-nvcc-11-8", from_version="11.8.89-1", part="cuda", group="CUDA 11.8"
            ),
        ],
    )
    made = renderer(80)
    made.show(PlanDocument(hosts={"gpu01": plan}))
    assert text_of(made.out).splitlines()[1:4] == [
        "  ~  driver  install driver 580.2: none is there  1 new",
        "  ~  cuda    install CUDA 12.4: listed  2 new",
        "  -  cuda    remove CUDA 11.8: not listed  1 removed",
    ]
    assert "facts of" not in text_of(made.out)
    made = renderer(80)
    made.verbosity = 1
    made.show(PlanDocument(hosts={"gpu01": plan}, catalog="2026-11-29"))
    assert "facts of 2026-11-29" in text_of(made.out)
    assert text_of(made.out).splitlines()[1:11] == [
        "  ~ install driver 580.2: none is there",
        "    1 new",
        "    new  580.2-1  nvidia-utils-580",
        "  ~ install CUDA 12.4: listed",
        "    2 new, 5.0 MB to download",
        "    new  12.4.131-1  cuda-nvcc-12-4",
        "         12.4.5.8-1  libcublas-12-4",
        "  - remove CUDA 11.8: not listed",
        "    1 removed",
        "    removed  11.8.89-1  cuda-nvcc-11-8",
    ]


def test_packages_stand_together_by_what_happens_and_version():
    plan = HostPlan(
        host="gpu01",
        status="changes",
        packages=[
            PackageChange(action="remove", name="old-a", from_version="550.1"),
            PackageChange(action="install", name="new-a", version="580.2", download_bytes=310_000_000),
            PackageChange(action="upgrade", name="moved", version="2", from_version="1"),
            PackageChange(action="install", name="new-b", version="580.2"),
        ],
    )
    made = renderer(80)
    made.verbosity = 1
    made.show(PlanDocument(hosts={"gpu01": plan}))
    assert text_of(made.out).splitlines()[1:5] == [
        "  2 new, 1 upgraded, 1 removed, 310 MB to download",
        "    new       580.2  new-a, new-b",
        "    upgraded  1 -> 2  moved",
        "    removed   550.1  old-a",
    ]


def test_a_warning_tells_its_reason():
    trouble = Issue(code="w", message="595.58.03 has a known fault", because=["suspend crash"], hint="h")
    plan = HostPlan(host="gpu01", status="converged", summary="driver 595.58.03", warnings=[trouble])
    made = renderer(80)
    made.show(PlanDocument(hosts={"gpu01": plan}))
    assert "warning: 595.58.03 has a known fault: suspend crash\n  hint: h\n" in text_of(made.out)


def test_no_blanks_at_the_ends_of_lines():
    made = renderer(60)
    for document in (SCAN, PLAN, VERIFY, APPLY):
        made.show(document)
    assert not re.search(r"[ \t]$", text_of(made.out), re.MULTILINE)


BROKEN = "libnvidia-ml.so.1 cannot be loaded: OSError: file too short"
USED = "card 0 is not loaded: python3 (pid 7, ann) uses it"
LEFT = "left out (gpu_verify_skip: container.run)"


def checked(*unproven, status="skip"):
    """A check that passes, one that warns, and others: (name, why it was not run)."""
    good = [{"id": "gpu.bus", "status": "pass", "message": "1"}, {"id": "gpu.xid", "status": "warn", "message": "x"}]
    return [*good, *({"id": name, "status": status, "message": why, "not_run": [why]} for name, why in unproven)]


def test_apply_ends_with_what_is_proven_and_what_was_not_run():
    used = checked(("gpu.compute", USED), ("gpu.nccl", USED), ("container.run", LEFT))
    one = {"gpu01": {"status": "done", "checks": used}}
    more = {**one, "gpu02": {"status": "done", "checks": checked()}, "gpu03": {"status": "unreachable"}}
    made = renderer(400)
    for hosts in (one, more, {"gpu03": {"status": "unreachable"}}):
        made.show(ApplyDocument.model_validate({"hosts": hosts}))
    first, second, third, fourth, last = [
        line for line in text_of(made.out).splitlines() if line[:5] in ("apply", "prove")
    ]
    assert first == "apply: 1 host: 1 done, not all of it proven"
    assert second == f"proven: 1 check; not run: gpu.compute, gpu.nccl ({USED}); container.run ({LEFT})"
    assert third == "apply: 3 hosts: 1 done and proven, 1 done, not all of it proven, 1 unreachable"
    assert (
        fourth == f"proven: 2 checks; not run: gpu.compute, gpu.nccl on gpu01 ({USED}); container.run on gpu01 ({LEFT})"
    )
    assert last == "apply: 1 host: 1 unreachable"


def test_what_was_not_run_for_one_reason_is_said_once_for_all_hosts():
    found = {"gpu01": ("gpu.compute", "gpu.p2p"), "gpu02": ("gpu.compute", "gpu.nccl"), "gpu03": ("gpu.compute",)}
    hosts = {
        name: {"status": "done", "checks": checked(*((code, USED) for code in codes))} for name, codes in found.items()
    }
    made = renderer(400)
    made.show(ApplyDocument.model_validate({"hosts": hosts}))
    (line,) = [line for line in text_of(made.out).splitlines() if line.startswith("proven")]
    assert line == f"proven: 3 checks; not run: gpu.compute; gpu.p2p on gpu01; gpu.nccl on gpu02 ({USED})"


def test_rescue_ends_with_what_is_proven_and_what_was_not_run():
    host = {"status": "rescued", "checks": checked(("gpu.compute", USED))}
    made = renderer(200)
    made.show(RescueDocument.model_validate({"hosts": {"gpu01": host}}))
    assert text_of(made.out).splitlines()[-2:] == [
        "rescue: 1 host: 1 rescued, not all of it proven",
        f"proven: 1 check; not run: gpu.compute ({USED})",
    ]


def test_checks_that_fail_for_one_reason_are_one_line():
    checks = [{"id": name, "status": "fail", "message": BROKEN, "hint": "h"} for name in ("gpu.count", "gpu.compute")]
    partly = {"id": "gpu.nccl", "status": "pass", "message": "right", "not_run": [USED]}
    made = renderer(200)
    made.show(VerifyDocument.model_validate({"hosts": {"gpu01": {"status": "fail", "checks": [*checks, partly]}}}))
    shown = text_of(made.out)
    assert f"  fail  gpu.count, gpu.compute  {BROKEN}\n        hint: h\n" in shown
    assert f"  pass  gpu.nccl  right\n        not run: {USED}\n" in shown


def test_a_host_that_is_well_is_one_line_and_the_list_is_there_on_request():
    checks = [{"id": f"driver.c{n}", "status": "pass", "message": f"m{n}"} for n in range(40)]
    done = {"status": "done", "summary": "driver 580", "changed": ["Make it so"], "checks": [*checks, *checked()]}
    hosts = {f"gpu{n:02d}": done for n in range(1, 41)}
    made = renderer(100)
    made.show(ApplyDocument.model_validate({"hosts": hosts, "seconds": 9}))
    assert text_of(made.out).splitlines() == [
        "gpu01 to gpu40 (40 hosts)  done  driver 580",
        "  warn  gpu.xid  x",
        "apply: 40 hosts in 9 s: 40 done and proven",
        "proven: 1640 checks",
    ]
    made = renderer(100)
    made.show(VerifyDocument.model_validate({"hosts": {"gpu01": {"status": "pass", "checks": checks}}}))
    assert text_of(made.out).splitlines() == [
        "gpu01  pass  checks: 40 pass",
        "verify: 1 host: 1 passed",
        "-v lists every check with its evidence",
    ]
    made = renderer(100)
    made.verbosity = 1
    made.show(ApplyDocument.model_validate({"hosts": hosts}))
    assert "Make it so" in text_of(made.out) and "driver.c39" in text_of(made.out)


def test_what_is_said_at_the_end_is_on_one_line_in_a_narrow_terminal():
    made = renderer(40, terminal=True)
    command = "next: provision -i /srv/inventories/lab/hosts.yml -l gpu01,gpu02,gpu03 -e nvidia_driver_update=true plan"
    made.say(command)
    assert bare(text_of(made.err)) == f"{command}\n"
