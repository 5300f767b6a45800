"""What a Python package index says: releases, their Pythons, and the CUDA libraries that they require.

Its JSON interface: NAME/json has every file of every release and what the newest one requires, NAME/VERSION/json what
that release requires. The latter is read for releases that the catalog lacks; an index without it leaves them to people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provision.catalog import Catalog
from provision.catalog.update.place import Place, nothing
from provision.catalog.update.row import VERSION, Left, Row
from provision.catalog.versions import between, key, minor

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_WHEEL = re.compile(r"-cp(3)(\d{1,2})-.*linux.*_(x86_64|aarch64)\.whl$")


@dataclass(frozen=True)
class Project:
    """A project of the index. files: final releases to their files' names, without those that were withdrawn."""

    place: Place
    name: str
    files: dict[str, list[str]]
    newest: str
    newest_requires: dict[str, str]

    @property
    def origin(self) -> tuple[str, str]:
        return "python_" + self.name.replace("-", "_"), self.place.address(f"{self.name}/json")

    def requires(self, version: str) -> dict[str, str] | None:
        """What a release requires, name to specification; None where the index does not say."""
        if version == self.newest:
            return self.newest_requires
        data = self.place.json(f"{self.name}/{version}/json")
        return _required(data) if data else None

    def pythons(self, version: str, machine: str = "x86_64") -> list[str]:
        """Minors of Python that a release has a Linux wheel for, oldest first."""
        wheels = [_WHEEL.search(file) for file in self.files[version]]
        return sorted({f"{w[1]}.{w[2]}" for w in wheels if w and w[3] == machine}, key=key)


def read(place: Place, catalog: Catalog) -> Iterator[Row | Left]:
    """Yield what the index says of frameworks, cuDNN, NCCL and CUDA."""
    projects = {name: project for name in _names(catalog) if (project := _project(place, name))}
    if not projects:
        raise nothing(place, "NAME/json of torch, tensorflow, jax-cuda13-plugin, nvidia-cudnn-cu13 or another wheel")
    for name, found in projects.items():
        if name == "torch":
            yield from _torch(found, catalog)
        elif name == "tensorflow":
            yield from _tensorflow(found, catalog)
        elif name == "cuda-toolkit":
            yield from _toolkit(found, catalog)
    yield from _jax([p for name, p in projects.items() if name.startswith("jax-")], catalog)
    for library, known in (("cudnn", catalog.cudnn_versions), ("nccl", catalog.nccl_versions)):
        yield from _libraries(library, known, [p for n, p in projects.items() if n.startswith(f"nvidia-{library}-")])


def _names(catalog: Catalog) -> list[str]:
    majors = sorted(catalog.cuda_data.minor_version_compatibility)
    plugins = sorted({f"jax-{build.extra}-plugin" for build in catalog.frameworks.jax.builds})
    libraries = [f"nvidia-{library}-cu{major}" for library in ("cudnn", "nccl") for major in majors if major > 10]
    return ["torch", "tensorflow", *plugins, "cuda-toolkit", *libraries]


def _project(place: Place, name: str) -> Project | None:
    data = place.json(f"{name}/json")
    if data is None:
        return None
    releases = data.get("releases")
    files = {}
    for version, rows in (releases if isinstance(releases, dict) else {}).items():
        listed = [r for r in rows if isinstance(r, dict) and not r.get("yanked")] if isinstance(rows, list) else []
        if VERSION.match(version) and listed:
            files[version] = [str(row.get("filename")) for row in listed]
    info = data.get("info")
    newest = str(info.get("version")) if isinstance(info, dict) else ""
    return Project(place, name, dict(sorted(files.items(), key=lambda f: key(f[0]))), newest, _required(data))


def _required(data: dict[str, Any]) -> dict[str, str]:
    """Requirements for x86_64 Linux, by name: ">=12.5.82,<13.0"."""
    info = data.get("info")
    lines = info.get("requires_dist") if isinstance(info, dict) else None
    found: dict[str, str] = {}
    for line in lines if isinstance(lines, list) else []:
        match = _REQUIREMENT.match(str(line))
        marker = (match[3] or "") if match else ""
        if match and not ("aarch64" in marker and "x86_64" not in marker) and "win32" not in marker:
            found.setdefault(match[1].lower(), match[2].replace(" ", ""))
    return found


def _bound(requires: dict[str, str], pattern: str) -> tuple[str, str] | None:
    """(specification, the version that it names or begins with) of the first requirement whose name matches."""
    for name, spec in requires.items():
        version = re.search(r"(?:==|>=)([0-9][0-9.]{0,40}[0-9])(?![0-9.])", spec)
        if re.fullmatch(pattern, name) and version:
            return spec, version[1]
    return None


def _cuda(requires: dict[str, str]) -> str | None:
    found = _bound(requires, r"cuda-toolkit|nvidia-cuda-runtime(-cu\d+)?")
    return minor(found[1]) if found else None


def _new(project: Project, known: list[str]) -> list[str]:
    """Final releases that are newer than the oldest known one and not known."""
    return [v for v in project.files if v not in known and key(v) > min(map(key, known), default=())]


def _torch(project: Project, catalog: Catalog) -> Iterator[Row | Left]:
    known, tags = catalog.frameworks.torch.releases, catalog.frameworks.torch.tags
    source, table = {"source": project.origin[0]}, ("frameworks", "torch", "releases")
    listed = [*(v for v in known if v in project.files), *_new(project, list(known))]
    for version in (v for v in listed if project.pythons(v)):
        fields: dict[str, Any] = {}
        if version not in known or version == project.newest:
            requires = project.requires(version) or {}
            cuda, cudnn = _cuda(requires), _bound(requires, r"nvidia-cudnn-cu\d+")
            nccl = _bound(requires, r"nvidia-nccl-cu\d+")
            tag = "cu" + cuda.replace(".", "") if cuda else None
            if tag is None or cudnn is None or nccl is None:
                yield Left(
                    project.origin[1], f"torch {version}: the index does not say which CUDA, cuDNN and NCCL it requires"
                )
                continue
            if tag not in tags:
                yield Left(
                    project.origin[1], f"torch {version}: its CUDA {cuda} has no row in frameworks.yml, torch.tags"
                )
                continue
            fields = {"default": tag, "cudnn": cudnn[1], "nccl": nccl[1]}
            if version not in known:
                fields["offered"] = [tag]
                fields["note"] = "other CUDA builds than the default were not read"
                yield from _same_code(project, ("frameworks", "torch", "arch_lists"), version, catalog, tag)
        yield Row(table, version, fields | {"python": project.pythons(version)} | source, project.origin)


def _same_code(
    project: Project, table: tuple[str, ...], version: str, catalog: Catalog, tag: str | None = None
) -> Iterator[Row]:
    """Lists of code for a release that no list covers: those of the newest that has one, said to be inferred."""
    lists = catalog.frameworks.torch.arch_lists if tag else catalog.frameworks.tensorflow.arch_lists
    of_tag = [row for row in lists if tag is None or tag in row.tags]  # type: ignore[attr-defined]
    wanted = minor(version)
    for machine in sorted({getattr(row, "machine", "x86_64") for row in of_tag}, reverse=True):
        rows = [row for row in of_tag if getattr(row, "machine", "x86_64") == machine]
        if any(between(wanted, row.first, row.last) for row in rows):
            continue
        like = max(rows, key=lambda row: key(row.last))
        names: dict[str, Any] = {"first": wanted, "last": wanted}
        names |= {"tags": [tag]} if tag else {}
        names |= {"machine": machine} if machine != "x86_64" else {}
        yield Row(table, names, names | _code(like) | _inferred(like.last, project), project.origin)


def _code(row: Any) -> dict[str, Any]:
    return {"cc": list(row.cc)} | ({"ptx": row.ptx} if row.ptx else {})


def _inferred(like: str, project: Project) -> dict[str, Any]:
    return {"source": project.origin[0], "certainty": "inferred", "note": f"code as in {like}; not read"}


def _span(pythons: list[str]) -> list[str]:
    return [pythons[0], pythons[-1]]


def _tensorflow(project: Project, catalog: Catalog) -> Iterator[Row | Left]:
    data, source = catalog.frameworks.tensorflow, {"source": project.origin[0]}
    known = [*data.and_cuda, *(patch for row in data.releases.values() for patch in row.patches)]
    for version in _new(project, known):
        requires, own = project.requires(version) or {}, minor(version)
        cudnn, cuda = _bound(requires, r"nvidia-cudnn-cu\d+"), _cuda(requires)
        if cudnn is None or cuda is None or cuda not in catalog.cuda_data.minors or not project.pythons(version):
            yield Left(
                project.origin[1], f"tensorflow {version}: the index does not say which CUDA and cuDNN it requires"
            )
            continue
        row = data.releases.get(own)
        fields: dict[str, Any] = {"patches": [*(row.patches if row else ()), version]}
        if row is None:
            fields |= {"python": _span(project.pythons(version)), "cuda": cuda, "cudnn": minor(cudnn[1])}
            yield from _same_code(project, ("frameworks", "tensorflow", "arch_lists"), version, catalog)
        yield Row(("frameworks", "tensorflow", "releases"), own, fields | source, project.origin)
        yield _and_cuda(project, version, cudnn)
    newest = _bound(project.newest_requires, r"nvidia-cudnn-cu\d+")
    if project.newest in known and newest:
        yield _and_cuda(project, project.newest, newest)


def _and_cuda(project: Project, version: str, cudnn: tuple[str, str]) -> Row:
    spec = cudnn[0].removeprefix("==")
    table = ("frameworks", "tensorflow", "and_cuda")
    return Row(table, version, {"cudnn": spec, "source": project.origin[0]}, project.origin)


def _jax(plugins: list[Project], catalog: Catalog) -> Iterator[Row | Left]:
    data = catalog.frameworks.jax
    for version in sorted({v for p in plugins for v in p.files}, key=key):
        having = [p for p in plugins if version in p.files and p.pythons(version)]
        if not having or key(version) < min(map(key, data.releases), default=()):
            continue
        pythons = sorted({python for p in having for python in p.pythons(version)}, key=key)
        fields: dict[str, Any] = {"python": _span(pythons), "source": having[0].origin[0]}
        if not any(p.pythons(version, "aarch64") for p in having):
            fields["aarch64"] = False
        yield Row(("frameworks", "jax", "releases"), version, fields, having[0].origin)
        for plugin in having:
            if version not in data.releases or version == plugin.newest:
                yield from _jax_build(plugin, version, catalog)


def _jax_build(plugin: Project, version: str, catalog: Catalog) -> Iterator[Row | Left]:
    """What the plugin of a release loads: a row of its own, or a word where the row of several releases says otherwise."""
    extra = plugin.name.split("-")[1]
    requires = plugin.requires(version) or {}
    bounds = {
        "least": _bound(requires, r"nvidia-cuda-runtime(-cu\d+)?"),
        "cudnn": _bound(requires, r"nvidia-cudnn-cu\d+"),
        "nccl": _bound(requires, r"nvidia-nccl-cu\d+"),
    }
    said = {name: bound[1] for name, bound in bounds.items() if bound}
    if len(said) < len(bounds):
        yield Left(plugin.origin[1], f"jax {version}, {extra}: the index does not say which cuDNN and NCCL it requires")
        return
    said["least"] = minor(said["least"])
    builds = [row for row in catalog.frameworks.jax.builds if row.extra == extra]
    row = next((row for row in builds if between(version, row.first, row.last)), None)
    if row is None:
        like = max(builds, key=lambda build: key(build.last))
        names = {"extra": extra, "first": version, "last": version}
        fields = names | {"cuda": like.cuda} | said | _code(like) | _inferred(like.last, plugin)
        yield Row(("frameworks", "jax", "builds"), names, fields, plugin.origin)
        return
    other = [
        f"{name} {said[name]}, not {getattr(row, name)}" for name in said if not _same(said[name], getattr(row, name))
    ]
    if other and row.first == version == row.last:
        yield Row(
            ("frameworks", "jax", "builds"), {"extra": extra, "first": version, "last": version}, said, plugin.origin
        )
    elif other:
        row_of = f"the row of {row.first} to {row.last}"
        yield Left(plugin.origin[1], f"jax {version}, {extra}: {'; '.join(other)}: {row_of} has to be divided")


def _same(one: str, other: str) -> bool:
    """True for 9.8 and 9.8.0.87: the catalog may say less."""
    return key(one)[: len(key(other))] == key(other)


def _libraries(library: str, known: dict[str, tuple[int, ...]], projects: list[Project]) -> Iterator[Row]:
    """New wheels of cuDNN or NCCL, one row for those of the same CUDA majors."""
    found: dict[str, list[int]] = {}
    for project in projects:
        major = int(project.name.rsplit("-cu", 1)[1])
        for version in project.files:
            # .post1 is the same library, packed again
            if major not in known.get(version, ()) and ".post" not in version:
                found.setdefault(version, []).append(major)
    for majors in sorted({tuple(majors) for majors in found.values()}):
        origin = next(p.origin for p in projects if p.name.endswith(f"-cu{majors[-1]}"))
        versions = sorted((v for v, own in found.items() if tuple(own) == majors), key=key, reverse=True)
        fields = {"cuda_majors": list(majors), "list": versions, "source": origin[0]}
        yield Row((library, "versions"), None, fields, origin)


def _toolkit(project: Project, catalog: Catalog) -> Iterator[Row | Left]:
    releases = catalog.cuda_data.releases
    for version in _new(project, list(releases)):
        if minor(version) not in catalog.cuda_data.minors:
            yield Left(project.origin[1], f"CUDA {version}: cuda.yml has no row in minors for {minor(version)}")
            continue
        fields = {"driver": None, "source": project.origin[0], "certainty": "inferred"}
        fields["note"] = "seen as a wheel only; its driver was not read"
        yield Row(("cuda", "releases"), version, fields, project.origin)
