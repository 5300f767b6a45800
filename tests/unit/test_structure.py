"""Where things live, and what may import what: a folder is a duty, and imports lead down only."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from provision.catalog.models.drivers import BranchRow
from tools.unread import shapes, unread

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "provision"
# From the top down. A folder may import those of the lines below its own, never one beside it or above.
LAYERS = (
    ("__main__",),
    ("api", "cli"),
    ("render",),
    ("commands",),
    ("pull", "rescue"),
    ("diagnose", "drift", "runs"),
    ("mirror", "planning", "rollout"),
    ("documents", "layers", "lock"),
    ("parts", "remote"),
    ("bundles", "compat", "inventory"),
    ("facts",),
    ("catalog",),
    ("lib",),
    ("errors",),
    ("collection",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MOST_FILES = 25


def folder(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Names of the package that a file imports anywhere, in functions too, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "provision":
            assert node.module is not None
            names = [node.module] if "." in node.module else [f"provision.{alias.name}" for alias in node.names]
            yield from ((name, node.lineno) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.startswith("provision."))


def test_every_folder_has_its_layer():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("name", LEVEL)
def test_imports_lead_down(name):
    files = [PACKAGE / f"{name}.py"] if (PACKAGE / f"{name}.py").is_file() else sorted((PACKAGE / name).rglob("*.py"))
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in files
        for module, line in imports(path)
        if folder(module) in LEVEL and folder(module) != name and LEVEL[folder(module)] <= LEVEL[name]
    ]
    assert not wrong, "\n".join(wrong)


def test_what_runs_on_hosts_imports_nothing_of_the_controller():
    for path in sorted((ROOT / "plugins/module_utils").rglob("*.py")):
        assert not list(imports(path)), path


@cache
def names_of(file: Path) -> frozenset[str]:
    """The names that a module has; none where there is no such module."""
    if not file.is_file():
        return frozenset()
    return frozenset(symtable.symtable(file.read_text(encoding="utf-8"), file.name, "exec").get_identifiers())


def test_what_runs_on_hosts_names_only_what_there_is():
    """mypy does not look into it: a name that moved would be found by the host that needs it."""
    wrong = []
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        known = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "ansible_collections.gpu.provision."
            ):
                assert node.module is not None
                place = ROOT.joinpath(*node.module.split(".")[3:])
                for alias in node.names:
                    if found := names_of(place / f"{alias.name}.py"):
                        known[alias.asname or alias.name] = found
        local = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        local |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.id}.{node.attr}"
            for node in used
            if node.value.id not in local and node.attr not in known.get(node.value.id, {node.attr})
        ]
    assert wrong == []


def test_no_folder_is_a_heap():
    for place in (PACKAGE, ROOT / "plugins"):
        for path in [place, *(inner for inner in place.rglob("*") if inner.is_dir())]:
            files = [file.name for file in path.glob("*.py") if file.name != "__init__.py"]
            assert len(files) <= MOST_FILES, f"{path.relative_to(ROOT)}: {len(files)} files"


def test_only_what_belongs_to_no_folder_lies_in_the_root():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "collection.py",
        "errors.py",
    ]


def test_every_field_of_the_catalog_is_read():
    assert not unread(shapes()), "no product code reads these: their knowledge belongs into the row's note"


def test_a_new_field_that_nobody_reads_is_noticed():
    class Grown(BranchRow):
        colour_of_the_box: str

    assert unread([Grown])[0].endswith("Grown.colour_of_the_box")


def test_the_formatter_is_not_told_to_look_away():
    mark = "fmt" + ": skip"
    for place in ("provision", "plugins", "tests", "tools"):
        for path in (ROOT / place).rglob("*.py"):
            assert mark not in path.read_text(encoding="utf-8"), path
