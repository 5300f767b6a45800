"""The command line of the lab's conda."""

import sys

from tests.lab.conda.publish import main

sys.exit(main(sys.argv[1:]))
