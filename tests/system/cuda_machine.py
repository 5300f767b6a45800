"""A machine with three CUDA toolkits: this one, in a mount namespace of its own, with overlays over /etc, /usr and /var.

Shells, module systems, update-alternatives and ldconfig are the real programs of this machine, at the real paths. The
toolkits are stand-ins: folders as NVIDIA's packages make them, with an nvcc that prints its version. Nothing outside the
namespace changes, and it ends with the process that holds it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.collection import COLLECTIONS_PATH, ROOT
from provision.facts import Shells
from provision.parts.cuda.files import wanted_files

TOOLKITS = {"11.8": "11.8.0", "12.4": "12.4.1", "13.0": "13.0.2"}
DEFAULT = "12.4"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EVERYTHING = Shells(
    fish=True, csh=True, zsh=True, environment_modules="/etc/environment-modules/modules", lmod="/etc/lmod/modules"
)

NVCC = """#!/bin/sh
# A stand-in: prints what nvcc -V prints.
echo 'nvcc: NVIDIA (R) Cuda compiler driver'
echo 'Cuda compilation tools, release {release}, V{release}.99'
"""
VERSION_JSON = """{{
   "cuda" : {{
      "name" : "CUDA SDK",
      "version" : "{release}"
   }},
   "cuda_cccl" : {{
      "name" : "CUDA C++ Core Compute Libraries",
      "version" : "9.9.9"
   }}
}}
"""
SETUP = """
set -e
mount -t tmpfs tmpfs "$1"
for folder in etc usr var; do
    mkdir "$1/$folder.upper" "$1/$folder.work"
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$1/$folder.upper,workdir=$1/$folder.work" "/$folder"
done
rm -rf /usr/local/cuda* /usr/local/bin/nvcc /usr/bin/nvcc /etc/gpu-provision
mkdir -p /etc/profile.d
echo ready
exec sleep 3600
"""


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


def missing(what: str) -> None:
    """Skip the test here, with the reason; in CI everything is there, so it fails."""
    if in_ci():
        pytest.fail(f"{what}: tools/test-needs.sh should have brought it")
    pytest.skip(what)


def need(program: str) -> None:
    if shutil.which(program) is None:
        missing(f"{program} is not installed here")


class Machine:
    """run() starts a program inside; apply() runs the module cuda_environment inside."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        flags = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]
        self._holder = subprocess.Popen(
            ["unshare", *flags, "--propagation", "private", "sh", "-c", SETUP, "sh", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout
        if self._holder.stdout.readline() != "ready\n":
            _, err = self._holder.communicate()
            missing(f"no namespace with overlays can be made here: {err.strip()}")
        into = ["-m"] if os.geteuid() == 0 else ["-U", "--preserve-credentials", "-m"]
        self.enter = ["nsenter", "-t", str(self._holder.pid), *into]
        self.add_toolkits()

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()

    def run(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, stdin: str = "", arg0: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Start a program inside with exactly this environment (a plain one by default). arg0: its name for itself."""
        env = {"PATH": PATH, "HOME": "/nonexistent", "TERM": "dumb"} if env is None else dict(env)
        program = shutil.which(argv[0]) or argv[0]
        as_name = ["bash", "-c", 'exec -a "$0" "$@"', arg0, program] if arg0 else [program]
        # env -i inside: nsenter and bash must not add to what the program gets.
        clean = ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
        return subprocess.run(
            [*self.enter, *clean, *(["/bin/bash", *as_name[1:]] if arg0 else as_name), *argv[1:]],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )

    def sh(self, script: str) -> str:
        """Run a script of sh inside as set-up; returns what it prints, and raises when it fails."""
        done = self.run(["sh", "-c", script])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self, path: str, text: str, mode: str = "644") -> None:
        done = self.run(["sh", "-c", f'mkdir -p "${{1%/*}}" && cat >"$1" && chmod {mode} "$1"', "sh", path], stdin=text)
        assert done.returncode == 0, done.stderr

    def add_toolkits(self) -> None:
        for version, release in TOOLKITS.items():
            root = f"/usr/local/cuda-{version}"
            self.sh(
                f"mkdir -p {root}/bin {root}/targets/x86_64-linux/lib && ln -s targets/x86_64-linux/lib {root}/lib64"
            )
            self.write(f"{root}/bin/nvcc", NVCC.format(release=version), "755")
            self.write(f"{root}/version.json", VERSION_JSON.format(release=release))

    def module(self, **arguments: Any) -> dict[str, Any]:
        """Run the Ansible module inside, as Ansible does on a host; returns its result, failures too."""
        done = subprocess.run(
            [*self.enter, sys.executable, "-m", "ansible_collections.gpu.provision.plugins.modules.cuda_environment"],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            capture_output=True,
            text=True,
            cwd="/",
            env={"PATH": PATH, "PYTHONPATH": f"{COLLECTIONS_PATH}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def install(self, *, ld_library_path: bool = False, **arguments: Any) -> dict[str, Any]:
        """Everything that the role does for three toolkits with 12.4 as the default."""
        files = wanted_files(list(TOOLKITS), DEFAULT, ld_library_path=ld_library_path, shells=EVERYTHING, arch="amd64")
        link = {"name": "cuda", "link": "/usr/local/cuda", "path": f"/usr/local/cuda-{DEFAULT}", "priority": 124}
        return self.module(
            files=[{"path": path, "content": text} for path, text in files.items()], alternatives=[link], **arguments
        )
