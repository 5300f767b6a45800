"""What the checkout is packed into, built once a test run: wheel and collection."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*argv, cwd, **env):
    # What makes the checkout importable must not help here.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "PYTHONPATH"))}
    done = subprocess.run(
        [str(item) for item in argv], cwd=cwd, env={**clean, "HOME": str(cwd), **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel's content in a folder of its own, as pip would install it; the wheel itself lies beside that folder."""
    out = tmp_path_factory.mktemp("wheel")
    run(BIN / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, ROOT, cwd=out)
    (path,) = out.glob("gpu_provision-*.whl")
    site = out / "site"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(site)
    return site


@pytest.fixture(scope="session")
def collection(tmp_path_factory):
    """The collection, built and installed by ansible-galaxy; its tarball lies beside that folder."""
    out = tmp_path_factory.mktemp("collection")
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", out, ROOT, cwd=out)
    (path,) = out.glob("gpu-provision-*.tar.gz")
    run(BIN / "ansible-galaxy", "collection", "install", "--offline", "-p", out / "collections", path, cwd=out)
    return out / "collections"


@pytest.fixture(scope="session")
def target(lab):
    """One lab host for all tests of playbooks here: the first of them finds it bare, the next one as the last one left it."""
    return lab.add([{"name": "target", "gpus": ["RTX 4090"], "nouveau": False, "sudo": "password"}])[0]
