"""A running lab: hosts, their package server, the inventory, and what tests do with them."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from . import profile, repos, setup
from .conda import publish as conda
from .debfile import Package
from .engine import LABEL, LabError, engine, run
from .image import image
from .paths import LABS
from .setup import say
from .spec import HostSpec, read_specs

USER, SUDO_PASSWORD = "lab", "correct horse"
SERVER = "the package server"
EXCUSED = (
    "gpu.count",
    "gpu.compute",
    "gpu.health",
    "gpu.p2p",
    "gpu.nccl",
    "gpu.cudnn",
    "gpu.dcgm",
    "cuda.compile",
    "python.framework",
)


@dataclass
class Result:
    """What a command on a host did."""

    rc: int
    stdout: str
    stderr: str


@dataclass
class LabHost:
    """One simulated host of a running lab."""

    lab: Lab
    spec: HostSpec
    address: str
    port: int
    container: str
    image: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def folder(self) -> Path:
        """What the host sees as /etc/sim: host.json (its hardware), fail-postinst."""
        return self.lab.folder / "hosts" / self.name

    def run(self, command: str | list[str], *, check: bool = True, timeout: float = 120) -> Result:
        """Run a command inside the host, as root and without ssh; a string goes to sh. Raises LabError when it fails."""
        words = ["sh", "-c", command] if isinstance(command, str) else command
        done = engine().inside(self.container, words, timeout)
        if check and done.returncode:
            raise LabError(
                f"{self.name}: {command!r} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}"
            )
        return Result(done.returncode, done.stdout, done.stderr)

    def ssh_command(self, *words: str) -> list[str]:
        """The OpenSSH command line that reaches the host as its login user."""
        return ["ssh", "-F", str(self.lab.folder / "ssh_config"), self.name, *words]

    def ssh(self, command: str, *, check: bool = True, timeout: float = 120) -> Result:
        """Run a command over ssh as the login user."""
        done = run(self.ssh_command(command), check=False, timeout=timeout)
        if check and done.returncode:
            raise LabError(
                f"{self.name}: {command!r} over ssh ended with {done.returncode}: {done.stderr.strip()[-800:]}"
            )
        return Result(done.returncode, done.stdout, done.stderr)

    def describe(self) -> dict[str, Any]:
        """{"release", "modules", "devices"} of the boot that runs."""
        found: dict[str, Any] = json.loads(self.run(["/usr/local/lib/sim/bin/sim-describe"]).stdout)
        return found

    def restart(self) -> None:
        """Restart the host as ``reboot`` does and wait until it answers; its disk stays."""
        engine()("restart", "-t", "5", self.container)
        self.wait()

    def reset(self) -> None:
        """Throw the disk away and start again from the prepared image."""
        engine().remove([self.container])
        self.container = self.lab.start_container(self.spec, self.address, self.port, self.image)
        self.lab.save()
        self.wait()

    def machine(self, **changes: Any) -> dict[str, Any]:
        """Return the hardware, after changing it (``gpus=[…]``, ``secure_boot=True``); seen at the next restart."""
        path = self.folder / "host.json"
        found: dict[str, Any] = json.loads(path.read_text())
        if changes:
            found.update(changes)
            path.write_text(json.dumps(found, indent=1) + "\n")
        return found

    def fail_postinst(self, *names: str) -> None:
        """Make the configuration of these packages fail; no name ends it."""
        path = self.folder / "fail-postinst"
        if names:
            path.write_text("\n".join(names) + "\n")
        else:
            path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Switch the host off (its address refuses connections)."""
        engine()("stop", "-t", "2", self.container)

    def wait(self, timeout: float = 60) -> None:
        """Wait until sshd answers and systemd has left its start phase."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((self.address, self.port), timeout=2) as connection:
                    connection.settimeout(3)
                    if connection.recv(4) == b"SSH-":
                        break
            except OSError:
                # not up yet: the deadline ends this
                pass
            time.sleep(0.05)
        else:
            jobs = engine()("exec", self.container, "systemctl", "list-jobs", "--no-pager", check=False)
            raise LabError(
                f"{self.name} did not answer on {self.address}:{self.port} in {timeout:.0f} s: {(jobs.stdout + jobs.stderr)[-600:]}"
            )
        error = self.folder / "boot-error"
        if error.exists():
            raise LabError(f"the boot simulator failed on {self.name}: {error.read_text()}")


@dataclass
class Lab:
    """Simulated hosts that run until ``down``. Make one with ``Lab.start`` or ``Lab.up``."""

    name: str
    folder: Path
    network: int
    port: int
    server: str = ""
    server_address: str = ""
    base: str = ""
    owner: int | None = None
    hosts: dict[str, LabHost] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def start(
        cls, hosts: list[dict[str, Any] | HostSpec], name: str | None = None, *, release: str | None = None
    ) -> Iterator[Lab]:
        """Start hosts and stop them at the end, also after Ctrl-C or an error. release: Ubuntu of hosts that name none."""
        lab = cls.up(hosts, name, release=release, owner=os.getpid())
        try:
            yield lab
        finally:
            lab.down()

    @classmethod
    def up(
        cls,
        hosts: list[dict[str, Any] | HostSpec],
        name: str | None = None,
        *,
        release: str | None = None,
        owner: int | None = None,
    ) -> Lab:
        """Start hosts and leave them running; ``Lab.attach(name)`` finds them again.

        owner: id of the process that will stop them; should it die, the next lab to start cleans up.
        """
        if release:
            hosts = [{"ubuntu": release, **host} if isinstance(host, dict) else host for host in hosts]
        specs = read_specs(hosts)
        setup.ensure()
        with repos.locked("image"):
            _, what = image()
        say(f"simulated hosts; base: {what}")
        _sweep()
        lab = cls._claim(name or f"lab-{uuid.uuid4().hex[:6]}", owner)
        lab.base = what
        try:
            lab._serve(sorted({spec.ubuntu for spec in specs}))
            lab.add(list(specs))
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def _claim(cls, name: str, owner: int | None) -> Lab:
        folder = LABS / name
        with repos.locked("labs"):
            if (folder / "lab.json").exists():
                raise LabError(f"a lab named {name} already exists: python -m tests.lab down {name}")
            taken = {json.loads(path.read_text())["network"] for path in LABS.glob("*/lab.json")}
            network = next((n for n in range(1, 255) if n not in taken and _free(n)), None)
            if network is None:
                raise LabError("no free loopback network 127.0.N.0 is left")
            folder.mkdir(parents=True, exist_ok=True)
            lab = cls(name, folder, network, _port(network), owner=owner)
            lab.save()
        return lab

    @classmethod
    def attach(cls, name: str) -> Lab:
        """Find a lab that was started by ``up``."""
        path = LABS / name / "lab.json"
        if not path.exists():
            known = ", ".join(labs()) or "none"
            raise LabError(f"no lab named {name} (there: {known})")
        kept = json.loads(path.read_text())
        lab = cls(
            name,
            path.parent,
            kept["network"],
            kept["port"],
            kept["server"],
            kept["server_address"],
            kept["base"],
            kept.get("owner"),
        )
        for row in kept["hosts"]:
            spec = HostSpec.model_validate(row["spec"])
            lab.hosts[spec.name] = LabHost(lab, spec, row["address"], row["port"], row["container"], row["image"])
        return lab

    def save(self) -> None:
        """Keep what ``attach`` and ``down`` need."""
        rows = [
            {
                "spec": h.spec.model_dump(),
                "address": h.address,
                "port": h.port,
                "container": h.container,
                "image": h.image,
            }
            for h in self.hosts.values()
        ]
        kept = {
            "network": self.network,
            "port": self.port,
            "server": self.server,
            "server_address": self.server_address,
            "base": self.base,
            "owner": self.owner,
            "hosts": rows,
        }
        temporary = self.folder / "lab.json.new"
        temporary.write_text(json.dumps(kept, indent=1))
        temporary.replace(self.folder / "lab.json")

    def host(self, name: str) -> LabHost:
        """A host by name."""
        return self.hosts[name]

    @property
    def inventory(self) -> Path:
        """The Ansible inventory of the lab's hosts."""
        return self.folder / "hosts.yml"

    @property
    def served(self) -> repos.Served:
        return repos.Served(self.folder / "www")

    def publish(self, *what: str, packages: list[Package] | None = None, nvidia: list[Package] | None = None) -> None:
        """Publish newer versions in this lab's repositories; see repos.Served.publish."""
        self.served.publish(*what, packages=packages, nvidia=nvidia)

    def add(self, hosts: list[dict[str, Any] | HostSpec]) -> list[LabHost]:
        """Start further hosts, in parallel, and wait until all answer."""
        specs = read_specs(hosts)
        for spec in specs:
            self.served.add_release(spec.ubuntu)
        images: dict[str, str] = {}
        by_profile: dict[str, HostSpec] = {
            json.dumps([spec.profile(), spec.runfile and spec.gpus]): spec for spec in specs
        }
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            for key, tag in zip(
                by_profile,
                pool.map(
                    lambda spec: profile.prepare(spec, self.server_address, self.served.state()), by_profile.values()
                ),
                strict=True,
            ):
                images[key] = tag
        self._key()
        clash = {spec.name for spec in specs} & set(self.hosts)
        if clash:
            raise LabError(f"the lab {self.name} has {', '.join(sorted(clash))} already")
        used = {host.address for host in self.hosts.values()}
        free = (address for n in range(1, 255) if (address := f"127.0.{self.network}.{n}") not in used)
        places = list(zip(free, specs, strict=False))
        if len(places) < len(specs):
            raise LabError("a lab has at most 254 hosts")

        def start(address: str, spec: HostSpec) -> LabHost:
            tag = images[json.dumps([spec.profile(), spec.runfile and spec.gpus])]
            folder = self.folder / "hosts" / spec.name
            folder.mkdir(parents=True)
            self._first_files(spec, folder)
            container = self.start_container(spec, address, self.port, tag)
            return LabHost(self, spec, address, self.port, container, tag)

        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            jobs = [pool.submit(start, address, spec) for address, spec in places]
            for job in jobs:
                host = job.result()
                self.hosts[host.name] = host
        self._write_inventory()
        self.save()
        for spec in specs:
            self.hosts[spec.name].wait(90)
        return [self.hosts[spec.name] for spec in specs]

    def remove(self, *names: str) -> None:
        """Stop hosts and forget them."""
        gone = [self.hosts.pop(name) for name in names]
        engine().remove([host.container for host in gone])
        for host in gone:
            shutil.rmtree(host.folder)
            for suffix in ("", ".pub"):
                (self.folder / "host-keys" / f"{host.name}{suffix}").unlink()
        self._write_inventory()
        self.save()

    def start_container(self, spec: HostSpec, address: str, port: int, tag: str) -> str:
        """Start the container of one host; returns its id."""
        podman = engine()
        names = [
            word
            for host in (repos.ARCHIVE_HOST, repos.NVIDIA_HOST, conda.HOST)
            for word in ("--add-host", f"{host}:{self.server_address}")
        ]
        done = podman(
            "run",
            "-d",
            "--name",
            f"gpulab-{self.name}-{spec.name}",
            "--hostname",
            spec.name,
            "--label",
            f"{LABEL}={self.name}",
            *podman.run_flags,
            *podman.boot_flags,
            *names,
            "-p",
            f"{address}:{port}:22",
            "-v",
            f"{self.folder / 'hosts' / spec.name}:/etc/sim",
            tag,
        )
        return done.stdout.split()[-1]

    def down(self) -> None:
        """Stop everything of this lab, by id, and remove its folder."""
        engine().remove(engine().containers(f"label={LABEL}={self.name}"))
        with repos.locked("labs"):
            run_rm = ["rm", "-rf", "--one-file-system", str(self.folder)]
            if os.access(self.folder, os.W_OK):
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.folder.exists():
                from .engine import as_root

                run(as_root(run_rm))

    def _serve(self, releases: list[str]) -> None:
        """Start the package server: a container of the lab's own image, seen by hosts under both repositories' names."""
        self.served.root.mkdir(parents=True, exist_ok=True)
        for ubuntu in releases:
            self.served.add_release(ubuntu)
        conda.publish(self.served.root)
        tag, _ = image()
        podman = engine()
        done = podman(
            "run",
            "-d",
            "--name",
            f"gpulab-{self.name}",
            "--label",
            f"{LABEL}={self.name}",
            *podman.run_flags,
            "-v",
            f"{self.folder / 'www'}:/srv:ro",
            tag,
            "python3",
            "-m",
            "http.server",
            "80",
            "--protocol",
            "HTTP/1.1",
            "--directory",
            "/srv",
        )
        self.server = done.stdout.split()[-1]
        self.server_address = podman.address(self.server)
        self.save()
        deadline = time.monotonic() + 15
        while True:
            try:
                socket.create_connection((self.server_address, 80), timeout=2).close()
                return
            except OSError as problem:
                if time.monotonic() > deadline:
                    raise LabError(f"{SERVER} does not answer on {self.server_address}: {problem}") from problem
                time.sleep(0.05)

    def _key(self) -> Path:
        key = self.folder / "key"
        if not key.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpu-lab", "-f", str(key)])
        return key

    def _first_files(self, spec: HostSpec, folder: Path) -> None:
        """Write what the host unpacks at its first boot: host key, login, sudo; and its hardware."""
        profile.write_machine(spec, folder)
        host_key = self.folder / "host-keys" / spec.name
        host_key.parent.mkdir(exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{spec.name}", "-f", str(host_key)])
        sudo = f"{USER} ALL=(ALL:ALL) {'NOPASSWD: ' if spec.sudo == 'nopasswd' else ''}ALL\n"
        password = run(["openssl", "passwd", "-6", "-salt", "gpulab", SUDO_PASSWORD]).stdout.strip()
        with tarfile.open(folder / "first.tar", "w") as archive:
            for path, data, mode, owner in (
                ("etc/ssh/ssh_host_ed25519_key", host_key.read_bytes(), 0o600, 0),
                ("etc/ssh/ssh_host_ed25519_key.pub", host_key.with_suffix(".pub").read_bytes(), 0o644, 0),
                ("home/lab/.ssh/authorized_keys", (self.folder / "key.pub").read_bytes(), 0o600, 1000),
                ("etc/sudoers.d/90-lab", sudo.encode(), 0o440, 0),
                ("var/lib/sim/password", f"{USER}:{password}\n".encode(), 0o600, 0),
            ):
                if path.startswith("home"):
                    entry = tarfile.TarInfo("home/lab/.ssh")
                    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o700, owner, owner
                    archive.addfile(entry)
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode, entry.uid, entry.gid, entry.mtime = (
                    len(data),
                    mode,
                    owner,
                    owner,
                    int(time.time()),
                )
                archive.addfile(entry, BytesIO(data))

    def _write_inventory(self) -> None:
        """Write inventory, known_hosts, ssh_config and the repository's key: all that a controller needs."""
        archive_key, nvidia_key = repos.keys()
        key_file = self.folder / "nvidia-repo-key.asc"
        shutil.copy(nvidia_key.public, key_file)
        known, config, rows = [], [], {}
        for host in self.hosts.values():
            public = (self.folder / "host-keys" / f"{host.name}.pub").read_text().split()
            target = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
            known.append(f"{target} {public[0]} {public[1]}")
            config.append(f"Host {host.name}\n  HostName {host.address}\n  Port {host.port}\n")
            row: dict[str, Any] = {
                "ansible_host": host.address,
                "nvidia_driver_repo_url": repos.nvidia_url(host.spec.ubuntu),
                "gpu_mirror_archive_url": repos.archive_url(),
                "gpu_mirror_archive_key": archive_key.fingerprint,
            }
            if host.port != 22:
                row["ansible_port"] = host.port
            if host.spec.sudo == "password":
                row["ansible_become_password"] = SUDO_PASSWORD
            rows[host.name] = row
        known_hosts = self.folder / "known_hosts"
        known_hosts.write_text("\n".join(known) + "\n")
        options = {"UserKnownHostsFile": str(known_hosts), "StrictHostKeyChecking": "yes", "IdentitiesOnly": "yes"}
        (self.folder / "ssh_config").write_text(
            "".join(config)
            + f"Host *\n  User {USER}\n  IdentityFile {self.folder / 'key'}\n"
            + "".join(f"  {name} {value}\n" for name, value in options.items())
        )
        variables = {
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": " ".join(f"-o {name}={value}" for name, value in options.items()),
            "nvidia_driver_repo_key": str(key_file),
            "nvidia_driver_repo_key_fingerprint": nvidia_key.fingerprint,
            # Nothing can compute on simulated cards: contents.py has the libraries that say so.
            "gpu_verify_excuse": list(EXCUSED),
        }
        inventory = {"all": {"children": {"gpu": {"hosts": rows, "vars": variables}}}}
        self.inventory.write_text(
            f"# Simulated hosts of the lab {self.name}; base: {self.base}\n"
            + yaml.safe_dump(inventory, sort_keys=False)
        )


def labs() -> list[str]:
    """Names of the labs of this user that are up."""
    return sorted(path.parent.name for path in LABS.glob("*/lab.json"))


def down_all() -> None:
    """Stop every lab of this user that no living test run owns, and containers that belong to no lab any more."""
    for name in labs():
        owner = _owner(name)
        if owner is None or not _alive(owner):
            Lab.attach(name).down()
        else:
            say(f"left alone: {name}, in use by process {owner}")
    kept = set(labs())
    for container in engine().containers(f"label={LABEL}"):
        if engine().inspect(container)["Config"]["Labels"][LABEL] not in kept:
            engine().remove([container])


def _sweep() -> None:
    """Stop labs whose owner has died without stopping them (kill -9, power cut)."""
    for name in labs():
        owner = _owner(name)
        if owner is not None and not _alive(owner):
            say(f"cleaning up {name}, whose owner {owner} is gone")
            Lab.attach(name).down()


def _owner(name: str) -> int | None:
    owner: int | None = json.loads((LABS / name / "lab.json").read_text()).get("owner")
    return owner


def _alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def _free(network: int) -> bool:
    """True when no other user's lab has the loopback network: nothing answers on its first host."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((f"127.0.{network}.1", 2022)) != 0


def _port(network: int) -> int:
    """22, or 2022 where something on this machine listens on port 22 of every address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return 2022 if probe.connect_ex((f"127.0.{network}.1", 22)) == 0 else 22


def free_space(path: Path) -> int:
    """Bytes free where the lab keeps its images."""
    return shutil.disk_usage(path).free


def open_shell(host: LabHost) -> int:
    """An interactive shell over ssh; returns its exit code."""
    return subprocess.run(host.ssh_command(), check=False).returncode
