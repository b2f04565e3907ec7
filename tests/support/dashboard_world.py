"""RLHFJobs and GPUPools as an operator leaves them, for the dashboard's tests and for its pictures.

Statuses are written by the product's own code from records, and the rules' states come from the rules, so
that what is shown is what could be.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from controller.api import convert, values
from controller.kube.errors import NotFound
from controller.kube.resources import GPUPOOLS, LEASES, RLHFJOBS, Resource
from controller.policy.job import conditions as c
from controller.policy.job.attention import with_attention
from controller.policy.job.curve import with_eval
from controller.policy.job.outcome import followed
from controller.policy.job.record import (
    AdmissionRecord,
    Best,
    Condition,
    Decision,
    JobRecord,
    ProtectedCheckpoint,
    RunProgress,
)
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Plan
from controller.policy.types import Attempt, EvalPoint, Mode, Proposal, Verb
from controller.web.dashboard.access import KeyGate, Viewer
from controller.web.dashboard.app import Dashboard
from controller.web.dashboard.feed import Feed
from controller.web.dashboard.queues import QueueAddress, Queues
from controller.web.hosts import Hosts
from controller.web.server import WebServer

Object = dict[str, Any]
Curve = Sequence[tuple[float, float]]  # (score, proxy) of each eval
EVERYONE = Viewer("you", None, True)
KEY = "the-key-of-this-test"
CONTAINER = {
    "name": "trainer",
    "image": "evalstop/example-trainer:0.1.0",
    "ports": [{"name": "metrics", "containerPort": 9400}],
}


def over_optimising(seed: int, evals: int = 26, peak: int = 13) -> list[tuple[float, float]]:
    """(score, proxy) of a run that gets worse after its peak while the proxy goes on rising."""
    noise = random.Random(seed)
    return [
        (
            0.35 + 0.55 * math.exp(-(((n - peak) / (9 if n < peak else 7)) ** 2)) + noise.gauss(0, 0.012),
            0.2 + 1.9 * (1 - math.exp(-n / 11)) + noise.gauss(0, 0.02),
        )
        for n in range(1, evals + 1)
    ]


def healthy(seed: int, evals: int = 18) -> list[tuple[float, float]]:
    """(score, proxy) of a run that goes on getting better."""
    noise = random.Random(seed)
    return [
        (0.3 + 0.6 * (1 - math.exp(-n / 9)) + noise.gauss(0, 0.012), 0.2 + 1.2 * (1 - math.exp(-n / 12)))
        for n in range(1, evals + 1)
    ]


_FOLDERS = count(1)  # jobs of a namespace share no checkpoint location


def spec(pool: str = "research", *, gpus: int = 2, replicas: int = 2, **more: Any) -> Object:
    """A valid RLHFJob's spec."""
    completions = {"completions": replicas, "parallelism": replicas, "completionMode": "Indexed"}
    container = {**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    made: Object = {
        "pool": pool,
        "gang": {"replicas": replicas, "gpusPerReplica": gpus},
        "workload": {
            "template": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "spec": {**completions, "template": template},
            }
        },
        "metrics": [{"name": "gold_reward"}],
        "stopRule": {"kDeclines": {"k": 3, "minDelta": "0.01"}},
        "modifiers": [{"warmUp": {"minEvals": 5}}],
        "checkpoints": {
            "location": {"objectStore": {"uri": f"s3://work/run-{next(_FOLDERS)}"}},
            "layout": "Plain",
            "retention": {"objectStore": {"uri": "s3://kept"}},
        },
    }
    return made | more


def pool_object(name: str = "research", status: Object | None = None, **more: Any) -> Object:
    """A GPUPool as the API server gives it."""
    body: Object = {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name, "uid": f"pool-{name}", "resourceVersion": "1", "generation": 1},
        "spec": {
            "nodeSelector": [{"key": "evalstop.dev/gpu-pool", "value": name}],
            "allowedNamespaces": [{"name": "*", "maxPriority": 10}],
            **more,
        },
    }
    return body if status is None else body | {"status": status}


def job_object(namespace: str, name: str, *, created: float = 0.0, **more: Any) -> Object:
    """An RLHFJob without a status, as the API server gives it."""
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": values.timestamp(math.floor(created)),
        },
        "spec": spec(**more),
    }


def with_record(obj: Object, record: JobRecord, pool: Object) -> Object:
    """The object with the status that the operator would write for this record."""
    desired = convert.desired(obj, convert.parse_pool(pool))
    assert desired.problem is None, desired.problem
    out = copy.deepcopy(obj)
    out["status"] = convert.status(record, desired, 0.0)
    out["metadata"]["resourceVersion"] = str(int(obj["metadata"]["resourceVersion"]) + 1)
    return out


def followed_up(obj: Object, record: JobRecord, pool: Object, now: float) -> Object:
    """The object as the operator would leave it at ``now`` (s): with its health and its stop's outcome."""
    desired = convert.desired(obj, convert.parse_pool(pool))
    plan = with_attention(followed(Plan(record), desired), desired, now)
    return with_record(obj, plan.record, pool)


def judged(obj: Object, curve: Curve, now: float, pool: Object) -> JobRecord:
    """The record of a run with these evals, its rule's state and verdict made by the rule itself.

    The newest eval was read at ``now`` (s), the others 60 s apart before it.
    """
    desired = convert.desired(obj, convert.parse_pool(pool))
    use = RuleInUse.of(desired)
    points = tuple(
        EvalPoint(10 * (n + 1), score, Attempt(1, "1"), stderr=0.015, samples=256, proxy=proxy)
        for n, (score, proxy) in enumerate(curve)
    )
    kept = points[-32:]
    best = use.best_of(points)
    rule = use.remember(use.rule.initial(), kept) if kept else None
    drawn, state = JobRecord(), use.rule.initial()
    for n, point in enumerate(points):
        state, verdict = use.observe(state, point)
        drawn = replace(drawn, curve=with_eval(drawn, point, verdict, 0.04 * n))
    return JobRecord(
        curve=drawn.curve,
        attempt=1,
        evals=kept,
        eval_times=tuple(int(now) - 60 * (len(kept[-8:]) - 1 - n) for n in range(len(kept[-8:]))),
        evals_seen=len(points),
        evals_in_attempt=len(points),
        rule=rule,
        best=best,
        progress=RunProgress(points[-1].step, 400, points[-1].step * 24.0) if points else None,
        admission=AdmissionRecord(1, ("gpu-1", "gpu-2"), now - 2000.0, None, now - 1980.0),
        conditions=conditions(now, Accepted="Valid", Admitted="Admitted", Running="Running"),
        secured=None if best is None else checkpoint(best, now),
    )


def conditions(now: float, **true: str) -> tuple[Condition, ...]:
    """Conditions that hold, by type and reason."""
    return tuple(
        Condition(type_, True, reason, f"{type_} by {reason}", now, 1)
        for type_, reason in sorted(true.items())
    )


def checkpoint(best: Best, at: float) -> ProtectedCheckpoint:
    path = f"s3://kept/team-a/run-3b3f2a/{best.step}"
    return ProtectedCheckpoint(
        best.step, best.step, path, "sha256:" + "5a" * 32, at, 1_400_000_000, best.score
    )


def declining(record: JobRecord, now: float, message: str) -> JobRecord:
    found = Condition(c.DECLINING, True, "Warned", message, now - 60.0, 1)
    return replace(record, conditions=(*record.conditions, found))


def stopped(record: JobRecord, now: float, to: str | None = None, mode: Mode = Mode.ENFORCE) -> JobRecord:
    """The run as its rule stopped it: at the first eval to which the rule said STOP, by its own numbers."""
    assert record.rule is not None
    assert record.best is not None
    verdict = record.rule.verdict
    assert verdict is not None
    assert verdict.verb is Verb.STOP, verdict
    proposal = Proposal.of(verdict, record.evals[-1].step, record.best.step)
    message = (
        f"{verdict.statistic:g} declines in a row (threshold {verdict.threshold:g}); best "
        f"{record.best.score:.3f} at step {record.best.step}"
    )
    decision = Decision(record.rule.name, mode, proposal, message, now)
    if mode is Mode.SHADOW:
        return replace(record, decision=decision)
    decision = replace(
        decision, retained_at=now + 1.4, suspended_at=now + 1.6, pods_gone_at=now + 4.2,
        handed_to=to, handed_at=None if to is None else now + 4.4,
    )  # fmt: skip
    over = conditions(
        now + 4.2, Accepted="Valid", TerminationTarget="ConsecutiveDeclines",
        BestCheckpointRetained="Verified", GPUsReleased="PodsGone",
    )  # fmt: skip
    return replace(record, decision=decision, retained=(checkpoint(record.best, now + 1.4),), conditions=over)


def until_stop(
    obj: Object, curve: Sequence[tuple[float, float]], pool: Object
) -> Sequence[tuple[float, float]]:
    """The curve up to the eval at which the job's rule says STOP."""
    for end in range(1, len(curve) + 1):
        rule = judged(obj, curve[:end], 0.0, pool).rule
        if rule is not None and rule.verdict is not None and rule.verdict.verb is Verb.STOP:
            return curve[:end]
    raise AssertionError("the rule never says STOP")


class MemoryApi:
    """LIST and watch of objects in memory; `put` and `drop` reach whoever watches."""

    def __init__(self, objects: Sequence[Object] = ()) -> None:
        self._held: dict[tuple[str, str, str], Object] = {}
        self._version = 10
        self._watchers: list[tuple[Resource, str | None, asyncio.Queue[Object]]] = []
        self.failure: Exception | None = None
        for obj in objects:
            self.put(obj)

    def put(self, obj: Object) -> None:
        self._version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self._version)
        key = _key(obj)
        kind = "MODIFIED" if key in self._held else "ADDED"
        self._held[key] = obj
        self._tell(kind, obj)

    def drop(self, kind: str, namespace: str, name: str) -> None:
        self._version += 1
        obj = self._held.pop((kind, namespace, name))
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", obj)

    def _tell(self, event: str, obj: Object) -> None:
        for resource, namespace, queue in self._watchers:
            if resource.kind == obj["kind"] and namespace in (None, obj["metadata"].get("namespace")):
                queue.put_nowait({"type": event, "object": obj})

    async def pages(
        self, resource: Resource, namespace: str | None = None, **_: str
    ) -> AsyncIterator[tuple[list[Object], str]]:
        if self.failure is not None:
            raise self.failure
        found = [
            obj
            for (kind, where, _), obj in sorted(self._held.items())
            if kind == resource.kind and namespace in (None, where)
        ]
        yield found, str(self._version)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        found = self._held.get((resource.kind, namespace or "", name))
        if found is None:
            raise NotFound(404, "NotFound", f"{resource.plural} {name!r} not found")
        return found

    async def watch(
        self, resource: Resource, version: str, *, namespace: str | None = None, **_: Any
    ) -> AsyncIterator[Object]:
        queue: asyncio.Queue[Object] = asyncio.Queue()
        watcher = (resource, namespace, queue)
        self._watchers.append(watcher)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(watcher)


class LeasedApi(MemoryApi):
    """With a Lease of an operator that renewed it last in 2025."""

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Object:
        if resource is LEASES:
            return {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "holderIdentity": "gone",
                    "renewTime": "2025-11-13T02:00:00Z",
                    "leaseDurationSeconds": 15,
                },
            }
        return await super().get(resource, name, namespace)


def _key(obj: Mapping[str, Any]) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace") or "", obj["metadata"]["name"]


class Running:
    """A dashboard in a thread of its own; `put` and the like are safe to call from the test."""

    def __init__(self, api: MemoryApi, gate: Any, way: QueueAddress | None) -> None:
        self.api, self.port = api, 0
        self.feed: Feed
        self._gate, self._way = gate, way
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="dashboard")

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self, path: str = "/") -> str:
        return f"{self.base}{path}#key={KEY}"

    def call(self, work: Callable[[], Any]) -> None:
        """Do something in the dashboard's loop, and wait until it is done."""
        assert self._loop is not None
        done = threading.Event()

        def whole() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(whole)
        assert done.wait(45)

    def put(self, obj: Object) -> None:
        self.call(lambda: self.api.put(obj))

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        feed = self.feed = Feed(self.api)  # type: ignore[arg-type]
        queues = Queues(self._way or _NoWay())
        async with feed.following():
            made = Dashboard(feed, queues, self._gate)
            server = WebServer(made.app, "127.0.0.1", 0)
            await server.start()
            known = (f"{name}:{server.port}" for name in ("127.0.0.1", "localhost"))
            made.hosts = Hosts(known, addresses=False)
            self.port = server.port
            self._begun.set()
            await self._over.wait()
            await server.stop()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._begun.wait(45)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(45)


class _NoWay:
    address = ""
    why = "no operator in this test"

    def broken(self) -> None:
        pass


@contextlib.contextmanager
def running(
    objects: Sequence[Object], viewer: Viewer = EVERYONE, way: QueueAddress | None = None
) -> Iterator[Running]:
    """A dashboard over these objects, for whoever has `KEY`."""
    with Running(MemoryApi(objects), KeyGate(KEY, viewer), way) as found:
        yield found


__all__ = ["GPUPOOLS", "RLHFJOBS", "LeasedApi", "MemoryApi", "Running", "running"]
