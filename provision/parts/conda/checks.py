"""The checks of conda, by facts alone: installations, environments, builds without CUDA, links, channels.

Without anything asked for (``expect.conda``) what is there is looked at anyway, and nothing is held against it that
its owner may have meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from provision.catalog.versions import same
from provision.facts import CondaEnvironment, CondaPrefix, Facts
from provision.lib.findings import Check
from provision.lib.text import plural
from provision.parts.check import EnvironmentExpect, Expect, check, failed, passed, skipped, warned
from provision.parts.conda.state import framework, frameworks

_GPU_NAME = re.compile(r"cuda|gpu|(^|[^a-z])cu[0-9]{2,3}", re.I)
_DEFAULTS = re.compile(r"^(defaults|main|r|pkgs/(main|r))$|//repo\.anaconda\.com/pkgs/(main|r)/?$")


@check("conda.prefix")
def prefixes(facts: Facts, expect: Expect) -> Check:
    """Installations of conda are whole, those that are asked for are there."""
    found = {prefix.path: prefix for prefix in facts.conda.prefixes}
    evidence = [_of_prefix(prefix) for prefix in found.values()]
    bad = []
    for path in (item.path for item in expect.conda.prefixes):
        prefix = found.get(path)
        if prefix is None or prefix.state in ("empty", "foreign"):
            bad.append(f"{path}: {'not there' if prefix is None else prefix.state}")
        elif prefix.state == "partial":
            bad.append(f"{path}: only part of it is there")
    if bad:
        hint = "provision plan shows the changes; a partial conda of somebody else needs miniconda_repair: true"
        return failed(f"not as asked for: {'; '.join(bad)}", evidence, hint)
    broken = [prefix.path for prefix in found.values() if prefix.state == "partial"]
    if broken:
        return warned(
            f"only part of a conda is in {', '.join(broken)}",
            evidence,
            "nobody asks for it here; its owner may install it again or remove it",
        )
    if not found:
        return skipped("no conda, and none is asked for")
    return passed(f"{plural(len(found), 'installation')} whole", evidence)


@check("conda.environments")
def environments(facts: Facts, expect: Expect) -> Check:
    """Every environment that is asked for is there, and is what it was asked to be."""
    want, found = expect.conda, {env.path: env for env in facts.conda.environments}
    if not want.environments and not want.refused:
        return skipped("no environment is asked for", [_of(env) for env in found.values()])
    bad, evidence = list(want.refused), []
    for item in want.environments:
        env = found.get(item.path)
        if env is None:
            bad.append(f"{item.name} is not there")
            continue
        evidence.append(f"{_of(env)}{', changed since it was made' if env.changed else ''}")
        if env.unfinished:
            bad.append(f"{item.name} was not finished")
        elif env.state != "whole":
            bad.append(f"{item.name} is no whole environment")
        else:
            bad += [f"{item.name}: {problem}" for problem in _differs(item, env)]
    if bad:
        hint = "provision plan shows the changes; what differs is rebuilt only with miniconda_rebuild: true"
        return failed(f"not as asked for: {'; '.join(bad)}", bad + evidence, hint)
    return passed(f"{plural(len(want.environments), 'environment')} as asked for", evidence)


def _differs(item: EnvironmentExpect, env: CondaEnvironment) -> list[str]:
    """What of an environment differs from the request, as far as names tell."""
    problems = []
    for name, version in sorted(item.frameworks.items()):
        there = framework(env, name)
        if there is None:
            problems.append(f"{name} is missing")
            continue
        (have, _, local), (asked, _, wanted) = there.partition("+"), version.partition("+")
        if not same(asked, have) or (local and wanted and local != wanted):
            problems.append(f"{name} is {there}, {version} is asked for")
    if item.lib64 and not env.lib64:
        problems.append("lib64 is missing")
    return problems


@check("conda.cpu_build")
def cpu_builds(facts: Facts, expect: Expect) -> Check:
    """No environment that is meant for the GPU has a framework that was built without CUDA."""
    judged = [env for env in facts.conda.environments if env.builds]
    if not facts.gpus:
        return skipped("no GPU")
    if not judged:
        return skipped("no environment with a framework whose build is known")
    meant = {item.path: item.build for item in expect.conda.environments}
    bad, odd = [], []
    for env in judged:
        for name in sorted(name for name, kind in env.builds.items() if kind == "cpu"):
            line = f"{env.path}: {name} is a build for the CPU{_build(env, name)}"
            if meant.get(env.path) == "cuda":
                bad.append(line)
            elif env.path not in meant and (_GPU_NAME.search(env.name) or env.cuda):
                odd.append(line)
    hint = (
        "it never uses a GPU: such builds come where conda solves without a driver; "
        "an environment of the inventory has its build pinned"
    )
    evidence = bad + odd or [_of(env) for env in judged]
    if bad:
        return failed(f"{plural(len(bad), 'environment')} cannot use the GPU", evidence, hint)
    if odd:
        message = f"{plural(len(odd), 'environment')} made for the GPU by name or by packages cannot use it"
        return warned(message, evidence, hint)
    return passed(f"none where it should not be, of {plural(len(judged), 'environment')}", evidence)


def _build(env: CondaEnvironment, name: str) -> str:
    package = env.packages.get({"torch": "pytorch"}.get(name, name))
    build = package.build if package else env.pip.get(name)
    return f" ({build})" if build else ""


@check("conda.libcudart")
def cudart_links(facts: Facts, expect: Expect) -> Check:
    """Links libcudart.so… of environments lead to the version that their name promises."""
    found = facts.conda.environments
    if not found:
        return skipped("no environment")
    mine = {item.path for item in expect.conda.environments}
    bad, others = list[str](), list[str]()
    for env in found:
        for link in env.cudart_links:
            line = f"{link.path} leads {f'to {link.target}' if link.target else 'nowhere'}"
            (bad if env.path in mine else others).append(line)
    if not bad and not others:
        return passed("no link leads to another version than its name says")
    hint = (
        "remove such links, and install the version that the program asks for: a library under another's name "
        "is loaded and then fails at a symbol, or gives wrong results"
    )
    say = failed if bad else warned
    message = f"links of libcudart that lead to another version than their name says: {len(bad or others)}"
    return say(message, bad + others, hint)


@check("conda.channels")
def channels(facts: Facts, expect: Expect) -> Check:
    """Packages come from where they are meant to come from, and no terms need acceptance of it."""
    found = {prefix.path: prefix for prefix in facts.conda.prefixes if prefix.state == "whole"}
    if not found:
        return skipped("no conda")
    bad, asks, evidence = [], [], []
    for item in expect.conda.prefixes:
        prefix, file = found.get(item.path), f"{item.path}/.condarc"
        if prefix and item.channels is not None and prefix.condarcs.get(file) != item.channels:
            bad.append(f"{file} says {_list(prefix.condarcs.get(file))}, not {_list(item.channels)}")
    for path, prefix in sorted(found.items()):
        own = prefix.channels is None and prefix.distribution != "miniforge"
        effective = ["defaults"] if own else prefix.channels
        evidence.append(f"{path}: {_list(effective)}")
        named = [channel for channel in effective or () if _DEFAULTS.search(channel)]
        if named and prefix.asks_terms and not prefix.tos_accepted:
            asks.append(f"{path} takes packages from {_list(named)}, whose terms nobody accepted")
    if bad:
        return failed(f"other channels than asked for: {'; '.join(bad)}", evidence, "provision apply writes the file")
    if asks:
        hint = (
            "it ends with CondaToSNonInteractiveError: use conda-forge (miniconda_channels: [conda-forge]), "
            "or accept them (miniconda_accept_tos: true)"
        )
        return warned("conda asks for Anaconda's terms and fails where nobody can answer", asks + evidence, hint)
    return passed("no terms need acceptance", evidence)


def _list(names: Iterable[str] | None) -> str:
    return ", ".join(names or ()) or "nothing"


def _of_prefix(prefix: CondaPrefix) -> str:
    parts = [prefix.distribution, prefix.version] if prefix.state == "whole" else [prefix.state]
    lacks = f" ({', '.join(prefix.missing)})" if prefix.missing else ""
    return f"{prefix.path}: {' '.join(filter(None, parts))}{lacks}"


def _of(env: CondaEnvironment) -> str:
    """An environment in a line: /opt/miniconda3/envs/x: python 3.11.9, torch 2.6.0+cu124, CUDA 12.4."""
    parts = [f"python {env.python}"] if env.python else []
    parts += [f"{name} {version}" for name, version in frameworks(env).items()]
    parts += [f"CUDA {env.cuda}"] if env.cuda else []
    return f"{env.path}: {', '.join(parts) or env.state}"


CHECKS = (prefixes, environments, cpu_builds, cudart_links, channels)
