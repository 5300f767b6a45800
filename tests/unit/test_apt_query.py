"""Pure parts of aptquery, aptcommon and aptsources: tables in tests/cases/apt_*.yml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from tests.unit.apt_cases import table


@pytest.mark.parametrize("case", table("simulation"))
def test_parse_simulation(case: dict[str, Any]) -> None:
    assert apt_query.parse_simulation(case["text"]) == case["changes"]


@pytest.mark.parametrize("case", table("update_errors"))
def test_parse_update_errors(case: dict[str, Any]) -> None:
    found = apt_query.parse_update_errors(case["text"])
    assert [{key: problem[key] for key in wanted} for problem, wanted in zip(found, case["problems"], strict=True)] == (
        case["problems"]
    )
    assert all(problem["message"] in case["text"] for problem in found)


@pytest.mark.parametrize("case", table("unmet"))
def test_parse_unmet(case: dict[str, Any]) -> None:
    assert apt_query.parse_unmet(case["text"]) == case["unmet"]


def change(text: str) -> dict[str, Any]:
    action, name, *versions = text.split()
    old = versions[0] if action == "remove" or len(versions) > 1 else None
    return {
        "action": action,
        "name": name,
        "version": None if action == "remove" else versions[-1],
        "from_version": old,
    }


@pytest.mark.parametrize("case", table("judge"))
def test_judge(case: dict[str, Any]) -> None:
    options = {key: case[key] for key in case if key not in ("name", "changes", "problems")}
    problems = apt_query.judge([change(text) for text in case["changes"]], **options)
    assert len(problems) == len(case["problems"]), problems
    for problem, wanted in zip(problems, case["problems"], strict=True):
        code, word = wanted.split()
        assert problem["code"] == code
        assert word in " ".join([problem["message"], *problem["because"]])
        assert problem["hint"]


STATUS = """\
Package: nvidia-utils-580
Status: hold ok installed
Priority: optional
Version: 580.1-1
Description: x
 hold ok installed

Package: libnvidia-gl-550
Status: hold ok not-installed

Package: bash
Essential: yes
Status: hold ok installed
Architecture: amd64
Version: 5.2-1
"""


@pytest.mark.parametrize(
    ("unhold", "still"),
    [
        (["all_driver"], ["bash"]),
        (["bash"], ["nvidia-utils-580", "libnvidia-gl-550"]),
        ([], ["nvidia-utils-580", "libnvidia-gl-550", "bash"]),
    ],
)
def test_without_holds(unhold: Any, still: list[str]) -> None:
    text = apt_query.without_holds(STATUS, unhold)
    packages = apt_common.parse_status(text)
    assert [package.name for package in packages if package.held] == still
    assert len(text.splitlines()) == len(STATUS.splitlines())
    assert " hold ok installed\n\n" in text


def test_parse_status() -> None:
    utils, library, bash = apt_common.parse_status(STATUS)
    assert (utils.held, utils.installed, utils.unfinished, utils.version) == (True, True, False, "580.1-1")
    assert (library.held, library.present) == (True, False)
    assert bash.essential


POLICY = """\
nvidia-utils-580:
  Installed: 580.1-1
  Candidate: 580.2-1
  Version table:
     580.2-1 500 (phased 10%)
        500 http://archive.example/ubuntu noble-updates/restricted amd64 Packages
        500 http://archive.example/ubuntu noble-security/restricted amd64 Packages
 *** 580.1-1 100
        100 /var/lib/dpkg/status
     580.0-1 -1
        600 https://nvidia.example/ubuntu2404/x86_64  Packages
gone:
  Installed: (none)
  Candidate: (none)
  Version table:
"""
RELEASES = """\
Package files:
 100 /var/lib/dpkg/status
     release a=now
 500 http://archive.example/ubuntu noble-updates/restricted amd64 Packages
     release v=24.04,o=Ubuntu,a=noble-updates,n=noble,l=Ubuntu,c=restricted,b=amd64
     origin archive.example
 600 https://nvidia.example/ubuntu2404/x86_64  Packages
     release o=NVIDIA,l=NVIDIA CUDA,c=
     origin nvidia.example
Pinned packages:
"""


def test_versions_offered() -> None:
    tables = apt_query.parse_policy(POLICY)
    stanzas = [
        {"Package": "nvidia-utils-580", "Version": version, "Size": "10", "Installed-Size": "2", "Depends": "a | b"}
        for version in ("580.2-1", "580.1-1", "580.0-1")
    ]
    offered = apt_query.available_versions(tables, stanzas, apt_query.parse_releases(RELEASES))
    assert list(offered) == ["nvidia-utils-580"]
    newest, oldest = offered["nvidia-utils-580"]
    assert (newest["version"], newest["candidate"], newest["origin"]) == ("580.2-1", True, "Ubuntu")
    assert (newest["uri"], newest["suite"], newest["component"]) == (
        "http://archive.example/ubuntu",
        "noble-updates",
        "restricted",
    )
    assert (oldest["version"], oldest["priority"], oldest["origin"]) == ("580.0-1", -1, "NVIDIA")
    assert (oldest["installed_size"], oldest["depends"]) == (2048, "a | b")


@pytest.mark.parametrize(
    ("uri", "suite", "name"),
    [
        (
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/",
            "/",
            "developer.download.nvidia.com_compute_cuda_repos_ubuntu2404_x86%5f64_",
        ),
        ("http://user:secret@archive.example/ubuntu", "noble-updates", "archive.example_ubuntu_dists_noble-updates_"),
        ("file:/srv/repo", "/", "_srv_repo_"),
        ("http://h.example/r", "./", "h.example_r_._"),
    ],
)
def test_list_name(uri: str, suite: str, name: str) -> None:
    assert apt_query.list_name(uri, suite) == name


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("https://Nvidia.example/x/", "http://nvidia.example:80//x", True),
        ("https://user:pw@nvidia.example/x", "https://nvidia.example/x", True),
        ("https://nvidia.example/$(ARCH)", "https://nvidia.example/amd64/", True),
        ("https://nvidia.example/x", "https://nvidia.example/y", False),
        ("https://nvidia.example/x", "https://nvidia.example/x86_64", False),
        ("file:/srv/a", "file:///srv/a/", True),
        ("file:/srv/a", "copy:/srv/a", False),
    ],
)
def test_normalise(a: str, b: str, same: bool) -> None:
    assert (apt_sources.normalise(a) == apt_sources.normalise(b)) is same


@pytest.mark.parametrize("item", ["-o Dpkg::x=1", "nvidia-utils-580=1 2", "../x", "a=b=c", "nvidia*", "^nvidia-.*", ""])
def test_only_exact_packages_reach_apt(item: str) -> None:
    with pytest.raises(AptError) as error:
        apt_query.change_args([item], [], False)
    assert error.value.code == "apt.usage"


def test_render_refuses_what_apt_cannot_read() -> None:
    good = {"name": "cuda", "uris": "https://nvidia.example/x/", "suites": "/"}
    assert "Signed-By: /etc/apt/keyrings/gpu-provision-cuda.gpg\n" in apt_sources.render(good)
    assert "Signed-By" not in apt_sources.render(good, signed_by=False)
    assert "Architectures" not in apt_sources.render(good)
    assert "Architectures: amd64 arm64\n" in apt_sources.render(good | {"architectures": "amd64 arm64"})
    for wrong in ({"uris": ""}, {"components": "main"}, {"suites": "noble"}, {"name": "../cuda"}, {"uris": "nowhere"}):
        with pytest.raises(AptError):
            apt_sources.render(good | wrong)


def test_redact() -> None:
    assert redact.text("Get:1 https://me:pw@h.example/x") == "Get:1 https://***@h.example/x"


HEADER = """Package files:
 100 /tmp/work/status
     release a=now
 600 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64  Packages
     release o=NVIDIA,l=NVIDIA CUDA,c=
     origin developer.download.nvidia.com
 500 http://archive.example/ubuntu noble-updates/restricted amd64 Packages
     release v=24.04,o=Ubuntu,a=noble-updates,n=noble,l=Ubuntu,c=restricted,b=amd64
     origin archive.example
 -10 http://old.example/ubuntu noble/main amd64 Packages
     release o=Old
Pinned packages:
"""
LISTS = "/tmp/work/lists/"
ARCHIVE = LISTS + "archive.example_ubuntu_dists_noble-updates_restricted_binary-amd64_Packages"
NVIDIA = LISTS + "developer.download.nvidia.com_compute_cuda_repos_ubuntu2404_x86%5f64_Packages"
OLD_LIST = LISTS + "old.example_ubuntu_dists_noble_main_binary-amd64_Packages"


def showpkg(name: str, *versions: str) -> str:
    return "\n".join(
        [
            f"Package: {name}",
            "Versions: ",
            *(f"{version}\n Description Language: \n                 File: {ARCHIVE}\n" for version in versions),
            "",
            "Reverse Depends: ",
            f"  other,{name}",
            "Dependencies: ",
            "1 - other (0 (null)) ",
            "Provides: ",
            "1 - ",
            "Reverse Provides: ",
            "",
        ]
    )


@pytest.mark.parametrize(
    ("versions", "candidate", "rows"),
    [
        # the pin of the repository wins over the newer version
        (
            [f"2 ({ARCHIVE}.lz4)", f"1 ({NVIDIA})"],
            "1",
            [
                ("2", 500, ["http://archive.example/ubuntu noble-updates/restricted amd64"]),
                ("1", 600, ["https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64"]),
            ],
        ),
        ([f"2 ({OLD_LIST})"], None, [("2", -10, ["http://old.example/ubuntu noble/main amd64"])]),
        (
            [f"2 ({ARCHIVE}) ({OLD_LIST})"],
            "2",
            [
                (
                    "2",
                    500,
                    [
                        "http://archive.example/ubuntu noble-updates/restricted amd64",
                        "http://old.example/ubuntu noble/main amd64",
                    ],
                )
            ],
        ),
        # installed, or from a list of another form: apt's own policy has the word
        ([f"2 ({ARCHIVE}) (/tmp/work/status)"], None, None),
        (["2 (/srv/repo/Packages)"], None, None),
        ([], None, None),
    ],
)
def test_where_versions_are_from_without_asking_for_every_name(versions, candidate, rows) -> None:
    packages = apt_query.parse_showpkg(showpkg("nvidia-utils-580", *versions) + showpkg("absent"))
    tables = apt_query.tables_from_lists(packages, apt_query.parse_places(HEADER))
    if rows is None:
        assert tables == {}
        return
    assert tables == {
        "nvidia-utils-580": {
            "candidate": candidate,
            "versions": [dict(zip(("version", "priority", "where"), row, strict=True)) for row in rows],
        }
    }


def test_new_sources_share_the_time_of_one_refresh(monkeypatch):
    clock, given = [0.0], []
    monkeypatch.setattr(apt_query, "lists_are_current", lambda age: True)
    monkeypatch.setattr(apt_query, "_has_lists", lambda *_: False)
    monkeypatch.setattr(apt_query, "_own_file", lambda *_: "/x")
    monkeypatch.setattr(apt_query.time, "monotonic", lambda: clock[0])

    def update(argv, timeout, errors):
        given.append(timeout)
        clock[0] += 200
        return []

    monkeypatch.setattr(apt_query, "_update", update)
    assert apt_query._refresh("/w", "/c", [{}, {}, {}], "if_stale", 21600, 300, []) == (True, [])
    assert given == [300, 100, 10]


@pytest.mark.parametrize(
    ("refresh", "current", "fetched"),
    [("always", True, True), ("if_stale", True, False), ("if_stale", False, True), ("never", False, False)],
)
def test_when_lists_are_fetched(monkeypatch, refresh, current, fetched):
    calls = []
    monkeypatch.setattr(apt_query, "lists_are_current", lambda age: current)
    monkeypatch.setattr(apt_query, "_update", lambda argv, timeout, errors: calls.append(argv) or [])
    assert apt_query._refresh("/w", "/c", [], refresh, 21600, 300, [])[0] is fetched and bool(calls) is fetched


def test_another_word_for_when_is_refused():
    with pytest.raises(apt_query.AptError, match="refresh must be"):
        apt_query._refresh("/w", "/c", [], "sometimes", 21600, 300, [])


@pytest.fixture
def private(monkeypatch, tmp_path):
    """Work folders are made in a folder of the test; what is asked of apt is written down."""
    monkeypatch.setattr(apt_query.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(apt_query.tempfile, "mkdtemp", lambda prefix: str(folder(tmp_path / f"{prefix}x")))
    return tmp_path


def folder(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


@pytest.mark.parametrize("environment", [None, {}, {"http_proxy": "http://proxy.test:3128"}])
def test_an_offer_is_made_in_a_folder_that_apt_can_read_and_by_the_proxy(private, monkeypatch, environment):
    asked = []
    monkeypatch.setattr(
        apt_query, "_candidates", lambda work, *args: asked.append((work, args[-2])) or {"workdir": work}
    )
    work = Path(apt_query.candidates(environment=environment)["workdir"])
    assert work.stat().st_mode & 0o777 == 0o755 and asked == [(str(work), environment or {})]


def test_an_offer_that_fails_leaves_no_folder(private, monkeypatch):
    monkeypatch.setattr(apt_query, "_candidates", lambda *_: (_ for _ in ()).throw(AptError("apt.key", "m")))
    with pytest.raises(AptError):
        apt_query.candidates()
    assert list(private.iterdir()) == []


@pytest.mark.parametrize(("more", "stays"), [({}, False), ({"keep": False}, False), ({"keep": True}, True)], ids=str)
def test_a_simulation_takes_the_folder_of_an_offer_over(private, monkeypatch, more, stays):
    work = folder(private / "gpu-provision-apt-x")
    monkeypatch.setattr(apt_common, "status_text", lambda: "")
    monkeypatch.setattr(apt_common, "run", lambda argv, timeout: apt_common.Result(0))
    assert apt_query.simulate(workdir=str(work), **more)["changes"] == []
    assert work.exists() is stays


def test_only_a_folder_of_an_offer_is_used_and_removed(private, monkeypatch):
    """Its name comes from outside."""
    ours, other, below = private / "gpu-provision-apt-x", private / "other", private / "sub/gpu-provision-apt-x"
    for path in (ours, other, below.parent, below):
        folder(path)
    (private / "gpu-provision-apt-link").symlink_to(other)
    (private / "gpu-provision-apt-file").write_text("")
    assert apt_query._checked_workdir(str(ours)) == apt_query._checked_workdir(f"{other}/../{ours.name}") == str(ours)
    names = ("gpu-provision-apt-link", "gpu-provision-apt-file", "gpu-provision-apt-gone", "gone")
    for path in (other, below, "/etc", *(private / name for name in names)):
        with pytest.raises(AptError) as refused:
            apt_query._checked_workdir(str(path))
        assert refused.value.code == "apt.workdir_gone"
    monkeypatch.setattr(os, "geteuid", lambda: ours.stat().st_uid + 1)
    with pytest.raises(AptError, match="no longer exists"):
        apt_query._checked_workdir(str(ours))


@pytest.fixture
def conf(monkeypatch, tmp_path):
    """apt.conf.d in a folder of the test; there is no /etc/apt/apt.conf."""
    isfile, listdir = os.path.isfile, apt_query._listdir
    there = {"/etc/apt/apt.conf.d": str(tmp_path)}
    monkeypatch.setattr(apt_query.os.path, "isfile", lambda path: path != "/etc/apt/apt.conf" and isfile(moved(path)))
    monkeypatch.setattr(apt_query, "_listdir", lambda path: listdir(there.get(path, path)))
    read = apt_query.host_tree.read_text
    monkeypatch.setattr(apt_query.host_tree, "read_text", lambda path, **more: read(moved(path), **more))

    def moved(path):
        return str(path).replace("/etc/apt/apt.conf.d", str(tmp_path))

    return tmp_path


def test_without_our_proxy_the_hosts_own_counts(conf, monkeypatch):
    monkeypatch.setattr(apt_query.apt_files, "PROXY", str(conf / "80gpu-provision-proxy"))
    (conf / "10own").write_text('Acquire::http::Proxy "http://old.test:1";\nAcquire::Languages "none";\n')
    (conf / "90own.conf").write_text('Acquire::https::Proxy::repo.test "DIRECT";\n')
    # apt reads no file of such a name
    (conf / "95own.bak").write_text('Acquire::http::Proxy "http://older.test:1";\n')
    assert apt_query._without_our_proxy() == []
    (conf / "80gpu-provision-proxy").write_text('Acquire::http::Proxy "http://ours.test:1";\n')
    assert apt_query._without_our_proxy() == [
        "#clear Acquire::http::Proxy;",
        "#clear Acquire::https::Proxy;",
        'acquire::http::proxy "http://old.test:1";',
        'acquire::https::proxy::repo.test "DIRECT";',
    ]


@pytest.mark.parametrize(
    ("own", "foreign", "config", "lines"),
    [
        ("amd64", None, "", ['APT::Architectures { "amd64"; };']),
        ("amd64", "amd64\ni386\n", "", ['APT::Architectures { "amd64"; "i386"; };']),
        ("amd64", "i386\n", 'APT::Architectures { "amd64"; };\n', []),
        (None, "i386\n", "", []),
    ],
)
def test_architectures_are_those_of_dpkg_unless_the_host_says_them(conf, monkeypatch, own, foreign, config, lines):
    (conf / "99host").write_text(config)
    monkeypatch.setattr(apt_query, "_DPKG_ARCH", str(conf / "arch"))
    if foreign:
        (conf / "arch").write_text(foreign)
    status = f"Package: dpkg\nStatus: install ok installed\nArchitecture: {own}\n" if own else STATUS
    assert apt_query._architectures(status) == lines
