# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The checks of conda, by facts alone: installations, environments, builds without CUDA, links, channels.

Pure functions as in ``checks``. ``want["conda"]`` says what the inventory asks for, keys as in WISH; without it what
is there is looked at all the same, and nothing is held against it that its owner may have meant.
"""

from __future__ import annotations

import re

from provision.parts import verdicts

WISH = {
    # [{"path", "channels"}] asked for; channels: what its .condarc should say, None: not ours
    "prefixes": [],
    # [{"name", "path", "build": cuda | cpu | "", "frameworks": {name: version}, "wish", "lib64"}]
    "environments": [],
    # sentences: what is asked for and cannot be here
    "refused": [],
}
_GPU_NAME = re.compile(r"cuda|gpu|(^|[^a-z])cu[0-9]{2,3}", re.I)
_verdict = verdicts.verdict
_DEFAULTS = re.compile(r"^(defaults|main|r|pkgs/(main|r))$|//repo\.anaconda\.com/pkgs/(main|r)/?$")


def wish_of(want):
    """What is asked for of conda, every key there."""
    return dict(WISH, **(want.get("conda") or {}))


def conda_of(facts):
    """facts.Conda as a dict; empty lists where the host was read by an older probe."""
    return dict({"prefixes": [], "environments": []}, **(facts.get("conda") or {}))


def prefixes(facts, want):
    """Installations of conda are whole, those that are asked for are there."""
    check, wish = "conda.prefix", wish_of(want)
    found = {prefix["path"]: prefix for prefix in conda_of(facts)["prefixes"]}
    evidence = [_of_prefix(prefix) for prefix in found.values()]
    wanted = [item["path"] for item in wish["prefixes"]]
    bad = []
    for path in wanted:
        prefix = found.get(path)
        if prefix is None or prefix["state"] in ("empty", "foreign"):
            bad.append("%s: %s" % (path, "not there" if prefix is None else prefix["state"]))
        elif prefix["state"] == "partial":
            bad.append("%s: only part of it is there" % path)
    if bad:
        hint = "provision plan shows what is to be done; a part that is not ours needs miniconda_repair: true"
        return _verdict(check, "fail", "not as asked for: %s" % "; ".join(bad), evidence, hint)
    broken = [prefix["path"] for prefix in found.values() if prefix["state"] == "partial"]
    if broken:
        return _verdict(
            check,
            "warn",
            "only part of a conda is in %s" % ", ".join(broken),
            evidence,
            "nobody asks for it here; its owner may install it again or remove it",
        )
    if not found:
        return _verdict(check, "skip", "no conda, and none is asked for")
    return _verdict(check, "pass", "%s whole" % _count(len(found), "installation"), evidence)


def environments(facts, want):
    """Every environment that is asked for is there, and is what it was asked to be."""
    check, wish = "conda.environments", wish_of(want)
    found = {env["path"]: env for env in conda_of(facts)["environments"]}
    if not wish["environments"] and not wish["refused"]:
        return _verdict(check, "skip", "no environment is asked for", [_of(env) for env in found.values()])
    bad, evidence = list(wish["refused"]), []
    for item in wish["environments"]:
        env = found.get(item["path"])
        if env is None:
            bad.append("%s is not there" % item["name"])
            continue
        evidence.append(_of(env) + (", changed since it was made" if env["changed"] else ""))
        if env["unfinished"]:
            bad.append("%s was not finished" % item["name"])
        elif env["state"] != "whole":
            bad.append("%s is no whole environment" % item["name"])
        else:
            bad += ["%s: %s" % (item["name"], problem) for problem in _differs(item, env)]
    if bad:
        hint = "provision plan shows what is to be done; what differs is made anew only with miniconda_rebuild: true"
        return _verdict(check, "fail", "not as asked for: %s" % "; ".join(bad), bad + evidence, hint)
    return _verdict(check, "pass", "%s as asked for" % _count(len(wish["environments"]), "environment"), evidence)


def _differs(item, env):
    """What of an environment is other than asked for, as far as names tell."""
    problems = []
    for name, version in sorted(item["frameworks"].items()):
        there = _framework(env, name)
        asked = version.split("+")[0].replace(".*", "")
        if there is None:
            problems.append("%s is missing" % name)
        elif (
            not _begins(there.split("+")[0], asked)
            or "+" in version
            and "+" in there
            and version.split("+")[1] != there.split("+")[1]
        ):
            problems.append("%s is %s, %s is asked for" % (name, there, version))
    if item.get("lib64") and not env["lib64"]:
        problems.append("lib64 is missing")
    return problems


def _framework(env, name):
    """Version of a framework in an environment, by pip's name or by conda's; None when it is not there."""
    for other in (name, "%s-cpu" % name):
        if other in env["pip"]:
            return env["pip"][other]
    package = env["packages"].get({"torch": "pytorch"}.get(name, name))
    return package["version"] if package else None


def _begins(version, asked):
    parts = asked.split(".")
    return version.split(".")[: len(parts)] == parts


def cpu_builds(facts, want):
    """No environment that is meant for the GPU has a framework that was built without CUDA (scenario M2)."""
    check = "conda.cpu_build"
    found = conda_of(facts)["environments"]
    judged = [env for env in found if env["builds"]]
    if not facts["gpus"]:
        return _verdict(check, "skip", "no GPU")
    if not judged:
        return _verdict(check, "skip", "no environment with a framework whose build is known")
    meant = {item["path"]: item["build"] for item in wish_of(want)["environments"]}
    bad, odd = [], []
    for env in judged:
        for name in sorted(name for name, kind in env["builds"].items() if kind == "cpu"):
            line = "%s: %s is a build for the CPU%s" % (env["path"], name, _build(env, name))
            if meant.get(env["path"]) == "cuda":
                bad.append(line)
            elif env["path"] not in meant and (_GPU_NAME.search(env["name"]) or env["cuda"]):
                odd.append(line)
    hint = (
        "it never uses a GPU: such builds come where conda solves without a driver; "
        "an environment of the inventory has its build pinned"
    )
    evidence = bad + odd or [_of(env) for env in judged]
    if bad:
        return _verdict(check, "fail", "%s cannot use the GPU" % _count(len(bad), "environment"), evidence, hint)
    if odd:
        message = "%s made for the GPU by name or by packages cannot use it" % _count(len(odd), "environment")
        return _verdict(check, "warn", message, evidence, hint)
    return _verdict(check, "pass", "none where it should not be, of %s" % _count(len(judged), "environment"), evidence)


def _build(env, name):
    package = env["packages"].get({"torch": "pytorch"}.get(name, name))
    build = package["build"] if package else env["pip"].get(name)
    return " (%s)" % build if build else ""


def cudart_links(facts, want):
    """Links libcudart.so… of environments lead to the version that their name promises (scenario M4)."""
    check = "conda.libcudart"
    found = conda_of(facts)["environments"]
    if not found:
        return _verdict(check, "skip", "no environment")
    mine = {item["path"] for item in wish_of(want)["environments"]}
    bad, others = [], []
    for env in found:
        for link in env["cudart_links"]:
            told = "%s leads %s" % (link["path"], "to %s" % link["target"] if link["target"] else "nowhere")
            (bad if env["path"] in mine else others).append(told)
    if not bad and not others:
        return _verdict(check, "pass", "no link leads to another version than its name says")
    hint = (
        "take such links away, and install the version that the program asks for: a library under another's name "
        "is loaded and then fails at a symbol, or gives wrong results"
    )
    if bad:
        message = "links of libcudart that lead to another version than their name says: %d" % len(bad)
        return _verdict(check, "fail", message, bad + others, hint)
    message = "links of libcudart that lead to another version than their name says: %d" % len(others)
    return _verdict(check, "warn", message, others, hint)


def channels(facts, want):
    """Packages come from where they are meant to come from, and no terms stand in the way of it (scenario M1)."""
    check = "conda.channels"
    found = {prefix["path"]: prefix for prefix in conda_of(facts)["prefixes"] if prefix["state"] == "whole"}
    if not found:
        return _verdict(check, "skip", "no conda")
    bad, asks, evidence = [], [], []
    for item in wish_of(want)["prefixes"]:
        prefix = found.get(item["path"])
        if prefix is None or item["channels"] is None:
            continue
        file = item["path"] + "/.condarc"
        if prefix["condarcs"].get(file) != item["channels"]:
            bad.append("%s says %s, not %s" % (file, _list(prefix["condarcs"].get(file)), _list(item["channels"])))
    for path, prefix in sorted(found.items()):
        effective = (
            ["defaults"] if prefix["channels"] is None and prefix["distribution"] != "miniforge" else prefix["channels"]
        )
        evidence.append("%s: %s" % (path, _list(effective)))
        named = [channel for channel in effective or () if _DEFAULTS.search(channel)]
        if named and prefix["asks_terms"] and not prefix["tos_accepted"]:
            asks.append("%s takes packages from %s, whose terms nobody accepted" % (path, _list(named)))
    if bad:
        message = "other channels than asked for: %s" % "; ".join(bad)
        return _verdict(check, "fail", message, evidence, "provision apply writes the file")
    if asks:
        hint = (
            "it ends with CondaToSNonInteractiveError: use conda-forge (miniconda_channels: [conda-forge]), "
            "or accept them (miniconda_accept_tos: true)"
        )
        return _verdict(
            check, "warn", "conda asks for Anaconda's terms and fails where nobody can answer", asks + evidence, hint
        )
    return _verdict(check, "pass", "no terms stand in the way", evidence)


def _list(names):
    return ", ".join(names) if names else "nothing"


def _count(number, one, more=None):
    return "%d %s" % (number, one if number == 1 else more or one + "s")


def _of_prefix(prefix):
    words = [prefix["distribution"], prefix["version"] or ""] if prefix["state"] == "whole" else [prefix["state"]]
    lacks = " (%s)" % ", ".join(prefix["missing"]) if prefix["missing"] else ""
    return "%s: %s%s" % (prefix["path"], " ".join(filter(None, words)), lacks)


def _of(env):
    """An environment in a line: /opt/miniconda3/envs/x: python 3.11.9, torch 2.6.0+cu124, CUDA 12.4."""
    words = ["python %s" % env["python"]] if env["python"] else []
    for name in ("torch", "tensorflow", "jax"):
        version = _framework(env, name)
        if version:
            words.append("%s %s" % (name, version))
    if env["cuda"]:
        words.append("CUDA %s" % env["cuda"])
    return "%s: %s" % (env["path"], ", ".join(words) or env["state"])


CHECKS = (prefixes, environments, cpu_builds, cudart_links, channels)
