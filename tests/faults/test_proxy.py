"""A host that reaches nothing by itself: one proxy for apt, keys, conda's installer, conda and pip (scenario N2)."""

import shutil
from urllib.parse import urlsplit

import pytest
import yaml

from tests.lab import repos
from tests.lab.conda import Proxy, publish

pytestmark = pytest.mark.lab

HOST = {"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": False, "extra": {"/etc/pip.conf": publish.PIP_CONF}}
NAMES = (repos.ARCHIVE_HOST, repos.NVIDIA_HOST, publish.HOST)
OWN = "/etc/apt/apt.conf.d/zz-gpu-provision-proxy"


def configure(command, **values):
    """Role variables beside the lab's inventory: the driver from NVIDIA's repository, whose key has to be fetched."""
    folder = command.lab.inventory.parent / "group_vars"
    folder.mkdir(exist_ok=True)
    asked = {
        **publish.variables(),
        "nvidia_driver_channel": "cuda",
        "nvidia_driver_repo_key": f"http://{repos.NVIDIA_HOST}/key.pub",
        "miniconda_environments": [{"name": "py311cu124", "python": "3.11", "torch": "2.6.0", "cuda": "12.4"}],
        "gpu_verify_run": False,
        **values,
    }
    (folder / "gpu.yml").write_text(yaml.safe_dump(asked))


@pytest.fixture
def shut(fleet):
    """The command for a host whose names are gone, and a proxy that it can reach."""
    command = fleet(HOST)
    host = command.lab.host("gpu01")
    shutil.copy(repos.keys()[1].public, command.lab.served.root / "key.pub")
    # Not sed -i: the file is mounted into the container.
    host.run(
        f"sed '/{publish.HOST}/d;/{repos.ARCHIVE_HOST}/d;/{repos.NVIDIA_HOST}/d' /etc/hosts > /tmp/h && cat /tmp/h > /etc/hosts"
    )
    for name in NAMES:
        assert host.run(f"getent hosts {name}", check=False).rc == 2, "the direct way is closed"
    gateway = host.run("ip -4 route show default | cut -d' ' -f3").stdout.strip()
    with Proxy(dict.fromkeys(NAMES, f"http://{command.lab.server_address}"), address=gateway) as proxy:
        yield command, host, proxy


def test_one_proxy_reaches_every_layer_and_the_next_run_changes_nothing(shut):
    command, host, proxy = shut
    configure(command, gpu_proxy_http=proxy.url)
    planned = command.json("plan", rc=2)["hosts"]["gpu01"]
    assert planned["status"] == "changes" and planned["packages"], planned
    assert any(OWN in line for step in planned["steps"] for line in step["details"])
    assert host.run(f"test -e {OWN}", check=False).rc == 1
    applied = command.json("apply", "--yes")
    assert applied["hosts"]["gpu01"]["status"] == "done", applied
    asked = {urlsplit(path).hostname for path, _ in proxy.requests}
    assert asked == set(NAMES)
    paths = " ".join(urlsplit(path).path for path, _ in proxy.requests)
    for layer, part in {
        "key": "/key.pub",
        "apt": "InRelease",
        "installer": ".sh",
        "conda": "repodata",
        "pip": "torch-",
    }.items():
        assert part in paths, f"{layer}: {paths[-2000:]}"
    # apt on the host goes on by itself
    host.run("apt-get update")
    assert command.json("apply", "--yes")["run_dir"] is None
    plain = command.ansible("site.yml")
    assert plain.returncode == 0 and "changed=0" in plain.stdout, plain.stdout


# tests/apt/test_proxy.py has the same with real apt.
@pytest.mark.thorough
def test_a_role_alone_with_plain_ansible(shut, tmp_path):
    command, host, proxy = shut
    configure(command, gpu_proxy_http=proxy.url, miniconda_environments=[], nvidia_driver_manage=False)
    for role, changed in (("gpu_proxy", 1), ("cuda_toolkit", 0)):
        play = tmp_path / f"{role}.yml"
        play.write_text(
            yaml.safe_dump(
                [{"hosts": "all", "gather_facts": False, "become": True, "roles": [f"gpu.provision.{role}"]}]
            )
        )
        done = command.ansible(play)
        assert done.returncode == 0 and f"changed={changed}" in done.stdout, done.stdout + done.stderr
    assert proxy.url in host.run(f"cat {OWN}").stdout
    host.run("apt-get update")


@pytest.mark.thorough
def test_without_it_and_with_one_that_is_not_there_the_layer_is_named(shut):
    command, host, proxy = shut
    configure(command)
    said = command.run("plan", rc=1)
    assert "key download: without a proxy" in said.stdout + said.stderr
    configure(command, gpu_proxy_http=proxy.url.rpartition(":")[0] + ":9")
    said = command.run("plan", rc=1)
    assert "key download: through the proxy" in said.stdout + said.stderr
    configure(command, gpu_proxy_http="http://me:secret@proxy:3128")
    refused = command.run("--json", "plan", rc=64)
    assert "secret" not in refused.stdout + refused.stderr and "auth.conf" in refused.stdout
    assert (
        host.run("ls /etc/apt/keyrings/gpu-provision* /etc/apt/sources.list.d/gpu-provision*", check=False).stdout == ""
    )
