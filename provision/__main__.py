"""The command ``provision``. Answers --version without importing anything else."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] == ["--version"]:
        from provision import __version__

        sys.stdout.write(f"provision {__version__}\n")
        return 0
    from provision.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
