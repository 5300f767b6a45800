"""What the inventory asks of one host: the variables of every role, each read once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from provision.catalog import Catalog
from provision.facts import Facts
from provision.inventory.proxy import HostProxy
from provision.inventory.repositories import FleetMirror, Mirror, agreed, source_spec
from provision.parts.conda.desired import CondaConfig, with_files
from provision.parts.containers.desired import ContainersConfig
from provision.parts.cuda.desired import CudaConfig
from provision.parts.decision import DriverConfig

# Repository -> the variables that say where it is, where their names do not follow from its own. One repository holds drivers
# and toolkits: either role's word for it counts.
_VARIABLES = {"cuda": ("nvidia_driver_repo", "cuda_toolkit_repo"), "ppa": ("nvidia_driver_ppa",)}


def repository_variables(kind: str) -> tuple[str, ...]:
    """Beginnings of the variables that say where a repository is, and by which key it is signed."""
    return _VARIABLES.get(kind, (f"{kind}_repo",))


class Desired:
    """The desired state of a host, by its role variables (``variables.effective``, with ``inventory_dir``).

    parts: those that are planned for, None for all: nothing is asked of the others, and their driver is left as it is. A
    property raises UsageError for variables that cannot be used.
    """

    def __init__(self, values: Mapping[str, Any], parts: Collection[str] | None = None) -> None:
        self.values, self._parts = values, parts

    def plans(self, part: str) -> bool:
        return self._parts is None or part in self._parts

    def _of(self, part: str) -> Mapping[str, Any]:
        return self.values if self.plans(part) else {}

    @cached_property
    def driver(self) -> DriverConfig:
        """With the toolkits that it will run."""
        config = DriverConfig.from_vars(self.values)
        return replace(config, toolkits=self.cuda.versions, manage=config.manage and self.plans("driver"))

    @cached_property
    def cuda(self) -> CudaConfig:
        return CudaConfig.from_vars(self._of("cuda"))

    @cached_property
    def containers(self) -> ContainersConfig:
        return ContainersConfig.from_vars(self._of("containers"))

    @cached_property
    def conda_given(self) -> CondaConfig:
        """As the variables say it."""
        return CondaConfig.from_vars(self._of("conda"))

    @cached_property
    def conda(self) -> CondaConfig:
        """With the mirror's addresses where none are given, and with the files that it names, below the inventory's folder."""
        config = self.conda_given
        places = self.mirror.conda if self.plans("conda") else {}
        instead: dict[str, Any] = {name: url for name, url in places.items() if not getattr(config, name)}
        if config.installer_file:
            instead.pop("installer_url", None)
        return with_files(replace(config, **instead), Path(str(self.values.get("inventory_dir") or ".")))

    @cached_property
    def proxy(self) -> HostProxy:
        """Of every plan, whichever parts it is for; the mirror, too."""
        return HostProxy.from_vars(self.values)

    @cached_property
    def mirror(self) -> FleetMirror:
        return FleetMirror.from_vars(self.values)

    def source(self, kind: str, facts: Facts, catalog: Catalog) -> dict[str, Any]:
        """Where a host takes a repository ("cuda", "ppa", "container_toolkit") from, as apt.query's SourceSpec.

        Raises UsageError and RefusedError as source_spec does.
        """
        given = reduce(agreed, map(self._repository, repository_variables(kind)))
        return source_spec(kind, self.mirror.instead_of(given, kind, facts, catalog), facts, catalog)

    def _repository(self, prefix: str) -> Mirror:
        url, key, fingerprint = (
            str(self.values.get(f"{prefix}{tail}") or "") for tail in ("_url", "_key", "_key_fingerprint")
        )
        return Mirror(url, key, fingerprint, prefix)
