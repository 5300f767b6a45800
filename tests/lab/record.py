"""``make recordings``: the screens of the documentation, from the demo's commands on its simulated hosts.

Each command runs in a real terminal (tmux, 100 columns). What is on the screen when it has ended is written to
``docs/recordings`` as SVG, without the fonts that rich would fetch from elsewhere.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from . import setup
from .demo import HOSTS, ROOT, STEPS, VARIABLES
from .lab import Lab

FOLDER = ROOT / "docs" / "recordings"
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
COLUMNS, ROWS, SECONDS = 100, 120, 900


def screen(words: list[str], folder: Path, state: str) -> str:
    """Run a command in a terminal of its own; return what the screen shows at its end, with the terminal's colours."""
    done = Path(state, "done")
    done.unlink(missing_ok=True)
    # a server of its own: the last one may still be ending
    tmux = ["tmux", "-L", f"gpu-provision-record-{time.monotonic_ns()}"]
    command = f"XDG_STATE_HOME={state} PYTHONPATH={ROOT} {sys.executable} -m provision {shlex.join(words)}; touch {done}; sleep 60"
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*tmux, "new-session", "-d", "-s", "screen", *size, "-c", folder, command], check=True)
    try:
        end = time.monotonic() + SECONDS
        while not done.exists() and time.monotonic() < end:
            time.sleep(0.5)
        shown = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p", "-t", "screen"], check=True, capture_output=True, text=True
        )
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    return shown.stdout.rstrip()


def image(shown: str, title: str, name: str) -> str:
    """Return the screen as SVG; the name makes its identifiers, so that equal screens make equal files."""
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, highlight=False)
    console.print(Text.from_ansi(shown), soft_wrap=True)
    return console.export_svg(title=title, code_format=FORMAT, unique_id=f"screen-{name}")


def main() -> None:
    setup.ensure()
    FOLDER.mkdir(exist_ok=True)
    with Lab.start(HOSTS) as lab, tempfile.TemporaryDirectory(prefix="gpu-provision-record-") as state:
        for host, text in VARIABLES.items():
            file = lab.inventory.parent / "host_vars" / f"{host}.yml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        for _, words, _ in STEPS[:4]:
            typed = ["-i", lab.inventory.name, *words]
            shown = screen(typed, lab.inventory.parent, state)
            (FOLDER / f"{words[0]}.svg").write_text(image(shown, f"provision {shlex.join(typed)}", words[0]))


if __name__ == "__main__":
    main()
