"""A root file system with real apt and dpkg: throw-away copies, small packages, signed repositories.

Base: LAB_APT_ROOTFS or LAB_ROOTFS (a folder or a tar archive; no init system is needed), else debootstrap
from this machine's own mirror. Needs root.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tarfile
import time
from email.utils import formatdate
from pathlib import Path

import ansible as ansible_package

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = Path("/var/tmp/gpu-provision-rootfs-base")
# Runs one of our modules inside the root as Ansible would, with its arguments on stdin or in a file.
DRIVER = """
import importlib, json, sys
sys.path.insert(0, "/opt/test")
from ansible.module_utils.testing import patch_module_args
args = json.load(open(sys.argv[2]) if len(sys.argv) > 2 else sys.stdin)
with patch_module_args(args):
    importlib.import_module("ansible_collections.gpu.provision.plugins.modules." + sys.argv[1]).main()
"""


class NoBase(Exception):
    """No root file system can be had here; the text says why."""


def base() -> Path:
    """Return the unpacked base, made once for a machine."""
    if os.geteuid() != 0:
        raise NoBase("a root file system needs root (chroot, mount)")
    given = os.environ.get("LAB_APT_ROOTFS") or os.environ.get("LAB_ROOTFS")
    if given and Path(given).is_dir():
        return Path(given)
    mark = hashlib.sha256((given or "debootstrap").encode()).hexdigest()[:12]
    target = CACHE.with_name(f"{CACHE.name}-{mark}")
    if (target / "etc/os-release").exists():
        return target
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    if given:
        subprocess.run(["tar", "-C", str(scratch), "-xf", given], check=True)
    else:
        _debootstrap(scratch)
    try:
        scratch.rename(target)
    except OSError:
        # Another test process was faster.
        shutil.rmtree(scratch)
    return target


def _debootstrap(target: Path) -> None:
    if shutil.which("debootstrap") is None:
        raise NoBase("neither LAB_APT_ROOTFS nor debootstrap")
    release = Path("/etc/os-release").read_text()
    codename = re.search(r"^VERSION_CODENAME=(\S+)", release, re.M)
    listed = subprocess.run(["apt-cache", "policy"], capture_output=True, text=True, check=True).stdout
    mirror = codename and re.search(rf"^ *[0-9]+ (https?://\S+) {codename[1]}/main ", listed, re.M)
    if not mirror:
        raise NoBase("this machine's apt has no mirror to debootstrap from")
    include = "--include=python3,gnupg,ca-certificates"
    argv = ["debootstrap", "--variant=minbase", include, codename[1], str(target), mirror[1]]
    made = subprocess.run(argv, capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(target)
        raise NoBase("debootstrap failed: " + made.stdout[-400:])


def deb(name: str, version: str, *, scripts: dict[str, str] | None = None, size: int = 0, **fields: str) -> bytes:
    """Return a .deb. fields: Depends="…", Pre_Depends="…"; scripts: postinst and the like as shell text."""
    control = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "Lab <lab@example.org>"}
    control |= {key.replace("_", "-"): value for key, value in fields.items()}
    control["Description"] = control.pop("Description", "test package")
    text = "".join(f"{key}: {value}\n" for key, value in control.items())
    members = {"control": text.encode()} | {
        key: b"#!/bin/sh\n" + value.encode() for key, value in (scripts or {}).items()
    }
    content = {f"usr/share/{name}/version": version.encode() + b"\n" + os.urandom(size)}
    parts = [("debian-binary", b"2.0\n"), ("control.tar.gz", _tar(members)), ("data.tar.gz", _tar(content))]
    out = b"!<arch>\n"
    for member, data in parts:
        out += b"%-16s%-12d%-6d%-6d%-8o%-10d`\n" % (member.encode(), 0, 0, 0, 0o100644, len(data))
        out += data + b"\n" * (len(data) % 2)
    return out


def _tar(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        made = set()
        for path, data in members.items():
            for parent in [p for p in list(Path(path).parents)[::-1] if str(p) != "."]:
                if parent not in made:
                    made.add(parent)
                    folder = tarfile.TarInfo(f"./{parent}")
                    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(folder)
            info = tarfile.TarInfo(f"./{path}")
            info.size, info.mode = (len(data), 0o755 if path in ("preinst", "postinst", "prerm", "postrm") else 0o644)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


class Key:
    """A throw-away signing key."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        home.mkdir(mode=0o700)
        gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet"]
        subprocess.run([*gpg, "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign", "0"], check=True)
        listed = subprocess.run(
            [*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True
        ).stdout
        self.fingerprint = re.findall(r"^fpr:+([0-9A-F]+):", listed, re.M)[0]
        self.armored = subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        """End the agent that gpg started."""
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=True)

    def sign(self, text: str) -> str:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--clearsign", "-o", "-"]
        return subprocess.run(argv, input=text, check=True, capture_output=True, text=True).stdout


class Repo:
    """A flat signed repository in a folder inside a root."""

    def __init__(self, root: Root, key: Key, name: str = "repo", origin: str = "Lab") -> None:
        self.root, self.key, self.origin = root, key, origin
        self.inside = f"/srv/{name}"
        self.uri = f"file:{self.inside}"
        self.folder = root.path / f"srv/{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stanzas: list[str] = []

    def add(self, name: str, version: str, *, phased: int | None = None, **more: object) -> None:
        data = deb(name, version, **more)  # type: ignore[arg-type]
        file = f"{name}_{version.replace(':', '%3a')}_amd64.deb"
        (self.folder / file).write_bytes(data)
        with tarfile.open(fileobj=io.BytesIO(_member(data, b"control.tar.gz"))) as tar:
            control = tar.extractfile("./control").read().decode()  # type: ignore[union-attr]
        extra = f"Filename: ./{file}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        if phased is not None:
            extra += f"Phased-Update-Percentage: {phased}\n"
        self.stanzas.append(control + extra)

    def publish(self, **release: str) -> None:
        packages = "\n".join(self.stanzas)
        (self.folder / "Packages").write_text(packages)
        hashes = f" {hashlib.sha256(packages.encode()).hexdigest()} {len(packages.encode())} Packages\n"
        fields = {"Origin": self.origin, "Label": self.origin, "Date": formatdate(usegmt=True)} | release
        text = "".join(f"{key}: {value}\n" for key, value in fields.items()) + "SHA256:\n" + hashes
        (self.folder / "InRelease").write_text(self.key.sign(text))

    def spec(self, name: str = "lab") -> dict[str, object]:
        return {
            "name": name,
            "uris": self.uri,
            "suites": "/",
            "key": self.key.armored,
            "fingerprint": self.key.fingerprint,
        }


def _member(data: bytes, wanted: bytes) -> bytes:
    at = 8
    while at < len(data):
        name, size = data[at : at + 16].strip(), int(data[at + 48 : at + 58])
        if name == wanted:
            return data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise KeyError(wanted)


class Root:
    """One throw-away copy of the base, with the collection and Ansible's module_utils inside."""

    def __init__(self, path: Path, template: Root | None = None) -> None:
        self.path = path
        # The folders that hold its files once nothing is mounted, the topmost first.
        self.layers = [path]
        self.mounts: list[Path] = []
        path.mkdir()
        if template is None or not self._overlay(template):
            source = template.path if template else base()
            subprocess.run(["cp", "-a", "--reflink=auto", f"{source}/.", str(path)], check=True)
        self.mount("-t", "proc", "proc", "/proc")
        if template is None:
            self._prepare()

    def _overlay(self, template: Root) -> bool:
        """Lay an empty layer over the template: costs nothing, where the kernel and the file system allow it."""
        upper, work = (self.path.with_name(f"{self.path.name}.{part}") for part in ("upper", "work"))
        for folder in (upper, work):
            folder.mkdir()
        options = f"lowerdir={':'.join(map(str, template.layers))},upperdir={upper},workdir={work}"
        argv = ["mount", "-t", "overlay", "overlay", "-o", options, str(self.path)]
        if subprocess.run(argv, capture_output=True).returncode:
            return False
        self.layers = [upper, *template.layers]
        self.mounts.append(self.path)
        return True

    def _prepare(self) -> None:
        devices = {"null": (1, 3), "zero": (1, 5), "urandom": (1, 9), "tty": (5, 0), "ptmx": (5, 2)}
        for name, device in devices.items():
            node = self.path / "dev" / name
            node.unlink(missing_ok=True)
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(*device))
            node.chmod(0o666)
        self._install_code()
        # The base's own archive is of no use here, and unreachable on most test machines.
        for listed in [*(self.path / "etc/apt/sources.list.d").glob("*"), self.path / "etc/apt/sources.list"]:
            listed.unlink(missing_ok=True)
        self.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
        (self.path / "usr/sbin/policy-rc.d").chmod(0o755)
        self.sh("dpkg --configure -a")
        # Leaves the compiled code behind, so that the copies start faster.
        self.sh("python3 -m compileall -q /opt/test")

    def mount(self, *argv: str) -> None:
        """Mount something inside; the last word is the place there. It goes away with the root."""
        place = self.path / argv[-1].lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", *argv[:-1], str(place)], check=True)
        self.mounts.append(place)

    def _install_code(self) -> None:
        opt = self.path / "opt/test"
        collection = opt / "ansible_collections/gpu/provision"
        collection.mkdir(parents=True)
        skip = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(CHECKOUT / "plugins", collection / "plugins", ignore=skip)
        ansible = Path(ansible_package.__file__).parent
        for part in ("module_utils", "_vendor"):
            if (ansible / part).is_dir():
                shutil.copytree(ansible / part, opt / "ansible" / part, ignore=skip)
        for file in ("__init__.py", "release.py"):
            shutil.copy(ansible / file, opt / "ansible" / file)
        (opt / "driver.py").write_text(DRIVER)

    def unmount(self) -> None:
        """Take away every mount, so that the folder can be copied or removed."""
        while self.mounts:
            place = str(self.mounts.pop())
            # A process that was just ended may still be going.
            for _ in range(50):
                if subprocess.run(["umount", place], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                subprocess.run(["umount", place], check=True)

    def close(self) -> None:
        self.unmount()
        for folder in self.path.parent.glob(f"{self.path.name}*"):
            shutil.rmtree(folder)

    def argv(self, *argv: str) -> list[str]:
        return ["chroot", str(self.path), *argv]

    def sh(self, text: str, check: bool = True) -> str:
        """Run a shell text inside; returns what it printed."""
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
            "HOME": "/root",
        }
        done = subprocess.run(
            self.argv("sh", "-ec", text), capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
        )
        if check and done.returncode:
            raise AssertionError(f"{text!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def start(
        self,
        module: str,
        args: dict[str, object],
        *,
        check: bool = False,
        user: int = 0,
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a module inside, in a session of its own (so that it can be killed as a dropped ssh connection is)."""
        given = dict(args) | {"_ansible_check_mode": check, "_ansible_diff": True}
        chroot = ["chroot", f"--userspec={user}:{user}", str(self.path)]
        process = subprocess.Popen(
            [*chroot, "python3", "/opt/test/driver.py", module],
            start_new_session=True,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"} | (env or {}),
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        process.stdin = None
        return process

    def module(
        self, module: str, *, check: bool = False, user: int = 0, env: dict[str, str] | None = None, **args: object
    ) -> dict:
        """Run a module inside and return its result; ``failed`` and ``msg`` as Ansible has them, warnings as text."""
        process = self.start(module, args, check=check, user=user, env=env)
        out, err = process.communicate(timeout=120)
        lines = [line for line in out.split("\n") if line.startswith("{")]
        assert lines, f"no result from {module}: {out}{err}"
        result = json.loads(lines[-1])
        warnings = result.get("warnings", [])
        result["warnings"] = [w if isinstance(w, str) else w["event"]["msg"] for w in warnings]
        return result

    def selections(self) -> dict[str, str]:
        """{name: dpkg's two letters and the version} of the test's own packages."""
        text = self.sh("dpkg-query -W -f '${Package} ${db:Status-Abbrev} ${Version}\\n'")
        rows = [line.split() for line in text.split("\n") if line]
        return {row[0]: " ".join(row[1:]) for row in rows if "nvidia" in row[0] or row[0].startswith("lab-")}

    def write(self, path: str, text: str) -> None:
        target = self.path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        return (self.path / path.lstrip("/")).read_text()

    def wait_for(self, what: object, timeout: float = 30) -> None:
        """Wait until what() is true."""
        end = time.monotonic() + timeout
        while not what():  # type: ignore[operator]
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.1)


def kill_session(process: subprocess.Popen[str]) -> None:
    """End a process and its session at once, as a lost connection or an impatient person does."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cut_power(root: Root) -> None:
    """End everything that runs inside a root at once, without a word to anybody."""
    while True:
        inside = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _root_of(entry) == str(root.path)
        ]
        if not inside:
            return
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _root_of(process: Path) -> str | None:
    try:
        if (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return None
        return str((process / "root").readlink())
    except OSError:
        return None
