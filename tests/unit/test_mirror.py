"""The mirror: tables of its rules, and real apt with small signed repositories in folders."""

import base64
import hashlib
import json
import shutil
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp
from ansible_collections.gpu.provision.plugins.module_utils.mirror import read as mirror_read
from ansible_collections.gpu.provision.plugins.module_utils.mirror import wheels as mirror_wheels
from provision.catalog import load_catalog
from provision.errors import UsageError
from provision.inventory import Host, mirror_layout
from provision.inventory.repositories import FleetMirror, Mirror
from provision.inventory.variables import effective, known
from provision.lib import yaml_reader
from provision.lock.model import parse
from provision.mirror import conda
from provision.mirror.make import CondaNeed, Maker
from provision.mirror.need import Upstream, needs
from provision.mirror.serve import address, server
from provision.mirror.store import Store, here
from provision.parts.desired import Desired
from provision.planning import plan_from_facts
from tests.unit.candidates import CANDIDATES
from tests.unit.hosts import host
from tests.unit.test_planning import CHANGES, DEFAULTS, FakeHost

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/mirror.yml").read_text())
CATALOG = load_catalog()
SUITES = "noble noble-updates noble-security"


def get(url, method="GET"):
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:  # noqa: S310 - our own
        return answer.read()


# --- tables


@pytest.mark.parametrize("case", CASES["config"], ids=lambda case: str(case["vars"]))
def test_wish(case):
    if "refused" in case:
        with pytest.raises(UsageError) as refused:
            FleetMirror.from_vars(case["vars"])
        assert refused.value.issue.code == case["refused"] and refused.value.issue.hint
        assert "secret" not in str(refused.value.issue)
    else:
        assert FleetMirror.from_vars(case["vars"]).url == case["url"]


def test_the_wish_has_the_roles_variables_and_their_defaults():
    assert {name for name in known() if name.startswith("gpu_mirror_")} == {
        "gpu_mirror_url",
        "gpu_mirror_key",
        "gpu_mirror_key_fingerprint",
        "gpu_mirror_archive_url",
        "gpu_mirror_archive_key",
    }
    assert not FleetMirror.from_vars(effective(Host("gpu01")))


@pytest.mark.parametrize("case", CASES["wheels"], ids=lambda case: case["file"])
def test_wheels(case):
    assert mirror_wheels.fits(case["file"], case) is case["fits"]


@pytest.mark.parametrize("case", CASES["channels"], ids=lambda case: case["url"])
def test_channels(case):
    assert conda.channel_of(case["url"], case["alias"]) == (tuple(case["is"]) if case["is"] else None)


@pytest.mark.parametrize("case", CASES["addresses"], ids=lambda case: case["text"])
def test_addresses(case):
    if case["is"] is None:
        with pytest.raises(UsageError):
            address(case["text"])
    else:
        assert address(case["text"]) == tuple(case["is"])


def test_an_index_page_names_files_with_their_checksums():
    page = '<a href="../../wheels/a-1-py3-none-any.whl#sha256=%s">a</a><a href="b%%2Bc-1.whl">b</a>' % ("0" * 64)
    first, second = mirror_wheels.links("http://m/simple/a/", page)
    assert first == {"file": "a-1-py3-none-any.whl", "url": "http://m/wheels/a-1-py3-none-any.whl", "sha256": "0" * 64}
    assert (second["file"], second["sha256"]) == ("b+c-1.whl", None)


# --- where things come from


def test_repositories_keep_their_paths_and_those_of_a_variable_go_before():
    mirror = FleetMirror.from_vars({"gpu_mirror_url": "http://m/gpu"})
    facts = host(["RTX 4090"])
    of_mirror = mirror.instead_of(Mirror(), "cuda", facts, CATALOG)
    assert of_mirror.url == "http://m/gpu/compute/cuda/repos/ubuntu2404/x86_64" and not of_mirror.key
    own = Mirror("http://own/compute/cuda/repos/ubuntu2404/x86_64")
    assert mirror.instead_of(own, "cuda", facts, CATALOG) is own
    toolkit = mirror.instead_of(Mirror(), "container_toolkit", facts, CATALOG).url
    assert toolkit == "http://m/gpu/libnvidia-container/stable/deb/amd64"
    assert mirror.archive(facts, CATALOG)["signed_by"] == mirror_layout.ARCHIVE_KEYRING
    signed = replace(mirror, fingerprint="AB CD")
    spec = signed.archive(facts, CATALOG)
    assert (spec["key_url"], spec["fingerprint"], "signed_by" in spec) == ("http://m/gpu/key.asc", "ABCD", False)
    with pytest.raises(UsageError, match="fingerprint"):
        replace(mirror, key="http://elsewhere/key.asc").archive(facts, CATALOG)


def test_conda_takes_the_mirror_where_nothing_else_is_said():
    config = Desired({"gpu_mirror_url": "http://m/gpu", "miniconda_pip_index_url": "http://own/simple"}).conda
    assert config.installer_url == "http://m/gpu/conda/installers/"
    assert (config.channel_alias, config.pip_index_url) == ("http://m/gpu/conda", "http://own/simple")
    own = Desired({"gpu_mirror_url": "http://m/gpu", "miniconda_installer_file": "/srv/x.sh"}).conda
    assert not own.installer_url


def planned(facts, **values):
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    return plan_from_facts("gpu01", facts, call, {**DEFAULTS, **values}), call


def test_a_plan_asks_the_mirror_alone_and_has_its_sources():
    plan, call = planned(host(["RTX 4090"]), gpu_mirror_url="http://m/gpu", gpu_mirror_key_fingerprint="AB" * 20)
    asked = call.args["offer"]
    assert asked["alone"] and [spec["name"] for spec in asked["sources"]] == ["mirror"]
    assert plan.spec["apt"]["alone"]
    (written,) = plan.spec["apt"]["configure"]["repositories"]
    assert written["uris"] == "http://m/gpu/ubuntu/" and written["fingerprint"] == "AB" * 20
    plan, call = planned(host(["RTX 4090"]))
    assert not plan.spec["apt"]["alone"] and "alone" not in call.args["offer"]
    assert not plan.spec["apt"]["configure"]["repositories"]


def test_without_the_variable_our_entry_goes():
    facts = host(["RTX 4090"])
    facts.own_files[apt_files.sources_path("mirror")] = "0"
    plan, _ = planned(facts)
    (gone,) = plan.spec["apt"]["configure"]["repositories"]
    assert (gone["name"], gone["state"]) == ("mirror", "absent")
    told = [line for step in plan.steps for line in step.details]
    assert "remove /etc/apt/sources.list.d/gpu-provision-mirror.sources" in told


def test_a_keyring_of_the_host_is_named_as_it_is(tmp_path, monkeypatch):
    spec = {
        "name": "mirror",
        "uris": "http://m/ubuntu/",
        "suites": "noble",
        "components": "main",
        "signed_by": "/usr/share/k.gpg",
    }
    text = apt_sources.render(spec)
    assert "Signed-By: /usr/share/k.gpg\n" in text
    assert text == apt_files.render_sources("mirror", "http://m/ubuntu/", "noble", "main", False, "/usr/share/k.gpg")
    wanted = {}
    assert apt_configure._repository(dict(apt_configure._DEFAULTS, **spec), wanted, False)
    assert wanted[apt_files.sources_path("mirror")] == text.encode()


LOCK = """\
schema: provision/lock/1
groups:
  one:
    ubuntu: '24.04'
    arch: amd64
    driver:
      {version: 580.95.05, series: '580', flavour: open, build: signed, channel: ubuntu, variant: headless,
       packages: {nvidia-utils-580: 580.95.05-0ubuntu0.24.04.2}}
    repositories:
      cuda: {uri: "https://developer.example.org/compute/cuda/repos/ubuntu2404/x86_64/", suite: /, key: ABCD}
hosts:
  gpu01: {group: one, kernel: {release: 6.8.0-45-generic, packages: {linux-modules-nvidia-580-open-6.8.0-45-generic: 6.8.0-45.45}}}
  gpu02: {group: one, kernel: {release: 6.8.0-48-generic, packages: {linux-modules-nvidia-580-open-6.8.0-48-generic: 6.8.0-48.48}}}
"""
KEYRING = Path(__file__).parents[1] / "fixtures/ubuntu-archive-keyring.gpg"
READ = {
    "arch": "amd64",
    "archive_key": base64.b64encode(KEYRING.read_bytes()).decode(),
    "conda": {},
    "packages": [["base", "1", "amd64", ""]],
    "sources": [
        {
            "file": "/etc/apt/sources.list.d/ubuntu.sources",
            "uris": ["http://de.archive.ubuntu.com/ubuntu/"],
            "signed_by": None,
            "key": "dWJ1",
            "suites": ["noble", "noble-updates"],
            "components": ["main"],
        },
        {
            "file": "/etc/apt/sources.list.d/ubuntu.sources",
            "uris": ["http://security.ubuntu.com/ubuntu"],
            "signed_by": None,
            "key": None,
            "suites": ["noble-security"],
            "components": ["main"],
        },
        {
            "file": apt_files.sources_path("cuda"),
            "uris": ["https://developer.example.org/compute/cuda/repos/ubuntu2404/x86_64/"],
            "suites": ["/"],
            "components": [],
            "signed_by": "/etc/apt/keyrings/x.gpg",
            "key": "Y3VkYQ==",
        },
    ],
}


def test_needs_of_a_lock_take_sources_and_keys_from_a_verified_host():
    (need,) = needs(parse(LOCK), {"gpu02": READ}, {"gpu02": {}}, CATALOG, also=["docker.io"])
    assert [len(one) for one in need.sets] == [3, 3, 2], "a set for each kernel, and the modules' source"
    assert "nvidia-dkms-580-open=580.95.05-0ubuntu0.24.04.2" in need.sets[2]
    assert all("docker.io" in one for one in need.sets)
    by_uri = {source["uris"]: source for source in need.sources}
    archive = by_uri["http://de.archive.ubuntu.com/ubuntu/"]
    assert archive["suites"] == "noble noble-updates"
    assert openpgp.primaries(base64.b64decode(archive["key"])) == CATALOG.archive_keys[::-1], (
        "not the key of the CD images"
    )
    assert by_uri["http://security.ubuntu.com/ubuntu/"]["key"] == archive["key"]
    assert {source["path"] for source in need.sources} == {"ubuntu", "compute/cuda/repos/ubuntu2404/x86_64"}
    assert by_uri["https://developer.example.org/compute/cuda/repos/ubuntu2404/x86_64/"]["key"] == "Y3VkYQ=="
    assert len({source["name"] for source in need.sources}) == 3


def test_needs_without_a_host_take_the_catalogs_and_what_the_user_says():
    (need,) = needs(parse(LOCK), {}, {}, CATALOG, Upstream("http://a.example.org/ubuntu", str(KEYRING)))
    archive, cuda = need.sources
    assert (archive["uris"], archive["suites"]) == ("http://a.example.org/ubuntu/", SUITES)
    assert base64.b64decode(archive["key"]) == KEYRING.read_bytes() and len(archive["fingerprint"]) == 3
    assert cuda["key_url"].endswith("/3bf863cc.pub") and cuda["fingerprint"] == "ABCD"


@pytest.mark.parametrize("name", ["container_toolkit", "container-toolkit"])
def test_needs_have_the_container_toolkits_repository(name):
    """As `provision lock` names it, and as its file is called."""
    text = LOCK.replace(
        "    repositories:\n", f"    repositories:\n      {name}: {{uri: 'https://nvidia.example.org/deb/'}}\n"
    )
    (need,) = needs(parse(text), {}, {}, CATALOG)
    (found,) = [source for source in need.sources if source["uris"] == "https://nvidia.example.org/deb/"]
    assert found["name"].startswith("container-toolkit-") and found["fingerprint"]


def test_a_host_that_has_the_mirror_itself_sends_to_the_originals():
    values = {"gpu_mirror_url": "https://developer.example.org/"}
    (need,) = needs(parse(LOCK), {"gpu01": READ}, {"gpu01": values}, CATALOG)
    cuda = need.sources[-1]
    assert cuda["uris"] == CATALOG.repository("cuda", ubuntu="24.04").url and "key" not in cuda


# --- real apt, small repositories


# --- conda


def test_conda_of_a_host_becomes_channels_and_indexes(tmp_path):
    source, root = tmp_path / "source", tmp_path / "mirror"
    source.mkdir()
    contents = {"a-1-0.conda": b"conda", "b-1-py3-none-any.whl": b"wheel", "Miniconda3.sh": b"installer"}
    sums = {}
    for name, content in contents.items():
        (source / name).write_bytes(content)
        sums[name] = hashlib.sha256(content).hexdigest()
    (source / "whl/cu124/b").mkdir(parents=True)
    (source / "whl/cu124/b/index.html").write_text(
        f'<a href="../../../b-1-py3-none-any.whl#sha256={sums["b-1-py3-none-any.whl"]}">b</a>'
    )
    record = {
        "name": "a",
        "version": "1",
        "build": "0",
        "depends": [],
        "subdir": "linux-64",
        "sha256": sums["a-1-0.conda"],
        "size": 5,
        "url": f"file://{source}/a-1-0.conda",
        "fn": "a-1-0.conda",
        "channel": "x",
    }
    # Where it comes from has no channel in its address here: the alias says where channels begin.
    (source / "conda-forge/linux-64").mkdir(parents=True)
    shutil.move(source / "a-1-0.conda", source / "conda-forge/linux-64/a-1-0.conda")
    record["url"] = f"file://{source}/conda-forge/linux-64/a-1-0.conda"
    environment = {
        "packages": [record],
        "index": None,
        "problems": [],
        "wheels": [
            {"name": "b", "version": "1", "tags": ["py3-none-any"]},
            {"name": "c", "version": "1+cu124", "tags": []},
        ],
    }
    need = CondaNeed(
        "amd64",
        [{"file": "Miniconda3.sh", "url": f"file://{source}/Miniconda3.sh", "sha256": sums["Miniconda3.sh"]}],
        [environment],
        f"file://{source}",
        ["nvidia"],
        [f"file://{source}/whl/cu124"],
    )
    made = Maker(Store(str(root), here, {})).run([], [need])
    assert made.problems == ["c 1+cu124: none of 1 indexes has it"]
    data = json.loads((root / "conda/conda-forge/linux-64/repodata.json").read_text())
    assert data["packages.conda"]["a-1-0.conda"]["sha256"] == sums["a-1-0.conda"]
    assert "url" not in data["packages.conda"]["a-1-0.conda"]
    for place in ("conda-forge/noarch", "nvidia/linux-64", "nvidia/noarch"):
        assert json.loads((root / f"conda/{place}/repodata.json").read_text())["packages"] == {}
    for page in ("simple/b", "whl/cu124/b"):
        text = (root / f"conda/{page}/index.html").read_text()
        (link,) = mirror_wheels.links(f"file://{root}/conda/{page}/", text)
        assert link["sha256"] == sums["b-1-py3-none-any.whl"]
        assert get(link["url"]) == b"wheel"
    again = Maker(Store(str(root), here, {})).run([], [need])
    assert (again.fetched, again.changed) == (0, False)


def test_an_environment_is_read_with_what_each_package_came_from(tmp_path):
    meta, site = tmp_path / "conda-meta", tmp_path / "lib/python3.11/site-packages"
    meta.mkdir()
    (meta / "a-1-0.json").write_text(
        json.dumps({"name": "A_b", "version": "1", "url": "http://x/c/linux-64/a", "sha256": "0", "files": []})
    )
    (meta / "odd-1-0.json").write_text(json.dumps({"name": "odd", "version": "1"}))
    for name, version, extra in (
        ("a.b", "1", {}),
        ("torch", "2+cu124", {}),
        ("local", "1", {"direct_url.json": "{}"}),
        ("own", "1", {"INSTALLER": "conda\n"}),
    ):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        files = {"METADATA": f"Name: {name}\nVersion: {version}\n\nText\n", "WHEEL": "Tag: py3-none-any\n", **extra}
        for file, text in files.items():
            (folder / file).write_text(text)
    found = mirror_read.environment(str(tmp_path))
    assert [row["name"] for row in found["packages"]] == ["A_b"] and "files" not in found["packages"][0]
    assert found["wheels"] == [{"name": "torch", "version": "2+cu124", "tags": ["py3-none-any"]}]
    assert [problem.split(":")[0] for problem in found["problems"]] == ["odd-1-0.json", "local-1.dist-info"]


# --- serving


def test_serving_is_read_only_and_lists_nothing(tmp_path):
    (tmp_path / "simple").mkdir()
    (tmp_path / "simple/index.html").write_text("index")
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/a.deb").write_bytes(b"deb")
    with server(tmp_path, ("127.0.0.1", 0)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{running.server_address[1]}"
        assert get(f"{base}/pool/a.deb") == b"deb"
        assert get(f"{base}/simple/") == b"index"
        for path, method, code in (
            ("/pool/", "GET", 404),
            ("/../../etc/passwd", "GET", 404),
            ("/pool/a.deb", "PUT", 501),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(base + path, method)
            assert refused.value.code == code
        running.shutdown()
