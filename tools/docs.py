"""Write what is generated under docs/, in the catalog and in the roles: ``python -m tools.docs``. Tests compare it with the code.

provision/catalog/data.json from the YAML files beside it, docs/checks.md from the checks themselves (docstring, messages and hints
of what can go wrong), the index of findings from their pages and docs/findings/traps.md from the catalog, docs/schemas/*.json from
the models of the documents, the READMEs of the roles from their argument specs.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from provision.catalog import files, load_catalog
from provision.cli.schemas import schemas
from provision.diagnose import pages
from provision.parts import checks
from provision.parts.driver.installed import next_boot_problems
from tools import man, role_readme

ROOT = role_readme.ROOT
_CHECKS = """\
# The checks of verify

`provision verify` reads a host once and judges it by these, in this order. `apply` ends with them. A check passes, warns, fails, or
is skipped where there is nothing to judge. Warnings do not fail a run unless `gpu_verify_strict: true` is set.

Each line below is what a check says when it does not pass (… stands for what it found), and what to do then.
"""
_FINDINGS = """\
# What diagnose can find

`provision diagnose` names causes by these codes; `provision diagnose --explain CODE` prints the page of one, and
`provision diagnose --text TEXT` finds the code that an error text leads to. Errors that are known by their text
alone are in [traps.md](traps.md).

- **error**: something does not work, or will not after the next boot or apt run
- **warning**: it works, and one ordinary event breaks it
- **note**: worth knowing; it never counts against a host
"""
_TRAPS = """\
# Errors known by their text

`provision diagnose --text TEXT` knows these too, beside the findings. They come from programs more than from hosts, so that
no check of a host finds them. Each with its source in `provision/catalog/data/traps.yml`.
"""


_SUPPORT = """\
# What fits together

This page is written from the catalog, whose newest facts are of {day}. `provision compat` answers for one machine, with sources:
`provision compat --gpu 'RTX 4090' --cuda 12.8 --torch 2.6`. A fact with * was worked out from others or is not certain.
"""
_KINDS = {"LTSB": "long-term", "PB": "production", "NFB": "new features", "unknown": "not known"}
_MODULES = {"none": "proprietary", "available": "proprietary, open", "default": "open, proprietary", "only": "open"}


def checks_page() -> str:
    """Return the text of docs/checks.md."""
    parts = [_CHECKS]
    for check in checks.every():
        parts.append(f"## {check.code}\n\n{inspect.getdoc(check.function)}\n")
        rows = list(dict.fromkeys(_bad_verdicts(check.function)))
        parts.append("".join(f"- **{status}**: {message}" + _hints(hints) for status, message, hints in rows))
    return "\n".join(parts) + "\nWritten from the code by `make docs`.\n"


def _hints(hints: tuple[str, ...]) -> str:
    if not hints:
        return "\n"
    if len(hints) == 1:
        return f"\n  → {hints[0]}\n"
    return "\n" + "".join(f"  - {hint}\n" for hint in hints)


_STATUS = {"failed": "fail", "warned": "warn"}


def _bad_verdicts(function: Callable[..., Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    tree = _tree(function)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        statuses = [_STATUS[name] for name in _names(node.func, tree) if name in _STATUS]
        known = function.__globals__
        for message in _texts(node.args[0], tree, known) if statuses else ():
            yield " or ".join(statuses), message, tuple(_texts(node.args[2], tree, known))
        # What several checks say alike stands in a function of its own.
        helper = known.get(node.func.id)
        if node.func.id.startswith("_") and helper and inspect.get_annotations(helper).get("return") == "Check":
            yield from _bad_verdicts(helper)


def _names(node: ast.expr, tree: ast.AST) -> list[str]:
    """Return the functions that a name stands for: itself, or what is assigned to it."""
    if isinstance(node, ast.IfExp):
        return [*_names(node.body, tree), *_names(node.orelse, tree)]
    if not isinstance(node, ast.Name):
        return []
    return [node.id, *(name for value in _assigned(node, tree) for name in _names(value, tree))]


def _assigned(name: ast.Name, tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            yield from (value for own, value in pairs if isinstance(own, ast.Name) and own.id == name.id)


def _texts(node: ast.expr, tree: ast.AST, known: Mapping[str, Any]) -> list[str]:
    """Return the texts that an expression can have, with `known` beside it; what is put into them becomes …"""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, tree, known), *_texts(node.orelse, tree, known)]
    # problems[0]: the sentences that next_boot_problems() can return
    if isinstance(node, ast.Subscript):
        return list(_problems())
    if isinstance(node, ast.Name):
        return [text for value in _assigned(node, tree) for text in _texts(value, tree, known)]
    # a sentence that diagnose says too stands in a function of its own
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and inspect.isfunction(known.get(node.func.id)):
        return list(_returned(known[node.func.id]))
    return []


def _returned(function: Callable[..., Any]) -> Iterator[str]:
    tree = _tree(function)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from _texts(node.value, tree, function.__globals__)


def _problems() -> Iterator[str]:
    tree, known = _tree(next_boot_problems), next_boot_problems.__globals__
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.List):
            yield from (text for element in node.value.elts for text in _texts(element, tree, known))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            yield from _texts(node.args[0], tree, known)


def _tree(check: Callable[..., Any]) -> ast.AST:
    return ast.parse(inspect.getsource(check))


def findings_page() -> str:
    """Return the text of docs/findings/README.md: every code by area."""
    folder = f"../../{pages.FOLDER.relative_to(ROOT)}"
    parts = [_FINDINGS]
    for name, title in pages.AREAS.items():
        rows = [page for page in pages.all_pages() if pages.area(page.code) == name]
        cells = [(f"[{page.code}]({folder}/{page.code}.md)", page.level, page.title) for page in rows]
        parts.append(f"## {title}\n\n" + _table(("code", "level", "cause"), cells))
    return "\n".join(parts) + "\nWritten from the pages by `make docs`.\n"


def traps_page() -> str:
    """Return the text of docs/findings/traps.md: errors that are known by their text alone."""
    parts = [_TRAPS]
    for trap in load_catalog().traps:
        if trap.kind == "error":
            rows = [f"- `{words}`" for words in (trap.match, *trap.also)]
            texts = [trap.cause, *([f"Look: {trap.check}"] if trap.check else []), f"What helps: {trap.fix}"]
            parts += [f"## trap.{trap.id}\n", "\n".join(rows) + "\n", *(f"{_paragraph(line)}\n" for line in texts)]
    return "\n".join(parts) + "\nWritten from the catalog by `make docs`. [All findings](README.md).\n"


def support_page() -> str:
    """Return the text of docs/support.md: driver branches, CUDA releases and Ubuntu releases of the catalog."""
    catalog = load_catalog()

    def sure(value: object, certainty: str) -> str:
        return "not known" if value is None else f"{value}{'' if certainty in ('sourced', 'verified') else ' *'}"

    branches = [
        (
            branch.number,
            _KINDS[branch.type],
            sure(branch.last_version, branch.last_version_certainty),
            "ended" if branch.ended else sure(branch.eol, branch.eol_certainty),
            f"from {branch.oldest_architecture}",
            _MODULES[branch.open],
            sure(branch.max_cuda, branch.max_cuda_certainty),
            sure(branch.max_kernel, branch.max_kernel_certainty) if branch.max_kernel else "no limit known",
        )
        for branch in reversed(catalog.branches)
    ]
    toolkits = [
        (
            minor.version,
            minor.releases[-1] if minor.releases else "",
            minor.min_driver,
            f"{minor.ccs[0]} to {minor.ccs[-1]}",
            minor.gcc_max,
        )
        for minor in reversed(catalog.cuda_minors)
    ]
    archives = catalog.cuda_data.archive_ranges
    releases = [
        (
            row.version,
            row.kernel_ga,
            row.gcc,
            row.glibc,
            f"{row.cuda_first} to {row.cuda_last or 'the newest'}" if row.cuda_first else "none",
            archives[row.version].release or archives[row.version].first if row.version in archives else "none",
        )
        for row in map(catalog.ubuntu, catalog.ubuntu_data.releases)
    ]
    titles = (
        "Branch",
        "Kind",
        "Newest",
        "Support until",
        "Cards",
        "Modules, the preferred first",
        "CUDA up to",
        "Kernel up to",
    )
    return "\n".join(
        [
            _SUPPORT.format(day=catalog.day),
            "## Driver branches\n",
            _table(titles, branches),
            "## CUDA\n\nWith the driver of its own branch a toolkit works in full; from the driver named here it works by"
            " minor-version compatibility.\n",
            _table(("CUDA", "Newest release", "Driver at least", "Compute capabilities", "gcc up to"), toolkits),
            "## Ubuntu\n",
            _table(
                ("Ubuntu", "Kernel", "gcc", "glibc", "CUDA in NVIDIA's repository", "CUDA in the archive"), releases
            ),
            "Written from the catalog by `make docs`. [How the catalog is kept](catalog.md).\n",
        ]
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in lines)


def _paragraph(text: str) -> str:
    """A sentence, in lines of a length that people read."""
    text = text.strip()
    text = text if text.startswith(("nvidia", "apt", "dpkg", "nouveau", "provision")) else text[:1].upper() + text[1:]
    text = text if text.endswith((".", "!", "?", "`", ":")) else text + "."
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


_ASKED_BY = {
    "locked": "lock",
    "explain": "diagnose --explain`, `diagnose --text",
    "offline": "rescue --offline",
    "error": "any that could not start",
}
_COMMON = ("schema", "ok", "exit_code", "hosts", "errors")
_MARK = "<!-- documents: written from the models by make docs -->\n"


def json_page(text: str) -> str:
    """Return docs/json.md with the table of documents written anew between its two marks."""
    rows = []
    for name, schema in sorted(schemas().items()):
        word = name.split("/")[1]
        asked = _ASKED_BY.get(word, word)
        host = _host_of(schema)
        fields = [f"`{field}`" for field in host.get("properties", {}) if field != "status"]
        status = host.get("properties", {}).get("status", {})
        status = schema["$defs"][status["$ref"].rpartition("/")[2]] if "$ref" in status else status
        states = f"`status` {', '.join(status['enum'])}; " if "enum" in status else ""
        more = [f"`{field}`" for field in schema["properties"] if field not in _COMMON]
        command = asked if " that " in asked else f"`{asked}`"
        rows.append((command, f"[{word}.json](schemas/{word}.json)", states + ", ".join(fields), ", ".join(more)))
    before, _, rest = text.partition(_MARK)
    table = _table(("command", "schema", "of each host", "of the whole"), rows)
    return before + _MARK + table + _MARK + rest.partition(_MARK)[2]


def _host_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of one host of a document; empty: it has none."""
    reference = (schema["properties"]["hosts"].get("additionalProperties") or {}) if schema["properties"] else {}
    name = reference.get("$ref", "").rpartition("/")[2] if isinstance(reference, dict) else ""
    found: dict[str, Any] = schema.get("$defs", {}).get(name, {})
    return found


def schema_files() -> dict[str, str]:
    """Return the JSON schemas by file name: plan.json for provision/plan/1."""
    return {f"{name.split('/')[1]}.json": _json(schema) for name, schema in sorted(schemas().items())}


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1) + "\n"


def main() -> None:
    # First: the pages are written from it.
    files.GENERATED.write_text(files.generate(), encoding="utf-8")
    role_readme.main()
    (ROOT / "docs/checks.md").write_text(checks_page(), encoding="utf-8")
    folder = ROOT / "docs/schemas"
    folder.mkdir(exist_ok=True)
    for name, text in schema_files().items():
        (folder / name).write_text(text, encoding="utf-8")
    (ROOT / "docs/man").mkdir(exist_ok=True)
    (ROOT / "docs/man/provision.1").write_text(man.page(), encoding="utf-8")
    page = ROOT / "docs/json.md"
    page.write_text(json_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs/findings/README.md").write_text(findings_page(), encoding="utf-8")
    (ROOT / "docs/findings/traps.md").write_text(traps_page(), encoding="utf-8")
    (ROOT / "docs/support.md").write_text(support_page(), encoding="utf-8")
    pages = "docs/checks.md, docs/json.md, docs/support.md, docs/man, docs/findings and docs/schemas"
    sys.stdout.write(f"wrote provision/catalog/data.json, {pages}\n")


if __name__ == "__main__":
    main()
