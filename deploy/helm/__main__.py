"""Measure the time from `helm install` to the first admitted job: `python -m deploy.helm`, on a local plane.

The plane is made for it and ended with it; its nodes run pods as local processes, so no image is pulled.
`make kind` prints the same of a kind cluster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from deploy.helm.cluster import ChartCluster, until
from deploy.helm.local import LOCAL, POOL, POOL_LABEL
from deploy.local import console
from deploy.local.acquire import obtain
from deploy.local.demo import cast as casting
from deploy.local.errors import PlaneError
from deploy.local.helm.recipe import HELM, PROGRAM
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane

ADMITTED = "Admitted"


def measure(cluster: ChartCluster) -> tuple[float, str, float]:
    """Install the chart and submit a job of the demo.

    Return seconds until Helm was done, the job (namespace/name), and seconds until it was admitted. Raises
    PlaneError.
    """
    scenes = casting.load()
    supplies = [d for d in scenes.supplies if d["kind"] != "GPUPool"]
    job = scenes.jobs[0][0]
    began = time.monotonic()
    cluster.install(LOCAL)
    installed = time.monotonic() - began
    cluster.apply([*supplies, job])
    name = job["metadata"]["name"]

    def admitted() -> bool:
        found = cluster.condition(casting.NAMESPACE, name, ADMITTED)
        return found is not None and found["status"] == "True"

    until(f"RLHFJob {name} to be admitted", admitted, pause=0.1)
    took = time.monotonic() - began
    return installed, f"{casting.NAMESPACE}/{name}", took


def main() -> int:
    argparse.ArgumentParser(prog="python -m deploy.helm", description=__doc__).parse_args()
    try:
        with console.Console() as report, tempfile.TemporaryDirectory() as work:
            helm = obtain(report, recipe=HELM)[PROGRAM].path
            labels = {POOL_LABEL: POOL["name"]}
            with Plane(Path(work) / "plane", report=report) as plane, Nodes(plane, 2, gpus=2, labels=labels):
                installed, job, admitted = measure(ChartCluster.of(plane, helm))
            print(f"helm install --wait: {installed:.1f} s")
            print(f"RLHFJob {job} was admitted to pool {POOL['name']}")
            print(f"from helm install to the first admitted job: {admitted:.1f} s")
    except PlaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
