"""``python -m controller.web.dashboard``: the dashboard as a process of its own, in a cluster."""

import sys

from controller.web.dashboard.process import main

sys.exit(main(sys.argv[1:]))
