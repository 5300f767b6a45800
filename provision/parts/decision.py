"""What resolve is asked and what it answers: the config, the target, the decision, and the names of channels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from provision.catalog import Gpu
from provision.catalog.models.answers import Preference
from provision.errors import Issue
from provision.facts import Facts
from provision.parts.driver.installed import InstalledDriver
from provision.parts.plan import Reason

CHANNELS = {"ubuntu": "the Ubuntu archive", "cuda": "NVIDIA's repository", "ppa": "the graphics-drivers PPA"}


def of_role(values: Mapping[str, Any], prefix: str, config: Any) -> dict[str, Any]:
    """The values of one role's variables that a config (a dataclass) has as fields, by the names of these."""
    return {name: values[prefix + name] for name in config.__dataclass_fields__ if prefix + name in values}


@dataclass(frozen=True)
class DriverConfig:
    """The inventory's nvidia_driver_* values; see roles/nvidia_driver/meta/argument_specs.yml."""

    manage: bool = True
    branch: str = "recommended"
    version: str = ""
    update: bool = False
    # what "recommended" prefers
    prefer: Preference = "long_term"
    min_cuda: str = ""
    # CUDA toolkits that this driver will run: cuda_toolkit_versions, not a variable of ours
    toolkits: tuple[str, ...] = ()
    channel: str = "auto"
    modules: str = "auto"
    build: str = "auto"
    variant: str = "auto"
    hold: bool = True
    hold_kernel: str = "auto"
    persistence: bool = True
    fabric_manager: str = "auto"
    reboot: str = "when_idle"
    reboot_timeout: int = 900
    lock_timeout: int = 600
    repo_url: str = ""
    repo_key: str = ""
    repo_key_fingerprint: str = ""
    ppa_url: str = ""
    ppa_key: str = ""
    ppa_key_fingerprint: str = ""

    @classmethod
    def from_vars(cls, values: Mapping[str, Any]) -> DriverConfig:
        """Read role variables; missing ones take the defaults."""
        return cls(**of_role(values, "nvidia_driver_", cls))


@dataclass(frozen=True)
class Target:
    """The driver that the host should have. packages: exact Debian versions of what apt is asked for."""

    channel: str
    series: str
    version: str
    flavour: str
    build: str
    variant: str
    fabric: bool = False
    packages: dict[str, str] = field(default_factory=dict)
    # (package, version), in a transaction of its own first
    pinning: tuple[str, str] | None = None
    # the installed driver already is this one
    installed: bool = False


class Refused(Exception):
    """What is being decided cannot be had; the blockers say why."""


@dataclass
class BaseDecision:
    """What every decision says beside its target.

    blockers: nothing may be changed. ask: channel whose candidates are needed before this can be decided.
    """

    ask: str | None = None
    blockers: list[Issue] = field(default_factory=list)
    warnings: list[Issue] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

    def reason(self, what: str, value: str, because: str) -> None:
        self.reasons.append(Reason(what=what, value=value, because=because))

    def block(self, code: str, message: str, because: Sequence[str] = (), hint: str | None = None) -> None:
        self.blockers.append(Issue(code=code, message=message, because=list(because), hint=hint))

    def refuse(self, code: str, message: str, because: Sequence[str] = (), hint: str | None = None) -> NoReturn:
        """As block, where nothing more can be decided."""
        self.block(code, message, because, hint)
        raise Refused

    def warn(self, code: str, message: str, because: Sequence[str] = (), hint: str | None = None) -> None:
        self.warnings.append(Issue(code=code, message=message, because=list(because), hint=hint))


@dataclass
class Decision(BaseDecision):
    """The driver of one host; gpus: those that it has a say in. See Notes."""

    target: Target | None = None
    gpus: list[Gpu] = field(default_factory=list)
    installed: InstalledDriver = InstalledDriver()


def wants_fabric(config: DriverConfig, facts: Facts) -> bool:
    """Fabric manager belongs exactly where NVSwitch is (source: Fabric Manager user guide), or where it is asked for."""
    if config.fabric_manager == "auto":
        return bool(facts.nvswitches) or facts.nvlink5_switch
    return config.fabric_manager == "always"


def kernel_flavours(facts: Facts) -> list[str]:
    """Flavours of the installed kernel metapackages: generic, generic-hwe-24.04, aws, …"""
    found = []
    for name in facts.kernels.metapackages:
        match = re.fullmatch(r"linux-(?:image-)?([a-z][a-z0-9.-]*)", name)
        if match and not match[1].startswith(("headers-", "modules-", "tools-", "image-", "extra-")):
            found.append(match[1])
    return sorted(set(found))


def cuda_key(text: str) -> tuple[int, ...]:
    """Sort key of a CUDA version: major and minor."""
    return tuple(int(part) for part in text.split(".")[:2])


def distinct(gpus: list[Gpu]) -> list[Gpu]:
    """One GPU of each name, in order."""
    return list({gpu.name: gpu for gpu in gpus}.values())


def join_and(items: list[str]) -> str:
    """Items as a sentence lists them: a, b and c."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""
