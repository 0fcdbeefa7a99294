"""``rise`` on another workload than the usual one: its module, then the words of the command."""

import sys

from riselab.cli import main
from riselab.running import worker

if __name__ == "__main__":
    worker.WORKLOAD = sys.argv.pop(1)
    sys.exit(main())
