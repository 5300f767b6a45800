"""mirror: everything that a lock needs, in one folder, for hosts without internet. Changes no managed host."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.mirror import read as mirror_read
from provision import remote
from provision.catalog import Catalog, load_catalog
from provision.catalog.frameworks import MACHINES
from provision.documents import Document
from provision.errors import Exit, Issue, ProvisionError, UsageError
from provision.inventory import Host, mirror_layout
from provision.lock.model import Lock
from provision.lock.pin import place, read
from provision.mirror.keys import signer
from provision.mirror.make import CondaNeed, Made, Maker
from provision.mirror.need import Need, Upstream, needs
from provision.mirror.seen import seen_of
from provision.mirror.store import Store, here
from provision.parts.conda.desired import CondaConfig
from provision.parts.conda.prefix import choose_installer
from provision.parts.desired import Desired
from provision.runs.fleet import Fleet, Silent, Talk, ask_all


class MirroredGroup(BaseModel):
    """Packages of one Ubuntu release and architecture: asked are those of the lock, all are with what they need."""

    asked: int
    packages: dict[str, str] = Field(default_factory=dict)


class MirrorDocument(Document):
    """path: the folder, on ``where``; signed: fingerprint of its own key, None where the originals' signatures are kept."""

    schema_id: str = Field(default="provision/mirror/1", alias="schema")
    path: str = ""
    where: str = ""
    signed: str | None = None
    key_made: bool = False
    files: int = 0
    total_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    changed: bool = False
    removed: list[str] = Field(default_factory=list)
    groups: dict[str, MirroredGroup] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    verified: bool = False
    # of --verify: files that the manifest does not name
    extra: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Order:
    """What was asked for. lock: its file, None for the one beside the inventory; on: a host that has internet."""

    folder: str
    lock: Path | None = None
    on: str | None = None
    sign: str | None = None
    prune: bool = False
    archive: str = ""
    archive_key: str = ""
    also: tuple[str, ...] = ()
    # a folder on this machine
    wheels: str = ""


def run(fleet: Fleet, order: Order, talk: Talk | None = None) -> MirrorDocument:
    """Fill a mirror, or bring it up to the lock. Exit code 0; 1 where something that hosts have cannot be kept in it."""
    talk, catalog = talk or Silent(), load_catalog()
    values = next(iter(fleet.values.values()))
    path = order.lock or place(values)
    lock = read(path, values)
    seen, problems = _read(fleet, lock, talk)
    upstream = Upstream(order.archive, order.archive_key)
    wanted = needs(lock, seen, fleet.values, catalog, upstream, order.also)
    of_conda = list(_conda_needs(fleet, lock, seen, catalog))
    if not wanted and not of_conda:
        raise UsageError("mirror.nothing", f"{path} locks nothing", hint="provision apply, then provision lock")
    wheels = _wheels(order.wheels)
    key = signer(order.sign) if order.sign else None
    with _Place(fleet, order) as (store, where):
        talk.begin("filling the mirror", [where])
        try:
            made = Maker(store, key, order.prune, lambda text: talk.host(where, text)).run(wanted, of_conda, wheels)
        finally:
            talk.end()
    document = _document(made, wanted, store.root, where)
    document.signed, document.key_made = (key.fingerprint, key.made) if key else (None, False)
    document.notes += problems
    document.errors = [
        Issue(code="mirror.incomplete", message=problem, hint="a host that needs it must get it another way")
        for problem in made.problems
    ]
    return document.conclude([Exit.FAILED] if document.errors else [])


def _wheels(folder: str) -> list[Path]:
    found = sorted(Path(folder).expanduser().glob("*.whl")) if folder else []
    if folder and not found:
        raise UsageError(
            "usage.folder",
            f"there are no wheels in {folder}",
            hint="under the Python of the hosts: pip download --dest wheels gpu-provision==VERSION",
        )
    return found


def verify_on(fleet: Fleet, order: Order) -> MirrorDocument:
    """As verify, for a mirror that lies on a host."""
    with _Place(fleet, order) as (store, where):
        return verify(store.root, store.call, where)


def verify(folder: str, call: Callable[..., Any] = here, where: str = "this machine") -> MirrorDocument:
    """Compare every file with the manifest. Exit code 3 where one is missing or another."""
    store = Store(_absolute(folder, None), call, {})
    opened = store.ask("open", create=False)
    document = MirrorDocument(path=store.root, where=where, signed=opened["manifest"].get("signed"), verified=True)
    start: int | None = 0
    while start is not None:
        answer = store.ask("verify", start=start)
        document.errors += [
            Issue(
                code="mirror.damaged",
                message=f"{row['path']}: {row['problem']}",
                hint="provision mirror fetches it again",
            )
            for row in answer["bad"]
        ]
        start = answer["next"]
    document.files, document.total_bytes, document.extra = answer["files"], answer["bytes"], answer["extra"]
    return document.conclude([Exit.CHECK_FAILED] if document.errors else [])


def _document(made: Made, wanted: Sequence[Need], root: str, where: str) -> MirrorDocument:
    asked = {need.label: len(need.asked) for need in wanted}
    return MirrorDocument(
        path=root,
        where=where,
        files=made.files,
        total_bytes=made.total_bytes,
        fetched=made.fetched,
        fetched_bytes=made.fetched_bytes,
        changed=made.changed,
        removed=made.removed,
        notes=made.stayed,
        groups={
            label: MirroredGroup(asked=asked[label], packages=packages)
            for label, packages in made.packages.items()
            if label in asked
        },
    )


# --- hosts


def _read(fleet: Fleet, lock: Lock, talk: Talk) -> tuple[dict[str, Any], list[str]]:
    """What hosts of the lock say of themselves; and who did not answer."""
    hosts = [host for host in fleet.hosts if host.name in lock.hosts]

    def ask(host: Host, session: remote.Session) -> Any:
        answer = session.call("mirror.read", {"conda": _environments(lock, host.name)})
        return seen_of(host.name, answer)

    answers = ask_all(fleet, hosts, "reading", ask, talk)
    seen = {name: answer for name, answer in answers.items() if not isinstance(answer, ProvisionError)}
    problems = [
        f"{name} was not read: {answer.issue.message}"
        for name, answer in answers.items()
        if isinstance(answer, ProvisionError)
    ]
    return seen, problems


def _environments(lock: Lock, name: str) -> list[str]:
    locked = lock.for_host(name)
    if locked is None:
        return []
    of_group = [path for one in locked.group.conda.values() for path in one.environments]
    return sorted({*of_group, *locked.host.environments})


def _conda_needs(fleet: Fleet, lock: Lock, seen: Mapping[str, Any], catalog: Catalog) -> Iterable[CondaNeed]:
    for name, group in lock.groups.items():
        hosts = [host for host in lock.members(name) if host in fleet.values]
        if not group.conda or not hosts:
            continue
        values = fleet.values[hosts[0]]
        config = Desired(values).conda_given
        need = CondaNeed(group.arch, alias=config.channel_alias)
        for locked in group.conda.values():
            version = config.version or locked.version
            installer, url = choose_installer(
                replace(config, distribution=locked.distribution, version=version, installer_file=""),
                catalog,
                MACHINES.get(group.arch, group.arch),
            )
            if not installer.sha256:
                raise UsageError(
                    "mirror.unpinned",
                    f"{installer.file} has no checksum: its content moves under its name",
                    hint="set miniconda_version to an exact one",
                )
            need.installers.append({"file": installer.file, "url": url or installer.url, "sha256": installer.sha256})
        need.environments = [env for host in hosts if host in seen for env in seen[host]["conda"].values()]
        channels = [*config.channels, *(channel for env in config.environments for channel in env.channels)]
        need.channels = list(dict.fromkeys([*channels, "conda-forge"]))
        need.indexes = _indexes(config, need.environments, catalog)
        yield need


def _indexes(config: CondaConfig, environments: Sequence[Mapping[str, Any]], catalog: Catalog) -> list[str]:
    """Simple indexes in which wheels are looked for: PyTorch's of each CUDA that versions name, then pip's own."""
    base = (config.wheel_index_url or catalog.frameworks.torch.index_url.removesuffix("/{tag}")).rstrip("/")
    tags = sorted({str(w["version"]).partition("+")[2] for env in environments for w in env["wheels"]} - {""})
    own = config.pip_index_url or _pips_own()
    return list(dict.fromkeys([*(f"{base}/{tag}" for tag in tags), *([own] if own else [])]))


def _pips_own() -> str | None:
    """The index that pip on this machine has as its own: a host does not decide where a mirror looks for wheels."""
    spec = importlib.util.find_spec("pip")
    return mirror_read.pip_index(Path(spec.origin).parents[1]) if spec and spec.origin else None


# --- the place


class _Place:
    """A context: the folder here, or on a host over one session; and how messages name where that is."""

    def __init__(self, fleet: Fleet, order: Order) -> None:
        self._fleet, self._order = fleet, order
        self._session: remote.Session | None = None

    def __enter__(self) -> tuple[Store, str]:
        order = self._order
        root = _absolute(order.folder, order.on)
        if order.on is None:
            return Store(root, here, {}), "this machine"
        host = next((one for one in self._fleet.hosts if one.name == order.on), None)
        if host is None:
            raise UsageError(
                "usage.host",
                f"there is no host {order.on} in the inventory (or -l leaves it out)",
                hint="--on names a host of the inventory that has internet",
            )
        self._session = remote.open_session(host)
        environment = Desired(self._fleet.values[host.name]).proxy.environment
        return Store(root, self._session.call, environment), host.name

    def __exit__(self, *exception: object) -> None:
        if self._session is not None:
            self._session.close()
        remote.close_shared()


def _absolute(folder: str, on: str | None) -> str:
    if on is None:
        return str(Path(folder).expanduser().resolve())
    if not folder.startswith("/"):
        raise UsageError(
            "usage.folder",
            f"{folder} is no absolute path",
            because=[f"the folder is on {on}"],
            hint=f"write /srv/{folder}",
        )
    return folder.rstrip("/")


def manifest_of(folder: Path) -> Path:
    """Path of the manifest of a mirror on this machine. Raises UsageError where there is no mirror."""
    path = folder.expanduser().resolve() / mirror_layout.MANIFEST
    if not path.is_file():
        raise UsageError("mirror.none", f"there is no mirror in {folder}", hint="provision mirror DIR makes one")
    return path
