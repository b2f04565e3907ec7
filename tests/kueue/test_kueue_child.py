"""A child that the built-in queue is to start, where Kueue's default queue lies in wait; and the remedies.

What docs/use/checkpoints.md and `workloads.queue_problem` say of it, asked of the real Kueue.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kueue_objects import captured, job, make_queue, suspended, unlabel_problem, workload_of

from controller import names, workloads
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.errors import ApiError, Refused
from controller.operator.process.settings import Settings
from controller.operator.reconcile.actions import Actions
from controller.policy.job.record import Operation
from controller.policy.job.types import CreateWorkload, StartAccess
from deploy.local.kueue.manager import Kueue
from deploy.local.nodes import Nodes
from tests.support.store_work import QUEUE, Cluster, begin_work, create_child, orphan, rlhfjob, running, work

FRAMEWORK = f"RLHFJob.{names.VERSION}.{names.GROUP}"
READS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kueue-reads-rlhfjobs}
rules:
- {apiGroups: [evalstop.dev], resources: [rlhfjobs], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kueue-reads-rlhfjobs}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kueue-reads-rlhfjobs}
subjects:
- {kind: ServiceAccount, name: kueue-controller-manager, namespace: kueue-system}
"""


def problem_of(cluster: Cluster, manifest: Any) -> Any:
    """What the operator's check before creation says."""

    async def create(body: dict[str, Any]) -> Any:
        return cluster.create(body, dry_run=True)

    return asyncio.run(workloads.server_problem(create, manifest))


def would_be_taken(cluster: Cluster, manifest: Any) -> bool:
    """Whether a child could be made now. A webhook that gives no answer in time is asked again."""
    try:
        return problem_of(cluster, manifest) is None
    except ApiError:
        return False


def test_a_captured_child_would_be_started_by_kueue_so_it_is_not_made(
    kueue: Kueue, kueue_nodes: Nodes, cluster: Cluster
) -> None:
    make_queue(cluster, "default", gpus=8)
    for name in ("work", "kept"):
        cluster.claim(name)
    wish = rlhfjob(cluster.namespace)
    manifest = orphan(workloads.build_child(wish))
    problem = problem_of(cluster, manifest)
    assert problem.reason == "QueueTakesWorkload"
    assert "has a LocalQueue of that name" in problem.message

    child = create_child(cluster, manifest)
    assert workloads.queue_problem(child, manifest) == problem.message
    assert workloads.strip_queue_patch(child, manifest) is not None
    assert "queue-name must not be empty" in str(unlabel_problem(cluster, "run"))
    child = running(cluster, child)  # nobody of ours has started it
    assert names.ANNOTATION_ADMISSION not in child["spec"]["template"]["metadata"].get("annotations", {})
    cluster.patch(child, workloads.suspend_patch(child))
    cluster.wait(lambda: not suspended(cluster, "run"))


def test_what_was_captured_in_spite_of_the_check_is_taken_away_again(kueue: Kueue, cluster: Cluster) -> None:
    make_queue(cluster, "default", gpus=8)
    owner = {**rlhfjob(cluster.namespace)}
    # An owner that the garbage collector does not know about would have the Job collected in any case.
    account = cluster.get("ServiceAccount", "default")
    owner["metadata"]["uid"] = account["metadata"]["uid"]
    told: list[Any] = []
    world = SimpleNamespace(refuse=lambda loaded, problem, seconds: told.append(problem))
    loaded: Any = SimpleNamespace(
        obj=owner,
        uid=owner["metadata"]["uid"],
        key=f"{cluster.namespace}/run",
        pool=None,
        desired=SimpleNamespace(queue=""),
    )

    async def create() -> None:
        connection = await connect({"KUBECONFIG": str(kueue.plane.kubeconfig)})
        async with Api(connection) as api:
            actions = Actions(api, Cache(), cast(Any, world), Settings())
            await actions.do(loaded, CreateWorkload())

    with pytest.raises(Refused, match=FRAMEWORK):
        asyncio.run(create())
    assert [reason for reason, _ in told] == ["QueueTakesWorkload"]
    cluster.wait(lambda: not cluster.all("Job"))


def test_without_the_local_queue_the_child_is_free(kueue: Kueue, cluster: Cluster) -> None:
    make_queue(cluster, "default", gpus=0)  # no quota: what it captures stays suspended
    manifest = orphan(workloads.build_child(rlhfjob(cluster.namespace)))
    child = create_child(cluster, manifest)
    cluster.wait(lambda: workload_of(cluster, child))
    cluster.delete("LocalQueue", "default")
    cluster.wait(lambda: unlabel_problem(cluster, "run") is None)
    assert problem_of(cluster, {**manifest, "metadata": {**manifest["metadata"], "name": "b"}}) is None
    patch = workloads.strip_queue_patch(child, manifest)
    assert patch is not None
    child = cluster.patch(child, patch)
    cluster.patch(child, workloads.start_patch(child, 1, {"kubernetes.io/os": "linux"}))
    stays_as_it_is(cluster, "run", running=True)


def stays_as_it_is(cluster: Cluster, name: str, *, running: bool, seconds: float = 1.5) -> None:
    """Nobody changes a Job's suspension: Kueue answers a Job's event within some milliseconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert suspended(cluster, name) is not running, [event["message"] for event in cluster.all("Event")]
        time.sleep(0.2)


@pytest.fixture
def rlhfjob_crd(kueue: Kueue, repository: Path) -> None:
    kueue.plane.kubectl("apply", "--server-side", "-f", str(repository / "crds"))
    kueue.plane.established("rlhfjobs.evalstop.dev")


def configured(kueue: Kueue, config: dict[str, Any]) -> Iterator[None]:
    """Kueue with another configuration for one test."""
    kueue.reconfigure(config)
    try:
        yield
    finally:
        kueue.reconfigure({})


@pytest.fixture
def external_framework(kueue: Kueue, rlhfjob_crd: None) -> Iterator[None]:
    yield from configured(kueue, {"integrations": {"externalFrameworks": [FRAMEWORK]}})


def test_with_rlhfjob_as_external_framework_the_child_is_left_alone(
    kueue: Kueue, kueue_nodes: Nodes, cluster: Cluster, external_framework: None
) -> None:
    make_queue(cluster, "default", gpus=8)
    for name in ("work", "kept"):
        cluster.claim(name)
    wish = rlhfjob(cluster.namespace)
    wish["metadata"]["uid"] = cluster.create(wish)["metadata"]["uid"]
    manifest = workloads.build_child(wish)
    # Without the right to read rlhfjobs Kueue's webhook waits for them in vain: no child can be made at all.
    with pytest.raises(ApiError, match=r"deadline exceeded|[Tt]imeout"):
        cluster.client.post(f"{cluster.path('Job')}?dryRun=All&timeout=1s", manifest)
    kueue.plane.kubectl("apply", "-f", "-", stdin=READS)
    # Kueue's pause between two tries to read them grows, and may outlast the time that its webhook has.
    cluster.wait(lambda: would_be_taken(cluster, manifest), seconds=60.0)
    child = create_child(cluster, manifest)
    assert not captured(child)
    assert captured(cluster.create(job("bare")))  # the queue captures others as before
    child = cluster.patch(child, workloads.start_patch(child, 1, {"kubernetes.io/os": "linux"}))
    child = running(cluster, child)
    work(cluster, wish, child, StartAccess("secure-100-1", Operation.SECURE, 100), "node-1")
    stays_as_it_is(cluster, "run", running=True)
    cluster.patch(child, workloads.suspend_patch(child))
    stays_as_it_is(cluster, "run", running=False)
    assert workload_of(cluster, child) is None
    assert QUEUE not in json.dumps(cluster.get("Job", "run")["metadata"]["labels"])


@pytest.fixture
def manages_everything(kueue: Kueue) -> Iterator[None]:
    """Kueue manages Jobs without a queue too, in namespaces that say `managed=yes`."""
    selector = {"matchLabels": {"managed": "yes"}}
    config = {"manageJobsWithoutQueueName": True, "managedJobsNamespaceSelector": selector}
    yield from configured(kueue, config)


def test_where_kueue_manages_jobs_without_queue_a_namespace_must_be_left_out(
    kueue: Kueue, kueue_nodes: Nodes, cluster: Cluster, manages_everything: None
) -> None:
    for name in ("work", "kept"):
        cluster.claim(name)
    wish = rlhfjob(cluster.namespace)
    child = create_child(cluster, orphan(workloads.build_child(wish)))
    child = cluster.patch(child, workloads.start_patch(child, 1, {"kubernetes.io/os": "linux"}))
    child = running(cluster, child)
    work(cluster, wish, child, StartAccess("secure-100-1", Operation.SECURE, 100), "node-1")
    stays_as_it_is(cluster, "run", running=True)

    cluster.label_namespace("managed", "yes")
    found = begin_work(cluster, wish, child, StartAccess("secure-100-2", Operation.SECURE, 100), "node-1")
    cluster.wait(lambda: suspended(cluster, found["metadata"]["name"]))
