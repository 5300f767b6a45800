"""What people read is held to the code: pages that are generated, command lines, links, examples, exit codes."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from provision import cli
from provision.collection import ROOT
from provision.errors import Exit
from provision.lib import yaml_reader
from tools import docs, man

PAGES = sorted(
    page for place in ("*", "docs/**/*", "inventory/*", "roles/*/*", "tests/lab/*") for page in ROOT.glob(f"{place}.md")
)
TASKS = ROOT / "docs/how-to"
EXAMPLES = ["one-server.yml", "this-machine.yml", "lab.yml", "fleet", "hooks-slurm.yml", "hooks-systemd.yml"]
COMMAND = typer.main.get_command(cli.app)


def name(value):
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else None


# ---- generated pages ----------------------------------------------------------------------------------------------


def test_checks_page_is_current():
    assert (ROOT / "docs/checks.md").read_text() == docs.checks_page(), "run: make docs"


def test_every_check_is_explained():
    page = docs.checks_page()
    for check in docs.checks.every():
        section = page.split(f"## {check.code}\n")[1].split("\n## ")[0]
        assert "- **fail" in section or "- **warn" in section


@pytest.mark.usefixtures("real_catalog")
def test_index_of_findings_and_errors_known_by_their_text_are_current():
    assert (ROOT / "docs/findings/README.md").read_text() == docs.findings_page(), "run: make docs"
    assert (ROOT / "docs/findings/traps.md").read_text() == docs.traps_page(), "run: make docs"
    assert (ROOT / "docs/support.md").read_text() == docs.support_page(), "run: make docs"


def test_the_page_of_documents_is_current():
    text = (ROOT / "docs/json.md").read_text()
    assert docs.json_page(text) == text, "run: make docs"


def test_the_manual_page_is_current():
    assert (ROOT / "docs/man/provision.1").read_text() == man.page(), "run: make docs"


def test_schemas_are_current():
    written = {path.name: path.read_text() for path in (ROOT / "docs/schemas").glob("*.json")}
    assert written == docs.schema_files(), "run: make docs"


# ---- command lines ------------------------------------------------------------------------------------------------


def command_lines(text):
    """`provision ...` in blocks of code and between backticks, as lists of words."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`([^`\n]+)`", prose)
    for line in lines:
        for part in re.split(r"\s(?:&&|\|\||\|)\s", line):
            words = shlex.split(part, comments=True)[1:] if re.match(r"provision [a-z-]", part) else []
            if words not in ([], ["--version"], ["--help"]):
                yield words


def read(words):
    """Parse as the program does, and carry nothing out; return the name of the command and the values of all options."""
    with COMMAND.make_context("provision", list(words)) as context:
        before = context.params
        rest = [*getattr(context, "_protected_args", []), *context.args]
        _, command, rest = COMMAND.resolve_command(context, rest)
        with command.make_context(command.name, rest, parent=context) as own:
            both = [*(before["extra_vars"] or ()), *(own.params["extra_vars"] or ())]
            return command.name, {**before, **own.params, "extra_vars": both}


def parse(words):
    """The same, the name alone."""
    return read(words)[0]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_command_lines_parse(page):
    for words in command_lines(page.read_text()):
        parse(words)


def test_a_wrong_command_line_would_be_found():
    (words,) = command_lines("```\n$ provision plna -l gpu01   # no such command\n```\n")
    with pytest.raises(Exception, match="No such command"):
        parse(words)
    with pytest.raises(Exception, match="No such option"):
        parse(["plan", "--limti", "gpu01"])


def test_every_command_is_documented():
    shown = {parse(words) for page in PAGES for words in command_lines(page.read_text())}
    assert set(COMMAND.commands) <= shown
    readme = (ROOT / "README.md").read_text()
    assert all(f"`{command}`" in readme or f"provision {command}" in readme for command in COMMAND.commands)


def test_examples_of_help_parse():
    for command in COMMAND.commands.values():
        text = re.sub(r"\[/?[a-z]+\]", "", command.epilog)
        lines = re.findall(r"^\$ provision (.+)$", text, re.MULTILINE)
        assert lines
        assert {parse(shlex.split(line)) for line in lines} == {command.name}


# ---- links, exit codes, examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def anchors(page):
    """What a link may name in a page, as GitHub and mkdocs make it of the headings."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_name_headings_that_exist(page):
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            assert anchor in anchors(page.parent / link if link else page), f"{link}#{anchor}"


@pytest.mark.parametrize("index", ["docs/how-to/README.md", "mkdocs.yml"])
def test_every_task_is_listed(index):
    listed = (ROOT / index).read_text()
    assert [page.name for page in TASKS.glob("[a-z]*.md") if page.name not in listed] == []


def test_codes_of_troubleshooting_exist():
    page = (TASKS / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
    codes = re.findall(r"`([a-z]+\.[a-z_]+)`", " ".join(rows))
    assert len(codes) > 20
    code = "".join(path.read_text() for path in [*ROOT.glob("provision/**/*.py"), *ROOT.glob("plugins/**/*.py")])
    assert [one for one in codes if f'"{one}"' not in code] == []


def written_paths():
    """Paths on hosts with the tool's name in them, of string constants in the code: what it writes."""
    sources = [*ROOT.glob("plugins/module_utils/**/*.py"), *ROOT.glob("provision/parts/**/*.py")]
    texts = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    # /etc/conda is a folder of each environment
    path = re.compile(r"/(?:etc/(?!conda/)|opt/|run/|var/)[\w./%-]*gpu-provision[\w./%-]*")
    return {re.sub(r"%s(\.%s)?", "*", text) for text in texts if path.fullmatch(text)}


@pytest.mark.parametrize("page", ["docs/safety.md", "docs/how-to/remove.md"])
def test_every_file_that_is_written_is_listed(page):
    text, found = (ROOT / page).read_text(), written_paths()
    assert len(found) > 20
    # by the last folder and the name: the commands that remove them change into folders
    names = {re.search(r"[^/]+/[^/]*gpu-provision[^/]*", path)[0] for path in found}
    assert sorted(one for one in names if one not in text) == []


def test_every_exit_code_is_explained():
    page = (ROOT / "docs/exit-codes.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == sorted(map(int, Exit))


def test_every_example_is_listed():
    page = (ROOT / "inventory/README.md").read_text()
    there = {path.name for path in (ROOT / "inventory/examples").iterdir()}
    assert there == set(EXAMPLES)
    assert all(f"examples/{example}" in page for example in EXAMPLES)


def test_no_inventory_is_used_by_accident():
    config = (ROOT / "ansible.cfg").read_text()
    assert "inventory = inventory/hosts.yml" in config
    assert "inventory/hosts.yml" in (ROOT / ".gitignore").read_text().split()


def test_variables_in_pages_exist():
    known = set()
    for spec in ROOT.glob("roles/*/meta/argument_specs.yml"):
        known |= set(yaml_reader.load(spec.read_text())["argument_specs"]["main"]["options"])
    for page in PAGES:
        for variable in re.findall(r"\b((?:nvidia_driver|gpu_verify)_[a-z_]*[a-z])\b", page.read_text()):
            assert variable in known, f"{page.name}: {variable}"


def test_recorded_screens_are_shown_and_fetch_nothing():
    page = (ROOT / "docs/screens.md").read_text()
    for path in sorted(ROOT.glob("docs/recordings/*.svg")):
        svg = path.read_text()
        assert f"(recordings/{path.name})" in page and "@font-face" not in svg and "url(http" not in svg
