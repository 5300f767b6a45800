"""What the lab needs on a Debian or Ubuntu machine, installed through apt when it is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .engine import LabError, as_root

# program -> package that brings it
NEEDS = {
    "podman": "podman",
    "runc": "runc",
    "fuse-overlayfs": "fuse-overlayfs",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ssh": "openssh-client",
    "gpg": "gpg",
    "openssl": "openssl",
    "xz": "xz-utils",
}
# Every systemd needs some inotify instances; the usual 128 a user end at about 25 containers.
LIMITS = {"fs/inotify/max_user_instances": 4096, "fs/inotify/max_user_watches": 524288}


def say(text: str) -> None:
    """Progress for people, on stderr."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def missing() -> list[str]:
    """Packages to install: those whose program is not on PATH, and a C compiler where there is none."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    wanted = [package for program, package in NEEDS.items() if not shutil.which(program, path=path)]
    if not any(shutil.which(name) for name in ("gcc", "cc", "tcc")):
        wanted.append("tcc")
    return wanted


def ensure() -> None:
    """Install what is missing; quick when nothing is."""
    wanted = missing()
    if wanted:
        if not shutil.which("apt-get"):
            raise LabError(f"the lab needs {', '.join(wanted)}, and this machine has no apt-get to install them with")
        if os.geteuid() and not shutil.which("sudo"):
            raise LabError(f"the lab needs {', '.join(wanted)}: become root or install sudo")
        how = "apt-get" if os.geteuid() == 0 else "sudo apt-get"
        say(f"installing with {how}: {' '.join(wanted)}")
        environment = ["env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a"]
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wanted]):
            command = as_root([*environment, "apt-get", "-o", "DPkg::Lock::Timeout=300", *words])
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            # An index that one foreign source cannot refresh must not stop the lab; a failed install does.
            if done.returncode and words[0] == "install":
                raise LabError(f"apt-get install {' '.join(wanted)} failed: {done.stderr.strip()[-600:]}")
    raise_limits()


def raise_limits() -> None:
    """Raise the inotify limits where this machine lets us; says so where it does not."""
    for name, value in LIMITS.items():
        path = Path("/proc/sys") / name
        if not path.exists() or int(path.read_text()) >= value:
            continue
        key = name.replace("/", ".")
        done = subprocess.run(
            as_root(["sysctl", "-q", "-w", f"{key}={value}"]), capture_output=True, text=True, check=False
        )
        if done.returncode:
            say(f"cannot set {key}={value} ({done.stderr.strip()}); more than 25 hosts may not start")
