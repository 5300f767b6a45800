"""One command over a fleet without a network: sessions that answer after a delay with recorded facts of one host.

Arguments: seconds of the delay, then the command line. Prints, after the command's own output on stdout, one JSON object: the
seconds until the first host's answer was asked for.
"""

import copy
import json
import sys
import time

from provision import remote
from provision.cli import run
from tests.unit.fleethosts import healthy


def main() -> int:
    delay, begun, first = float(sys.argv[1]), time.monotonic(), []
    facts = healthy().model_dump(mode="json")

    class Session:
        """Answers a read; converged hosts are asked nothing else."""

        def call(self, module, args, *, timeout=60.0):
            assert module == "probe.facts", module  # noqa: S101
            first.append(time.monotonic() - begun)
            time.sleep(delay)
            return copy.deepcopy(facts)

        def close(self):
            return

    remote.open_session = lambda host: Session()
    code = run(sys.argv[2:])
    sys.stderr.write(json.dumps({"first": first[0], "calls": len(first)}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
