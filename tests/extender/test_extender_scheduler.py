"""On a real kube-scheduler: who gets which node, and who is woken when."""

from pathlib import Path

import pytest
from extender_rig import Cluster, ExtenderThread, Line, settled

from controller.extender.requeueing import ANNOTATION_RETRY
from deploy.local.plane import Plane
from deploy.local.scheduler import Certificates, Scheduler
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_freed_nodes_go_to_the_gang_the_policy_chose_though_a_smaller_pod_waits(cluster: Cluster) -> None:
    """The stop of `old` is announced; `big` was chosen. `small` waits longer and would fit first."""
    a, b = cluster.make_nodes(2)
    cluster.make_pool()
    for job in ("old", "big", "small"):
        cluster.make_job(job, 1 if job == "small" else 2, 4 if job == "small" else 8)
    cluster.admit("old", 1, [a, b])
    for index, node in enumerate((a, b)):
        cluster.make_pod(f"old-{index}", job="old", admission=1, index=index)
        cluster.bound(f"old-{index}", node)
    stranger = cluster.make_pod("stranger", gpus=4)
    assert stranger["spec"]["schedulerName"] == "evalstop-scheduler"
    cluster.parked("stranger", "Insufficient nvidia.com/gpu")

    cluster.promise(cluster.hold("old", "big", [a, b]))  # written before the suspend
    cluster.end_admission("old")
    for index in (0, 1):
        cluster.delete_pod(f"old-{index}")
    said = cluster.parked("stranger", "reserved for")
    assert f"{cluster.namespace}/big" in said
    assert " until 20" in said

    cluster.admit("big", 1, [b, a])
    cluster.promise()
    cluster.make_pod("big-0", job="big", admission=1, index=0)
    cluster.make_pod("big-1", job="big", admission=1, index=1)
    cluster.bound("big-0", b)
    cluster.bound("big-1", a)
    assert cluster.node_of("stranger") is None


@pytest.mark.parametrize("how", ["closed", "open"])
def test_a_pod_whose_admission_is_not_seen_yet_waits_and_is_woken(
    cluster: Cluster, extender: ExtenderThread, schedulers: dict[str, Scheduler], how: str
) -> None:
    """Refused by FailedNodes, so `ignorable` does not let it pass; the touch lets kube-scheduler notice."""
    _, b = cluster.make_nodes(2)
    cluster.make_pool()
    cluster.make_job("late")
    with extender.delayed():
        cluster.admit("late", 1, [b])
        cluster.make_pod("late-0", job="late", admission=1, scheduler=schedulers[how].process)
        said = cluster.parked("late-0", "not seen yet")
        assert f"admission 1 of {cluster.namespace}/late not seen yet (the newest seen: none)" in said
        # It tried again by itself when its own status was written; nothing more will wake it.
        wait_until(lambda: settled(schedulers[how]), "the pod to be parked for good")
        before = cluster.woken()
    cluster.bound("late-0", b)
    assert cluster.woken() > before
    assert ANNOTATION_RETRY not in cluster.pod("late-0")["metadata"]["annotations"]


def test_a_promise_that_runs_out_is_noticed(cluster: Cluster) -> None:
    """Time passing is no event for kube-scheduler."""
    (node,) = cluster.make_nodes(1)
    cluster.make_pool()
    cluster.make_job("never")
    cluster.promise(cluster.hold("gone", "never", [node]))
    cluster.make_pod("stranger", gpus=4)
    cluster.parked("stranger", "reserved for")
    cluster.promise(cluster.hold("gone", "never", [node], seconds=3))
    cluster.bound("stranger", node)


def test_an_admission_that_is_withdrawn_lets_others_pass_and_stops_its_late_pods(cluster: Cluster) -> None:
    (node,) = cluster.make_nodes(1)
    cluster.make_pool()
    cluster.make_job("first")
    cluster.admit("first", 1, [node])
    cluster.make_pod("stranger", gpus=8)
    cluster.parked("stranger", f"kept for {cluster.namespace}/first (admission 1)")
    cluster.end_admission("first")
    cluster.bound("stranger", node)
    cluster.admit("first", 2, [node])
    cluster.make_pod("stale-0", job="first", admission=1)
    cluster.make_pod("other-0", job="first", admission=2)
    cluster.parked("other-0", "Insufficient nvidia.com/gpu")
    assert cluster.node_of("stale-0") is None


def test_a_node_is_kept_from_others_until_the_gang_is_bound(cluster: Cluster) -> None:
    (node,) = cluster.make_nodes(1)
    cluster.make_pool()
    cluster.make_job("half", gpus=4)
    cluster.admit("half", 1, [node])
    cluster.make_pod("none", gpus=0)
    cluster.bound("none", node)
    cluster.make_pod("other", gpus=2)
    cluster.parked("other", "4 GPUs kept for")
    cluster.make_pod("half-0", gpus=4, job="half", admission=1)
    cluster.bound("half-0", node)
    cluster.bound("other", node)


@pytest.mark.parametrize("mode", ["down", "slow"])
def test_without_the_extender_pods_wait_or_pass_as_configured_and_others_are_untouched(
    cluster: Cluster, line: Line, schedulers: dict[str, Scheduler], mode: str
) -> None:
    a, b = cluster.make_nodes(2, gpus=16)
    cluster.make_pool()
    for job in ("waits", "passes"):
        cluster.make_job(job)
        cluster.admit(job, 1, [a])
    line.set(mode)
    cluster.make_pod("waits-0", job="waits", admission=1)
    cluster.make_pod("passes-0", job="passes", admission=1, scheduler=schedulers["open"].process)
    cluster.make_pod("plain", gpus=0, scheduler="default-scheduler")
    assert cluster.bound("passes-0") in (a, b)
    cluster.bound("plain")
    assert cluster.node_of("waits-0") is None
    line.set("up")
    cluster.bound("waits-0", a)


def test_a_gang_is_not_preempted_and_others_are(cluster: Cluster, plane: Plane) -> None:
    """A pod that outranks everybody takes the place of a plain pod, not of a gang's."""
    a, b = cluster.make_nodes(2)
    cluster.make_pool()
    cluster.make_job("gang")
    cluster.admit("gang", 1, [a])
    cluster.make_pod("gang-0", job="gang", admission=1)
    cluster.bound("gang-0", a)
    rank = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    name = f"{cluster.pool}-first"
    plane.client().post("/apis/scheduling.k8s.io/v1/priorityclasses", {**rank, "metadata": {"name": name}})
    cluster.make_pod("first", priorityClassName=name, nodeSelector={"kubernetes.io/hostname": a})
    cluster.parked("first", "Insufficient nvidia.com/gpu")
    cluster.make_pod("plain")
    cluster.bound("plain", b)
    cluster.make_pod("second", priorityClassName=name)
    cluster.bound("second", b)
    assert cluster.gone("plain")
    assert cluster.node_of("gang-0") == a
    assert cluster.node_of("first") is None


def test_a_replica_that_comes_later_agrees_and_wakes_whom_it_never_refused(
    cluster: Cluster,
    extender: ExtenderThread,
    schedulers: dict[str, Scheduler],
    extender_kubeconfig: Path,
    certificates: Certificates,
) -> None:
    nodes = cluster.make_nodes(3)
    cluster.make_pool()
    for job in ("one", "two", "late"):
        cluster.make_job(job)
    cluster.admit("one", 1, [nodes[0]])
    cluster.promise(cluster.hold("gone", "two", [nodes[1]]))
    with extender.delayed():
        cluster.admit("late", 1, [nodes[2]])
        cluster.make_pod("late-0", job="late", admission=1)
        cluster.parked("late-0", "not seen yet")
        wait_until(lambda: settled(schedulers["closed"]), "the pod to be parked for good")
        before = cluster.woken()
        with ExtenderThread(extender_kubeconfig, certificates, look_seconds=0.2) as replica:
            wait_until(lambda: cluster.woken() > before, "the replica to wake it")
            touched = 'evalstop_extender_wakes_total{outcome="touched"}'
            # Counted once its write is answered, which is after the write is seen.
            wait_until(lambda: replica.metric(touched) >= 1, "the replica to count it")
            assert cluster.node_of("late-0") is None
            extender.catch_up()
            cluster.bound("late-0", nodes[2])
            for message in cluster.questions(["one", "two", "late"]):
                for verb in ("filter", "prioritize"):
                    # Both anew each time: either may have been the later one to hear of the binding.
                    wait_until(
                        lambda m=message, v=verb: replica.ask(v, m) == extender.ask(v, m),
                        "the replicas to agree",
                    )
