"""Which cuDNN and which NCCL go with the toolkits and the GPUs of a host, header and library as one pair. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names
from provision.catalog import Catalog, Gpu
from provision.catalog.versions import key, same
from provision.errors import Issue
from provision.facts import Facts
from provision.parts.candidates import Candidate, Candidates, relations
from provision.parts.cuda.desired import LibraryConfig
from provision.parts.cuda.packages import by_version, is_there
from provision.parts.decision import distinct, join_and


@dataclass(frozen=True)
class Pick:
    """One library in one version. cuda: minor of the toolkit that it was chosen for."""

    config: LibraryConfig
    cuda: str
    # Debian version
    version: str
    # that it consists of, installed or to come
    packages: dict[str, str] = field(default_factory=dict)
    because: str = ""
    # GPUs that it has no code for
    late: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """cudnn or nccl"""
        return "nccl" if cuda_names.nccl_packages()[0] in self.packages else "cudnn"

    @property
    def major(self) -> str:
        """CUDA major that it serves."""
        return self.cuda.split(".")[0]

    @property
    def upstream(self) -> str:
        return str(cuda_names.upstream(self.version))


class Libraries:
    """Chooses cuDNN and NCCL for one host. minors: the toolkits; default: the one that counts where one has to.

    repository: where they come from, as text.
    """

    def __init__(
        self,
        facts: Facts,
        catalog: Catalog,
        available: Candidates | None,
        gpus: list[Gpu],
        minors: list[str],
        default: str,
        headers: bool,
        update: bool,
        repository: str,
    ) -> None:
        self.facts, self.catalog, self.available, self.gpus = facts, catalog, available, distinct(gpus)
        self.minors, self.default, self.headers, self.update = minors, default, headers, update
        self.repository = repository

    def per_major(self) -> list[str]:
        """One minor for every CUDA major: the default, else its newest; the default's major first, then newer ones first."""
        found: dict[str, str] = {self.default.split(".")[0]: self.default}
        for minor in sorted(self.minors, key=key, reverse=True):
            found.setdefault(minor.split(".")[0], minor)
        return list(found.values())

    # --- cuDNN ------------------------------------------------------------------------------------------------

    def cudnn(self, configs: list[LibraryConfig]) -> list[Pick] | Issue | None:
        """Return a pick for every config, the refusal, or None where apt has to be asked first."""
        options = [self._cudnn_options(config) for config in configs]
        if self.available is None:
            # What is there is enough only where it serves what would be served first, if that can be served at all.
            kept = self._assign(options) if all(options) else None
            first = int(self.per_major()[0].split(".")[0])
            can = any(
                first in majors and any(config.version is None or same(config.version, version) for config in configs)
                for version, majors in self.catalog.cudnn_versions.items()
            )
            return kept if kept and (not can or any(pick.major == str(first) for pick in kept)) else None
        for config, option in zip(configs, options, strict=True):
            if not option:
                return self._why_no_cudnn(config)
        found = self._assign(options)
        if found is None:
            return Issue(
                code="cuda.cudnn_side_by_side",
                message="these cuDNNs cannot be installed side by side",
                because=["one cuDNN of a major is installed at a time, whatever CUDA it is for"],
            )
        return found

    def _assign(self, options: list[list[Pick]]) -> list[Pick] | None:
        """One pick of every config, so that most CUDA majors are served and the default's is."""
        order = [minor.split(".")[0] for minor in self.per_major()]
        best: tuple[tuple[int, ...], list[Pick]] | None = None
        for choice in itertools.product(*options):
            # one cuDNN of a major is installed at a time
            if len({pick.upstream.split(".")[0] for pick in choice}) < len(choice):
                continue
            majors = {pick.major for pick in choice}
            newest = max(choice, key=lambda pick: key(pick.upstream))
            rank = (
                order[0] in majors,
                len(majors),
                -order.index(newest.major),
                -sum(len(pick.late) for pick in choice),
            )
            if best is None or rank > best[0]:
                best = (rank, list(choice))
        return best[1] if best else None

    def _cudnn_options(self, config: LibraryConfig) -> list[Pick]:
        found = []
        for cuda in self.per_major():
            if config.suffix and config.suffix.split(".")[0] != cuda.split(".")[0]:
                continue
            majors = [config.major] if config.major else ["9", "8"]
            pick = next(filter(None, (self._cudnn_pick(config, str(own), cuda) for own in majors)), None)
            if pick:
                found.append(pick)
        return found

    def _cudnn_pick(self, config: LibraryConfig, own: str, cuda: str) -> Pick | None:
        library, header = cuda_names.cudnn_packages(own, cuda.split(".")[0])
        kept = self._kept(config, cuda, library, header, self._cudnn_late)
        if kept or self.available is None:
            return kept
        rows = self._cudnn_candidates(own, cuda, config)
        known = self.catalog.cudnn_for(cuda, [gpu for gpu in self.gpus if gpu.cc], version=config.version)
        tried = [c for c in rows if known and known.because.startswith("what NVIDIA") and self._is_pair(c, known.pins)]
        drives = [c for c in rows if not self._cudnn_late(c.version)]
        if tried and drives and not self.update:
            chosen, because = tried[0], f"{known.because if known else ''}"
        elif drives:
            chosen, because = drives[0], f"the newest for CUDA {cuda} in {self.repository}"
        else:
            some = [c for c in rows if len(self._cudnn_late(c.version)) < len(self.gpus)]
            if not some:
                return None
            chosen, because = some[0], f"the newest for CUDA {cuda} that drives a part of the GPUs"
        if config.version and config.text != config.major:
            because = "asked for"
        pair = self._pair(library, header, chosen.version)
        return Pick(config, cuda, chosen.version, pair, because, self._cudnn_late(chosen.version))

    @staticmethod
    def _is_pair(candidate: Candidate, pins: Iterable[str]) -> bool:
        return f"{candidate.name}={candidate.version}" in pins

    def _cudnn_candidates(self, own: str, cuda: str, config: LibraryConfig) -> list[Candidate]:
        """What the repository has of a cuDNN major for a CUDA, newest first; with its headers where those are wanted."""
        assert self.available is not None  # noqa: S101
        library, header = cuda_names.cudnn_packages(own, cuda.split(".")[0])
        rows = [c for c in self.available.versions(library) if self._matches(config, c.version)]
        if int(own) < 9:
            rows = _by_suffix(rows, cuda)
        return [c for c in rows if not self.headers or self._available(header, c.version)]

    def _cudnn_late(self, version: str) -> tuple[str, ...]:
        """GPUs that a cuDNN (Debian version) has no code for."""
        upstream = str(cuda_names.upstream(version))
        return tuple(gpu.name for gpu in self.gpus if gpu.cc and not self.catalog.cudnn_drives(upstream, gpu.cc))

    def _why_no_cudnn(self, config: LibraryConfig) -> Issue:
        assert self.available is not None  # noqa: S101
        majors = [config.major] if config.major else ["9", "8"]
        minors = self.per_major()
        for cuda in minors:
            rows = [c for own in majors for c in self._cudnn_candidates(str(own), cuda, config)]
            if rows:
                newest = cuda_names.upstream(rows[0].version)
                return Issue(
                    code="cuda.cudnn_gpu",
                    message=f"no cuDNN {config.text} for CUDA {cuda} has code for {self._cards()}",
                    because=[self._least(newest), *self._ccs()],
                )
        every = LibraryConfig("auto")
        here = [c for cuda in minors for own in majors for c in self._cudnn_candidates(str(own), cuda, every)]
        if here and config.version:
            there = list(dict.fromkeys(cuda_names.upstream(c.version) for c in here))
            return Issue(
                code="cuda.cudnn_not_offered",
                message=f"{self.repository} has no cuDNN {config.text} for CUDA {_list(minors)}",
                because=[f"it has {', '.join(there[:6])}", *self.available.errors[:3]],
            )
        others = sorted(
            {
                package.major or cuda_names.suffix(c.version) or ""
                for name in self.available.packages
                if (package := cuda_names.parse(name))
                and package.kind == "cudnn"
                and package.cudnn in majors
                and package.base == f"libcudnn{package.cudnn}"
                for c in self.available.versions(name)
            }
            - {""},
            key=key,
        )
        what = f"cuDNN {config.text}" if config.version else "cuDNN"
        return Issue(
            code="cuda.cudnn_other_cuda",
            message=f"{self.repository} has no {what} for CUDA {_list(minors)}",
            because=[
                *([f"it has it for CUDA {', '.join(others)}"] if others else ["it has none at all"]),
                *self.available.errors[:3],
            ],
        )

    def _least(self, version: str) -> str:
        low = self.catalog.cudnn_min_cc(version)
        if low is None:
            return f"the newest of them is {version}"
        return f"cuDNN {version} needs compute capability {low[0]}" + ("" if low[1] else " (inferred)")

    # --- NCCL -------------------------------------------------------------------------------------------------

    def nccl(self, config: LibraryConfig) -> Pick | Issue | None:
        """Return the pick, the refusal, or None where apt has to be asked first."""
        library, header = cuda_names.nccl_packages()
        cudas = self.per_major() if config.version else self.per_major()[:1]
        for cuda in cudas:
            kept = self._kept(config, cuda, library, header, self._nccl_late)
            if kept:
                return kept
            if self.available is None:
                return None
            pick = self._nccl_pick(config, cuda)
            if pick:
                return pick
        return self._why_no_nccl(config, cudas)

    def _nccl_pick(self, config: LibraryConfig, cuda: str) -> Pick | None:
        assert self.available is not None  # noqa: S101
        library, header = cuda_names.nccl_packages()
        rows = self._nccl_candidates(config, cuda)
        late = {c.version: self._nccl_late(c.version) for c in rows}
        rows = [c for c in rows if not self.gpus or len(late[c.version]) < len(self.gpus)]
        if not rows:
            return None
        full = [c for c in rows if not late[c.version]] or rows
        pair = self.catalog.nccl_for(cuda, ubuntu=self._release())
        tried = [c for c in full if pair and self._is_pair(c, pair.pins)]
        tried = [] if self.update else tried
        chosen = (tried or full)[0]
        because = pair.because if tried and pair else f"the newest for CUDA {cuda} in {self.repository}"
        if config.version:
            because = "asked for"
        return Pick(
            config, cuda, chosen.version, self._pair(library, header, chosen.version), because, late[chosen.version]
        )

    def _release(self) -> str | None:
        version = self.facts.host.os.version_id
        return version if version in self.catalog.ubuntu_data.releases else None

    def _nccl_candidates(self, config: LibraryConfig, cuda: str) -> list[Candidate]:
        assert self.available is not None  # noqa: S101
        library, header = cuda_names.nccl_packages()
        rows = _by_suffix([c for c in self.available.versions(library) if self._matches(config, c.version)], cuda)
        return [c for c in rows if not self.headers or self._available(header, c.version)]

    def _nccl_late(self, version: str) -> tuple[str, ...]:
        """GPUs that the CUDA of the suffix does not compile for. Inferred: NCCL is built for what its CUDA knows."""
        built = cuda_names.suffix(version)
        known = {minor.version for minor in self.catalog.cuda_minors}
        if built not in known:
            return ()
        return tuple(
            gpu.name
            for gpu in self.gpus
            if gpu.cc and self.catalog.toolkit_support(str(built), gpu) not in ("native", "binary")
        )

    def _why_no_nccl(self, config: LibraryConfig, cudas: list[str]) -> Issue:
        assert self.available is not None  # noqa: S101
        library = cuda_names.nccl_packages()[0]
        rows = [c for cuda in cudas for c in self._nccl_candidates(config, cuda)]
        if rows:
            return Issue(
                code="cuda.nccl_gpu",
                message=f"no NCCL for CUDA {_list(cudas)} has code for {self._cards()}",
                because=[f"the newest is {rows[0].version}", *self._ccs()],
            )
        there = [c.version for c in self.available.versions(library) if cuda_names.suffix(c.version)]
        what = f"NCCL {config.text}" if config.version else "NCCL"
        matching = [v for v in there if self._matches(config, v)]
        code = "cuda.nccl_other_cuda" if matching or not config.version else "cuda.nccl_not_offered"
        return Issue(
            code=code,
            message=f"{self.repository} has no {what} for CUDA {_list(cudas)}",
            because=[
                f"it has {', '.join((matching or there)[:6])}" if there else "it has none at all",
                "libnccl2 works with one CUDA major: the one of its suffix",
                *self.available.errors[:3],
            ],
        )

    # --- shared -----------------------------------------------------------------------------------------------

    def _kept(
        self, config: LibraryConfig, cuda: str, library: str, header: str, late: Callable[[str], tuple[str, ...]]
    ) -> Pick | None:
        """The installed pair where it is what is wanted and whole."""
        if self.update and not config.revision and not (config.version and config.version.count(".") >= 3):
            return None
        rows = self.facts.packages
        have = rows.get(library)
        if have is None or not have.installed or not self._matches(config, have.version):
            return None
        built = cuda_names.suffix(have.version)
        package = cuda_names.parse(library, have.version)
        if package is None or package.kind == "distribution" or not _serves(built, package.major, cuda):
            return None
        pair = {library: have.version}
        if self.headers or is_there(rows, header):
            other = rows.get(header)
            beside = library == "libcudnn8" and any(
                is_there(rows, name) and not cuda_names.can_stand_beside(name, header) for name in rows
            )
            if not beside and (other is None or not other.installed or other.version != have.version):
                return None
            if other is not None:
                pair[header] = other.version
        for name in [name for name in pair if name != library]:
            for group in relations(rows[name].depends):
                for relation in group:
                    part = cuda_names.parse(relation.name)
                    if part and part.kind == package.kind and relation.name in rows:
                        if not rows[relation.name].installed or not relation.allows(rows[relation.name].version):
                            return None
                        pair[relation.name] = rows[relation.name].version
        lacking = late(have.version)
        if self.gpus and len(lacking) == len(self.gpus):
            return None
        because = "it is installed; cuda_toolkit_update: true would update it"
        return Pick(config, cuda, have.version, pair, because, lacking)

    @staticmethod
    def _matches(config: LibraryConfig, version: str) -> bool:
        """True when a Debian version is what is asked for: every part that the config names."""
        if config.version is None:
            return True
        if not same(config.version, str(cuda_names.upstream(version))):
            return False
        if config.suffix and cuda_names.suffix(version) != config.suffix:
            return False
        revision = version.rsplit("-", 1)[-1].split("+")[0]
        return config.revision is None or revision == config.revision

    def _available(self, name: str, version: str) -> Candidate | None:
        assert self.available is not None  # noqa: S101
        return next((c for c in self.available.versions(name) if c.version == version), None)

    def _pair(self, library: str, header: str, version: str) -> dict[str, str]:
        """Library, headers and what those need at exactly that version. Installed headers go along in any case."""
        found = {library: version}
        todo = [header] if self.headers or is_there(self.facts.packages, header) else []
        while todo:
            name = todo.pop()
            candidate = self._available(name, version)
            if candidate is None or name in found:
                continue
            found[name] = version
            for group in relations(candidate.depends):
                todo += [r.name for r in group if (p := cuda_names.parse(r.name)) and p.kind in ("cudnn", "nccl")]
        return found

    def _cards(self) -> str:
        return join_and([gpu.name for gpu in self.gpus])

    def _ccs(self) -> list[str]:
        return [f"{gpu.name} has compute capability {gpu.cc}" for gpu in self.gpus if gpu.cc]


def in_the_way(facts: Facts, available: Candidates | None, wanted: dict[str, str]) -> list[str]:
    """Installed cuDNN and NCCL packages that cannot stay beside what is wanted: by name, and by the Conflicts of candidates."""
    found = set()
    for name in facts.packages:
        package = cuda_names.parse(name)
        if package is None or package.kind != "cudnn" or name in wanted or not is_there(facts.packages, name):
            continue
        if any(_keep_out(available, name, facts.packages[name].version, w, v) for w, v in wanted.items()):
            found.add(name)
    while True:
        # cudnn9-cuda-12 and cudnn, which only lead to what goes
        more = {
            name
            for name, row in facts.packages.items()
            if name not in found
            and name not in wanted
            and is_there(facts.packages, name)
            and (package := cuda_names.parse(name))
            and package.kind == "cudnn"
            and any({r.name for r in group} & found for group in relations(row.depends))
        }
        if not more:
            return sorted(found)
        found |= more


def _keep_out(available: Candidates | None, name: str, version: str, wanted: str, at: str) -> bool:
    """True when an installed cuDNN package and a wanted one keep each other out, by either one's word or by the rule."""
    package = cuda_names.parse(name)
    # A package of headers is there from 9.10 on, with its conflict, whatever candidates there still are of it.
    by_rule = _same_own(name, wanted) or (package is not None and package.base.endswith("-headers"))
    return (
        (by_rule and not cuda_names.can_stand_beside(name, wanted))
        or _names_it(available, wanted, at, name, version)
        or _names_it(available, name, version, wanted, at)
    )


def _same_own(one: str, other: str) -> bool:
    left, right = cuda_names.parse(one), cuda_names.parse(other)
    return left is not None and right is not None and left.cudnn == right.cudnn


def _names_it(available: Candidates | None, wanted: str, at: str, name: str, version: str) -> bool:
    """True when the wanted version of a package conflicts with another by its own name."""
    candidate = next((c for c in available.versions(wanted) if c.version == at), None) if available else None
    return candidate is not None and any(
        relation.name == name and relation.allows(version)
        for group in relations(candidate.conflicts)
        for relation in group
    )


def without_conflicts(available: Candidates | None, picks: list[Pick]) -> tuple[dict[str, str], list[str]]:
    """Return the packages of several picks together, and those that had to be left out: headers of the older cuDNN."""
    together: dict[str, str] = {}
    for pick in picks:
        together.update(pick.packages)
    out = []
    for name in list(together):
        package = cuda_names.parse(name)
        if package and package.kind == "cudnn" and package.base.endswith("-dev"):
            others = {n: v for n, v in together.items() if not _same_own(n, name)}
            if any(_names_it(available, other, version, name, together[name]) for other, version in others.items()):
                out.append(name)
    return {n: v for n, v in together.items() if n not in out}, out


def _serves(suffix: str | None, major: str | None, cuda: str) -> bool:
    """True when a package built for a CUDA goes with a toolkit: the same major."""
    built = suffix.split(".")[0] if suffix else major
    return built == cuda.split(".")[0]


def _by_suffix(rows: list[Candidate], cuda: str) -> list[Candidate]:
    """Candidates whose suffix goes with a CUDA, best first: not above its minor, the newest; else the nearest above it.

    Source: the rule of NVIDIA's images (nccl.yml); a library of a later minor of the same major runs by
    minor-version compatibility.
    """
    fit = [c for c in rows if (s := cuda_names.suffix(c.version)) and s.split(".")[0] == cuda.split(".")[0]]
    below = [c for c in fit if key(str(cuda_names.suffix(c.version))) <= key(cuda)]
    above = [c for c in fit if c not in below]
    below.sort(
        key=lambda c: (by_version(driver_names.upstream(c.version)), key(str(cuda_names.suffix(c.version)))),
        reverse=True,
    )
    above.sort(key=lambda c: by_version(driver_names.upstream(c.version)), reverse=True)
    above.sort(key=lambda c: key(str(cuda_names.suffix(c.version))))
    return below + above


def _list(items: list[str]) -> str:
    return " or ".join(items)
