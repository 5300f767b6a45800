"""The inventories and command lines that people copy: read by Ansible, checked, and planned for hosts of the release they name.

Nothing is asked of a network: NVIDIA's repository is the lab's, with every package that the real one has for that release.
"""

import re
from dataclasses import replace
from functools import cache

import pytest
import yaml

from provision import cli, inventory
from provision.catalog import load_catalog
from provision.collection import ROOT
from provision.inventory import cards
from provision.lock.model import parse as parse_lock
from provision.parts.candidates import Candidates
from provision.planning import plan_from_facts
from provision.planning.verification import CheckSelection, refuse_unknown
from provision.rollout.options import parse as parse_rollout
from provision.runs.fleet import fleet_of
from tests.unit.candidates import CANDIDATES as DRIVERS
from tests.unit.candidates import CUDA_URI, archive
from tests.unit.containershosts import VERSIONS, archive_candidates, toolkit_candidates
from tests.unit.hosts import host
from tests.unit.test_docs import COMMAND, PAGES, command_lines, name
from tests.unit.test_planning import CHANGES, FakeHost
from tests.unit.test_resolve_cuda_lab import lab
from tools import docs

# What a page is about when it does not say: the release of all its sessions.
RELEASE = "24.04"
NAMED = re.compile(r"Ubuntu (\d\d\.\d\d)")
PAGES = [*PAGES, *sorted(ROOT.glob("roles/*/README.md")), *sorted(ROOT.glob("docs/findings/*.md"))]
FILES = [*sorted((ROOT / "inventory/examples").glob("*.yml")), ROOT / "inventory/examples/fleet"]


def blocks(page):
    """(YAML of a fenced block, the paragraph before it) of a page."""
    text = page.read_text()
    for match in re.finditer(r"^```ya?ml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield match[1], text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]


BLOCKS = [(page, text, before) for page in PAGES for text, before in blocks(page)]
VARIABLES = [row for row in BLOCKS if isinstance(yaml.safe_load(row[1]), dict) and "schema:" not in row[1]]


def release_of(text):
    """The Ubuntu that a text names."""
    named = NAMED.search(text)
    return named[1] if named else RELEASE


@cache
def candidates(release, cuda_uri):
    """What apt has on a fresh host of a release: the archive with docker, NVIDIA's CUDA repository and container toolkit."""
    drivers = {n: [replace(c, uri=cuda_uri) for c in rows] for n, rows in DRIVERS["cuda"].packages.items()}
    cuda = {n: [replace(c, uri=cuda_uri) for c in rows] for n, rows in lab(release).packages.items()}
    found = {}
    for packages in (
        *(one.packages for one in (DRIVERS["noble"], archive_candidates(release), toolkit_candidates(VERSIONS))),
        # the exact version that inventory/examples/lab.yml names
        {c.name: [c] for c in archive("580", "580.126.20")},
        drivers,
        cuda,
    ):
        for package, rows in packages.items():
            found[package] = [*found.get(package, []), *rows]
    return Candidates(found)


def fresh(values, release):
    """A host without a driver, with the cards and the users that its inventory names."""
    rows, total = cards.read(values["gpu_verify_expect"] or 1)
    ids = [load_catalog().find_gpu(card or "H100").gpu.ids[-1] for count, card in rows for _ in range(count)]
    return host(
        [],
        host={"os": {"id": "ubuntu", "version_id": release}},
        gpus=[{"slot": f"0000:{0x10 + i:02x}:00.0", "device": device} for i, device in enumerate(ids)],
        nvswitches=["0000:05:00.0"] if total == 8 else [],
        containers={"users": values["container_toolkit_docker_users"]},
    )


def refused(path, release):
    """Read an inventory as the command does, plan every host of it, and return why some cannot be."""
    fleet = fleet_of(inventory.load([str(path)]))
    found = {}
    for host_name, values in fleet.values.items():
        uri = values["cuda_toolkit_repo_url"] or values["nvidia_driver_repo_url"]
        there = candidates(release, uri or CUDA_URI.replace("2404", release.replace(".", "")))
        call = FakeHost(there, {**CHANGES, "changes": []})
        plan = plan_from_facts(host_name, fresh(values, release), call, dict(values))
        found.update({f"{host_name}: {b.message}": [*b.because, b.hint] for b in plan.blockers})
    return found


# ---- inventories -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "text", "before"), VARIABLES, ids=[f"{p.name}-{t.split(':')[0]}" for p, t, _ in VARIABLES]
)
def test_variables_in_pages_can_be_planned(page, text, before, tmp_path):
    lines = {"all": {"hosts": {"gpu01": None}, "vars": yaml.safe_load(text)}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(lines))
    assert refused(tmp_path / "hosts.yml", release_of(text + before)) == {}


def test_what_a_release_does_not_have_would_be_found(tmp_path):
    """The first inventory of the README, as it was: for Ubuntu 24.04, with toolkits that its repository never had."""
    lines = {"all": {"hosts": {"gpu01": {"cuda_toolkit_versions": ["11.8", "13.0"]}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(lines))
    assert ["has no CUDA 11.8" in why for why in refused(tmp_path / "hosts.yml", "24.04")] == [True]
    assert refused(tmp_path / "hosts.yml", "22.04") == {}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_inventories_of_ours_can_be_planned(path):
    text = path.read_text() if path.is_file() else ""
    assert refused(path, release_of(text)) == {}


def test_every_block_of_yaml_is_something_that_is_checked():
    """Locks are read; plays and tasks name roles and modules of ours; alerts name metrics. Nothing else is left."""
    for page, text, _ in BLOCKS:
        data = yaml.safe_load(text)
        if isinstance(data, dict):
            assert "schema" not in data or parse_lock(text), page
            continue
        for word in re.findall(r"\bgpu\.provision\.([a-z_]+)", text):
            assert [*ROOT.glob(f"roles/{word}"), *ROOT.glob(f"plugins/modules/{word}.py")], f"{page}: {word}"
        for metric in re.findall(r"\bgpu_provision_[a-z_]+", text):
            assert metric in (ROOT / "provision/drift/metrics.py").read_text(), f"{page}: {metric}"
        assert "gpu" in text, f"{page}: nobody checks\n{text}"


# ---- command lines -----------------------------------------------------------------------------------------------------


LINES = sorted({(page, tuple(words)) for page in PAGES for words in command_lines(page.read_text())})
LINES = [row for row in LINES if row[1] not in (("--version",), ("--help",))]


def parsed(words):
    """(name of the command, values of all options) as the program reads them."""
    with COMMAND.make_context("provision", list(words)) as context:
        before = dict(context.params)
        rest = [*getattr(context, "_protected_args", []), *context.args]
        _, command, rest = COMMAND.resolve_command(context, rest)
        with command.make_context(command.name, rest, parent=context) as own:
            lists = {
                key: [*(before.get(key) or ()), *value]
                for key, value in own.params.items()
                if isinstance(value, (list, tuple))
            }
            return command.name, {**before, **{k: v for k, v in own.params.items() if v}, **lists}


@pytest.mark.parametrize(("page", "words"), LINES, ids=[f"{p.name}-{' '.join(w)[:60]}" for p, w in LINES])
def test_a_command_line_means_something(page, words, capsys, monkeypatch, tmp_path):
    """Its options exist, and so do the names that they take: variables, checks, parts, findings, versions, cards."""
    command, values = parsed(words)
    extra = [text for text in values.get("extra_vars") or () if "VARS" not in text and not text.startswith("@")]
    if extra:
        fleet_of(inventory.load(["gpu01,"], None, extra))
    if command == "verify" and values["check"]:
        refuse_unknown(CheckSelection(tuple(values["check"])), [check.code for check in docs.checks.every()])
    if command == "apply":
        parse_rollout(values["canary"], values["batch"], values["max_failures"], values["wait"], {})
    if (
        command == "compat"
        or command == "diagnose"
        and (values.get("explain") or values.get("text") not in (None, "-"))
    ):
        monkeypatch.chdir(tmp_path)
        assert cli.run(list(words)) in (0, 2), capsys.readouterr()
