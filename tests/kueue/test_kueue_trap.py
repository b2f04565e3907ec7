"""Store work in a namespace whose LocalQueue `default` captures unlabelled Jobs, with the real Kueue."""

import pytest
from kueue_objects import (
    captured,
    condition,
    deactivate,
    job,
    make_queue,
    suspended,
    unlabel_problem,
    workload_of,
)

from controller import workloads
from controller.checkpoints.access_jobs import unsuspend_patch
from controller.kube.errors import ApiError
from controller.policy.job.record import Operation, ProtectedCheckpoint
from controller.policy.job.types import StartAccess
from deploy.local.nodes import Nodes
from tests.support.store_work import (
    QUEUE,
    Cluster,
    access_manifest,
    answer,
    begin_work,
    create_child,
    orphan,
    rlhfjob,
    running,
    settled,
    work,
)

KEPT_LABEL = "queue-name must not be empty in namespace with default queue"


def test_the_trap_is_real(kueue_nodes: Nodes, cluster: Cluster) -> None:
    make_queue(cluster, "default", gpus=8)
    bare = cluster.create(job("bare"))
    assert bare["metadata"]["labels"][QUEUE] == "default"
    assert bare["spec"]["suspend"] is True
    assert KEPT_LABEL in str(unlabel_problem(cluster, "bare"))
    # An access Job that nobody hides is captured too, and never comes free: the queue has no CPUs to give.
    for name in ("work", "kept"):
        cluster.claim(name)
    child = orphan(workloads.build_child(rlhfjob(cluster.namespace)))
    action = StartAccess("secure-100-1", Operation.SECURE, 100)
    made = access_manifest(cluster, rlhfjob(cluster.namespace), child, action, None, anchor=None)
    found = cluster.create(made)
    assert captured(found)
    with pytest.raises(ApiError, match=KEPT_LABEL):
        cluster.patch(found, unsuspend_patch(found))
    workload = cluster.wait(lambda: workload_of(cluster, found))
    assert condition(workload, "Admitted") is None
    assert suspended(cluster, found["metadata"]["name"])


def test_store_work_goes_through_beside_a_child_that_kueue_manages(
    kueue_nodes: Nodes, cluster: Cluster
) -> None:
    """The hardest anchor: a child in the very queue, so that its access Jobs have a managed ancestor."""
    make_queue(cluster, "default", gpus=8)
    for name in ("work", "kept"):
        cluster.claim(name)
    wish = rlhfjob(cluster.namespace)
    wish["spec"]["workload"]["template"]["metadata"] = {"labels": {QUEUE: "default"}}
    child = create_child(cluster, orphan(workloads.build_child(wish)))
    child = running(cluster, child)  # Kueue starts it
    (pod,) = cluster.pods_of(child)
    node = pod["spec"]["nodeName"]

    action = StartAccess("secure-100-1", Operation.SECURE, 100)
    secured = work(cluster, wish, child, action, node)
    source = ProtectedCheckpoint(100, 100, secured.path, secured.digest, 0.0)
    action = StartAccess("retain-100-2", Operation.RETAIN, 100, source=source)
    retained = work(cluster, wish, child, action, node)
    assert retained.digest == secured.digest
    assert not suspended(cluster, "run")

    deactivate(cluster, child)
    child = cluster.wait(lambda: settled(cluster, child))
    source = ProtectedCheckpoint(100, 100, retained.path, retained.digest, 0.0)
    action = StartAccess("restore-100-3", Operation.RESTORE, 100, source=source)
    restored = work(cluster, wish, child, action, None)
    assert restored.digest == secured.digest

    # One that has been set going outlives the child: the copy that is being made is not thrown away.
    action = StartAccess("restore-100-4", Operation.RESTORE, 100, source=source)
    last = begin_work(cluster, wish, child, action, None)
    cluster.delete("Job", "run", "Foreground")
    assert answer(cluster, last).digest == secured.digest

    # The garbage collector takes the child away only after its Workload, which Kueue has to let go.
    cluster.wait(lambda: "run" not in {found["metadata"]["name"] for found in cluster.all("Job")})
    for found in cluster.all("Job"):
        name = found["metadata"]["name"]
        assert not captured(found)
        assert workload_of(cluster, found) is None
        cluster.wait(lambda name=name: workloads.view(cluster.get("Job", name)).finished == "Complete")
    assert len(cluster.all("Job")) == 4
