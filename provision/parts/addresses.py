"""Addresses of apt's sources: which repository one is of, and whether there can be one at it. Pure."""

from __future__ import annotations

import re

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from provision.facts import Source

# By path, whatever the server: a mirror keeps NVIDIA's layout.
_NAMES = (
    ("cuda", re.compile(r"/compute/cuda/repos/[a-z]+[0-9]+/")),
    ("container_toolkit", re.compile(r"/libnvidia-container/(?:stable|experimental)/|^nvidia\.github\.io/nvidia-")),
    ("ppa", re.compile(r"/graphics-drivers/ppa/ubuntu/")),
)


def name_of(uri: str) -> str | None:
    """Name of the catalog's repository that a URI is of, whatever release: cuda, container_toolkit, ppa; None for others."""
    plain = apt_sources.normalise(uri)
    return next((name for name, pattern in _NAMES if pattern.search(plain + "/")), None)


def is_nvidia(uri: str) -> bool:
    """True for what NVIDIA publishes, of the catalog or not."""
    plain = apt_sources.normalise(uri)
    return name_of(uri) is not None or bool(re.match(r"^(?:[a-z.]+\.)?nvidia\.(?:com|cn|github\.io)/", plain))


_VARIABLE = re.compile(r"[$`<>{}]|%[sd]|\b(?:VERSION|ARCH|DISTRO|CODENAME)\b")
# What stands below NVIDIA's folder of repositories: a distribution with its release in one word, then the processor in
# NVIDIA's word. Source: addresses in NVIDIA's installation guides and catalog repositories; the server's listing was not read.
_CUDA_PATH = re.compile(r"/compute/cuda/repos(?P<rest>/.*)?$")
_CUDA_SHAPE = re.compile(
    r"^/(?:[a-z]+[0-9]+|wsl-ubuntu|ubuntu[0-9]+)/(?:x86_64|sbsa|aarch64|arm64|ppc64el|ppc64le|cross-linux-[a-z0-9]+)$"
)
_CONTAINER_PATH = re.compile(r"^nvidia\.github\.io/libnvidia-container/(?:stable|experimental)/deb(?P<rest>/.*)?$")
_CONTAINER_SHAPE = re.compile(r"^/(?:amd64|arm64|ppc64el)$")
_PPA = re.compile(r"^ppa\.launchpad(?:content)?\.net/")
_SUITE = re.compile(r"^[a-z]+(?:-[a-z]+)?/?$")


def impossible(source: Source, uri: str, arch: str) -> str | None:
    """Why no repository can be at an entry's address, by its shape alone; None where one can."""
    bare = uri.replace("$(ARCH)", "")
    odd = [
        text for text in (bare, *(suite.replace("$(ARCH)", "") for suite in source.suites)) if _VARIABLE.search(text)
    ]
    if odd:
        return f"{odd[0]} has a variable in it that nobody filled in"
    if "//" in re.sub(r"^[A-Za-z+.-]+:/*", "", uri).rstrip("/") and is_nvidia(uri):
        return "a part of the address is empty (//)"
    plain = apt_sources.normalise(uri, arch)
    for path, shape, right in (
        (
            _CUDA_PATH,
            _CUDA_SHAPE,
            "repos/ubuntu2404/x86_64 (or sbsa): release without a dot, NVIDIA's word for the processor",
        ),
        (_CONTAINER_PATH, _CONTAINER_SHAPE, "stable/deb/amd64 (or arm64)"),
    ):
        match = path.search(plain)
        if match and not shape.match(match["rest"] or ""):
            return f"NVIDIA's addresses look like {right}"
    wrong = [suite for suite in source.suites if not _SUITE.match(suite)]
    if _PPA.match(plain) and wrong:
        return f"{wrong[0]} is no name of a release: Launchpad's are called noble, jammy, …"
    return None


_RELEASE = re.compile(r"/compute/cuda/repos/ubuntu(?P<year>[0-9]{2})(?P<month>[0-9]{0,2})/")


def no_release(uri: str) -> str | None:
    """``ubuntu2104``, where an address is that of a release for which NVIDIA has no repository: it has long-term ones only."""
    match = _RELEASE.search(apt_sources.normalise(uri) + "/")
    if not match or (match["month"] == "04" and int(match["year"]) % 2 == 0):
        return None
    return f"ubuntu{match['year']}{match['month']}"


def place(source: Source) -> str:
    """``/etc/apt/sources.list, line 3``."""
    return source.file if source.line is None else f"{source.file}, line {source.line}"
