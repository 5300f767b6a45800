"""A mirror in the place of the internet: a new host goes from nothing to the lock, with the versions of the first."""

import shutil

import pytest
import yaml

from provision.lib import yaml_reader
from tests.lab import repos
from tests.lab.conda import publish
from tests.lab.engine import engine

pytestmark = pytest.mark.lab

PIP_CONF = {"/etc/pip.conf": publish.PIP_CONF}
HOST = {"gpus": ["RTX 4090"], "nouveau": False, "extra": PIP_CONF}
CLOSED = (repos.ARCHIVE_HOST, repos.NVIDIA_HOST, publish.HOST)
CONDA = {
    **publish.variables(),
    "miniconda_environments": [{"name": "py311cu124", "python": "3.11", "torch": "2.6.0", "cuda": "12.4"}],
}
CONFIG = {"cuda_toolkit_versions": ["12.8"], "gpu_verify_run": False}
ENVIRONMENT = "/opt/miniconda3/envs/py311cu124"


def configure(command, **values):
    """Role variables beside the lab's inventory."""
    folder = command.lab.inventory.parent / "group_vars"
    folder.mkdir(exist_ok=True)
    (folder / "gpu.yml").write_text(yaml.safe_dump({**CONFIG, **values}))


def installed(host):
    """Every package with its version, as dpkg has it."""
    return set(host.run("dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package} ${Version}\\n'").stdout.splitlines())


def switch_off(lab, host):
    """Take the lab's repositories off the network: nothing is left on the server, and the host knows no name of theirs."""
    for name in ("ubuntu", "compute", "libnvidia-container", "conda"):
        shutil.rmtree(lab.served.root / name)
    words = "".join(f"/{name}/d;" for name in CLOSED)
    # Not sed -i: the file is mounted into the container.
    host.run(f"sed '{words}' /etc/hosts > /tmp/h && cat /tmp/h > /etc/hosts")
    for name in CLOSED:
        assert host.run(f"getent hosts {name}", check=False).rc == 2


def take_out(lab, host, folder):
    """Carry the mirror to the package server, as a person carries a disk: only it is there afterwards."""
    archive = lab.folder / "mirror.tar"
    host.run(f"tar -C {folder} -cf /etc/sim/mirror.tar .")
    (host.folder / "mirror.tar").rename(archive)
    target = lab.served.root / "gpu-mirror"
    target.mkdir()
    shutil.unpack_archive(archive, target, "tar", filter="data")
    return target


# Making a mirror, signing it, and what is lost of one: tests/system/test_mirror.py. conda has no signatures: once is enough.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sign", "of_conda"), [pytest.param("", CONDA, id="originals"), pytest.param("new", {}, id="signed")]
)
def test_a_new_host_from_a_mirror_alone_is_equal_to_the_first(fleet, tmp_path, sign, of_conda):
    command = fleet({"name": "gpu01", **HOST})
    command.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    lab, first = command.lab, command.lab.host("gpu01")
    configure(command, **of_conda)
    command.run("apply", "--yes")
    command.run("lock")
    signing = ["--sign", sign] if sign else []
    made = command.json("mirror", "/var/tmp/mirror", "--on", "gpu01", *signing)
    assert made["fetched"] and made["changed"] and not made["errors"], made
    again = command.json("mirror", "/var/tmp/mirror", "--on", "gpu01", *signing)
    assert (again["fetched"], again["changed"]) == (0, False), again
    assert command.json("mirror", "/var/tmp/mirror", "--on", "gpu01", "--verify")["ok"]

    root = take_out(lab, first, "/var/tmp/mirror")
    (second,) = lab.add([{"name": "gpu02", **HOST}])
    switch_off(lab, second)
    first.stop()
    # The lab's inventory names the originals for each host; the mirror is to be taken instead.
    where = f"http://{lab.server_address}/gpu-mirror"
    lock = yaml_reader.load((lab.inventory.parent / "fleet.lock.yml").read_text())
    lock["hosts"]["gpu02"] = {**lock["hosts"]["gpu01"], "gpus": []}
    (lab.inventory.parent / "fleet.lock.yml").write_text(yaml.safe_dump(lock))
    inventory = yaml_reader.load(lab.inventory.read_text())
    for row in inventory["all"]["children"]["gpu"]["hosts"].values():
        del row["nvidia_driver_repo_url"]
    del inventory["all"]["children"]["gpu"]["hosts"]["gpu01"]
    if sign:
        del inventory["all"]["children"]["gpu"]["vars"]["nvidia_driver_repo_key"]
        del inventory["all"]["children"]["gpu"]["vars"]["nvidia_driver_repo_key_fingerprint"]
    lab.inventory.write_text(yaml.safe_dump(inventory))
    places = ("installer_url", "channel_alias", "wheel_index_url", "pip_index_url")
    elsewhere = {f"miniconda_{name}": "" for name in places if of_conda}
    key = {"gpu_mirror_key_fingerprint": made["signed"]} if sign else {}
    configure(command, **{**of_conda, **elsewhere}, **key, gpu_mirror_url=where)
    second.run(f"printf '[global]\\ntrusted-host = {lab.server_address}\\n' > /etc/pip.conf")

    applied = command.json("apply", "--yes")
    assert applied["hosts"]["gpu02"]["status"] == "done", applied
    engine()("start", first.container)
    first.wait()
    assert installed(second) == installed(first)
    if of_conda:
        versions = f"{ENVIRONMENT}/bin/python -m pip list --format freeze; ls {ENVIRONMENT}/conda-meta"
        assert second.run(versions).stdout == first.run(versions).stdout

    # Nothing more to do; and only the mirror was ever asked.
    assert command.json("apply", "--yes")["run_dir"] is None
    uris = second.run("grep -h ^URIs /etc/apt/sources.list.d/gpu-provision-*").stdout.split("\n")
    assert all(where in line for line in uris if line), uris

    # What a mirror lost is found, and fetched again.
    victim = next(root.rglob("*.deb"))
    victim.write_bytes(b"x")
    command.run("mirror", str(root), "--verify", rc=3)
