"""A driver that apt removed while its module stays loaded (field report G8): it is nobody else's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.facts import Facts, Package
from provision.parts.driver.installed import installed_driver


@dataclass(frozen=True)
class Removed:
    """packages: the driver's, by the version that they had. source: where that is written."""

    packages: dict[str, str]
    source: str

    def before(self, facts: Facts) -> Facts:
        """The facts of the host as if these packages were there still: what was wanted of the driver is read from them."""
        there = {name: Package(version=version) for name, version in self.packages.items()}
        return facts.model_copy(update={"packages": {**facts.packages, **there}})


def removed_driver(facts: Facts) -> Removed | None:
    """Return the driver that apt removed and whose module is loaded still; None for a driver of anybody else.

    apt's history (only diagnose and rescue read it) or rows of which dpkg kept the configuration have to name the very
    version that is loaded, and nothing of NVIDIA's .run file may be there.
    """
    loaded = facts.module.loaded
    if loaded is None or not loaded.version or facts.runfile.uninstaller or facts.runfile.traces:
        return None
    if installed_driver(facts).packages or (facts.trouble and facts.trouble.boot.driver_container):
        return None
    for row in reversed(facts.trouble.apt.transactions if facts.trouble else []):
        gone = {
            change.name: change.old
            for change in row.changes
            if change.action in ("remove", "purge") and change.old and driver_names.is_driver_package(change.name)
        }
        if _has(gone, loaded.version):
            return Removed(gone, row.title)
    rest = {
        name: package.version
        for name, package in facts.packages.items()
        if package.status[1] == "c" and package.version and driver_names.is_driver_package(name)
    }
    if _has(rest, loaded.version):
        return Removed(rest, f"dpkg has kept the configuration of {', '.join(sorted(rest)[:4])}")
    return None


def _has(packages: dict[str, str], version: str) -> bool:
    return any(
        driver_names.is_version_locked(name) and driver_names.upstream(has) == version for name, has in packages.items()
    )
