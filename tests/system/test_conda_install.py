"""conda_install on this machine, as a user of our own, with the lab's installer (a simulation of Miniconda's)."""

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
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda import fetch as conda_fetch
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.conda.read import prefix_state
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files
from tests.lab.conda import Proxy
from tests.sample import share
from tests.system.condalab import make_user, needs_root, place, remove_user, web_folder

__all__ = ["place", "web_folder"]
pytestmark = needs_root

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(conda_fetch, "_PAUSE", 0)


def refusal(place, **changes):
    with pytest.raises(CondaError) as caught:
        place.install(**changes)
    error = caught.value
    assert error.hint
    return error


def test_a_user_gets_a_prefix_of_their_own_and_a_second_run_changes_nothing(place):
    answer = place.install()
    assert answer["done"][0] == f"installed miniconda 26.5.3-1 at {place.prefix}"
    assert prefix_state(str(place.prefix))["state"] == "whole"
    assert place.owners(place.prefix) == {place.user}
    assert (place.prefix / ".condarc").read_text() == "channels:\n  - conda-forge\n\n"
    record = json.loads((place.prefix / conda_read.RECORD).read_text())
    assert record["sha256"] == place.installer()["sha256"] and record["kind"] == "base"
    before, asked = place.tree(place.folder), len(place.web.requests)
    again = place.install()
    assert (again["changed"], again["done"]) == (False, [])
    assert place.tree(place.folder) == before and len(place.web.requests) == asked


def test_check_mode_says_it_and_does_nothing(place):
    before = place.tree(place.folder)
    answer = place.install(check=True, profile=True)
    assert answer["changed"] and any(line.startswith("installed miniconda") for line in answer["done"])
    assert any(item["after"] == "channels:\n  - conda-forge\n" for item in answer["diff"])
    assert place.tree(place.folder) == before and place.web.requests == []


def test_the_installed_conda_answers_conda_too(place):
    """Our record lies where conda keeps its own: conda must not stumble over it."""
    place.install()
    conda = str(place.prefix / "bin/conda")
    listed = subprocess.run([conda, "list", "--json"], check=True, capture_output=True, text=True)
    assert {item["name"] for item in json.loads(listed.stdout)} >= {"conda", "python"}


def test_umask_and_group_for_sharing(place):
    prefix = place.folder / "shared" / "conda"
    place.install(prefix=str(prefix), umask="002", group="users")
    assert prefix.stat().st_mode & 0o7777 == 0o2775
    assert (prefix / "conda-meta/history").stat().st_mode & 0o777 == 0o664
    assert (prefix / "conda-meta/history").group() == "users"


def test_a_place_that_only_root_can_make(place):
    """/opt belongs to root: the folder is made by root and given to the owner, who does the rest."""
    prefix = place.folder / "opt" / "conda"
    place.install(prefix=str(prefix))
    assert place.owners(prefix) == {place.user}


# ---- downloads


def test_a_download_goes_on_where_it_stopped(place):
    given = place.installer()
    place.web.faults = [100_000, -404]
    error = refusal(place, **given)
    assert error.code == "conda.download" and "404" in error.because[0]
    assert (place.folder / "cache" / (given["installer"] + ".part")).stat().st_size == 100_000
    place.web.requests.clear()
    place.install(**given)
    assert place.web.requests == [("/" + given["installer"], "bytes=100000-")]
    assert prefix_state(str(place.prefix))["state"] == "whole"


def test_a_line_that_breaks_again_and_again_is_resumed_in_one_run(place):
    given = place.installer()
    place.web.faults = [100_000, 100_000, -503]
    place.install(**given)
    assert [request[1] for request in place.web.requests] == ["", "bytes=100000-", "bytes=200000-", "bytes=200000-"]


def test_a_server_without_ranges_starts_over(place):
    given = place.installer()
    place.web.ranges, place.web.faults = False, [100_000]
    place.install(**given)
    assert prefix_state(str(place.prefix))["state"] == "whole"


def test_half_a_file_of_another_content_is_not_glued_together(place):
    given = place.installer()
    part = place.folder / "cache" / (given["installer"] + ".part")
    part.parent.mkdir()
    part.write_bytes(b"x" * 1000)
    Path(str(part) + ".json").write_text(json.dumps({"url": given["url"], "validator": ""}))
    place.install(**given)
    assert [request[1] for request in place.web.requests] == ["bytes=1000-", ""]
    assert prefix_state(str(place.prefix))["state"] == "whole"


def test_a_wrong_checksum_leaves_nothing_behind_and_runs_nothing(place):
    given = place.installer() | {"sha256": "0" * 64}
    error = refusal(place, **given)
    assert error.code == "conda.checksum" and "sha256 wanted: " + "0" * 64 in error.because
    assert [path.name for path in (place.folder / "cache").iterdir()] == [".lock"]
    assert not place.prefix.exists()
    place.install()
    assert prefix_state(str(place.prefix))["state"] == "whole"


def test_a_login_page_is_named(place, web_folder):
    (web_folder / "login.sh").write_text("<!DOCTYPE html><html>please log in</html>")
    error = refusal(place, **(place.installer() | {"url": place.web.url + "/login.sh"}))
    assert "it is a web page: a proxy's login or a server's error page" in error.because


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_file_on_the_host_works_the_same(place, web_folder, form):
    given = place.installer()
    path = form.format(web_folder / given["installer"])
    source = {"file": path, "url": ""} if form == "{}" else {"url": path, "file": ""}
    place.install(**(given | source))
    assert prefix_state(str(place.prefix))["state"] == "whole" and place.web.requests == []


def test_a_file_that_is_not_there(place):
    error = refusal(place, **(place.installer() | {"file": "/nonexistent/x.sh", "url": ""}))
    assert error.code == "conda.no_installer" and error.because == ["No such file or directory"]


def test_what_is_no_installer_is_not_run(place, web_folder):
    (web_folder / "x.sh").write_bytes(b"\x7fELF")
    digest = conda_fetch.checksum(str(web_folder / "x.sh"))
    error = refusal(place, **(place.installer() | {"url": place.web.url + "/x.sh", "sha256": digest}))
    assert error.code == "conda.no_installer" and not (place.prefix / "conda-meta").exists()


def test_a_host_behind_a_proxy(place, monkeypatch):
    given = place.installer()
    given["url"] = "http://repo.lab.invalid/" + given["installer"]
    error = refusal(place, **given)
    assert error.code == "conda.download"
    assert (
        "conda installer: without a proxy (no http_proxy in the environment)" in error.because and "proxy" in error.hint
    )
    with Proxy({"repo.lab.invalid": place.web.url}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        place.install(**given)
        assert proxy.requests[0][0] == given["url"]
    assert prefix_state(str(place.prefix))["state"] == "whole"


def test_a_proxy_that_wants_a_password(place, monkeypatch):
    with Proxy({"repo.lab.invalid": place.web.url}, password=True) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        given = place.installer()
        given["url"] = "http://repo.lab.invalid/" + given["installer"]
        error = refusal(place, **given)
        assert "407" in error.because[0] and "password" in error.hint
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:secret@"))
        place.install(**given)
        assert proxy.requests[-1][1].startswith("Basic ")


def test_a_proxy_that_is_not_there(place, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    error = refusal(place, **place.installer())
    assert "conda installer: through the proxy 127.0.0.1:9" in error.because
    assert "secret" not in repr(error.as_dict()) + error.message


# ---- paths, rights, disks


def test_a_prefix_with_a_space_is_refused_before_anything_is_done(place):
    error = refusal(place, prefix=str(place.home / "my conda"))
    assert error.code == "conda.prefix_space" and place.web.requests == []
    assert "ERROR: Cannot install into directories with spaces" in error.because


def test_a_home_with_a_space_does_no_harm_to_a_prefix_elsewhere(place):
    home = place.folder / "home of bob"
    user = make_user(home)
    try:
        prefix = place.folder / "opt" / "conda"
        place.install(prefix=str(prefix), owner=user, shell_init=[user])
        assert place.owners(prefix) == {user}
        assert (home / ".bashrc").read_text().count(">>> conda initialize >>>") == 1
        error = refusal(place, prefix=str(home / ".miniconda3"), owner=user)
        assert error.code == "conda.prefix_space"
    finally:
        remove_user(user)


def test_a_home_that_its_user_may_not_write_to(place):
    os.chown(place.home, 0, 0)
    error = refusal(place)
    assert error.code == "conda.not_writable" and error.because == ["Permission denied"]
    assert list(place.home.iterdir()) == []
    os.chown(place.home, *[getattr(conda_common.Owner(place.user), key) for key in ("uid", "gid")])
    place.install()
    assert prefix_state(str(place.prefix))["state"] == "whole"


@pytest.fixture
def small_disk(place):
    """A disk of its own at <folder>/disk: disk(megabytes, options)."""
    mounted = []
    folder = place.folder / "disk"

    def mount(megabytes, options=""):
        folder.mkdir(exist_ok=True)
        what = f"size={megabytes}m,mode=0777" + ("," + options if options else "")
        subprocess.run(["mount", "-t", "tmpfs", "-o", what, "none", str(folder)], check=True)
        mounted.append(folder)
        return folder

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_disk_that_is_too_small_by_the_installers_own_word(place, small_disk):
    disk = small_disk(40)
    error = refusal(place, prefix=str(disk / "conda"), **place.installer(kib=997_567))
    assert error.code == "conda.disk_full"
    assert "needs 1.0 GB at" in error.message and "by its own header" in error.because
    assert list(disk.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=2g", str(disk)], check=True)
    place.install(prefix=str(disk / "conda"), **place.installer(kib=997_567))
    assert prefix_state(str(disk / "conda"))["state"] == "whole"


# A disk that is too small, or full under the cache: beside it.
@pytest.mark.thorough
def test_a_disk_that_fills_up_in_the_middle(place, small_disk, monkeypatch):
    """The header says little, the payload is large: only the disk itself tells."""
    monkeypatch.setattr(conda_install, "BUFFER", 0)
    disk = small_disk(26)
    settings = place.installer(filler_kib=12_000, kib=1000, checks_space=False)
    error = refusal(place, prefix=str(disk / "conda"), **settings)
    assert error.code == "conda.disk_full" and "ran full" in error.message
    assert "nothing was left at " + str(disk / "conda") in error.because
    assert list(disk.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=400m", str(disk)], check=True)
    place.install(prefix=str(disk / "conda"), **settings)
    assert prefix_state(str(disk / "conda"))["state"] == "whole"


def test_a_full_disk_under_the_cache(place, small_disk):
    disk = small_disk(1)
    error = refusal(place, cache_dir=str(disk))
    assert error.code == "conda.disk_full" and [path.name for path in disk.iterdir()] == [".lock"]


def test_a_read_only_prefix(place, small_disk):
    disk = small_disk(100)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    error = refusal(place, prefix=str(disk / "conda"))
    assert error.code == "conda.not_writable" and error.because == ["Read-only file system"]
    assert "mount" in error.hint


def test_a_file_system_without_programs(place, small_disk):
    disk = small_disk(200, "noexec")
    error = refusal(place, prefix=str(disk / "conda"))
    assert error.code == "conda.installer_failed" and "noexec" in error.hint
    assert list(disk.iterdir()) == []


def test_an_ubuntu_that_is_too_old(place):
    error = refusal(place, **place.installer(glibc="2.99"))
    assert error.code == "conda.glibc" and any("Installer requires GLIBC >=2.99" in line for line in error.because)
    assert not place.prefix.exists()


# ---- cut off


@pytest.mark.parametrize("step", share(["bootstrap", "unpack", "link", "post"], 2))
def test_a_killed_installer_is_finished_by_the_next_run(place, step):
    place.inject(f"die={step}")
    error = refusal(place)
    assert error.code == "conda.installer_killed" and "signal 9" in error.message
    state = prefix_state(str(place.prefix))
    assert (state["state"], state["marked"], state["fresh"]) == ("partial", True, True)
    place.inject("")
    answer = place.install(action="configure")
    assert answer["done"][0] == f"finished miniconda 26.5.3-1 at {place.prefix}"
    assert prefix_state(str(place.prefix))["state"] == "whole"
    assert not place.install()["changed"]


RUN = """
import json, sys
sys.path[:0] = [{collections!r}, {root!r}]
import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as condainstall
condainstall.run(json.loads(sys.argv[1]))
"""


def started(place, **changes):
    """The module as a process of its own, which can be killed."""
    root = Path(__file__).parents[2]
    text = RUN.format(collections=str(root / ".collections"), root=str(root))
    arguments = json.dumps(place.arguments(**changes))
    return subprocess.Popen([sys.executable, "-c", text, arguments], stderr=subprocess.DEVNULL)


def wait_for(path, there=True):
    deadline = time.monotonic() + 30
    while path.exists() != there:
        assert time.monotonic() < deadline, f"{path} did not {'come' if there else 'go'}"
        time.sleep(0.02)


def test_killed_with_its_installer_still_at_work(place):
    """The installer goes on alone; the next run waits for it instead of starting a second one."""
    place.inject("pause=post:2")
    run = started(place)
    wait_for(place.prefix / ".lab-paused")
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert prefix_state(str(place.prefix))["marked"]
    answer = place.install()
    assert answer["done"][0].startswith("finished")
    assert prefix_state(str(place.prefix))["state"] == "whole"


def test_two_runs_at_once_make_one_prefix(place):
    """As after an interrupt that ended the command and not what it had started on the host."""
    place.installer()
    runs = [started(place) for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert prefix_state(str(place.prefix))["state"] == "whole"
    assert not place.install()["changed"]


def test_a_run_whose_file_another_run_takes_away_looks_again(place, monkeypatch):
    """Two runs that write one file have one temporary file."""
    place.install(condarc={})
    met, rename = place.home / "met", own_files.rename

    def meet(old, new, sync=True):
        if not met.exists():
            met.touch()
            Path(old).unlink()
        rename(old, new, sync)

    monkeypatch.setattr(own_files, "rename", meet)
    assert place.install()["done"] == [f"set channels in {place.prefix}/.condarc"]
    assert met.exists() and (place.prefix / ".condarc").read_text() == "channels:\n  - conda-forge\n\n"


def test_an_installer_that_does_not_end_is_named(place, monkeypatch):
    place.inject("pause=post:3")
    run = started(place)
    wait_for(place.prefix / ".lab-paused")
    run.send_signal(signal.SIGKILL)
    run.wait()
    monkeypatch.setattr(conda_common, "_LOCK_WAIT", 0.1)
    error = refusal(place)
    assert error.code == "conda.busy" and any(str(place.prefix) in line for line in error.because)
    wait_for(place.prefix / ".lab-paused", there=False)


def test_an_installer_that_takes_too_long_is_ended(place):
    place.inject("pause=link:60")
    error = refusal(place, timeout=2)
    assert error.code == "conda.installer_slow"
    place.inject("")
    place.install()
    assert prefix_state(str(place.prefix))["state"] == "whole"


# ---- what is there


def test_a_partial_prefix_of_someone_else_is_repaired_only_when_asked(place):
    subprocess.run(
        ["runuser", "-u", place.user, "--", "bash", installer_path(place), "-b", "-p", str(place.prefix)], check=True
    )
    environment = place.prefix / "envs" / "mine" / "conda-meta"
    environment.mkdir(parents=True)
    (environment / "history").write_text("kept\n")
    (place.prefix / "bin/conda").unlink()
    error = refusal(place)
    assert error.code == "conda.partial" and error.because == ["bin/conda is missing"]
    answer = place.install(action="repair")
    assert answer["done"][0].startswith("repaired")
    assert (environment / "history").read_text() == "kept\n"
    assert prefix_state(str(place.prefix))["state"] == "whole"


def installer_path(place):
    return str(Path(place.web.folder, place.installer()["installer"]))


def test_a_whole_prefix_of_someone_else_is_left_alone(place):
    subprocess.run(
        ["runuser", "-u", place.user, "--", "bash", installer_path(place), "-b", "-p", str(place.prefix)], check=True
    )
    before = place.tree(place.prefix)
    answer = place.install(condarc={})
    assert not answer["changed"] and place.tree(place.prefix) == before


def test_another_folder_at_the_prefix_is_never_touched(place):
    place.prefix.mkdir()
    (place.prefix / "thesis.tex").write_text("years\n")
    for action in ("install", "repair", "update"):
        assert refusal(place, action=action).code == "conda.prefix_foreign"
    assert (place.prefix / "thesis.tex").read_text() == "years\n"


def test_update_only_when_asked_and_only_forward(place):
    old, new = place.installer(version="25.11.1-1"), place.installer(version="26.5.3-1")
    place.install(**old)
    assert not place.install(**new)["changed"]
    (place.prefix / ".condarc").write_text("channels: [conda-forge]\nssl_verify: /etc/corp.pem\n")
    answer = place.install(action="update", **new)
    assert answer["done"] == [f"updated miniconda 26.5.3-1 at {place.prefix}"]
    assert answer["version"] == "26.5.3"
    # The installer writes its own .condarc there, also with -u.
    assert (place.prefix / ".condarc").read_text() == "channels: [conda-forge]\nssl_verify: /etc/corp.pem\n"
    assert not place.install(action="update", **new)["changed"]
    assert not place.install(action="update", **old)["changed"]


# A killed installer is finished, and an update done, above.
@pytest.mark.thorough
def test_a_killed_update_is_finished_and_keeps_the_environments(place):
    place.install(**place.installer(version="25.11.1-1"))
    environment = place.prefix / "envs" / "mine" / "conda-meta"
    environment.mkdir(parents=True)
    (environment / "history").write_text("kept\n")
    place.inject("die=link")
    assert refusal(place, action="update").code == "conda.installer_killed"
    place.inject("")
    place.install()
    assert (environment / "history").read_text() == "kept\n"
    assert prefix_state(str(place.prefix))["version"] == "26.5.3"


def test_latest_is_taken_again_only_when_it_is_another(place, web_folder):
    given = place.installer() | {"version": "latest", "sha256": ""}
    place.install(**given)
    assert not place.install(action="update", **given)["changed"]
    newer = place.installer(version="27.1.0-1")
    (web_folder / given["installer"]).write_bytes((web_folder / newer["installer"]).read_bytes())
    answer = place.install(action="update", **given)
    assert answer["changed"] and answer["version"] == "27.1.0"


# ---- around it


def test_foreign_keys_of_condarc_stay(place):
    place.install(condarc={})
    path = place.prefix / ".condarc"
    path.write_text("# ours\nssl_verify: /etc/corp.pem\nchannels:\n  - defaults\nenvs_dirs: [/data/envs]\n")
    path.chmod(0o640)
    place.install(condarc={"channels": ["conda-forge"], "auto_activate_base": False})
    assert path.read_text() == (
        "# ours\nssl_verify: /etc/corp.pem\nchannels:\n  - conda-forge\nenvs_dirs: [/data/envs]\n"
        "auto_activate_base: false\n"
    )
    assert path.stat().st_mode & 0o777 == 0o640 and path.owner() == place.user


def test_a_condarc_that_cannot_be_understood_is_never_replaced(place):
    place.install(condarc={})
    (place.prefix / ".condarc").write_text("channels:\n  - a\nthis is no yaml\n")
    error = refusal(place)
    assert error.code == "conda.condarc" and error.because == ["line 3: this is no yaml"]
    assert (place.prefix / ".condarc").read_text().endswith("this is no yaml\n")


def test_terms_are_accepted_only_by_the_owners_word_and_once(place):
    place.install()
    assert conda_read.accepted_terms(f"{place.prefix}/{conda_read.TERMS}") == []
    channels = list(conda_read.TERMS_CHANNELS)
    answer = place.install(accept_tos=channels)
    assert answer["done"] == [f"accepted the terms of {url}, as miniconda_accept_tos says" for url in channels]
    assert conda_read.accepted_terms(f"{place.prefix}/{conda_read.TERMS}") == channels
    assert not place.install(accept_tos=channels)["changed"]
    assert not (place.home / ".conda/tos").exists()


def test_shell_init_is_condas_own_block_once(place):
    (place.home / ".bashrc").write_text("alias ll='ls -l'\n")
    os.chown(place.home / ".bashrc", *[getattr(conda_common.Owner(place.user), key) for key in ("uid", "gid")])
    place.install()
    assert (place.home / ".bashrc").read_text() == "alias ll='ls -l'\n"
    answer = place.install(shell_init=[place.user])
    assert answer["done"] == [f"initialised bash for {place.user}"]
    text = (place.home / ".bashrc").read_text()
    assert text.startswith("alias ll='ls -l'\n") and f"'{place.prefix}/bin/conda'" in text
    assert not place.install(shell_init=[place.user])["changed"]
    assert (place.home / ".bashrc").read_text() == text and (place.home / ".bashrc").owner() == place.user


def test_the_block_of_another_conda_is_not_replaced(place):
    setup = "__conda_setup=\"$('/opt/other/bin/conda' 'shell.bash' 'hook')\""
    text = f"# >>> conda initialize >>>\n{setup}\n# <<< conda initialize <<<\n"
    (place.home / ".bashrc").write_text(text)
    error = refusal(place, shell_init=[place.user])
    assert error.code == "conda.shell_init" and "/opt/other" in error.message
    assert (place.home / ".bashrc").read_text() == text


def test_profile_makes_conda_reachable_and_activates_nothing(place, monkeypatch):
    path = place.folder / "conda.sh"
    monkeypatch.setattr(conda_install, "PROFILE", str(path))
    place.install(owner="root", prefix=str(place.folder / "root"), profile=True)
    said = subprocess.run(
        ["bash", "-c", f'. {path}; . {path}; type -t conda; conda --version; echo "${{CONDA_PREFIX:-none}}"'],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/"},
    )
    assert said.stdout.split("\n")[:3] == ["function", "conda 26.5.3", "none"]
    assert not place.install(owner="root", prefix=str(place.folder / "root"), profile=True)["changed"]


def test_roots_login_never_reads_a_script_of_another_user(place, monkeypatch):
    path = place.folder / "conda.sh"
    monkeypatch.setattr(conda_install, "PROFILE", str(path))
    place.install(profile=True)
    assert "conda.sh" not in path.read_text() and f"{place.prefix}/condabin" in path.read_text()


def test_a_user_that_is_not_there(place):
    assert refusal(place, owner="gp-nobody-here").code == "conda.no_user"


def test_a_tilde_is_written_out(place):
    place.install(prefix=f"~{place.user}/.miniconda3")
    assert prefix_state(str(place.prefix))["state"] == "whole"


class Me:
    """An owner who is whoever runs this."""

    def become(self, umask):
        pass


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", [interrupt, object], ids=["Ctrl-C", "no plain data"])
def test_what_fails_as_the_owner_fails_here_and_no_copy_goes_on(function, tmp_path):
    me = os.getpid()
    try:
        with pytest.raises(RuntimeError):
            conda_common.as_owner(Me(), 0o022, function)
    finally:
        if os.getpid() != me:
            (tmp_path / "copy").touch()
            os._exit(1)
    assert not (tmp_path / "copy").exists()
