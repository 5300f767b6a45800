"""``python -m tools.unread``: fields of the catalog that no product code reads (exit 1 when there are any).

A field is read when an attribute of its name is, in a file of the controller that has to do with the catalog, or a key of its name
in what runs on hosts. Where a fact comes from and how sure it is may be read by ``provision.catalog.review`` alone.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from provision.catalog import models
from provision.catalog.models.base import Data

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "provision/catalog/models"
PROVENANCE = frozenset({"source", "sources", "certainty", "note", "as_of", "date", "reader"})


def shapes() -> list[type[Data]]:
    """Every class of the catalog's files and answers."""
    names = [info.name for info in pkgutil.iter_modules(models.__path__, "provision.catalog.models.")]
    found = [value for name in names for value in vars(import_module(name)).values() if isinstance(value, type)]
    return sorted({c for c in found if issubclass(c, Data)}, key=lambda c: (c.__module__, c.__name__))


def names_read() -> set[str]:
    """Names that product code reads: attributes on the controller, keys on hosts."""
    found: set[str] = set()
    for path in (ROOT / "provision").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # A file says what it is, and a review what is in it, not that an answer rests on it; answers put files together.
        if "catalog" not in text or path.name == "review.py" or (path.parent == MODELS and path.stem != "answers"):
            continue
        nodes = ast.walk(ast.parse(text))
        found |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    for path in (ROOT / "plugins/module_utils").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            key = node.slice if isinstance(node, ast.Subscript) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                key = next(iter(node.args), None)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.add(key.value)
    return found


def unread(classes: Iterable[type[Data]]) -> list[str]:
    """Fields of these classes that nobody reads, as ``drivers.BranchRow.eol``."""
    read = names_read()
    return [
        f"{c.__module__.rsplit('.', 1)[-1]}.{c.__name__}.{name}"
        for c in classes
        for name in vars(c).get("__annotations__", {})
        if name in c.model_fields and name not in read and not _is_provenance(c, name)
    ]


def _is_provenance(shape: type[Data], name: str) -> bool:
    """Of rows only: what an answer says of a fact is there to be shown."""
    of_a_row = not shape.__module__.endswith(".answers")
    return of_a_row and (name in PROVENANCE or name.endswith(("_certainty", "_source", "_note")))


def main() -> int:
    """Print the fields; return 1 when there are any."""
    found = unread(shapes())
    for name in found:
        print(name)
    print(f"{len(found)} fields that nobody reads")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
