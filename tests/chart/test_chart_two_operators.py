"""The chart's two operators: one leads, and whatever becomes of its pod, the other goes on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from rendering import NAMESPACE

from deploy.helm.cluster import ChartCluster, until

OPERATORS = ("-n", NAMESPACE, "-l", "app.kubernetes.io/name=evalstop-operator")


def pods(cluster: ChartCluster) -> dict[str, str]:
    """uid -> name of the operator's pods that are ready and not on their way out."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["name"]
        for pod in cluster.get("pods", *OPERATORS)["items"]
        if "deletionTimestamp" not in pod["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    }


def lease(cluster: ChartCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("lease", "evalstop-operator", "-n", NAMESPACE)["spec"]
    return found


def leader(cluster: ChartCluster) -> str:
    """The name of the pod that leads; empty: none of those that are ready does."""
    holder = lease(cluster).get("holderIdentity") or ""
    return next((name for uid, name in pods(cluster).items() if uid in holder), "")


def two_stand(cluster: ChartCluster) -> bool:
    return len(pods(cluster)) == 2 and bool(leader(cluster))


def acts(cluster: ChartCluster) -> bool:
    """Somebody looks after the pool: what has just been changed of it has been seen."""
    pool = cluster.get("gpupool", "research")
    return bool(pool["status"]["observedGeneration"] == pool["metadata"]["generation"])


def change(cluster: ChartCluster, max_priority: int) -> None:
    spec = {"allowedNamespaces": [{"name": "*", "maxPriority": max_priority}]}
    cluster.kubectl("patch", "gpupool", "research", "--type=merge", "-p", json.dumps({"spec": spec}))


@pytest.mark.timeout(300)
def test_the_other_operator_goes_on_when_the_leaders_pod_goes(
    cluster: ChartCluster, notes: str, values: dict[str, Any]
) -> None:
    assert values["operator"]["replicas"] == 2
    until("two operators", lambda: two_stand(cluster), 90)
    budget = cluster.get("poddisruptionbudget", "evalstop-operator", "-n", NAMESPACE)
    assert budget["status"]["currentHealthy"] == 2
    # It ends in order and gives its Lease back; or it is gone at once, and its Lease runs out.
    for priority, how, seconds in ((1, ("--wait=false",), 20.0), (2, ("--force", "--grace-period=0"), 60.0)):
        led, term = leader(cluster), lease(cluster)["leaseTransitions"]
        began = time.monotonic()
        cluster.kubectl("delete", "pod", led, "-n", NAMESPACE, *how)
        change(cluster, priority)
        # Most often the one that stood by: a new pod takes a while.
        until("another to lead", lambda: leader(cluster) not in ("", led), seconds, 0.2)  # noqa: B023
        print(f"{' '.join(how)}: another leads {time.monotonic() - began:.1f} s after the pod was deleted")
        assert lease(cluster)["leaseTransitions"] == term + 1
        until("it to act", lambda: acts(cluster), 30, 0.2)
        until("two operators again", lambda: two_stand(cluster), 90)
    assert leader(cluster) != ""
