"""Packages of the NVIDIA-like repository; its CUDA is in cuda_repo.py.

Driver packages carry their branch before 590, none from 590 on; pinning packages keep a host on a branch.

Relations below 590 are those of the archive's packaging of the same branch (both come from one source); from 590 on
they are those of 595 without the branch. Facts: NVIDIA's driver installation guide 580 to 620, as of 2026-11. The
program ``nvidia-smi`` is in ``nvidia-utils`` here from 590 on: the real name is not documented.
"""

from __future__ import annotations

import re

from . import archive, contents, cuda_repo
from .debfile import Package

# branch -> versions on the first day; versions published later
SUFFIXED = {
    "550": (["550.54.15", "550.163.01"], []),
    "570": (["570.172.08", "570.211.01"], []),
    "580": (["580.95.05", "580.126.20"], ["580.173.02", "580.178.04"]),
}
UNSUFFIXED = {
    "590": (["590.48.01"], []),
    "595": (["595.58.03", "595.71.05"], ["595.91.07"]),
    "610": (["610.43.02"], ["610.57.04"]),
    "615": (["615.71.09"], []),
    "620": (["620.70.06"], []),
}
_PIN = """\
# Keeps the NVIDIA driver at %(what)s. Installed by nvidia-driver-pinning-%(what)s.
Package: nvidia-* libnvidia-* libnvsdm* libxnvctrl* cuda-drivers* xserver-xorg-video-nvidia*
Pin: version %(glob)s
Pin-Priority: 1000
"""


def packages(ubuntu: str, *, drivers: bool = False, cuda: bool = False) -> list[Package]:
    """All packages of the repository for an Ubuntu release; drivers, cuda: with what was published later of each."""
    built: list[Package] = []
    # NVIDIA's repository for 26.04 starts at 595
    if ubuntu != "26.04":
        for branch, (first, later) in SUFFIXED.items():
            for upstream in first + (later if drivers else []):
                built += _suffixed(branch, upstream)
    for branch, (first, later) in UNSUFFIXED.items():
        if ubuntu == "26.04" and int(branch) < 595:
            continue
        for upstream in first + (later if drivers else []):
            built += _unsuffixed(branch, upstream)
    built += _pinning(ubuntu, drivers)
    built.append(cuda_repo.nvidia_package("nvlsm", "2026.03.1-1", {}))
    return built + cuda_repo.packages(ubuntu, later=cuda)


def _version(upstream: str) -> str:
    """Debian version; the revision changed with the naming (seen: 575.57.08-0ubuntu1, 595.71.05-1ubuntu1)."""
    return upstream + ("-0ubuntu1" if int(upstream.split(".")[0]) < 590 else "-1ubuntu1")


def _relations(branch: str) -> dict:
    noble = archive.relations()
    return noble["550-noble"] if branch == "550" else noble["580-noble"]


def _rewritten(data: dict, branch: str, upstream: str):  # type: ignore[no-untyped-def]
    """Yield (name, fields) of a source under another branch and version."""
    old_upstream = data["version"].rsplit("-", 1)[0]
    old_branch = old_upstream.split(".")[0]

    def rename(text: str) -> str:
        text = text.replace(data["version"], _version(upstream)).replace(old_upstream, upstream)
        return re.sub(rf"-{old_branch}(?=[-, )]|$)", f"-{branch}", text)

    for name, fields in data["packages"].items():
        yield (
            rename(name),
            {key: rename(", ".join(value) if isinstance(value, list) else str(value)) for key, value in fields.items()},
        )


def _suffixed(branch: str, upstream: str) -> list[Package]:
    version = _version(upstream)
    built = []
    for name, fields in _rewritten(_relations(branch), branch, upstream):
        flavour = "open" if name.endswith("-open") else "proprietary"
        base = re.sub(rf"-{branch}.*$", "", name)
        files, scripts, conffiles = contents.fill(base, branch, upstream, flavour, cuda=True)
        built.append(cuda_repo.nvidia_package(name, version, fields, files, scripts, conffiles))
    for flavour, meta in (("", "cuda-drivers"), ("-open", "nvidia-open")):
        driver = f"nvidia-driver-{branch}{flavour} (>= {upstream})"
        built.append(
            cuda_repo.nvidia_package(
                f"{meta}-{branch}", version, {"Depends": f"{driver}, nvidia-settings, nvidia-modprobe"}
            )
        )
    common = f"nvidia-kernel-common-{branch} (>= {upstream}), nvidia-kernel-common-{branch} (<= {upstream}-999)"
    built += _companions(branch, upstream, common)
    return built


def _companions(branch: str, upstream: str, depends: str) -> list[Package]:
    """Fabric manager and its like, which must equal the driver's version; no branch in the name from 590 on."""
    suffix = f"-{branch}" if int(branch) < 590 else ""
    built = []
    for base in ("nvidia-fabricmanager", "nvidia-fabricmanager-dev", "libnvidia-nscq", "nvidia-imex", "libnvsdm"):
        if base == "libnvsdm" and int(branch) < 570:
            continue
        files, scripts, conffiles = contents.fill(base, branch, upstream, "proprietary", cuda=True)
        fields = {"Depends": depends} if base == "nvidia-fabricmanager" else {}
        if suffix:
            fields |= {"Provides": base, "Conflicts": base}
        built.append(cuda_repo.nvidia_package(base + suffix, _version(upstream), fields, files, scripts, conffiles))
    # No branch in these names at any age.
    built += [
        cuda_repo.nvidia_package(name, _version(upstream), {})
        for name in ("nvidia-modprobe", "nvidia-settings", "libxnvctrl0")
    ]
    return built


def _unsuffixed(branch: str, upstream: str) -> list[Package]:
    version = _version(upstream)
    number = int(branch)
    built = []
    for name, fields in _rewritten(archive.relations()["595-noble"], "595", upstream):
        if name.endswith("-open"):
            flavour = "open"
        elif number >= 620 and name.startswith(
            ("nvidia-driver", "nvidia-dkms", "nvidia-kernel-source", "nvidia-headless")
        ):
            # the 620 guide: proprietary kernel modules removed
            continue
        else:
            flavour = "proprietary"
        plain = _plain(name, upstream)
        # The archive clamps with "<= VERSION-1", which a revision of 1ubuntu1 would not meet.
        relations = {
            key: _strip(plain, value, upstream).replace(f"(<= {upstream}-1)", f"(<= {version})")
            for key, value in fields.items()
        }
        base = re.sub(r"-open$", "", plain)
        files, scripts, conffiles = contents.fill(base, branch, upstream, flavour, cuda=True)
        built.append(
            cuda_repo.nvidia_package(
                plain, version, {k: v for k, v in relations.items() if v}, files, scripts, conffiles
            )
        )
    if number < 620:
        built.append(
            cuda_repo.nvidia_package(
                "cuda-drivers",
                version,
                {
                    "Provides": f"cuda-drivers-{branch}",
                    "Depends": f"nvidia-driver (>= {upstream}), nvidia-settings, nvidia-modprobe",
                    "Conflicts": "nvidia-driver-open",
                },
            )
        )
    built.append(
        cuda_repo.nvidia_package(
            "nvidia-open",
            version,
            {
                "Provides": f"nvidia-open-{branch}",
                "Depends": f"nvidia-driver-open (>= {upstream}), nvidia-settings, nvidia-modprobe",
                "Conflicts": "nvidia-driver" if number < 620 else "nvidia-driver (<< 620)",
            },
        )
    )
    built += _companions(branch, upstream, f"nvidia-kernel-common (= {version})")
    return built


def _plain(name: str, upstream: str) -> str:
    name = re.sub(rf"-595-{re.escape(upstream)}$", "", name)
    name = re.sub(r"-595(?=-|$)", "", name)
    return "nvidia-persistenced" if name == "nvidia-compute-utils" else name


def _strip(owner: str, relation: str, upstream: str) -> str:
    """Remove the branch from the names in a relation, and what then points to the package itself."""
    items: list[str] = []
    for item in relation.split(", "):
        name, _, rest = item.partition(" ")
        plain = _plain(name, upstream)
        text = plain + (" " + rest if rest else "")
        if plain != owner and text not in items:
            items.append(text)
    return ", ".join(items)


def _pinning(ubuntu: str, drivers: bool) -> list[Package]:
    built = []
    for branch, (first, later) in {**SUFFIXED, **UNSUFFIXED}.items():
        if int(branch) < 580 or (ubuntu == "26.04" and int(branch) < 595):
            continue
        versions = first + (later if drivers else [])
        for what, glob, version in [(branch, f"{branch}.*", f"{branch}-1ubuntu1")] + [
            (upstream, f"{upstream}-*", _version(upstream)) for upstream in versions
        ]:
            path = f"/etc/apt/preferences.d/nvidia-driver-pinning-{what}"
            fields = {
                "Provides": "nvidia-driver-pinning",
                "Conflicts": "nvidia-driver-pinning",
                "Replaces": "nvidia-driver-pinning",
            }
            files = {path: _PIN % {"what": what, "glob": glob}}
            package = cuda_repo.nvidia_package(f"nvidia-driver-pinning-{what}", version, fields, files, {}, [path])
            package.arch = "all"
            built.append(package)
    return built
