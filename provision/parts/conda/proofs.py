"""The check of frameworks that use a GPU from Python. What the host measured is judged here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome
from provision.parts.proof import Bounds, Judging, Row, Verdict, no_answer
from provision.parts.proof import outcome as outcome_of

# status, message, evidence, hint
_Said = tuple[str, str, list[str], str | None]
_NOT_FOR_EVERYONE = "do not export that folder for everyone: cuda-select or a modulefile sets it where it is needed"


def covers(architectures: Sequence[str], cc: str) -> str:
    """How a list such as ["sm_80", "sm_90a", "compute_90"] serves a compute capability: native, binary, jit or none.

    Source of the rule: CUDA programming guide: machine code runs on the same major and a minor not below; PTX on
    everything not below; names that end in a run on that one architecture only, in f within its family.
    """
    major, minor = (int(part) for part in cc.split("."))
    best = "none"
    for word in architectures:
        match = re.match(r"(sm|compute)_([0-9]+)([0-9])([af]?)$", word)
        if not match:
            continue
        kind, have, suffix = match.group(1), (int(match.group(2)), int(match.group(3))), match.group(4)
        if kind == "sm" and have == (major, minor):
            return "native"
        if suffix == "a":
            continue
        if kind == "sm" and have[0] == major and have[1] < minor:
            best = "binary"
        elif kind == "compute" and not suffix and have <= (major, minor) and best == "none":
            best = "jit"
    return best


def shadowed(
    library_path: str, with_path: Mapping[str, str], without_path: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return [(library, path with the export, path without)] of libraries that the export replaces."""
    folders = [folder.rstrip("/") for folder in library_path.split(":") if folder]
    found = []
    for name, path in sorted(with_path.items()):
        other = without_path.get(name)
        if other and other != path and any(path.startswith(folder + "/") for folder in folders):
            found.append((name, path, other))
    return found


def judge_one(
    framework: str,
    seen: Outcome,
    plain: Outcome | None,
    library_path: str,
    expected: Row,
    culprit: Sequence[str | None] | None = None,
) -> _Said:
    """Judge one framework of one interpreter.

    seen: Outcome with the login's library path (or without one, where there is none); plain: Outcome without, or None
    where that is the same. culprit: of prove.framework.culprit, where it fails with that path only.
    expected: {"count": cards that CUDA sees or None, "ccs": their compute capabilities}.
    """
    if not seen.ok:
        return _fails(framework, seen, plain, library_path, culprit)
    found = seen.result
    more = [f"{title} {found[name]}" for title, name in (("cuDNN", "cudnn"), ("NCCL", "nccl")) if found[name]]
    evidence = [", ".join([f"{framework} {found['version']}", f"CUDA {found['cuda']}", *more])]
    evidence += [
        f"{name}: {path}"
        for name, path in sorted(found["libraries"].items())
        if re.match(r"lib(cudart|cudnn|nccl)[.-]", name)
    ]
    status, message, hint = _uses(f"{framework} {found['version']}", found, plain, library_path, expected, evidence)
    return status, message, evidence, hint


def _fails(
    framework: str, seen: Outcome, plain: Outcome | None, library_path: str, culprit: Sequence[str | None] | None
) -> _Said:
    if plain is not None and plain.ok:
        path = culprit[0] if culprit else None
        evidence = [seen.message, f"LD_LIBRARY_PATH={library_path}"]
        if culprit:
            evidence.append(f"with it: {path}; without: {culprit[1] or 'not loaded from there'}")
        shadow = f"shadowed library{f' {path}' if path else ''}"
        what = f"{framework} fails with the login's LD_LIBRARY_PATH and works without: {shadow}"
        return "fail", what, evidence, _NOT_FOR_EVERYONE
    code = prove_errors.code_in(seen.message or "")
    if seen.status == "error" and code is None:
        what = f"{framework} cannot be used: {seen.message.splitlines()[0]}"
        return "fail", what, seen.lines(), "install it again in that environment; see the error above"
    sentence, hint = prove_errors.ending(seen, framework)
    return "fail", sentence, [seen.message] + seen.lines(), hint or (prove_errors.explain(code)[1] if code else None)


def _uses(
    label: str, found: Row, plain: Outcome | None, library_path: str, expected: Row, evidence: list[str]
) -> tuple[str, str, str | None]:
    """(status, message, hint) of a framework that can be imported; what it finds is added to evidence."""
    if found.get("hip"):
        return "skip", f"{label} is built for AMD cards", None
    if not found["cuda"]:
        hint = "install the build for CUDA: a wheel with +cuXYZ, or conda's cuda build pinned by its build string"
        return "fail" if expected["count"] else "no_card", f"{label} is a build for the CPU only", hint
    if plain is not None and not plain.ok:
        evidence.append(plain.message)
        hint = (
            "cron, services and ssh commands do not have it: install the libraries that it lacks, or use ld.so.conf.d"
        )
        return "fail", f"{label} works only with the login's LD_LIBRARY_PATH", hint
    if not expected["count"]:
        why = expected.get("no_card") or "there is no card to use"
        return "no_card", f"{label} for CUDA {found['cuda']} imports, not run: {why}", None
    if not found["available"] or not found["count"]:
        code = prove_errors.code_in(found["why"] or "")
        evidence += [found["why"]] if found["why"] else []
        sentence, way = prove_errors.explain(code) if code else ("it sees no card", "see gpu.compute and gpu.count")
        return "fail", f"{label}: {sentence}", way
    if found["count"] != expected["count"]:
        hint = "CUDA_VISIBLE_DEVICES, MIG and containers change what is seen: see gpu.count"
        return "fail", f"{label} sees {found['count']} cards, CUDA {expected['count']}", hint
    wrong = [card for card in found["cards"] if card["wrong"]]
    if wrong:
        code = prove_errors.code_in(wrong[0]["wrong"])
        evidence += [f"card {card['index']}: {card['wrong']}" for card in wrong]
        hint = prove_errors.explain(code)[1] if code else "see gpu.compute"
        return "fail", f"{label} computes wrong on {len(wrong)} of {len(found['cards'])}", hint
    lists = found["architectures"]
    bare = [cc for cc in expected["ccs"] if lists and covers(lists, cc) == "none"]
    if bare:
        evidence.append(" ".join(lists))
        hint = "take the build that is: provision compat --gpu NAME --torch X.Y names it"
        return "fail", f"{label} is not compiled for compute capability {', '.join(bare)}", hint
    jit = [cc for cc in expected["ccs"] if lists and covers(lists, cc) == "jit"]
    if jit:
        evidence.append(f"only PTX for {', '.join(jit)}: the first start of every kernel is slow")
    taken = shadowed(library_path, found["libraries"], plain.result["libraries"]) if plain is not None else []
    if taken:
        evidence += [f"{name}: with LD_LIBRARY_PATH {one}, without {other}" for name, one, other in taken]
        what = f"{label} works, with {len(taken)} shadowed libraries from LD_LIBRARY_PATH"
        return "warn", what, _NOT_FOR_EVERYONE
    if not found["cards"]:
        return (
            "not_run",
            f"{label} for CUDA {found['cuda']} sees {found['count']} cards, not run: none of them is free",
            None,
        )
    return "pass", f"{label} for CUDA {found['cuda']}, right on {len(found['cards'])} of {found['count']}", None


_GRAVITY = ("fail", "no_card", "warn", "not_run", "pass", "skip")


def combine(rows: Sequence[_Said], more: Sequence[str]) -> _Said:
    """One (status, message, evidence, hint) of several: the gravest speaks, all give evidence."""
    worst = min(rows, key=lambda row: _GRAVITY.index(row[0]))
    message = worst[1] if worst[0] in ("fail", "no_card", "warn") else "; ".join(row[1] for row in rows)
    return worst[0], message, [line for row in rows for line in row[2]] + list(more), worst[3]


def _framework(found: Row, bounds: Bounds) -> Verdict:
    path = found["path"]
    if "odd" in found:
        return no_answer(path, found["odd"])
    if found.get("missing"):
        return "fail", f"{path} cannot be started", [], "name an existing interpreter", {}
    if "find" in found:
        find = outcome_of(found["find"])
        sentence, hint = prove_errors.ending(find, path)
        return "fail", sentence, find.lines(), hint, {}
    rows = [
        judge_one(
            row["framework"],
            outcome_of(row["seen"]),
            outcome_of(row["plain"]) if row["plain"] else None,
            found["library_path"],
            found["expected"],
            row["culprit"],
        )
        for row in found["rows"]
    ]
    return (*combine(rows, found["why"]), {})


PROOFS: dict[str, Judging] = {"python.framework": _framework}
