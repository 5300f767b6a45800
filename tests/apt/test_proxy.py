"""A host whose repository only a proxy knows, with real apt: asked, changed, and left able to go on by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from provision.inventory.proxy import HostProxy
from tests.lab.conda import Proxy, Server

from .rootfs import Key, Repo, Root

pytestmark = pytest.mark.rootfs
# no name service has it
NAME = "apt.lab.invalid"
DEAD = "http://127.0.0.1:9"


@pytest.fixture
def proxy(root: Root, repo: Repo, key: Key) -> Iterator[Proxy]:
    repo.add("lab-tool", "1.0")
    repo.publish()
    (repo.folder / "key.asc").write_text(key.armored)
    with Server(repo.folder) as web, Proxy({NAME: web.url}) as made:
        yield made


def source(repo: Repo) -> dict[str, object]:
    """The repository by its name, with a key that has to be fetched there."""
    spec = repo.spec() | {"uris": f"http://{NAME}/", "key_url": f"http://{NAME}/key.asc"}
    del spec["key"]
    return spec


def proxy_of(url: str, *without: str) -> HostProxy:
    return HostProxy.from_vars({"gpu_proxy_http": url, "gpu_proxy_no_proxy": list(without)})


def change(root: Root, repo: Repo, wanted: HostProxy, **more: Any) -> dict[str, Any]:
    """One transaction, as a plan asks for it."""
    text = wanted.apt_text([f"http://{NAME}/"])
    asked: dict[str, Any] = {
        "configure": {"repositories": [source(repo)], "proxy": text},
        "environment": wanted.environment,
        "install": ["lab-tool=1.0"],
        "update_cache": True,
        "reserve_mib": 1,
    }
    return root.module("apt_transaction", **asked | more)


def offer(root: Root, repo: Repo, wanted: HostProxy) -> dict[str, Any]:
    return root.module(
        "apt_query", op="offer", sources=[source(repo)], patterns=["lab-.*"], environment=wanted.environment
    )


def test_the_plan_asks_through_it_and_one_transaction_does_the_rest(root: Root, repo: Repo, proxy: Proxy) -> None:
    wanted = proxy_of(proxy.url)
    assert list(offer(root, repo, wanted)["result"]["packages"]) == ["lab-tool"]
    assert not (root.path / apt_files.PROXY[1:]).exists(), "a look changes nothing"
    done = change(root, repo, wanted)
    assert [c["name"] for c in done["changes"]] == ["lab-tool"], done
    assert root.read(apt_files.PROXY) == wanted.apt_text()
    assert (root.path / apt_files.PROXY[1:]).stat().st_mode & 0o777 == 0o644
    assert {path for path, _ in proxy.requests} >= {f"http://{NAME}/key.asc", f"http://{NAME}/InRelease"}
    assert change(root, repo, wanted)["changed"] is False
    proxy.requests.clear()
    assert "Err" not in root.sh("apt-get update"), "apt goes on by itself"
    assert proxy.requests
    gone = change(root, repo, proxy_of(""), configure={"proxy": ""}, environment={})
    assert gone["files"] == [{"path": apt_files.PROXY, "action": "removed"}]
    proxy.requests.clear()
    assert "Some index files failed" in root.sh("apt-get -o Acquire::Retries=0 update", check=False)
    assert proxy.requests == []


@pytest.mark.parametrize("file", ["/etc/apt/apt.conf.d/95proxy", "/etc/apt/apt.conf.d/proxy.conf", apt_files.PROXY])
def test_what_the_inventory_says_goes_before_what_the_host_has(root: Root, repo: Repo, proxy: Proxy, file: str) -> None:
    # Another's file, and ours with the proxy of last year.
    root.write(file, f'Acquire::http::Proxy "{DEAD}";\n')
    assert offer(root, repo, proxy_of(proxy.url))["result"]["errors"] == []
    assert change(root, repo, proxy_of(proxy.url))["changed"] is True
    assert "Err" not in root.sh("apt-get update")


def test_our_file_of_last_year_does_not_count_in_a_look(root: Root, repo: Repo, proxy: Proxy) -> None:
    """Else a host that no longer has its proxy could not be planned for without mending it by hand."""
    root.write(apt_files.PROXY, proxy_of(DEAD).apt_text())
    with Server(repo.folder) as web:
        near = repo.spec() | {"uris": web.url}
        asked = root.module("apt_query", op="offer", sources=[near], patterns=["lab-.*"])["result"]
        assert (asked["errors"], list(asked["packages"])) == ([], ["lab-tool"])
    # What the host has besides goes on to count.
    root.write("/etc/apt/apt.conf.d/20proxy", f'Acquire {{ http {{ Proxy "{proxy.url}"; }}; }};\n')
    given = repo.spec() | {"uris": f"http://{NAME}/"}
    assert root.module("apt_query", op="offer", sources=[given])["result"]["errors"] == []


def test_a_host_in_no_proxy_is_reached_directly(root: Root, repo: Repo, proxy: Proxy) -> None:
    with Server(repo.folder) as web:
        wanted = proxy_of(DEAD, "127.0.0.0/8")
        near = source(repo) | {"uris": web.url, "key_url": f"{web.url}/key.asc"}
        configure = {"repositories": [near], "proxy": wanted.apt_text([web.url])}
        assert change(root, repo, wanted, configure=configure)["changed"] is True
        assert "Err" not in root.sh("apt-get update")
    assert proxy.requests == []


def test_a_proxy_that_is_not_there_is_named_with_its_layer(root: Root, repo: Repo, proxy: Proxy) -> None:
    asked = offer(root, repo, proxy_of(DEAD))
    assert asked["code"] == "apt.key" and asked["because"] == ["key download: through the proxy 127.0.0.1:9"]
    failed = change(root, repo, proxy_of(DEAD))
    assert failed["code"] == "apt.key" and failed["because"] == ["key download: through the proxy 127.0.0.1:9"]
    for path in ("etc/apt/keyrings", "etc/apt/sources.list.d"):
        assert not list((root.path / path).glob("gpu-provision*")), "no empty keyring, no source without one"
    given = repo.spec() | {"uris": f"http://{NAME}/"}
    answer = root.module("apt_query", op="offer", sources=[given], environment=proxy_of(DEAD).environment)["result"]
    assert answer["errors"][0] == "apt: http through the proxy 127.0.0.1:9, https through the proxy 127.0.0.1:9"
    configure = {"repositories": [given], "proxy": proxy_of(DEAD).apt_text()}
    failed = change(root, repo, proxy_of(DEAD), configure=configure)
    assert failed["code"] == "apt.fetch", failed
    assert failed["because"][-1] == answer["errors"][0] and "gpu_proxy_http" in failed["hint"]


def test_without_a_proxy_that_is_said(root: Root, repo: Repo, proxy: Proxy) -> None:
    given = repo.spec() | {"uris": f"http://{NAME}/"}
    answer = root.module("apt_query", op="offer", sources=[given])["result"]
    assert answer["errors"][0] == "apt: without a proxy (none in its configuration, nor in the environment)"


def test_a_password_of_the_proxy_can_lie_where_only_root_reads_it(root: Root, repo: Repo) -> None:
    """What the hint says of apt; the other layers read no such file."""
    repo.add("lab-tool", "1.0")
    repo.publish()
    given = repo.spec() | {"uris": f"http://{NAME}/"}
    with Server(repo.folder) as web, Proxy({NAME: web.url}, password=True) as proxy:
        configure = {"repositories": [given], "proxy": proxy_of(proxy.url).apt_text()}
        refused = change(root, repo, proxy_of(proxy.url), configure=configure)
        assert refused["failed"] and any("407" in line for line in refused["because"]), refused
        root.write("/etc/apt/auth.conf.d/proxy.conf", f"machine {proxy.url} login me password secret\n")
        (root.path / "etc/apt/auth.conf.d/proxy.conf").chmod(0o600)
        assert change(root, repo, proxy_of(proxy.url), configure=configure)["changed"] is True
        assert proxy.requests[-1][1].startswith("Basic ")
