"""The files of ours on a converged host, as tests/cases/own_files.yml has them: never made by the code that is tested."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from provision.lib import yaml_reader

FILES = {
    name: (row["path"], row["text"])
    for name, row in yaml_reader.load((Path(__file__).parents[1] / "cases/own_files.yml").read_text()).items()
}
UNATTENDED_PATTERNS = re.findall(r'"(.+)"', FILES["unattended"][1])


def hashes(*names: str) -> dict[str, str]:
    """{path: sha256}, as the probe tells what lies there."""
    return {FILES[name][0]: hashlib.sha256(FILES[name][1].encode()).hexdigest() for name in names}
