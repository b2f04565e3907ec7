"""`python -m deploy.local.temporary_cluster WORK --nodes 8,8 [--sets 3]`: a cluster for another program.

Brings up a plane with nodes and the operator, all as in the demo, the extender and a kube-scheduler that asks
it, and says on stdout in one line of JSON where they are:
``{"kubeconfig": …, "selectors": ["evalstop.dev/lent=1", …], "decisionLog": …, "schedulerName": …}``.
``selectors`` has a node label for each set of nodes, every set alike. All of it ends with this process's
stdin.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from deploy.local import console
from deploy.local.demo.stage import stage
from deploy.local.errors import PlaneError
from deploy.local.scheduler import start_pair

LABEL = "evalstop.dev/lent"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.temporary_cluster", description=__doc__)
    parser.add_argument("work", type=Path, help="work folder of the plane")
    parser.add_argument("--nodes", type=_gpus, required=True, help="GPUs of each node of a set, as in 8,8")
    parser.add_argument("--sets", type=int, default=1, help="how many such sets (default 1)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    try:
        with console.Console() as report, stage(given.work, {}, report, given.nodes * given.sets) as built:
            size = len(given.nodes)
            for number in range(given.sets):
                names = built.nodes.names[number * size : (number + 1) * size]
                built.plane.kubectl("label", "nodes", *names, f"{LABEL}={number + 1}")
            _, scheduler = start_pair(built.plane)
            addresses = {
                "kubeconfig": str(built.plane.kubeconfig),
                "selectors": [f"{LABEL}={number + 1}" for number in range(given.sets)],
                "decisionLog": str(built.decision_log()),
                "schedulerName": scheduler.process,
            }
            print(json.dumps(addresses), flush=True)
            sys.stdin.read()
    except PlaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _gpus(text: str) -> list[int]:
    """Return numbers of GPUs that are separated by commas."""
    return [int(part) for part in text.split(",")]


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
