"""What the tests of the installed chart share: values for kubelets, who looks at the dashboard, conflicts."""

from __future__ import annotations

import datetime
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from rendering import NAMESPACE

from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.resources import JOBS, NODES, RLHFJOBS
from controller.kube.versioned import Stale, refresh
from controller.names import POOL_TAINT
from controller.operator.process.leader_election import Unopposed
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.state.cluster import ClusterState
from controller.operator.state.taints import Taints
from controller.web.certificates import issue_server, make_authority
from deploy.helm.cluster import ChartCluster, until
from deploy.helm.local import LOCAL, POOL
from deploy.local.errors import PlaneError

SPACE = "team-a"


def for_kubelets(scheduler: str) -> dict[str, Any]:
    """Values for a cluster with kubelets and Services; ``scheduler``: the image of its kube-scheduler."""
    anywhere = {"tolerations": [{"operator": "Exists"}]}
    # The cluster's own runs there, so the image is there, and perhaps nowhere else.
    beside_the_first = anywhere | {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}
    pool = POOL | {"spec": POOL["spec"] | {"schedulerName": "evalstop-scheduler"}}
    return {
        "pools": [pool],
        "operator": anywhere | {"replicas": 2, "settings": {"foreignSeconds": 1}},
        "extender": anywhere | {"replicas": 2},
        "scheduler": beside_the_first | {"enabled": True, "image": scheduler},
    }


class Dashboard:
    """The chart's dashboard, behind a certificate of its own authority, as viewers with a token see it."""

    SECRET: Final = "dashboard-tls"
    VALUES: Final[dict[str, Any]] = {
        "dashboard": {
            "enabled": True,
            "tlsSecret": SECRET,
            "tolerations": LOCAL["operator"]["tolerations"],
        }
    }

    def __init__(self, cluster: ChartCluster) -> None:
        self._cluster = cluster
        now = datetime.datetime.now(datetime.UTC)
        authority = make_authority(now)
        pair = issue_server(authority, ["evalstop-dashboard"], now)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.SECRET, "namespace": NAMESPACE},
            "stringData": {"tls.crt": pair.certificate, "tls.key": pair.key},
        }
        cluster.apply([secret])
        self._context = ssl.create_default_context(cadata=authority.certificate)
        self._context.check_hostname = False  # asked by its pod's address: there are no Services here

    def token(self, account: str, *roles: str) -> str:
        """A token of a ServiceAccount made for it, which may what each of ``roles`` gives in `SPACE`."""
        kubectl = self._cluster.kubectl
        kubectl("create", "serviceaccount", account, "-n", SPACE)
        user = f"system:serviceaccount:{SPACE}:{account}"
        for role in roles:
            name, subject = f"{account}-{role}", f"--serviceaccount={SPACE}:{account}"
            kubectl("create", "rolebinding", name, "-n", SPACE, f"--clusterrole={role}", subject)
            # A no that the dashboard gets before the authorizer knows, it keeps for half a minute.
            until(f"{account} to be {role}", lambda: may(self._cluster, user, "list", "rlhfjobs", SPACE))
        # By the command that the dashboard's page gives.
        return kubectl("create", "token", account, "-n", SPACE, "--audience=evalstop-dashboard").strip()

    def ask(self, path: str, token: str = "") -> tuple[int, str]:
        """Status and text of what it answers."""
        (pod,) = self._cluster.get(
            "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=evalstop-dashboard"
        )["items"]
        request = urllib.request.Request(f"https://{pod['status']['podIP']}:8082{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=20, context=self._context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def may(cluster: ChartCluster, user: str, verb: str, resource: str, namespace: str = "default") -> bool:
    """Whether the API server lets a user do that now; kubectl's exit status is 1 where it does not."""
    try:
        return "yes" in cluster.kubectl("auth", "can-i", verb, resource, f"--as={user}", "-n", namespace)
    except PlaneError:
        return False


async def meet_conflicts(kubeconfig: Path, pool: Any, job: Any, node: Any) -> None:
    """Have the operator's own parts write over versions that are no longer the newest: they read anew.

    In the story this happens by chance only, when somebody else writes at the same moment.
    """
    connection = await connect({"KUBECONFIG": str(kubeconfig)})
    async with Api(connection) as api:
        cache = Cache()
        writer = StatusWriter(api, cache, ClusterState(cache, time.monotonic), Metrics(), Unopposed())
        with pytest.raises(Stale):
            await writer.pool(outdated(pool), {"observedGeneration": 0})
        await refresh(api, cache, RLHFJOBS, job)
        await refresh(api, cache, JOBS, job)  # its workload bears its name
        cache.put(NODES, outdated(node) | {"spec": {"taints": [{"key": POOL_TAINT, "effect": "NoSchedule"}]}})
        await Taints(api, cache).ensure()
        assert cache.get(NODES, node["metadata"]["name"])["metadata"]["resourceVersion"] != "1"  # type: ignore[index]


def outdated(obj: Any) -> Any:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
