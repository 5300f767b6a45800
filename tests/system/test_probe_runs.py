"""The probe as hosts run it: sent as text, by every Python from 3.8, with and without root, quickly."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.collection import COLLECTIONS_PATH
from provision.facts import Facts
from provision.remote import bundle
from tests.unit import trees

RUNNER = """
import importlib.machinery, json, sys
PACKAGE = "ansible_collections.gpu.provision.plugins.module_utils"
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name[len(PACKAGE) + 1:] in SOURCES:
            return importlib.machinery.ModuleSpec(name, self, origin=name)
        if (PACKAGE + ".").startswith(name + ".") or name.startswith(PACKAGE + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        if module.__name__[len(PACKAGE) + 1:] not in SOURCES:
            module.__path__ = []
        else:
            exec(compile(SOURCES[module.__name__[len(PACKAGE) + 1:]], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe
before = set(sys.modules)
facts = probe.main(json.loads(ARGS))
print(json.dumps({"facts": facts, "modules": sorted(before), "all": sorted(sys.modules)}))
"""


def _pythons():
    """The running Python, and every older one that pyenv or the system has."""
    found = [sys.executable]
    for version in ("3.8", "3.9", "3.10", "3.12", "3.13", "3.14"):
        installed = sorted(Path("~/.pyenv/versions").expanduser().glob(version + ".*/bin/python"))
        on_path = shutil.which("python" + version)
        usable = [str(path) for path in installed] or ([on_path] if on_path else [])
        found += [path for path in usable if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]
    return found


def _run(python, args, **options):
    sources = {name: bundle.source(name) for name in bundle.needed("probe.facts")}
    text = f"SOURCES = {sources!r}\nARGS = {json.dumps(args)!r}\n{RUNNER}"
    done = subprocess.run([python, "-IS", "-"], input=text, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("python", _pythons())
def test_every_python_reads_the_same(python, tmp_path):
    root = trees.build(
        tmp_path / "host",
        {
            "base": "h100x1",
            "boot": ["6.8.0-45-generic"],
            "modules": [
                {
                    "path": "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst",
                    "version": "580.65.06",
                    "pack": "zst",
                }
            ],
        },
    )
    facts = _run(python, {"root": str(root)})["facts"]
    here = probe_facts.collect(root=str(root))
    for each in (facts, here):
        Facts.model_validate(each, strict=True)
        # what is free changes meanwhile
        del each["disks"]
    assert facts == here
    assert facts["module"]["on_disk"][0]["version"] == "580.65.06"


@pytest.mark.parametrize("python", _pythons())
def test_every_python_reads_the_running_host(python, tmp_path):
    program = trees.write(tmp_path, "/nvidia-smi", f"#!/bin/sh\nexec cat {trees.FIXTURES}/h100x2/nvidia-smi.xml\n")
    program.chmod(0o755)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    parsed = Facts.model_validate(_run(python, {"smi_timeout": 5}, env=environment)["facts"], strict=True)
    assert len(parsed.smi.gpus) == 2 and parsed.smi.path == str(program)


def test_start_needs_no_slow_module():
    slow = {
        "subprocess",
        "pathlib",
        "dataclasses",
        "ctypes",
        "hashlib",
        "lzma",
        "tempfile",
        "socket",
        "typing",
        "logging",
    }
    assert not slow & set(_run(sys.executable, {})["modules"])


def test_a_read_loads_no_openssl(tmp_path):
    path = "/etc/modprobe.d/gpu-provision.conf"
    root = trees.build(tmp_path / "host", {"base": "h100x1", "files": {path: "options nvidia x=1\n"}})
    read = _run(sys.executable, {"root": str(root)})
    assert read["facts"]["own_files"][path] == hashlib.sha256(b"options nvidia x=1\n").hexdigest()
    assert "_hashlib" not in read["all"]


def test_only_the_standard_library_is_imported():
    roots = {name.split(".")[0] for name in _run(sys.executable, {})["modules"]}
    assert roots - set(sys.stdlib_module_names) <= {"ansible_collections", "__main__"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_root_what_is_hidden_is_unknown_and_named():
    with tempfile.TemporaryDirectory() as folder:
        root = trees.build(
            Path(folder),
            {
                "running": "6.8.0-45-generic",
                "boot": ["6.8.0-45-generic"],
                "packages": ["unattended-upgrades 2.9 ii all"],
                "efi": {"SecureBoot": 1, "MokListRT": "00"},
                "files": {
                    "/boot/grub/grub.cfg": "menuentry 'x' {\n linux /vmlinuz-1.0-x\n}\n",
                    "/dev/nvidia0": "",
                    "/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";',
                    "/var/lib/shim-signed/mok/MOK.der": "key",
                    "/proc/7/fd/x": "",
                    "/etc/apt/sources.list.d/private.list": "deb http://token@a/ /\n",
                },
                "modules": [{"path": "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko", "version": "580.65.06"}],
            },
        )
        root.chmod(0o755)
        variables = "/sys/firmware/efi/efivars"
        hidden = [
            "/boot/grub/grub.cfg",
            "/etc/apt/apt.conf.d/20auto-upgrades",
            "/etc/apt/sources.list.d/private.list",
            f"{variables}/SecureBoot-{trees.GLOBAL_GUID}",
            f"{variables}/MokListRT-{trees.SHIM_GUID}",
            "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko",
            "/proc/7/fd",
        ]
        for path in hidden:
            trees.at(root, path).chmod(0)
        # one that others than root may start
        python = "/usr/bin/python3"
        facts = _run(python, {"root": folder}, user="nobody", cwd="/")["facts"]
    parsed = Facts.model_validate(facts, strict=True)
    assert set(parsed.unreadable) == (set(hidden) - {"/proc/7/fd"}) | {"/proc/*/fd"}
    assert parsed.host.is_root is False
    assert parsed.secure_boot.enabled is None and parsed.secure_boot.mok_enrolled is None
    assert parsed.kernels.next is None and "cannot be read" in parsed.kernels.next_because
    assert parsed.apt.unattended is None
    assert [(module.version, module.flavour) for module in parsed.module.on_disk] == [(None, None)]
    assert parsed.gpu_users == []


def test_links_stay_inside_a_recorded_host(tmp_path):
    root = trees.build(
        tmp_path,
        {
            "files": {"/usr/lib/os-release": "ID=recorded\n", "/a/b/file": "x"},
            "links": {
                "/etc/os-release": "/usr/lib/os-release",
                "/up": "../../../../etc/os-release",
                "/loop": "loop",
                "/c": "/a/b",
            },
        },
    )
    tree = HostTree(str(root))
    assert tree.read("/etc/os-release") == "ID=recorded\n"
    assert tree.read("/up") == "ID=recorded\n"
    assert tree.read("/loop") is None
    assert tree.resolve("/c/./file") == "/a/b/file" and tree.resolve("/c/../b/none") == "/a/b/none"


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["run", "check mode"])
def test_as_a_module(check, tmp_path):
    command = [
        str(Path(sys.executable).with_name("ansible")),
        "-i",
        "localhost,",
        "-c",
        "local",
        "localhost",
        *check,
        "-e",
        f"ansible_python_interpreter={sys.executable}",
        "-m",
        "gpu.provision.gpu_facts",
        "-a",
        "smi_timeout=5",
    ]
    environment = dict(
        os.environ, ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS_PATH), ANSIBLE_HOME=str(tmp_path), ANSIBLE_NOCOLOR="1"
    )
    environment.pop("ANSIBLE_CONFIG", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(done.stdout.partition("=>")[2])
    # As a result, not among the host's variables (the interpreter that Ansible found is not ours).
    assert set(result) - {"ansible_facts"} == {"changed", "gpu_facts"} and result["changed"] is False
    assert "gpus" not in result.get("ansible_facts", {})
    Facts.model_validate(result["gpu_facts"], strict=True)
