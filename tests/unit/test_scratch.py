"""Folders for temporary files: what killed processes left goes, what living ones have stays."""

import errno
import os
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch

SPACE = "".join(letter for letter in str(Path("/proc/self/ns/pid").readlink()) if letter.isdigit())
ME, MY_START = os.getpid(), scratch.started(os.getpid())
GONE = 4194399


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        (f"prove-{ME}-{MY_START}-{SPACE}-abcd", True),
        (f"prove-{ME}-{int(MY_START) + 1}-{SPACE}-abcd", False),
        (f"command-{GONE}-{MY_START}-{SPACE}-a_cd", False),
        (f"command-{GONE}-{MY_START}-{int(SPACE) - 1}-abcd", True),
        (f"prove-{ME}-abc", True),
        (f"prove-{GONE}-abc", False),
        ("prove-nobody", True),
        ("apt-abcd1234", True),
        ("12345678", True),
    ],
    # The names hold this process' number: workers of one run would not agree on them.
    ids=[str(number) for number in range(9)],
)
def test_a_folder_goes_with_its_process(tmp_path, name, stays):
    path = tmp_path / (scratch.PREFIX + name)
    path.mkdir()
    (path / "file").write_text("x")
    with scratch.Folder("new", str(tmp_path)) as fresh:
        assert Path(fresh).stat().st_mode & 0o777 == 0o700
        assert path.exists() is stays
    assert list(tmp_path.iterdir()) == ([path] if stays else [])


def test_links_files_and_folders_of_others_stay(tmp_path, monkeypatch):
    (tmp_path / "precious").mkdir()
    name = f"{scratch.PREFIX}prove-{GONE}-1-{SPACE}-"
    (tmp_path / f"{name}link").symlink_to(tmp_path / "precious")
    scratch.remove_left_behind(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / f"{name}other").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    scratch.remove_left_behind(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_with_such_a_name_is_no_folder(tmp_path):
    path = tmp_path / f"{scratch.PREFIX}prove-{GONE}-1-{SPACE}-file"
    path.touch()
    scratch.remove_left_behind(str(tmp_path))
    assert path.exists()


def test_what_another_process_still_writes_to_stops_nobody(tmp_path, monkeypatch):
    left = tmp_path / f"{scratch.PREFIX}command-{GONE}-1-{SPACE}-abcd"
    left.mkdir()

    def rmtree(path):
        if path == str(left):
            raise OSError(errno.ENOTEMPTY, "a file came meanwhile", path)
        Path(path).rmdir()

    monkeypatch.setattr(scratch.shutil, "rmtree", rmtree)
    with scratch.Folder("new", str(tmp_path)):
        assert left.exists()
