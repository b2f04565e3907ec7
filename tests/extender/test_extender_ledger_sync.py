"""From Kubernetes objects to the ledger: what each change of an object does to what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from controller import names
from controller.api import convert
from controller.api.gpupool import GANG_TIMEOUT_SECONDS
from controller.extender import views
from controller.extender.ledger_sync import WATCHED, LedgerSync
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, NODES, PODS, RLHFJOBS
from controller.policy.actor_types import Actor
from controller.policy.node.ledger import Bound, Gang, GpuLedger
from controller.policy.types import Reservation

T0, T0_SECONDS = "2026-11-21T12:00:00Z", 1795262400.0


class LedgerWorld:
    """A cache that feeds a ledger, and objects whose resourceVersions go on by themselves."""

    def __init__(self) -> None:
        self.cache, self.ledger = Cache(WATCHED), GpuLedger()
        self.changes, self.version = 0, 0
        self.gone: list[str] = []
        LedgerSync(self.cache, self.ledger, "rack", self._count, self.gone.append)

    def _count(self) -> None:
        self.changes += 1

    def put(self, resource: Any, obj: dict[str, Any], **metadata: Any) -> None:
        self.version += 1
        obj = {**obj, "metadata": {**obj["metadata"], **metadata, "resourceVersion": str(self.version)}}
        self.cache.put(resource, obj)

    def drop(self, resource: Any, obj: dict[str, Any]) -> None:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.cache.drop(resource, {**obj, "metadata": metadata})


def node(gpus: str = "8") -> dict[str, Any]:
    metadata = {"name": "n", "uid": "n", "labels": {"rack": "r"}}
    return {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}


def job(admission: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    spec = {"pool": "p", "gang": {"replicas": 1, "gpusPerReplica": 8}}
    metadata = {"name": "j", "namespace": "t", "uid": "j"}
    admitted = {} if admission is None else {"admission": admission}
    return {"metadata": metadata, "spec": spec, "status": admitted | status}


def pool(timeout: int, reservations: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    spec = {"gangTimeoutSeconds": timeout}
    return {
        "metadata": {"name": "p", "uid": "p"},
        "spec": spec,
        "status": {"reservations": reservations or []},
    }


def pod(node: str | None, phase: str = "Pending", uid: str = "u") -> dict[str, Any]:
    metadata = {
        "name": "j-0",
        "namespace": "t",
        "uid": uid,
        "labels": {"evalstop.dev/job": "j"},
        "annotations": {"evalstop.dev/admission": "2"},
    }
    containers = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": containers},
        "status": {"phase": phase},
    }


@pytest.fixture
def world() -> LedgerWorld:
    return LedgerWorld()


ADMISSION = {"number": 2, "nodes": ["n"], "time": T0, "unboundSince": T0}


def test_an_admission_is_kept_until_the_pools_time_is_over(world: LedgerWorld) -> None:
    """A pool that comes, or changes its time, later than the job counts all the same."""
    world.put(RLHFJOBS, job(ADMISSION))
    assert world.ledger.gang("t/j") == Gang("t/j", 2, ("n",), 8, T0_SECONDS + GANG_TIMEOUT_SECONDS)
    world.put(GPUPOOLS, pool(60))
    assert world.ledger.gang("t/j") == Gang("t/j", 2, ("n",), 8, T0_SECONDS + 60)
    world.put(GPUPOOLS, pool(90))
    assert world.ledger.gang("t/j") == Gang("t/j", 2, ("n",), 8, T0_SECONDS + 90)
    world.put(RLHFJOBS, job({"number": 2, "nodes": ["n"], "time": T0, "runningSince": T0}))
    assert world.ledger.gang("t/j") == Gang("t/j", 2, ("n",), 8)


@pytest.mark.parametrize("how", ["withdrawn", "finished", "deleted"])
def test_an_admission_ends(world: LedgerWorld, how: str) -> None:
    world.put(RLHFJOBS, job(ADMISSION))
    before = world.changes
    if how == "deleted":
        world.drop(RLHFJOBS, job(ADMISSION))
    else:
        world.put(RLHFJOBS, job(ADMISSION, finished="Complete") if how == "finished" else job())
    assert world.ledger.gang("t/j") is None
    assert world.ledger.size("t/j") == (8 if how == "withdrawn" else None)
    assert world.changes > before


def test_evals_of_a_job_are_nothing_to_the_ledger(world: LedgerWorld) -> None:
    world.put(RLHFJOBS, job(ADMISSION))
    before = world.changes
    world.put(RLHFJOBS, job(ADMISSION, evals=["10 0.5"]))
    assert world.changes == before


def test_promises_are_the_pools_holds(world: LedgerWorld) -> None:
    hold = {"source": "t/a", "target": "t/j", "nodes": ["n"], "expires": T0}
    world.put(RLHFJOBS, job())
    world.put(GPUPOOLS, pool(60, [{**hold, "admission": 3}]))
    assert world.ledger.keeping(T0_SECONDS - 1) == {"n": 8}
    assert convert.reservations(pool(60, [hold])["status"]) == (
        Reservation("t/a", "t/j", ("n",), T0_SECONDS, 0),
    )
    world.put(RLHFJOBS, job(finished="Failed"))
    assert world.ledger.keeping(T0_SECONDS - 1) == {}
    world.put(RLHFJOBS, job())
    world.drop(GPUPOOLS, pool(60))
    assert world.ledger.keeping(T0_SECONDS - 1) == {}


def test_a_pod_holds_its_node_from_its_binding_to_its_end(world: LedgerWorld) -> None:
    world.put(PODS, pod(None))
    assert (world.ledger.pod("u"), world.gone) == (None, [])
    world.put(PODS, pod("n"))
    assert (world.ledger.pod("u"), world.gone) == (Bound("t/j", 2, "n", 8), ["u"])
    world.put(PODS, pod("n", "Succeeded"))
    assert world.ledger.pod("u") is None
    world.put(PODS, pod("n", uid="u2"))
    world.put(PODS, pod("m", uid="u3"))  # a namesake; the end of the first was never told
    assert world.ledger.pod("u2") is None
    world.drop(PODS, pod("m", uid="u3"))
    assert world.ledger.pod("u3") is None


def test_nodes_come_change_and_go(world: LedgerWorld) -> None:
    world.put(NODES, node())
    assert (world.ledger.capacity, world.ledger.rack("n")) == ({"n": 8}, "r")
    world.put(NODES, node("odd"))
    assert world.ledger.capacity == {"n": 0}
    world.drop(NODES, node())
    assert (world.ledger.capacity, world.ledger.rack("n")) == ({}, None)


def actor_pod(number: str, node: str | None) -> dict[str, Any]:
    found = pod(node, "Running", "a")
    labels = {**found["metadata"]["labels"], names.LABEL_COMPONENT: "actor", names.LABEL_ACTOR: number}
    containers = [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    return {
        **found,
        "metadata": {**found["metadata"], "labels": labels},
        "spec": {"nodeName": node, "containers": containers},
    }


ENTRY = {"number": 4, "node": "n", "gpus": 2, "since": T0}


def test_actors_are_told_by_their_entries_and_are_no_members(world: LedgerWorld) -> None:
    world.put(NODES, node())
    world.put(RLHFJOBS, job({"number": 2, "nodes": ["m"], "time": T0}, actors=[ENTRY]))
    assert world.ledger.actors("t/j") == (Actor(4, "n", 2, since=T0_SECONDS),)
    assert world.ledger.kept("n", T0_SECONDS, "t")[0] == 2, "from the entry on"
    assert views.pod_request(actor_pod("4", None)).actor == 4
    world.put(PODS, actor_pod("4", "n"))
    assert world.ledger.pod("a") == Bound("t/j", 2, "n", 2, 4)
    assert world.ledger.kept("n", T0_SECONDS, "t")[0] == 0, "its pod has them"
    assert world.ledger.kept("m", T0_SECONDS, "t")[0] == 8, "its gang's place is no actor's"
    before = world.changes
    world.put(RLHFJOBS, job({"number": 2, "nodes": ["m"], "time": T0}))
    assert world.ledger.actors("t/j") == ()
    assert world.changes > before
    world.put(RLHFJOBS, job({"number": 2, "nodes": ["m"], "time": T0}, finished="Complete", actors=[ENTRY]))
    assert world.ledger.actors("t/j") == ()


def test_an_actor_recalled_for_a_job_of_another_namespace_is_known_by_that_job(world: LedgerWorld) -> None:
    """Its status has the other's uid alone."""
    other = job()
    other["metadata"] |= {"namespace": "u", "name": "other", "uid": "uid-other"}
    world.put(RLHFJOBS, other)
    whom = ("uid:uid-other", "uid:gone")
    recalled = [{**ENTRY, "number": i, "state": "Recalled", "forWhom": one} for i, one in enumerate(whom)]
    admission = {"number": 2, "nodes": ["m"], "time": T0}
    world.put(RLHFJOBS, job(admission, actors=recalled))
    assert [actor.for_whom for actor in world.ledger.actors("t/j")] == ["u/other", ""]


def test_recalled_gpus_are_kept_for_whom_they_were_recalled(world: LedgerWorld) -> None:
    world.put(NODES, node())
    world.put(RLHFJOBS, job())
    place = {"node": "n", "gpus": 4}
    recalled = [{"target": "t/j", "places": [place], "expires": "2026-11-21T12:05:00Z"}]
    world.put(GPUPOOLS, {**pool(60), "status": {"recalled": recalled}})
    assert world.ledger.kept("n", T0_SECONDS, "t")[0] == 4
    assert world.ledger.kept("n", T0_SECONDS + 301, "t")[0] == 0
    world.put(GPUPOOLS, pool(60))
    assert world.ledger.kept("n", T0_SECONDS, "t")[0] == 0
    world.put(GPUPOOLS, {**pool(60), "status": {"recalled": recalled}})
    world.drop(GPUPOOLS, pool(60))
    assert world.ledger.kept("n", T0_SECONDS, "t")[0] == 0
