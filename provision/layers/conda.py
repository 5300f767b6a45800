"""What scan says of conda: installations and environments in a line each."""

from __future__ import annotations

from provision.facts import CondaEnvironment, Facts
from provision.parts.conda.state import frameworks

_MOST = 12


def conda_lines(facts: Facts) -> list[str]:
    """Installations first, each with its environments; many environments are counted."""
    lines = []
    for prefix in facts.conda.prefixes:
        parts = [prefix.path, prefix.distribution, prefix.version or ""]
        if prefix.state != "whole":
            parts = [prefix.path, prefix.state]
        lines.append(" ".join(filter(None, parts)))
    shown = facts.conda.environments[:_MOST]
    lines += [_line(env) for env in shown]
    rest = len(facts.conda.environments) - len(shown)
    if rest:
        lines.append(f"and {rest} more environments: provision envs shows all")
    return lines


def _line(env: CondaEnvironment) -> str:
    parts = [f"python {env.python}"] if env.python else []
    for name, version in frameworks(env).items():
        build = " (CPU build)" if env.builds.get(name) == "cpu" else ""
        parts.append(f"{name} {version}{build}")
    if env.cuda:
        parts.append(f"CUDA {env.cuda}")
    if env.state != "whole":
        parts.append(env.state)
    return f"environment {env.name}: {', '.join(parts) or 'no Python'}"
