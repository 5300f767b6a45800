"""Fill a mirror: resolve, fetch, write the indexes, keep or renew the signatures, note everything in the manifest."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.errors import HostFailedError, RefusedError
from provision.inventory import mirror_layout
from provision.mirror import conda
from provision.mirror.keys import Signer
from provision.mirror.need import Need
from provision.mirror.store import Store

Rows = list[dict[str, Any]]


@dataclass
class CondaNeed:
    """What hosts need of conda. installers: {"file", "url", "sha256"}; environments: what mirrorread says of each, by host."""

    arch: str
    installers: list[dict[str, str]] = field(default_factory=list)
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    alias: str = ""
    channels: list[str] = field(default_factory=list)
    # of wheels, in the order in which they are asked
    indexes: list[str] = field(default_factory=list)


@dataclass
class Made:
    """What came of it. fetched, bytes: new files; total: all that the manifest has; stayed: why parts were left as they are."""

    files: int = 0
    total_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    changed: bool = False
    removed: list[str] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # "24.04 amd64" -> name -> version
    packages: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass
class Maker:
    """One run. said: progress, for people."""

    store: Store
    signer: Signer | None = None
    prune: bool = False
    said: Callable[[str], None] = lambda text: None
    rows: Rows = field(default_factory=list)
    made: Made = field(default_factory=Made)

    def run(self, needs: Sequence[Need], conda_needs: Sequence[CondaNeed], wheels: Sequence[Path] = ()) -> Made:
        """Bring the mirror to what is needed; a second run fetches and changes nothing. Raises HostFailedError, RefusedError.

        wheels: files on this machine that go into the index of wheels.
        """
        opened = self.store.ask("open")
        if needs and not opened["apt"]:
            raise RefusedError(
                "mirror.no_apt",
                "there is no apt where the mirror is to be filled",
                because=["apt itself says what packages need"],
                hint="--on HOST names a host with Ubuntu or Debian and internet",
            )
        self.made.stayed += opened["warnings"]
        before = opened["manifest"]
        self._refuse_other_signature(before)
        resolved = [(need, self._resolve(need, before)) for need in needs]
        self._check_space(resolved, opened)
        for need, answer in resolved:
            if answer is None:
                self._stays(need, before)
                continue
            self.said(f"fetching packages of {need.label}")
            self._take(self.store.fetch(answer["packages"], self._say_of(f"packages of {need.label}")))
            self._indexes(need, answer)
            self.made.packages[need.label] = {row["name"]: row["version"] for row in answer["packages"]}
        if self.signer:
            self._take(self.store.ask("put", files={mirror_layout.KEY: self.signer.public}))
        for one in conda_needs:
            self._conda(one)
        for path in wheels:
            content = {"base64": base64.b64encode(path.read_bytes()).decode("ascii")}
            self._take(self.store.ask("put", files={f"{conda.FILES}/{path.name}": content}))
        self._write_indexes([w for one in conda_needs for env in one.environments for w in env["wheels"]], before)
        return self._finish(before)

    def _say_of(self, what: str) -> Callable[[str], None]:
        return lambda text: self.said(f"{what}: {text}")

    # --- apt

    def _refuse_other_signature(self, before: Mapping[str, Any]) -> None:
        """One folder has one kind of signature: hosts get one key, or none."""
        was, now = before.get("signed"), self.signer.fingerprint if self.signer else None
        if not before.get("packages") or was == now:
            return
        said = f"it is signed by {was}" if was else "it has the originals' signatures"
        raise RefusedError(
            "mirror.other_signature",
            "this mirror has another signature",
            because=[said],
            hint=(f"say --sign {was}" if was else "leave --sign away") + ", or make another in a new folder",
        )

    def _resolve(self, need: Need, before: Mapping[str, Any]) -> dict[str, Any] | None:
        """What apt says; None where the originals dropped what is locked and the mirror has all of it."""
        self.said(f"asking apt what {len(need.asked)} packages of {need.label} need")
        answer: dict[str, Any] = self.store.resolve(
            {
                "codename": need.codename,
                "arch": need.arch,
                "sources": need.sources,
                "sets": need.sets,
                "base": need.base,
                "present": self.store.root if self.signer else None,
            }
        )
        if not answer["missing"]:
            return answer
        have = before.get("packages", {}).get(need.label, {})
        asked = dict(item.split("=") for item in need.asked if "=" in item)
        if asked and all(have.get(name.split(":")[0]) == version for name, version in asked.items()):
            gone = ", ".join(f"{row['name']} {row['version']}" for row in answer["missing"][:3])
            self.made.stayed.append(
                f"{need.label}: the originals no longer have {gone}; the mirror does, and stays as it is"
            )
            return None
        raise HostFailedError(
            "mirror.version_gone",
            f"the repositories of {need.label} no longer have what is locked",
            because=[
                f"{row['name']} {row['version'] or ''}: "
                + (f"there is {', '.join(row['have'][:3])}" if row["have"] else "there is no such package")
                for row in answer["missing"][:8]
            ],
            hint="provision lock --update updates the lock; a mirror that is made with the lock keeps its versions for good",
        )

    def _check_space(self, resolved: Iterable[tuple[Need, Any]], opened: Mapping[str, Any]) -> None:
        known = opened["manifest"].get("files", {})
        todo = {
            r["path"]: r["size"]
            for _, answer in resolved
            for r in (answer or {}).get("packages", ())
            if r["path"] not in known
        }
        wanted = sum(todo.values())
        if wanted > opened["free"]:
            raise RefusedError(
                "mirror.disk_full",
                f"{wanted / 1e9:.1f} GB of packages do not fit",
                because=[f"free in {self.store.root}: {opened['free'] / 1e9:.1f} GB"],
                hint="make room, or name another folder",
            )

    def _stays(self, need: Need, before: Mapping[str, Any]) -> None:
        self.made.packages[need.label] = dict(before["packages"][need.label])
        mine = {mirror_layout.archive_path(need.arch), *(source["path"] for source in need.sources)}
        self.rows += [
            {"path": path, **row, "fetched": False}
            for path, row in before["files"].items()
            if any(path.startswith(one + "/") for one in mine)
        ]

    def _indexes(self, need: Need, answer: Mapping[str, Any]) -> None:
        places: dict[tuple[str, str], list[str]] = {}
        for source in need.sources:
            for suite in source["suites"].split():
                places.setdefault((source["path"], suite), str(source["components"]).split())
        for (path, suite), components in places.items():
            self.said(f"indexes of {path} {suite}")
            if self.signer:
                self._signed(path, suite, components, answer)
            else:
                self._kept(path, suite, components, answer)
        if not self.signer:
            self._vendor_keys(need, answer)

    def _kept(self, path: str, suite: str, components: list[str], answer: Mapping[str, Any]) -> None:
        """The original index and its signature: it lists more than is here, and nobody has to trust another key."""
        place = f"{path} {suite}"
        release = answer["releases"][place]
        items = self.store.ask(
            "kept",
            release=release,
            base=answer["bases"][place],
            path=path,
            suite=suite,
            components=components,
            archs=answer["archs"],
        )
        rows = self.store.fetch(items)
        self._take(rows)
        pairs = [[row["path"], _by_hash(row["path"], row["sha256"])] for row in rows]
        self._take(self.store.ask("link", pairs=pairs))
        folder = path if suite.endswith("/") else f"{path}/dists/{suite}"
        name = "InRelease" if "BEGIN PGP SIGNED MESSAGE" in release else "Release"
        files = {f"{folder}/{name}": release}
        if name == "Release":
            files[f"{folder}/Release.gpg"] = answer["signatures"][place]
        self._take(self.store.ask("put", files=files))

    def _signed(self, path: str, suite: str, components: list[str], answer: Mapping[str, Any]) -> None:
        """An index of what is here alone, signed by the user's key."""
        signer = self.signer
        if signer is None:
            raise AssertionError("only a mirror with a key is signed again")
        rows: dict[str, list[str]] = {}
        for package in answer["packages"]:
            for where, component in package["places"]:
                if package["repository"] == path and where == suite:
                    rows.setdefault(component, []).append(package["stanza"])
        answered = self.store.ask(
            "written",
            path=path,
            suite=suite,
            components=components,
            archs=answer["archs"],
            original=answer["releases"][f"{path} {suite}"],
            rows=rows,
            prune=self.prune,
        )
        self._take(answered["files"])
        folder, release = answered["folder"], answered["release"]
        if answered["same"]:
            self._take(answered["signed"])
            return
        files = {
            f"{folder}/Release": release,
            f"{folder}/Release.gpg": signer.detached(release),
            f"{folder}/InRelease": signer.clear(release),
        }
        self._take(self.store.ask("put", files=files))

    def _vendor_keys(self, need: Need, answer: Mapping[str, Any]) -> None:
        """Keys of the originals, where a host looks for them: it takes them by the fingerprint that the catalog has."""
        files: dict[str, Any] = {}
        for source in need.sources:
            content = {"base64": answer["keys"][source["name"]]}
            files[f"{mirror_layout.KEYS}/{source['path'].replace('/', '-')}.gpg"] = content
            if source.get("key_name"):
                files[f"{source['path']}/{source['key_name']}"] = content
        self._take(self.store.ask("put", files=files))

    # --- conda

    def _conda(self, need: CondaNeed) -> None:
        self.said("conda: installers, channels, wheels")
        installers = [
            {
                "path": f"{mirror_layout.INSTALLERS}/{one['file']}",
                "url": one["url"],
                "sha256": one["sha256"],
                "size": None,
            }
            for one in need.installers
        ]
        packages = [record for env in need.environments for record in env["packages"]]
        wheels = {(w["name"], w["version"], tuple(w["tags"])): w for env in need.environments for w in env["wheels"]}
        self.made.problems += [problem for env in need.environments for problem in env["problems"]]
        found = conda.channels(packages, need.alias, need.channels if need.environments else (), need.arch)
        self.made.problems += found.problems
        files = [*installers, *found.files]
        if wheels:
            answer = self.store.wheels(list(wheels.values()), need.indexes)
            self.made.problems += answer["problems"]
            files += [
                {"path": f"{conda.FILES}/{one['file']}", "url": one["url"], "sha256": one["sha256"], "size": None}
                for one in answer["files"]
            ]
        self._take(self.store.fetch(files, self._say_of("conda")))
        self._write_channels(found)

    def _write_channels(self, found: conda.Channels) -> None:
        paths = {place: f"{mirror_layout.CONDA}/{place[0]}/{place[1]}/repodata.json" for place in found.records}
        if not paths:
            return
        present = {} if self.prune else self.store.ask("get", paths=sorted(paths.values()))
        texts = {
            path: conda.repodata(place[1], found.records[place], present.get(path)) for place, path in paths.items()
        }
        self._take(self.store.ask("put", files=texts))

    def _write_indexes(self, wheels: Sequence[Mapping[str, Any]], before: Mapping[str, Any]) -> None:
        known = {} if self.prune else {path: row["sha256"] for path, row in before.get("files", {}).items()}
        known |= {row["path"]: row["sha256"] for row in self.rows}
        old = {path.split("/")[2] for path in known if path.startswith(mirror_layout.WHEELS + "/")}
        pages = conda.indexes(known, sorted({*conda.tags(wheels), *old}))
        if any(path.startswith(conda.FILES + "/") for path in known):
            self._take(self.store.ask("put", files=pages))

    # --- the end

    def _take(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows += rows

    def _finish(self, before: Mapping[str, Any]) -> Made:
        files = {row["path"]: {"sha256": row["sha256"], "size": row["size"]} for row in self.rows}
        packages = self.made.packages if self.prune else {**before.get("packages", {}), **self.made.packages}
        manifest = {"files": files, "packages": packages, "signed": self.signer.fingerprint if self.signer else None}
        answer = self.store.ask("finish", manifest=manifest, prune=self.prune)
        new = {row["path"]: row["size"] for row in self.rows if row["fetched"]}
        made = self.made
        made.fetched, made.fetched_bytes = len(new), sum(new.values())
        made.changed, made.removed = answer["changed"] or bool(new), answer["removed"]
        made.files, made.total_bytes = answer["files"], answer["total"]
        return made


def _by_hash(path: str, digest: str) -> str:
    folder = path.rpartition("/")[0]
    return f"{folder}/by-hash/SHA256/{digest}" if folder else f"by-hash/SHA256/{digest}"
