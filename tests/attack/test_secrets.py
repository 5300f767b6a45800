"""No password or token of a host leaves it: file trees with secrets in every position, through the probe and diagnose's read."""

import json
import random
import re
import string
import subprocess
import sys
import time
from functools import partial

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics as probe_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from ansible_collections.gpu.provision.plugins.module_utils.rescue import step as rescue_step
from provision.catalog import load_catalog
from provision.cli import run
from provision.collection import ROOT
from provision.errors import Issue
from provision.facts import Facts
from provision.inventory import Host
from provision.inventory.repositories import _refuse_odd_url
from provision.inventory.variables import VariablesError, effective
from provision.lib import yaml_reader
from provision.parts.conda.addresses import unverified, unverified_in_file
from provision.parts.conda.desired import CondaConfig, with_files
from provision.parts.conda.resolve import resolve_conda
from provision.parts.decision import Decision
from provision.remote import bundle
from tests.unit import condatrees, hosts, trees

CASES = yaml_reader.load((ROOT / "tests/cases/secrets.yml").read_text(encoding="utf-8"))


def secret(seed):
    """A secret that looks like nothing else: 20 capital letters and digits."""
    made = random.Random(seed)  # noqa: S311 - the same in each run
    return "".join(made.choice(string.ascii_uppercase + string.digits) for _ in range(20))


@pytest.mark.parametrize("position", CASES["positions"])
def test_a_secret_is_redacted_wherever_it_stands(position):
    for seed in range(20):
        value = secret(f"{position}{seed}")
        text = position.replace("§", value)
        for whole in (text, f"before {text} after", f"first line\n{text}\nlast", f"E: {text}, {text}"):
            shown = redact.text(whole)
            assert value not in shown, shown
            assert redact.text(shown) == shown
            assert value not in json.dumps(redact.data({"a": [whole, {whole: ("x", whole)}]}))


def test_host_and_path_stay():
    shown = redact.text("https://me:pw@conda.example:8443/t/tk-1/chan/linux-64?token=x#sha256=ab")
    assert shown == "https://***@conda.example:8443/t/***/chan/linux-64?token=***#sha256=ab"


@pytest.mark.parametrize("text", CASES["harmless"])
def test_what_is_no_secret_stays_and_is_not_refused(text):
    assert redact.text(text) == text and not redact.has_secret(text)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "splunk-token", "password", "identitytoken", "anaconda_token", "client_secret", "auth"]
)
def test_a_value_is_redacted_by_its_name(name):
    assert redact.data({"a": {name: "S3CRET"}}) == {"a": {name: "***"}}


@pytest.mark.parametrize("piece", CASES["hostile"])
def test_a_hostile_text_takes_linear_time(piece):
    # A pattern that looks back at every place would take hours for this, not a moment: the limit is for slow machines.
    started = time.monotonic()
    for head in ("://", "token=password proxy=", "Authorization: bearer basic ", ""):
        redact.text(head + piece * (200_000 // len(piece)))
    assert time.monotonic() - started < 60


def test_random_texts_redacted_twice_are_as_redacted_once():
    words = ["https", "user", "\\", "'", "=", ":", "/", "S3CRET", "\u2028", "é"]
    pieces = [*CASES["hostile"], *CASES["positions"], *CASES["harmless"], *words]
    made = random.Random(13)  # noqa: S311 - the same in each run
    for _ in range(3000):
        text = "".join(made.choice(pieces) for _ in range(made.randint(1, 12)))
        once = redact.text(text)
        assert redact.text(once) == once, text


# --- a host with secrets in every file that is read ----------------------------------------------------------


def host(root, seed):
    """Write the files of the table with a new secret in each place; returns [(secret, path)]."""
    used = []

    def fill(match, path):
        used.append((secret(f"{seed}-{len(used)}"), path))
        return used[-1][0]

    condatrees.build(root, {"prefixes": [{"path": "/opt/miniconda3"}, {"path": "/home/lab/miniconda3"}]})
    for path, text in CASES["files"].items():
        trees.write(root, path, re.sub("§", partial(fill, path=path), text))
    (root / "usr/bin/dockerd").chmod(0o755)
    assigned = [line for line in CASES["positions"] if "=" in line or ":" in line]
    for path in ("/etc/environment", "/home/lab/.bashrc", "/home/lab/.profile"):
        text = CASES["files"][path] + "\n".join(assigned)
        trees.write(root, path, re.sub("§", partial(fill, path=path), text))
    return used


def seen(document, used):
    text = json.dumps(document, ensure_ascii=False)
    return [f"{value} of {path}" for value, path in used if value in text]


@pytest.mark.parametrize("seed", range(3))
def test_no_secret_of_a_host_is_in_facts_or_diagnostics(tmp_path, seed):
    used = host(tmp_path, seed)
    facts = probe_facts.collect(root=str(tmp_path))
    read = probe_diagnostics.collect(root=str(tmp_path))
    assert (
        len(used) > 200
        and facts["apt"]["sources"]
        and facts["conda"]["prefixes"]
        and read["trouble"]["user"]["proxies"]
    )
    assert seen(facts, used) == [] and seen(read, used) == []
    Facts.model_validate(facts)
    # What is there is still told.
    assert "https://conda.example/t/***/chan" in json.dumps(facts) and "https://***@archive.example/z" in json.dumps(
        facts
    )


def test_the_program_on_the_host_redacts_every_answer_and_every_error(tmp_path):
    text = bundle.program("_importer") + "\n" + bundle.program("_server")
    program = text.replace("\nserve()\n", "\n") + (
        "sys.meta_path.insert(0, Finder())\n"
        "for module in (GOOD, BAD):\n"
        "    print(json.dumps(answer({'module': module, 'args': {}, 'sources': SOURCES})))\n"
    )
    sources = {
        "lib.redact": bundle.source("lib.redact"),
        "lib.lazy_re": bundle.source("lib.lazy_re"),
        "good": "def main(args): return {'a': ['https://u:S3CRET1@h'], 'token': 'S3CRET2'}",
        "bad": "def main(args): raise ValueError('https://u:S3CRET3@h and token=S3CRET4')",
    }
    program = (
        program.replace("SOURCES = {}", f"SOURCES = {sources!r}").replace("GOOD", "'good'").replace("BAD", "'bad'")
    )
    said = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert len(said.splitlines()) == 2 and '"ok": false' in said and "S3CRET" not in said
    assert "lib.redact" in bundle.needed("conda.size")


def test_a_module_redacts_its_answer_its_error_and_its_arguments():
    program = (
        "import provision.collection, json, sys\n"
        "from ansible.module_utils import basic\n"
        "from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule\n"
        "basic._ANSIBLE_ARGS = json.dumps({'ANSIBLE_MODULE_ARGS': {'a': 'https://u:S3CRET@h'}}).encode()\n"
        "basic._ANSIBLE_PROFILE = 'legacy'\n"
        "module = HostModule(argument_spec={'a': {}})\n"
        "module.warn('token=S3CRET')\n"
        "if sys.argv[1] == 'exit': module.exit_json(said=['https://S3CRET@h'], diff={'before': 'password=S3CRET'})\n"
        "module.fail_json(msg='E: http://u:S3CRET@h/x', because=['Bearer S3CRETS3CRET'])\n"
    )
    for how in ("exit", "fail"):
        done = subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, cwd=ROOT, check=False
        )
        # The arguments are in what ansible-core 2.19 prints; 2.21 leaves them out.
        assert ('"said"' if how == "exit" else '"failed"') in done.stdout, done
        assert "S3CRET" not in done.stdout + done.stderr, done


def test_the_log_of_a_program_holds_no_secret(tmp_path):
    with open(tmp_path / "log", "a+b") as log:
        log.write(b"head\n")
        result = apt_common.run(["sh", "-c", "echo Get:1 http://u:S3CRET@h/x; echo E: token=S3CRET >&2"], 60, log=log)
        log.write(b"tail\n")
    text = (tmp_path / "log").read_text()
    assert text == "head\nGet:1 http://***@h/x\nE: token=***\ntail\n" and "S3CRET" not in result.text


def test_a_repaired_source_keeps_the_login_that_only_the_host_knows():
    text, told = rescue_step.Steps._rewritten(
        "deb http://me:S3CRET@h.example/ubuntu2204 noble main\n",
        "/etc/apt/sources.list",
        [{"line": 1, "uri": "http://***@h.example/ubuntu2204", "to": "http://***@h.example/ubuntu2404"}],
    )
    assert text == "deb http://me:S3CRET@h.example/ubuntu2404 noble main\n" and "S3CRET" not in str(told)


def test_the_events_of_a_run_hold_no_secret(tmp_path, monkeypatch):
    from ansible_collections.gpu.provision.plugins.callback.gpu_provision_events import CallbackModule

    monkeypatch.setenv("GPU_PROVISION_EVENTS", str(tmp_path / "events"))
    CallbackModule()._write("failed", message="fatal: https://u:S3CRET@h/x.git", because=["token=S3CRET"])
    text = (tmp_path / "events").read_text()
    assert "https://***@h/x.git" in text and "S3CRET" not in text


def test_errors_hold_no_secret():
    issue = Issue(code="x.y", message="see https://u:S3CRET@h", because=["token=S3CRET"], hint="http://S3CRET@h")
    assert "S3CRET" not in issue.model_dump_json()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_diagnose_does_not_repeat_the_secrets_of_a_text(capsys, form):
    run(
        ["diagnose", "--text", "E: Failed to fetch http://u:S3CRET@archive.example/x token=S3CRET 404 Not Found", *form]
    )
    said = capsys.readouterr()
    assert said.out + said.err and "S3CRET" not in said.out + said.err


# --- what the inventory may not say --------------------------------------------------------------------------


@pytest.mark.parametrize("values", CASES["logins"], ids=lambda values: json.dumps(values)[:60])
def test_a_login_in_the_inventory_is_refused_and_not_repeated(values):
    with pytest.raises(VariablesError) as caught:
        effective(Host(name="gpu01", vars=values))
    (issue,) = caught.value.issues
    assert issue.code == "usage.url_with_password" and issue.hint and "S3CRET" not in issue.model_dump_json()


@pytest.mark.parametrize(
    "values", [{"gpu_proxy_http": "http://u:S3CRET@p:3128"}, {"gpu_mirror_url": "https://h/?token=S3CRET"}]
)
def test_logins_of_proxies_and_mirrors_are_refused_where_they_are_read(values):
    from provision.errors import UsageError
    from provision.inventory.proxy import HostProxy

    with pytest.raises(UsageError) as caught:
        HostProxy.from_vars(values)
        _refuse_odd_url(values["gpu_mirror_url"])
    assert caught.value.issue.code == "usage.url_with_password" and "S3CRET" not in caught.value.issue.model_dump_json()


def test_what_nothing_verifies():
    assert [text for text in CASES["unverified"] if not unverified(text)] == []
    assert [text for text in CASES["verified"] if unverified(text)] == []
    assert unverified_in_file("channels:\n  - conda-forge  # not http://h/x\n# http://h\n") == ""
    assert (
        unverified_in_file("dependencies:\n  - pip:\n      - --extra-index-url http://h/simple\n") == "http://h/simple"
    )


@pytest.mark.parametrize("case", CASES["configs"], ids=lambda case: json.dumps(case["config"])[:60])
def test_a_wish_that_nothing_verifies_is_refused(tmp_path, case):
    for name, text in CASES["wish_files"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    values = {f"miniconda_{key}": value for key, value in {"install": True, **case["config"]}.items()}
    config = with_files(CondaConfig.from_vars(values), tmp_path)
    decision = resolve_conda(config, hosts.host(["RTX 4090"]), load_catalog(), Decision())
    codes = [issue.code for issue in decision.blockers]
    assert case["refused"] in codes if case["refused"] else codes == [], codes
    assert "S3CRET" not in json.dumps([issue.model_dump() for issue in decision.blockers])
