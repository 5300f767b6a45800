"""conda: terms of service, builds without CUDA, activation, installations in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.checks import level_of, user, verdict
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.parts.conda import checks as conda_checks


def _mend(case: Case, text: str) -> Repair:
    want = case.expect.conda
    return queries.apply(text, "conda") if want.prefixes or want.environments else queries.manual(text)


@rule("conda.terms")
def _terms(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.channels)
    level = level_of(said)
    if level == "warning":
        yield Found(said.message, said.evidence, queries.manual(said.way_out), level=level)


@rule("conda.channels")
def _channels(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.channels)
    if level_of(said) == "error":
        yield Found(said.message, said.evidence, _mend(case, said.way_out))


@rule("conda.cpu_build")
def _cpu_build(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.cpu_builds)
    level = level_of(said)
    text = "rebuild the environment while the driver works (or with CONDA_OVERRIDE_CUDA), and ask for the CUDA build"
    if level:
        yield Found(said.message, said.evidence, _mend(case, text), level=level)
    elif queries.own_gpus(case):
        rows = [
            f"{env.path}: {name} is a build for the CPU"
            for env in case.facts.conda.environments
            for name, kind in sorted(env.builds.items())
            if kind == "cpu"
        ]
        if rows:
            yield Found(
                f"{len(rows)} frameworks on this GPU host are builds for the CPU", rows, _mend(case, text), level="note"
            )


@rule("conda.activate")
def _activate(case: Case) -> Iterator[Found]:
    diagnostics = user(case)
    if diagnostics.conda_profile or not any(prefix.state == "whole" for prefix in case.facts.conda.prefixes):
        return
    if diagnostics.conda_guarded:
        users = ", ".join(sorted(diagnostics.conda_guarded))
        yield Found(
            f"'conda activate' works in interactive shells of {users} only",
            [
                f"{file}: conda's block follows the line that ends the file for other shells"
                for file in diagnostics.conda_guarded.values()
            ],
            queries.manual(
                "source PREFIX/etc/profile.d/conda.sh in the script, or conda run -n ENV, or PREFIX/envs/ENV/bin/python"
            ),
        )


@rule("conda.partial")
def _partial(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.prefixes)
    level = level_of(said)
    if level:
        yield Found(said.message, said.evidence, _mend(case, said.way_out or "install it again"), level=level)


@rule("conda.environment_differs")
def _environments(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.environments)
    if level_of(said) == "error":
        yield Found(said.message, said.evidence, _mend(case, said.way_out))
