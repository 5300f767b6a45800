"""daemon.json: read, merged, refused. The table is tests/cases/daemon_json.yml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_json
from provision.lib import yaml_reader

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/daemon_json.yml").read_text(encoding="utf-8"))
RUNTIME = {"runtime": True}


def data_of(case: dict[str, Any]) -> bytes:
    if case.get("absent"):
        return b""
    if "bytes" in case:
        return bytes.fromhex(case["bytes"])
    if "repeat" in case:
        return (case["repeat"][0] * case["repeat"][1]).encode()
    return case["text"].encode()


def exists(path: str) -> bool:
    return path == "/usr/bin/nvidia-container-runtime"


def in_order(data: bytes) -> Any:
    """Everything that a file says, in its order."""
    return json.loads(data, object_pairs_hook=list)


def shape(data: bytes) -> tuple[Any, ...]:
    """How a file is written: indentation of its first member, whether it is one line, line ends, its end."""
    first = re.match(rb"\{\s*\n([ \t]+)", data)
    end = data[len(data.rstrip()) :]
    return first and first.group(1), b"\n" in data.strip(), b"\r\n" in data, end


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    data = data_of(case)
    config = case.get("config", RUNTIME)
    if "refused" in case:
        with pytest.raises(daemon_json.DaemonJsonError) as caught:
            daemon_json.merge(daemon_json.parse(data), config, exists)
        error, expected = caught.value, case["refused"]
        assert (error.line, error.column) == (expected["line"], expected["column"]), str(error)
        assert expected["message"] in error.message
        assert expected["hint"] in error.hint
        return
    document, changed = daemon_json.merge(daemon_json.parse(data), config, exists)
    if case.get("same"):
        assert document.data == data
    else:
        assert in_order(document.data) == in_order(case["result"].encode())
        assert shape(document.data) == shape(case["result"].encode())
    assert changed == case.get("changed", [])
    assert [case["warning"] in warning for warning in document.warnings] == [True] * ("warning" in case)
    again, nothing = daemon_json.merge(daemon_json.parse(document.data), config, exists)
    assert (again.data, nothing) == (document.data, [])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested more than 64 deep"),
        (b"[" * 500_000, "nested more than 64 deep"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "is out of range"),
        (b'{"a": 1e999}', "is out of range"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
    ],
)
def test_what_no_dockerd_reads_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(daemon_json.DaemonJsonError, match=message):
        daemon_json.parse(data)


def test_half_of_a_pair_is_what_it_is_for_dockerd() -> None:
    document, _ = daemon_json.merge(daemon_json.parse(rb'{"labels": ["a=\ud800"], "\udfff": 1}'), RUNTIME)
    assert json.loads(document.data) == {**document.value, "labels": ["a=\ufffd"], "\ufffd": 1}


def test_the_table_is_whole() -> None:
    assert len(CASES) >= 30
    assert len({case["name"] for case in CASES}) == len(CASES)
    for case in CASES:
        assert sum(key in case for key in ("result", "same", "refused")) == 1, case["name"]


# What Go's reader and ours must agree on, whoever wrote the file.
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
names = st.text(max_size=8).filter(lambda name: name not in daemon_json._TYPE_OF)
known = st.fixed_dictionaries(
    {},
    optional={
        "runtimes": st.none()
        | st.dictionaries(
            st.sampled_from(["nvidia", "kata", "ru\u00f1"]),
            st.fixed_dictionaries(
                {}, optional={"path": st.text(max_size=5), "runtimeArgs": st.lists(st.text(max_size=3))}
            ),
        ),
        "features": st.none() | st.dictionaries(st.sampled_from(["cdi", "buildkit", "x"]), st.booleans()),
        "exec-opts": st.lists(st.sampled_from(["native.cgroupdriver=systemd", "a=b"])),
        "default-runtime": st.sampled_from(["runc", "nvidia"]),
        "default-shm-size": st.sampled_from(["64M", "8G", "8g", 1024]),
        "data-root": st.text(max_size=5),
    },
)
configs = st.fixed_dictionaries(
    {
        "runtime": st.booleans(),
        "default_runtime": st.sampled_from(["", "nvidia", "runc"]),
        "cdi": st.none() | st.booleans(),
        "shm_size": st.sampled_from(["", "8G", "512m"]),
        "cgroup_driver": st.sampled_from(["", "cgroupfs"]),
    }
)
layouts = st.sampled_from([{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def lost(before: Any, after: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of values that are no longer as they were."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [gone for name, value in before.items() for gone in lost(value, after.get(name, ...), (*path, name))]
    return [] if before == after else [path]


@given(st.dictionaries(names, values, max_size=4), known, configs, layouts)
def test_merge_loses_nothing_and_twice_is_once(
    foreign: dict[str, Any], ours: dict[str, Any], config: dict[str, Any], layout: dict[str, Any]
) -> None:
    value = {**foreign, **ours}
    data = json.dumps(value, **layout).encode("utf-8", "replace")
    before = daemon_json.parse(data)
    assert before.value == json.loads(data)
    document, changed = daemon_json.merge(before, config)
    after = json.loads(document.data)
    assert document.value == after
    assert {".".join(path) for path in lost(before.value, after)} <= {
        *changed,
        *(key.split(".")[0] for key in changed),
        "exec-opts" if "exec-opts" in changed else "",
    }
    assert lost(foreign, after) == lost(foreign, json.loads(data))
    assert list(after)[: len(value)] == list(value)
    assert set(value.get("exec-opts", [])) - {"native.cgroupdriver=systemd"} <= set(after.get("exec-opts", []))
    again, nothing = daemon_json.merge(document, config)
    assert (again.data, nothing) == (document.data, [])
    assert daemon_json.wanted(config, after) == []
    if not changed:
        assert document.data == data


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:0123456789.eE+-\\/untrfalse \n', max_size=30).map(str.encode))
def test_what_python_reads_strictly_we_read_alike(data: bytes) -> None:
    """The reader never fails in another way than with a place, and never takes what JSON does not have."""
    try:
        document = daemon_json.parse(data)
    except daemon_json.DaemonJsonError as error:
        assert error.line >= 1 and error.column >= 1 and error.hint
        return
    text = data.decode("utf-8-sig")
    assert document.value == (json.loads(text) or {} if text.strip(" \t\r\n") else {})
    assert document.data == text.encode()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 << 30),
        ("8gb", 8 << 30),
        ("8GiB", 8 << 30),
        ("64M", 64 << 20),
        (1024, 1024),
        ("1.5k", 1536),
        ("8 G", 8 << 30),
        ("", None),
        ("much", None),
        (True, None),
        ("-1", None),
    ],
)
def test_sizes(text: Any, size: int | None) -> None:
    assert daemon_json.size_of(text) == size
