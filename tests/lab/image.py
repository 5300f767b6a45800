"""The image that hosts boot from: a base with systemd, sshd and apt, and the stand-ins on top.

One image serves every Ubuntu release: what tells the releases apart are files that profile.py writes. Each step is kept
as a podman image under a hash of its recipe, so a second start finds everything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from .engine import LabError, as_root, engine, run
from .paths import CACHE, HERE, fingerprint_of
from .setup import say
from .sim.standin import program

REPOSITORY = "localhost/gpu-lab"
PACKAGES = (
    "systemd systemd-sysv dbus libpam-systemd openssh-server python3 sudo iproute2 ca-certificates "
    "gnupg kmod pciutils procps unattended-upgrades needrestart debconf-utils zstd lsb-release "
    "adduser iputils-ping apt-utils"
)
_FAKEUNAME = r"""
/* /etc/ld.so.preload: uname() tells the release of the simulated kernel. No headers needed, any C compiler will do. */
struct uts { char sysname[65], nodename[65], release[65], version[65], machine[65], domain[65]; };
extern long syscall(long number, ...);
extern int open(const char *path, int flags, ...);
extern long read(int fd, void *buffer, unsigned long size);
extern int close(int fd);
int uname(struct uts *u)
{
    long rc = syscall(63, u);
    int fd, i;
    char text[65];
    long n;
    if (rc) return (int) rc;
    fd = open("/run/sim/release", 02000000);
    if (fd < 0) return 0;
    n = read(fd, text, 64);
    close(fd);
    if (n > 1) {
        for (i = 0; i < n && text[i] != '\n'; i++) u->release[i] = text[i];
        u->release[i] = 0;
    }
    return 0;
}
"""
_UNITS = {
    "sim-boot.service": """\
[Unit]
Description=Simulated boot
DefaultDependencies=no
Before=sysinit.target systemd-journald.service systemd-udevd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/sim/bin/sim-boot
[Install]
WantedBy=sysinit.target
""",
    "sim-late.service": """\
[Unit]
Description=Simulated udev rules
After=basic.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/sim/bin/sim-late
[Install]
WantedBy=multi-user.target
""",
    "sim-job.service": """\
[Unit]
Description=Simulated job on the GPUs
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/sim/bin/sim-job
""",
}
_MASKED = (
    "systemd-networkd.service systemd-networkd.socket systemd-resolved.service "
    "systemd-timesyncd.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer "
    "e2scrub_reap.service fstrim.timer dpkg-db-backup.timer getty.target systemd-pstore.service "
    "systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket "
    "systemd-udevd-kernel.socket unattended-upgrades.service systemd-binfmt.service modprobe@.service"
)
_BUILD = r"""
set -eu
tar -C /stage/tree -c . | tar -C / -x --keep-directory-symlink --no-same-owner
ldconfig
for name in modprobe rmmod lsmod; do
    dpkg-divert --quiet --add --rename --divert /usr/sbin/$name.real /usr/sbin/$name 2>/dev/null || exit 1
    if [ -e /sbin/$name ] && [ ! -L /sbin ]; then echo "the base image keeps /sbin apart from /usr/sbin" >&2; exit 1; fi
    cp /usr/local/lib/sim/bin/$name /usr/sbin/$name
done
dpkg-divert --quiet --add --rename --divert /usr/bin/dmesg.real /usr/bin/dmesg
cp /usr/local/lib/sim/bin/dmesg /usr/bin/dmesg
systemctl enable sim-boot.service sim-late.service >/dev/null 2>&1
systemctl mask $MASKED >/dev/null 2>&1
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /etc/apt/sources.list /etc/apt/sources.list.d/*
: > /etc/machine-id
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/lib/systemd/random-seed
useradd --create-home --shell /bin/bash --groups sudo lab
echo /usr/local/lib/libfakeuname.so > /etc/ld.so.preload
"""


def base() -> tuple[str, str]:
    """Return (image tag, what it is) of the base; made on first use.

    LAB_IMAGE and LAB_ROOTFS win; else Ubuntu from a registry; else debootstrap from this machine's own apt mirror.
    """
    given = os.environ.get("LAB_IMAGE")
    if given:
        if not engine().image(given):
            raise LabError(f"LAB_IMAGE={given}: no such image")
        return given, f"the image {given} (LAB_IMAGE)"
    rootfs = os.environ.get("LAB_ROOTFS")
    if rootfs:
        return _from_rootfs(Path(rootfs))
    tag = f"{REPOSITORY}-base:{fingerprint_of(extra=PACKAGES)}"
    note = CACHE / "base" / tag.rsplit(":", 1)[1]
    if engine().image(tag) and note.exists():
        return tag, note.read_text()
    what = _from_registry(tag) or _from_debootstrap(tag)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(what)
    return tag, what


def _from_rootfs(path: Path) -> tuple[str, str]:
    """Import a root file system: a folder or a tar, .xz or .gz or none."""
    if not path.exists():
        raise LabError(f"LAB_ROOTFS={path}: no such file or folder")
    stamp = f"{path.resolve()} {path.stat().st_mtime_ns} {path.stat().st_size}"
    tag = f"{REPOSITORY}-rootfs:{fingerprint_of(extra=stamp)}"
    if not engine().image(tag):
        say(f"importing {path}")
        _import(path, tag)
    check = engine()(
        "run", "--rm", *engine().run_flags, tag, "sh", "-c", "test -x /sbin/init && test -x /usr/sbin/sshd", check=False
    )
    if check.returncode:
        raise LabError(f"LAB_ROOTFS={path} cannot boot: it lacks /sbin/init (systemd) or /usr/sbin/sshd")
    return tag, f"the root file system {path} (LAB_ROOTFS)"


def _import(path: Path, tag: str) -> None:
    words = as_root(["tar", "-C", str(path), "-c", "."]) if path.is_dir() else ["cat", str(path)]
    if path.suffix == ".xz":
        words = ["xz", "-dc", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as source:
        done = subprocess.run(
            as_root([engine().program, "import", "-", tag]),
            stdin=source.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode or source.returncode:
        raise LabError(f"importing {path} failed: {done.stderr.strip()[-400:]}")


def _from_registry(tag: str) -> str | None:
    """Ubuntu from a registry, with our packages added from its own archive; None where either cannot be reached."""
    name = os.environ.get("LAB_REGISTRY_IMAGE", "ubuntu:24.04")
    say(f"looking for {name} (at most 20 s)")
    try:
        pulled = engine()("pull", "-q", name, check=False, timeout=20)
    except LabError:
        pulled = None
    if pulled is None or pulled.returncode:
        say("no registry can be reached")
        return None
    script = (
        "set -e; apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=10 update -qq; "
        f"DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends {PACKAGES}"
    )
    if not _commit(name, ["sh", "-c", script], tag, [], required=False):
        say(f"{name} is there, but its archive cannot be reached")
        return None
    return f"{name} from a registry"


def _from_debootstrap(tag: str) -> str:
    """Debian or Ubuntu by debootstrap from the mirror that this machine's apt uses, with Ubuntu's identity."""
    mirror, suite, keyring = machine_mirror()
    say(f"building the base image with debootstrap ({suite}, from this machine's own apt mirror): about a minute")
    folder = Path(tempfile.mkdtemp(prefix="gpu-lab-", dir=_scratch()))
    root = folder / "root"
    options = [f"--keyring={keyring}"] if keyring else []
    try:
        environment = ["env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        components = "main,universe" if "ubuntu" in Path("/etc/os-release").read_text().lower() else "main"
        run(
            as_root(
                [
                    *environment,
                    "debootstrap",
                    "--variant=minbase",
                    f"--components={components}",
                    *options,
                    f"--include={','.join(PACKAGES.split())}",
                    suite,
                    str(root),
                    mirror,
                ]
            )
        )
        for waste in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
            "usr/share/info",
        ):
            run(as_root(["find", str(root / waste), "-mindepth", "1", "-delete"]))
        _import(root, tag)
    finally:
        run(as_root(["rm", "-rf", "--one-file-system", str(folder)]), check=False)
    return f"debootstrap of {suite} from this machine's mirror, with Ubuntu's identity"


def _scratch() -> Path:
    folder = CACHE / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def machine_mirror() -> tuple[str, str, str | None]:
    """(mirror, suite, keyring) from this machine's apt configuration: the source of its own release."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.M))
    codename = release.get("VERSION_CODENAME", "")
    for line in run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)",
            "Created-By: Packages",
        ]
    ).stdout.splitlines():
        uri, suite, component, signed_by = line.split("|")
        if suite == codename and component == "main":
            keyring = signed_by.split(",")[0] if signed_by.startswith("/") else None
            return uri, codename, keyring
    raise LabError(
        f"apt on this machine has no source of {codename} main to make a base image from; give LAB_IMAGE or LAB_ROOTFS"
    )


def image(extras: list[str] | None = None) -> tuple[str, str]:
    """Return (tag, what the base is) of the image with the stand-ins; made on first use.

    extras: packages of the base's own distribution to have besides (``fish``, ``lmod``), from where the base came.
    """
    source, what = base()
    if extras:
        source = _with(source, extras)
    identity = engine().image(source)
    tag = f"{REPOSITORY}:{fingerprint_of('sim', 'image.py', 'kofile.py', extra=str(identity))}"
    if engine().image(tag):
        return tag, what
    say("adding the stand-ins")
    with tempfile.TemporaryDirectory(prefix="stage-", dir=_scratch()) as name:
        stage = Path(name)
        tree = stage / "tree"
        shutil.copytree(HERE / "sim", tree / "usr/local/lib/sim", ignore=shutil.ignore_patterns("__pycache__"))
        programs = tree / "usr/local/lib/sim/bin"
        programs.mkdir()
        for standin in ("sim-boot", "sim-late", "sim-job", "sim-describe", "modprobe", "rmmod", "lsmod", "dmesg"):
            (programs / standin).write_text(program(standin))
            (programs / standin).chmod(0o755)
        units = tree / "etc/systemd/system"
        units.mkdir(parents=True)
        for unit, text in _UNITS.items():
            (units / unit).write_text(text)
        _compile(tree / "usr/local/lib/libfakeuname.so")
        (stage / "build.sh").write_text(f"MASKED='{_MASKED}'\n{_BUILD}")
        _commit(source, ["sh", "/stage/build.sh"], tag, ["-v", f"{stage}:/stage:ro"])
    return tag, what


def _with(source: str, extras: list[str]) -> str:
    """The base with further packages of its own distribution: a layer for each set, so that no other host pays for it."""
    identity = engine().image(source)
    tag = f"{REPOSITORY}-with:{fingerprint_of(extra=f'{identity} {extras}')}"
    if not engine().image(tag):
        say(f"adding {', '.join(extras)}")
        apt = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o APT::Sandbox::User=root"
        script = (
            f"set -e; {apt} update; {apt} install -y --no-install-recommends {' '.join(extras)} >/dev/null; "
            "rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb"
        )
        _commit(source, ["sh", "-c", script], tag, [])
    return tag


def _compile(target: Path) -> None:
    compiler = next((path for path in map(shutil.which, ("gcc", "cc", "tcc")) if path), None)
    if compiler is None:
        raise LabError("no C compiler; python -m tests.lab setup installs one")
    source = target.with_suffix(".c")
    source.write_text(_FAKEUNAME)
    run([compiler, "-shared", "-fPIC", "-nostdlib", "-o", str(target), str(source)])
    source.unlink()


def clean() -> None:
    """Remove the lab's images, base and all, that no container uses; the next start builds what it needs."""
    podman = engine()
    tags = podman("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    used = {
        podman.inspect(container)["ImageName" if podman.program == "podman" else "Image"]
        for container in podman.containers()
    }
    # children first
    for kind in ("-host:", "-with:", ":", "-rootfs:", "-base:"):
        for tag in tags:
            if tag.startswith(REPOSITORY + kind) and tag not in used:
                podman("rmi", tag, check=False)
    podman.forget_images()


def _commit(source: str, command: list[str], tag: str, flags: list[str], *, required: bool = True) -> bool:
    """Run a command in a container of an image and keep the result as a new image that boots systemd."""
    podman = engine()
    container = podman(
        "create",
        *podman.run_flags,
        "--privileged",
        "--network",
        "host",
        "--name",
        f"gpulab-build-{uuid.uuid4().hex[:8]}",
        *flags,
        source,
        *command,
    ).stdout.split()[-1]
    try:
        done = podman("start", "--attach", container, check=False)
        if done.returncode:
            if required:
                raise LabError(f"building {tag} failed: {(done.stderr or done.stdout).strip()[-1500:]}")
            return False
        podman("commit", "-q", "--change", 'CMD ["/sbin/init"]', container, tag)
        return True
    finally:
        podman("rm", "-f", container, check=False)
