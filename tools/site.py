"""Build the documentation as a site that fetches nothing from elsewhere: ``python -m tools.site [FOLDER]``, by default ``site``.

Pages are copied as they lie in the repository, so that their links stay. The manual page is shown as text. A link that
leads nowhere is an error. The search needs a web server, of whatever kind (``python -m http.server -d site``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "galaxy.yml")
_FOLDERS = ("docs", "provision/diagnose/findings", "inventory")


def lay_out(folder: Path) -> None:
    """Copy what the site shows, and what its pages link to, into a folder."""
    for name in _FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for page in ROOT.glob("roles/*/README.md"):
        place = folder / page.relative_to(ROOT)
        place.parent.mkdir(parents=True)
        shutil.copy(page, place)
    manual = ROOT / "docs/man/provision.1"
    text = subprocess.run(
        ["man", "--local-file", manual],
        env={**os.environ, "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (folder / "docs/man/provision.md").write_text(f"# Commands\n\n```text\n{text}```\n", encoding="utf-8")


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    with tempfile.TemporaryDirectory(prefix="gpu-provision-site-") as name:
        folder = Path(name)
        lay_out(folder)
        config = folder.parent / f"{folder.name}.yml"
        try:
            text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
            config.write_text(f"{text}docs_dir: {folder}\nsite_dir: {target}\n", encoding="utf-8")
            command: list[str | Path] = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", config]
            subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
        finally:
            config.unlink(missing_ok=True)
    sys.stdout.write(f"wrote {target}/index.html\n")


if __name__ == "__main__":
    main()
