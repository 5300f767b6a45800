"""The difference for conda: what the role's modules are given, and the steps that people see.

``spec`` holds exactly the arguments of the modules conda_install and conda_environment, one item for each thing that
has something to do, in order. Empty lists: nothing to do.
"""

from __future__ import annotations

from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import PROFILE
from provision.facts import Facts
from provision.lib.text import plural
from provision.parts.check import CondaExpect, EnvironmentExpect, PrefixExpect
from provision.parts.conda.desired import CondaConfig
from provision.parts.conda.prefix import PrefixTarget
from provision.parts.conda.resolve import CondaDecision, EnvironmentTarget
from provision.parts.plan import Step

EXPORTS = "/var/backups/gpu-provision/conda"


def conda_spec(config: CondaConfig, facts: Facts, decision: CondaDecision) -> tuple[dict[str, Any], list[Step]]:
    """Return what the role carries out and its steps; nothing of a refused host is carried out."""
    spec: dict[str, Any] = {"prefixes": [], "environments": []}
    steps: list[Step] = []
    if decision.blockers:
        return spec, steps
    for prefix in decision.prefixes:
        if prefix.action:
            spec["prefixes"].append(_prefix_args(prefix))
            steps.append(_prefix_step(prefix))
    for env in decision.environments:
        if env.action:
            spec["environments"].append(_environment_args(config, env))
            steps.append(_environment_step(env))
    return spec, steps


def conda_expectation(config: CondaConfig, decision: CondaDecision) -> CondaExpect:
    """What verify holds the host to. Empty where nothing of conda is asked for."""
    if not config.wanted:
        return CondaExpect()
    channels = {p.path: p.condarc["channels"] if p.condarc else None for p in decision.prefixes}
    return CondaExpect(
        prefixes=[
            PrefixExpect.model_validate({"path": path, "channels": channels.get(path)}) for path in decision.wanted
        ],
        environments=[
            EnvironmentExpect(
                name=env.config.name,
                path=env.path,
                build=env.recipe.build,
                frameworks=_asked_for(env),
                lib64=config.lib64_link,
            )
            for env in decision.environments
        ],
        refused=[issue.message for issue in decision.blockers],
    )


def _asked_for(env: EnvironmentTarget) -> dict[str, str]:
    """Frameworks and versions as far as they are asked for: what the catalog would choose today binds nobody."""
    config, found = env.config, {}
    for name, version in env.recipe.frameworks.items():
        asked, plus, _ = getattr(config, name, "").partition("+")
        exact = bool(plus) or "." in config.cuda or config.cuda == "none"
        found[name] = (
            asked + (f"+{version.partition('+')[2]}" if "+" in version and exact else "") if asked else version
        )
    return found


def conda_summary(decision: CondaDecision) -> str:
    """One phrase for the plan's summary line: "conda in /opt/miniconda3, 2 environments"; empty without conda."""
    if not decision.prefixes:
        return ""
    places = ", ".join(prefix.path for prefix in decision.prefixes)
    count = len(decision.environments)
    return f"conda in {places}" + (f", {plural(count, 'environment')}" if count else "")


def _prefix_args(prefix: PrefixTarget) -> dict[str, Any]:
    installer = prefix.installer
    return {
        "prefix": prefix.path,
        "action": prefix.action,
        "distribution": "miniforge" if prefix.distribution == "miniforge" else "miniconda",
        "version": installer.version if installer else "",
        "installer": installer.file if installer else "",
        "url": prefix.url,
        "file": prefix.file,
        "sha256": installer.sha256 if installer else "",
        "owner": prefix.owner,
        "group": prefix.group,
        "umask": prefix.umask,
        "condarc": prefix.condarc or {},
        "accept_tos": list(prefix.accept_tos),
        "profile": prefix.profile,
        "shell_init": list(prefix.shell_init),
    }


def _environment_args(config: CondaConfig, env: EnvironmentTarget) -> dict[str, Any]:
    recipe = env.recipe
    return {
        "name": env.config.name,
        "prefix": env.prefix,
        "action": env.action,
        "owner": env.owner,
        "group": env.group,
        "umask": env.umask,
        "channels": list(recipe.channels),
        "packages": list(recipe.packages),
        "pip": [dict(step) for step in recipe.pip],
        "file_kind": recipe.file_kind,
        "file_content": recipe.file_content,
        "pip_index_url": config.pip_index_url if recipe.file_kind == "environment" else "",
        "override_cuda": recipe.override_cuda,
        "library_path": recipe.library_path,
        "lib64_link": config.lib64_link,
        "export_to": EXPORTS,
        "wish": env.config.asked(),
    }


def _prefix_step(prefix: PrefixTarget) -> Step:
    name = f"{prefix.distribution.capitalize()} {prefix.installer.version}" if prefix.installer else "conda"
    title = {
        "install": f"install {name} in {prefix.path}",
        "repair": f"repair {prefix.path} with {name}",
        "update": f"update {prefix.path} to {name}",
        "configure": f"configure conda in {prefix.path}",
    }[prefix.action]
    details = list(prefix.details)
    if prefix.installer and prefix.action != "configure":
        details.append(f"from {prefix.file or prefix.url}")
        details.append(f"sha256 {prefix.installer.sha256}" if prefix.installer.sha256 else "not checked: unpinned")
    if prefix.owner != "root":
        details.append(f"as {prefix.owner}")
    if prefix.action in ("install", "repair"):
        details += [f"channels: {', '.join(prefix.channels)}"] if prefix.condarc else []
        details += [f"accept the terms of {url}" for url in prefix.accept_tos]
        details += [f"write {PROFILE}"] if prefix.profile else []
        details += [f"conda init for {user}" for user in prefix.shell_init]
    because = "; ".join(prefix.because) or {
        "update": "miniconda_update is true and it is older",
        "configure": "its settings differ from the request",
    }.get(prefix.action, "")
    value = f"{name} in {prefix.path}" + (f", channels {', '.join(prefix.channels)}" if prefix.condarc else "")
    return Step(
        id="conda",
        part="conda",
        title=title,
        because=because,
        details=details,
        sign="+" if prefix.action == "install" else "~",
        what="conda",
        value=value if prefix.action == "install" else f"{title}: {because}",
    )


def _environment_step(env: EnvironmentTarget) -> Step:
    recipe, name = env.recipe, env.config.name
    title = {
        "create": f"make environment {name}",
        "finish": f"finish environment {name}",
        "rebuild": f"rebuild environment {name}",
        "configure": f"make lib64 in environment {name}",
    }[env.action]
    details: list[str] = []
    if env.action != "configure":
        for framework, version in recipe.frameworks.items():
            details.append(f"{framework} {version}")
        if not recipe.frameworks and recipe.cuda:
            details.append(f"CUDA {recipe.cuda}")
        details += [f"python {recipe.python}"] if recipe.python else []
        details += [f"from {env.config.file}"] if env.config.file else []
        details.append(f"in {env.path}, channels {', '.join(recipe.channels)}")
    if env.action == "rebuild":
        details.append(f"its export is saved in {EXPORTS} first")
    contents = ", ".join(one for one in details if not one.startswith("in "))
    new = env.action in ("create", "finish")
    return Step(
        id="environments",
        part="conda",
        title=title,
        because=env.because,
        details=details,
        sign="+" if new else "~",
        what="environment",
        value=f"{name}: {contents}" if env.action == "create" else f"{title}: {env.because}",
    )
