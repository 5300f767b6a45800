"""The command ``provision``. Answers --version without importing anything else."""

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] == ["--version"]:
        from provision import __version__

        sys.stdout.write(f"provision {__version__}\n")
        return 0
    # Plugins of pydantic are for programs that have some: to look for them takes longer than to load most of ours.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from provision.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
