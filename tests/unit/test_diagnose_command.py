"""The command diagnose: documents, exit codes, what people see; --explain and --text without a host."""

import io
import json
import re
import sys

import pytest

from provision import cli
from provision.catalog import load_catalog
from provision.commands import diagnose as command
from provision.diagnose import pages
from provision.errors import Exit, HostFailedError, UnreachableError, UsageError
from provision.inventory import Host, Inventory, variables
from provision.render import Renderer
from provision.runs.fleet import Fleet
from tests.unit import brokenhosts

HOSTS, CASES = brokenhosts.load("diagnose_boot")
WELL = {"tree": {"kernels": ["6.8.0-45-generic"]}}


def facts(name, tmp_path):
    case = next(case for case in CASES if case["name"].startswith(name)) if isinstance(name, str) else name
    return brokenhosts.facts_of(case, HOSTS, tmp_path).model_dump(mode="json")


def run(monkeypatch, answers):
    """command.run over hosts that answer so: facts, or an error."""
    hosts = [Host(name=name, vars={}, groups=[]) for name in answers]
    fleet = Fleet(
        Inventory(hosts=hosts, sources=[], warnings=[]), {name: brokenhosts.values_of({}) for name in answers}
    )
    asked = []

    class Session:
        def __init__(self, name):
            self.name = name

        def call(self, module, args, *, timeout=60):
            asked.append((self.name, module))
            return answers[self.name]

    def ask_all(fleet, hosts, title, ask, talk, **more):
        return {
            host.name: answers[host.name]
            if isinstance(answers[host.name], Exception)
            else ask(host, Session(host.name))
            for host in hosts
        }

    monkeypatch.setattr(command, "ask_all", ask_all)
    document = command.run(fleet, options=["-i", "my hosts.yml"])
    reached = [name for name, answer in answers.items() if not isinstance(answer, Exception)]
    assert asked == [(name, "probe.diagnostics") for name in reached], "one round trip a host"
    return document


def shown(document, verbosity=0, monkeypatch=None, width=140):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", str(width))
    Renderer(verbosity=verbosity).document(document)
    return out.getvalue(), err.getvalue()


def test_each_host_gets_its_own_answer_and_the_gravest_code_wins(monkeypatch, tmp_path):
    document = run(
        monkeypatch,
        {
            "well": facts(WELL, tmp_path / "a"),
            "broken": facts("A2 a minor", tmp_path / "b"),
            "odd": facts("nothing explains it", tmp_path / "c"),
            "warned": facts("R1 persistence mode from cron", tmp_path / "d"),
            "far": UnreachableError("ssh.timeout", "no answer", host="far"),
            "ill": HostFailedError("remote.failed", "no Python", host="ill"),
        },
    )
    assert {name: host.status for name, host in document.hosts.items()} == {
        "well": "well",
        "broken": "broken",
        "odd": "unexplained",
        "warned": "warned",
        "far": "unreachable",
        "ill": "failed",
    }
    assert document.exit_code == Exit.UNREACHABLE and not document.ok
    assert [(issue.code, issue.host) for issue in document.errors] == [
        ("driver.stale_module", "broken"),
        ("diagnose.unexplained", "odd"),
        ("ssh.timeout", "far"),
        ("remote.failed", "ill"),
    ]
    assert all(issue.hint or issue.code.startswith(("ssh", "remote")) for issue in document.errors)
    assert json.loads(document.to_json())["schema"] == "provision/diagnose/1"


@pytest.mark.parametrize(
    ("name", "code"), [("A2 a minor", 3), (WELL, 0), ("R1 persistence mode from cron", 0), ("nothing explains", 3)]
)
def test_exit_codes(monkeypatch, tmp_path, name, code):
    assert run(monkeypatch, {"gpu01": facts(name, tmp_path)}).exit_code == code


def test_people_see_cause_evidence_repair_reboot_and_what_follows(monkeypatch, tmp_path):
    document = run(monkeypatch, {"gpu01": facts("D1 blocked", tmp_path)})
    out, err = shown(document, verbosity=1, monkeypatch=monkeypatch)
    assert err == "", "findings are told once"
    order = [
        "gpu01  broken",
        "error  nouveau.initramfs_stale",
        "/etc/modprobe.d/blacklist-nouveau.conf, line 1",
        "breaks",
        "repair",
        "update-initramfs",
        "then",
        "reboot",
        "yes",
        "prevent",
        "and so  driver.not_loaded",
        "and so  driver.smi_fails",
        "diagnose: 1 host: 1 broken",
        "to repair: provision -i 'my hosts.yml' rescue gpu01",
    ]
    at = [out.index(words) for words in order]
    assert at == sorted(at), out


def test_a_host_with_one_trouble_is_ten_lines(monkeypatch, tmp_path):
    counts = []
    monkeypatch.setattr(Renderer, "errors", lambda self, issues: None)
    for number, case in enumerate(CASES):
        facts = brokenhosts.facts_of(case, HOSTS, tmp_path / str(number))
        host = command.judged(facts, brokenhosts.values_of(case))
        if host.unknown or [found.level for found in host.findings if found.level != "note"] != ["error"]:
            continue
        document = command.DiagnoseDocument(hosts={"gpu01": host}, rescue="provision rescue gpu01")
        whole = shown(document, monkeypatch=monkeypatch, width=1000)[0].splitlines()
        assert len(whole) <= 10 and whole[-1] == "to repair: provision rescue gpu01", whole
        lines = shown(document, monkeypatch=monkeypatch, width=100)[0].splitlines()
        assert len(lines) <= 10, "\n".join(lines)
        counts.append(len(lines))
    # A few messages and repairs are long: they fold.
    assert len(counts) > 10 and sorted(counts)[len(counts) // 2] <= 9


def test_the_last_line_names_every_broken_host(monkeypatch, tmp_path):
    one, two = facts("A2 a minor", tmp_path / "a"), facts("D1 blocked", tmp_path / "b")
    well = facts(WELL, tmp_path / "c")
    out, _ = shown(run(monkeypatch, {"a": one, "b": well, "c": two, "d": one}), monkeypatch=monkeypatch)
    assert out.splitlines()[-1] == "to repair: provision -i 'my hosts.yml' rescue a c d"


def test_a_command_to_copy_is_on_one_line_in_a_narrow_terminal(monkeypatch, tmp_path):
    many = dict.fromkeys([f"gpu{number:02d}.cluster" for number in range(12)], facts("A2 a minor", tmp_path / "a"))
    out, _ = shown(run(monkeypatch, many), monkeypatch=monkeypatch, width=60)
    assert out.splitlines()[-1].endswith("gpu10.cluster gpu11.cluster") and max(map(len, out.splitlines()[:-1])) <= 60


def test_a_reboot_for_a_new_kernel_does_not_follow_from_a_stale_module(monkeypatch, tmp_path):
    told = facts("A2 a minor", tmp_path)
    told["reboot_required"] = {"required": True, "packages": ["linux-image-6.8.0-48-generic"]}
    out, _ = shown(run(monkeypatch, {"gpu01": told}), monkeypatch=monkeypatch)
    assert "also  reboot.pending" in out and "and so  driver.smi_fails" in out
    out, _ = shown(run(monkeypatch, {"gpu01": told}), verbosity=1, monkeypatch=monkeypatch)
    assert "    also    reboot.pending  linux-image-6.8.0-48-generic waits for a reboot" in out
    assert "and so  driver.smi_fails" in out and "and so  reboot.pending" not in out


def test_a_driver_without_a_module_is_a_driver(monkeypatch, tmp_path):
    told = facts("A2 a minor", tmp_path)
    told["module"] = {}
    host = run(monkeypatch, {"gpu01": told}).hosts["gpu01"]
    assert re.fullmatch(r"[0-9.]+ \(no module for the running kernel\)", host.driver)


def test_nothing_found_says_what_was_looked_at(monkeypatch, tmp_path):
    out, _ = shown(run(monkeypatch, {"gpu01": facts(WELL, tmp_path)}), monkeypatch=monkeypatch)
    assert "nothing found; checked:" in out and "no NVIDIA GPU on the bus" in out and "Secure Boot" in out


def test_unknown_is_said_to_be_unknown_with_all_that_was_looked_at(monkeypatch, tmp_path):
    document = run(monkeypatch, {"gpu01": facts("nothing explains", tmp_path)})
    out, _ = shown(document, monkeypatch=monkeypatch)
    assert "unknown  nvidia-smi fails" in out and "more (-v)" in out and len(out.splitlines()) <= 10, out
    out, _ = shown(document, verbosity=1, monkeypatch=monkeypatch)
    for words in (
        "unknown  nvidia-smi fails",
        "looked at",
        "loaded module: 580.126.20",
        "kernel log",
        "device nodes",
        "packages:",
    ):
        assert words in out, out


def test_what_could_not_be_read_is_told(monkeypatch, tmp_path):
    answer = {**facts(WELL, tmp_path), "unreadable": [f"/etc/{n}" for n in range(8)]}
    out, _ = shown(run(monkeypatch, {"gpu01": answer}), monkeypatch=monkeypatch)
    assert "not read" in out and "/etc/4" in out and "/etc/5" not in out and "3 more" in out
    out, _ = shown(run(monkeypatch, {"gpu01": answer}), verbosity=1, monkeypatch=monkeypatch)
    assert "/etc/7" in out


def test_hosts_with_the_same_trouble_are_told_once(monkeypatch, tmp_path):
    one = facts("A2 a minor", tmp_path)
    out, _ = shown(run(monkeypatch, {f"gpu{n:02}": one for n in range(1, 9)}), monkeypatch=monkeypatch)
    assert "gpu01 to gpu08 (8 hosts)" in out and out.count("driver.stale_module  ") == 1


def test_a_host_cannot_steer_the_terminal(monkeypatch, tmp_path):
    case = {
        **next(c for c in CASES if c["name"].startswith("nothing explains it")),
        "smi": {"rc": 255, "err": "\x1b[2Jboom\x07\n"},
    }
    out, _ = shown(run(monkeypatch, {"gpu01": facts(case, tmp_path)}), monkeypatch=monkeypatch)
    assert "\x1b" not in out and "\x07" not in out and "boom" in out


@pytest.mark.parametrize("code", pages.codes())
def test_every_code_is_explained(code, monkeypatch):
    document = command.explain(code)
    assert document.exit_code == 0 and [page.code for page in document.pages] == [code]
    out, _ = shown(document, monkeypatch=monkeypatch)
    assert code in out and "repair" in out


def test_a_text_and_its_exit_codes(monkeypatch):
    found = command.by_text("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x1a:2631)")
    assert found.exit_code == 0 and found.pages[0].code == "gpus.init_failed" and "RmInitAdapter" in found.pages[0].line
    none = command.by_text("all is well")
    assert none.exit_code == 3 and not none.pages and none.errors[0].hint
    assert command.by_text("  \n").errors[0].message == "the text is empty"


@pytest.mark.parametrize("trap", [t for t in load_catalog().traps if t.kind == "error"], ids=lambda trap: trap.id)
def test_what_the_catalog_knows_by_its_text_is_found(trap):
    for words in (trap.match, *trap.also):
        if len(words) >= 18:
            assert command.by_text(f"x: {words}\n").pages, words
    assert command.explain(f"trap.{trap.id}").pages[0].repair == trap.fix


def test_a_finding_goes_before_an_error_that_is_known_by_its_text_alone():
    pages = command.by_text("Failed to initialize NVML: Driver/library version mismatch").pages
    assert [page.code for page in pages][0] == "driver.stale_module"
    assert "trap.nvml_version_mismatch" in [page.code for page in pages]


def typed(*words, stdin=None, monkeypatch=None, capsys=None):
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    code = cli.run(["diagnose", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_line_needs_no_inventory_for_a_code_or_a_text(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, _ = typed("--explain", "kernel.headers_missing", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0 and "kernel.headers_missing" in out
    code, out, err = typed("--explain", "kernel.header_missing", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 64 and not out and "kernel.headers_missing" in err and "hint:" in err
    code, out, _ = typed("--text", "RmInitAdapter failed", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0 and "gpus.init_failed" in out
    code, out, _ = typed(
        "--text",
        "-",
        "--json",
        stdin=b"\xff\xfe\nNVRM: API mismatch: the client\n",
        monkeypatch=monkeypatch,
        capsys=capsys,
    )
    assert code == 0 and json.loads(out)["pages"][0]["code"] == "driver.stale_module"
    code, out, err = typed("--text", "x", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 3 and not out and "no finding knows this text" in err
    code, _, err = typed("--text", "x", "--explain", "y", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 64 and "different questions" in err


def test_a_mistyped_code_is_wrong_usage():
    with pytest.raises(UsageError):
        command.explain("no.such")


def test_words_of_rules_name_variables_and_commands_that_exist():
    known = variables.known()
    for page in pages.all_pages():
        text = " ".join([page.explain, page.breaks, page.repair, page.prevent])
        for name in re.findall(
            r"\b((?:nvidia_driver|gpu_verify|cuda_toolkit|container_toolkit|miniconda)_[a-z_]*[a-z])\b", text
        ):
            assert name in known, f"{page.code}: {name}"
        for word in re.findall(r"`provision (\w+)", text):
            assert word in {info.name or info.callback.__name__ for info in cli.app.registered_commands}, (
                f"{page.code}: {word}"
            )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--explain", "nouveau"], "its codes are nouveau.initramfs_stale, nouveau.not_blocked"),
        (["--explain", "driver.stale_modul"], "did you mean driver.stale_module"),
        (["--explain", "all"], "an area lists its codes: --explain apt"),
        (["--explain", ""], "an area lists its codes"),
        (["gpu01", "gpu02"], "provision diagnose -l gpu01,gpu02"),
    ],
)
def test_what_was_meant_is_told(words, hint, capsys):
    assert cli.run(["diagnose", *words]) == 64
    assert hint in " ".join(capsys.readouterr().err.split())
