"""cuda_environment with the real update-alternatives, ldconfig and loader at the real paths, and disks that fail."""

from __future__ import annotations

import subprocess

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from provision.parts.cuda.files import wanted_files
from tests.system.cuda_machine import DEFAULT, EVERYTHING, TOOLKITS, Machine, need

# Everything in /etc with mode, owner and hash; the loader's cache holds times.
# Without the accounts and their locks: tests beside this one add users to the machine whose /etc shines through.
TREE = r"""cd /etc && find . -ignore_readdir_race \( -path ./ld.so.cache -o -name .pwd.lock \
    -o -regex '\./\(passwd\|group\|g?shadow\|sub[ug]id\)\([-+.].*\)?' \) -prune -o -printf '%p %m %U:%G %l ' \
    \( -type f -exec sha256sum {} \; -o -printf '\n' \)"""


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "machine")
    yield machine
    machine.close()


def wanted():
    """The files of the role, as the module takes them, and their paths."""
    files = wanted_files(list(TOOLKITS), DEFAULT, ld_library_path=False, shells=EVERYTHING, arch="amd64")
    return [{"path": path, "content": text} for path, text in files.items()], list(files)


# ---- the whole module


def test_a_second_run_changes_nothing_and_a_removal_leaves_nothing(machine):
    machine.sh("mkdir -p /etc/environment-modules/modules /etc/lmod/modules /etc/fish/conf.d /etc/csh/cshrc.d")
    machine.module(ldconfig=True)
    before = machine.sh(TREE)
    first = machine.install()
    assert first["done"][0] == "/usr/local/cuda leads to /usr/local/cuda-12.4, and stays there"
    assert first["done"][-1] == "rebuilt the loader's cache (ldconfig)"
    there = machine.sh(TREE)
    second = machine.install()
    assert second["changed"] is False and second["done"] == []
    assert machine.sh(TREE) == there
    _, paths = wanted()
    removed = machine.module(absent=paths)
    assert len(removed["done"]) == len(paths) + 1
    machine.sh("update-alternatives --remove-all cuda")
    assert machine.sh(TREE) == before


def test_check_mode_changes_nothing_and_says_the_same(machine):
    before = machine.sh(TREE)
    said = machine.install(_ansible_check_mode=True)
    assert machine.sh(TREE) == before
    assert said["done"] == machine.install()["done"]
    assert machine.install(_ansible_check_mode=True)["done"] == []


def test_h3_packages_that_come_later_do_not_move_the_default(machine):
    # What the postinst of NVIDIA's cuda-toolkit-X-Y-config-common does.
    register = "update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{} {}"
    machine.sh(register.format("11.8", 118))
    machine.install()
    machine.sh(register.format("13.0", 130))
    assert machine.sh("readlink -f /usr/local/cuda") == "/usr/local/cuda-12.4\n"
    assert not machine.install()["changed"]


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("mount -t tmpfs -o ro tmpfs", "Read-only file system"),
        ("mount -t tmpfs -o size=4k,nr_inodes=10 tmpfs", "No space left on device"),
    ],
    ids=["read-only", "full"],
)
def test_disks_that_fail_are_named(machine, mount, words):
    machine.sh(f"mkdir -p /etc/fish/conf.d && {mount} /etc/fish/conf.d")
    if "size" in mount:
        machine.sh("head -c 4096 /dev/zero >/etc/fish/conf.d/full")
    result = machine.install()
    assert result["failed"] and result["code"] == "cuda.file"
    assert result["msg"] == f"cannot write {cuda_files.FISH}: {words}"
    assert f"wrote {cuda_files.PROFILE}" in result["done"]
    left = machine.sh("ls -A /etc/fish/conf.d").split()
    assert left in ([], ["full"]), "nothing half-written"
    machine.sh("umount /etc/fish/conf.d")
    again = machine.install()
    assert f"wrote {cuda_files.FISH}" in again["done"] and f"wrote {cuda_files.PROFILE}" not in again["done"]
    assert again["done"][-1] == "rebuilt the loader's cache (ldconfig)", "the first run did not come to it"
    assert not machine.install()["changed"]


# ---- which library wins

SOURCES = {
    "which.c": "int which(void) { return WHICH; }\n",
    "user.c": "int which(void); int ask(void) { return which(); }\n",
    "main.c": '#include <stdio.h>\nint ask(void);\nint main(void) { printf("%d\\n", ask()); return 0; }\n',
}


@pytest.fixture
def programs(machine, tmp_path):
    """libwhich.so.1 in toolkits (118, 124, 130) and beside a framework (1); programs with and without a RUNPATH."""
    need("gcc")
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)

    def gcc(*arguments):
        subprocess.run(["gcc", *map(str, arguments)], cwd=tmp_path, check=True)

    (tmp_path / "wheel").mkdir()
    gcc("-shared", "-fPIC", "-Wl,-soname,libwhich.so.1", "-DWHICH=1", "which.c", "-o", "wheel/libwhich.so.1")
    for version in TOOLKITS:
        number = version.replace(".", "")
        gcc("-shared", "-fPIC", "-Wl,-soname,libwhich.so.1", f"-DWHICH={number}", "which.c", "-o", f"{number}.so")
        machine.sh(f"cp {tmp_path}/{number}.so /usr/local/cuda-{version}/targets/x86_64-linux/lib/libwhich.so.1")
    # Wheels of frameworks carry the libraries of CUDA and a RUNPATH that leads to them.
    for folder, runpath in (("wheel", ["-Wl,--enable-new-dtags,-rpath,$ORIGIN"]), ("plain", [])):
        (tmp_path / folder).mkdir(exist_ok=True)
        gcc(
            "-shared",
            "-fPIC",
            "-Wl,-soname,libuser.so",
            *runpath,
            "user.c",
            "-o",
            f"{folder}/libuser.so",
            "wheel/libwhich.so.1",
        )
        gcc(
            "main.c",
            "-o",
            f"{folder}/program",
            f"{folder}/libuser.so",
            "-Wl,--allow-shlib-undefined",
            "-Wl,--enable-new-dtags,-rpath,$ORIGIN",
        )
    return tmp_path


def answer(machine, programs, kind, **env):
    done = machine.run([str(programs / kind / "program")], {"PATH": "/usr/bin:/bin", **env})
    return done.stdout.strip() or done.stderr.strip()


def test_programs_find_the_default_without_a_library_path(machine, programs):
    assert "libwhich.so.1: cannot open shared object file" in answer(machine, programs, "plain")
    machine.install()
    assert answer(machine, programs, "plain") == "124"


def test_without_the_default_the_newest_wins(machine, programs):
    machine.install()
    machine.sh("rm /usr/local/cuda-12.4/targets/x86_64-linux/lib/libwhich.so.1 && ldconfig")
    assert answer(machine, programs, "plain") == "130"


def test_ours_and_nvidias_own_files_agree(machine, programs):
    """With the files of NVIDIA's packages (their content is known by the hashes in dpkg's status)."""
    lib = "targets/x86_64-linux/lib"
    machine.write("/etc/ld.so.conf.d/000_cuda.conf", f"/usr/local/cuda/{lib}\n")
    machine.write("/etc/ld.so.conf.d/987_cuda-13.conf", f"/usr/local/cuda-13/{lib}\n")
    machine.write("/etc/ld.so.conf.d/gds-13-0.conf", f"/usr/local/cuda-13.0/{lib}\n")
    machine.sh("ln -s cuda-13.0 /usr/local/cuda-13")
    machine.install()
    assert answer(machine, programs, "plain") == "124"
    listed = machine.sh("ldconfig -p | grep libwhich").splitlines()
    assert len(listed) == 3, "every folder counts once, whatever name it is reached by"


def test_h1_i1_a_framework_keeps_its_own_library_unless_the_path_is_exported(machine, programs):
    machine.install()
    assert answer(machine, programs, "wheel") == "1"
    # The price of cuda_toolkit_ld_library_path, of a select and of a module load.
    exported = machine.run(["bash", "-lc", "cuda-select 11.8; " + str(programs / "wheel/program")]).stdout
    assert exported.strip() == "118"
    machine.install(ld_library_path=True)
    assert machine.run(["bash", "-lc", str(programs / "wheel/program")]).stdout.strip() == "124"
