"""What a release is, built and looked at: ``make release-check``. Needs the package index; nothing is published.

sdist, wheel and collection are built outside the checkout. The sdist may hold no link and nothing beyond what is listed in
pyproject.toml. All three are installed on each Python that is here, by the oldest and the newest pip that we name and by uv.
Then the ecosystem's own judges: twine, check-wheel-contents, validate-pyproject, pyroma, reuse, galaxy-importer, antsibull-docs,
ansible-test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each with the oldest pip that anybody has there: the one that came with its first release.
PYTHONS = {"3.11": "pip==22.3", "3.12": "pip==23.2.1", "3.13": "pip==24.2", "3.14": "pip==25.2"}
# Oldest and newest ansible-core that pyproject.toml allows, each with the oldest and newest Python that can run it.
CORES = {"ansible-core~=2.19.0": "3.11", "ansible-core~=2.21.0": "3.13"}
SDIST_MIB = 4
# What the modules run on, on hosts: Ubuntu 20.04 has 3.8.
HOST_PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
TOOLS = (
    "build",
    "twine",
    "check-wheel-contents",
    "validate-pyproject[all]",
    "pyroma",
    "reuse",
    "galaxy-importer",
    "antsibull-docs",
    "uv",
)
COLLECTION = "ansible_collections/gpu/provision"


def run(*argv: str | Path, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nerror: {' '.join(map(str, argv))} ended with {done.returncode}")
    return done.stdout


def say(text: str) -> None:
    sys.stdout.write(f"== {text}\n")
    sys.stdout.flush()


def python(version: str) -> str | None:
    """A Python of that version: one that pyenv keeps, or one on PATH (where pyenv's own stand-ins may lead to nothing)."""
    if shutil.which("pyenv"):
        root = Path(run("pyenv", "root").strip())
        for path in sorted(root.glob(f"versions/{version}.*/bin/python3")):
            return str(path)
    return shutil.which(f"python{version}")


def look_into(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        odd = [
            item.name
            for item in archive
            if not (item.isfile() or item.isdir()) or ":" in item.name or "/tests/" in item.name
        ]
    if odd or sdist.stat().st_size > SDIST_MIB << 20:
        sys.exit(
            f"error: {sdist.name} is {sdist.stat().st_size >> 10} KiB; links, tests and odd names in it: {odd[:5]}"
        )
    say(f"{sdist.name}: {sdist.stat().st_size >> 10} KiB, no links, no tests")


def documentation(tarball: Path, tools: Path, work: Path) -> None:
    """The pages of modules, roles and the callback, rendered as docs.ansible.com does; --fail-on-error leaves no error page."""
    run(tools / "bin/ansible-galaxy", "collection", "install", "--offline", "-p", work / "c", tarball, cwd=work)
    out = work / "pages"
    out.mkdir()
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    words = ("collection", "--use-current", "--squash-hierarchy", "--fail-on-error", "--dest-dir", out, "gpu.provision")
    run(tools / "bin/antsibull-docs", *words, cwd=work, ANSIBLE_COLLECTIONS_PATH=str(work / "c"), PATH=path)
    say(f"antsibull-docs: {len(list(out.glob('*_*.rst')))} pages of modules, roles and callbacks")


def install(dist: Sequence[Path], tarball: Path, uv: Path, work: Path) -> None:
    for version, oldest in PYTHONS.items():
        interpreter = python(version)
        if not interpreter:
            say(f"Python {version}: not installed here, not tried")
            continue
        for artefact in dist:
            for installer in (oldest, "pip", "uv"):
                place = work / "place"
                run(interpreter, "-m", "venv", place)
                pip = (place / "bin/python", "-m", "pip", "install", "--quiet")
                if installer == "uv":
                    run(uv, "pip", "install", "--quiet", "--python", place / "bin/python", artefact)
                else:
                    run(*pip, *([installer] if "==" in installer else ["--upgrade", installer]))
                    run(*pip, artefact)
                told = run(
                    place / "bin/provision", "compat", "--gpu", "H100", "--driver", "580", cwd=work
                ).splitlines()[0]
                run(
                    place / "bin/ansible-galaxy",
                    "collection",
                    "install",
                    "--offline",
                    "-p",
                    place / "c",
                    tarball,
                    cwd=work,
                )
                say(f"Python {version}, {installer}, {artefact.name}: {told}")
                shutil.rmtree(place)


def sanity(tarball: Path, work: Path) -> None:
    """ansible-test on the collection's own files. provision/ beside them is a Python package, judged by ruff and mypy."""
    places = [Path(found).parent for minor in HOST_PYTHONS if (found := python(minor))]
    for core, version in CORES.items():
        minor = core.removeprefix("ansible-core~=").rpartition(".")[0]
        interpreter = python(version)
        if not interpreter:
            say(f"ansible-test of {minor}: no Python {version} here, not tried")
            continue
        room = work / f"sanity-{minor}"
        tree = room / COLLECTION
        tree.mkdir(parents=True)
        run("tar", "xzf", tarball, "-C", tree)
        shutil.rmtree(tree / "provision")
        (tree / "tests/sanity").mkdir(parents=True)
        # What this core alone finds stands beside what all find: a line that ignores nothing is an error there.
        lists = (ROOT / "tests/sanity/ignore.txt", ROOT / f"tests/sanity/ignore-{minor}.txt")
        ignored = "".join(path.read_text() for path in lists if path.exists())
        (tree / f"tests/sanity/ignore-{minor}.txt").write_text(ignored)
        cache = room / "home/.ansible/test/cache"
        cache.mkdir(parents=True)
        for pip in ("20_3_4", "21_3_1", "24_2", "25_2", "25_3"):
            # In place of a download: the pip that Python itself carries.
            (cache / f"get_pip_{pip}.py").write_text("import ensurepip\nensurepip.bootstrap()\n")
        run(interpreter, "-m", "venv", room / "venv")
        run(room / "venv/bin/pip", "install", "--quiet", core)
        path = os.pathsep.join(map(str, [*places, os.environ["PATH"]]))
        out = run(room / "venv/bin/ansible-test", "sanity", "--venv", cwd=tree, HOME=str(room / "home"), PATH=path)
        seen = sorted(set(re.findall(r"test \S+ (?:on|with) Python (3\.\d+)", out)), key=lambda text: int(text[2:]))
        say(
            f"ansible-test sanity of ansible-core {minor}: {out.count('Running sanity test')} tests passed,"
            f" Python {', '.join(seen)}"
        )


def main() -> None:
    # make's own, by which the checkout counts as an installed collection: ansible-galaxy would have nothing to install.
    os.environ.pop("ANSIBLE_CONFIG", None)
    with tempfile.TemporaryDirectory(prefix="gpu-provision-release-") as folder:
        work = Path(folder)
        tools = work / "tools"
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin/pip", "install", "--quiet", *TOOLS)
        run(tools / "bin/pyproject-build", "--outdir", work / "dist", ROOT)
        (sdist,), (wheel,) = (work / "dist").glob("*.tar.gz"), (work / "dist").glob("*.whl")
        look_into(sdist)
        core = Path(sys.executable).parent
        run(core / "ansible-galaxy", "collection", "build", "--output-path", work, ROOT)
        (tarball,) = work.glob("gpu-provision-*.tar.gz")
        say(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB; {tarball.name}: {tarball.stat().st_size >> 10} KiB")
        run(tools / "bin/twine", "check", "--strict", sdist, wheel)
        run(tools / "bin/check-wheel-contents", wheel)
        run(tools / "bin/validate-pyproject", ROOT / "pyproject.toml")
        run(tools / "bin/pyroma", "--min", "9", ROOT)
        run(tools / "bin/reuse", "lint", "--quiet")
        say("twine, check-wheel-contents, validate-pyproject, pyroma (9 of 10 or better), reuse: passed")
        # ansible-lint and ansible-test run by themselves: make lint, and below.
        config = work / "importer.cfg"
        config.write_text("[galaxy-importer]\nRUN_ANSIBLE_LINT = False\nRUN_ANSIBLE_TEST = False\n")
        path = f"{tools / 'bin'}:{os.environ['PATH']}"
        importer = (tools / "bin/python", "-m", "galaxy_importer.main", tarball)
        out = run(*importer, cwd=work, GALAXY_IMPORTER_CONFIG=str(config), PATH=path)
        say(f"galaxy-importer: {out.strip().splitlines()[-1]}")
        documentation(tarball, tools, work)
        sanity(tarball, work)
        install([sdist, wheel], tarball, tools / "bin/uv", work)


if __name__ == "__main__":
    main()
