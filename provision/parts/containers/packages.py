"""The packages of NVIDIA's container toolkit: what is there, what comes, what of the old days goes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import Catalog, KnownBad
from provision.catalog.versions import key
from provision.facts import Facts
from provision.parts.candidates import Candidates
from provision.parts.containers.desired import ContainersConfig, ContainersDecision
from provision.parts.decision import join_and
from provision.parts.driver.installed import is_cuda_uri

# What apt is to be asked for, as apt.query's patterns.
PATTERNS = (r"docker\.io|podman|(nvidia-container|libnvidia-container).*",)
REPOSITORY = "NVIDIA's container toolkit repository"
# First toolkit that works with cgroup v2 (source: NVIDIA's libnvidia-container release notes of 1.8.0).
CGROUP_V2 = "1.8.0"
_PLACE = re.compile(r"/(?:libnvidia-container|nvidia-docker|nvidia-container-runtime)/")
# Entries of the host's sources that our own file replaces, as apt.configure's legacy_uris (normalised, no slash behind).
LEGACY_URIS = [r".*/(?:libnvidia-container|nvidia-docker|nvidia-container-runtime)(?:/.*)?$"]


def is_toolkit_uri(uri: str) -> bool:
    """True for NVIDIA's container repositories, today's and those of the old days, and mirrors that keep their path."""
    return _PLACE.search(uri.rstrip("/") + "/") is not None


def own_sources() -> str:
    """Path of our file for the toolkit's repository."""
    return str(apt_files.sources_path("container-toolkit"))


def toolkit_entries(facts: Facts) -> list[Any]:
    """Enabled apt entries of NVIDIA's container repositories that are not in our own file."""
    return [
        entry
        for entry in facts.apt.sources
        if entry.enabled
        and entry.file != own_sources()
        and "deb" in entry.types
        and any(map(is_toolkit_uri, entry.uris))
    ]


def entries_by_old_key(config: ContainersConfig, facts: Facts) -> list[Any]:
    """Entries of apt that stay, name no key, and may be a copy of NVIDIA's: they need the key where it is."""
    return [
        entry
        for entry in facts.apt.sources
        if entry.enabled
        and not entry.signed_by
        and any(
            "nvidia" in uri.lower()
            and uri.rstrip("/") != config.repo_url.rstrip("/")
            and not is_cuda_uri(uri)
            and not is_toolkit_uri(uri)
            for uri in entry.uris
        )
    ]


def old_keys_that_go(config: ContainersConfig, facts: Facts) -> list[str]:
    """Keyrings that NVIDIA's container key is taken out of: where that is certain, and no entry of apt that stays needs it."""
    if not config.remove_legacy or entries_by_old_key(config, facts):
        return []
    return sorted(path for path, certain in facts.containers.old_keys.items() if certain)


@dataclass(frozen=True)
class Installed:
    """The toolkit that dpkg knows of. versions: upstream version by package; whole: all there, configured, equal."""

    packages: dict[str, str]
    whole: bool
    version: str | None

    @property
    def versions(self) -> list[str]:
        return [f"{name} {version}" for name, version in sorted(self.packages.items())]


def installed_toolkit(facts: Facts, catalog: Catalog) -> Installed:
    """What is installed of the set of packages, and whether it is one version."""
    rows, wanted = facts.packages, catalog.container_toolkit.packages.set
    there = {name: rows[name] for name in wanted if name in rows and rows[name].status[1] not in "nc"}
    versions = {row.version for row in there.values()}
    whole = len(there) == len(wanted) and len(versions) == 1 and all(row.installed for row in there.values())
    found = {name: row.version for name, row in there.items()}
    return Installed(found, whole, _upstream(next(iter(versions))) if len(versions) == 1 else None)


def legacy_packages(facts: Facts, catalog: Catalog) -> list[str]:
    """Installed packages that the toolkit replaced."""
    rows = facts.packages
    listed = [*catalog.container_toolkit.legacy.remove_packages, "nvidia-container-runtime-hook"]
    return [name for name in listed if name in rows and rows[name].status[1] not in "nc"]


@dataclass(frozen=True)
class Limits:
    """What a version must be. least and most: bounds with their reasons, "" without one; most itself is too new."""

    least: str = ""
    least_because: str = ""
    below: str = ""
    below_because: str = ""

    def is_too_old(self, version: str) -> bool:
        return bool(self.least) and key(version) < key(self.least)

    def is_too_new(self, version: str) -> bool:
        return bool(self.below) and key(version) >= key(self.below)


def limits(facts: Facts, catalog: Catalog, consumers: dict[str, str]) -> Limits:
    """Bounds of the toolkit's version on a host.

    consumers: runtimes that read CDI specifications themselves, with their versions ("" not known). A toolkit from
    the catalog's ``toolkit_from`` on writes specifications that older ones cannot read.
    """
    least = CGROUP_V2 if facts.containers.cgroups == "v2" else ""
    below, why = "", ""
    for row in catalog.container_toolkit.min_runtime_versions:
        late = [
            f"{runtime} {version} (needs {needed})"
            for runtime, version in consumers.items()
            if row.toolkit_from and version and (needed := getattr(row, runtime)) and key(version) < key(needed)
        ]
        if late and (not below or key(str(row.toolkit_from)) < key(below)):
            below = str(row.toolkit_from)
            why = f"from {below} on it writes {row.because}, too new for {join_and(late)}"
    return Limits(least, "older ones cannot work with cgroup v2" if least else "", below, why)


class ToolkitChoice:
    """Chooses the toolkit's version for one host, and notes in ``out`` what decides."""

    def __init__(
        self, config: ContainersConfig, facts: Facts, catalog: Catalog, bounds: Limits, out: ContainersDecision
    ) -> None:
        self.config, self.facts, self.catalog, self.bounds, self.out = config, facts, catalog, bounds, out
        self.names = catalog.container_toolkit.packages.set
        self.have = installed_toolkit(facts, catalog)
        self.asked = config.version.split("-")[0]

    def choose(self, available: Candidates | None) -> tuple[str, dict[str, str]] | None:
        """Return (version, {package: Debian version} for apt).

        None with a blocker, or with nothing where apt has to be asked first (available None).
        """
        if self.asked and self.bounds.is_too_old(self.asked):
            self.out.block(
                "containers.too_old",
                f"container toolkit {self.asked} cannot work here",
                [f"{self.bounds.least_because}; {self.bounds.least} is the first that can"],
                'container_toolkit_version: "" takes the newest that is good',
            )
            return None
        kept = self._kept()
        if kept:
            return kept, {}
        if available is None:
            return None
        sets = self._sets(available)
        version = self._exactly(sets, available) if self.asked else self._newest(sets, available)
        return (_upstream(version), self._change(version)) if version else None

    def _newest(self, sets: list[str], available: Candidates) -> str | None:
        against = {version: self._against(_upstream(version)) for version in sets}
        good = [version for version in sets if not against[version]]
        if not good:
            self._refuse_candidates([f"{_upstream(v)}: {why}" for v, why in against.items()], sets, available)
            return None
        version, have = good[0], self.have
        # A set that stands in pieces is mended at its own version where the repository still has that.
        own = next((v for v in good if v in set(have.packages.values())), None)
        if own and not self.config.update and have.version and not have.whole:
            version, because = own, "it is installed and not whole; what is missing comes at the same version"
        else:
            because = f"the newest good one in {REPOSITORY}"
            newer = [f"{_upstream(v)} ({against[v]})" for v in sets[: sets.index(version)]]
            because += f"; passed over: {'; '.join(newer)}" if newer else ""
        self.out.reason("container toolkit", _upstream(version), because)
        self._explain_origins()
        return version

    def _known_bad(self, version: str) -> KnownBad | None:
        return next(iter(self.catalog.known_bad("container_toolkit", version)), None)

    def _against(self, version: str) -> str:
        """Why a version is not taken, "" for a good one."""
        bad = self._known_bad(version)
        if bad:
            return f"known to be bad: {bad.symptom}"
        if self.bounds.is_too_old(version):
            return self.bounds.least_because
        return self.bounds.below_because if self.bounds.is_too_new(version) else ""

    def _kept(self) -> str | None:
        """The installed version where it stays."""
        version, out = self.have.version, self.out
        if not self.have.whole or version is None:
            if self.have.packages:
                because = "the packages of the toolkit belong together at one version"
                out.reason("not whole", join_and(self.have.versions), because)
            return None
        if self.asked and self.asked != version:
            return None
        bad = self._known_bad(version)
        if not self.asked and bad:
            out.reason("replaced", version, f"it is known to be bad: {bad.symptom}")
            return None
        if self.bounds.is_too_old(version):
            out.reason("replaced", version, self.bounds.least_because)
            return None
        if self.config.update and not self.asked:
            return None
        if self.bounds.is_too_new(version):
            self._warn_too_new(
                version, "a newer runtime, or container_toolkit_update: true, which goes to a version that fits"
            )
        if bad:
            self._warn_bad(version, bad, f"asked for: container_toolkit_version {self.config.version}")
        because = "asked for" if self.asked else "it is installed; container_toolkit_update: true would update it"
        out.reason("container toolkit", version, because)
        return version

    def _sets(self, available: Candidates) -> list[str]:
        """Debian versions at which the whole set is offered, newest first; release candidates last."""
        offered = [{c.version for c in available.versions(name)} for name in self.names]
        common = set.intersection(*offered) if offered else set()
        return sorted(common, key=lambda v: ("~" not in v, key(_upstream(v)), key(v)), reverse=True)

    def _exactly(self, sets: list[str], available: Candidates) -> str | None:
        """The version that is asked for."""
        found = next((v for v in sets if self.config.version in (v, _upstream(v))), None)
        if found is None:
            nearest = [_upstream(v) for v in sets[:6]]
            self.out.block(
                "containers.version_not_offered",
                f"{REPOSITORY} does not have container toolkit {self.config.version} whole",
                [
                    *available.errors[:3],
                    f"it has {', '.join(nearest)}" if nearest else "it has no version of which all packages are there",
                ],
                f'container_toolkit_version: "{nearest[0]}", or "" for the newest that is good'
                if nearest
                else "check the repository and its mirror",
            )
            return None
        version = _upstream(found)
        bad = self._known_bad(version)
        if bad:
            self._warn_bad(version, bad, "it is asked for anyway")
        if self.bounds.is_too_new(version):
            rows = self.catalog.container_toolkit.min_runtime_versions
            self._warn_too_new(version, next(r.workaround for r in rows if r.toolkit_from == self.bounds.below))
        self.out.reason("container toolkit", version, "asked for")
        return found

    def _warn_too_new(self, version: str, way: str | None) -> None:
        message = f"container toolkit {version} writes specifications that are too new here"
        self.out.warn("containers.cdi_too_new", message, [self.bounds.below_because], way)

    def _warn_bad(self, version: str, bad: KnownBad, asked: str) -> None:
        self.out.warn("containers.known_bad", f"container toolkit {version}: {bad.symptom}", [asked], bad.fix)

    def _change(self, version: str) -> dict[str, str]:
        rows = self.facts.packages
        return {
            name: version
            for name in self.names
            if name not in rows or not rows[name].installed or rows[name].version != version
        }

    def _refuse_candidates(self, skipped: list[str], sets: list[str], available: Candidates) -> None:
        if skipped:
            self.out.block(
                "containers.no_good_version",
                f"no version in {REPOSITORY} is good for this host",
                skipped[:6],
                f'container_toolkit_version: "{_upstream(sets[0])}" takes one anyway',
            )
            return
        self.out.block(
            "containers.not_offered",
            f"{REPOSITORY} could not be read, or has no whole set of the toolkit's packages",
            available.errors[:4] or ["apt finds none of the packages there"],
            "make it reachable from the host (network, proxy), or set container_toolkit_repo_url to a mirror",
        )

    def _explain_origins(self) -> None:
        """Say what of other origins is passed over: pins and other repositories with packages of the same names."""
        pins = [
            f"{pin.file} ({pin.pin}, {pin.priority})"
            for pin in self.facts.apt.preferences
            if pin.priority > 500
            for beginnings in [tuple(word.rstrip("*") for word in pin.package.split() if word.rstrip("*"))]
            if any(name.startswith(beginnings) for name in self.names)
        ]
        if pins:
            because = "they prefer another origin; exact versions and holds override them"
            self.out.reason("pins", "; ".join(pins[:3]), because)
        uris = [uri for entry in self.facts.apt.sources if entry.enabled for uri in entry.uris]
        if any("/compute/cuda/repos/" in uri for uri in uris):
            because = "NVIDIA's CUDA repository has packages of the same names; two origins give mixed versions"
            self.out.reason("one origin", REPOSITORY, because)


def _upstream(version: str) -> str:
    return str(driver_names.upstream(version))
