"""Answers of hosts that are none: whatever a host sends, its error says so, soon and in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zlib

import pytest

from provision import remote
from provision.errors import HostFailedError, ProvisionError, UnreachableError
from provision.inventory import Connection, Host
from provision.remote import answers, shapes
from tests.sample import share

# A host's Python: its last argument is the bootstrap with the token. HOSTILE is what it does then.
_PROGRAM = """\
#!{python}
import json, os, re, sys, time, zlib
TOKEN = re.search(r"gpu-provision-[0-9a-f]+", sys.argv[-1])[0].encode()
out = sys.stdout.buffer
def say(data):
    out.write(data)
    out.flush()
def frame(body, size=None):
    say(b"\\n" + TOKEN + b" " + (b"%d" % len(body) if size is None else size) + b"\\n" + body)
def answer(value):
    frame(zlib.compress(value if isinstance(value, bytes) else json.dumps(value).encode()))
def ready():
    say(b"\\n" + TOKEN + b"-ready\\n")
try:
{body}
    time.sleep(600)
except BrokenPipeError:
    os._exit(1)
"""
ERROR = '{"code": "apt.locked", "message": "m", "because": [], "hint": None}'

HOSTILE = {
    # what it does: (program, part of the message)
    "endless noise": ('while True: say(b"GARBAGE\\n" * 1000)', "64 KiB came before it"),
    "endless ready words": ("while True: ready()", "64 KiB came before it"),
    "endless noise after the ready word": ('ready()\nwhile True: say(b"x" * 4096)', "64 KiB came before it"),
    "length of 10^20": ('ready()\nframe(b"", b"100000000000000000000")', "not a plain number"),
    "length of 10^9": ('ready()\nframe(b"", b"1000000000")', "more than 16 MiB"),
    "negative length": ('ready()\nframe(b"x", b"-5")', "not a plain number"),
    "length with a plus": ('ready()\nframe(b"x", b"+5")', "not a plain number"),
    "length with a blank": ('ready()\nframe(b"x", b" 5")', "not a plain number"),
    "length with an underline": ('ready()\nframe(b"x" * 10, b"1_0")', "not a plain number"),
    "length in other digits": ('ready()\nframe(b"x", "\\u0665".encode())', "not a plain number"),
    "length of a thousand digits": ('ready()\nframe(b"x", b"9" * 1000)', "not a plain number"),
    "length that never ends": (
        'ready()\nsay(b"\\n" + TOKEN + b" ")\nwhile True: say(b"0" * 100)',
        "not a plain number",
    ),
    "no length": ('ready()\nframe(b"x", b"")', "not a plain number"),
    "no zlib": ('ready()\nframe(b"hello")', "not compressed"),
    "zlib that is cut off": ('ready()\nframe(zlib.compress(b"[" * 999)[:-6])', "not compressed"),
    "zlib and more": ('ready()\nframe(zlib.compress(b"{}") + b"more")', "not compressed"),
    "empty": ('ready()\nframe(b"")', "not compressed"),
    "bomb": (
        'ready()\none = zlib.compressobj(9)\nframe(b"".join([one.compress(bytes(1 << 20)) for _ in range(64)] + '
        "[one.flush()]))",
        "unpacks to more than 32 MiB",
    ),
    "no JSON": ('ready()\nanswer(b"hello")', "not JSON"),
    "no UTF-8": ("ready()\nanswer(b'\"\\xff\"')", "not JSON"),
    "raw surrogates": ("ready()\nanswer(b'\"\\xed\\xa0\\x80\"')", "not JSON"),
    "UTF-16": ('ready()\nanswer(\'{"ok": true, "result": 1}\'.encode("utf-16"))', "not JSON"),
    "nested": ('ready()\nanswer(b"[" * 200000 + b"]" * 200000)', "not JSON"),
    "nested where JSON still goes": (
        'ready()\nanswer(b\'{"ok":true,"result":\' + b"[" * 200 + b"]" * 200 + b"}")',
        "nested more than 64 deep",
    ),
    "2 million values": ('ready()\nanswer(b\'{"ok":true,"result":[\' + b"[]," * 2000000 + b"[]]}")', "1000000 values"),
    "an integer of 5000 digits": ('ready()\nanswer(b\'{"ok":true,"result":\' + b"9" * 5000 + b"}")', "not JSON"),
    "an integer of 400 digits": ('ready()\nanswer(b\'{"ok":true,"result":[\' + b"9" * 400 + b"]}")', "out of range"),
    "NaN": ('ready()\nanswer(b\'{"ok":true,"result":NaN}\')', "out of range"),
    "infinity": ('ready()\nanswer(b\'{"ok":true,"result":1e999}\')', "out of range"),
    "null": ('ready()\nanswer(b"null")', "neither a result nor an error"),
    "a list": ("ready()\nanswer([1, 2])", "neither a result nor an error"),
    "text": ('ready()\nanswer("ok")', "neither a result nor an error"),
    "no keys": ("ready()\nanswer({})", "neither a result nor an error"),
    "ok alone": ('ready()\nanswer({"ok": True})', "neither a result nor an error"),
    "ok is a number": ('ready()\nanswer({"ok": 1, "result": {}})', "neither a result nor an error"),
    "ok is text": ('ready()\nanswer({"ok": "true", "result": {}})', "neither a result nor an error"),
    "error alone": ('ready()\nanswer({"ok": False})', "neither a result nor an error"),
    "error is text": ('ready()\nanswer({"ok": False, "error": "no"})', "neither a result nor an error"),
    "result is a list": ("ready()\nanswer({'ok': True, 'result': []})", "result is not what it should be"),
    "result is null": ("ready()\nanswer({'ok': True, 'result': None})", "result is not what it should be"),
    **{
        f"error with {key} = {value}": (
            f'ready()\nanswer({{"ok": False, "error": dict({ERROR}, {key}={value})}})',
            "neither a result nor an error",
        )
        for key, value in (
            ("code", "5"),
            ("code", "None"),
            ("code", "'x'"),
            ("code", "'A.b'"),
            ("code", "'a.b' * 999"),
            ("code", "'a.\\n'"),
            ("message", "5"),
            ("message", "None"),
            ("message", "['m']"),
            ("because", "None"),
            ("because", "'text'"),
            ("because", "[5]"),
            ("because", "{}"),
            ("hint", "5"),
            ("hint", "[]"),
        )
    },
}


@pytest.fixture
def session(tmp_path):
    sessions = []

    def start(body, **connection):
        program = tmp_path / f"python{len(sessions)}"
        program.write_text(_PROGRAM.format(python=sys.executable, body=textwrap.indent(body, "    ")))
        program.chmod(0o755)
        options = {"kind": "local", "become": False, "python": str(program), **connection}
        sessions.append(remote.open_session(Host(name="gpu01", connection=Connection(**options))))
        return sessions[-1]

    yield start
    for one in sessions:
        one.close()


def refusal(session, **options):
    with pytest.raises(HostFailedError) as caught:
        session.call("probe.facts", {}, **options)
    return caught.value


@pytest.mark.parametrize("what", share(list(HOSTILE), 2))
def test_what_is_no_answer(session, what):
    body, message = HOSTILE[what]
    started = session(body)
    error = refusal(started, timeout=50)
    assert (error.issue.code, error.issue.host, error.exit_code) == ("host.bad_answer", "gpu01", 1)
    assert message in error.issue.message
    assert error.issue.hint
    assert "defect" not in str(error.issue)
    assert refusal(started) is error, "nothing more is read from such a host"


@pytest.mark.parametrize(
    "body",
    [
        "while True: time.sleep(0.05); say(b'x')",
        "ready()\nwhile True: time.sleep(0.05); say(b'x')",
        "ready()\nsay(b'\\n' + TOKEN + b' 9999999\\n')\nwhile True: time.sleep(0.05); say(b'x')",
        "ready()\nsay(b'\\n' + TOKEN + b' ')\ntime.sleep(99)",
        "time.sleep(99)",
    ],
    ids=["before the ready word", "after it", "inside a frame", "inside a header", "silence"],
)
def test_the_deadline_counts_for_a_host_that_trickles(session, body):
    begun = time.monotonic()
    assert refusal(session(body), timeout=0.8).issue.code == "host.timeout"
    assert time.monotonic() - begun < 20


def test_a_program_that_ends_by_itself_is_waited_for(session, monkeypatch):
    """apt has 300 s for its lists: a name server that does not answer takes a good minute of them, and is not an idle host."""
    assert session("ready()\ntime.sleep(2)\nanswer({'ok': True, 'result': {'a': 1}})").call(
        "apt.query", {}, timeout=1
    ) == {"a": 1}
    monkeypatch.setattr("provision.remote.session._AT_LEAST", {})
    with pytest.raises(HostFailedError) as caught:
        session("ready()\ntime.sleep(9)").call("apt.query", {}, timeout=1)
    assert "name server" in caught.value.issue.hint


@pytest.mark.parametrize("noise", ["sys.stderr.buffer.write(b'e' * 4096)", "say(b'o' * 4096)"])
def test_a_host_that_talks_and_does_not_listen(session, noise):
    """What we send fills every pipe, what it sends too: neither waits for the other."""
    big = {"x": "\n".join(str(number) for number in range(300_000))}
    with pytest.raises(HostFailedError) as caught:
        session(f"while True: {noise}").call("probe.facts", big, timeout=50)
    assert caught.value.issue.code == "host.bad_answer"


def test_a_host_that_does_not_listen(session):
    big = {"x": "\n".join(str(number) for number in range(300_000))}
    with pytest.raises(HostFailedError) as caught:
        session("ready()").call("probe.facts", big, timeout=1.5)
    assert caught.value.issue.code == "host.timeout"


def test_garbage_after_an_answer_is_no_answer_to_the_next_call(session):
    started = session(
        "ready()\nanswer({'ok': True, 'result': {'a': 1}})\nsay(b'garbage' * 100)\n"
        "answer({'ok': True, 'result': {'a': 2}})"
    )
    assert started.call("probe.facts", {}) == {"a": 1}
    with pytest.raises(ProvisionError) as caught:
        started.call("conda.size", {}, timeout=1.5)
    assert caught.value.issue.code in ("host.timeout", "host.bad_answer")


def test_errors_of_a_host_are_cut(session):
    error = refusal(
        session(
            "ready()\nanswer({'ok': False, 'error': "
            "{'code': 'apt.locked', 'message': 'm' * 9999, 'because': ['b' * 9999] * 999, 'hint': 'h' * 9999}})"
        )
    )
    assert error.issue.code == "apt.locked"
    assert len(error.issue.message) == len(error.issue.hint) == 2000
    assert [len(line) for line in error.issue.because] == [2000] * 40


def test_file_names_that_are_no_text_arrive_as_text(session):
    found = session('ready()\nanswer({"ok": True, "result": {"a\\udcff": ["\\udcfe", "\\U0001f600"]}})').call(
        "probe.facts", {}
    )
    assert found == {"a\\udcff": ["\\udcfe", "\U0001f600"]}
    json.dumps(found, ensure_ascii=False).encode()


def test_of_the_hosts_python_only_its_standard_library_is_taken(session):
    """Nothing of its environment, no site-packages, and no files are left behind."""
    found = session('ready()\nanswer({"ok": True, "result": {"flags": sys.argv[1:-2]}})').call("probe.facts", {})
    assert {"-I", "-S", "-B"} <= set(found["flags"])


def test_what_the_way_there_says_of_an_end_comes_first(session):
    """ssh that lost the connection, whatever the host had said before."""
    gone = UnreachableError("connect.lost", "the connection broke", host="gpu01")
    for body in ("say(b'sudo: a password is required')\nos._exit(255)", "ready()\nos._exit(255)"):
        started = session(body)
        started._lost = lambda text, status: gone if status == 255 else None
        with pytest.raises(UnreachableError) as caught:
            started.call("probe.facts", {})
        assert caught.value is gone


def test_a_python_that_is_found_and_is_none(session, tmp_path, monkeypatch):
    for words in ("echo '/x;reboot'", 'echo "/x\'"', "head -c 100000 /dev/zero | tr '\\0' x"):
        (tmp_path / "sh").write_text(f"#!/bin/bash\n[[ $2 == for* ]] || exit 127\n{words}\n")
        (tmp_path / "sh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        started = session("", python=None)
        started._python = None
        started._command = lambda: (["sh", "-c", "exit 127"], None)
        assert refusal(started).issue.code == "host.bad_answer"


def test_another_host_answers_while_one_sends(session):
    """The flood ends at its limit; the trickle at its deadline, and the answer beside it is there long before."""
    from provision.remote import for_each

    sessions = {
        "flood": session("while True: say(b'GARBAGE\\n' * 999)"),
        "trickle": session("while True: time.sleep(0.05); say(b'x')"),
        "well": session("ready()\nanswer({'ok': True, 'result': {}})"),
    }
    seen = []
    results = for_each(
        [Host(name=name) for name in sessions],
        lambda host: sessions[host.name].call("probe.facts", {}, timeout=8),
        on_done=lambda host, result: seen.append(host.name),
    )
    assert results["well"] == {}
    assert results["flood"].issue.code == "host.bad_answer"
    assert results["trickle"].issue.code == "host.timeout"
    assert seen[-1] == "trickle"


# ---- memory -------------------------------------------------------------------------------------------------------


def bomb(megabytes):
    """Zeros, compressed, without the end: one piece of the stream, again and again."""
    one = zlib.compressobj(9)
    first, more = (one.compress(bytes(1 << 20)) + one.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + more * (megabytes - 1)


def test_a_bomb_takes_little_memory():
    packed = bomb(2048)
    assert len(packed) < 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(answers.BadAnswer, match="unpacks to more than 32 MiB"):
            answers.unpack(packed)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [b"[]," * 10_000_000, b'{"a":[' * 5_000_000, b'"' + b"x" * (31 << 20) + b'"', b"[" + b'"",' * 990_000 + b"0]"],
    ids=["values", "levels", "one text", "just below the limit"],
)
def test_json_takes_little_memory(data):
    tracemalloc.start()
    try:
        with (
            pytest.raises(answers.BadAnswer)
            if len(data) > 32 << 20 or data[:1] != b'"' and len(data) > 4 << 20
            else _fine()
        ):
            answers.loads(data)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_an_answer_may_be_as_deep_as_is_said_and_no_deeper():
    assert answers.loads(b"[" * answers.DEPTH + b"]" * answers.DEPTH)
    with pytest.raises(answers.BadAnswer, match="nested more than 64 deep"):
        answers.loads(b"[" * (answers.DEPTH + 1) + b"]" * (answers.DEPTH + 1))


@pytest.mark.parametrize(
    ("more", "after", "wrong"),
    [(0, b"", None), (1, b"", "unpacks to more than 32 MiB"), (0, b"more", "not compressed")],
    ids=["whole", "a byte more", "something after it"],
)
def test_an_answer_may_be_as_large_as_is_said_and_no_larger(more, after, wrong):
    packed = zlib.compress(b'"' + b"x" * (answers.UNPACKED - 2 + more) + b'"', 1) + after
    with pytest.raises(answers.BadAnswer, match=wrong) if wrong else _fine():
        assert len(answers.unpack(packed)) == answers.UNPACKED - 2


def _fine():
    import contextlib

    return contextlib.nullcontext()


def test_forty_bombs_and_floods_at_once_take_little_memory():
    """In a process of its own, which may not have more than 2 GB of address space beyond its start."""
    program = """
import resource, sys, threading
from provision.remote import answers
sys.path.insert(0, "")
from tests.attack.test_answers import bomb
packed = bomb(512)
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def one():
    incoming = answers.Incoming("t")
    incoming.add(b"\\nt %d\\n" % len(packed) + packed)
    try:
        answers.unpack(incoming.frame())
    except answers.BadAnswer:
        return
    sys.exit(1)
threads = [threading.Thread(target=one) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 * 1024, done.stdout


def test_an_answer_that_came_in_one_piece_is_there_at_once():
    incoming = answers.Incoming("t")
    incoming.add(b"hello\nt 2\nab\nt 3\ncdeprompt")
    assert incoming.complete() and incoming.frame() == b"ab"
    assert incoming.complete() and incoming.frame() == b"cde"
    assert not incoming.complete() and incoming.frame() is None
    assert incoming.take(b"prompt") and not incoming.take(b"prompt")


def test_many_small_pieces_are_no_quadratic_work():
    incoming = answers.Incoming("t")
    body = zlib.compress(json.dumps("x" * 100).encode())
    for byte in b"n" * 60_000 + b"\nt %d\n" % len(body) + body:
        assert incoming.frame() is None
        incoming.add(bytes([byte]))
    assert answers.unpack(incoming.frame() or b"") == "x" * 100


# ---- shapes -------------------------------------------------------------------------------------------------------

SAMPLES = [
    (
        "run.lock",
        {"op": "acquire"},
        {"taken": False, "held": {"run": "r", "lease": 600}, "replaced": None, "why": None},
    ),
    ("run.record", {"op": "leave"}, {"released": True, "held": None, "trouble": None}),
    ("run.record", {"op": "read"}, {"runs": [{}], "unreadable": [], "lock": {"held": None, "stale": None}}),
    (
        "apt.query",
        {"op": "offer"},
        {"workdir": "/tmp/x", "packages": {"a": [{"version": "1", "size": 5}]}, "errors": []},
    ),
    ("apt.query", {"op": "simulate"}, {"ok": True, "changes": [{"action": "install", "name": "a", "version": "1"}]}),
    ("prove.proofs", {}, {"measured": [{"id": "a", "seconds": 1.5, "skip": "m", "evidence": ["e"], "found": {}}]}),
    ("probe.gpu_users", {}, {"gpu_users": [{"comm": "python3", "pid": 5, "user": None}]}),
    ("conda.size", {}, {"/opt/conda": {"total": 5, "own": 4}, "/x": None}),
    ("run.hook", {}, {"rc": 0, "output": "", "timed_out": False, "seconds": 0.1}),
    ("apt.settle", {}, {"settled": True, "seconds": 0.0}),
    ("run.tasks", {}, {"running": ["conda (process 5)"]}),
    ("rescue.snapshot", {"op": "list"}, {"snapshots": [{"id": "x", "made": "y"}]}),
    ("mirror.store", {"op": "fetch"}, {"done": [{"path": "p", "sha256": "s", "size": 1}], "left": [], "refused": []}),
]


@pytest.mark.parametrize(("program", "args", "good"), SAMPLES)
def test_every_wrong_type_in_a_result_is_the_hosts_fault(program, args, good):
    shapes.check(program, args, good)
    for broken in [None, [], "x", 5, *_broken(good)]:
        with pytest.raises(answers.BadAnswer, match="is not what it should be"):
            shapes.check(program, args, broken)


NEEDED = {
    "taken",
    "held",
    "replaced",
    "lock",
    "runs",
    "workdir",
    "packages",
    "checks",
    "ok",
    "rc",
    "settled",
    "pid",
    "id",
}


def _broken(value):
    """Yield value with one thing in it of another type, for every thing."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in NEEDED:
                yield {name: one for name, one in value.items() if name != key}
            for other in _wrong(item):
                yield {**value, key: other}
            for other in _broken(item):
                yield {**value, key: other}
    elif isinstance(value, list):
        for number, item in enumerate(value):
            for other in [*_wrong(item), *_broken(item)]:
                yield [*value[:number], other, *value[number + 1 :]]


def _wrong(item):
    # Of null nothing is known but that it may be something; further keys are free.
    return [] if item is None or item == {} or isinstance(item, float) else [object()]


def test_every_program_that_hosts_are_asked_for_has_a_shape():
    import re
    from pathlib import Path

    import provision

    asked = set()
    for path in Path(provision.__file__).parent.rglob("*.py"):
        asked |= set(re.findall(r'\bcall\(\s*"([\w.]+)"', path.read_text()))
    assert asked
    assert asked <= set(shapes.SHAPES)
