"""Pages, messages, task names and argument specs stay in plain English, without private words and inversions.

Each row is a pattern, and what to write instead. Code, output and links are not prose, and the front matter of a finding has
regular expressions over the output of programs; the table of docs/json.md is generated from docstrings. A message is a text of
three words or more in the code; docstrings are messages where they are the help of a command. proselint reads the same texts
for clichés, weasel words, redundancy and repeated words, codespell (pyproject.toml) all files for spelling.
"""

import ast
import re

import pytest
from proselint.checks import __register__ as CHECKS
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from provision.collection import ROOT
from provision.diagnose import pages

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "inventory" / "README.md",
    # the table of traps quotes settings of other programs, from the catalog
    *sorted(page for page in ROOT.glob("docs/**/*.md") if page.name != "traps.md"),
    *sorted(ROOT.glob("roles/*/README.md")),
    *sorted(pages.FOLDER.glob("*.md")),
]
CODE = sorted([*ROOT.glob("provision/**/*.py"), *ROOT.glob("plugins/**/*.py")])
ROLES = sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/meta/*.yml"), *ROOT.glob("playbooks/*.yml")])

INSTEAD = {
    # words that only this project used
    r"wish(?:es|ed)?": "request, desired state",
    r"box(?:es)?": "host",
    r"troubles?": "fault, error, finding",
    r"told": "reported, listed; tell somebody something",
    r"mend(?:s|ed|ing)?": "repair, fix",
    r"sick": "faulty",
    r"anew": "again",
    r"twins?": "identical cards",
    r"(?:as|is|are) wanted": "needs no change; desired state",
    r"held to": "must match, are compared with",
    r"(?:who|is|are) otherwise": "differ",
    r"(?:is|are|be|was) at work": "is running, is changing the host",
    r"whole way": "complete run",
    # verbs that hide what happens
    r"stands?(?!-| for)|stood": "is, is listed",
    r"lies?(?! about)|lay": "is",
    r"looks? (?:again|before|first)|look(?:s|ed|ing)? at": "read, check, query",
    r"go(?:es)? (?:on|along|away|before|for the)|gone on": "continues, is removed, overrides",
    r"(?:takes?|taken|took) (?:along|out|up|besides)": "removes, installs, adds",
    r"(?:brings?|brought|comes?|came) along": "installs, is installed with",
    r"cut off": "interrupted, truncated",
    r"put (?:right|aside)": "repair, rename",
    r"left (?:alone|in peace)": "not changed",
    r"has its turn|have their turn": "is tried",
    r"does it, proves it": "applies it, proves the result",
    # idiom and order of words of another language
    r"of (?:yours|ours)": "your, its own",
    r"by (?:itself|themselves)": "automatically",
    r"to the last digit": "exactly",
    r"in silence": "without asking",
    r"the price": "the cost",
    r"as ever": "as usual; say how",
    r"another (?:matter|thing|page)": "say what it is",
    r"that (?:is|are) there": "existing, installed",
    r"(?:needs?|wants?) nothing but": "needs only",
}

# Output has straight quotes and three dots; of misc, "ne" is an instruction of PTX, not French.
STYLE = {**DEFAULT, "checks": {**DEFAULT["checks"], "typography": False, "misc": False}}
REGISTRY = CheckRegistry()
REGISTRY.register_many(CHECKS)
# proselint would choose them again for each paragraph, which takes it longer than to read it.
CHOSEN = REGISTRY.get_all_enabled(STYLE["checks"])
REGISTRY.get_all_enabled = lambda enabled: CHOSEN


def prose(text):
    """Return the text without front matter, code, generated tables, quotes and addresses of links; lines keep their numbers."""
    for kind in (
        r"\A---$.*?^---$",
        r"^ *```.*?^ *```",
        r"<!-- documents:.*<!-- documents:[^>]*>",
        r"`[^`]*`",
        r"\]\([^)]*\)",
        r'"[^"]*"',
    ):
        text = re.sub(kind, lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return text


def found(text):
    lines = prose(text)
    for words, instead in INSTEAD.items():
        pattern = words.replace(" ", r"\s+")
        for match in re.finditer(rf"\b(?:{pattern})\b", lines, re.IGNORECASE):
            line = 1 + lines[: match.start()].count("\n")
            yield f"line {line}: {match[0]!r}: {instead}"


def remarks(text, *others):
    """Yield what proselint says about the paragraphs of a text. others: checks that do not count."""
    paragraphs = [part for part in re.split(r"\n\s*\n", prose(text)) if not re.match(r"\s*([#|]|\Z)", part)]
    for part in paragraphs:
        # A lone surrogate, the end of a range of bytes, is not text.
        file = LintFile(source=ROOT, content=part.encode(errors="replace").decode())
        for remark in file.lint(STYLE):
            if remark.check_result.check_path not in others:
                yield f"{part.strip()[:60]}…: {remark.check_result.message}"


def messages(source):
    """Return the texts of the code with their lines: values of an f-string become X; contents of written files are left out."""
    nodes = list(ast.walk(ast.parse(source)))
    inner = {id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values}
    commands = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.decorator_list]
    helps = {id(node.body[0]) for node in commands if ast.unparse(node.decorator_list[0]).startswith("command(")}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr) and id(node) not in helps}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(value.value if isinstance(value, ast.Constant) else "X" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        else:
            continue
        if len(text.split()) > 2 and not text.startswith("# "):
            # The documentation of a module names fields: keys, C(values), samples.
            yield node.lineno, re.sub(r"sample:.*|C\([^)]*\)|^ *[\w-]+: *$|\w+: \{.*", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_use_plain_words(path):
    texts = list(messages(path.read_text()))
    assert [(line, one) for line, text in texts for one in found(text)] == []
    # Values beside each other are "X X" here.
    assert [(line, one) for line, text in texts for one in remarks(text, "lexical_illusions")] == []


@pytest.mark.parametrize("path", ROLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tasks_and_argument_specs_use_plain_words(path):
    assert list(found(re.sub(r"(^|\s)#.*|\{\{.*?\}\}", "", path.read_text()))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_plain_words(page):
    assert list(found(page.read_text())) == []
    assert list(remarks(page.read_text())) == []


def test_proselint_reads_paragraphs_alone():
    text = "# The the\n\nThe the host is\nvery unique.\n\n| a a |\n\n```\nvery\n```\n"
    assert len(list(remarks(text))) == 3
    assert len(list(remarks(text, "lexical_illusions"))) == 2


def test_private_words_would_be_found():
    text = "A wish.\n```\na wish\n```\nThe `wish` of a stand-in,\nlooked\nat again: [x](wish.md)\n"
    assert [line.split(":")[0] for line in found(text)] == ["line 1", "line 6"]


def test_front_matter_is_not_prose():
    assert [line.split(":")[0] for line in found("---\ntexts: [a wish]\n---\n\n# a wish\n")] == ["line 5"]


def test_messages_are_found_in_code():
    source = '"""a module\'s wish"""\nsay("a private wish")\nsay(f"{host} is sick")\nkey = "wish"\nfile = "# a wish of ours"\n'
    assert [(line, one) for line, text in messages(source) for one in found(text)] == [
        (2, "line 1: 'wish': request, desired state"),
        (3, "line 1: 'sick': faulty"),
    ]
