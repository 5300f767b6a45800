"""Made-up hosts with CUDA on them, and the way from a case of tests/cases/cuda.yml to a decision."""

from __future__ import annotations

from datetime import date
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog import load_catalog
from provision.facts import Facts
from provision.parts.candidates import Candidates
from provision.parts.cuda.resolve import CudaConfig, CudaDecision, CudaTarget, resolve_cuda
from provision.parts.decision import Decision, DriverConfig
from provision.parts.driver.resolve import resolve_driver
from tests.unit.candidates import CANDIDATES as DRIVER_CANDIDATES
from tests.unit.cudacandidates import CANDIDATES, real
from tests.unit.hosts import host

TODAY = date(2026, 11, 28)
ABSENT: dict[str, Candidates] = {}


def resolved(
    config: CudaConfig,
    facts: Facts,
    available: Candidates | None,
    driver: Decision,
    archive: Candidates | None = DRIVER_CANDIDATES["noble"],
) -> CudaDecision:
    """offer None: apt was not asked. What the archive has of drivers is there in any case, as where the driver is ours."""
    candidates = {name: one for name, one in (("ubuntu", archive), ("cuda", available)) if one is not None}
    return resolve_cuda(config, facts, load_catalog(), candidates, driver, TODAY)


def driver_of(facts: Facts, config: DriverConfig, archive: str | None = "noble") -> Decision:
    candidates = {"ubuntu": DRIVER_CANDIDATES[archive], "cuda": DRIVER_CANDIDATES["cuda"]} if archive else ABSENT
    return resolve_driver(config, facts, load_catalog(), candidates, TODAY)


def apply(facts: Facts, target: CudaTarget, available: Candidates | None) -> Facts:
    """The host after apt did what a target asks for: exactly that, with the relations of the offer."""
    packages = {name: row for name, row in facts.packages.items() if name not in target.remove}
    for name, version in target.packages.items():
        assert available is not None
        candidate = next(c for c in available.versions(name) if c.version == version)
        packages[name] = (
            type(facts)
            .model_validate({"packages": {name: {"version": version, "status": "hi", "depends": candidate.depends}}})
            .packages[name]
        )
    folder = f"/usr/local/cuda-{target.default}"
    link = {"path": "/usr/local/cuda", "target": "/etc/alternatives/cuda", "resolved": folder}
    # What apt unpacked before is there again below, with what it unpacked now.
    others = [toolkit for toolkit in facts.cuda.toolkits if toolkit.package is None]
    links = type(facts.cuda).model_validate({"links": [link]}).links
    cuda = facts.cuda.model_copy(update={"links": links, "toolkits": others})
    return with_folders(facts.model_copy(update={"packages": packages, "cuda": cuda}))


def with_folders(facts: Facts, gutted: list[str] | None = None) -> Facts:
    """The folders of the toolkits that dpkg has, where the host does not say; gutted: toolkits that lost their files."""
    stated = {toolkit.path: toolkit for toolkit in facts.cuda.toolkits}
    rows = {path: toolkit.model_dump() for path, toolkit in stated.items()}
    parts = [(cuda_names.parse(name), name) for name, row in facts.packages.items() if row.installed]
    for package, name in parts:
        key = {"cuda-nvcc": "compiler", "cuda-cudart": "runtime"}.get(package.base) if package else None
        path = f"/usr/local/cuda-{package.version}" if package else ""
        if package and key and path not in stated:
            row = rows.setdefault(path, {"path": path, "version": package.version, "package": name})
            row[key] = True
    there = [row for row in rows.values() if row["version"] not in (gutted or [])]
    toolkits = type(facts.cuda).model_validate({"toolkits": there}).toolkits
    return facts.model_copy(update={"cuda": facts.cuda.model_copy(update={"toolkits": toolkits})})


def real_rows(status: str = "ii") -> dict[str, dict[str, str]]:
    """facts.packages of the real host with CUDA 13.0 and no metapackage cuda-toolkit."""
    return {c.name: {"version": c.version, "status": status, "depends": c.depends} for c in real()}


def case_host(case: dict[str, Any]) -> Facts:
    """Facts of a case. installed: wishes whose result is on the host, each resolved on the offer that it names."""
    extra = dict(case.get("facts", {}))
    packages = extra.pop("packages", {})
    ubuntu = str(case.get("ubuntu", "24.04"))
    base = {"id": "ubuntu", "version_id": ubuntu, **extra.pop("os", {})}
    facts = host(
        case.get("gpus", ["RTX 4090"]),
        case.get("driver_installed"),
        drivers=case.get("drivers", []),
        host={"os": base, "arch": case.get("arch", "amd64")},
        **extra,
    )
    for step in case.get("installed", []):
        if step == "real":
            rows = type(facts).model_validate({"packages": real_rows()}).packages
            facts = facts.model_copy(update={"packages": {**facts.packages, **rows}})
            continue
        values = dict(step)
        available = CANDIDATES[values.pop("offer", "jammy")]
        values.setdefault("unsupported_gpu", "warn")
        decision = resolved(CudaConfig.from_vars(_prefixed(values)), _jammy(facts), available, Decision())
        assert decision.target, decision.blockers
        facts = apply(facts, decision.target, available).model_copy(update={"host": facts.host})
    if packages:
        rows = type(facts).model_validate({"packages": packages}).packages
        merged = {**facts.packages}
        for name, row in rows.items():
            before = merged.get(name)
            merged[name] = row.model_copy(update={"depends": row.depends or (before.depends if before else None)})
        facts = facts.model_copy(update={"packages": merged})
    return with_folders(facts, case.get("gutted"))


def _jammy(facts: Facts) -> Facts:
    return facts.model_copy(
        update={"host": facts.host.model_copy(update={"os": facts.host.os.model_copy(update={"version_id": "22.04"})})}
    )


def _prefixed(values: dict[str, Any]) -> dict[str, Any]:
    # Most cases are about toolkits alone: the libraries that the role takes by itself are asked for where they matter.
    values = {"cudnn": "none", "nccl": "none", **values}
    """Role variables of a case; no library where it names none."""
    return {f"cuda_toolkit_{name}": value for name, value in {"cudnn": "none", "nccl": "none", **values}.items()}


def case_config(case: dict[str, Any]) -> CudaConfig:
    return CudaConfig.from_vars(_prefixed(case.get("config", {})))


def case_driver(case: dict[str, Any], facts: Facts, config: CudaConfig) -> Decision:
    """The driver's decision of a case: no GPU, no driver; else as resolve_driver says, on the archive that is named."""
    values = dict(case.get("driver", {}))
    archive = values.pop("archive", "noble")
    return driver_of(facts, DriverConfig(toolkits=config.versions, **values), archive)


def case_candidates(case: dict[str, Any]) -> Candidates | None:
    named = case.get(
        "offer", {"22.04": "jammy", "24.04": "noble", "26.04": "resolute"}.get(str(case.get("ubuntu", "24.04")))
    )
    return CANDIDATES[named] if named else None
