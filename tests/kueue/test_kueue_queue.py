"""The real Kueue queues, admits and hands quota on: what the trap and its remedies are tested against."""

from kueue_objects import condition, deactivate, job, make_queue, suspended, workload_of

from deploy.local.nodes import Nodes
from tests.support.store_work import Cluster, running


def test_quota_of_eight_three_jobs_of_four(kueue_nodes: Nodes, cluster: Cluster) -> None:
    make_queue(cluster, "team", gpus=8)
    jobs = {name: cluster.create(job(name, 4, "team")) for name in ("one", "two", "three")}
    assert all(found["spec"]["suspend"] is True for found in jobs.values())
    cluster.wait(lambda: sum(not suspended(cluster, name) for name in jobs) == 2)
    (waits,) = [name for name in jobs if suspended(cluster, name)]
    stops, goes_on = [name for name in jobs if name != waits]
    for name in (stops, goes_on):
        running(cluster, jobs[name])
    assert suspended(cluster, waits)
    workload = cluster.wait(lambda: workload_of(cluster, jobs[waits]))  # Kueue makes each on its own
    assert condition(workload, "Admitted") is None

    # Suspending an admitted Job by hand is undone: it must be stopped by its Workload.
    cluster.patch(jobs[stops], {"spec": {"suspend": True}})
    cluster.wait(lambda: not suspended(cluster, stops))

    deactivate(cluster, jobs[stops])
    cluster.wait(lambda: suspended(cluster, stops) and not suspended(cluster, waits))
    running(cluster, jobs[waits])
    assert not suspended(cluster, goes_on)
    workload = workload_of(cluster, jobs[stops])
    assert workload is not None
    evicted = condition(workload, "Evicted")
    assert evicted is not None
    assert evicted["reason"] == "Deactivated"
