"""CUDA's toolkits, cuDNN and NCCL as a part: what plans, checks, locks and drift ask of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pydantic import Field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog.versions import minor, same
from provision.errors import ProvisionError
from provision.facts import Facts
from provision.lib.text import natural
from provision.parts.apt import AptPart, PartPlan
from provision.parts.base import Headline, Host, Part, headline
from provision.parts.check import CudaExpect, DriverNeed
from provision.parts.cuda import channel as cuda_channel
from provision.parts.cuda import checks, library_checks
from provision.parts.cuda.desired import library_configs
from provision.parts.cuda.packages import is_part, is_there
from provision.parts.cuda.plan import UNATTENDED, plan_cuda
from provision.parts.cuda.preconditions import current_default
from provision.parts.cuda.proofs import PROOFS
from provision.parts.cuda.resolve import PATTERNS, CudaDecision, resolve_cuda
from provision.parts.decision import cuda_key
from provision.parts.desired import Desired
from provision.parts.driver.plan import conflicting
from provision.parts.locked import Locked, Versions


class LockedCuda(Locked):
    """releases: minor -> release ("12.8": "12.8.1"); cudnn: CUDA major -> version; nccl with its +cudaX.Y."""

    releases: dict[str, str]
    default: str
    cudnn: dict[str, str] = Field(default_factory=dict)
    nccl: str | None = None
    packages: Versions = Field(default_factory=dict)


class CudaPart(Part[CudaDecision, LockedCuda]):
    name, role = "cuda", "cuda_toolkit"
    title, one = "the toolkits", "CUDA toolkits"
    unattended = UNATTENDED
    checks = (*checks.CHECKS, *library_checks.CHECKS)
    proofs = PROOFS
    reasons = ("CUDA", "cuDNN", "NCCL", "default")
    locked, models = LockedCuda, (LockedCuda,)

    # --- plan

    def decide(self, host: Host) -> CudaDecision:
        return resolve_cuda(host.desired.cuda, host.facts, host.catalog, host.candidates, host.driver)

    def patterns(self, host: Host, sources: Collection[str]) -> list[str]:
        archive = host.desired.cuda.versions and host.decisions[self.name].channel == "ubuntu"
        return list(PATTERNS) if "cuda" in sources or archive else []

    def channel(self, host: Host, decision: CudaDecision) -> str | None:
        """NVIDIA's repository where toolkits come from it or came through our file; a host that has them needs none.

        So a machine whose image brought CUDA, without internet, can be held and configured anyway.
        """
        if decision.target is None or decision.channel == "ubuntu":
            return None
        ours = apt_files.sources_path("cuda") in host.facts.own_files
        return "cuda" if decision.target.packages or ours or conflicting(host.facts) else None

    def plan(self, host: Host, decision: CudaDecision, source: dict[str, Any] | None) -> PartPlan:
        plan = plan_cuda(host.desired.cuda, host.facts, decision, source)
        pin = cuda_channel.kept_pin(host.facts)
        if decision.target and decision.target.versions:
            nvidia = "cuda" in host.channels.values()
            pin = cuda_channel.pin(host.facts, host.catalog, decision.channel, nvidia)
        if pin:
            plan.apt = plan.apt or AptPart()
            plan.apt.preferences, plan.apt.preferences_because = pin, cuda_channel.PIN_BECAUSE
        return plan

    def group_of(self, package: str) -> str:
        found = cuda_names.parse(package)
        if found is None or found.kind == "distribution":
            return ""
        return f"CUDA {found.version}" if found.version else {"cudnn": "cuDNN", "nccl": "NCCL"}.get(found.kind, "CUDA")

    # --- verify

    def expect(self, host: Host, decision: CudaDecision) -> CudaExpect:
        config, target, catalog = host.desired.cuda, decision.target, host.catalog
        wanted = list(map(minor, config.versions))
        needs = {}
        there = {toolkit.version for toolkit in host.facts.cuda.toolkits if toolkit.version}
        for version in sorted(there | set(wanted), key=cuda_key):
            if any(known.version == version for known in catalog.cuda_minors):
                needs[version] = DriverNeed(
                    full=catalog.min_driver_for_cuda(version, full=True), minimum=catalog.min_driver_for_cuda(version)
                )
        now = current_default(host.facts)
        # Which one /usr/local/cuda leads to is known without asking apt, too (cuDNN and NCCL to choose may need it).
        chosen = minor(config.default) or (now if now in wanted else max(wanted, key=cuda_key, default=None))
        return CudaExpect(
            manage=bool(config.versions),
            versions=list(target.versions if target else wanted),
            default=target.default if target else chosen,
            profile=config.profile,
            cudnn=dict(target.cudnn) if target else {},
            nccl=target.nccl if target else None,
            hold=bool(config.versions) and config.hold,
            names=sorted(target.names) if target else [],
            environment=bool(config.versions) and config.environment,
            needs=needs,
        )

    # --- lock

    def channel_of(self, locked: LockedCuda) -> str:
        # The profilers of the archive may have versions of another kind.
        found = {cuda_names.channel(version) for name, version in locked.packages.items() if is_part(name)}
        return "ubuntu" if "ubuntu" in found else "cuda"

    def is_asked(self, desired: Desired, facts: Facts) -> bool:
        return bool(desired.cuda.versions)

    def exact(self, locked: LockedCuda, desired: Desired) -> tuple[dict[str, Any], list[str]]:
        config, against, versions = desired.cuda, [], []
        for asked in config.versions:
            release = locked.releases.get(minor(asked))
            if release is None:
                has = ", ".join(locked.releases)
                against.append(f"cuda_toolkit_versions asks for {asked}, the lock has {has}")
            elif asked not in (minor(asked), release):
                against.append(f"cuda_toolkit_versions asks for {asked}, the lock has {release}")
            versions.append(release or asked)
        channel = self.channel_of(locked)
        if config.channel not in ("auto", channel):
            against.append(f"cuda_toolkit_channel asks for {config.channel}, the lock has {channel}")
        exact: dict[str, Any] = {"cuda_toolkit_versions": versions, "cuda_toolkit_channel": channel}
        if config.default and minor(config.default) != locked.default:
            against.append(f"cuda_toolkit_default asks for {config.default}, the lock has {locked.default}")
        elif locked.default in map(minor, versions):
            exact["cuda_toolkit_default"] = locked.default
        for name, there in (
            ("cudnn", list(dict.fromkeys(locked.cudnn.values()))),
            ("nccl", [locked.nccl] if locked.nccl else []),
        ):
            text = getattr(config, name)
            if text == "none":
                continue
            if text != "auto" and not _satisfied(text, there):
                against.append(f"cuda_toolkit_{name} asks for {text}, the lock has {', '.join(there) or 'none'}")
            exact[f"cuda_toolkit_{name}"] = ", ".join(there) or "none"
        return exact, against

    def pins(self, locked: LockedCuda, desired: Desired) -> dict[str, str]:
        """Of the toolkits and libraries that are asked for: the inventory says what, the lock which version."""
        config = desired.cuda
        minors = set(map(minor, config.versions))
        if minors >= set(locked.releases) and "none" not in (config.cudnn, config.nccl):
            return dict(locked.packages)
        majors = {one.split(".")[0] for one in minors}
        found = {}
        for name, version in locked.packages.items():
            package = cuda_names.parse(name, version)
            if package is None:
                continue
            if package.kind in ("cudnn", "nccl"):
                wanted = getattr(config, package.kind) != "none"
            else:
                wanted = package.version in minors if package.version else package.major in (None, *majors)
            if wanted:
                found[name] = version
        return found

    def entry(self, host: Host, decision: CudaDecision, more: Sequence[str] = ()) -> LockedCuda:
        target, rows = decision.target, host.facts.packages
        if target is None or target.packages:
            raise ProvisionError(
                "lock.no_toolkits",
                "the toolkits are not all there as the inventory asks",
                because=[issue.message for issue in decision.blockers]
                or ["packages of them are missing or of other versions"],
                hint="provision apply installs them; then lock",
            )
        return LockedCuda(
            releases=dict(target.releases),
            default=target.default,
            cudnn=dict(target.cudnn),
            nccl=target.nccl,
            packages={name: rows[name].version for name in {*target.names, *more} if is_there(rows, name)},
        )

    def kind(self, locked: LockedCuda | None) -> Any:
        return locked and (
            tuple(sorted(locked.releases, key=natural)),
            locked.default,
            tuple(sorted(locked.cudnn)),
            bool(locked.nccl),
        )

    def name_parts(self, locked: LockedCuda) -> list[str]:
        return ["cuda", *sorted(locked.releases, key=natural)]

    def flat(self, locked: LockedCuda) -> dict[str, str]:
        return {f"CUDA {one}": release for one, release in locked.releases.items()} | {"default CUDA": locked.default}

    def headlines(self, old: LockedCuda | None, new: LockedCuda | None) -> Iterator[Headline]:
        pair = (old, new)
        for one in sorted({name for locked in pair if locked for name in locked.releases}, key=natural):
            yield headline(f"CUDA {one}", pair, partial(_release, one))
        yield headline("cuDNN", pair, _cudnn)
        yield headline("NCCL", pair, lambda locked: locked.nccl)
        yield headline("default CUDA", pair, lambda locked: locked.default, "default")


def _release(wanted: str, locked: LockedCuda) -> str | None:
    return locked.releases.get(wanted)


def _cudnn(locked: LockedCuda) -> str | None:
    return ", ".join(dict.fromkeys(locked.cudnn[major] for major in sorted(locked.cudnn))) or None


def _satisfied(text: str, there: Iterable[str]) -> bool:
    """Every version that is asked for ("9", "9.14, 8", "2.28.3+cuda12.8") is among those of the lock."""
    have = list(there)
    configs = library_configs(text)
    if configs is None:
        # unreadable: resolve says so
        return True
    return all(
        any(
            same(config.version or "", str(cuda_names.upstream(version)))
            and config.suffix in (None, cuda_names.suffix(version))
            for version in have
        )
        for config in configs
    )


PART = CudaPart()
