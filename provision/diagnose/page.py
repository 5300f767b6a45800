"""The page of a code, from its rule: what docs/findings holds and ``--explain`` tells."""

from __future__ import annotations

import textwrap

from provision.catalog import load_catalog
from provision.diagnose.registry import all_rules, area
from provision.diagnose.rule import Rule

_TITLES = {
    "host": "The host itself",
    "disk": "Disks",
    "dpkg": "dpkg",
    "apt": "apt",
    "holds": "Holds",
    "boot": "What boots",
    "secureboot": "Secure Boot",
    "kernel": "Kernel and module",
    "driver": "Driver",
    "nouveau": "nouveau and nova",
    "gpus": "GPUs",
    "fabric": "NVSwitch and fabric manager",
    "mig": "MIG",
    "reboot": "Reboots",
    "desktop": "Desktop and X",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "containers": "Containers",
    "conda": "conda",
    "proxy": "Proxies",
    "shell": "Shells",
}
_ERRORS = {
    "error": "error: something does not work, or will not after the next boot or apt run",
    "warning": "warning: it works, and one ordinary event breaks it",
    "note": "note: worth knowing; it never counts against a host",
}


def page(rule: Rule) -> str:
    """Return the text of docs/findings/CODE.md."""
    parts = [f"# {rule.code}", f"{_sentence(rule.title)}", f"*{_ERRORS[rule.level]}.*", _folded(rule.explain)]
    for heading, text in (
        ("What it breaks", rule.breaks),
        ("The smallest repair", _repair(rule)),
        ("What prevents it", rule.prevent),
    ):
        if text:
            parts.append(f"## {heading}\n\n{_folded(_sentence(text))}")
    if rule.texts:
        patterns = "\n".join(f"- `{pattern}`" for pattern in rule.texts)
        parts.append(
            f"## Errors that lead here\n\n`provision diagnose --text` knows it by (regular expressions):\n\n{patterns}"
        )
    links = [
        (words, codes) for words, codes in (("Follows from", rule.symptom_of), ("Mended after", rule.after)) if codes
    ]
    if links:
        parts.append("\n".join(f"{words}: {', '.join(f'[{c}]({c}.md)' for c in codes)}." for words, codes in links))
    if rule.sources:
        parts.append("## Sources\n\n" + "\n".join(f"- {source}" for source in rule.sources))
    parts.append("Written from the rule by `make docs`. [All findings](README.md).")
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Return the text of docs/findings/README.md: every code by area."""
    parts = [
        "# What diagnose can find",
        _folded(
            "`provision diagnose` names causes by these codes; `provision diagnose --explain CODE` prints the page of one, and "
            "`provision diagnose --text 'an error'` finds the code that an error text leads to. Errors that are known by their "
            "text alone are in [traps.md](traps.md)."
        ),
    ]
    areas = dict.fromkeys(area(rule.code) for rule in all_rules())
    for name in areas:
        rows = [rule for rule in all_rules() if area(rule.code) == name]
        table = "\n".join(f"| [{rule.code}]({rule.code}.md) | {rule.level} | {rule.title} |" for rule in rows)
        parts.append(f"## {_TITLES.get(name, name)}\n\n| code | level | cause |\n| --- | --- | --- |\n{table}")
    parts.append("Written from the rules by `make docs`.")
    return "\n\n".join(parts) + "\n"


def traps_page() -> str:
    """Return the text of docs/findings/traps.md: errors that are known by their text alone."""
    parts = [
        "# Errors known by their text",
        _folded(
            "`provision diagnose --text` knows these too, beside the findings. They come from programs more than from hosts, so "
            "that no look at a host finds them. Each with its source in `provision/catalog/data/traps.yml`."
        ),
    ]
    for trap in load_catalog().traps:
        if trap.kind == "error":
            rows = [f"- `{words}`" for words in (trap.match, *trap.also)]
            told = [trap.cause, *([f"Look: {trap.check}"] if trap.check else []), f"What helps: {trap.fix}"]
            parts += [f"## trap.{trap.id}", "\n".join(rows), *(_folded(_sentence(line)) for line in told)]
    parts.append("Written from the catalog by `make docs`. [All findings](README.md).")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return {file name: text} of docs/findings."""
    return {"README.md": index(), "traps.md": traps_page(), **{f"{rule.code}.md": page(rule) for rule in all_rules()}}


def _repair(rule: Rule) -> str:
    reboot = " A reboot is part of it." if rule.reboot and "reboot" not in rule.repair.lower() else ""
    return f"{_sentence(rule.repair)}{reboot}" if rule.repair else ""


def _folded(text: str) -> str:
    """Paragraphs with lines of a length that people read."""
    return "\n\n".join(
        textwrap.fill(part, 118, break_long_words=False, break_on_hyphens=False) for part in text.strip().split("\n\n")
    )


def _sentence(text: str) -> str:
    text = text.strip()
    text = (
        text[:1].upper() + text[1:] if not text.startswith(("nvidia", "apt", "dpkg", "nouveau", "provision")) else text
    )
    return text if text.endswith((".", "!", "?", "`", ":")) else text + "."
