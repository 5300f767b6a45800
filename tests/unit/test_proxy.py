"""One proxy for a host: what the inventory says, from a table, and as each layer takes it."""

import io
import os
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda import errors as conda_errors
from ansible_collections.gpu.provision.plugins.module_utils.lib import proxies
from provision.errors import UsageError
from provision.inventory import Host, variables
from provision.inventory.proxy import HostProxy
from provision.lib import yaml_reader
from provision.parts.apt import AptPart, combine
from provision.planning import plan_from_facts
from tests.unit.candidates import CANDIDATES
from tests.unit.hosts import host
from tests.unit.test_planning import CHANGES, FakeHost

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/proxy.yml").read_text())
URL = "http://proxy.example.org:3128"
CONFIG = {"gpu_proxy_http": URL, "gpu_proxy_no_proxy": [".corp"]}
WANTED = HostProxy.from_vars(CONFIG)
DRIVER = {"nvidia_driver_branch": "580", "nvidia_driver_channel": "ubuntu"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_wish(case):
    if "refused" in case:
        with pytest.raises(UsageError) as refused:
            HostProxy.from_vars(case["vars"])
        issue = refused.value.issue
        said = f"{issue.message} {issue.because} {issue.hint}"
        assert issue.code == case["refused"] and issue.hint
        assert all(word in said for word in case.get("shown", [])), said
        assert not any(word in said for word in case.get("hidden", [])), said
        return
    proxy = HostProxy.from_vars(case["vars"])
    if "environment" in case:
        assert proxy.environment == case["environment"]
    # the host's own check takes what we send
    proxies.within(proxy.environment)
    text = proxy.apt_text(case.get("uris", []))
    assert bool(text) == bool(proxy)
    assert text.splitlines()[1:] == case["apt"]
    if "words" in case:
        assert proxy.address == case["words"]


def test_the_wish_has_the_roles_variables_and_their_defaults():
    known = {name for name in variables.known() if name.startswith("gpu_proxy_")}
    assert known == {f"gpu_proxy_{field}" for field in HostProxy.__dataclass_fields__}
    assert HostProxy.from_vars(variables.effective(Host("gpu01"))) == HostProxy()
    texts = variables.effective(Host("gpu01", {"gpu_proxy_http": URL, "gpu_proxy_no_proxy": ".a, .b"}))
    assert HostProxy.from_vars(texts) == HostProxy(URL, "", (".a", ".b"))


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_plan_asks_apt_through_it_and_carries_it_to_the_host():
    asked = []

    def call(program, args):
        asked.append(args)
        return FakeHost(CANDIDATES["noble"], CHANGES)(program, args)

    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, {**DRIVER, **CONFIG})
    assert plan.status == "changes"
    assert [args.get("environment") for args in asked] == [WANTED.environment, None]
    assert plan.spec["environment"] == plan.spec["apt"]["environment"] == WANTED.environment
    assert plan.spec["apt"]["configure"]["proxy"] == WANTED.apt_text([])
    assert any("proxy.example.org:3128" in line for line in plan.steps[0].details)


def test_without_it_nothing_is_sent():
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    plan = plan_from_facts("gpu01", host(["RTX 4090"]), call, DRIVER)
    assert plan.spec["environment"] == plan.spec["apt"]["environment"] == {}
    assert plan.spec["apt"]["configure"]["proxy"] == ""
    assert not any("proxy" in line for step in plan.steps for line in step.details)


@pytest.mark.parametrize("parts", [["proxy"], ["cuda"], ["driver", "proxy"]])
def test_it_alone_is_a_change_of_one_file_and_then_none(parts):
    facts = host(["RTX 4090"], "580 580.142 open signed")
    facts.own_files[apt_files.UNATTENDED] = "of a role that is not asked"
    values = {"nvidia_driver_manage": False}
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    plan = plan_from_facts("gpu01", facts, call, {**values, **CONFIG}, parts=parts)
    assert (plan.status, [step.id for step in plan.steps], call.asked) == ("changes", ["sources"], [])
    configure = plan.spec["apt"]["configure"]
    assert configure["unattended_blacklist"] is None and configure["preferences"] is None
    assert not plan.spec["apt"]["hold"] and not plan.spec["apt"]["release"]
    facts.own_files[apt_files.PROXY] = apt_files.sha256(configure["proxy"])
    again = plan_from_facts("gpu01", facts, call, {**values, **CONFIG}, parts=parts)
    assert (again.status, again.spec["apt"]) == ("converged", None)
    without = plan_from_facts("gpu01", facts, call, values, parts=parts)
    assert without.steps[0].details == [f"remove {apt_files.PROXY}"]
    assert without.spec["apt"]["configure"]["proxy"] == ""


def test_a_repository_that_the_plan_adds_counts_before_and_after():
    """Else the second run would write the file again, for the repository is among the host's by then."""
    spec = {"name": "cuda", "uris": "https://apt.corp/cuda/", "suites": "/", "components": ""}
    part, facts = AptPart(repositories=[(spec, "why")]), host(["RTX 4090"])
    apt, _ = combine([part], facts, [], 60, WANTED)
    assert 'Acquire::http::Proxy::apt.corp "DIRECT";' in apt["configure"]["proxy"]
    row = {"file": apt_files.sources_path("cuda"), "uris": [spec["uris"]], "suites": ["/"]}
    facts.apt.sources.append(type(facts.apt).model_validate({"sources": [row]}).sources[0])
    again, _ = combine([part], facts, [], 60, WANTED)
    assert again["configure"]["proxy"] == apt["configure"]["proxy"]


def test_a_password_ends_the_plan_before_the_host_is_asked():
    call = FakeHost(CANDIDATES["noble"], CHANGES)
    with pytest.raises(UsageError) as refused:
        plan_from_facts("gpu01", host(["RTX 4090"]), call, {"gpu_proxy_http": "http://me:secret@p:1"})
    assert call.asked == [] and "secret" not in str(refused.value.issue.model_dump())


# --- on the host ------------------------------------------------------------------------------------------------------


def test_the_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://before:1")
    with proxies.within(WANTED.environment):
        assert os.environ["http_proxy"] == URL and os.environ["no_proxy"].endswith(".corp")
        assert conda_common.environment(conda_common.Owner("root"))["https_proxy"] == URL
    assert os.environ["http_proxy"] == "http://before:1" and "no_proxy" not in os.environ
    with proxies.within(None):
        assert "https_proxy" not in os.environ


@pytest.mark.parametrize(
    "odd",
    [
        {"LD_PRELOAD": "/tmp/x.so"},
        {"http_proxy": "http://p:1\nx"},
        {"http_proxy": "http://me:secret@p:1"},
        {"no_proxy": None},
    ],
)
def test_other_names_and_odd_values_do_not_get_in(odd):
    with pytest.raises(AptError) as refused:
        apt_query.main({"op": "offer", "environment": odd})
    assert refused.value.code == "apt.usage" and "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("environment", "url", "words"),
    [
        ({}, "https://x.org/k", "without a proxy (no https_proxy in the environment)"),
        ({"https_proxy": "http://me:se/cret@p:3128/"}, "https://x.org/k", "through the proxy p:3128"),
        ({"http_proxy": "p:3128"}, "http://x.org/k", "through the proxy p:3128"),
        (
            {"http_proxy": "http://p:3128", "no_proxy": ".org"},
            "http://x.org/k",
            "without a proxy (no_proxy names x.org)",
        ),
    ],
)
def test_the_way_is_told_by_host_and_port_only(monkeypatch, environment, url, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxies.way(url) == words


@pytest.mark.parametrize(
    ("dump", "environ", "words"),
    [
        ("", {}, "apt: without a proxy (none in its configuration, nor in the environment)"),
        ("", {"https_proxy": "http://p:1"}, "apt: https through the proxy p:1"),
        # apt takes http's for https where https has none (apt-transport-https(1))
        (
            'Acquire::http::Proxy "http://me:secret@q:2/";\n',
            {"http_proxy": "http://p:1"},
            "apt: http through the proxy q:2, https through the proxy q:2",
        ),
        (
            'Acquire::http::Proxy "http://q:2";\nAcquire::http::Proxy::a.corp "DIRECT";\nAcquire::https::Proxy "http://r:3";\n'
            'Acquire::https::Proxy::a.corp "DIRECT";\n',
            {},
            "apt: http through the proxy q:2, https through the proxy r:3 (not for a.corp)",
        ),
    ],
)
def test_apts_way(dump, environ, words):
    assert apt_query.apt_way(dump, environ) == words


def test_a_key_that_cannot_be_fetched_names_its_layer_and_the_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(AptError) as refused:
        apt_sources.fetch_key("http://vendor.invalid/key.pub")
    assert refused.value.because == ["key download: through the proxy 127.0.0.1:9"]


def test_a_key_is_fetched_by_the_proxy_of_now(monkeypatch):
    """urllib's own opener keeps the proxies of its first call; one process on the host answers many."""
    urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    try:
        with pytest.raises(AptError) as refused:
            apt_sources.fetch_key("http://vendor.invalid/key.pub")
    finally:
        urllib.request.install_opener(None)
    assert "refused" in refused.value.message, "127.0.0.1:9 was asked, not a name service"


@pytest.mark.parametrize("who", ["conda", "pip"])
def test_conda_and_pip_are_told_apart_with_their_proxy(monkeypatch, who):
    monkeypatch.setenv("https_proxy", "http://p:3128")
    text = "ProxyError: HTTPSConnectionPool: Max retries exceeded: Cannot connect to proxy."
    error = conda_errors.explain(conda_common.Result(1, text, False), who, "py", "/x")
    assert error.code == "conda.proxy" and who in error.message
    assert f"{who}: https through the proxy p:3128" in error.because and "gpu_proxy_https" in error.hint


def test_the_file_is_what_apt_reads():
    """Checked by the parser of the probe; tests/apt asks apt itself."""
    parsed = apt_conf.parse_conf(WANTED.apt_text(["https://a.corp/x"]))
    assert parsed["acquire::http::proxy"] == URL and parsed["acquire::https::proxy::a.corp"] == "DIRECT"


NO_NAME = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (urllib.error.URLError(NO_NAME), "Name or service not known"),
        (urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (urllib.error.URLError("unknown url type: x"), "unknown url type: x"),
        (urllib.error.HTTPError(URL, 404, "Not Found", None, io.BytesIO()), "404 Not Found"),
        (urllib.error.URLError(TimeoutError("timed out")), "timed out"),
        (
            urllib.error.URLError(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong\n version")),
            "[SSL: WRONG_VERSION_NUMBER] wrong version",
        ),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_why_a_download_failed_is_said_without_python(error, text):
    assert proxies.why(error) == text


def test_a_key_that_cannot_be_fetched_says_why(monkeypatch):
    def refuse(*args, **more):
        raise urllib.error.URLError(NO_NAME)

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    with pytest.raises(AptError) as caught:
        apt_sources.fetch_key("https://keys.invalid/key.asc")
    assert str(caught.value) == "the key at https://keys.invalid/key.asc cannot be fetched: Name or service not known"
