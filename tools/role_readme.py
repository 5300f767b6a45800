"""Write the README of every role from its argument_specs: ``python -m tools.role_readme``. A test compares them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from provision.lib import yaml_reader

ROOT = Path(__file__).resolve().parent.parent


def render(role: Path) -> str:
    """Return the README text of one role folder."""
    spec = yaml_reader.load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    lines = [
        f"# {role.name}",
        "",
        spec["short_description"] + ".",
        "",
        *[_plain(t) + "\n" for t in spec["description"]],
    ]
    lines += ["Use it in a play:", "", "```yaml", "- hosts: gpu_servers", "  gather_facts: false", "  become: true"]
    lines += ["  roles:", f"    - gpu.provision.{role.name}", "```", "", "## Variables", ""]
    lines += ["All are optional.", "", "| variable | default | what it does |", "| --- | --- | --- |"]
    for name, option in spec["options"].items():
        lines.append(f"| `{name}` | `{_default(option)}` | {_describe(option)} |")
    for name, option in spec["options"].items():
        lines += _keys(name, option)
    return "\n".join([*lines, "", "Written from `meta/argument_specs.yml` by `make docs`.", ""])


def _keys(name: str, option: dict[str, Any]) -> list[str]:
    """The keys of a mapping, or of each item of a list of mappings, as a table of their own."""
    if not option.get("options"):
        return []
    lines = ["", f"Keys of {'each of ' if option['type'] == 'list' else ''}`{name}`:", ""]
    lines += ["| key | default | what it does |", "| --- | --- | --- |"]
    for key, inner in option["options"].items():
        default = "needed" if inner.get("required") else f"`{_default(inner)}`" if "default" in inner else ""
        lines.append(f"| `{key}` | {default} | {_describe(inner)} |")
    return lines


def _default(option: dict[str, Any]) -> str:
    value = option.get("default")
    return str(value).lower() if isinstance(value, bool) else '""' if value == "" else str(value)


def _describe(option: dict[str, Any]) -> str:
    text = option["description"]
    text = _plain(text if isinstance(text, str) else " ".join(text))
    choices = option.get("choices")
    return text + (f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else "")


def _plain(text: str) -> str:
    """Ansible's markup as Markdown: V(x), O(x), C(x) become code."""
    return re.sub(r"\b[VOC]\(([^)]*)\)", r"`\1`", " ".join(text.split()))


def main() -> None:
    for role in sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()):
        (role / "README.md").write_text(render(role))
        sys.stdout.write(f"wrote {role.relative_to(ROOT)}/README.md\n")


if __name__ == "__main__":
    main()
