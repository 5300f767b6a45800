"""What a scan shows of CUDA: toolkits, cuDNN, NCCL, nvcc, people's own lines. Pure functions of facts."""

from __future__ import annotations

import re
from collections.abc import Iterable

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.facts import Cuda, Facts, Package, Toolkit

LINK = "/usr/local/cuda"


def describe_cuda(facts: Facts) -> str | None:
    """Return CUDA, cuDNN and NCCL of a host as a short text; None where there is none."""
    parts = []
    known = {toolkit.version for toolkit in facts.cuda.toolkits if toolkit.version} or set(_parts(facts))
    known = known or {_minor(version) for version in facts.cuda_dirs.values() if version}
    if known:
        parts.append(f"CUDA {', '.join(sorted(known, key=_key))}")
    parts += [f"cuDNN {version}" for version in sorted({cuda_names.upstream(v) for _, v, _ in _cudnn(facts)}, key=_key)]
    nccl = facts.packages.get("libnccl2")
    if nccl and nccl.installed:
        parts.append(f"NCCL {cuda_names.upstream(nccl.version)}")
    return ", ".join(parts) or None


def cuda_lines(facts: Facts) -> list[str]:
    """Return the layer CUDA: a line a toolkit, the default's way, the nvcc of a login, lines that people wrote."""
    cuda, parts = facts.cuda, _parts(facts)
    default = next((link.resolved for link in cuda.links if link.path == LINK), None)
    lines = [_toolkit(toolkit, parts, toolkit.path == default) for toolkit in cuda.toolkits]
    there = {toolkit.version for toolkit in cuda.toolkits}
    lines += [
        f"{version}: {len(names)} packages, no toolkit on the disk"
        for version, names in parts.items()
        if version not in there
    ]
    left = sorted(set(facts.cuda_dirs) - {toolkit.path for toolkit in cuda.toolkits})
    lines += [f"no toolkit in {', '.join(left)}"] if left else []
    lines += [_way(cuda)] if len(cuda.toolkits) > 1 and default else []
    lines += [line for line in (_nvcc(cuda), _people(cuda)) if line]
    return lines


def cudnn_lines(facts: Facts) -> list[str]:
    """Return the layer cuDNN: packages, and files that no package owns."""
    lines = [
        f"{cuda_names.upstream(version)}{f' for CUDA {cuda}' if cuda else ''} ({name})"
        for name, version, cuda in _cudnn(facts)
    ]
    return lines + _unowned(facts.cuda, "libcudnn.so.")


def nccl_lines(facts: Facts) -> list[str]:
    """Return the layer NCCL: the package, and files that no package owns."""
    nccl, headers = facts.packages.get("libnccl2"), facts.packages.get("libnccl-dev")
    lines = []
    if nccl and nccl.installed:
        cuda = cuda_names.suffix(nccl.version)
        with_headers = ", with headers" if headers and headers.installed else ""
        lines.append(f"{cuda_names.upstream(nccl.version)}{f' for CUDA {cuda}' if cuda else ''}{with_headers}")
    return lines + _unowned(facts.cuda, "libnccl.so.")


def _toolkit(toolkit: Toolkit, parts: dict[str, dict[str, Package]], default: bool) -> str:
    packages = parts.get(toolkit.version or "", {})
    texts = [toolkit.release or toolkit.version or "version not known"]
    usual = f"/usr/local/cuda-{toolkit.version}"
    texts += [f"in {toolkit.path}"] if toolkit.path != usual else []
    if toolkit.package:
        meta = next(
            (p.version for name, p in packages.items() if name.startswith("cuda-toolkit-") and _is_meta(name)), None
        )
        release = cuda_names.release(meta) if meta else None
        texts[0] = release if release and not toolkit.release else texts[0]
        texts.append(f"{len(packages)} packages{'' if meta else ', not the whole toolkit'}")
    else:
        texts.append("of no package" + (" (a runfile)" if toolkit.uninstaller else ""))
    texts += [] if toolkit.compiler else ["no compiler"]
    texts += ["the default"] if default else []
    return ", ".join(texts)


def _is_meta(name: str) -> bool:
    return re.fullmatch(r"cuda-toolkit-[0-9]+-[0-9]+", name) is not None


def _way(cuda: Cuda) -> str:
    group = next((group for group in cuda.alternatives if group.name == "cuda"), None)
    if group is None:
        return f"{LINK} is a link of its own"
    return f"{LINK} stays where it is" if group.manual else f"{LINK} follows the newest"


def _nvcc(cuda: Cuda) -> str | None:
    if not cuda.nvccs:
        return None
    first = next((nvcc for nvcc in cuda.nvccs if nvcc.on_path), None)
    others = len(cuda.nvccs) - (first is not None)
    more = f", {others} more" if others else ""
    if first is None:
        return f"nvcc: {len(cuda.nvccs)}, none on the PATH of a login"
    return f"nvcc at a login: {first.build or first.version or 'version not known'}, {first.path}{more}"


def _people(cuda: Cuda) -> str | None:
    files: dict[str, int] = {}
    for line in cuda.shell_lines:
        files[line.file] = files.get(line.file, 0) + 1
    if not files:
        return None
    named = [f"{file} ({count})" if count > 1 else file for file, count in files.items()]
    shown = ", ".join(named) if len(named) <= 3 else f"{', '.join(named[:3])} and {len(named) - 3} more"
    return f"{len(cuda.shell_lines)} lines about CUDA in start files: {shown}"


def _unowned(cuda: Cuda, soname: str) -> list[str]:
    return [
        f"{library.version or 'version not known'}, {library.path} (of no package)"
        for library in cuda.libraries
        if library.soname.startswith(soname) and library.package is None
    ]


def _parts(facts: Facts) -> dict[str, dict[str, Package]]:
    """Packages of CUDA releases by minor, in order."""
    found: dict[str, dict[str, Package]] = {}
    for name, package in facts.packages.items():
        parsed = cuda_names.parse(name)
        if package.installed and parsed and parsed.kind == "toolkit" and parsed.version:
            found.setdefault(parsed.version, {})[name] = package
    return {version: found[version] for version in sorted(found, key=_key)}


def _cudnn(facts: Facts) -> Iterable[tuple[str, str, str | None]]:
    for name, package in facts.packages.items():
        parsed = cuda_names.parse(name)
        if package.installed and parsed and re.fullmatch(r"libcudnn[0-9]+", parsed.base):
            yield name, package.version, parsed.major or cuda_names.suffix(package.version)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
