"""What the inventory asks of conda: the miniconda_* values, read and put in order. Data only.

``prefix_paths`` says where the probe has to look: pass it as the probe's ``conda_prefixes``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.facts import Facts
from provision.parts.decision import of_role

# Says where an installation lies that is only named, not asked for.
ENVIRONMENTS_PREFIX = "prefix of the environment"
_LISTS = ("packages", "pip", "channels")
# What of an environment's config decides what is in it; where it lies does not.
_CONTENT = ("python", "cuda", "torch", "torch_from", "tensorflow", "jax", "cudnn", "packages", "pip", "channels")


@dataclass(frozen=True)
class EnvironmentConfig:
    """One of miniconda_environments; see roles/miniconda/meta/argument_specs.yml. Empty: not asked for."""

    name: str
    python: str = ""
    cuda: str = ""
    torch: str = ""
    torch_from: str = "auto"
    tensorflow: str = ""
    jax: str = ""
    cudnn: str = ""
    packages: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    file: str = ""
    channels: tuple[str, ...] = ()
    user: str = ""
    prefix: str = ""
    # of the file, once it was read
    content: str | None = None
    # why it could not be
    unreadable: str = ""

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> EnvironmentConfig:
        values = {key: value for key, value in item.items() if value is not None}
        for key in _LISTS:
            values[key] = tuple(str(part) for part in values.get(key) or ())
        for key in set(values) - {*_LISTS, "content"}:
            values[key] = str(values[key]).strip()
        return cls(**values)

    def asked(self) -> dict[str, Any]:
        """What was asked for, without what was left out: recorded with the environment, to compare later."""
        found: dict[str, Any] = {"name": self.name}
        for key in _CONTENT:
            value = getattr(self, key)
            if value and value != "auto":
                found[key] = list(value) if isinstance(value, tuple) else value
        if self.content is not None:
            found["file_sha256"] = hashlib.sha256(self.content.encode()).hexdigest()
        return found


@dataclass(frozen=True)
class CondaConfig:
    """The inventory's miniconda_* values."""

    install: bool = False
    distribution: str = "miniconda"
    version: str = ""
    python: str = ""
    prefix: str = "/opt/miniconda3"
    owner: str = "root"
    group: str = ""
    umask: str = "022"
    users: tuple[str, ...] = ()
    users_prefix: str = "~/.miniconda3"
    installer_url: str = ""
    installer_file: str = ""
    installer_sha256: str = ""
    shell_init: tuple[str, ...] = ()
    profile: bool = False
    accept_tos: bool = False
    channels: tuple[str, ...] = ()
    channel_alias: str = ""
    wheel_index_url: str = ""
    pip_index_url: str = ""
    allow_http: bool = False
    environments: tuple[EnvironmentConfig, ...] = ()
    lib64_link: bool = False
    rebuild: bool = False
    repair: bool = False
    update: bool = False

    @classmethod
    def from_vars(cls, values: Mapping[str, Any]) -> CondaConfig:
        """Read role variables; missing ones take the defaults."""
        found = {name: value for name, value in of_role(values, "miniconda_", cls).items() if value is not None}
        for name in ("users", "shell_init", "channels"):
            if name in found:
                found[name] = tuple(str(item) for item in found[name])
        if "environments" in found:
            found["environments"] = tuple(map(EnvironmentConfig.from_item, found["environments"]))
        return cls(**found)

    @property
    def wanted(self) -> bool:
        """Anything at all is asked for on this host."""
        return self.system or bool(self.all_users or self.environments)

    @property
    def system(self) -> bool:
        """The installation for the whole system is asked for, or an environment needs it."""
        return self.install or any(not (env.user or env.prefix) for env in self.environments)

    @property
    def all_users(self) -> tuple[str, ...]:
        """Users with an installation of their own: those named, and those of environments."""
        named = [*self.users, *(env.user for env in self.environments if env.user and not env.prefix)]
        return tuple(dict.fromkeys(named))

    def user_prefix(self, user: str) -> str:
        """Where a user's own installation lies; ``~USER/…`` until the host has said where that is."""
        path = self.users_prefix.replace("{user}", user)
        return f"~{user}{path[1:]}" if path == "~" or path.startswith("~/") else path

    def prefix_of(self, env: EnvironmentConfig) -> str:
        """The installation that an environment belongs to."""
        return env.prefix or (self.user_prefix(env.user) if env.user else self.prefix)

    def prefix_paths(self) -> list[str]:
        """What the probe has to look at: the installations, and as ``~USER`` the users that are only named."""
        users = [self.owner] if self.system and self.owner != "root" else []
        users += self.shell_init if self.wanted else ()
        return [*self.prefixes(), *(f"~{user}" for user in dict.fromkeys(users))]

    def prefixes(self) -> dict[str, tuple[str, str]]:
        """Every installation that is asked for or named, in order: (owner or "", variable that says where it lies)."""
        found = {self.prefix: (self.owner, "miniconda_prefix")} if self.system else {}
        for user in self.all_users:
            found.setdefault(self.user_prefix(user), (user, "miniconda_users_prefix"))
        for env in self.environments:
            if env.prefix:
                found.setdefault(env.prefix, (env.user, ENVIRONMENTS_PREFIX))
        return found


@dataclass(frozen=True)
class Places:
    """Paths as the host knows them: ``~USER`` written out. unknown: paths whose user the host does not have."""

    paths: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def __getitem__(self, path: str) -> str:
        return self.paths.get(path, path).rstrip("/") or "/"


def places(config: CondaConfig, facts: Facts) -> Places:
    """Write out the config's paths by what the probe said of them, else by the homes that it knows."""
    asked, conda = config.prefix_paths(), facts.conda
    looked = bool(conda.looked) and len(conda.looked) == len(asked)
    paths = {path: _by_home(path, conda.homes) for path in asked}
    if looked:
        paths = dict(zip(asked, conda.looked, strict=True))
    # A user of a directory service is known only where the probe was asked for him by name.
    unknown = {path for path, real in paths.items() if looked and real.startswith("~")}
    return Places(paths, frozenset(unknown))


def _by_home(path: str, homes: Mapping[str, str]) -> str:
    if not path.startswith("~"):
        return path
    user, _, rest = path[1:].partition("/")
    return f"{homes[user].rstrip('/')}/{rest}" if user in homes else path


def with_files(
    config: CondaConfig, folder: Path, read: Callable[[Path], str] = lambda path: path.read_text(encoding="utf-8")
) -> CondaConfig:
    """Return the config with the files of its environments read, relative ones below ``folder``.

    A file that cannot be read is noted in its environment: resolve refuses it by name.
    """
    found = []
    for env in config.environments:
        if env.file and env.content is None:
            try:
                env = replace(env, content=read(folder / Path(env.file).expanduser()))
            except UnicodeDecodeError:
                env = replace(env, unreadable="it is no text in UTF-8")
            except OSError as error:
                env = replace(env, unreadable=error.strerror or str(error))
        found.append(env)
    return replace(config, environments=tuple(found))
