"""What a host says is data: hostile facts through every writer of the project, and what Ansible makes of the result."""

import json
import random
import re
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

import provision.collection  # noqa: F401
from provision.catalog import load_catalog
from provision.commands import diagnose, init, scan
from provision.documents import PlanDocument, ScanDocument
from provision.drift import metrics
from provision.errors import HostFailedError, ProvisionError
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.inventory import Connection, Host, Inventory
from provision.lib import yaml_reader
from provision.lib.text import answered, one_line
from provision.lock import make
from provision.lock.model import Lock, LockedHost, dump, parse
from provision.parts.hardware import kinds
from provision.planning import plan_from_facts
from provision.rescue import offline
from provision.rescue.purge import read_purge
from provision.rescue.undo import read_undo
from provision.runs import engine
from tests.sample import THOROUGH
from tests.unit.fleethosts import healthy

EXAMPLES = 300 if THOROUGH else 150
# Of those that go through every writer: each takes a tenth of a second and more.
WRITTEN = 150 if THOROUGH else 60
# A failure is told by its seed; making it smaller would take minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
LOOKUP = "{{ lookup('pipe', 'touch PWNED; echo /usr/bin/python3') }}"
LINES = f'24.04\n      hosts: {{a: {{}}}}\n      vars:\n        nvidia_driver_branch: "{LOOKUP}"\n    zz:\n      # '
ODD = [
    LOOKUP,
    "/" + LOOKUP,
    LINES,
    "{% for x in y %}",
    "{# x #}",
    "a\nb",
    "a\r\nb",
    "\x85x",
    "\u2028- x",
    "\x00",
    "\x1b[31m",
    "\ud800",
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    '"',
    "- a: b",
    "!!python/object/apply:os.system [id]",
    "a: b # c",
    "x" * 5000,
    "",
    "\u202egnp",
    "@SETTINGS@",
    "%s{}",
    None,
    True,
    -1,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    {"a": "b"},
    {"__ansible_unsafe": "x"},
]
LEGAL = [
    "10de:16c1",
    "0302",
    "580.126.20",
    "1:2.0~rc1-0ubuntu1+b",
    "1!2.0",
    "2.6.0+cu124",
    "/usr/bin/python3",
    "/home/jo smith/Übung~1/a+b:c{d}",
    "nvidia",
    "libnvidia-gl-580:i386",
    "0000:1b:00.0",
    "2330",
    "6.8.0-45-generic",
    "ab12",
    "ii",
    "ubuntu",
    "24.04",
    "nvidia@1.service",
    "amd64",
    "jo.smith",
    "DOM\\\\jo smith",
    "2026-11-28 10:00:00",
    "https://x.example/a?b=c",
    "GPU-1234",
    "it's fine: 100 %",
]


# ---- the types ---------------------------------------------------------------------------------------------------------


def bare(kind, where):
    """Places below a type that are texts, numbers or anything without a limit."""
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            limited = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            yield from bare(limited, f"{where}.{name}")
    elif origin is Annotated or origin is Literal:
        return
    elif origin in (Union, UnionType, list, dict, tuple):
        for number, inner in enumerate(args):
            yield from bare(inner, f"{where}[{number}]")
    elif kind in (str, int, object, Any):
        yield where


def test_every_text_and_number_of_a_host_has_a_type_with_limits():
    assert list(bare(Diagnosed, "Facts")) == []

    class Example(BaseModel):
        name: str
        rows: list[dict[str, int]]

    assert list(bare(Example, "x")) == ["x.name", "x.rows[0][0]", "x.rows[0][1]"], "the walk finds what has none"


# ---- what comes in -----------------------------------------------------------------------------------------------------


def filled(kind, draw, texts):
    """An answer with something in every place of a type: mostly legal, sometimes anything."""
    origin, args = get_origin(kind), get_args(kind)
    if draw.random() < 0.02:
        return draw.choice(texts)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {
            name: filled(
                field.annotation if not field.metadata else Annotated[(field.annotation, *field.metadata)], draw, texts
            )
            for name, field in kind.model_fields.items()
        }
    if origin in (Union, UnionType):
        return filled(args[0], draw, texts)
    if origin is list:
        return [filled(args[0], draw, texts) for _ in range(draw.randrange(3))]
    if origin is dict:
        return {str(filled(args[0], draw, texts)): filled(args[1], draw, texts) for _ in range(draw.randrange(3))}
    if origin is tuple:
        return [filled(one, draw, texts) for one in args]
    if origin is Literal:
        return draw.choice(args)
    plain = {bool: True, float: 1.5}.get(kind)
    return draw.choice(legal(kind)) if plain is None else plain


_legal = {}


def legal(kind):
    if str(kind) not in _legal:
        adapter, found = TypeAdapter(kind), []
        for value in [*LEGAL, 7]:
            try:
                adapter.validate_python(value)
                found.append(value)
            except ValidationError:
                continue
        _legal[str(kind)] = found
    return _legal[str(kind)]


def places(data, here=()):
    yield here
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(value, (*here, key))


def spoiled(data, draw, texts, count):
    """A copy with some places changed."""
    data = json.loads(json.dumps(data))
    for _ in range(count):
        place = draw.choice([p for p in places(data) if p and p != ("host",)])
        inner = data
        for part in place[:-1]:
            inner = inner[part]
        if draw.random() < 0.2 and isinstance(inner, dict):
            inner[str(draw.choice(texts))] = inner.pop(place[-1])
        else:
            inner[place[-1]] = draw.choice(texts)
    return json.loads(json.dumps(data))


def base():
    return healthy("gpu01").model_dump(mode="json")


def texts_of(data):
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for item in [*data, *data.values()] if isinstance(data, dict) else data:
            yield from texts_of(item)


def sound(facts):
    """Facts that can be written: one line each, encodable, in range, and the same when they are read again."""
    data = facts.model_dump()
    # The record of an environment keeps the lines of its file, to be compared with the file of today.
    conda = data.get("conda") or {}
    records = [one.pop("record") for one in [*conda.get("prefixes", ()), *conda.get("environments", ())]]
    lines = [line for text in texts_of(records) for line in text.split("\n")]
    for text in [*texts_of(data), *lines]:
        assert (
            one_line(text, 10_000) == text
            or text.isprintable()
            or text == text.strip()
            and not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", text)
        )
        assert len(text) <= 65536
    again = Diagnosed.of_host(json.loads(facts.model_dump_json()))
    assert again == facts, "a second reading drops nothing more"


odd_texts = st.lists(st.text() | st.text(alphabet="{}%#'\"\n\\: -$`/", max_size=40), min_size=1, max_size=8)


@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), texts=odd_texts)
def test_any_answer_becomes_facts_or_the_hosts_fault(seed, texts):
    draw = random.Random(seed)  # noqa: S311 - examples
    raw = json.loads(json.dumps(filled(Diagnosed, draw, [*ODD, *texts])))
    try:
        sound(Diagnosed.of_host(raw))
    except HostFailedError as error:
        assert error.issue.code == "host.bad_answer" and error.issue.hint
        assert not isinstance(raw, dict) or not isinstance(raw.get("host"), dict)


@pytest.mark.parametrize("raw", [None, [], "x", 5, True, {}, {"host": []}, {"host": "x"}, [{"host": {}}]])
def test_no_facts_at_all_are_a_bad_answer(raw):
    with pytest.raises(HostFailedError) as caught:
        Diagnosed.of_host(raw)
    assert caught.value.issue.code == "host.bad_answer"


@pytest.mark.parametrize(
    "path", [LOOKUP, "/" + LOOKUP, "/usr/bin/python3\nx", "/usr/bin/python3 $(id)", "python3", 5, ["/x"]]
)
def test_a_python_that_is_no_path_is_left_out_and_named(path):
    raw = base()
    raw["host"]["python_path"] = path
    facts = Diagnosed.of_host(raw)
    assert facts.host.python_path is None
    assert [place for place in facts.refused if place.startswith("host.python_path: ")]
    assert not any(str(path) in place for place in facts.unreadable)


@pytest.mark.parametrize("release", [LINES, "24.04\u2028x", LOOKUP, 24.04, {}, "2" * 99])
def test_a_release_that_is_none_is_not_taken_for_another(release):
    raw = base()
    raw["host"]["os"]["version_id"] = release
    facts = Diagnosed.of_host(raw)
    assert facts.host.os.version_id == ""
    assert facts.refused[0].startswith("host.os.version_id: ")
    assert scan.describe(facts).summary.count("host.os.version_id")


def test_what_is_left_out_and_what_stays():
    raw = base()
    good = raw["gpus"][1]
    raw["gpus"] = [{**good, "slot": LOOKUP}, good, {"device": "2330"}, 7]
    raw["packages"]["bad\nname"] = {"version": "1"}
    raw["packages"]["odd"] = {"version": LINES}
    raw["devices"] = ["/dev/nvidia0", "no path", 5]
    raw["kernels"]["installed"] = "all of them"
    raw["host"]["uptime_s"] = float("inf")
    raw["gpus"][1]["numa_node"] = 10**4000
    facts = Diagnosed.of_host(raw)
    assert [gpu.slot for gpu in facts.gpus] == [good["slot"]] and facts.gpus[0].numa_node is None
    assert facts.devices == ["/dev/nvidia0"] and facts.kernels.installed == [] and facts.host.uptime_s is None
    assert "odd" not in facts.packages and set(facts.packages) == set(base()["packages"])
    assert "gpus.0.slot: longer than 16 characters" in facts.refused
    assert "devices.1: not an absolute path" in facts.refused and "devices.2: not a text" in facts.refused
    assert (
        "packages.odd.version: longer than 128 characters" in facts.refused and "gpus.2.slot: missing" in facts.refused
    )
    assert any(place.startswith("packages.?") for place in facts.refused), "a name that a host made up is not repeated"


@pytest.mark.parametrize(
    ("field", "word"), [("device", ""), ("device", "030200"), ("device", "10de:2330"), ("slot", "")]
)
def test_a_card_without_what_it_is_known_by_is_left_out_and_named(field, word):
    raw = base()
    cards = len(raw["gpus"])
    raw["gpus"][0][field] = word
    facts = Diagnosed.of_host(raw)
    assert len(facts.gpus) == cards - 1
    assert any(line.startswith(f"gpus.0.{field}: ") for line in facts.unreadable)
    assert scan.describe(facts)


def test_a_flood_of_wrong_facts_is_told_briefly():
    raw = base()
    raw["devices"] = ["x"] * 5000
    assert len(Diagnosed.of_host(raw).unreadable) == 101
    raw["devices"] = ["x"] * 50_000
    with pytest.raises(HostFailedError):
        Diagnosed.of_host(raw)


def test_free_text_is_folded_and_not_lost():
    raw = base()
    raw["smi"]["error"] = "first\tline\nsecond\u2028third \ud800" + "x" * 9000
    error = Diagnosed.of_host(raw).smi.error
    assert error.startswith("first line second third") and len(error) == 4096


# ---- what is written ---------------------------------------------------------------------------------------------------

MARKERS = ("{{", "{%", "{#")


def unmarked(data):
    """Texts of a file for Ansible that it would take for templates."""
    if isinstance(data, dict) and set(data) == {"__ansible_unsafe"}:
        return
    if isinstance(data, str):
        if any(mark in data for mark in MARKERS):
            yield data
    elif isinstance(data, dict | list):
        for item in [*data, *data.values()] if isinstance(data, dict) else data:
            yield from unmarked(item)


def inventory(names):
    return Inventory(
        hosts=[Host(name=name, connection=Connection()) for name in names],
        sources=["hosts.yml"],
        settings={"pythons": ["python3.12", "python3.11"]},
    )


@settings(max_examples=WRITTEN, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), texts=odd_texts, count=st.integers(1, 6))
def test_every_writer_writes_the_same_data(seed, texts, count):
    draw, catalog = random.Random(seed), load_catalog()  # noqa: S311 - examples
    raw = spoiled(base(), draw, [*ODD, *texts], count)
    if draw.random() < 0.7:
        raw["host"]["python_path"], raw["host"]["python"] = draw.choice([*texts, *ODD]), "3.12.3"
    facts = Diagnosed.of_host(raw)
    sound(facts)

    # the documents of scan and diagnose
    shown = ScanDocument(hosts={"gpu01": scan.describe(Facts.of_host({**raw, "trouble": None}))})
    assert ScanDocument.model_validate_json(shown.to_json()) == shown
    told = diagnose.judged(facts, {})
    assert type(told).model_validate_json(told.model_dump_json()) == told

    # what ansible-playbook is given: the inventory's file and the plan
    pythons = {"gpu01": {"path": facts.host.python_path, "version": facts.host.python}}
    assert not list(unmarked(json.loads(json.dumps(engine._host_vars(inventory(["gpu01"]), ["gpu01"], pythons)))))
    try:
        plan = plan_from_facts("gpu01", facts, lambda program, args: pytest.fail("apt is asked"), {}, catalog, parts=())
        document = PlanDocument(hosts={"gpu01": plan})
        assert PlanDocument.model_validate_json(document.to_json()) == document
    except ProvisionError as error:
        assert error.issue.hint

    # init's inventory
    found = kinds({"gpu01": facts}, catalog, taken={"all", "gpus"})
    source = init.Source("hosts of " + texts[0], overlay=("hosts.yml",))
    content = init.scanned_text(
        found, {"gpu01": facts}, catalog, source, Path("x.yml"), unreached={"gpu02": texts[0]}, left_out=["web"]
    )
    meant = init._says(found, source, {"gpu02": texts[0]})
    assert yaml_reader.load(content) == meant and not list(unmarked(meant))

    # the lock
    try:
        entry = make.entry(make.Seen("gpu01", facts, {"inventory_dir": "/"}), catalog)
    except ProvisionError:
        entry = None
    if entry is not None:
        host = LockedHost.model_validate({**entry.host.model_dump(), "group": "g"})
        lock = Lock(groups={"g": entry.group}, hosts={"gpu01": host})
        assert dump(parse(dump(lock))) == dump(lock)

    # the metrics of drift
    line = f"x{metrics._labels({'a': facts.host.os.pretty, 'b': facts.smi.error or ''})} 1"
    assert len(line.splitlines()) == 1

    # the file for a console
    packages = {name: package.version for name, package in facts.packages.items()}
    decided = offline.decisions("gpu01", {}, offline.Known("580", packages=packages, source=texts[0]))
    assert {part.partition("=")[0] for part in decided["wanted"]} <= set(packages)
    made = offline.offline_script(texts[0], {}, offline.Known("580", "open", source=texts[0], packages=packages))
    block = made.partition("# --- decisions: JSON ---\n")[2].partition("# --- program")[0]
    read = json.loads("".join(line[2:] for line in block.split("\n")))
    assert read["wanted"] == decided["wanted"] and read["host"] == read["source"] == texts[0]
    assert all(line.startswith("#") for line in made[: made.index("\n\n")].splitlines())


def test_init_writes_nothing_that_says_something_else(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text("old\n")
    with pytest.raises(ProvisionError) as caught:
        init._write(path, "all:\n  vars: {x: 1}\n", {"all": None})
    assert caught.value.issue.code == "init.not_as_meant" and path.read_text() == "old\n"
    with pytest.raises(ProvisionError):
        init._write(path, "a: [", {})


# ---- what Ansible makes of it --------------------------------------------------------------------------------------------


def test_ansible_evaluates_nothing_that_a_host_said(tmp_path):
    """Even where the types let a template through: in the inventory and in a plan it stays text."""
    evil = LOOKUP.replace("PWNED", str(tmp_path / "PWNED"))
    (tmp_path / "hosts.yml").write_text("all: {hosts: {a: {ansible_connection: local}}}")
    plan = {
        "host": "a",
        "status": "changes",
        "blockers": [],
        "summary": evil,
        "spec": {
            "roles": ["nvidia_driver"],
            "apt": {"x": evil},
            "parts": {"nvidia_driver": {"text": evil}},
            "environment": {},
        },
    }
    (tmp_path / "plan.json").write_text(json.dumps({"hosts": {"a": plan}}))
    (tmp_path / "play.yml").write_text("""
- hosts: a
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: "{{ ansible_python_interpreter }}"}
    - gpu.provision.host_plan: {role: nvidia_driver}
      register: made
    - ansible.builtin.debug: {msg: "{{ made.plan.summary }} {{ made.apt.x }} {{ made.spec.text }}"}
    - ansible.builtin.set_fact: {again: "{{ made.spec.text }}"}
    - ansible.builtin.debug: {msg: "{{ again }}"}
""")
    run = Inventory(
        hosts=[Host(name="a", connection=Connection(kind="local"))],
        sources=[str(tmp_path / "hosts.yml")],
        settings={"pythons": ["python3.12"]},
    )
    result = engine.run_playbook(
        tmp_path / "play.yml",
        run,
        ["a"],
        {"gpu_provision_plan_file": str(tmp_path / "plan.json")},
        tmp_path,
        pythons={"a": {"path": evil, "version": "3.12.3"}},
    )
    log = (tmp_path / "ansible.log").read_text()
    assert result.rc == 0, log
    assert log.count("lookup('pipe'") == 5, log
    assert not list(tmp_path.rglob("PWNED"))


# ---- answers without a model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"rows": {}}, {"rows": [float("nan")]}, {"rows": [10**99]}])
def test_an_answer_that_is_none_is_the_hosts_fault(raw):
    with pytest.raises(HostFailedError) as caught:
        answered(raw, rows=list)
    assert caught.value.issue.code == "host.bad_answer"


def test_an_answer_has_one_line_in_each_text():
    raw = {"rows": [{"a\nb": "c\u2028d"}, "x", 1, None, True, 0.5], "more": "\x1b[31m"}
    assert answered(raw, rows=list) == {"rows": [{"a b": "c d"}, "x", 1, None, True, 0.5], "more": "[31m"}


@pytest.mark.parametrize("read", [read_undo, read_purge])
@pytest.mark.parametrize(
    "raw", [5, {}, {"problems": 5, "changes": [], "kept": []}, {"problems": ["x"], "changes": [], "kept": []}]
)
def test_a_host_cannot_break_a_rescue_by_its_answer(read, raw):
    with pytest.raises((HostFailedError, ValidationError)):
        read("gpu01", lambda program, args: raw)


def test_a_plan_tells_what_it_left_out_and_stops_without_the_release():
    raw = base()
    raw["host"]["python_path"] = LOOKUP
    plan = plan_from_facts("gpu01", Diagnosed.of_host(raw), lambda program, args: {}, {}, parts=())
    assert [(one.code, one.because) for one in plan.warnings] == [
        ("host.unreadable", ["host.python_path: not the path of a program"])
    ]
    assert plan.status != "blocked"
    raw["host"]["os"]["version_id"] = LINES
    plan = plan_from_facts("gpu01", Diagnosed.of_host(raw), lambda program, args: {}, {}, parts=())
    assert plan.status == "blocked" and plan.blockers[0].code == "host.unreadable"
