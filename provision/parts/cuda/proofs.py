"""The checks of CUDA that run something: which library loads, NCCL, cuDNN, nvcc.

What the host measured is judged here, by the catalog's rates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove import compile as prove_compile
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome
from ansible_collections.gpu.provision.plugins.module_utils.prove.sizes import MIB, size_text
from provision.parts.driver import links
from provision.parts.driver.proofs import NO_LINK
from provision.parts.proof import Bounds, Judging, Row, Verdict
from provision.parts.proof import outcome as outcome_of

# status, sentences, hint
Library = tuple[str, list[str], str | None]


def judge_library(
    what: str, login: Outcome, plain: Outcome | None, library_path: str, version: str | None, installed: str | None
) -> Library:
    """Return (status, [sentences], hint) about which file was loaded.

    what: "NCCL"; login, plain: Outcomes of ``which`` with the login's library path and without (plain None: there is
    no such path); version: what the loaded one says of itself, or None; installed: version that header or package say,
    or None. status: pass, skip (not there at all) or fail.
    """
    if not login.ok:
        message = login.message or ""
        if plain is not None and plain.ok:
            return (
                "fail",
                [
                    f"{what} does not load with the login's library path, and does without",
                    message,
                    f"LD_LIBRARY_PATH={library_path}; without it: {plain.result['path']}",
                ],
                "a broken or foreign file comes first: remove its folder from LD_LIBRARY_PATH",
            )
        if message.startswith("NotThere"):
            return "skip", [re.sub(r"^NotThere: | \(.*$", "", message)], None
        return ("fail", [f"{what} does not load", message], "its package, or one that it needs, is incomplete")
    path = login.result["path"]
    sentences = [f"{' '.join(filter(None, [what, version]))} is {path}"]
    if plain is not None and plain.ok and plain.result["path"] != path:
        sentences.append(f"without LD_LIBRARY_PATH={library_path} it is {plain.result['path']}")
    if version and installed and _numbers(version) != _numbers(installed)[: len(_numbers(version))]:
        return (
            "fail",
            [f"the {what} that loads is {version}, installed is {installed}: {path}"] + sentences,
            "another file comes first: check LD_LIBRARY_PATH, /etc/ld.so.conf.d and ldconfig -p",
        )
    if len(sentences) > 1:
        return (
            "warn",
            [f"the login's library path puts another {what} first: {path}"] + sentences,
            "do not export that folder for everyone: cuda-select or a modulefile sets it where it is needed",
        )
    return "pass", sentences, None


def when_it_failed(sentence: str, hint: str | None, library: Library) -> tuple[str, str | None]:
    """(sentence, hint) for a failed job: where the login's library path puts another file first, that comes first."""
    if library[0] == "warn":
        return f"{library[1][0]}, and fails: {sentence}", library[2]
    return sentence, hint


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", version.split("-")[0].split("+")[0])]


# What slows all-reduce on purpose, for machines where the quick way does not work.
_SLOWING = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_PROTO", "NCCL_ALGO")


def judge_nccl(
    outcome: Outcome,
    cards: Sequence[Row],
    pairs: Sequence[Row],
    bounds: Bounds,
    library: Library,
    host_hints: list[str],
    exported: Mapping[str, str],
) -> Verdict:
    """Judge what prove.nccl.allreduce found.

    cards, pairs: of the survey, those that took part; library: of judge_library; host_hints: sentences;
    exported: NCCL_ variables of a login.
    """
    if not outcome.ok:
        sentence, hint = prove_errors.ending(outcome, f"all-reduce over {len(cards)} cards")
        if outcome.status == "timeout" and outcome.at and len(cards) > 1:
            hint = "try NCCL_P2P_DISABLE=1: if that works, ACS or the IOMMU is in the way; NCCL_DEBUG=INFO says more"
        sentence, hint = when_it_failed(sentence, hint, library)
        return "fail", sentence, library[1] + outcome.lines() + host_hints, hint, {}
    done, bandwidth, least = outcome.result, bounds.bandwidth, bounds.least.get("allreduce")
    numbers = {"init_ms": done["init_ms"]}
    evidence = list(library[1]) + [f"a login exports {name}={value}" for name, value in sorted(exported.items())]
    for row in done["rows"]:
        name = "allreduce_" + size_text(row["bytes"])
        numbers[name + "_us"] = row["us"]
        # Below that the time of a call counts, not the links.
        wide = done["cards"] > 1 and row["bytes"] >= MIB
        if wide:
            numbers[name + "_bus_gb_per_s"] = row["bus_gb_per_s"]
        bus = f", bus {row['bus_gb_per_s']:.1f} GB/s" if wide else ""
        evidence.append(f"{size_text(row['bytes'])}: {row['us']:.1f} us{bus}")
    if done["wrong"]:
        return (
            "fail",
            f"sums are wrong: {done['wrong'][0]}",
            done["wrong"] + evidence + host_hints,
            "see gpu.p2p and gpu.health; NCCL_P2P_DISABLE=1 shows whether peer traffic is at fault",
            numbers,
        )
    if library[0] != "pass":
        return library[0], library[1][0], evidence, library[2], numbers
    if done["cards"] < 2:
        return "pass", f"NCCL {done['version']} sums right on one card", evidence, None, numbers
    best = max(row["bus_gb_per_s"] for row in done["rows"])
    if not pairs:
        return (
            "pass",
            f"NCCL {done['version']} sums right, {best:.1f} GB/s, not judged: topology not known",
            evidence,
            None,
            numbers,
        )
    if bandwidth is None and least is None:
        return (
            "pass",
            f"NCCL {done['version']} sums right, {best:.1f} GB/s, not judged: no thresholds",
            evidence,
            None,
            numbers,
        )
    link = links.expected(cards, pairs, bandwidth) if bandwidth else NO_LINK
    share = bandwidth.allreduce.get(link["way"]) if bandwidth else None
    status, text = links.judge_rate(best, link["gb_per_s"], share, least)
    evidence.append(f"{done['cards']} cards, {link['words']}")
    if status == "pass":
        return (
            "pass",
            f"NCCL {done['version']} sums right over {done['cards']} cards, bus {text}",
            evidence,
            None,
            numbers,
        )
    hint = "gpu.p2p names slow pairs; NCCL_DEBUG=INFO says which way NCCL takes"
    slowing = [f"{name}={value}" for name, value in sorted(exported.items()) if name in _SLOWING]
    if slowing:
        hint = f"unset {', '.join(slowing)} in the login's start files: it keeps NCCL from the quick way"
    return (status, f"all-reduce over {done['cards']} cards is slow: bus {text}", evidence + host_hints, hint, numbers)


def judge_cudnn(outcome: Outcome, library: Library) -> Verdict:
    """Judge what prove.cudnn.convolve found. library: of judge_library."""
    evidence = list(library[1])
    if not outcome.ok:
        sentence, hint = prove_errors.ending(outcome, "cuDNN")
        hint = hint or "cuDNN and CUDA do not fit together, or a part of cuDNN is missing: see which files were loaded"
        sentence, hint = when_it_failed(sentence, hint, library)
        return "fail", sentence, evidence + outcome.lines(), hint, {}
    done = outcome.result
    if done["wrong"]:
        return ("fail", f"cuDNN {done['version']}: {done['wrong']}", evidence, "see gpu.compute and gpu.health", {})
    if library[0] != "pass":
        return library[0], library[1][0], evidence, library[2], {}
    return "pass", f"cuDNN {done['version']} convolves right", evidence, None, {}


def judge_compile(version: str, outcome: Outcome, no_card: str | None, why: Sequence[str] = ()) -> Verdict:
    """Return (status, message, evidence, hint, numbers) for a toolkit.

    outcome: of the job build; no_card: why there is no card to run on, else None; why: of cards that are left alone.
    """
    if not outcome.ok:
        sentence, hint = prove_errors.ending(outcome, f"nvcc {version}")
        return "fail", sentence, outcome.lines(), hint, {}
    done = outcome.result
    numbers = {"nvcc_s": done["nvcc_s"]}
    given_up = sorted(cc for cc, how in done["how"].items() if how == "none")
    if given_up and not done["built"] and not done["said"]:
        return (
            "fail",
            f"CUDA {version} no longer compiles for compute capability {', '.join(given_up)}",
            [],
            "an older toolkit still does: provision compat --gpu NAME says which",
            numbers,
        )
    if not done["built"]:
        _, sentence, hint = prove_compile.read_nvcc(done["said"])
        return ("fail", f"does not compile: {sentence}", done["said"].strip().splitlines()[-6:], hint, numbers)
    evidence = [f"nvcc took {done['nvcc_s']:.1f} s"]
    for run in done["runs"]:
        numbers[f"gpu{run['label']}_run_s"] = run["seconds"]
        if run["rc"] == 0 and run["said"].split()[-1:] == ["OK"]:
            evidence.append(f"card {run['label']}: {done['how'][run['cc']]}, results equal the CPU's")
            continue
        said = run["said"].strip() or f"exit code {run['rc']}"
        code = prove_errors.code_in(said)
        if code is None:
            return ("fail", f"card {run['label']}: {said.splitlines()[-1]}", evidence + [said], None, numbers)
        sentence, hint = prove_errors.explain(code)
        return "fail", f"card {run['label']}: {sentence}", evidence + said.splitlines(), hint, numbers
    if given_up:
        return (
            "fail",
            f"CUDA {version} no longer compiles for compute capability {', '.join(given_up)}",
            evidence,
            "an older toolkit still does: provision compat --gpu NAME says which",
            numbers,
        )
    if done["compiler"]:
        return (
            "warn",
            f"compiles with {done['compiler']} only: the default gcc is newer than {done['default_too_new']}",
            evidence,
            f"nvcc -ccbin {done['compiler']} (CUDAHOSTCXX for CMake)",
            numbers,
        )
    if not done["runs"]:
        status = "no_card" if no_card else "not_run"
        return status, f"compiled, not run: {no_card or why[0]}", evidence, None, numbers
    jit = sorted(cc for cc, how in done["how"].items() if how == "jit")
    if jit:
        return (
            "pass",
            f"compiled and run, by PTX for compute capability {', '.join(jit)}: this toolkit is older than the card",
            evidence,
            None,
            numbers,
        )
    many = len(done["runs"])
    return ("pass", f"compiled for {', '.join(sorted(done['how']))} and run on {many}", evidence, None, numbers)


# --- what the host measured, by check ------------------------------------------------------------------------------


def _library(what: str, found: Row, bounds: Bounds, outcome: Outcome | None) -> Library:
    login, plain = outcome_of(found["login"]), found["plain"]
    version = outcome.result["version"] if outcome and outcome.ok else None
    installed = bounds.installed.get(what.lower())
    return judge_library(what, login, outcome_of(plain) if plain else None, found["library_path"], version, installed)


def _nccl(found: Row, bounds: Bounds) -> Verdict:
    outcome = outcome_of(found["outcome"]) if "outcome" in found else None
    library = _library("NCCL", found, bounds, outcome)
    if outcome is None:
        return library[0], library[1][0], library[1], library[2], {}
    status, message, evidence, hint, numbers = judge_nccl(
        outcome, found["cards"], found["pairs"], bounds, library, found["hints"], found["exported"]
    )
    return status, message, evidence + found["why"], hint, numbers


def _cudnn(found: Row, bounds: Bounds) -> Verdict:
    outcome = outcome_of(found["outcome"]) if "outcome" in found else None
    library = _library("cuDNN", found, bounds, outcome)
    if outcome is None:
        return library[0], library[1][0], library[1], library[2], {}
    return judge_cudnn(outcome, library)


def _compile(found: Row, bounds: Bounds) -> Verdict:
    status, message, evidence, hint, numbers = judge_compile(
        found["version"], outcome_of(found["outcome"]), found["no_card"], found["why"]
    )
    return status, message, evidence + found["why"], hint, numbers


PROOFS: dict[str, Judging] = {"gpu.nccl": _nccl, "gpu.cudnn": _cudnn, "cuda.compile": _compile}
