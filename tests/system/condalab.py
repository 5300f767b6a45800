"""A user, a place on the disk, and the lab's conda on a web server: what the tests of conda's modules work with."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda import make_environment
from tests.lab.conda import Installer, Server, write_channels, write_index

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("useradd"), reason="needs root and useradd, to work as another user"
)


@dataclass
class Place:
    """One test's place: folder (everyone may look in), user with a home, a web server with the lab's conda."""

    folder: Path
    user: str
    home: Path
    web: Server
    installers: dict[Installer, str] = field(default_factory=dict)

    @property
    def prefix(self) -> Path:
        return self.home / ".miniconda3"

    def installer(self, **settings: Any) -> dict[str, Any]:
        """Put an installer on the web server; returns the arguments of conda_install that name it."""
        made = Installer(**settings)
        if made not in self.installers:
            Path(self.web.folder, made.file).write_bytes(made.content())
            self.installers[made] = made.sha256()
        return {
            "distribution": made.distribution,
            "version": made.version,
            "installer": made.file,
            "url": f"{self.web.url}/{made.file}",
            "file": "",
            "sha256": self.installers[made],
        }

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Arguments of conda_install for the user's own prefix."""
        wanted = {
            "prefix": str(self.prefix),
            "action": "install",
            "owner": self.user,
            "group": "",
            "umask": "022",
            "condarc": {"channels": ["conda-forge"]},
            "accept_tos": [],
            "profile": False,
            "shell_init": [],
            "cache_dir": str(self.folder / "cache"),
            "timeout": 120,
        }
        given = {} if "url" in changes or "file" in changes else self.installer()
        return wanted | given | changes

    def install(self, check: bool = False, **changes: Any) -> dict[str, Any]:
        answer: dict[str, Any] = conda_install.run(self.arguments(**changes), check)
        return answer

    def environment(self, check: bool = False, **changes: Any) -> dict[str, Any]:
        """Run conda_environment on the user's own prefix."""
        wanted = {
            "name": "py311",
            "prefix": str(self.prefix),
            "action": "create",
            "owner": self.user,
            "group": "",
            "umask": "022",
            "channels": [f"{self.web.url}/conda-forge"],
            "packages": ["python=3.11"],
            "pip": [],
            "file_kind": "",
            "file_content": "",
            "override_cuda": "",
            "library_path": False,
            "lib64_link": False,
            "export_to": str(self.folder / "exports"),
            "wish": {"name": "py311", "python": "3.11"},
            "timeout": 120,
        }
        answer: dict[str, Any] = make_environment.run(wanted | changes, check)
        return answer

    def inject(self, text: str) -> None:
        """Have the stand-ins die or pause: ``die=link``, ``pause=unpack:30``."""
        (self.home / ".lab-conda").write_text(text + "\n")

    def owners(self, path: Path) -> set[str]:
        """Names of the users who own what lies below a path."""
        found = {pwd.getpwuid(path.lstat().st_uid).pw_name}
        return found | {pwd.getpwuid(item.lstat().st_uid).pw_name for item in path.rglob("*")}

    def tree(self, path: Path) -> dict[str, tuple[int, int]]:
        """What lies below a path, with times and sizes: equal means that nothing was touched."""
        return {
            str(item.relative_to(path)): (item.lstat().st_mtime_ns, item.lstat().st_size)
            for item in path.rglob("*")
            if "__pycache__" not in item.parts and not item.is_dir()
        }


@pytest.fixture(scope="session")
def web_folder() -> Iterator[Path]:
    """Channels and a wheel index, made once."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-provision-conda-web-"))
    folder.chmod(0o755)
    write_channels(folder)
    write_index(folder)
    yield folder
    shutil.rmtree(folder)


def make_user(home: Path) -> str:
    """Make a user of our own whose home is a folder that exists; returns the name."""
    name = f"gp{uuid.uuid4().hex[:8]}"
    subprocess.run(["useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/bash", name], check=True)
    home.mkdir(parents=True)
    shutil.chown(home, name, name)
    return name


def remove_user(name: str) -> None:
    subprocess.run(["userdel", "--force", name], check=True, capture_output=True)


@pytest.fixture
def place(web_folder: Path) -> Iterator[Place]:
    """A fresh user and folder; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-provision-conda-"))
    folder.chmod(0o755)
    user = make_user(folder / "home")
    try:
        with Server(web_folder) as web:
            yield Place(folder, user, folder / "home", web)
    finally:
        remove_user(user)
        shutil.rmtree(folder)
