"""``python -m tools.mutate``: change a rule in one place at a time, and see whether the tests notice.

Mutants are chosen by a seed, evenly over the areas of AREAS, among changes that somebody could make by mistake: a comparison
turned round, a condition or an element left out, a number by one. Each is tried in a copy of the tree, by the tests that ran
the changed line (measured once by coverage), the fast ones first. With ``--slow``, what they do not catch is given to the files of
the system tests that ran the line in any process, and to those with real apt. What survives is listed; ``tools/mutate.yml`` says
why where that is right.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import Queue

import coverage

from provision.lib import yaml_reader

ROOT = Path(__file__).parent.parent
TESTS = ("tests/unit", "tests/attack", "--ignore=tests/attack/lab")
SLOW = "tests/system/test_*.py"
# What runs on hosts is measured by nothing here: the tests with real apt are all tried for its part.
WITH_APT = "tests/apt/test_*.py"
EXCUSES = ROOT / "tools/mutate.yml"
AREAS = {
    "parts": "provision/parts/**/*.py",
    "planning": "provision/planning/*.py",
    "diagnose": "provision/diagnose/**/*.py",
    "lock": "provision/lock/*.py",
    "drift": "provision/drift/*.py",
    "rollout": "provision/rollout/*.py",
    "runs": "provision/runs/*.py",
    "remote": "provision/remote/*.py",
    "apt": "plugins/module_utils/apt/*.py",
}
# seconds for the tests of one mutant: one that makes a loop endless is caught
LIMIT = 300
# all processes of a test, also those that end without Python's own clean-up
_EVERY_PROCESS = (
    "[run]\nparallel = true\nsource = provision, plugins\npatch = subprocess, _exit, execv\ndata_file = {}\n"
)
_SWAPPED = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file: bytes start to end become text. lines: what it touches; before, after: the line, for people."""

    area: str
    file: str
    lines: tuple[int, int]
    start: int
    end: int
    text: str
    before: str
    after: str

    @property
    def name(self) -> str:
        """The same as long as the line is."""
        return f"{self.file}: {self.before} -> {self.after}"


class _Finder(ast.NodeVisitor):
    """Collects the changes that one file offers, as (node, start, end, new text) with places in bytes."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.found: list[tuple[ast.AST, int, int, str]] = []

    def place(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno or 0, node.end_col_offset or 0)

    def add(self, node: ast.AST, start: int, end: int, new: str) -> None:
        self.found.append((node, start, end, new))

    def between(self, node: ast.AST, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Change an operator: the text between two operands, where it stands there once."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.data[start:end].decode()
        if gap.count(old) == 1:
            at = start + len(gap[: gap.index(old)].encode())
            self.add(node, at, at + len(old.encode()), new)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            self.between(node, node.left, node.comparators[0], *_SWAPPED[type(node.ops[0])])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(node, left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, _ = self.span(node)
            self.add(node, start, self.span(node.operand)[0], "")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.add(node, *self.span(node.test), "False")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add(test, *self.span(test), "True")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, *self.span(node), str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, *self.span(node), str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _CALLS and len(node.args) == 1:
            self.add(node, *self.span(node.func), _CALLS[node.func.id])
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(node, *self.span(node), "pass")

    def visit_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> None:
        texts = [one for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if len(texts) == len(node.elts) > 1:
            for one, after in zip(node.elts, node.elts[1:], strict=False):
                self.add(one, self.span(one)[0], self.span(after)[0], "")
        self.generic_visit(node)

    visit_List = visit_Set = visit_Tuple

    # How many lines are shown, and what only types, exports or documents, is no rule.
    def visit_Slice(self, node: ast.Slice) -> None:
        return

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_Assign(self, node: ast.Assign) -> None:
        if [target.id for target in node.targets if isinstance(target, ast.Name)] != ["__all__"]:
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id == "Literal"):
            self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        return

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(part)


def mutants_of(area: str, path: Path) -> Iterator[Mutant]:
    """Every change of one file that still is Python."""
    text = path.read_text()
    finder = _Finder(text)
    module = ast.parse(text)
    finder.visit(module)
    # Coverage knows a statement by its first lines alone: a change in a long one belongs to them. Lists of statements have lines of
    # their own.
    whole_lines = {
        line: node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for node, start, end, new in finder.found:
        whole = finder.data[:start] + new.encode() + finder.data[end:]
        try:
            ast.parse(whole)
        except SyntaxError:
            continue
        line = finder.data[:start].count(b"\n")
        before = finder.data.split(b"\n")[line].decode().strip()
        after = whole.split(b"\n")[line].decode().strip()
        first = getattr(node, "lineno", line + 1)
        lines = (whole_lines.get(first, first), finder.data[:end].count(b"\n") + 1)
        yield Mutant(area, str(path.relative_to(ROOT)), lines, start, end, new, before, after)


def chosen(seed: int, count: int) -> list[Mutant]:
    """count mutants: the same number of each area, as far as it has them, spread by the seed."""
    pools = []
    for area, pattern in AREAS.items():
        pool = [mutant for path in sorted(ROOT.glob(pattern)) for mutant in mutants_of(area, path)]
        # An edit elsewhere leaves most of the choice as it was.
        pools.append(sorted(pool, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()))
    found: list[Mutant] = []
    while len(found) < count and any(pools):
        found += [pool.pop() for pool in pools if pool]
    return found[:count]


def measured(jobs: int, file: Path) -> coverage.CoverageData:
    """Run the fast tests once; which test ran which line."""
    if not file.exists():
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            str(jobs),
            *TESTS,
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_cov",
        ]
        argv += ["--cov=provision", "--cov=plugins", "--cov-context=test", "--cov-report="]
        # The core of newer Pythons, sysmon, tells of the first test alone that ran a line.
        env = os.environ | {"COVERAGE_FILE": str(file), "COVERAGE_CORE": "ctrace"}
        subprocess.run(argv, cwd=ROOT, env=env, check=True)
    data = coverage.CoverageData(str(file))
    data.read()
    return data


def slow_files(jobs: int, folder: Path) -> dict[str, tuple[float, coverage.CoverageData]]:
    """Run each file of the system tests once: its seconds, and the lines that any of its processes ran."""

    def one(path: Path) -> tuple[float, coverage.CoverageData]:
        place = folder / path.stem
        if not (place / "seconds").exists():
            place.mkdir(parents=True, exist_ok=True)
            rules = place / "rules"
            rules.write_text(_EVERY_PROCESS.format(place / "data"))
            argv = [
                sys.executable,
                "-m",
                "coverage",
                "run",
                f"--rcfile={rules}",
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
            ]
            begun = time.monotonic()
            # What a test does before it fails for being measured, and so slower, counts all the same.
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([*argv, str(path)], cwd=ROOT, check=False, stdin=subprocess.DEVNULL, timeout=2 * LIMIT)
            combine = [sys.executable, "-m", "coverage", "combine", f"--rcfile={rules}", "-q"]
            # Nothing to combine: nothing of it was measured, and no mutant is given to it.
            subprocess.run(combine, cwd=ROOT, check=False)
            (place / "seconds").write_text(str(time.monotonic() - begun))
        data = coverage.CoverageData(str(place / "data"))
        data.read()
        return float((place / "seconds").read_text()), data

    paths = sorted(ROOT.glob(SLOW))
    with ThreadPoolExecutor(jobs) as pool:
        return {str(path.relative_to(ROOT)): row for path, row in zip(paths, pool.map(one, paths), strict=True)}


def slow_tests_of(mutant: Mutant, files: dict[str, tuple[float, coverage.CoverageData]]) -> list[str]:
    """Files of slow tests that ran the changed lines, the shortest first."""
    wanted = set(range(mutant.lines[0], mutant.lines[1] + 1))
    found = []
    for path, (seconds, data) in files.items():
        name = next((file for file in data.measured_files() if file.endswith("/" + mutant.file)), "")
        if name and wanted & set(data.lines(name) or ()):
            found.append((seconds, path))
    with_apt = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(WITH_APT))] if mutant.area == "apt" else []
    return [*with_apt, *(path for _, path in sorted(found))]


def tests_of(mutant: Mutant, data: coverage.CoverageData) -> list[str]:
    """Test functions that ran the changed lines; of a line that runs at import, those that ran anything of its file."""
    name = next((file for file in data.measured_files() if file.endswith("/" + mutant.file)), "")
    by_line = data.contexts_by_lineno(name) if name else {}
    here = {test for line in range(mutant.lines[0], mutant.lines[1] + 1) for test in by_line.get(line, ())}
    if here == {""}:
        here = {test for tests in by_line.values() for test in tests}
    return sorted({test.split("|")[0].split("[")[0] for test in here if test})


def tried(mutant: Mutant, tests: Sequence[str], tree: Path) -> tuple[str, str]:
    """ "caught" or "survived", "not run" where no test runs the line; and what pytest said of the test that caught it."""
    if not tests:
        return "not run", ""
    path, listed = tree / mutant.file, tree / "mutant-tests.txt"
    listed.write_text("\n".join(tests))
    data, compiled = path.read_bytes(), Path(cache_from_source(path))
    path.write_bytes(data[: mutant.start] + mutant.text.encode() + data[mutant.end :])
    # It may be of the same size and second; what else was compiled for the mutant before holds.
    compiled.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{listed}"]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, timeout=LIMIT, text=True, check=False)
    except subprocess.TimeoutExpired:
        return "caught", "the tests did not end"
    finally:
        path.write_bytes(data)
        compiled.unlink(missing_ok=True)
    # 4: what every test needs could not be imported
    if done.returncode not in (0, 1, 2, 4) or (done.returncode == 4 and mutant.file not in done.stdout + done.stderr):
        raise RuntimeError(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    by = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    return ("caught", by) if done.returncode else ("survived", "")


def results(
    mutants: Sequence[Mutant],
    data: coverage.CoverageData,
    slow: dict[str, tuple[float, coverage.CoverageData]],
    jobs: int,
) -> Iterator[tuple[Mutant, tuple[str, str]]]:
    """Try mutants in copies of the tree, several at a time; in their order, with what tried() says."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees: Queue[Path] = Queue()
        for number in range(jobs):
            tree = Path(folder, str(number))
            left_out = shutil.ignore_patterns(".git", ".venv*", ".cache", ".wheels", "__pycache__", ".*_cache")
            shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
            trees.put(tree)

        def one(mutant: Mutant) -> tuple[str, str]:
            tree = trees.get()
            try:
                result = tried(mutant, tests_of(mutant, data), tree)
                late = slow_tests_of(mutant, slow) if slow and result[0] != "caught" else []
                return tried(mutant, late, tree) if late else result
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            yield from zip(mutants, pool.map(one, mutants), strict=True)


def main() -> int:
    """Returns 0 when enough was caught; prints each mutant that was not, and a line for each area."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=20261128)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--least", type=float, default=85.0, metavar="PERCENT")
    parser.add_argument(
        "--coverage", type=Path, default=ROOT / ".cache/mutate.coverage", help="made where it is missing"
    )
    parser.add_argument(
        "--slow", type=Path, metavar="FOLDER", help="try the system tests too; their measurement is kept there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every mutant and what became of it")
    options = parser.parse_args()
    options.coverage.parent.mkdir(parents=True, exist_ok=True)
    data = measured(options.jobs, options.coverage)
    slow = slow_files(options.jobs, options.slow.resolve()) if options.slow else {}
    excuses = yaml_reader.load(EXCUSES.read_text()) or {}
    counts: Counter[tuple[str, str]] = Counter()
    rows = []
    for mutant, (result, by) in results(chosen(options.seed, options.count), data, slow, options.jobs):
        why = excuses.get(mutant.name)
        result = "excused" if result != "caught" and why else result
        counts[mutant.area, result] += 1
        rows.append({**asdict(mutant), "result": result, "by": by})
        if result != "caught":
            print(f"{result}: {mutant.file}:{mutant.lines[0]}\n    {mutant.before}\n    {mutant.after}", flush=True)
            print(*([f"    {why}"] if why else []), sep="\n", end="\n" if why else "", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    total = Counter(result for _, result in counts.elements())
    for area in AREAS:
        print(f"{area}: " + ", ".join(f"{n} {result}" for (of, result), n in sorted(counts.items()) if of == area))
    share = 100 * total["caught"] / max(1, len(rows) - total["excused"])
    print(
        f"{len(rows)} mutants, {total['caught']} caught ({share:.0f} %), "
        + ", ".join(f"{n} {r}" for r, n in total.items() if r != "caught")
    )
    return 0 if share >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
