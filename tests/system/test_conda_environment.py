"""conda_environment on this machine, as a user of our own, on the lab's conda (a simulation; pip and packages are real)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import environment as conda_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.conda.read import environment_state
from tests.lab.conda import Proxy
from tests.system.condalab import Place, make_user, needs_root, remove_user, web_folder

__all__ = ["web_folder"]
pytestmark = needs_root

TORCH = {"cuda": "12.4", "python": "3.11", "torch": "2.6.0"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    # no index or constraint of this machine
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture(scope="module")
def world(web_folder, tmp_path_factory):
    """One user with a conda, for all tests of this file."""
    import shutil
    import tempfile

    from tests.lab.conda import Server

    folder = Path(tempfile.mkdtemp(prefix="gpu-provision-conda-"))
    folder.chmod(0o755)
    user = make_user(folder / "home")
    try:
        with Server(web_folder) as web:
            made = Place(folder, user, folder / "home", web)
            made.install()
            yield made
    finally:
        remove_user(user)
        shutil.rmtree(folder)


@pytest.fixture
def place(world):
    """The world without environments of another test."""
    yield world
    subprocess.run(["rm", "-rf", str(world.folder / "exports"), str(world.prefix / "envs")], check=True)
    world.inject("")
    world.web.faults.clear()


def wheels(place, tag="cu124", packages=("torch==2.6.0+cu124",)):
    return [{"packages": list(packages), "index_url": f"{place.web.url}/whl/{tag}", "extra_index_urls": []}]


def refusal(place, **changes):
    with pytest.raises(CondaError) as caught:
        place.environment(**changes)
    assert caught.value.hint
    return caught.value


def env(place, name="py311"):
    return place.prefix / "envs" / name


def test_conda_and_pip_packages_as_asked_and_nothing_the_second_time(place):
    given = {"pip": wheels(place), "wish": TORCH}
    answer = place.environment(**given)
    assert answer["done"] == ["made the environment py311"] and answer["path"] == str(env(place))
    state = environment_state(str(env(place)))
    assert state["state"] == "whole" and state["pip"]["torch"] == "2.6.0+cu124"
    assert state["record"]["spec"]["wish"] == TORCH
    assert state["record"]["digest"] == conda_environment.digest(str(env(place)))
    assert place.owners(place.prefix) == {place.user}
    said = subprocess.run(
        [str(env(place) / "bin/python"), "-c", "import torch; print(torch.version.cuda)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout == "12.4\n"
    before, asked = place.tree(place.folder), len(place.web.requests)
    again = place.environment(**given)
    assert (again["changed"], again["done"]) == (False, [])
    assert place.tree(place.folder) == before and len(place.web.requests) == asked


def test_conda_still_reads_an_environment_with_our_record(place):
    place.environment()
    listed = subprocess.run(
        [str(place.prefix / "bin/conda"), "list", "-p", str(env(place)), "--json"], check=True, capture_output=True
    )
    assert "python" in {item["name"] for item in json.loads(listed.stdout)}


def test_check_mode_says_it_and_does_nothing(place):
    before, asked = place.tree(place.folder), len(place.web.requests)
    answer = place.environment(check=True, pip=wheels(place), lib64_link=True)
    assert answer["done"] == ["made the environment py311", f"linked {env(place)}/lib64 to lib"]
    assert answer["diff"][0]["after"] == "python=3.11\npip: torch==2.6.0+cu124\n"
    assert place.tree(place.folder) == before and len(place.web.requests) == asked


def test_a_build_string_is_got_and_proved(place):
    channels = [f"{place.web.url}/pytorch", f"{place.web.url}/conda-forge"]
    build = "py3.11_cuda12.1_cudnn8.9.2_0"
    place.environment(
        channels=channels, packages=["python=3.11", f"pytorch=2.3.1={build}", "pytorch-cuda=12.1"], override_cuda="12.2"
    )
    assert environment_state(str(env(place)))["packages"]["pytorch"] == {"version": "2.3.1", "build": build}


def test_m2_a_cpu_build_does_not_slip_in(place):
    """Without a driver the solver takes the build without CUDA and ends well: that is an error here, and leaves nothing."""
    channels = [f"{place.web.url}/pytorch", f"{place.web.url}/conda-forge"]
    packages = ["python=3.11", "pytorch=2.3.1", "cuda-version=12.1"]
    error = refusal(place, channels=channels, packages=packages)
    assert error.code == "conda.environment_wrong"
    assert error.because == ["pytorch 2.3.1 is a build without CUDA (py3.11_cpu_0)"]
    assert "=*cuda*" in error.hint
    assert environment_state(str(env(place)))["state"] == "absent"
    assert list((place.prefix / "envs").iterdir()) == []


def test_m2_a_host_whose_driver_does_not_run_yet(place):
    """conda-forge's builds ask for __cuda: the override is what the solve goes by."""
    packages = ["python=3.11", "pytorch=2.5.1=*cuda*"]
    error = refusal(place, packages=packages)
    assert error.code == "conda.no_cuda" and any("__cuda" in line for line in error.because)
    place.environment(packages=packages, override_cuda="12.8")
    assert environment_state(str(env(place)))["packages"]["pytorch"]["build"].startswith("cuda126")


def test_m1_terms_are_not_accepted_in_silence(place, monkeypatch):
    with Proxy({"repo.anaconda.com": place.web.url}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        channels = ["http://repo.anaconda.com/pkgs/main"]
        error = refusal(place, channels=channels)
        assert error.code == "conda.terms" and "miniconda_accept_tos: true" in error.hint
        assert any("CondaToSNonInteractiveError" in line for line in error.because)
        assert any("repo.anaconda.com/pkgs/main" in line for line in error.because)
        place.install(accept_tos=channels)
        place.environment(channels=channels)
    assert environment_state(str(env(place)))["state"] == "whole"


def test_m3_nothing_needs_an_activated_shell(place):
    place.environment()
    conda = str(place.prefix / "bin/conda")
    said = subprocess.run(["bash", "-c", f"{conda} activate py311"], capture_output=True, text=True, check=False)
    assert said.returncode != 0 and "conda init" in said.stderr
    out = subprocess.run(
        [conda, "run", "-p", str(env(place)), "python", "-c", "import sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == str(env(place))


def test_an_environment_file_with_pip_in_it(place):
    text = f"""name: other
channels:
  - {place.web.url}/conda-forge
dependencies:
  - python=3.11
  - numpy=1.26.4
  - pip:
      - filelock
"""
    index = f"{place.web.url}/whl/cu124"
    place.environment(packages=[], file_kind="environment", file_content=text, pip_index_url=index)
    state = environment_state(str(env(place)))
    assert state["packages"]["numpy"]["version"] == "1.26.4" and "filelock" in state["pip"]
    # The index for it is the one that is asked for, and what pip says is told as pip's.
    error = refusal(
        place, name="more", packages=[], file_kind="environment", file_content=text, pip_index_url="http://127.0.0.1:9/"
    )
    assert error.code == "conda.unreachable" and error.message.startswith("the index of more")


def test_an_environment_file_without_channels_gets_ours_and_no_defaults(place):
    place.environment(packages=[], file_kind="environment", file_content="dependencies:\n  - python=3.12\n")
    assert environment_state(str(env(place)))["packages"]["python"]["version"] == "3.12.11"


def test_an_explicit_list(place):
    place.environment()
    listed = subprocess.run(
        [str(place.prefix / "bin/conda"), "list", "-p", str(env(place)), "--explicit"],
        check=True,
        capture_output=True,
        text=True,
    )
    place.environment(name="copy", packages=[], file_kind="explicit", file_content=listed.stdout, wish={"copy": True})
    assert environment_state(str(env(place, "copy")))["packages"] == environment_state(str(env(place)))["packages"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"packages": ["python=3.11", "nosuch"]}, "conda.not_found", "nosuch"),
        ({"packages": ["python=3.12", "numpy=1.26.4=py311*"]}, "conda.unsatisfiable", ""),
        ({"channels": ["{web}/nowhere"]}, "conda.no_channel", "nowhere"),
        ({"channels": ["http://127.0.0.1:9/conda-forge"]}, "conda.unreachable", "127.0.0.1:9"),
        ({"pip": [{"packages": ["torch==9.9.9"], "index_url": "{web}/whl/cu124"}]}, "conda.no_wheel", "9.9.9"),
        # pip tries for ten seconds; an environment file has the same above.
        pytest.param(
            {"pip": [{"packages": ["torch"], "index_url": "http://127.0.0.1:9/"}]},
            "conda.unreachable",
            "127.0.0.1",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_conda_and_pip_say_is_handed_on_and_nothing_stays(place, changes, code, words):
    changes = json.loads(json.dumps(changes).replace("{web}", place.web.url))
    error = refusal(place, **changes)
    assert error.code == code and words in "\n".join(error.because)
    assert list((place.prefix / "envs").iterdir()) == []
    place.environment()
    assert environment_state(str(env(place)))["state"] == "whole"


def test_passwords_reach_neither_arguments_nor_errors_nor_the_record(place):
    secret = place.web.url.replace("http://", "http://me:s3cret@")
    assert refusal(place, channels=[secret + "/conda-forge"]).code == "conda.channel_secret"
    assert refusal(place, channels=["https://conda.example.org/t/s3cret/main"]).code == "conda.channel_secret"
    step = {"packages": ["torch==9.9.9"], "index_url": secret + "/whl/cu124", "extra_index_urls": []}
    error = refusal(place, pip=[step])
    assert "s3cret" not in error.message + repr(error.as_dict())
    place.environment(pip=[step | {"packages": ["torch==2.6.0+cu124"]}])
    assert "s3cret" not in (env(place) / conda_read.RECORD).read_text()
    assert environment_state(str(env(place)))["pip"]["torch"] == "2.6.0+cu124"


# ---- what is there


def foreign(place):
    subprocess.run(
        [
            "runuser",
            "-u",
            place.user,
            "--",
            str(place.prefix / "bin/conda"),
            "create",
            "-y",
            "-n",
            "py311",
            "--override-channels",
            "-c",
            f"{place.web.url}/conda-forge",
            "python=3.12",
        ],
        check=True,
        capture_output=True,
    )


def test_an_environment_of_someone_else_is_never_touched(place):
    foreign(place)
    before = place.tree(env(place))
    error = refusal(place)
    assert error.code == "conda.environment_differs" and error.because == ["it is not ours"]
    assert place.tree(env(place)) == before


def test_another_folder_in_its_place_is_never_touched(place):
    env(place).mkdir(parents=True)
    (env(place) / "data.csv").write_text("1\n")
    for action in ("create", "rebuild"):
        assert refusal(place, action=action).code == "conda.environment_foreign"
    assert (env(place) / "data.csv").read_text() == "1\n"


def test_rebuild_saves_the_export_first(place):
    foreign(place)
    answer = place.environment(action="rebuild")
    assert answer["done"][-1] == "rebuilt the environment py311"
    saved = Path(answer["export"])
    assert "python=3.12.11" in (saved / "environment.yml").read_text()
    assert "@EXPLICIT" in (saved / "explicit.txt").read_text()
    assert saved.stat().st_mode & 0o077 == 0
    assert environment_state(str(env(place)))["packages"]["python"]["version"] == "3.11.13"
    assert [item.name for item in (place.prefix / "envs").iterdir()] == ["py311"]
    assert not place.environment(action="rebuild")["changed"]


def test_one_that_cannot_be_rebuilt_is_back_as_it_was(place):
    foreign(place)
    before = place.tree(env(place))
    error = refusal(place, action="rebuild", packages=["python=3.11", "nosuch"])
    assert error.because[-1] == "the earlier environment is restored"
    assert place.tree(env(place)) == before
    assert [item.name for item in (place.prefix / "envs").iterdir()] == ["py311"]


def test_of_a_part_the_names_of_its_packages_are_saved_first(place):
    place.environment()
    (env(place) / "bin/python").unlink()
    answer = place.environment(action="rebuild")
    assert "python=3.11.13" in (Path(answer["export"]) / "packages.txt").read_text()
    assert environment_state(str(env(place)))["state"] == "whole"


def test_another_wish_needs_the_word_rebuild(place):
    place.environment()
    assert refusal(place, wish={"python": "3.12"}, packages=["python=3.12"]).code == "conda.environment_differs"
    assert environment_state(str(env(place)))["packages"]["python"]["version"] == "3.11.13"


# Another wish, a rebuild that fails or is killed: the tests around it.
@pytest.mark.thorough
def test_a_planned_rebuild_with_the_same_wish(place):
    """What the plan found wrong is made anew; what is right stays, also when the same plan is carried out twice."""
    given = {"pip": wheels(place), "wish": TORCH}
    place.environment(**given)
    assert not place.environment(action="rebuild", **given)["changed"]
    cpu = [str(env(place) / "bin/python"), "-m", "pip", "install", "-q", "torch==2.6.0+cpu", "--index-url"]
    subprocess.run(
        ["runuser", "-u", place.user, "--", *cpu, f"{place.web.url}/whl/cpu"], check=True, capture_output=True
    )
    assert not place.environment(**given)["changed"]
    assert place.environment(action="rebuild", **given)["done"][-1] == "rebuilt the environment py311"
    assert environment_state(str(env(place)))["pip"]["torch"] == "2.6.0+cu124"
    older = given | {"pip": wheels(place, "cu118", ["torch==2.6.0+cu118"])}
    assert not place.environment(**older)["changed"]
    assert place.environment(action="rebuild", **older)["changed"]


def test_no_conda_no_environment(place):
    error = refusal(place, prefix=str(place.folder / "nowhere"))
    assert error.code == "conda.no_conda" and "is absent" in error.message


@pytest.mark.parametrize("name", ["base", "../x", "a b", "-n", ""])
def test_names_that_lead_elsewhere(place, name):
    assert refusal(place, name=name).code == "conda.environment_name"


# ---- cut off


def test_killed_in_the_middle_and_made_anew_by_the_next_run(place):
    place.inject("die=env")
    error = refusal(place)
    assert error.code == "conda.killed"
    assert environment_state(str(env(place)))["state"] == "partial"
    place.inject("")
    answer = place.environment(action="configure")
    assert answer["done"] == ["finished the environment py311"]
    assert environment_state(str(env(place)))["state"] == "whole"
    assert [item.name for item in (place.prefix / "envs").iterdir()] == ["py311"]


def test_a_killed_rebuild_is_finished_and_the_old_one_goes_only_then(place):
    foreign(place)
    place.inject("die=env")
    assert refusal(place, action="rebuild").code == "conda.killed"
    old = place.prefix / "envs" / ".py311.before-rebuild"
    assert environment_state(str(old))["packages"]["python"]["version"] == "3.12.11"
    place.inject("")
    place.environment(action="finish")
    assert environment_state(str(env(place)))["packages"]["python"]["version"] == "3.11.13"
    assert [item.name for item in (place.prefix / "envs").iterdir()] == ["py311"]


@pytest.mark.parametrize("moved", [False, True])
def test_cut_off_between_two_steps_of_a_rebuild(place, moved):
    """Before the old one was moved it is moved now; after it, it is the old one that must not be taken for the new."""
    foreign(place)
    old = place.prefix / "envs" / ".py311.before-rebuild"
    marker = Path(conda_read.environment_marker(str(env(place))))
    marker.write_text(json.dumps({"prefix": str(env(place)), "aside": str(old), "moved": False}))
    os.chown(marker, env(place).stat().st_uid, env(place).stat().st_gid)
    if moved:
        env(place).rename(old)
    place.environment(action="finish")
    assert environment_state(str(env(place)))["packages"]["python"]["version"] == "3.11.13"
    assert [item.name for item in (place.prefix / "envs").iterdir()] == ["py311"]


RUN = """
import json, sys
sys.path[:0] = [{collections!r}, {root!r}]
from ansible_collections.gpu.provision.plugins.module_utils.conda import make_environment as condaenv
condaenv.run(json.loads(sys.argv[1]))
"""


def started(place):
    """The module as a process of its own."""
    root = Path(__file__).parents[2]
    text = RUN.format(collections=str(root / ".collections"), root=str(root))
    arguments = {
        "name": "py311",
        "prefix": str(place.prefix),
        "action": "create",
        "owner": place.user,
        "wish": {},
        "channels": [f"{place.web.url}/conda-forge"],
        "packages": ["python=3.11"],
    }
    return subprocess.Popen([sys.executable, "-c", text, json.dumps(arguments)], stderr=subprocess.DEVNULL)


def test_two_runs_at_once_make_one_environment(place):
    runs = [started(place) for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert environment_state(str(env(place)))["state"] == "whole"
    assert [item.name for item in (place.prefix / "envs").iterdir()] == ["py311"]


# test_conda_install.py waits for an installer.
@pytest.mark.thorough
def test_the_next_run_waits_for_a_conda_that_is_still_at_work(place):
    place.inject("pause=env:2")
    run = started(place)
    deadline = time.monotonic() + 30
    while not (env(place) / "conda-meta").is_dir():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    killed = time.monotonic()
    place.environment()
    assert time.monotonic() - killed > 1
    assert environment_state(str(env(place)))["state"] == "whole"


def test_a_full_disk_under_the_environments(place):
    folder = place.prefix / "envs"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0777", "none", str(folder)], check=True)
    try:
        error = refusal(place)
        assert error.code == "conda.disk_full" and list(folder.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=100m", str(folder)], check=True)
        place.environment()
        assert environment_state(str(env(place)))["state"] == "whole"
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# test_conda_install.py has proxies of each kind.
@pytest.mark.thorough
def test_a_channel_behind_a_proxy(place, monkeypatch):
    with Proxy({"conda.lab.invalid": place.web.url}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        # An index that only pip's configuration names: nobody allowed http for it.
        config = place.folder / "pip.conf"
        config.write_text("[global]\nindex-url = http://conda.lab.invalid/whl/cu124\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
        assert refusal(place, pip=[{"packages": ["torch==2.6.0+cu124"]}]).code == "conda.insecure"
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        # A plan has an index over http only where the inventory allows it.
        step = {"packages": ["torch==2.6.0+cu124"], "index_url": "http://conda.lab.invalid/whl/cu124"}
        place.environment(channels=["http://conda.lab.invalid/conda-forge"], pip=[step])
        assert any("/whl/cu124/torch" in path for path, _ in proxy.requests)
    assert environment_state(str(env(place)))["pip"]["torch"] == "2.6.0+cu124"


# ---- around it


def test_lib64_and_library_path(place):
    place.environment(lib64_link=True, library_path=True)
    assert (env(place) / "lib64").readlink() == Path("lib")
    out = subprocess.run(
        [
            "bash",
            "-c",
            '. "$0"; conda activate py311; echo "$LD_LIBRARY_PATH"',
            str(place.prefix / "etc/profile.d/conda.sh"),
        ],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert out.stdout == f"{env(place)}/lib\n"
    assert not place.environment(lib64_link=True, library_path=True)["changed"]
    (env(place) / "lib64").unlink()
    answer = place.environment(action="configure", lib64_link=True)
    assert answer["done"] == [f"linked {env(place)}/lib64 to lib"]


def test_the_prefix_is_still_whole(place):
    assert conda_install.run(place.arguments())["changed"] is False
