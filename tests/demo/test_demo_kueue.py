"""The demo's jobs under Kueue: the same jobs, and queues that can serve them."""

from __future__ import annotations

from deploy.local.demo import cast


def test_the_pool_takes_the_place_of_its_namesake_and_its_queues_come_before_it() -> None:
    given, found = cast.load(), cast.under_kueue(cast.load())
    assert found.jobs == given.jobs
    assert found.node_labels == given.node_labels
    kinds = [d["kind"] for d in found.supplies]
    assert kinds.count("GPUPool") == 1
    assert kinds.index("GPUPool") > kinds.index("LocalQueue") > kinds.index("Namespace")
    (pool,) = [d for d in found.supplies if d["kind"] == "GPUPool"]
    (queue,) = [d for d in found.supplies if d["kind"] == "LocalQueue"]
    assert pool["spec"]["kueue"]["localQueue"] == queue["metadata"]["name"]
    assert queue["metadata"]["namespace"] == cast.NAMESPACE


def test_the_queue_covers_all_that_the_jobs_request() -> None:
    """Kueue gives no quota to pods that request what their queue does not cover."""
    found = cast.under_kueue(cast.load())
    (queue,) = [d for d in found.supplies if d["kind"] == "ClusterQueue"]
    covered = {name for group in queue["spec"]["resourceGroups"] for name in group["coveredResources"]}
    for job, _ in found.jobs:
        pod = job["spec"]["workload"]["template"]["spec"]["template"]["spec"]
        for container in pod["containers"]:
            for group in ("requests", "limits"):
                assert set(container["resources"].get(group, {})) <= covered
