"""What resolve is asked about containers and what it answers: config, target, decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.parts.decision import BaseDecision, of_role

# Channels as in planning: the toolkit's repository, and the archive for docker.io and podman.
TOOLKIT, ARCHIVE = "container_toolkit", "ubuntu"


@dataclass(frozen=True)
class ContainersConfig:
    """The inventory's container_toolkit_* values; see roles/container_toolkit/meta/argument_specs.yml.

    runtimes: empty means that nothing happens, unless rootless_users are named. version: "" (the newest that is good and
    fits the runtimes), "1.20.0" or "1.20.0-1". cdi, docker_cdi: "auto", "always" or "never".
    """

    runtimes: tuple[str, ...] = ()
    version: str = ""
    hold: bool = True
    update: bool = False
    install_docker: bool = False
    install_podman: bool = False
    default_runtime: str = ""
    cdi: str = "auto"
    docker_cdi: str = "auto"
    shm_size: str = ""
    cgroup_driver: str = ""
    device_links: bool = True
    docker_users: tuple[str, ...] = ()
    rootless_users: tuple[str, ...] = ()
    restart: str = "when_idle"
    remove_legacy: bool = True
    test_image: str = ""
    repo_url: str = ""
    repo_key: str = ""
    repo_key_fingerprint: str = ""

    @classmethod
    def from_vars(cls, values: Mapping[str, Any]) -> ContainersConfig:
        """Read role variables, which have their types; missing ones take the defaults. Blanks around a text, and doubles, go."""
        found = of_role(values, "container_toolkit_", cls)
        for name, value in found.items():
            if isinstance(value, str):
                found[name] = value.strip()
            elif isinstance(value, list):
                found[name] = tuple(dict.fromkeys(item.strip() for item in value if item.strip()))
        return cls(**found)

    @property
    def wanted(self) -> bool:
        """Whether containers are this host's business at all."""
        return bool(self.runtimes or self.rootless_users)

    @property
    def docker(self) -> bool:
        """The system's docker is to be configured."""
        return "docker" in self.runtimes


@dataclass(frozen=True)
class ContainersTarget:
    """What a host should have. spec: all arguments of the module container_runtime."""

    # of the toolkit: "1.20.0"
    version: str
    # what apt is asked for: exact Debian versions
    packages: dict[str, str] = field(default_factory=dict)
    # the toolkit's packages: what is held
    names: tuple[str, ...] = ()
    # packages of the old days
    remove: tuple[str, ...] = ()
    # docker, containerd, podman -> version, "" not known
    runtimes: dict[str, str] = field(default_factory=dict)
    # runtimes that come with this plan
    installs: tuple[str, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    # of daemon.json that change: "runtimes.nvidia", "features.cdi"
    keys: tuple[str, ...] = ()
    # in words, what the module will do; empty: nothing
    todo: tuple[str, ...] = ()
    # why docker has to be restarted; "": reading its file again is enough, or nothing is to be done
    restart: str = ""
    # running containers that a restart would end
    disturbed: tuple[str, ...] = ()


@dataclass
class ContainersDecision(BaseDecision):
    """Containers of one host. Without a target, blockers and ``asks`` there is nothing to do. See Notes.

    asks: channels whose candidates are needed before this can be decided.
    """

    target: ContainersTarget | None = None
    asks: tuple[str, ...] = ()
