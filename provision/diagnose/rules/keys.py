"""apt's keys: missing, rotated, empty, of the wrong form, in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from provision.catalog.models.ubuntu import Key
from provision.diagnose import queries, repositories
from provision.diagnose.candidates import apt
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Source
from provision.facts.diagnostics import Keyring, RepositoryList
from provision.parts import addresses

_WRONG = {
    "absent": "is not there",
    "empty": "is empty",
    "damaged": "holds no key (an error page, or a download that was interrupted)",
    "form": "has the other form than its name says: apt ignores it",
    "hidden": "may not be read by apt's own user (_apt)",
}

# Role variables that say where a repository is mirrored, and by which key.
_VARIABLES = {
    "cuda": ("nvidia_driver_repo", "cuda_toolkit_repo"),
    "container_toolkit": ("container_toolkit_repo",),
    "ppa": ("nvidia_driver_ppa",),
}


@dataclass(frozen=True)
class Trust:
    """One repository as apt sees it: its list, its entry, and the files of keys that the entry trusts."""

    row: RepositoryList
    source: Source
    rings: tuple[Keyring, ...]

    @property
    def usable(self) -> tuple[Keyring, ...]:
        good = ["ok", "keybox", "unknown", "unreadable"]
        if self.row.there and not self.row.fetched_signers:
            # apt took the list: this version reads the form, or runs as a user who may read the file.
            good += ["form", "hidden"]
        return tuple(ring for ring in self.rings if ring.state in good)

    @property
    def known(self) -> bool:
        """Every key that apt may take is known here."""
        return all(ring.state in ("ok", *_WRONG) for ring in self.rings)


def trusts(case: Case) -> list[Trust]:
    """Every repository with the keys that apt may take for it; those that are trusted without a key are left out."""
    diagnostics = apt(case)
    rings = {ring.path: ring for ring in diagnostics.keyrings}
    everywhere = tuple(ring for ring in diagnostics.keyrings if ring.path.startswith("/etc/apt/trusted.gpg"))
    found = []
    for row in diagnostics.lists:
        if repositories.gone(row.uri):
            # apt.dead_repository tells of it
            continue
        sources = [source for source in case.facts.apt.sources if source.enabled and _is_of(case, source, row)]
        # Where one entry of a repository names a key and another none, apt takes it for both.
        source = next((s for s in sources if s.signed_by), next(iter(sources), None))
        if source is None or any(s.trusted for s in sources):
            continue
        words = (source.signed_by or "").replace(",", " ").split()
        if any(word.startswith("embedded") for word in words):
            continue
        named = tuple(rings[word] for word in words if word in rings)
        found.append(Trust(row, source, named if any(word.startswith("/") for word in words) else everywhere))
    return found


def _is_of(case: Case, source: Source, row: RepositoryList) -> bool:
    wanted = apt_sources.repositories({"uris": [row.uri], "suites": [row.suite]}, case.facts.host.arch)
    return wanted[0] in apt_sources.repositories(source.model_dump(), case.facts.host.arch)


def _catalog_keys(case: Case) -> dict[str, Key]:
    return {key.long_id: key for key in case.catalog.repositories.keys.values()}


def _wanted(case: Case, trust: Trust) -> list[str]:
    """Ids of the keys that signed a repository: by the list that apt fetched, else by the catalog."""
    signers = trust.row.fetched_signers or trust.row.signers
    if signers:
        return list(signers)
    name = addresses.name_of(trust.row.uri) if repositories.is_vendors(trust.row.uri) else None
    repository = repositories.of_catalog(case, name) if name else None
    return [repository.fingerprint[-16:]] if repository and repository.fingerprint else []


def _key_repair(case: Case, trust: Trust, wanted: Sequence[str]) -> Repair:
    name = addresses.name_of(trust.row.uri)
    repository = repositories.of_catalog(case, name) if name else None
    path = next(
        (word for word in (trust.source.signed_by or "").replace(",", " ").split() if word.startswith("/")), None
    )
    known = repository.fingerprint[-16:] if repository and repository.fingerprint else ""
    given = name and any(case.values.get(f"{variable}_key") for variable in _VARIABLES[name])
    if name and (given or (known and (not wanted or known in wanted))):
        which = "the inventory's key" if given else f"the key {known}"
        return Repair(
            action="sources.key",
            words=f"write {which} for {addresses.place(trust.source)} ({trust.row.uri})",
            args={"name": name, "path": path, "entry": repositories.entry(trust.source)},
        )
    ident = f" ({wanted[0]})" if wanted else ""
    return queries.manual(
        f"get the key{ident} from who runs {trust.row.uri}, compare its fingerprint, "
        f"and put it into {path or 'a file of its own (Signed-By)'}"
    )


@rule("apt.key_missing")
def _missing(case: Case) -> Iterator[Found]:
    catalog = _catalog_keys(case)
    for trust in trusts(case):
        if not trust.known or (trust.rings and not trust.usable):
            # it is not known here, or apt.keyring_unusable tells of it
            continue
        if not trust.rings and not any(ring.state == "ok" for ring in apt(case).keyrings):
            # no key of this host was read
            continue
        have = {ident for ring in trust.usable for ident in ring.ids}
        wanted = _wanted(case, trust)
        if not wanted or any(ident in have for ident in wanted):
            continue
        evidence = [
            f"{trust.row.place}: {trust.row.uri} {trust.row.suite}",
            f"signed by {', '.join(map(_named(catalog), wanted))}",
        ]
        for ring in trust.usable:
            evidence.append(
                f"{ring.path}: {', '.join(_named(catalog)(key[-16:]) for key in ring.primaries) or 'no key'}"
            )
        old = [catalog[ident] for ident in have if ident in catalog and catalog[ident].retired]
        rotated = f"; the installed key was retired on {old[0].retired}" if old else ""
        yield Found(
            f"apt has no key {wanted[0]} for {trust.row.uri}{rotated}", evidence, _key_repair(case, trust, wanted)
        )


def _named(catalog: dict[str, Key]):  # type: ignore[no-untyped-def]
    def words(ident: str) -> str:
        key = catalog.get(ident)
        return f"{ident} (NVIDIA's, retired {key.retired})" if key and key.retired else ident

    return words


@rule("apt.keyring_unusable")
def _unusable(case: Case) -> Iterator[Found]:
    seen = set()
    for trust in trusts(case):
        if trust.usable or not trust.rings or not all(ring.state in _WRONG for ring in trust.rings):
            continue
        ring = trust.rings[0]
        if ring.path in seen or ring.path.startswith("/etc/apt/trusted.gpg"):
            continue
        seen.add(ring.path)
        repair = (
            queries.manual(f"chmod 644 {ring.path}")
            if ring.state == "hidden"
            else _key_repair(case, trust, _wanted(case, trust))
        )
        yield Found(
            f"{ring.path} {_WRONG[ring.state]}: apt cannot check {trust.row.uri}",
            (f"{trust.row.place}: Signed-By {trust.source.signed_by}", f"{ring.path}: {ring.state}"),
            repair,
        )


@rule("apt.key_legacy")
def _legacy(case: Case) -> Iterator[Found]:
    catalog = _catalog_keys(case)
    for ring in apt(case).keyrings:
        known = [catalog[key[-16:]] for key in ring.primaries if key[-16:] in catalog]
        if ring.path.startswith("/etc/apt/trusted.gpg") and known:
            ids = ", ".join(key.long_id for key in known)
            yield Found(
                f"{ring.path} trusts NVIDIA's key for every repository",
                (f"{ring.path}: {ids}",),
                queries.manual("give the source a Signed-By of its own, then remove the key from that file"),
            )


@rule("apt.key_sha1")
def _sha1(case: Case) -> Iterator[Found]:
    diagnostics, rule = apt(case), case.catalog.repositories.sha1
    key = case.catalog.repositories.keys[rule.key]
    if not diagnostics.verifier or diagnostics.verifier.rsplit("/", 1)[-1] not in rule.verifiers:
        return
    for trust in trusts(case):
        if key.long_id in _wanted(case, trust) and any(part in trust.row.uri for part in rule.affected):
            yield Found(
                f"apt on this release takes no signature of {key.long_id} any more",
                (f"{trust.row.place}: {trust.row.uri}", f"verifier: {diagnostics.verifier}", rule.text),
                queries.manual("use the repository of the release that runs here"),
            )
