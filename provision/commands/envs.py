"""envs: every conda of every host, and what is in its environments. Reads only."""

from __future__ import annotations

from typing import Any

from provision.documents import EnvsDocument, EnvsHost, EnvsRow
from provision.errors import ProvisionError
from provision.facts import CondaEnvironment, CondaPrefix, Facts
from provision.inventory import Host
from provision.parts.conda.state import frameworks, made_by_us
from provision.planning import read_facts
from provision.remote import Session
from provision.runs.fleet import Fleet, Silent, Talk, ask_all

# What the measuring of sizes may take on a host before it is left out.
_SIZE_SECONDS = 45.0


def run(fleet: Fleet, talk: Talk | None = None, *, sizes: bool = True) -> EnvsDocument:
    """Read every host once. sizes: walk through the folders as well, which takes seconds."""

    def ask(host: Host, session: Session) -> tuple[Facts, dict[str, Any]]:
        facts = read_facts(session.call, fleet.values[host.name])
        paths = [one.path for one in facts.conda.prefixes] + [one.path for one in facts.conda.environments]
        if not sizes or not paths:
            return facts, {}
        budget = {"paths": paths, "seconds": _SIZE_SECONDS}
        return facts, session.call("conda.size", budget, timeout=_SIZE_SECONDS + 30)

    answers = ask_all(fleet, fleet.hosts, "reading conda", ask, talk or Silent())
    document, codes = EnvsDocument(), []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = EnvsHost(status=answer.host_status)
            document.errors.append(answer.issue)
            codes.append(answer.exit_code)
        else:
            document.hosts[name] = describe(*answer)
    return document.conclude(codes)


def describe(facts: Facts, sizes: dict[str, Any] | None = None) -> EnvsHost:
    """Return the rows of one host: each installation, then its environments; last those that lie alone."""
    sizes = sizes or {}
    rows = []
    for prefix in facts.conda.prefixes:
        rows.append(_of_prefix(prefix, sizes))
        rows += [_of_environment(env, sizes) for env in facts.conda.environments if env.prefix == prefix.path]
    rows += [_of_environment(env, sizes) for env in facts.conda.environments if env.prefix is None]
    return EnvsHost(status="ok", rows=rows)


def _of_prefix(prefix: CondaPrefix, sizes: dict[str, Any]) -> EnvsRow:
    notes = [f"channels {', '.join(prefix.channels)}"] if prefix.channels else []
    if prefix.unfinished:
        notes.append("its installation was interrupted")
    elif prefix.state == "partial":
        notes.append("only part of it is there: " + ", ".join(prefix.missing))
    elif prefix.state != "whole":
        notes.append("no conda: " + {"foreign": "something else is there", "empty": "an empty folder"}[prefix.state])
    distribution = prefix.distribution if prefix.state in ("whole", "partial") else ""
    return EnvsRow(
        kind="conda",
        name=" ".join(filter(None, (distribution, prefix.version))),
        path=prefix.path,
        owner=prefix.owner,
        state=prefix.state,
        python=prefix.python,
        made_by_us=prefix.record is not None,
        notes=notes,
        size_bytes=_size(prefix.path, sizes, "total"),
        own_bytes=_size(prefix.path, sizes, "own"),
    )


def _of_environment(env: CondaEnvironment, sizes: dict[str, Any]) -> EnvsRow:
    notes = []
    if env.unfinished:
        notes.append("its creation was interrupted")
    elif env.state == "partial":
        notes.append("no whole environment")
    elif env.state == "foreign":
        notes.append("no environment: something else is there")
    notes += [f"{name} is a build for the CPU" for name, kind in sorted(env.builds.items()) if kind == "cpu"]
    notes += [f"{link.path} leads to {link.target or 'nowhere'}" for link in env.cudart_links]
    if env.changed:
        notes.append("changed since gpu-provision made it")
    return EnvsRow(
        kind="environment",
        name=env.name,
        path=env.path,
        owner=env.owner,
        state=env.state,
        python=env.python,
        frameworks=frameworks(env),
        builds=dict(env.builds),
        cuda=env.cuda,
        cudnn=_library(env, "cudnn"),
        nccl=_library(env, "nccl"),
        made_by_us=made_by_us(env),
        notes=notes,
        size_bytes=_size(env.path, sizes, "total"),
        own_bytes=_size(env.path, sizes, "own"),
    )


def _library(env: CondaEnvironment, name: str) -> str | None:
    if name in env.packages:
        return env.packages[name].version
    wheels = [version for pip, version in sorted(env.pip.items()) if pip.startswith(f"nvidia-{name}-cu")]
    return wheels[-1] if wheels else None


def _size(path: str, sizes: dict[str, Any], which: str) -> int | None:
    found = sizes.get(path) or {}
    return int(found[which]) if which in found else None
