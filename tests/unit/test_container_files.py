"""What the container modules read from files alone: dockerd's flags, kinds of docker, CDI specifications, containerd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.containers import (
    cdi_spec,
    containerd_config,
    daemon_flags,
    docker_host,
)
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree
from provision.lib import yaml_reader

CASES = Path(__file__).parents[1] / "cases"


def cases(name: str) -> Any:
    rows = yaml_reader.load((CASES / f"{name}.yml").read_text(encoding="utf-8"))
    return pytest.mark.parametrize("case", rows, ids=[row["name"] for row in rows])


def tree_of(root: Path, files: dict[str, str]) -> host_tree.HostTree:
    """A host of these files; a text that begins with LINK is a link."""
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("LINK "):
            target.symlink_to(text[5:])
        else:
            target.write_text(text)
    return host_tree.HostTree(str(root))


@cases("container_flags")
def test_flags(case: dict[str, Any], tmp_path: Path) -> None:
    flags = daemon_flags.read(tree_of(tmp_path, case["tree"]))
    assert (flags.program, flags.config) == (case["program"], case["config"])
    assert flags.arguments == case["arguments"]
    assert flags.pid == case.get("pid")
    assert flags.started == case.get("started")
    assert daemon_flags.runtimes_of(flags.flags) == case.get("runtimes", {})
    found = [[key, flag.place] for key, flag in daemon_flags.conflicts(flags, case.get("value", {}))]
    assert found == case.get("conflicts", [])


@cases("container_hosts")
def test_kinds_of_docker(case: dict[str, Any], tmp_path: Path) -> None:
    found = docker_host.inspect(tree_of(tmp_path, case["tree"]))
    assert found["engine"] == case.get("engine")
    assert found["snap"] is case.get("snap", False)
    assert found["podman"] is case.get("podman", False)
    assert found["desktop"] == case.get("desktop", [])
    assert {user: row["running"] for user, row in found["rootless"].items()} == case.get("rootless", {})
    refusal = docker_host.refusal(found)
    if "refused" in case:
        message, _, hint = refusal
        assert case["refused"]["message"] in message
        assert case["refused"]["hint"] in hint
    else:
        assert refusal is None
    assert [case["warning"] in words for words in docker_host.warnings(found)] == [True] * ("warning" in case)


@cases("container_cdi")
def test_cdi_specifications(case: dict[str, Any], tmp_path: Path) -> None:
    tree = tree_of(tmp_path, case["tree"])
    if "specs" in case:
        assert cdi_spec.read(tree) == case["specs"]
    assert [why for _, why in cdi_spec.outdated(tree)][:1] == list(filter(None, [case["verdict"]]))


LOG = """\
2026-11-01 10:00:00 install nvidia-container-toolkit:amd64 <none> 1.17.8-1
2026-11-01 10:00:01 status installed nvidia-container-toolkit:amd64 1.17.8-1
2026-11-20 12:00:00 upgrade nvidia-container-toolkit:amd64 1.17.8-1 1.18.2-1
2026-11-21 12:00:00 install nvidia-container-toolkit-base:amd64 <none> 1.18.2-1
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ({}, None),
        ({"/var/log/dpkg.log": ""}, None),
        ({"/var/log/dpkg.log": LOG.splitlines()[2] + "\n"}, 0),
        ({"/var/log/dpkg.log": LOG}, "2026-11-01 10:00:00"),
        ({"/var/log/dpkg.log.1": LOG, "/var/log/dpkg.log": LOG.splitlines()[2] + "\n"}, "2026-11-01 10:00:00"),
        (
            {
                "/var/log/dpkg.log": LOG
                + "2026-11-22 08:00:00 install nvidia-container-toolkit:amd64 1.18.2-1 1.18.2-1\n"
            },
            "2026-11-22 08:00:00",
        ),
    ],
)
def test_an_upgrade_is_no_installation(log: dict[str, str], expected: Any, tmp_path: Path) -> None:
    import time

    found = daemon_flags.installed_at(tree_of(tmp_path, log), "nvidia-container-toolkit")
    assert found == (
        time.mktime(time.strptime(expected, "%Y-%m-%d %H:%M:%S")) if isinstance(expected, str) else expected
    )


def test_a_hook_that_came_after_docker(tmp_path: Path) -> None:
    files = {"/proc/stat": "cpu 1\nbtime 1790000000\n", daemon_flags.HOOK: "ELF"}
    tree = tree_of(tmp_path, files)
    # The hook was written just now, and dockerd was started a second after that boot.
    assert daemon_flags.hook_is_newer(tree, 100)
    assert not daemon_flags.hook_is_newer(tree, 10**13)
    assert not daemon_flags.hook_is_newer(tree, None)
    upgraded = {"/var/log/dpkg.log": LOG.splitlines()[2] + "\n"}
    assert not daemon_flags.hook_is_newer(tree_of(tmp_path, upgraded), 100)
    (tmp_path / daemon_flags.HOOK.lstrip("/")).unlink()
    assert not daemon_flags.hook_is_newer(tree, 100)


PLUGIN = containerd_config.PLUGINS[2]
BASE = 'version = 2\n# ours\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/certs.d"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '# written by gpu-provision\nversion = 2\nimports = ["/c/*.toml"]\n'),
        (BASE, BASE.replace("version = 2\n", 'version = 2\nimports = ["/c/*.toml"]\n')),
        ('version = 2\nimports = ["/a.toml"]\n', 'version = 2\nimports = ["/c/*.toml", "/a.toml"]\n'),
        ('version = 2\nimports = ["/c/*.toml"]\n', 'version = 2\nimports = ["/c/*.toml"]\n'),
        ('version = 2\nimports = [\n  "/a.toml",\n]\n', None),
        (
            "[debug]\n  level = 'info'\nversion = 2\n",
            "imports = [\"/c/*.toml\"]\n[debug]\n  level = 'info'\nversion = 2\n",
        ),
        ("version = 2", 'version = 2\nimports = ["/c/*.toml"]\n'),
    ],
)
def test_one_more_import(text: str, expected: str | None) -> None:
    assert containerd_config.with_import(text, 2, "/c/*.toml") == expected
    if expected is not None:
        assert containerd_config.with_import(expected, 2, "/c/*.toml") == expected


@pytest.mark.parametrize("default", ["", "nvidia"])
@pytest.mark.parametrize("text", ["", BASE, BASE.rstrip("\n"), containerd_config.fragment(PLUGIN, {}, "runc")])
def test_a_block_goes_in_once_and_out_again(text: str, default: str) -> None:
    once = containerd_config.with_block(text, 2, PLUGIN, {"SystemdCgroup": "true"}, default)
    assert containerd_config.with_block(once, 2, PLUGIN, {"SystemdCgroup": "true"}, default) == once
    dump = containerd_config.sections(once)
    assert containerd_config.is_registered(dump, PLUGIN, default)
    if "runtimes.nvidia" not in text:
        options = dump[("plugins", PLUGIN, "containerd", "runtimes", "nvidia", "options")]
        assert options["SystemdCgroup"] == "true"
    assert once.count(f'[plugins."{PLUGIN}".containerd.runtimes.nvidia]') == 1, "TOML allows a table once"
    if not default and text and "runtimes.nvidia" not in text:
        assert containerd_config.without_block(once) == text + ("" if text.endswith("\n") else "\n")


def test_registered_by_files_alone(tmp_path: Path) -> None:
    assert containerd_config.registered_in(tree_of(tmp_path / "a", {}))["path"] is None
    drop_in = containerd_config.drop_in(2, PLUGIN, {}, "nvidia")
    files = {
        containerd_config.CONFIG: BASE.replace(
            "version = 2\n", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
        )
    }
    assert not containerd_config.registered_in(tree_of(tmp_path / "b", files))["runtime"]
    files[containerd_config.DROP_IN] = drop_in
    found = containerd_config.registered_in(tree_of(tmp_path / "c", files))
    assert found == {"runtime": True, "default": "nvidia", "path": containerd_config.CONFIG}


def test_what_is_lost_is_named() -> None:
    before = containerd_config.sections(BASE + '[debug]\n  level = "info"\n  uid = 0\n')
    after = containerd_config.sections('version = 2\n[debug]\n  level = "warn"\n')
    assert containerd_config.lost(before, after, PLUGIN) == [
        f'plugins.{PLUGIN}.registry: config_path = "/etc/certs.d"',
        'debug: level = "info"',
    ]
    assert containerd_config.lost(before, before, PLUGIN) == []
