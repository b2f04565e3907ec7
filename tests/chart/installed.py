"""What the tests of the installed chart share: values for a local plane, the audit log as rights used."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from rendering import NAMESPACE

from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.resources import NODES, RLHFJOBS
from controller.names import POOL_TAINT
from controller.operator.leadership import Unopposed
from controller.operator.metrics import Metrics
from controller.operator.taints import Taints
from controller.operator.world import World
from controller.operator.writer import Stale, StatusWriter
from deploy.helm.local import POOL

Right = tuple[str, str, str]  # group, resource with subresource, verb

SPACE = "team-a"


def for_kubelets(scheduler: str) -> dict[str, Any]:
    """Values for a cluster with kubelets and Services; ``scheduler``: the image of its kube-scheduler."""
    anywhere = {"tolerations": [{"operator": "Exists"}]}
    # The cluster's own runs there, so the image is there, and perhaps nowhere else.
    beside_the_first = anywhere | {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}
    pool = POOL | {"spec": POOL["spec"] | {"schedulerName": "evalstop-scheduler"}}
    return {
        "pools": [pool],
        "operator": anywhere | {"replicas": 1, "settings": {"foreignSeconds": 1}},
        "extender": anywhere | {"replicas": 2},
        "scheduler": beside_the_first | {"enabled": True, "image": scheduler},
    }


class AuditLog:
    """The API server's audit log, read as rights that were used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "audit.log"

    def used(self, account: str, namespace: str = NAMESPACE) -> set[Right]:
        """What a service account asked for and got past authorization."""
        return {right for right, allowed in self._asked(account, namespace) if allowed}

    def denied(self, account: str, namespace: str = NAMESPACE) -> set[Right]:
        """What it asked for and had no right to."""
        return {right for right, allowed in self._asked(account, namespace) if not allowed}

    def _asked(self, account: str, namespace: str) -> set[tuple[Right, bool]]:
        user = f"system:serviceaccount:{namespace}:{account}"
        found = set()
        whole, _, _ = self.path.read_text().rpartition("\n")  # the last line may be half written
        for line in whole.splitlines():
            event = json.loads(line)
            if event["user"]["username"] != user or "objectRef" not in event:
                continue
            about = event["objectRef"]
            resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
            allowed = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
            found.add(((about.get("apiGroup", ""), resource, event["verb"]), allowed))
        return found


async def meet_conflicts(kubeconfig: Path, pool: Any, job: Any, node: Any) -> None:
    """Have the operator's own parts write over versions that are no longer the newest: they read anew.

    In the story this happens by chance only, when somebody else writes at the same moment.
    """
    connection = await connect({"KUBECONFIG": str(kubeconfig)})
    async with Api(connection) as api:
        cache = Cache()
        writer = StatusWriter(api, cache, World(cache, time.monotonic), Metrics(), Unopposed())
        with pytest.raises(Stale):
            await writer.pool(outdated(pool), {"observedGeneration": 0})
        await writer.refresh(RLHFJOBS, job)
        cache.put(NODES, outdated(node) | {"spec": {"taints": [{"key": POOL_TAINT, "effect": "NoSchedule"}]}})
        await Taints(api, cache).ensure()
        assert cache.get(NODES, node["metadata"]["name"])["metadata"]["resourceVersion"] != "1"  # type: ignore[index]


def outdated(obj: Any) -> Any:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
