"""A wheel index: tiny wheels with real names and versions; torch is a stand-in that answers from the host's state."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from provision.collection import ROOT
from provision.lib import yaml_reader
from tests.lab.conda.packages import STANDIN, data

_DATE = (2026, 1, 1, 0, 0, 0)


def wheel(
    name: str, version: str, files: Mapping[str, bytes], requires: Iterable[str] = (), extras: Iterable[str] = ()
) -> tuple[str, bytes]:
    """Return (file name, bytes) of a pure wheel; requires: requirements as pip writes them; extras: names of extras."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.7\n"
    metadata += "".join(f"Provides-Extra: {item}\n" for item in extras)
    metadata += "".join(f"Requires-Dist: {item}\n" for item in requires)
    content = dict(files) | {
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_hash(text)},{len(text)}" for path, text in content.items()]
    content[f"{stem}.dist-info/RECORD"] = "\n".join([*rows, f"{stem}.dist-info/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, text in content.items():
            packed.writestr(zipfile.ZipInfo(path, _DATE), text)
    return f"{stem}-py3-none-any.whl", out.getvalue()


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def torch_files(version: str, build: Mapping[str, Any]) -> dict[str, bytes]:
    """Files of the stand-in torch. build: cuda (``12.4`` or None), cudnn, nccl, arch (compute capabilities)."""
    facts = {
        "version": version,
        "cuda": build.get("cuda"),
        "cudnn": build.get("cudnn"),
        "nccl": build.get("nccl"),
        "arch": build.get("arch") or (["7.0", "7.5", "8.0", "8.6", "9.0"] if build.get("cuda") else []),
    }
    files = {"torch/_build.py": f"BUILD = {facts!r}\n".encode()}
    for path in sorted((STANDIN / "torch").rglob("*.py")):
        files["torch/" + str(path.relative_to(STANDIN / "torch"))] = path.read_bytes()
    return files


def _frameworks() -> dict[str, Any]:
    return yaml_reader.load((ROOT / "tests/catalog/frameworks.yml").read_text(encoding="utf-8"))["torch"]


def torch_wheels() -> Iterable[tuple[str, str, bytes]]:
    """Yield (tag, file name, bytes) of torch for every release and tag of the catalog, and of the libraries it needs."""
    torch = _frameworks()
    seen = set()
    for version, release in torch["releases"].items():
        for tag in [*release["offered"], "cpu"]:
            cuda = torch["tags"][tag]["cuda"] if tag != "cpu" else None
            build = {
                "cuda": cuda,
                "cudnn": release["cudnn"] if cuda else None,
                "nccl": release["nccl"] if cuda else None,
                "arch": _arch(torch, tag, version) if cuda else [],
            }
            requires = ["filelock", "typing_extensions"]
            for library in ("cudnn", "nccl"):
                if build[library]:
                    name = f"nvidia-{library}-cu{cuda.split('.')[0]}"
                    requires.append(f"{name}=={build[library]}")
                    if (tag, name, build[library]) not in seen:
                        seen.add((tag, name, build[library]))
                        yield tag, *wheel(name, build[library], library_files(library, build[library]))
            local = f"{version}+{tag}"
            yield tag, *wheel("torch", local, torch_files(local, build), requires)


def library_files(library: str, version: str) -> dict[str, bytes]:
    """Files of a library wheel, ``nvidia/cudnn/lib/libcudnn.so.9``: text that names its version."""
    return {
        f"nvidia/{library}/__init__.py": b"",
        f"nvidia/{library}/lib/lib{library}.so.{version.split('.')[0]}": f"stand-in lib{library} {version}\n".encode(),
    }


def _arch(torch: Mapping[str, Any], tag: str, version: str) -> list[str]:
    minor = tuple(int(part) for part in version.split(".")[:2])
    for entry in torch["arch_lists"]:
        first, last = (tuple(int(part) for part in entry[key].split(".")) for key in ("first", "last"))
        if tag in entry["tags"] and first <= minor <= last and "machine" not in entry:
            return list(entry["cc"])
    return []


def write_index(folder: Path) -> None:
    """Write the index: ``folder/whl/cu124/torch/`` as PyTorch's has it, and ``folder/simple/numpy/`` for the rest."""
    for tag, file, content in torch_wheels():
        _put(folder / "whl" / tag, file, content)
    for spec in data()["wheels"]:
        module = spec["name"].replace("-", "_")
        standin = STANDIN / f"{module}.py"
        code = standin.read_text(encoding="utf-8") if standin.is_file() else ""
        files = {f"{module}/__init__.py": f'{code}__version__ = "{spec["version"]}"\n'.encode()}
        if "library" in spec:
            files = library_files(spec["library"], spec["version"])
        file, content = wheel(spec["name"], spec["version"], files, spec.get("requires", ()), spec.get("extras", ()))
        _put(folder / "simple", file, content)
        # PyTorch's index carries what torch needs from elsewhere, too.
        for tag in (folder / "whl").iterdir():
            _put(tag, file, content)
    for index in [folder / "simple", *(folder / "whl").iterdir()]:
        for project in index.iterdir():
            if project.is_dir():
                links = "".join(
                    f'<a href="{_quoted(file.name)}#sha256={_sha256(file)}">{file.name}</a>\n'
                    for file in sorted(project.glob("*.whl"))
                )
                (project / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _put(index: Path, file: str, content: bytes) -> None:
    project = index / file.split("-")[0].replace("_", "-").lower()
    project.mkdir(parents=True, exist_ok=True)
    (project / file).write_bytes(content)


def _quoted(name: str) -> str:
    return name.replace("+", "%2B")
