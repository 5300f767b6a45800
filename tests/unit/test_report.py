"""report: one read of each host, what becomes of it, the page as text, and the command."""

import hashlib
import json
import re
from base64 import b64encode
from html.parser import HTMLParser

import pytest

from provision import cli
from provision.cli import report as cli_report
from provision.cli import serving
from provision.commands import report
from provision.diagnose.security import held_security_updates
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.lock.model import NAME, LockError
from provision.render import report as page
from tests.unit import reports
from tests.unit.fakefleet import fake_fleet
from tests.unit.fleethosts import changed, healthy


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text without style and script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.inside = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        self.text += "" if self.inside in ("style", "script") else data


@pytest.fixture
def fleet(monkeypatch, tmp_path):
    return reports.document(monkeypatch, tmp_path, 38)


# ---- the document ------------------------------------------------------------------------------------------------------


def test_each_host_is_read_once_and_all_commands_speak_of_it(monkeypatch, tmp_path):
    facts = {f"gpu{number:02d}": healthy(f"gpu{number:02d}") for number in range(1, 4)}
    facts["gpu02"] = changed(facts["gpu02"], {"containers/docker": {"version": "29.9"}, "gpus/0/pcie": {"width": 8}})
    fleet, asked = fake_fleet(monkeypatch, tmp_path, facts, reports.answer)
    document = report.run(fleet, tmp_path / "runs")
    assert sorted(asked) == sorted((name, program) for name in facts for program in ("probe.diagnostics", "run.record"))
    host = document.hosts["gpu02"]
    assert host.scan.driver == "580.142 open" and not hasattr(host.scan, "facts")
    assert [item.code for item in host.drift.items] == ["hardware.peers"]
    assert host.history.runs[0].run == reports.RUN and host.verify.checks and host.diagnose.driver
    assert document.created and document.exit_code == 0


def test_states_come_from_what_the_commands_say(fleet):
    odd = {name: host.status for name, host in fleet.hosts.items() if host.status != "ok"}
    assert odd == {
        "gpu03": "unreachable",
        "gpu10": "broken",
        "gpu17": "drifted",
        "gpu24": "failed",
        "gpu31": "drifted",
        "gpu38": "broken",
    }
    assert fleet.exit_code == 4 and [issue.host for issue in fleet.errors] == ["gpu03", "gpu24"]
    json.loads(fleet.to_json())


def test_a_lock_that_cannot_be_used_is_said_before_any_host_is_asked(monkeypatch, tmp_path):
    (tmp_path / NAME).write_text("schema: [")
    fleet, asked = fake_fleet(monkeypatch, tmp_path, {"gpu01": healthy()})
    with pytest.raises(LockError):
        report.run(fleet, None)
    assert asked == []


@pytest.mark.parametrize("lock", [{}, {"held": "x"}])
def test_a_host_that_answers_nonsense_fails_alone(monkeypatch, tmp_path, lock):
    def answer(program, args):
        return {"runs": [3], "unreadable": [7], "lock": lock}

    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu01": healthy("gpu01")}, answer)
    document = report.run(fleet, tmp_path)
    assert document.hosts["gpu01"].status == "failed" and document.errors[0].code == "host.bad_answer"


# ---- security updates that holds keep away -----------------------------------------------------------------------------

DRIVER = "libnvidia-compute-580"
SECURITY = {"uri": "http://a/ubuntu", "suite": "noble-security", "file": "/etc/apt/a", "prefix": "s", "there": True}


def updates(offers, lists=(SECURITY,), status="hi", version="580.142-0ubuntu0.24.04.1"):
    facts = Diagnosed.model_validate(
        {
            "packages": {DRIVER: {"version": version, "status": status}},
            "trouble": {"apt": {"lists": list(lists), "offers": offers}},
        }
    )
    return held_security_updates(facts)


def offer(version, prefix="s", name=DRIVER):
    return {"name": name, "version": version, "list": prefix}


def test_a_newer_version_in_a_list_of_security_updates_is_held_away():
    (found,) = updates([offer("580.159-0ubuntu0.24.04.1"), offer("999", "other")])
    assert (found.package, found.available, found.suite) == (DRIVER, "580.159-0ubuntu0.24.04.1", "noble-security")


@pytest.mark.parametrize(
    "more",
    [
        {"offers": [offer("580.95-0ubuntu0.24.04.1")]},
        {"offers": [offer("580.142-0ubuntu0.24.04.1")]},
        {"offers": [offer("999")], "status": "ii"},
        {"offers": [offer("999")], "status": "hn"},
        {"offers": [offer("999", name="libcudnn9")]},
    ],
)
def test_what_is_no_security_update_that_a_hold_keeps_away(more):
    assert updates(**more) == []


def test_a_version_that_dpkg_would_refuse_is_no_defect_of_ours():
    assert updates([offer("x:y"), offer("580.142:7")]) is not None


@pytest.mark.parametrize("row", [{"suite": "noble-updates"}, {"there": False}])
def test_without_a_list_of_security_updates_nothing_is_known(row):
    assert updates([offer("999")], [{**SECURITY, **row}]) is None
    assert held_security_updates(Facts()) is None


# ---- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_has_a_tile_for_each_host_and_says_all_of_them(fleet):
    text = page.html(fleet)
    read = Page(text)
    tiles = [
        attributes["class"] for tag, attributes in read.tags if tag == "li" and attributes.get("id", "").startswith("h")
    ]
    assert len(tiles) == 38 and tiles == sorted(tiles, key=report.STATUSES.index)
    for words in (
        "Driver 580.142 open",
        "Proven 2026-11-28 10:01: 34 passed",
        "1 held security update",
        "provision -i hosts.yml rescue gpu10",
        "nobody answers on port 22",
        "PCIe width: x8",
        "driver 580.95.05 to 580.142",
    ):
        assert words in read.text, words
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    links = [attributes["href"][1:] for tag, attributes in read.tags if tag == "a"]
    assert len(ids) == len(set(ids)) and set(links) <= set(ids)
    assert "about-secureboot.key_not_enrolled" in links


def test_nothing_but_its_own_style_and_script_may_run(fleet):
    for live in ("", "1"):
        text = page.html(fleet, live)
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
        for tag, directive in (("style", "style-src"), ("script", "script-src")):
            (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{directive} 'sha256-{digest}'" in policy
        assert policy.startswith("default-src 'none';") and ("connect-src" in policy) is bool(live)
        for tag, attributes in Page(text).tags:
            assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")], (
                tag,
                attributes,
            )


def test_a_run_that_goes_on_stands_on_the_tiles(monkeypatch, tmp_path):
    def answer(program, args):
        held = {"who": "bob@desk", "command": "provision apply"}
        return {**reports.answer(program, args), "lock": {"held": held, "stale": None}}

    document = reports.document(monkeypatch, tmp_path, 2, answer)
    document.at_work = {"gpu01": "running"}
    text = Page(page.html(document)).text
    assert "In a run now: running" in text and "In a run now: bob@desk, provision apply" in text


def test_a_command_for_too_many_hosts_or_for_no_program_is_not_shown(fleet):
    (finding,) = fleet.hosts["gpu10"].diagnose.findings
    assert page._rescue(fleet, [finding], ["gpu10", "a b"]) == "provision -i hosts.yml rescue gpu10 'a b'"
    assert page._rescue(fleet, [finding], [f"gpu{number}" for number in range(100)]) == ""
    manual = [repair for repair in finding.repairs if repair.action == "manual"]
    assert page._rescue(fleet, [finding.model_copy(update={"repairs": manual})], ["gpu10"]) == ""


# ---- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, tmp_path):
    from provision.render import Renderer

    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu01": reports.facts("gpu01", 2, tmp_path)}, reports.answer)
    monkeypatch.setattr(
        cli_report, "open_fleet", lambda settings, name, **more: (fleet, Renderer(as_json=settings.json))
    )
    monkeypatch.chdir(tmp_path)
    return cli.run


def test_the_page_is_written_and_said(command, tmp_path, capsys):
    assert command(["report"]) == 0
    assert "1 as they should be" in (out := capsys.readouterr().out) and "fleet.html" in out
    assert "gpu01" in (tmp_path / "fleet.html").read_text()


def test_json_writes_a_file_only_where_one_is_named(command, tmp_path, capsys):
    assert command(["report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] is None and not (tmp_path / "fleet.html").exists()
    assert command(["report", "--json", "-o", "x.html"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == "x.html" and (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    "words", [["--serve", "8080", "--json"], ["--serve", "x"], ["--serve", "8080", "-o", "x"], ["-o", "no/where.html"]]
)
def test_what_cannot_be_done_is_said_first(command, words):
    assert command(["report", *words]) == 64


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("[::1]:8080", True),
        ("10.0.0.7", True),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_the_page_is_given_to_no_name_of_another_site(host, fits):
    assert serving.is_address(host) is fits
