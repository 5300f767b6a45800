"""The role's files in real shells: what each session sees, and that cuda-select undoes exactly what it did."""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from provision.collection import ROOT
from provision.lib import yaml_reader
from tests.sample import turn
from tests.system.cuda_machine import Machine, need

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/cuda_shells.yml").read_text())
SH = ("dash", "bash", "bash --posix", "ksh93", "mksh", "busybox sh", "zsh", "yash")
ALL = (*SH, "fish", "tcsh", "bsd-csh")
START = {"zsh": ["-f"], "fish": ["--no-config"], "tcsh": ["-f"], "bsd-csh": ["-f"]}
OWN_FILE = {"fish": cuda_files.FISH, "tcsh": cuda_files.CSH, "bsd-csh": cuda_files.CSH}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    done = machine.install()
    assert not done.get("failed"), done
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def exporting(tmp_path_factory):
    """As machine, with cuda_toolkit_ld_library_path."""
    machine = Machine(tmp_path_factory.mktemp("exporting"))
    machine.install(ld_library_path=True)
    yield machine
    machine.close()


def argv_of(shell, *more):
    need(shell.split()[0])
    return [*shell.split(), *more]


def in_turn(shells, number, of_sh):
    """Of the shells that read one file of ours some, by turns; of each of the three files at least one."""
    files = (SH, ("sudo",), ("fish",), ("tcsh", "bsd-csh"))
    for readers in files:
        mine = [shell for shell in shells if shell in readers]
        yield from turn(mine, number, of_sh if readers is SH else 1)


def sessions():
    for number, case in enumerate(CASES["sessions"]):
        for shell in in_turn(case["for"], number, 2):
            yield pytest.param(case, shell, id=f"{case['name']} - {shell}")


@pytest.mark.parametrize(("case", "shell"), list(sessions()))
def test_session(machine, case, shell):
    need(shell.split()[0])
    argv = []
    for word in case["run"]:
        argv += shell.split() if word == "{shell}" else [word.replace("{shell}", shell)]
    machine.sh(case.get("before", ":"))
    saved = []
    try:
        for path, text in case.get("files", {}).items():
            if machine.run(["test", "-e", path]).returncode == 0:
                machine.sh(f"mv {path} {path}.saved")
                saved.append(path)
            machine.write(path, text, "755" if text.startswith("#!") else "440")
        done = machine.run(argv, case.get("env"), stdin=case.get("stdin", ""), arg0=case.get("arg0"))
    finally:
        for path in case.get("files", {}):
            machine.sh(f"mv {path}.saved {path}" if path in saved else f"rm -f {path}")
        machine.sh(case.get("after", ":"))
    assert (done.stdout.splitlines(), done.returncode) == (case["out"], case.get("status", 0)), done.stderr
    if "err" in case:
        assert case["err"] in done.stderr
    else:
        assert done.stderr == ""


def environment(text):
    """What env -0 printed as a dict."""
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def reading(machine, shell, times, **env):
    """The environment after a shell read its own file this many times."""
    source = "source" if shell in OWN_FILE else "."
    file = OWN_FILE.get(shell, cuda_files.PROFILE)
    script = f"{source} {file}; " * times + "/usr/bin/env -0"
    done = machine.run(argv_of(shell, *START.get(shell, []), "-c", script), env)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return environment(done.stdout)


def rows(table):
    for number, case in enumerate(CASES[table]):
        shells = [shell for shell in case.get("only", ALL) if shell not in case.get("not", ())]
        for shell in in_turn(shells, number, 1):
            yield pytest.param(case, shell, id=f"{case['before']!r} - {shell}")


@pytest.mark.parametrize(("case", "shell"), list(rows("path")))
def test_path(machine, case, shell):
    for times in (1, 2):
        assert reading(machine, shell, times, PATH=case["before"])["PATH"] == case["after"]


@pytest.mark.parametrize(("case", "shell"), list(rows("library_path")))
def test_library_path(exporting, case, shell):
    env = {"PATH": "/usr/bin:/bin"}
    if case["before"] is not None:
        env["LD_LIBRARY_PATH"] = case["before"]
    for times in (1, 2):
        assert reading(exporting, shell, times, **env)["LD_LIBRARY_PATH"] == case["after"]


@pytest.mark.parametrize("shell", ALL)
def test_the_library_path_is_left_alone_by_default(machine, shell):
    assert "LD_LIBRARY_PATH" not in reading(machine, shell, 1, PATH="/usr/bin:/bin")
    for value in ("", "/a:", ":/a::/b"):
        env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": value}
        assert reading(machine, shell, 1, **env)["LD_LIBRARY_PATH"] == value


@pytest.mark.parametrize("shell", ["dash", "bash", "ksh93", "mksh", "busybox sh", "zsh"])
def test_no_program_is_started_at_login(machine, shell):
    argv = argv_of(shell, *START.get(shell, []), "-c")
    # One process for a user who has none: whoever forks fails.
    alone = ["setpriv", "--reuid=54321", "--clear-groups", "prlimit", "--nproc=1"]
    if os.geteuid() != 0:
        pytest.skip("only root can become a user without processes")
    env = {"PATH": "/usr/bin:/bin"}
    done = machine.run([*alone, *argv, f'. {cuda_files.PROFILE}; echo "$CUDA_HOME"'], env)
    assert (done.stdout, done.stderr) == ("/usr/local/cuda\n", "")
    # The test itself can fail.
    forks = machine.run([*alone, "timeout", "5", *argv, "x=$(echo forked); echo $x"], env)
    assert "forked" not in forks.stdout


def test_a_virtual_environment_made_active_after_a_select_stays(machine, tmp_path):
    need("bash")
    subprocess.run(["/usr/bin/env", "python3", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    script = f"""
        cuda-select 11.8
        . {tmp_path}/venv/bin/activate
        cuda-select 13.0
        cuda-select none
        echo "$PATH"
        deactivate
    """
    done = machine.run(["bash", "-lc", script])
    first, second, *_ = done.stdout.strip().split(":")
    assert (first, second) == (f"{tmp_path}/venv/bin", "/usr/local/cuda/bin"), done.stderr
    assert "cuda-1" not in done.stdout


# ---- select and none are the identity


def quote_sh(text):
    return "'" + text.replace("'", "'\\''") + "'"


def quote_fish(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_csh(text):
    return quote_sh(text).replace("!", "\\!")


class Shell:
    """One shell that runs for many examples: a line goes in, what it prints up to a mark comes out."""

    def __init__(self, machine, shell):
        self.shell = shell
        # reads all of its input before it begins, so it has to ask for lines
        if shell == "fish":
            more = ["--no-config", "-c", f"source {cuda_files.FISH}; while read -l line; eval $line; end"]
        else:
            more = START.get(shell, [])
        program = argv_of(shell, *more)
        env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
        clean = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items())]
        self.process = subprocess.Popen(
            [*machine.enter, *clean, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        if shell != "fish":
            self.ask(f"source {cuda_files.CSH}" if shell in OWN_FILE else f". {cuda_files.PROFILE}")

    def ask(self, line):
        self.process.stdin.write(f"{line}\necho +; echo MARK\n")
        self.process.stdin.flush()
        said = ""
        while not said.endswith("+\nMARK\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], 20)
            assert ready, f"{self.shell} does not answer to {line!r}: {said!r}"
            got = os.read(self.process.stdout.fileno(), 65536)
            assert got, f"{self.shell} ended after {line!r}: {said!r}"
            said += got.decode("utf-8")
        return said.removesuffix("+\nMARK\n")

    def set(self, name, value):
        if self.shell == "fish":
            self.ask(f"set -e {name}" if value is None else f"set -gx {name} {quote_fish(value)}")
        elif self.shell in OWN_FILE:
            self.ask(f"unsetenv {name}" if value is None else f"setenv {name} {quote_csh(value)}")
        else:
            self.ask(f"unset {name}" if value is None else f"{name}={quote_sh(value)}; export {name}")

    def environment(self):
        names = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
        found = environment(self.ask("/usr/bin/env -0"))
        return {name: found.get(name) for name in names} | {
            name: value for name, value in found.items() if name.lower().startswith("_cuda")
        }

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


@pytest.fixture(scope="module", params=ALL)
def running(request, machine):
    shell = Shell(machine, request.param)
    yield shell
    shell.close()


ELEMENTS = st.sampled_from(
    [
        "",
        "",
        ".",
        "/usr/bin",
        "/bin",
        "/usr/local/cuda/bin",
        "/usr/local/cuda-11.8/bin",
        "/usr/local/cuda-11.8/lib64",
        "/usr/local/cuda/lib64",
        "/opt/x y/bin",
        "/opt/*",
        "/opt/[a]?",
        "/opt/$HOME",
        "/opt/it's",
        "/opt/ü",
        "~",
        "/opt/a!b",
        "/opt/#c",
        "/opt/`d`",
        '/opt/"e"',
        "/usr/local/cuda-13.0/bin/",
        "/x/usr/local/cuda-13.0/bin",
    ]
)
LISTS = st.one_of(st.none(), st.just(""), st.lists(ELEMENTS, min_size=1, max_size=5).map(":".join))
VALUES = st.one_of(st.none(), st.sampled_from(["", "/usr/local/cuda", "/opt/my cuda", "/usr/local/cuda-11.8", "="]))
SELECTS = st.lists(st.sampled_from(["11.8", "12.4", "13.0", "9.9", "none"]), min_size=1, max_size=4)
# One process serves all examples of a shell on purpose; the fixture is a process, not state that examples share.
PROPERTY = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@PROPERTY
@given(path=LISTS, libraries=LISTS, home=VALUES, also=VALUES, selects=SELECTS)
def test_select_and_none_is_the_identity(running, path, libraries, home, also, selects):
    for name, value in (("PATH", path), ("LD_LIBRARY_PATH", libraries), ("CUDA_HOME", home), ("CUDA_PATH", also)):
        running.set(name, value)
    before = running.environment()
    for version in selects:
        running.ask(f"cuda_select {version}" if running.shell not in OWN_FILE else f"cuda-select {version}")
        now = running.environment()
        if version in ("11.8", "12.4", "13.0"):
            root = f"/usr/local/cuda-{version}"
            assert now["PATH"].split(":")[0] == f"{root}/bin" and now["CUDA_HOME"] == root
            assert now["LD_LIBRARY_PATH"].split(":")[0] == f"{root}/lib64"
            assert now["CUDA_PATH"] == (None if before["CUDA_PATH"] is None else root)
        elif version == "none":
            assert now == before
    running.ask("cuda_select none" if running.shell not in OWN_FILE else "cuda-select none")
    assert running.environment() == before


@PROPERTY
@given(path=LISTS, selects=st.lists(st.sampled_from(["11.8", "12.4", "13.0"]), min_size=1, max_size=3))
def test_what_others_put_in_front_stays(running, path, selects):
    running.set("PATH", path)
    start = running.environment()["PATH"]
    command = "cuda-select" if running.shell in OWN_FILE else "cuda_select"
    for version in selects:
        running.ask(f"{command} {version}")
    running.set("PATH", "/venv/bin:" + running.environment()["PATH"])
    running.ask(f"{command} none")
    assert running.environment()["PATH"] == "/venv/bin" + (f":{start}" if start else "")


def test_the_session_in_the_docs_is_a_real_one(machine):
    need("bash")
    page = (ROOT / "docs/environment.md").read_text()
    block = page.split("```console\n")[1].split("```")[0]
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    script = "".join(f"echo {quote_sh('$ ' + command)}\n{command}\n" for command in commands)
    done = machine.run(["bash", "-lc", f"exec 2>&1\n{script}"])
    assert done.stdout == block
