"""Conda packages and channels: real .tar.bz2 archives with real names, versions, builds and relations, nearly empty."""

from __future__ import annotations

import bz2
import hashlib
import importlib.metadata
import io
import json
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from provision.lib import yaml_reader

HERE = Path(__file__).parent
STANDIN = HERE / "standin"
DATA = HERE.parent / "data/conda.yml"
# Written over by the prefix where it stands in a file of bin/, as conda does with its own placeholder.
PLACEHOLDER = b"/opt/lab_placeholder"
# one time for everything: equal input gives equal archives
_TIME = 1_767_225_600


@cache
def data() -> dict[str, Any]:
    """What the lab's channels and wheel index hold."""
    return yaml_reader.load(DATA.read_text(encoding="utf-8"))


def archive(index: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return one .tar.bz2 package: index is its info/index.json, files its content by path (bin/* is executable)."""
    paths = [
        {
            "_path": name,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_in_bytes": len(content),
            **({"prefix_placeholder": PLACEHOLDER.decode(), "file_mode": "text"} if PLACEHOLDER in content else {}),
        }
        for name, content in sorted(files.items())
    ]
    info = {
        "info/index.json": json.dumps(dict(index), indent=1, sort_keys=True),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}, indent=1),
        "info/files": "".join(name + "\n" for name in sorted(files)),
    }
    if index.get("noarch") == "python":
        info["info/link.json"] = json.dumps({"noarch": {"type": "python"}, "package_metadata_version": 1})
    packed = {name: text.encode() for name, text in info.items()} | dict(sorted(files.items()))
    return bz2.compress(tar(packed), 1)


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), _TIME
            member.mode = 0o755 if name.startswith(("bin/", "condabin/")) else 0o644
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def pip_files() -> dict[str, bytes]:
    """The real pip of the Python that builds the lab, as files below site-packages."""
    found = {}
    for file in importlib.metadata.distribution("pip").files or ():
        path = Path(str(file.locate()))
        if "__pycache__" not in file.parts and file.parts[0] != ".." and path.is_file():
            found["site-packages/" + str(file)] = path.read_bytes()
    return found


def pip_version() -> str:
    return importlib.metadata.version("pip")


def standin_files() -> list[Path]:
    """The source of the stand-in conda."""
    return sorted((STANDIN / "lab_conda").rglob("*.py"))


def conda_files() -> dict[str, bytes]:
    """The stand-in conda, as files of a prefix."""
    program = (
        b"#!" + PLACEHOLDER + b"/bin/python -E\nimport os\nimport sys\n\n"
        b'sys.path.insert(0, "' + PLACEHOLDER + b'/lib/lab-conda")\nimport lab_conda\n\nsys.exit(lab_conda.main())\n'
    )
    files = {"bin/conda": program, "condabin/conda": program}
    for path in standin_files():
        files["lib/lab-conda/" + str(path.relative_to(STANDIN))] = path.read_bytes()
    files["etc/profile.d/conda.sh"] = (STANDIN / "conda.sh").read_bytes()
    return files


def build(channel: str, spec: Mapping[str, Any]) -> tuple[str, str, dict[str, Any], bytes]:
    """Return (subdir, file name, index, archive) of one package of data/conda.yml."""
    name, version, text = spec["package"].split("=")
    subdir = spec.get("subdir", "linux-64")
    index = {
        "name": name,
        "version": version,
        "build": text,
        "build_number": spec.get("number", _number(text)),
        "depends": spec.get("depends", []),
        "constrains": spec.get("constrains", []),
        "license": "none",
        "subdir": subdir,
        "arch": None if subdir == "noarch" else "x86_64",
        "platform": None if subdir == "noarch" else "linux",
        "timestamp": _TIME * 1000,
    }
    if spec.get("features"):
        index["track_features"] = spec["features"]
    files: dict[str, bytes] = {}
    if name == "pip":
        index["noarch"], files = "python", pip_files()
    for path, content in (spec.get("files") or {}).items():
        files[path] = str(content).encode()
    if "torch" in spec:
        from tests.lab.conda import wheels

        python = spec["torch"]["python"]
        files |= {
            f"lib/python{python}/site-packages/{path}": content
            for path, content in wheels.torch_files(version, spec["torch"]).items()
        }
    if not files:
        files[f"share/lab/{name}"] = f"{channel} {spec['package']}\n".encode()
    return subdir, f"{name}-{version}-{text}.tar.bz2", index, archive(index, files)


def _number(build: str) -> int:
    tail = build.rsplit("_", 1)[-1]
    return int(tail) if tail.isdigit() else 0


def write_channels(folder: Path) -> None:
    """Write every channel of data/conda.yml below a folder: ``folder/conda-forge/linux-64/repodata.json`` and its packages."""
    for channel, specs in data()["channels"].items():
        found: dict[str, dict[str, Any]] = {"linux-64": {}, "noarch": {}}
        for spec in _with_pip(specs):
            subdir, file, index, packed = build(channel, spec)
            target = folder / channel / subdir / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packed)
            record = {key: value for key, value in index.items() if value is not None}
            found[subdir][file] = record | {
                "md5": hashlib.md5(packed, usedforsecurity=False).hexdigest(),
                "sha256": hashlib.sha256(packed).hexdigest(),
                "size": len(packed),
            }
        for subdir, packages in found.items():
            target = folder / channel / subdir / "repodata.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            document = {"info": {"subdir": subdir}, "packages": packages, "packages.conda": {}, "repodata_version": 1}
            target.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _with_pip(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specs with ``pip`` at the version that is really in it."""
    return [spec | {"package": spec["package"].replace("pip=REAL=", f"pip={pip_version()}=")} for spec in specs]
