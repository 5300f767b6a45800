"""conda: terms of service, builds without CUDA, activation, installations in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.held import level_of, user, verdict
from provision.diagnose.rule import Case, Found, Rule
from provision.parts.conda import checks as conda_checks


def _mend(case: Case, words: str) -> Repair:
    wish = conda_checks.wish_of(case.expect)
    return queries.apply(words, "conda") if wish["prefixes"] or wish["environments"] else queries.manual(words)


def _terms(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.channels)
    level = level_of(said)
    if level == "warning":
        yield Found(said["message"], queries.clip(said["evidence"]), (queries.manual(said["hint"]),), level=level)


def _channels(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.channels)
    if level_of(said) == "error":
        yield Found(said["message"], queries.clip(said["evidence"]), (_mend(case, said["hint"]),))


def _cpu_build(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.cpu_builds)
    level = level_of(said)
    words = "make the environment anew while the driver works (or with CONDA_OVERRIDE_CUDA), and ask for the CUDA build"
    if level:
        yield Found(said["message"], queries.clip(said["evidence"]), (_mend(case, words),), level=level)
    elif queries.own_gpus(case):
        rows = [
            f"{env.path}: {name} is a build for the CPU"
            for env in case.facts.conda.environments
            for name, kind in sorted(env.builds.items())
            if kind == "cpu"
        ]
        if rows:
            yield Found(
                f"{len(rows)} frameworks on this GPU host are builds for the CPU",
                queries.clip(rows),
                (_mend(case, words),),
                level="note",
            )


def _activate(case: Case) -> Iterator[Found]:
    trouble = user(case)
    if trouble.conda_profile or not any(prefix.state == "whole" for prefix in case.facts.conda.prefixes):
        return
    if trouble.conda_guarded:
        users = ", ".join(sorted(trouble.conda_guarded))
        yield Found(
            f"'conda activate' works in interactive shells of {users} only",
            queries.clip(
                f"{file}: conda's block stands behind the line that ends the file for other shells"
                for file in trouble.conda_guarded.values()
            ),
            (
                queries.manual(
                    "source PREFIX/etc/profile.d/conda.sh in the script, or conda run -n ENV, or PREFIX/envs/ENV/bin/python"
                ),
            ),
        )


def _partial(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.prefixes)
    level = level_of(said)
    if level:
        yield Found(
            said["message"],
            queries.clip(said["evidence"]),
            (_mend(case, said["hint"] or "install it again"),),
            level=level,
        )


def _environments(case: Case) -> Iterator[Found]:
    said = verdict(case, conda_checks.environments)
    if level_of(said) == "error":
        yield Found(said["message"], queries.clip(said["evidence"]), (_mend(case, said["hint"]),))


RULES = (
    Rule(
        code="conda.terms",
        level="warning",
        title="conda asks for Anaconda's terms of service, and nobody can answer",
        explain=(
            "Since 2025 Miniconda refuses to use Anaconda's channels without a terminal until their terms are "
            "accepted, by user or prefix. It is a licence question before it is a technical one: conda-forge "
            "(Miniforge) has no such terms."
        ),
        breaks="conda create and conda install in scripts, CI and Ansible",
        repair="conda-forge only, or conda tos accept --override-channels --channel URL for each channel",
        prevent="miniconda_channels: [conda-forge], or miniconda_accept_tos: true when that is decided",
        find=_terms,
        texts=(r"CondaToSNonInteractiveError", r"Terms of Service have not been accepted for the following channels"),
        sources=("conda-anaconda-tos", "scenario M1"),
    ),
    Rule(
        code="conda.channels",
        level="error",
        title="conda takes packages from other channels than asked for",
        explain="Somebody changed .condarc, or another file of conda's comes before it.",
        breaks="new environments come from elsewhere than the inventory says",
        repair="write the file as asked for",
        prevent="one owner of the prefix",
        find=_channels,
    ),
    Rule(
        code="conda.cpu_build",
        level="warning",
        title="an environment for the GPU has a framework without CUDA",
        explain=(
            "The solver asks the driver (the virtual package __cuda). Where it does not work at that moment (a first "
            "boot, an image build, a broken driver) conda installs the build for the CPU, without a word: the version "
            "is right, the build string says cpu."
        ),
        breaks="torch.cuda.is_available() is False; the work runs on the processor",
        repair="make the environment anew while the driver works, or with CONDA_OVERRIDE_CUDA, asking for pytorch=*=*cuda*",
        prevent="driver first, then conda; look at the build string, not only at the version",
        find=_cpu_build,
        texts=(
            r"torch\.cuda\.is_available\(\)\s*(?:->|=>|==|:)?\s*False",
            r"py\d[\d.]*_cpu_\d+|_cpu_\d+\b.*pytorch|pytorch.*\bcpu_\S+",
            r"nothing provides (?:requested )?__cuda",
            r"__cuda =\S*, which is missing on the system",
            r"Torch not compiled with CUDA enabled",
        ),
        after=("driver.not_loaded", "driver.missing"),
        sources=("scenario M2",),
    ),
    Rule(
        code="conda.activate",
        level="note",
        title="'conda activate' is defined in interactive shells only",
        explain=(
            "`conda init` writes its block at the end of ~/.bashrc, which Ubuntu's own first lines leave for shells "
            "that are not interactive: ssh HOST CMD, cron, systemd and Ansible never see the function."
        ),
        breaks="scripts that say conda activate",
        repair="source PREFIX/etc/profile.d/conda.sh, or conda run -n ENV, or the interpreter by its path",
        prevent="never rely on .bashrc in scripts",
        find=_activate,
        texts=(
            r"CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'",
            r"CondaError: Run 'conda init' before 'conda activate'",
            r"conda: (?:command )?not found",
        ),
        sources=("scenario M3",),
    ),
    Rule(
        code="conda.partial",
        level="warning",
        title="an installation of conda is in pieces, or not there as asked for",
        explain="An installer was killed, a disk filled up, or files were removed by hand.",
        breaks="conda itself, and every environment below it",
        repair="install it again (miniconda_repair: true where it is not ours)",
        prevent="install to a folder of its own and move it into place (provision does)",
        find=_partial,
        texts=(r"ERROR: File or directory already exists: .*conda", r"conda: .*bad interpreter"),
        after=("disk.full",),
    ),
    Rule(
        code="conda.environment_differs",
        level="error",
        title="an environment of the inventory is not there, or not what it was asked to be",
        explain="It was never finished, or changed by hand since.",
        breaks="what was to run in it",
        repair="provision apply; what differs is made anew only with miniconda_rebuild: true",
        prevent="environments of the inventory are not changed by hand",
        find=_environments,
        after=("conda.partial", "conda.terms"),
    ),
)
