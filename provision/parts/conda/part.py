"""conda as a part: nothing of it comes through apt; its environments are made when the driver is decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from provision.facts import CondaEnvironment, Facts
from provision.parts.apt import PartPlan
from provision.parts.base import Difference, Host, Part
from provision.parts.check import CondaExpect
from provision.parts.conda.checks import CHECKS
from provision.parts.conda.plan import conda_expectation, conda_spec, conda_summary
from provision.parts.conda.proofs import PROOFS
from provision.parts.conda.resolve import CondaDecision, resolve_conda
from provision.parts.locked import Locked


class LockedEnvironment(Locked):
    """A conda environment that the inventory asks for. packages: "version build" of what concerns CUDA; pip: versions."""

    python: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    pip: dict[str, str] = Field(default_factory=dict)


class LockedConda(Locked):
    """One installation of conda that the inventory asks for; environments by path."""

    distribution: str
    version: str
    environments: dict[str, LockedEnvironment] = Field(default_factory=dict)


# by path
Installations = dict[str, LockedConda]


class CondaPart(Part[CondaDecision, Installations]):
    name, role = "conda", "miniconda"
    title, one = "conda", "conda"
    apt = False
    checks = CHECKS
    proofs = PROOFS
    locked, models = Installations, (LockedConda, LockedEnvironment)

    def decide(self, host: Host) -> CondaDecision:
        return resolve_conda(host.desired.conda, host.facts, host.catalog, host.driver)

    def plan(self, host: Host, decision: CondaDecision, source: dict[str, Any] | None) -> PartPlan:
        spec, steps = conda_spec(host.desired.conda, host.facts, decision)
        return PartPlan(spec, None, steps, conda_summary(decision))

    def expect(self, host: Host, decision: CondaDecision) -> CondaExpect:
        return conda_expectation(host.desired.conda, decision)

    # --- lock

    def entry(self, host: Host, decision: CondaDecision, more: Sequence[str] = ()) -> Installations:
        return {
            prefix.path: LockedConda(
                distribution=prefix.distribution,
                version=prefix.version or "",
                environments={
                    env.path: _locked(env) for env in _asked_for(host, decision) if env.prefix == prefix.path
                },
            )
            for prefix in host.facts.conda.prefixes
            if prefix.path in decision.wanted
        }

    def own(self, host: Host, decision: CondaDecision) -> dict[str, str]:
        return {env.path: env.digest for env in _asked_for(host, decision) if env.digest}

    def kind(self, locked: Installations | None) -> Any:
        return tuple((path, tuple(sorted(one.environments))) for path, one in sorted((locked or {}).items()))

    def flat(self, locked: Installations) -> dict[str, str]:
        found: dict[str, str] = {}
        for path, conda in locked.items():
            found[path] = f"{conda.distribution} {conda.version}"
            for env_path, env in conda.environments.items():
                found[f"{env_path} python"] = env.python or "none"
                found.update({f"{env_path} {name}": version for name, version in {**env.packages, **env.pip}.items()})
        return found

    def differences(self, facts: Facts, locked: Installations, own: Mapping[str, str]) -> Iterator[Difference]:
        prefixes = {prefix.path: prefix for prefix in facts.conda.prefixes}
        environments = {env.path: env for env in facts.conda.environments}
        for path, wanted in locked.items():
            prefix = prefixes.get(path)
            if prefix is None:
                yield _difference("missing", path, f"{wanted.distribution} {wanted.version}", "not there")
                continue
            if (prefix.version or "") != wanted.version:
                yield _difference("version", path, wanted.version, prefix.version or "unknown")
            for env_path, env in wanted.environments.items():
                yield from _of_environment(environments.get(env_path), env_path, env, own.get(env_path))


def _asked_for(host: Host, decision: CondaDecision) -> list[CondaEnvironment]:
    """The environments that the inventory asks for and that are there."""
    asked = {env.path for env in decision.environments}
    return [env for env in host.facts.conda.environments if env.path in asked]


def _locked(env: CondaEnvironment) -> LockedEnvironment:
    """What the lock says of an environment: its Python, and the builds of what concerns CUDA."""
    return LockedEnvironment(
        python=env.python,
        packages={
            name: " ".join(filter(None, (package.version, package.build))) for name, package in env.packages.items()
        },
        pip=dict(env.pip),
    )


def _of_environment(
    env: CondaEnvironment | None, path: str, wanted: LockedEnvironment, digest: str | None
) -> Iterator[Difference]:
    if env is None or env.state != "whole":
        yield _difference("missing", path, "an environment", "not there" if env is None else env.state)
        return
    have = _locked(env)
    moved = [
        f"{name} {a or 'none'} -> {b or 'none'}"
        for name, a, b in [
            ("python", wanted.python, have.python),
            *_pairs(wanted.packages, have.packages),
            *_pairs(wanted.pip, have.pip),
        ]
        if a != b
    ]
    if moved:
        yield _difference("packages", path, "the builds of the lock", "; ".join(moved[:4]))
    elif digest and env.digest and digest != env.digest:
        yield _difference(
            "changed", path, "the packages of the lock", "others: something was installed or removed in it"
        )


def _pairs(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    return [(name, one.get(name), other.get(name)) for name in sorted({*one, *other})]


def _difference(code: str, what: str, expected: str, found: str) -> Difference:
    hint = "provision lock --update --only conda accepts it; remove the environment and apply to rebuild it"
    return Difference(f"conda.{code}", what, expected, found, hint)


PART = CondaPart()
