"""The files of the role cuda_toolkit for shells, module systems and the loader: what is in them, and which are too many.

Their text lies under roles/cuda_toolkit/files, with @name@ where a value goes in. What each kind of session sees of
them: docs/environment.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import provision.collection
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from provision.facts import Shells

# Folder of a toolkit's libraries below targets/, by dpkg's name of the architecture (source: NVIDIA's packages; arm64
# is their sbsa, servers). lib64 is a link to it.
TARGETS = {"amd64": "x86_64-linux", "arm64": "sbsa-linux"}


def wanted_files(
    versions: Sequence[str], default: str, *, ld_library_path: bool, shells: Shells, arch: str
) -> dict[str, str]:
    """Return {path: text} of every file that a host with these toolkits should have.

    versions: ``["12.4", "11.8"]``, in any order; default: one of them. ld_library_path: login shells export it.
    shells: what is installed to read such files. arch: dpkg's name. Nothing without versions. Raises ValueError for a
    default that is not among the versions and for an architecture without CUDA.
    """
    if not versions:
        return {}
    if default not in versions:
        raise ValueError(f"the default {default} is not among the toolkits {', '.join(versions)}")
    if arch not in TARGETS:
        raise ValueError(f"there is no CUDA for {arch}")
    login = {"ld_library_path": "true" if ld_library_path else "false"}
    files = {
        cuda_files.PROFILE: _text("gpu-provision-cuda.sh", **login),
        cuda_files.LD_SO_CONF: _text("ld.so.conf", folders=_folders(versions, default, arch)),
    }
    if shells.fish or shells.csh:
        files[cuda_files.SELECT] = _text("cuda-select.sh")
    if shells.fish:
        files[cuda_files.FISH] = _text("gpu-provision-cuda.fish", **login)
    if shells.csh:
        files[cuda_files.CSH] = _text("gpu-provision-cuda.csh", **login)
    for folder, suffix, source in (
        (shells.environment_modules, "", "modulefile.tcl"),
        (shells.lmod, ".lua", "modulefile.lua"),
    ):
        if folder:
            for version in versions:
                files[f"{folder}/cuda/{version}{suffix}"] = _text(source, version=version)
            files[f"{folder}/cuda/.version"] = _text("module.version", version=default)
    return files


def absent_files(own_files: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return the paths of own_files (facts.own_files: path -> sha256) that belong to this role and are not wanted."""
    return sorted(path for path in own_files if cuda_files.is_own(path) and path not in wanted)


def _folders(versions: Sequence[str], default: str, arch: str) -> str:
    newest_first = sorted(set(versions) - {default}, key=_key, reverse=True)
    return "\n".join(f"/usr/local/cuda-{version}/targets/{TARGETS[arch]}/lib" for version in [default, *newest_first])


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _text(name: str, **values: str) -> str:
    text = _source(name)
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


@cache
def _source(name: str) -> str:
    return (provision.collection.ROOT / "roles/cuda_toolkit/files" / name).read_text(encoding="utf-8")
