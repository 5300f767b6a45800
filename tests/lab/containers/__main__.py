"""``python -m tests.lab.containers LAB HOST...``: install Debian's real docker on hosts of a lab that is up."""

from __future__ import annotations

import sys

from ..lab import Lab
from . import debian


def main() -> int:
    lab = Lab.attach(sys.argv[1])
    for name in sys.argv[2:]:
        debian.install_docker(lab.host(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
