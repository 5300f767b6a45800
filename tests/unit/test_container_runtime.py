"""What the module container_runtime does on described hosts: order, refusals, units, links, groups, rootless docker.

What a real dockerd or containerd makes of it: tests/system/test_container_*.py.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.containers import cdi_spec, docker_api, docker_proxy
from ansible_collections.gpu.provision.plugins.module_utils.containers import docker as containers_docker
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.containers import runtime as containers_runtime
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.20  Release Build\n"
SPEC = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n- hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.%s\n- path: /dev/nvidia0\n"
DOCKER = {
    "/usr/sbin/dockerd": "ELF",
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/home/alice:/bin/sh\n",
    "/etc/group": "docker:x:120:bob\n",
}


class Described:
    """A host of files below a folder; programs do what a test says."""

    def __init__(self, root: Path, files: dict[str, str], systemd: bool = True) -> None:
        self.root, self.commands = root, []
        self.states: dict[str, str] = {}
        for path, text in files.items():
            self.write(path, text)
        if systemd:
            (root / "run/systemd/system").mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def run(self, argv: list[str], timeout: float = 60, user: Any = None, fds: Any = ()) -> tuple[int, str, str]:
        self.commands.append(" ".join(argv))
        if argv[:2] == ["systemctl", "is-active"]:
            state = self.states.get(argv[2], "inactive")
            return (0 if state == "active" else 3), state + "\n", ""
        if argv[:2] == ["systemctl", "start"]:
            self.states[argv[2]] = "active"
        if argv[1:3] == ["cdi", "generate"]:
            self.write(argv[3].partition("=")[2], SPEC % "580.126.20")
        return 0, "", ""

    def acts(self) -> list[str]:
        """Programs that were started to change something."""
        return [command for command in self.commands if not command.startswith("systemctl is-active")]

    def apply(self, check: bool = False, **params: Any) -> Any:
        self.commands.clear()
        host = containers_host.Host(host_tree.HostTree(str(self.root)), check, containers_files.BACKUP, self.run)
        return containers_runtime.apply(params, check, host)


def test_docker_that_does_not_run_reads_its_file_when_it_starts(tmp_path: Path) -> None:
    host = Described(tmp_path, DOCKER)
    result = host.apply(docker={"runtime": True, "users": ["alice"]})
    assert result["done"] == [
        "wrote /etc/docker/daemon.json",
        "put alice into the group docker (takes effect at the next login)",
    ]
    assert json.loads(host.read("/etc/docker/daemon.json"))["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert stat.S_IMODE((tmp_path / "etc/docker/daemon.json").stat().st_mode) == 0o644
    assert host.acts() == ["usermod -a -G docker alice"]
    assert "does not run" in result["notes"][0]
    host.write("/etc/group", "docker:x:120:bob,alice\n")
    again = host.apply(docker={"runtime": True, "users": ["alice"]})
    assert (again["changed"], again["done"], host.acts()) == (False, [], [])


def test_a_docker_that_failed_is_started_with_the_good_file(tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, "/etc/docker/daemon.json": ""})
    host.states["docker.service"] = "failed"
    result = host.apply(docker={"runtime": True})
    assert result["done"] == ["changed /etc/docker/daemon.json", "started docker, which had failed"]
    assert host.acts() == ["systemctl reset-failed docker.service", "systemctl start docker.service"]


def test_refused_before_anything_is_changed(tmp_path: Path) -> None:
    broken = "{,}"
    for files, params, code in (
        ({}, {"docker": {"runtime": True}}, "containers.no_docker"),
        ({"/snap/bin/docker": "ELF"}, {"docker": {"runtime": True}}, "containers.no_docker"),
        ({**DOCKER, "/etc/docker/daemon.json": broken}, {"docker": {"runtime": True}}, "containers.daemon_json"),
        (DOCKER, {"rootless": ["alice"], "docker": {"runtime": True}}, "containers.no_rootless"),
        (DOCKER, {"docker": {"runtime": True, "users": ["eve"]}}, "containers.no_user"),
        (DOCKER, {"containerd": {}}, "containers.no_containerd"),
        (DOCKER, {"cdi": True}, "containers.no_toolkit"),
    ):
        root = tmp_path / code / str(len(list(tmp_path.iterdir())))
        host = Described(root, files)
        with pytest.raises(containers_runtime.ContainerError) as caught:
            host.apply(**params)
        assert caught.value.code == code
        assert caught.value.hint
        assert host.acts() == []
        there = root / "etc/docker/daemon.json"
        assert (there.read_text() if there.exists() else None) == files.get("/etc/docker/daemon.json")


def test_a_broken_file_names_line_and_column_and_stays(tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, "/etc/docker/daemon.json": '{\n  "debug": true,\n}\n'})
    with pytest.raises(containers_runtime.ContainerError) as caught:
        host.apply(docker={"runtime": True})
    assert caught.value.message == ("/etc/docker/daemon.json, line 2, column 16: a comma after the last entry")
    assert "it is kept" in caught.value.because[0]


def test_flags_that_contradict_are_refused_with_their_place(tmp_path: Path) -> None:
    host = Described(
        tmp_path,
        {
            **DOCKER,
            "/lib/systemd/system/docker.service": "[Service]\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n",
            "/etc/systemd/system/docker.service.d/gpu.conf": "[Service]\nExecStart=\n"
            "ExecStart=/usr/sbin/dockerd -H fd:// --add-runtime=nvidia=/usr/bin/nvidia-container-runtime\n",
            "/etc/docker/daemon.json": '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}',
        },
    )
    with pytest.raises(containers_runtime.ContainerError) as caught:
        host.apply(docker={"runtime": True})
    assert caught.value.code == "containers.flag_conflict"
    assert "/etc/systemd/system/docker.service.d/gpu.conf, line 3" in caught.value.hint
    # As the hint says: without it in the file, the flag is enough.
    host.write("/etc/docker/daemon.json", "{}")
    assert host.apply(docker={"runtime": True})["changed"] is False


def test_a_flag_grants_what_it_says(tmp_path: Path) -> None:
    unit = (
        "[Service]\nExecStart=/usr/sbin/dockerd --default-runtime=nvidia --default-shm-size 8G "
        "--exec-opt native.cgroupdriver=cgroupfs\n"
    )
    host = Described(tmp_path, {**DOCKER, "/lib/systemd/system/docker.service": unit})
    config = {"runtime": True, "default_runtime": "nvidia", "shm_size": "8192m", "cgroup_driver": "cgroupfs"}
    host.apply(docker=config)
    assert list(json.loads(host.read("/etc/docker/daemon.json"))) == ["runtimes"]


def test_the_owner_the_mode_and_a_link_are_kept(tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, "/srv/docker/daemon.json": "{}\n"})
    file = tmp_path / "srv/docker/daemon.json"
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 33, 120)
    (tmp_path / "etc/docker").mkdir()
    (tmp_path / "etc/docker/daemon.json").symlink_to("/srv/docker/daemon.json")
    result = host.apply(docker={"runtime": True})
    assert (tmp_path / "etc/docker/daemon.json").is_symlink()
    found = file.stat()
    assert stat.S_IMODE(found.st_mode) == 0o640
    if os.geteuid() == 0:
        assert (found.st_uid, found.st_gid) == (33, 120)
    copy = Path(result["backups"]["/etc/docker/daemon.json"])
    assert copy.read_text() == "{}\n"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_backups_of_the_same_content_are_one(tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, "/etc/docker/daemon.json": "{}\n"})
    first = host.apply(docker={"runtime": True})["backups"]
    host.write("/etc/docker/daemon.json", "{}\n")
    assert host.apply(docker={"runtime": True})["backups"] == first
    assert len(list((tmp_path / "var/lib/gpu-provision/backup/etc/docker").iterdir())) == 1


# What dockerd printed, by version: (the file's bytes, what it says to it). Recorded from Debian's 20.10.24 and 26.1.5.
UNABLE = "unable to configure the Docker daemon with file /proc/self/fd/4: "
NEEDS_ROOT = (
    'time="2026-11-28T06:40:29Z" level=info msg="Starting up"\ndockerd needs to be started with root privileges. To run '
    "dockerd in rootless mode as an unprivileged user, see https://docs.docker.com/go/rootless/\n"
)
NO_PROXY = (
    "merged configuration validation from file and command line flags failed: invalid userland-proxy-path: userland-proxy "
    "is enabled, but userland-proxy-path is not set"
)


@pytest.mark.parametrize(
    ("version", "answers", "expected"),
    [
        ("20.10.24+dfsg1", {"it": (1, NEEDS_ROOT)}, ""),
        (
            "20.10.24+dfsg1",
            {"it": (1, UNABLE + "the following directives don't match any configuration option: a\n")},
            "the following directives don't match any configuration option: a",
        ),
        ("20.10.24+dfsg1", {"it": (127, "no such file")}, None),
        ("26.1.5+dfsg1", {"it": (0, "configuration OK\n")}, ""),
        (
            "26.1.5+dfsg1",
            {"it": (1, UNABLE + "invalid size: '8X'\n"), "{}": (0, "configuration OK\n")},
            "invalid size: '8X'",
        ),
        ("26.1.5+dfsg1", {"it": (1, UNABLE + NO_PROXY + "\n"), "{}": (1, UNABLE + NO_PROXY + "\n")}, None),
        ("26.1.5+dfsg1", {"it": (124, "")}, None),
        ("18.09.1", {}, None),
    ],
)
def test_what_dockerd_says_of_a_file(
    version: str, answers: dict[str, tuple[int, str]], expected: str | None, tmp_path: Path
) -> None:
    program = tmp_path / "dockerd"
    program.write_text("ELF")
    asked: list[tuple[str, Any]] = []

    def run(argv: list[str], timeout: float, user: Any = None, fds: Any = ()) -> tuple[int, str, str]:
        if argv[1] == "--version":
            return 0, f"Docker version {version}, build 411e817\n", ""
        assert argv[-2:] == ["-H", "fd://"]
        assert ("--validate" in argv) is (version >= "23")
        assert user == (None if version >= "23" else (65534, 65534))
        data = os.pread(fds[1], 100, 0).decode()
        asked.append((data, user))
        rc, said = answers.get("{}" if data == "{}" else "it", (1, NEEDS_ROOT))
        return rc, "", said

    assert containers_docker.judge(run, str(program), ["-H", "fd://"], b'{"a": 1}') == expected
    assert len(asked) <= 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"default-runtime": "kata"}', "default-runtime is kata, and no runtime of that name"),
        ('{"runtimes": {"runc": {"path": "/opt/runc"}}}', "the name runc in runtimes is dockerd's own"),
    ],
)
def test_what_newer_dockerds_say_at_their_start_only(text: str, words: str, tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, "/etc/docker/daemon.json": text})
    with pytest.raises(containers_runtime.ContainerError) as caught:
        host.apply(docker={"runtime": True})
    assert words in caught.value.message
    assert host.read("/etc/docker/daemon.json") == text


# ---- CDI


GPU = {"/proc/driver/nvidia/version": DRIVER, "/dev/nvidia0": "", containers_files.CTK: "ELF"}


def test_units_of_ours_where_the_toolkit_has_none(tmp_path: Path) -> None:
    host = Described(tmp_path, GPU)
    result = host.apply(cdi=True)
    wants = tmp_path / containers_files.WANTS.lstrip("/")
    assert {path.name: str(path.readlink()) for path in wants.iterdir()} == {
        "gpu-provision-cdi.path": "/etc/systemd/system/gpu-provision-cdi.path",
        "gpu-provision-cdi.service": "/etc/systemd/system/gpu-provision-cdi.service",
    }
    assert host.acts() == [
        "systemctl start gpu-provision-cdi.path",
        f"{containers_files.CTK} cdi generate --output={cdi_spec.OUTPUT}",
    ]
    assert "daemon-reload" not in str(host.commands) and "enable" not in str(host.commands)
    assert result["done"][-1] == ("wrote /var/run/cdi/nvidia.yaml for driver 580.126.20: there is no CDI specification")
    again = host.apply(cdi=True)
    assert (again["changed"], host.acts()) == (False, [])


def test_the_toolkits_own_units_go_before_ours(tmp_path: Path) -> None:
    host = Described(tmp_path, GPU)
    host.apply(cdi=True)
    for unit in containers_files.TOOLKIT_UNITS:
        host.write(f"/lib/systemd/system/{unit}", "[Unit]\n")
    result = host.apply(cdi=True)
    wants = tmp_path / containers_files.WANTS.lstrip("/")
    assert sorted(path.name for path in wants.iterdir()) == list(containers_files.TOOLKIT_UNITS)
    assert not (tmp_path / containers_files.CDI_SERVICE.lstrip("/")).exists()
    assert host.acts() == ["systemctl stop gpu-provision-cdi.path", "systemctl start nvidia-cdi-refresh.path"]
    assert "removed " + containers_files.CDI_PATH in result["done"]
    assert host.apply(cdi=True)["changed"] is False


def test_a_specification_of_the_driver_before_is_made_anew(tmp_path: Path) -> None:
    host = Described(
        tmp_path, {**GPU, cdi_spec.OUTPUT: SPEC % "580.126.20", "/etc/cdi/nvidia.yaml": SPEC % "550.163.01"}
    )
    result = host.apply(cdi=True)
    assert f"{containers_files.CTK} cdi generate --output=/etc/cdi/nvidia.yaml" in host.acts()
    assert any("names libraries of driver 550.163.01" in words for words in result["done"])
    assert cdi_spec.outdated(host_tree.HostTree(str(tmp_path))) == []


def test_a_card_that_nvidia_ctk_leaves_out_is_no_endless_change(tmp_path: Path) -> None:
    host = Described(tmp_path, {**GPU, "/dev/nvidia1": ""})
    host.apply(cdi=True)
    assert host.apply(cdi=True)["changed"] is False


def test_without_a_driver_the_unit_waits(tmp_path: Path) -> None:
    host = Described(tmp_path, {containers_files.CTK: "ELF"})
    result = host.apply(cdi=True)
    assert not any("generate" in command for command in host.commands)
    assert "no driver is loaded" in result["notes"][0]


def test_units_of_ours_go_when_not_wanted(tmp_path: Path) -> None:
    host = Described(tmp_path, GPU)
    host.apply(cdi=True, device_links=True)
    result = host.apply(cdi=False, device_links=False)
    assert sorted(result["done"]) == [
        "removed " + path
        for path in sorted([containers_files.CDI_PATH, containers_files.CDI_SERVICE, containers_files.UDEV_RULE])
    ]
    assert (tmp_path / cdi_spec.OUTPUT.lstrip("/")).exists()
    assert host.apply(cdi=False, device_links=False)["changed"] is False


def test_check_mode_before_the_toolkit_is_there(tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, "/dev/nvidia0": ""})
    result = host.apply(check=True, docker={"runtime": True}, cdi=True, device_links=True)
    assert result["done"] == [
        "wrote " + containers_files.UDEV_RULE,
        "wrote /etc/docker/daemon.json",
        "will keep the CDI specification current",
    ]
    assert not (tmp_path / "etc/docker").exists()
    assert host.acts() == []


def test_check_mode_before_docker_is_there(tmp_path: Path) -> None:
    """A check run of a play that installs docker shows what follows; without check mode it is a refusal."""
    host = Described(tmp_path, {"/etc/passwd": DOCKER["/etc/passwd"], "/etc/group": ""})
    result = host.apply(check=True, docker={"runtime": True}, containerd={})
    assert result["done"] == ["wrote /etc/docker/daemon.json"] and not (tmp_path / "etc/docker").exists()
    assert {note.split(":")[0] for note in result["notes"]} >= {
        "docker is not installed",
        "containerd is not installed",
    }
    with pytest.raises(containers_host.ContainerError, match="docker is not installed"):
        host.apply(docker={"runtime": True})
    host.write("/snap/bin/docker", "")
    with pytest.raises(containers_host.ContainerError, match="snap"):
        host.apply(check=True, docker={"runtime": True})


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_links_in_dev_char(tmp_path: Path) -> None:
    host = Described(tmp_path, {containers_files.CTK: "ELF"})
    (tmp_path / "dev").mkdir()
    try:
        os.mknod(tmp_path / "dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    except PermissionError:
        pytest.skip("no device nodes here")
    original = host.run

    def run(argv: list[str], *rest: Any) -> tuple[int, str, str]:
        if "create-dev-char-symlinks" in argv:
            (tmp_path / "dev/char").mkdir()
            (tmp_path / "dev/char/195:0").symlink_to("/dev/nvidia0")
        return original(argv, *rest)

    host.run = run  # type: ignore[method-assign]
    result = host.apply(device_links=True)
    assert "made links in /dev/char for /dev/nvidia0" in result["done"]
    assert host.apply(device_links=True)["changed"] is False
    (tmp_path / "dev/char/195:0").unlink()
    host.run = original  # type: ignore[method-assign]
    with pytest.raises(containers_runtime.ContainerError, match="still have no link"):
        host.apply(device_links=True)


# ---- docker of a user


class Silent:
    """A daemon that is not there."""

    def __init__(self, path: str) -> None:
        self.path = path

    def info(self) -> Any:
        raise docker_api.DockerError("nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works as somebody else")
def test_a_users_file_is_written_as_the_user(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir()
    home.chmod(0o755)
    os.chown(home, 65534, 65534)
    row = {"uid": 65534, "gid": 65534, "home": str(home)}
    host = containers_host.Host(host_tree.HostTree("/"), False, str(open_folder / "backup"), lambda *_: (1, "", ""))
    daemon = containers_docker.UserDocker(host, "when_idle", "nobody", row, Silent)
    daemon.ensure({"runtime": True})
    file = home / ".config/docker/daemon.json"
    assert json.loads(file.read_text())["runtimes"]["nvidia"]
    assert (file.stat().st_uid, file.parent.stat().st_uid) == (65534, 65534)
    assert "reads" in host.warnings[0]

    # A link into what only root may read leads root nowhere.
    secret = open_folder / "secret.json"
    secret.write_text("{}")
    secret.chmod(0o600)
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(containers_host.ContainerError) as caught:
        containers_docker.UserDocker(host, "when_idle", "nobody", row, Silent).ensure({"runtime": True})
    assert caught.value.code == "containers.file"
    assert secret.read_text() == "{}"


def test_no_cgroups_is_for_hosts_without_a_system_docker(tmp_path: Path) -> None:
    config = "/etc/nvidia-container-runtime/config.toml"
    for text, docker, acts, notes in (
        ("#no-cgroups = false\n", None, ["nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"], 0),
        ("no-cgroups = true\n", None, [], 0),
        ("#no-cgroups = false\n", {"runtime": True}, [], 1),
    ):
        host = Described(tmp_path / str(len(list(tmp_path.iterdir()))), {config: text})
        made = containers_host.Host(host_tree.HostTree(str(host.root)), False, run=host.run)
        containers_runtime._without_cgroups(made, docker)
        assert (host.acts(), len(made.warnings)) == (acts, notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
@pytest.mark.parametrize(
    ("cgroups", "linked", "said"), [("systemd", False, True), ("cgroupfs", False, False), ("systemd", True, False)]
)
def test_l3_containers_that_a_daemon_reload_would_rob_are_named(
    cgroups: str, linked: bool, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Described(tmp_path, {"/proc/41/comm": "dockerd\n"})
    (tmp_path / "dev/char").mkdir(parents=True)
    try:
        os.mknod(tmp_path / "dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    except PermissionError:
        pytest.skip("no device nodes here")
    if linked:
        (tmp_path / "dev/char/195:0").symlink_to("/dev/nvidia0")

    class Client:
        def info(self) -> Any:
            return {"cgroup_driver": cgroups}

        def running(self, _: Any) -> Any:
            return [{"name": "training", "gpu": True}, {"name": "web", "gpu": False}]

    monkeypatch.setattr(docker_api, "Client", Client)
    made = containers_host.Host(host_tree.HostTree(str(host.root)), False, run=host.run)
    containers_runtime._warn_reload(made)
    assert ["take the GPUs from training:" in words for words in made.warnings] == [True] * said


def test_marks_survive_and_go(tmp_path: Path) -> None:
    host = containers_host.Host(host_tree.HostTree(str(tmp_path)))
    host.mark("docker", 100, ["runtimes"])
    host.mark("docker", 100, ["features.cdi"])
    assert host.pending() == {"docker": {"started": 100, "keys": ["features.cdi", "runtimes"]}}
    host.mark("docker", 200, ["exec-opts"])
    assert host.pending()["docker"] == {"started": 200, "keys": ["exec-opts"]}
    host.unmark("docker")
    assert host.pending() == {}
    assert not (tmp_path / containers_files.PENDING.lstrip("/")).exists()
    (tmp_path / containers_files.PENDING.lstrip("/")).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / containers_files.PENDING.lstrip("/")).write_text("{")
    assert host.pending() == {}


@pytest.mark.parametrize(
    ("row", "title"),
    [
        (
            {"runtime": "docker", "id": "7d64db074abf", "name": "job", "image": "tiny:1", "gpu": False},
            "job (docker, tiny:1)",
        ),
        (
            {"runtime": "containerd", "id": "7d64db074abf", "name": None, "image": None, "gpu": True},
            "7d64db074abf (containerd, uses a GPU)",
        ),
    ],
)
def test_containers_in_the_way_have_words(row: dict[str, Any], title: str, tmp_path: Path) -> None:
    """What is left to a person is told in words: exit 6 once showed a Python dictionary."""
    host = containers_host.Host(host_tree.HostTree(tmp_path))
    host.in_the_way.append(row)
    assert containers_runtime.apply({}, host=host)["in_the_way"] == [{**row, "title": title}]


PROXY = {"http": "http://proxy:3128", "https": "http://proxy:3128", "no_proxy": "localhost,.corp"}
DROP_IN = """\
# written by gpu-provision
[Service]
Environment="HTTP_PROXY=http://proxy:3128"
Environment="HTTPS_PROXY=http://proxy:3128"
Environment="NO_PROXY=localhost,.corp"
"""


def test_n4_a_proxy_for_docker(tmp_path: Path) -> None:
    """The drop-in is written once, systemd sees it before docker is started, and it goes with the variables."""
    host = Described(tmp_path, DOCKER)
    first = host.apply(docker={"runtime": True, "proxy": PROXY})
    assert host.read(docker_proxy.PATH) == DROP_IN
    assert f"wrote {docker_proxy.PATH}" in first["done"] and host.acts() == ["systemctl daemon-reload"]
    again = host.apply(docker={"runtime": True, "proxy": PROXY})
    assert (again["done"], host.acts()) == ([], [])
    checked = host.apply(check=True, docker={"runtime": True, "proxy": {}})
    assert f"removed {docker_proxy.PATH}" in checked["done"] and host.acts() == []
    assert host.apply(docker={"runtime": True, "proxy": None})["done"] == []
    gone = host.apply(docker={"runtime": True, "proxy": {"http": "", "https": "", "no_proxy": ""}})
    assert f"removed {docker_proxy.PATH}" in gone["done"]
    assert not (tmp_path / docker_proxy.PATH.lstrip("/")).exists()


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (
            {"/etc/docker/daemon.json": '{"proxies": {"http-proxy": "http://u:secret@p:1"}}'},
            "/etc/docker/daemon.json, proxies",
        ),
        (
            {"/lib/systemd/system/docker.service": "[Service]\nExecStart=/usr/sbin/dockerd --http-proxy=http://p:1\n"},
            "--http-proxy",
        ),
        (
            {
                "/lib/systemd/system/docker.service": "[Service]\nEnvironmentFile=-/etc/default/docker\n"
                "ExecStart=/usr/sbin/dockerd\n",
                "/etc/default/docker": "NO_PROXY=x\n",
            },
            "/etc/default/docker, line 1",
        ),
    ],
)
def test_n4_a_proxy_of_somebody_else_stays(files: dict[str, str], place: str, tmp_path: Path) -> None:
    host = Described(tmp_path, {**DOCKER, **files})
    result = host.apply(docker={"runtime": True, "proxy": PROXY})
    assert any(place in note for note in result["notes"]), result["notes"]
    assert not any("secret" in note for note in result["notes"])
    assert not (tmp_path / docker_proxy.PATH.lstrip("/")).exists()


def test_n4_without_systemd_there_is_no_drop_in(tmp_path: Path) -> None:
    host = Described(tmp_path, DOCKER, systemd=False)
    assert any("not started by systemd" in note for note in host.apply(docker={"proxy": PROXY})["notes"])


@pytest.mark.parametrize(
    ("said", "differs"),
    [
        ({"HttpProxy": "http://proxy:3128", "HttpsProxy": "http://proxy:3128", "NoProxy": "localhost,.corp"}, False),
        ({"HttpProxy": "http://xxxxx:xxxxx@proxy:3128", "HttpsProxy": "http://proxy:3128", "NoProxy": ""}, True),
        ({}, True),
    ],
)
def test_n4_the_truth_is_what_docker_says(said: dict[str, str], differs: bool) -> None:
    found = docker_proxy.of_info(said)
    assert "xxxxx" not in found["http"]
    assert docker_proxy.differs(PROXY, {"proxy": found}) is differs
    assert not docker_proxy.differs({"http": "", "https": "", "no_proxy": "x"}, {"proxy": found})
