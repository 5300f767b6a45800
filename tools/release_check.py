"""What a release is, built and looked at: ``make release-check``. Needs the package index; nothing is published.

sdist, wheel and collection are built outside the checkout. The sdist may hold no link and nothing beyond what is listed in
pyproject.toml. All three are installed on each Python that is here, by the oldest and the newest pip that we name and by uv.
Then the ecosystem's own judges: twine, check-wheel-contents, validate-pyproject, pyroma, reuse, galaxy-importer, ansible-test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# The oldest: what Debian 12 and Python 3.11 came with.
PIPS = ("pip==23.0.1", "pip")
SDIST_MIB = 4
TOOLS = (
    "build",
    "twine",
    "check-wheel-contents",
    "validate-pyproject[all]",
    "pyroma",
    "reuse",
    "galaxy-importer",
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
    """A Python of that version: on PATH, or one that pyenv keeps."""
    found = shutil.which(f"python{version}")
    if not found and shutil.which("pyenv"):
        root = Path(subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip())
        found = next((str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python3"))), None)
    return found


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


def install(dist: Sequence[Path], tarball: Path, uv: Path, work: Path) -> None:
    for version in PYTHONS:
        interpreter = python(version)
        if not interpreter:
            say(f"Python {version}: not installed here, not tried")
            continue
        for artefact in dist:
            for installer in (*PIPS, "uv"):
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


def sanity(tarball: Path, work: Path, core: Path) -> None:
    """ansible-test on the collection's own files. provision/ beside them is a Python package, judged by ruff and mypy."""
    tree = work / "sanity" / COLLECTION
    tree.mkdir(parents=True)
    run("tar", "xzf", tarball, "-C", tree)
    shutil.rmtree(tree / "provision")
    (tree / "tests/sanity").mkdir(parents=True)
    for minor in ("2.19", "2.21"):
        shutil.copy(ROOT / "tests/sanity/ignore.txt", tree / f"tests/sanity/ignore-{minor}.txt")
    home = work / "home"
    cache = home / ".ansible/test/cache"
    cache.mkdir(parents=True)
    for version in ("21_3_1", "24_2", "25_2", "25_3"):
        # In place of a download: the pip that Python itself carries.
        (cache / f"get_pip_{version}.py").write_text("import ensurepip\nensurepip.bootstrap()\n")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    out = run(core, "sanity", "--venv", "--python", own, cwd=tree, HOME=str(home))
    say(f"ansible-test sanity on Python {own}: {out.count('Running sanity test')} tests passed")


def main() -> None:
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
        out = run(
            tools / "bin/python", "-m", "galaxy_importer.main", tarball, GALAXY_IMPORTER_CONFIG=str(config), PATH=path
        )
        say(f"galaxy-importer: {out.strip().splitlines()[-1]}")
        sanity(tarball, work, core / "ansible-test")
        install([sdist, wheel], tarball, tools / "bin/uv", work)


if __name__ == "__main__":
    main()
