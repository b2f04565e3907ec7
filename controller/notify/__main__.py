"""``python -m controller.notify``: the process that tells others, in a cluster."""

import sys

from controller.notify.process import main

sys.exit(main(sys.argv[1:]))
