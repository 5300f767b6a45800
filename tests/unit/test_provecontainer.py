"""container.run: what it makes of a runtime's words, and that it stops and cleans up; real daemons are in tests/system."""

import io
import tarfile
from pathlib import Path

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.prove import container as prove_container
from provision.catalog import load_catalog
from provision.facts import Facts
from provision.lib import yaml_reader
from provision.parts.containers import proofs as containers_proofs
from provision.parts.containers.desired import ContainersConfig
from provision.parts.containers.plan import containers_to_run
from tests.unit.provecases import proven

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/containers_run.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_made_of_it(case):
    status, message, evidence, hint, _ = containers_proofs.judge(
        case.get("rc", 0), case.get("out", ""), "docker run", case.get("gpus", 0), 1.0, []
    )
    wanted, *words = case["expect"]
    assert status == wanted, message
    said = " ".join([message, *evidence, hint or ""])
    assert all(word in said for word in words), said
    assert hint or status in ("pass", "not_run")


def test_docker_that_does_not_run_or_has_no_cdi_is_a_skip(tmp_path, monkeypatch):
    monkeypatch.setattr(prove_container, "_which", lambda name: "/bin/true")
    monkeypatch.setattr(prove_container, "SOCKET", str(tmp_path / "none"))
    assert "does not run here" in prove_container.prove_docker({}, False, 5.0)["skip"]
    (tmp_path / "none").write_text("")
    assert "25.0" in prove_container.prove_docker({"docker_cdi": False}, True, 5.0)["skip"]
    monkeypatch.setattr(prove_container, "_which", lambda name: None)
    assert prove_container.prove_docker({}, False, 5.0)["skip"] == "there is no program docker"


def test_the_image_holds_the_c_library_and_no_more(tmp_path):
    folder = tmp_path / "lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/ld-linux-x86-64.so.2").write_bytes(b"loader")
    (folder / "libc-2.39.so").write_bytes(b"libc")
    (folder / "libc.so.6").symlink_to("libc-2.39.so")
    data = prove_container.scratch(str(tmp_path), "x86_64")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
    assert files == {
        "etc/debian_version": b"scratch\n",
        "lib64/ld-linux-x86-64.so.2": b"loader",
        "lib/x86_64-linux-gnu/libc.so.6": b"libc",
    }
    assert prove_container.scratch(str(tmp_path), "riscv64") is None
    (folder / "libc.so.6").unlink()
    assert prove_container.scratch(str(tmp_path), "x86_64") is None


def test_what_runs_is_what_the_inventory_asks_for():
    docker = {"engine": "/usr/bin/dockerd", "version": "28.3.0"}
    facts = Facts.model_validate({"containers": {"docker": docker}, "smi": {"gpus": [{"index": 0, "name": "H100"}]}})
    args = containers_to_run(
        ContainersConfig.from_vars({"container_toolkit_runtimes": ["docker", "podman"]}), facts, load_catalog()
    )
    assert args == {"docker": True, "docker_cdi": True, "podman": True, "image": "", "gpus": 1}
    names = [name for name, _ in prove_container.plan(args)]
    assert names == ["container.run[docker]", "container.run[docker-cdi]", "container.run[podman]"]
    nothing = containers_to_run(ContainersConfig(), facts, load_catalog())
    verdicts = proven({"containers": nothing, "only": ["container.run"]})
    assert [(v["id"], v["status"]) for v in verdicts] == [("container.run", "skip")]
