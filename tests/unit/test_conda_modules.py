"""Pure parts of the modules for conda: tables in tests/cases/conda_*.yml."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda import condarc, make_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import environment as conda_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import errors as conda_errors
from ansible_collections.gpu.provision.plugins.module_utils.conda import fetch as conda_fetch
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda import marker as conda_marker
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError, Result
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from provision.lib import yaml_reader

CASES = Path(__file__).parents[1] / "cases"


def table(name: str) -> list[Any]:
    cases = yaml_reader.load((CASES / f"conda_{name}.yml").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"].replace(" ", "-")) for case in cases]


@pytest.mark.parametrize("case", table("condarc"))
def test_condarc(case):
    if "error" in case:
        with pytest.raises(CondaError) as caught:
            condarc.merge(case["before"], case["wanted"])
        assert caught.value.code == "conda.condarc" and case["error"] in caught.value.because[0]
        return
    after = condarc.merge(case["before"], case["wanted"])
    assert after == case["after"]
    assert condarc.merge(after, case["wanted"]) == after
    # The file says the same to a real YAML reader, and nothing else has changed in it.
    read = yaml_reader.load(after)
    assert {key: read[key] for key in case["wanted"]} == case["wanted"]
    rest = {key: value for key, value in (yaml_reader.load(case["before"]) or {}).items() if key not in case["wanted"]}
    assert {key: value for key, value in read.items() if key not in case["wanted"]} == rest


@pytest.mark.parametrize("case", table("failures"))
def test_failures(case):
    result = Result(case.get("rc", 1), redact.text(case["text"]), case.get("timed_out", False))
    error = conda_errors.explain(result, case.get("who", "conda"), "py311", "/opt/x", ["https://me:pw@c.example.org/x"])
    assert error.code == case["code"] and error.hint
    assert case.get("words", "") in "\n".join(error.because)
    assert "secret" not in repr(error.as_dict()) and "pw@" not in repr(error.as_dict())


@pytest.mark.parametrize("case", table("made"))
def test_made(case):
    params = {
        "packages": case.get("packages"),
        "override_cuda": case.get("override_cuda", ""),
        "pip": [{"packages": case.get("pip", []), "index_url": ""}],
    }
    conda = {
        name: dict(zip(("version", "build"), text.split("="), strict=True))
        for name, text in case.get("conda", {}).items()
    }
    assert conda_marker.mismatches(params, conda, case.get("has_pip", {})) == case["wrong"]


STATE = {
    "state": "whole",
    "marked": False,
    "fresh": False,
    "missing": [],
    "leftovers": [],
    "version": "25.7.0",
    "python": "3.13.5",
    "record": None,
}


@pytest.mark.parametrize(
    ("state", "action", "version", "answer"),
    [
        ({"state": "absent"}, "install", "26.5.3-1", "install"),
        ({"state": "absent"}, "repair", "26.5.3-1", "install"),
        ({"state": "absent"}, "configure", "26.5.3-1", "conda.plan_moved"),
        ({"state": "partial", "marked": True}, "configure", "26.5.3-1", "finish"),
        ({"state": "partial", "missing": ["bin/conda"]}, "install", "26.5.3-1", "conda.partial"),
        ({"state": "partial", "missing": ["bin/conda"]}, "repair", "26.5.3-1", "repair"),
        ({"state": "foreign"}, "repair", "26.5.3-1", "conda.prefix_foreign"),
        ({}, "install", "26.5.3-1", None),
        ({}, "configure", "26.5.3-1", None),
        ({}, "repair", "26.5.3-1", None),
        ({}, "update", "26.5.3-1", "update"),
        ({}, "update", "25.7.0-2", None),
        ({}, "update", "24.11.1-0", None),
        ({}, "update", "latest", "update"),
        ({"version": "9.0.0"}, "update", "10.0.0-1", "update"),
        ({"record": {"version": "25.7.0-1"}}, "update", "25.7.0-2", "update"),
        ({"record": {"version": "25.7.0-2"}}, "update", "25.7.0-2", None),
        # conda updated itself meanwhile: the installer of the record would take it back.
        ({"version": "26.1.0", "record": {"version": "25.7.0-2"}}, "update", "25.11.1-1", None),
    ],
)
def test_what_is_done_to_a_prefix(state, action, version, answer):
    if answer and answer.startswith("conda."):
        with pytest.raises(CondaError) as caught:
            conda_install.decide({**STATE, **state}, action, version)
        assert caught.value.code == answer and caught.value.hint
        return
    assert conda_install.decide({**STATE, **state}, action, version) == answer


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        ("/opt/mini conda", "conda.prefix_space"),
        ("/home/bob\t/x", "conda.prefix_space"),
        ("/opt/" + "x" * 250, "conda.prefix_long"),
        ("/opt", "conda.prefix_top"),
        ("/", "conda.prefix_top"),
        ("/opt/miniconda3", None),
        ("/home/müller/.miniconda3", None),
    ],
)
def test_prefixes_that_no_installer_takes(prefix, code):
    if code is None:
        assert conda_install.check_prefix(prefix) is None
        return
    with pytest.raises(CondaError) as caught:
        conda_install.check_prefix(prefix)
    assert caught.value.code == code and caught.value.hint


FILES = {
    "bin/python": "#!",
    "bin/conda": "#!",
    "conda-meta/history": "",
    "conda-meta/python-3.13.5-h1_100_cp313.json": "{}",
    "conda-meta/conda-26.5.3-py313h06a4308_0.json": '{"channel": "https://repo.anaconda.com/pkgs/main"}',
    "conda-meta/conda-libmamba-solver-25.4.0-pyhd3eb1b0_0.json": "{}",
    "_conda": "",
    ".nonadmin": "",
}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "whole"),
        (None, "empty"),
        ({"bin/conda": None}, "partial"),
        ({"bin/python": None}, "partial"),
        ({"conda-meta/history": None}, "partial"),
        ({"conda-meta/python-3.13.5-h1_100_cp313.json": None}, "partial"),
        ({"conda-meta/conda-26.5.3-py313h06a4308_0.json": None}, "partial"),
        ({"conda-meta": None, "_conda": None, "condabin/conda": ""}, "partial"),
        ({"preconda.tar.bz2": ""}, "partial"),
        ({"install_tmp/x": ""}, "partial"),
        ({conda_read.MARKER: "{}"}, "partial"),
        ({conda_read.MARKER: ""}, "partial"),
    ],
)
def test_states_of_a_prefix(tmp_path, change, state):
    if change is not None:
        gone = [name for name, text in change.items() if text is None]
        files = {n: t for n, t in FILES.items() if not any(n == g or n.startswith(g + "/") for g in gone)}
        write(tmp_path / "opt/conda", {**files, **change})
    else:
        (tmp_path / "opt/conda").mkdir(parents=True)
    found = conda_read.prefix_state("/opt/conda", HostTree(str(tmp_path)))
    assert found["state"] == state
    if state == "whole":
        assert (found["version"], found["python"]) == ("26.5.3", "3.13.5")


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)


def test_other_things_at_the_prefix_are_foreign(tmp_path):
    write(tmp_path / "opt/conda", {"pyvenv.cfg": "", "bin/python": "#!"})
    assert conda_read.prefix_state("/opt/conda", HostTree(str(tmp_path)))["state"] == "foreign"
    (tmp_path / "opt/file").write_text("")
    assert conda_read.prefix_state("/opt/file", HostTree(str(tmp_path)))["state"] == "foreign"


def test_terms_that_were_accepted_for_a_prefix(tmp_path):
    main, r = conda_read.TERMS_CHANNELS
    # sha256 of "repo.anaconda.com" + "pkgs/main", as hash_channel of conda-anaconda-tos makes it.
    assert conda_read.terms_hash(main) == "3c9d068aa053e2a1c4313fe3391b7a8ee57c4fbd09c4e8aeae49ef333a740150"
    folder = tmp_path / "opt/conda" / conda_read.TERMS
    write(folder / conda_read.terms_hash(main), {"1.0.json": '{"tos_accepted": true}'})
    write(
        folder / conda_read.terms_hash(r), {"1.0.json": '{"tos_accepted": true}', "2.0.json": '{"tos_accepted": false}'}
    )
    assert conda_read.accepted_terms("/opt/conda/" + conda_read.TERMS, HostTree(str(tmp_path))) == [main]


def test_what_an_installer_says_of_itself(tmp_path):
    path = tmp_path / "x.sh"
    path.write_bytes(
        b'#!/bin/sh\n#\n# NAME:  Miniconda3\n# VER:   py313_25.9.1-3\ntotal_installation_size_kb="997567"\n'
        + b"\0" * 90000
    )
    assert conda_install.header(str(path)) == {"kib": 997567}
    path.write_bytes(b"PK\x03\x04")
    assert conda_install.header(str(path)) is None


@pytest.mark.parametrize(
    ("rc", "text", "code"),
    [
        (1, "tar: bin/python: Cannot write: No space left on device", "conda.disk_full"),
        (1, "ERROR: Not enough free disk space. Only 12 MB are available", "conda.disk_full"),
        (1, "cp: error writing: Disk quota exceeded", "conda.disk_full"),
        (1, "Installer requires GLIBC >=2.28, but system has 2.27.", "conda.glibc"),
        (126, "/opt/x/_conda: Permission denied", "conda.installer_failed"),
        (-9, "Unpacking payload...", "conda.installer_killed"),
        (137, "Killed", "conda.installer_killed"),
        (2, "", "conda.installer_failed"),
    ],
)
def test_what_an_installer_means(tmp_path, rc, text, code):
    error = conda_install.explain(Result(rc, text, False), str(tmp_path), "x.sh", "nothing was left")
    assert error.code == code and error.hint and "nothing was left" in error.because


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("alias ls=ls\n", None),
        (
            "# >>> conda initialize >>>\n__c=\"$('/opt/a b/bin/conda' 'hook')\"\n# <<< conda initialize <<<\n",
            "/opt/a b",
        ),
        ("# >>> conda initialize >>>\nno idea\n# <<< conda initialize <<<\n", ""),
        ("# >>> conda initialize >>>\n/opt/a/bin/conda\n", None),
    ],
)
def test_the_block_that_conda_init_writes(text, prefix):
    assert conda_read.init_block(text) == prefix


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@h/x", "https://***@h/x"),
        ("https://h/t/tk-1-2/chan/linux-64", "https://h/t/***/chan/linux-64"),
        ("https://h/team/chan", "https://h/team/chan"),
        ("get http://a:b@h/1 and http://c@h/2", "get http://***@h/1 and http://***@h/2"),
    ],
)
def test_secrets_in_urls(url, shown):
    assert redact.text(url) == shown
    assert redact.has_secret(url) == (url != shown)


def test_pip_gets_a_password_through_its_environment_and_nothing_else_so():
    step = {"packages": ["torch==2.6.0+cu124"], "index_url": "https://h/whl/cu124", "extra_index_urls": ["https://e/s"]}
    argv, extra = make_environment.pip_command("/e/bin/python", step)
    assert argv[:5] == ["/e/bin/python", "-m", "pip", "install", "--no-input"]
    assert argv[-5:] == ["--index-url", "https://h/whl/cu124", "--extra-index-url", "https://e/s", "torch==2.6.0+cu124"]
    assert "PIP_INDEX_URL" not in extra
    step["index_url"] = "https://me:pw@h/whl/cu124"
    argv, extra = make_environment.pip_command("/e/bin/python", step)
    assert "pw" not in " ".join(argv) and "--extra-index-url" not in argv
    assert extra["PIP_INDEX_URL"] == step["index_url"] and extra["PIP_EXTRA_INDEX_URL"] == "https://e/s"


@pytest.mark.parametrize("user", ["", "me:pw@"])
def test_pip_takes_an_index_over_http_that_the_inventory_allows(user):
    step = {"packages": ["a"], "index_url": f"http://{user}h:8080/simple", "extra_index_urls": ["https://e/s"]}
    argv, _ = make_environment.pip_command("/e/bin/python", step)
    assert argv[argv.index("--trusted-host") + 1] == "h:8080" and argv.count("--trusted-host") == 1


def test_the_environment_of_what_we_run_is_small_and_known(monkeypatch):
    for name, value in {
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        "PYTHONPATH": "/x",
        "CONDA_PREFIX": "/other",
        "CONDARC": "/x",
        "PIP_INDEX_URL": "https://x",
        "https_proxy": "http://proxy:3128",
        "SSL_CERT_FILE": "/etc/corp.pem",
    }.items():
        monkeypatch.setenv(name, value)
    env = conda_common.environment(conda_common.Owner("root"), {"CONDA_OVERRIDE_CUDA": "12.4"})
    assert env["https_proxy"] == "http://proxy:3128" and env["SSL_CERT_FILE"] == "/etc/corp.pem"
    assert env["CONDA_OVERRIDE_CUDA"] == "12.4" and env["HOME"] == conda_common.Owner("root").home
    assert not {"LD_LIBRARY_PATH", "PYTHONPATH", "CONDA_PREFIX", "CONDARC", "PIP_INDEX_URL"} & set(env)


def test_profile_by_who_can_change_the_prefix():
    assert '. "/opt/c/etc/profile.d/conda.sh"' in conda_common.render_profile("/opt/c")
    for owner, umask in (("conda", "022"), ("root", "002")):
        assert "conda.sh" not in conda_common.render_profile("/opt/c", owner, umask)


ENV = {"state": "whole", "marked": False, "record": None, "packages": {}, "pip": {}}
RECORD = {"spec": {"wish": {"python": "3.11"}, "packages": [], "pip": [], "file_kind": "", "file_content": ""}}
PARAMS = {"wish": {"python": "3.11"}, "packages": [], "pip": [], "file_kind": "", "file_content": ""}


@pytest.mark.parametrize(
    ("state", "action", "changes", "answer"),
    [
        ({"state": "absent"}, "create", {}, "create"),
        ({"state": "absent"}, "rebuild", {}, "create"),
        ({"state": "absent"}, "configure", {}, "conda.plan_moved"),
        ({"state": "partial", "marked": True}, "create", {}, "finish"),
        ({"state": "foreign"}, "rebuild", {}, "conda.environment_foreign"),
        ({}, "create", {}, "conda.environment_differs"),
        ({}, "rebuild", {}, "rebuild"),
        ({}, "configure", {}, None),
        ({"record": RECORD}, "create", {}, None),
        ({"record": RECORD}, "create", {"wish": {"python": "3.12"}}, "conda.environment_differs"),
        ({"record": RECORD}, "rebuild", {"wish": {"python": "3.12"}}, "rebuild"),
        ({"record": RECORD}, "rebuild", {}, None),
        ({"record": RECORD}, "rebuild", {"packages": ["python=3.11"]}, "rebuild"),
        ({"state": "partial"}, "create", {}, "conda.environment_differs"),
        ({"state": "partial"}, "rebuild", {}, "rebuild"),
    ],
)
def test_what_is_done_to_an_environment(state, action, changes, answer):
    if answer and answer.startswith("conda."):
        with pytest.raises(CondaError) as caught:
            make_environment.decide({**ENV, **state}, action, {**PARAMS, **changes})
        assert caught.value.code == answer and caught.value.hint
        return
    assert make_environment.decide({**ENV, **state}, action, {**PARAMS, **changes}) == answer


def test_environment_files_get_channels_only_where_they_name_none():
    text = "dependencies:\n  - python=3.11\n  - pip:\n      - torch\n"
    after = yaml_reader.load(make_environment.with_channels(text, ["conda-forge"]))
    assert after["channels"] == ["conda-forge", "nodefaults"]
    assert after["dependencies"] == yaml_reader.load(text)["dependencies"]
    own = "channels: [bioconda]\n" + text
    assert make_environment.with_channels(own, ["conda-forge"]) == own


def test_last_lines_without_progress_bars():
    text = "a\nDownloading | ######     | 60%\n\nb https://me:pw@h/x\r  50%\rdone\n"
    assert conda_common.last_lines(text) == ["a", "done"]


def test_local_sources():
    assert conda_fetch._local("file:///srv/a%20b.sh") == "/srv/a b.sh"
    assert conda_fetch._local("/srv/x.sh") == "/srv/x.sh"
    assert conda_fetch._local("https://h/x.sh") is None


def test_records_are_json_that_says_its_kind(tmp_path):
    write(
        tmp_path / "e", {conda_read.RECORD: json.dumps({"schema": 1, "kind": "environment"}), "conda-meta/history": ""}
    )
    state = conda_read.environment_state("/e", HostTree(str(tmp_path)))
    assert state["state"] == "whole" and state["record"]["kind"] == "environment"


@pytest.mark.parametrize(("folder", "code"), [("gone", "conda.not_writable"), ("", "conda.busy")])
def test_a_folder_that_is_not_there_is_no_other_run(folder, code, tmp_path):
    class Writes(conda_common.Work):
        def run(self):
            if not folder:
                raise conda_common.OtherRun
            self.put(str(tmp_path / folder / "file"), None, "text")

    params = {"owner": pwd.getpwuid(os.getuid()).pw_name}
    with pytest.raises(conda_common.CondaError) as raised:
        Writes(params, False, str(tmp_path), str(tmp_path / "marker")).carry_out()
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("tag", "cuda"),
    [("cu92", "9.2"), ("cu124", "12.4"), ("cu130", "13.0"), ("cu12", None), ("cu1240", None), ("cpu", None)],
)
def test_the_cuda_of_a_tag(tag, cuda):
    assert conda_environment.cuda_of_tag(tag) == cuda
    assert conda_environment.judge_builds({}, {"torch": f"2.0+{tag}"}) == (
        {"torch": "cuda" if cuda else "cpu"} if cuda or tag == "cpu" else {},
        cuda,
    )


@pytest.mark.parametrize("clash", [FileExistsError, FileNotFoundError])
def test_what_was_done_is_said_where_another_run_writes_the_same_file(clash, tmp_path, monkeypatch):
    real, left = conda_common.write_text, [clash]
    path = tmp_path / "condarc"

    def write_text(path, text):
        if left:
            raise left.pop()(2, "x", path)
        real(path, text)

    class Installs(conda_common.Work):
        def run(self):
            if not (tmp_path / "prefix").exists():
                (tmp_path / "prefix").mkdir()
                self.done.append("installed")
            self.put(str(path), None if not path.exists() else path.read_text(), "text")
            return {}

    monkeypatch.setattr(conda_common, "write_text", write_text)
    monkeypatch.setattr(conda_common, "as_owner", lambda owner, umask, function, *args: function(*args))
    params = {"owner": pwd.getpwuid(os.getuid()).pw_name}
    answer = Installs(params, False, str(tmp_path), str(tmp_path / "marker")).carry_out()
    assert answer["changed"] and answer["done"] == ["installed", f"wrote {path}"]
    assert path.read_text() == "text"
