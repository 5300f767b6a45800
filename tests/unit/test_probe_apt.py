"""apt's files (tests/cases/probe_apt.yml), and who holds its locks."""

import os
import time

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.collection import ROOT
from provision.lib import yaml_reader
from tests.unit import trees

CASES = yaml_reader.load((ROOT / "tests/cases/probe_apt.yml").read_text(encoding="utf-8"))


def _names(kind):
    return {"argvalues": CASES[kind], "ids": [case["name"] for case in CASES[kind]]}


@pytest.mark.parametrize("kind", ["list", "deb822"])
def test_sources(kind):
    parse = {"list": apt_conf.parse_list, "deb822": apt_conf.parse_deb822}[kind]
    for case in CASES[kind]:
        file = "X.list" if kind == "list" else "X.sources"
        sources, errors = parse(case["text"], file)
        assert errors == case.get("errors", []), case["name"]
        for found, wanted in zip(sources, case.get("sources", []), strict=True):
            wanted = {"file": file, "format": kind, "enabled": True, **wanted}
            if wanted["signed_by"] == "EMBEDDED":
                assert found["signed_by"].startswith("embedded:") and len(found["signed_by"]) == 49
                wanted["signed_by"] = found["signed_by"]
            assert found == wanted, case["name"]


@pytest.mark.parametrize("case", **_names("conflicts"))
def test_conflicts(case):
    rows = [{"enabled": True, "uris": [uri], "suites": [suite], "signed_by": key} for uri, suite, key in case["rows"]]
    assert apt_conf.conflicts(rows, "amd64") == case["errors"]
    assert apt_conf.conflicts([dict(row, enabled=False) for row in rows], "amd64") == []


@pytest.mark.parametrize("case", **_names("conf"))
def test_conf(case):
    assert apt_conf.parse_conf(case["text"]) == case["wanted"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("cuda.list", True),
        ("a-b_c.1.list", True),
        ("ubuntu.sources", True),
        ("cuda.list.save", False),
        ("cuda.list~", False),
        (".hidden.list", False),
        ("no extension", False),
        ("plain", False),
        ("x.dpkg-old", False),
    ],
)
def test_file_names(name, read):
    assert apt_conf.is_read(name, ("list", "sources")) is read


def test_file_names_without_extension():
    assert apt_conf.is_read("20auto-upgrades", ("", "conf")) and not apt_conf.is_read("20auto.bak", ("", "conf"))


def test_order_of_files_decides(tmp_path):
    files = {
        "/etc/apt/sources.list": "deb http://z/ /\n",
        "/etc/apt/sources.list.d/b.list": "deb [signed-by=/k] http://b/ /\n",
        "/etc/apt/sources.list.d/a.sources": "Types: deb\nURIs: http://b/\nSuites: /\n",
    }
    found = probe_facts.read_apt(HostTree(str(trees.build(tmp_path, {"files": files}))), {}, "amd64")
    assert [source["file"].rsplit("/", 1)[1] for source in found["sources"]] == ["sources.list", "a.sources", "b.list"]
    assert found["errors"] == []


def test_age_of_the_lists(tmp_path):
    old, now = time.time() - 90000, time.time()
    name = "/var/lib/apt/lists/archive_dists_noble_InRelease"
    tree = {"files": {name: ""}, "dirs": ["/var/lib/apt/lists/partial"]}
    root = trees.build(tmp_path, tree)
    for path in ("/var/lib/apt/lists/partial", "/var/lib/apt/lists"):
        os.utime(trees.at(root, path), (old, old))
    assert 89990 < probe_facts._lists_age(HostTree(str(root))) < 90100
    trees.write(root, "/var/lib/apt/periodic/update-success-stamp", "")
    assert 0 <= probe_facts._lists_age(HostTree(str(root))) <= time.time() - now + 5


def test_free_and_missing_locks_have_no_holder(tmp_path):
    (tmp_path / "lock").write_text("")
    assert (
        probe_facts._locked_by(str(tmp_path / "lock")) is None
        and probe_facts._locked_by(str(tmp_path / "none")) is None
    )


def test_lock_by_the_kernels_table(tmp_path):
    root = trees.build(tmp_path, {"files": {"/var/lib/dpkg/lock-frontend": "", "/proc/812/comm": "unattended-upgr\n"}})
    inode = trees.at(root, "/var/lib/dpkg/lock-frontend").stat().st_ino
    table = f"1: FLOCK  ADVISORY  WRITE 7 fe:00:{inode + 1} 0 EOF\n2: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n"
    trees.write(root, "/proc/locks", table)
    assert probe_facts._lock_holder(HostTree(str(root))) == "pid 812 (unattended-upgr)"
