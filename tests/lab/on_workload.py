"""``rise`` on another workload than the usual one: its module, then the words of the command."""

import sys

from riselab.cli import main
from riselab.running import workload

if __name__ == "__main__":
    workload.DEFAULT = sys.argv.pop(1)
    sys.exit(main())
