"""The checks of the cards that run something: count, compute, health, Xids, peers. What the host measured is judged here."""

from __future__ import annotations

from collections.abc import Sequence

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove import count as prove_count
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome
from provision.catalog import load_catalog
from provision.inventory import cards as expected_cards
from provision.parts.driver import dcgm, fabric, health, links, soak, xid
from provision.parts.proof import Bounds, Judging, Row, Verdict
from provision.parts.proof import outcome as outcome_of

# A unit that a CUDA program can use, and how the job compute ended on it.
Computed = tuple[Row, Outcome]
NO_LINK: Row = {"way": None, "gb_per_s": None, "words": ""}


def judge_count(
    survey: Outcome,
    bus: Sequence[str],
    seen: Outcome,
    hidden_by: str | None,
    expected: str,
    gpus: int = 0,
    login: Sequence[Outcome] = (),
) -> Verdict:
    """Return (status, message, evidence, hint, numbers) for gpu.count.

    gpus: how many the driver should have, 0 any; login: of loading the driver's libraries as programs of a login do.
    """
    if not survey.ok or not survey.result["cards"]:
        return "no_card", prove_count.no_card(survey, bus, seen), [f"{slot} on the bus" for slot in bus], None, {}
    cards, lost = survey.result["cards"], survey.result["lost"]
    instances = [instance for card in cards for instance in card["mig_instances"]]
    plain = [card for card in cards if not (card["mig"] or {}).get("current")]
    visible = len(seen.result["cards"]) if seen.ok else 0
    numbers: dict[str, float] = {
        "bus": len(bus),
        "driver": len(cards),
        "mig_instances": len(instances),
        "cuda": visible,
    }
    evidence = [f"card {card['index']}: {card['name']} at {card['bus_id']}" for card in cards]
    evidence += [f"card {row['index']}: {row['error']}" for row in lost]
    for card in cards:
        evidence += [f"card {card['index']}: MIG instance {row['name']}" for row in card["mig_instances"]]
    if lost:
        hint = "dmesg | grep Xid; often only a power cycle helps"
        return "fail", f"card {lost[0]['index']} does not answer", evidence, hint, numbers
    said, hints = list[str](), list[str | None]()
    if expected:
        try:
            said += expected_cards.differs(expected, [(card["name"], card["pci_id"]) for card in cards])
        except ValueError as error:
            return "fail", str(error), evidence, "write the expectation as 8x H100", numbers
        hints += ["a card is missing or of another kind, or the inventory is out of date"] if said else []
    if len(cards) < gpus:
        said.append(f"the driver has {len(cards)} of {gpus} cards")
        hints.append("see driver.bound and driver.devices; dmesg | grep NVRM says what became of the others")
    for outcome in login:
        if not outcome.ok:
            said.append(f"with the LD_LIBRARY_PATH of a login: {outcome.message}")
            hints.append("a broken or foreign file comes first: remove its folder from LD_LIBRARY_PATH")
    unmanaged = [card for card in cards if (card["mig"] or {}).get("current") and not card["mig_instances"]]
    if unmanaged:
        said.append(f"card {unmanaged[0]['index']} is in MIG mode and has no instance")
        hints.append("nvidia-smi mig -cgi ... -C makes instances; nvidia-smi -mig 0 ends MIG mode")
    # CUDA enumerates whole cards, or where every card is in MIG mode one instance a process.
    could = len(plain) or min(1, len(instances))
    only_hidden = False
    if hidden_by is not None and visible < could:
        only_hidden = not said and not expected and bool(visible)
        bare = {card["uuid"].lower() for card in seen.result["cards"]} if seen.ok else set()
        hidden = [str(card["index"]) for card in plain if card["uuid"].lower().split("-", 1)[-1] not in bare]
        what = f"card {', '.join(hidden)}" if visible else "every card"
        said.append(f"CUDA_VISIBLE_DEVICES={hidden_by!r} hides {what}")
        hints.append("unset CUDA_VISIBLE_DEVICES in the login's start files, or let only the job set it")
    elif not seen.ok and could:
        sentence, hint = prove_errors.ending(seen, "libcuda")
        said.append(f"the driver has {len(cards)} cards, CUDA does not start: {sentence}")
        hints.append(
            hint or "ldconfig -p | grep libcuda names the file that loads; the driver's package brings its own"
        )
    elif visible < could:
        said.append(f"CUDA sees {visible} of {could} cards")
        hints.append("dmesg | grep NVRM; see gpu.health")
    if said:
        return "warn" if only_hidden else "fail", "; ".join(said), evidence, hints[0], numbers
    message = f"{len(cards)} cards" if len(cards) != 1 else "1 card"
    if instances:
        message += f", {len(instances)} MIG instances (a program sees one, or those that CUDA_VISIBLE_DEVICES names)"
    return "pass", message, evidence, None, numbers


def judge_compute(computed: Sequence[Computed], why: Sequence[str], cards: Sequence[Row], bounds: Bounds) -> Verdict:
    """Judge [(unit, Outcome of prove.cuda.compute)].

    why: sentences about cards that were not loaded; cards: of the survey.
    """
    numbers: dict[str, float] = {}
    evidence, bad, hints = list[str](), list[str](), list[str | None]()
    for unit, outcome in computed:
        label = unit["label"]
        if not outcome.ok:
            sentence, hint = prove_errors.ending(outcome, f"card {label}")
            bad.append(sentence)
            hints.append(hint)
            evidence += [sentence] + outcome.lines(3)
            continue
        done = outcome.result
        for key, value in sorted(done["numbers"].items()):
            numbers[f"gpu{label}_{key}"] = value
        if done["wrong"]:
            bad.append(f"card {label} computes wrong: {done['wrong'][0]}")
            hints.append("see gpu.health and dmesg | grep Xid; a card that computes wrong must not be used")
        evidence += [f"card {label}: {words}" for words in done["wrong"]]
        evidence.append(_line(label, done))
    odd, signatured = signatures(computed)
    bad += odd
    hints += [_ODD for _ in odd]
    evidence += [*signatured, *why]
    if bad:
        return "fail", "; ".join(bad), evidence, next((hint for hint in hints if hint), None), numbers
    slow = slower_than_twins(computed)
    for unit, outcome in computed:
        status, words = judge_host(unit, outcome.result["numbers"], cards, bounds)
        if status == "fail":
            bad.append(words)
        elif status == "warn":
            slow.append(words)
    if bad:
        hint = "see gpu.health for the PCIe link and clocks; in a virtual machine others may use the bus too"
        return "fail", "; ".join(bad), evidence, hint, numbers
    if slow:
        return (
            "warn",
            "; ".join(slow),
            evidence,
            "see gpu.health: power, heat, a lower power limit (nvidia-smi -q -d POWER,PERFORMANCE)",
            numbers,
        )
    tensor = any(outcome.result.get("signatures", {}).keys() - {"fp64"} for _, outcome in computed)
    what = "vector, matrix and tensor cores" if tensor else "vector and matrix"
    message = f"{what} right on {len(computed)} of {len(computed) + len(why)}"
    return "pass", message, evidence, None, numbers


def signatures(computed: Sequence[Computed]) -> tuple[list[str], list[str]]:
    """([what is wrong], [a line for each set of signatures]): cards of one compute capability must have the same ones.

    The catalog's are held against the cards first; where it has none, the cards of this host against each other.
    """
    known = load_catalog().architectures.compute_capabilities
    found: dict[str, dict[tuple[tuple[str, str], ...], list[str]]] = {}
    for unit, outcome in computed:
        if outcome.ok and outcome.result.get("signatures"):
            rows = found.setdefault(unit["cc"], {})
            rows.setdefault(tuple(sorted(outcome.result["signatures"].items())), []).append(unit["label"])
    said, lines = list[str](), list[str]()
    for cc, rows in sorted(found.items()):
        most = dict(max(rows.items(), key=lambda row: len(row[1]))[0])
        right = most | (known[cc].signatures if cc in known else {})
        for signed, labels in rows.items():
            where = f"card {', '.join(labels)}"
            lines.append(f"{where}: tensor cores and FP64 " + ", ".join(f"{name} {value}" for name, value in signed))
            odd = [name for name, value in signed if right.get(name, value) != value]
            if odd:
                said.append(f"{where} rounds {', '.join(odd)} unlike others of compute capability {cc}")
    return said, lines


def judge_host(unit: Row, numbers: Row, cards: Sequence[Row], bounds: Bounds) -> tuple[str, str]:
    """(status, sentence) for the rate between host and card, and for memory where the user asks for a bound."""
    bandwidth, least = bounds.bandwidth, bounds.least
    if least.get("memory") and numbers["memory_gb_per_s"] < least["memory"]:
        return (
            "fail",
            f"card {unit['label']}: memory {numbers['memory_gb_per_s']:.0f} GB/s, at least {least['memory']:.0f} is asked for",
        )
    card = next(card for card in cards if card["index"] == unit["index"])
    nominal = links.pcie_gb_per_s(card, bandwidth) if bandwidth else None
    slowest = min(numbers["host_to_card_gb_per_s"], numbers["card_to_host_gb_per_s"])
    status, words = links.judge_rate(slowest, nominal, bandwidth.host if bandwidth else None, least.get("host"))
    return status, f"card {unit['label']}: between host and card {words}"


def _line(label: str, done: Row) -> str:
    n = done["numbers"]
    words = (
        f"card {label} {done['card']['name']}: {n['gflops']:.0f} GFLOP/s, memory {n['memory_gb_per_s']:.0f} GB/s, "
        f"to the card {n['host_to_card_gb_per_s']:.1f} GB/s, back {n['card_to_host_gb_per_s']:.1f} GB/s, "
        f"PTX compiled in {n['jit_ms']:.0f} ms"
    )
    if "memory_tested_gib" in n:
        words += (
            f", {n['memory_tested_gib']:.1f} GiB ({n['memory_tested_percent']:.0f} %) written and read "
            f"{n['memory_passes']} times"
        )
    return words


_ODD = (
    "run it again alone: a card that differs each time is faulty; where all cards of a host differ in the same way, the driver's"
    " compiler may have changed the order of sums"
)

# Cards of one kind in one host differ by a few percent; a quarter is a fault.
TWIN_SHARE = 0.75


def slower_than_twins(computed: Sequence[Computed]) -> list[str]:
    """Sentences about cards that are much slower than others of the same name in this host."""
    found: list[str] = []
    for key, what in (
        ("gflops", "GFLOP/s"),
        ("memory_gb_per_s", "GB/s of memory"),
        ("host_to_card_gb_per_s", "GB/s to the card"),
    ):
        values: dict[str, list[tuple[float, str]]] = {}
        for unit, outcome in computed:
            if outcome.ok:
                values.setdefault(unit["name"], []).append((outcome.result["numbers"][key], unit["label"]))
        for rows in values.values():
            best = max(value for value, _ in rows)
            found += [
                f"card {label} has {value:.0f} {what}, its best identical card {best:.0f}"
                for value, label in rows
                if value < TWIN_SHARE * best
            ]
    return found


# Pairs of one kind in one host differ by a few percent.
PAIR_SHARE = 0.6
_WRONG_PAIRS = (
    "wrong or missing peer traffic: ACS, the IOMMU, an NVLink that is down (nvidia-smi nvlink -s) or fabric manager"
)
_SLOW_PAIRS = "slow pairs: an NVLink that is down (nvidia-smi nvlink -s), a PCIe link below its width, ACS or the IOMMU"


def judge_peers(
    outcome: Outcome,
    labels: Sequence[int],
    cards: Sequence[Row],
    pairs: Sequence[Row],
    bounds: Bounds,
    host_hints: list[str],
) -> Verdict:
    """Judge what prove.p2p.matrix found.

    labels: index of a survey's card for each card of the job, in order; cards, pairs: of the survey; host_hints: sentences.
    """
    if not outcome.ok:
        sentence, hint = prove_errors.ending(outcome, "the peer-to-peer test")
        if outcome.status == "timeout":
            hint = "peer traffic hangs: ACS or the IOMMU is the usual reason; NCCL_P2P_DISABLE=1 avoids it"
        return "fail", sentence, outcome.lines() + host_hints, hint, {}
    known = {(pair["a"], pair["b"]): pair for pair in pairs}
    numbers: dict[str, float] = {}
    kinds: dict[tuple[str, bool], list[tuple[float, str]]] = {}
    evidence, bad, slow = list[str](), list[str](), list[str]()
    bandwidth, least = bounds.bandwidth, bounds.least.get("peer")
    for row in outcome.result["pairs"]:
        a, b = labels[row["from"]], labels[row["to"]]
        pair = known.get((min(a, b), max(a, b)))
        name = f"{a} to {b}"
        numbers[f"gpu{a}_gpu{b}_gb_per_s"] = row["gb_per_s"]
        numbers[f"gpu{a}_gpu{b}_us"] = row["us"]
        word = links.topology_name(pair) if pair else "?"
        evidence.append(
            f"{name}: {word}, {row['gb_per_s']:.1f} GB/s, {row['us']:.1f} us{'' if row['access'] else ', through the host'}"
        )
        kinds.setdefault((word, row["access"]), []).append((row["gb_per_s"], name))
        if row["wrong"] or row["wrong_direct"]:
            bad.append(f"{name}: {row['wrong'] or row['wrong_direct']} words arrive wrong")
        if pair is None or (bandwidth is None and least is None):
            continue
        if pair["nvlinks"] and not row["access"]:
            bad.append(f"{name}: {word} and no peer access")
            continue
        if not row["access"] and least is None:
            continue
        link = links.expected_pair(pair, cards, bandwidth) if bandwidth else NO_LINK
        share = bandwidth.peer.get(link["way"]) if bandwidth else None
        status, words = links.judge_rate(row["gb_per_s"], link["gb_per_s"], share, least)
        if status != "pass":
            (bad if status == "fail" else slow).append(f"{name}: {words}")
    for rows in kinds.values():
        best = max(rate for rate, _ in rows)
        slow += [
            f"{name}: {rate:.1f} GB/s, others of its kind reach {best:.1f}"
            for rate, name in rows
            if rate < PAIR_SHARE * best and not any(line.startswith(name + ":") for line in slow + bad)
        ]
    counted = outcome.result.get("link_errors") or []
    for label, count in zip(labels, counted, strict=False):
        if count:
            slow.append(f"card {label}: its NVLinks counted {count} errors meanwhile")
        if count is not None:
            numbers[f"gpu{label}_nvlink_errors"] = count
    for status, lines, hint in (("fail", bad, _WRONG_PAIRS), ("warn", slow, _SLOW_PAIRS)):
        if lines:
            return status, "; ".join(lines[:4]), lines + evidence + host_hints, hint, numbers
    rates = [row["gb_per_s"] for row in outcome.result["pairs"]]
    through = sum(1 for row in outcome.result["pairs"] if not row["access"])
    message = f"{len(rates)} pairs right, {min(rates):.1f} to {max(rates):.1f} GB/s"
    if through:
        message += f", {through} through the host: these cards have no peer access"
    return "pass", message, evidence, None, numbers


# --- what the host measured, by check ------------------------------------------------------------------------------


def _count(found: Row, bounds: Bounds) -> Verdict:
    survey, seen = outcome_of(found["survey"]), outcome_of(found["seen"])
    login = [outcome_of(row) for row in found.get("login", [])]
    return judge_count(survey, found["bus"], seen, found["hidden_by"], bounds.cards, bounds.gpus, login)


def _compute(found: Row, bounds: Bounds) -> Verdict:
    if "computed" in found:
        computed = [(unit, outcome_of(row)) for unit, row in found["computed"]]
        return judge_compute(computed, found["why"], found["cards"], bounds)
    survey, seen = outcome_of(found["survey"]), outcome_of(found["seen"])
    hint = None if seen.ok and survey.ok else prove_errors.ending(seen if survey.ok else survey, "the driver")[1]
    return "no_card", found["no_card"], [], hint, {}


def _health(found: Row, bounds: Bounds) -> Verdict:
    return health.judge(found["cards"], found["lost"], dict(found["samples"]))


def _xid(found: Row, bounds: Bounds) -> Verdict:
    outcome, table = outcome_of(found["outcome"]), load_catalog().xids
    verdict = xid.judge(outcome, table, bounds.recovered)
    if not outcome.ok:
        return verdict
    return fabric.with_fabric(verdict, outcome.result.get("fabric", []), table, outcome.result.get("now"))


def _peers(found: Row, bounds: Bounds) -> Verdict:
    outcome, hints = outcome_of(found["outcome"]), found["hints"]
    status, message, evidence, hint, numbers = judge_peers(
        outcome, found["labels"], found["cards"], found["pairs"], bounds, hints
    )
    return status, message, evidence + found["why"], hint, numbers


PROOFS: dict[str, Judging] = {
    "gpu.count": _count,
    "gpu.compute": _compute,
    "gpu.soak": soak.judge,
    "gpu.health": _health,
    "gpu.xid": _xid,
    "gpu.p2p": _peers,
    "gpu.dcgm": dcgm.judge,
}
