"""Looks at other people's GPU pods: what they cost the API server, and what they find."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_operator_watched import KEY, child, pod, pool, rlhfjob

from controller import names
from controller.api import convert
from controller.kube.cache import Cache
from controller.kube.packed import Packed
from controller.kube.resources import GPUPOOLS, JOBS, NODES, PODS, RLHFJOBS
from controller.operator.state.cluster import ClusterState
from controller.operator.state.unmanaged_pods import FEW_NODES, RETRY, UnmanagedPods
from controller.policy.job import AdmissionRecord, JobRecord, ScrapeOutcome, ScrapeView


def guest(name: str, node: str, gpus: int = 1) -> dict[str, Any]:
    resources = {"limits": {names.GPU_RESOURCE: str(gpus)}} if gpus else {}
    metadata = {"name": name, "namespace": "other", "uid": name, "resourceVersion": "1"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running"},
    }


class Pods:
    """The LIST of an API that knows the two field selectors in use."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods, self.asked = list(pods), list[str]()

    async def list(
        self, _: object, namespace: str = "", *, labels: str, fields: str
    ) -> tuple[list[dict[str, Any]], str]:
        assert labels == f"!{names.LABEL_JOB}"
        where = fields.split(",")[0]
        self.asked.append(where)
        node = where.removeprefix("spec.nodeName=")
        return [p for p in self.pods if where == "spec.nodeName!=" or p["spec"]["nodeName"] == node], "1"


@pytest.mark.parametrize(
    ("nodes", "lists", "pause"), [(FEW_NODES, FEW_NODES, 15.0), (FEW_NODES + 1, 1, 60.0)]
)
def test_of_many_nodes_all_pods_are_listed_and_less_often(nodes: int, lists: int, pause: float) -> None:
    api = Pods(guest("a", "n0", 2), guest("b", "elsewhere"), guest("c", "n1", gpus=0))
    foreign = UnmanagedPods(api)  # type: ignore[arg-type]
    mine = [f"n{i}" for i in range(nodes)]
    assert foreign.pause(15.0, 60.0) == RETRY, "nobody knows yet"
    assert asyncio.run(foreign.look(mine)) == {"n0"}
    assert len(api.asked) == lists
    assert [pod["metadata"]["name"] for pod in foreign.pods()] == ["a"]
    assert foreign.pause(15.0, 60.0) == pause
    assert foreign.pause(300.0, 60.0) == 300.0, "never more often than asked for"
    api.pods.clear()
    assert asyncio.run(foreign.look(mine)) == {"n0"}, "it is gone"
    assert asyncio.run(foreign.look(mine)) == frozenset()


def test_a_gang_that_waits_for_a_node_that_is_gone_is_told_so() -> None:
    """It was "no pod has an address yet" for good; the doctor alone asked for the node."""
    cache = Cache()
    cluster = ClusterState(cache, lambda: 0.0)
    for resource, obj in ((GPUPOOLS, pool()), (JOBS, child()), (RLHFJOBS, rlhfjob())):
        cache.put(resource, obj)
    fresh = cluster.load(KEY)
    assert fresh is not None
    record = JobRecord(attempt=1, admission=AdmissionRecord(1, ("n1", "n2"), 1.8e9))
    cache.put(RLHFJOBS, {**rlhfjob(), "status": convert.status(record, fresh.desired, 0.0)})
    cluster.scraped(KEY, ScrapeView(ScrapeOutcome.NO_PODS, "no pod has an address yet", at=1.9e9))

    def told() -> str:
        loaded = cluster.load(KEY)
        assert loaded is not None
        assert loaded.observed.scrape is not None
        return loaded.observed.scrape.message

    assert told() == "no pod has an address yet", "nobody knows the nodes yet"
    for name in ("n2", "n3"):
        cache.put(NODES, {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {}})
    assert told() == "no pod has an address yet; n1, the node planned for it, is gone"
    cache.put(NODES, {"metadata": {"name": "n1", "uid": "n1", "resourceVersion": "1"}, "spec": {}})
    assert told() == "no pod has an address yet"


def test_a_pod_of_a_job_whose_label_somebody_took_away_is_named_on_the_run() -> None:
    """It was "no pod has an address yet", and its GPUs were a stranger's."""
    cache = Cache()
    cluster = ClusterState(cache, lambda: 0.0)
    for resource, obj in ((GPUPOOLS, pool()), (JOBS, child()), (RLHFJOBS, rlhfjob())):
        cache.put(resource, obj)
    cluster.scraped(KEY, ScrapeView(ScrapeOutcome.NO_PODS, "no pod has an address yet", at=1.9e9))
    touched: list[str] = []
    cluster.changed = touched.append
    bare, foreign = pod(), guest("b", "n1")
    del bare["metadata"]["labels"]
    foreign["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "b", "uid": "b", "controller": True}]
    look = UnmanagedPods(Pods(bare, foreign))  # type: ignore[arg-type]

    def told() -> str:
        asyncio.run(look.look(["n1"]))
        cluster.unlabelled_are(look.of_jobs())
        loaded = cluster.load(KEY)
        assert loaded is not None
        assert loaded.observed.scrape is not None
        return loaded.observed.scrape.message

    assert told() == (
        "no pod has an address yet; pod train-0 of Job train lacks label evalstop.dev/job=run, so nobody "
        "reads it"
    )
    assert told()
    assert touched == [KEY], "once"
    look = UnmanagedPods(Pods(foreign))  # type: ignore[arg-type]
    assert told() == "no pod has an address yet"
    assert touched == [KEY, KEY]


def test_a_pod_of_a_job_that_bears_another_s_label_is_named_on_the_run() -> None:
    """It was "no pod has an address yet", and nothing named the pod that trains."""
    cache = Cache()
    cluster = ClusterState(cache, lambda: 0.0)
    active = {**child(), "status": {**child().get("status", {}), "active": 1}}
    turned, foreign = pod(), guest("b", "n1")
    turned["metadata"]["labels"][names.LABEL_JOB] = "other"
    foreign["metadata"] |= {"namespace": "ns", "labels": {names.LABEL_JOB: "other"}}
    for resource, obj in (
        (GPUPOOLS, pool()),
        (JOBS, active),
        (RLHFJOBS, rlhfjob()),
        (PODS, foreign),
        (PODS, turned),
    ):
        cache.put(resource, obj)

    def told(at: float) -> str:
        cluster.scraped(KEY, ScrapeView(ScrapeOutcome.NO_PODS, "no pod has an address yet", at=at))
        loaded = cluster.load(KEY)
        assert loaded is not None
        assert loaded.observed.scrape is not None
        return loaded.observed.scrape.message

    lacks = "pod train-0 of Job train lacks label evalstop.dev/job=run, so nobody reads it"
    assert told(1.9e9) == f"no pod has an address yet; {lacks}"
    done = {**turned, "status": {**turned.get("status", {}), "phase": "Failed"}}
    done["metadata"] = {**turned["metadata"], "resourceVersion": "13"}
    cache.put(PODS, done)
    assert told(1.9e9 + 5) == "no pod has an address yet"


def test_only_the_job_s_own_mislabelled_pods_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was all pods of all namespaces, at each load of a run that starts: 160 ms with 5,000 of them."""
    cache = Cache()
    cluster = ClusterState(cache, lambda: 0.0)
    unlabelled = child()  # somebody's own Job, which the run refers to
    del unlabelled["metadata"]["labels"]
    turned, own = pod(), pod()
    turned["metadata"]["labels"][names.LABEL_JOB] = "other"
    own["metadata"] |= {"name": "train-1", "uid": "own"}
    for name, space in (("train-2", "other"), ("serve-0", "ns")):
        foreign = guest(name, "n1")
        foreign["metadata"] |= {"namespace": space, "labels": {names.LABEL_JOB: "other"}}
        cache.put(PODS, foreign)
    for made in (turned, own):
        cache.put(PODS, made)
    opened, unpack = list[str](), Packed.open

    def watched(packed: Packed) -> dict[str, Any]:
        opened.append(packed.key)
        return unpack(packed)

    monkeypatch.setattr(Packed, "open", watched)
    assert cluster._mislabelled(KEY, unlabelled) == ("train-0",)
    assert opened == ["ns/train-0"]
