"""What a rescue has touched: packages, by two readings of a host and the plans that were carried out. Pure."""

from __future__ import annotations

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from provision.facts import Facts, Package
from provision.parts.plan import PackageChange
from provision.rescue.model import History


def touched(before: Facts, after: Facts, history: History) -> list[PackageChange]:
    """Packages that were installed, moved or removed, by name.

    Facts know the packages of NVIDIA, CUDA, kernels and containers; what came along with them (a compiler) is taken from
    the plans that were carried out.
    """
    found: dict[str, PackageChange] = {}
    for one in history.rounds:
        if one.plan is not None and any(step.ok for step in one.steps):
            found.update({change.name: change for change in one.plan.packages})
    for name in sorted({*before.packages, *after.packages}):
        was, now = _present(before.packages.get(name)), _present(after.packages.get(name))
        if was is None and now is None or was and now and was.version == now.version:
            if name in before.packages or name in after.packages:
                # planned, and not so in the end
                found.pop(name, None)
            continue
        action = (
            "remove" if now is None else "install" if was is None else apt_query.change_action(was.version, now.version)
        )
        found[name] = PackageChange.model_validate(
            {
                "action": action,
                "name": name,
                "version": now.version if now else None,
                "from_version": was.version if was else None,
            }
        )
    return [found[name] for name in sorted(found)]


def configured(before: Facts, after: Facts) -> list[str]:
    """Packages that dpkg had left unfinished, and that are set up now."""
    return sorted(
        name
        for name, package in before.packages.items()
        if package.broken and name in after.packages and after.packages[name].installed
    )


def _present(package: Package | None) -> Package | None:
    """A package of which something is on the disk."""
    return package if package is not None and package.status[1] not in "nc" else None
