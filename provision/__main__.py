"""The command ``provision``. Answers --version without importing anything else."""

import gc
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] == ["--version"]:
        from provision import __version__

        sys.stdout.write(f"provision {__version__}\n")
        return 0
    # What is loaded stays: to search it for garbage again and again takes a seventh of the time.
    gc.disable()
    from provision.cli import run

    gc.freeze()
    gc.enable()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
