"""A hostile scene: names as long as they may be, runs of none, one and 1,000 evals, values of any size.

What each page and command must show of it without a fault (tests/sweep/__main__.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controller.api.values import timestamp
from controller.api.workergroup import group_status
from controller.policy.actor_types import Actor, ActorState
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.job.record import AdmissionRecord, Condition, JobRecord, PodTrouble, ResidencyRecord
from controller.policy.job.rollout_record import RolloutRecord, StepPlan, StepRow
from controller.policy.pool.group_record import GroupRecord, GroupResident
from controller.policy.types import Attempt, EvalPoint, Mode
from controller.web.dashboard.access import Viewer
from tests.support.dashboard_world import (
    Object,
    conditions,
    declining,
    followed_up,
    healthy,
    job_object,
    judged,
    over_optimising,
    pool_object,
    stopped,
    until_stop,
    with_record,
)

NAMESPACE = "a-team-with-a-name-as-long-as-that-of-a-namespace-" + "n" * 13
POOL = "a-pool-with-a-name-as-long-as-a-label-may-be-" + "p" * 18
assert len(NAMESPACE) == len(POOL) == 63
GAP_S = (1.4, 3.7)  # of the scene's handovers: from the decision to the copy, in s
STEPS_AHEAD = 40
DENIED = Viewer("jane@example.com", frozenset({"elsewhere"}), False)


def long_name(number: int) -> str:
    """Return a name of 40 characters; several differ in their last ones only."""
    return f"run-of-a-sweep-with-a-long-name-{number:08d}"


def hostile(now: float) -> list[Object]:
    """Return the pools and jobs of the scene as of ``now`` (s)."""
    pool = pool_object(POOL, _pool_status(now))
    jobs = [
        _job(pool, now, long_name(1), []),
        _job(pool, now, long_name(2), [(0.1 + 0.6, 0.2)]),
        _job(pool, now, long_name(3), [(0.7 + math.sin(n / 90) / 7, n / 900) for n in range(1000)]),
        _job(pool, now, "equal", [(0.5, 1.0)] * 40),
        _job(pool, now, "not-a-number", [(0.1 * n, math.nan) for n in range(1, 9)]),
        _job(pool, now, "outlier", [(s if n != 30 else -1e6, p) for n, (s, p) in enumerate(healthy(3, 40))]),
        _job(pool, now, "huge", [(1e308 * (-1) ** n, 1e308) for n in range(12)]),
        _job(pool, now, "tiny", [(5e-324 * n, 1e-300) for n in range(12)]),
        _job(
            pool, now, "minimize", [(1.0 / n, n / 7) for n in range(1, 30)],
            metrics=[{"name": "perplexity-" + "of-a-test-set-" * 4, "direction": "Minimize"}],
        ),
        _attempts(pool, now),
        *_waiting(pool, now),
        _stopped(pool, now, long_name(6), "a-rule"),
        _stopped(pool, now, "by-its-user", "User"),
        _shadow(pool, now),
        *_troubles(pool, now),
    ]  # fmt: skip
    return [pool, pool_object("empty", {"conditions": []}), pool_object("new"), *jobs]


def _job(pool: Object, now: float, name: str, curve: Sequence[tuple[float, float]], **more: Any) -> Object:
    obj = job_object(NAMESPACE, name, created=now - 9000, pool=POOL, **more)
    return with_record(obj, judged(obj, curve, now - 30, pool), pool)


def _attempts(pool: Object, now: float) -> Object:
    """A run that was begun five times and went back each time."""
    obj = job_object(NAMESPACE, long_name(5), created=now - 90000, pool=POOL)
    record = judged(obj, over_optimising(5, 20, 14), now - 40, pool)
    assert record.curve is not None
    marks = tuple(
        text
        for number in range(2, 6)
        for text in (f"Stopped {40 * number}", f"Resumed {40 * number - 30} {number}")
    )
    evals = tuple(p._replace(attempt=Attempt(5, "f00d")) for p in record.evals)
    record = replace(
        record, attempt=5, preemptions=1, evals=evals, curve=replace(record.curve, marks=marks[-8:])
    )
    return with_record(obj, record, pool)


def _waiting(pool: Object, now: float) -> list[Object]:
    found = []
    for number in (7, 8):
        name = long_name(number)
        why = f"{number - 7} ahead; waits for 4 GPUs, 1 is free"
        waits = Condition("Admitted", False, "WaitingForGPUs", why, now - 90 * number, 1)
        record = JobRecord(conditions=(*conditions(now - 900, Accepted="Valid"), waits))
        obj = job_object(NAMESPACE, name, created=now - 90 * number, pool=POOL)
        found.append(with_record(obj, record, pool))
    return [*found, job_object(NAMESPACE, "loading", created=now - 5, pool=POOL)]


def _stopped(pool: Object, now: float, name: str, by: str) -> Object:
    obj = job_object(NAMESPACE, name, created=now - 80000, pool=POOL)
    curve = until_stop(obj, over_optimising(104), pool)
    record = stopped(judged(obj, curve, now - 760, pool), now - 755, f"{NAMESPACE}/{long_name(7)}")
    assert record.decision is not None
    if by == "User":
        record = replace(record, decision=replace(record.decision, by="User", message="by its user"))
    return with_record(obj, record, pool)


def _shadow(pool: Object, now: float) -> Object:
    obj = job_object(NAMESPACE, long_name(9), created=now - 70000, pool=POOL, mode="Shadow")
    curve = until_stop(obj, over_optimising(21), pool)
    record = stopped(judged(obj, curve, now - 1500, pool), now - 1500, mode=Mode.SHADOW)
    return followed_up(obj, record, pool, now)


def _troubles(pool: Object, now: float) -> list[Object]:
    """Runs with marks, whose messages and last words are long and not kind."""
    words = "RuntimeError: " + "CUDA-out-of-memory-" * 12 + " \x1b[31m<b>'\"</b>"
    base = conditions(now - 4000, Accepted="Valid", Admitted="Admitted")
    crash = PodTrouble("run-0", exit_code=137, message=words[:200], count=3, since=now - 4000, container="c")
    unread = Condition(
        "MetricsAvailable", False, "Unreachable", "http://10.0.0.7:9400: " + "x" * 150, now - 9000, 1
    )
    runs = Condition("Running", True, "Running", "attempt 1: all members are ready", now - 9000, 1)
    has = AdmissionRecord(1, ("node-1",), now - 9100, None, now - 9000)
    records = {
        "crashing": JobRecord(attempt=1, conditions=base, pod_trouble=crash, admission=has),
        "unwatched": JobRecord(attempt=1, conditions=(*base, runs, unread), admission=has),
        "refused": JobRecord(
            conditions=(
                Condition(
                    "Accepted", False, "PoolNotFound", f"spec.pool: there is no GPUPool {POOL!r}", now, 1
                ),
            )
        ),
    }
    found = []
    for name, record in records.items():
        obj = job_object(NAMESPACE, name, created=now - 5000, pool=POOL)
        found.append(followed_up(obj, record, pool, now))
    falls = job_object(NAMESPACE, long_name(10), created=now - 7000, pool=POOL)
    record = judged(falls, until_stop(falls, over_optimising(7, 40), pool)[:-1], now - 20, pool)
    found.append(with_record(falls, declining(record, now, "2 declines in a row, limit 3"), pool))
    return found


def handovers(now: float) -> list[Object]:
    """Return what the scene's pool tells of its handovers: times since the decision are `GAP_S`."""
    return [
        {
            "source": f"{NAMESPACE}/{long_name(6 + number)}",
            "target": f"{NAMESPACE}/{long_name(7)}" if number else None,
            "by": "kDeclines",
            "gpus": 1 + 3 * number,
            "decidedTime": timestamp(now - 3000 + 100 * number),
            "retainedTime": timestamp(now - 3000 + 100 * number + gap),
            "suspendedTime": timestamp(now - 3000 + 100 * number + gap + 0.2),
            "podsGoneTime": timestamp(now - 3000 + 100 * number + gap + 2.6),
            **({"runningTime": timestamp(now - 3000 + 100 * number + gap + 8.1)} if number else {}),
        }
        for number, gap in enumerate(GAP_S)
    ]


def _pool_status(now: float) -> Object:
    return {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": "ready",
                "lastTransitionTime": timestamp(now - 90000),
            },
        ],
        "nodeSizes": [{"gpus": 1, "nodes": 1}, {"gpus": 8, "nodes": 128}],
        "capacity": 1025,
        "free": 1,
        "held": 1,
        "foreign": 1,
        "running": 1,
        "queued": 2,
        "lastHandovers": [{k: v for k, v in one.items() if v is not None} for one in handovers(now)],
        "stops": {"lastHour": 1, "today": 1, "breakerSince": timestamp(now - 100)},
    }


GROUP = "wg-" + "g" * 60
GIB = 1 << 30
FAMILY: Object = {
    "name": "a-family-with-a-long-name-" + "f" * 30,
    "template": {"spec": {"containers": [{"name": "worker", "image": "family:1"}]}},
    "replicas": 2,
    "gpusPerReplica": 4,
    "deviceBytes": 320 * GIB,
    "hostBytes": 192 * GIB,
}
LENDER, BORROWER, RESIDENTS = long_name(20), long_name(21), (long_name(22), long_name(23))


def sharers(now: float) -> list[Object]:
    """Return a pool with a worker group that does not answer, its residents, and runs that lend GPUs."""
    status = _pool_status(now) | {"shared": 1000}
    pool = pool_object(POOL, status, sharing={"families": [FAMILY], "maxResidents": 3})
    residents = [_resident(pool, now, name, number) for number, name in enumerate(RESIDENTS, 1)]
    lent = [
        _with_actors(pool, now, LENDER, 1),
        _with_actors(pool, now, BORROWER, 4),
    ]
    return [pool, *residents, _group(residents, now), *lent]


def _resident(pool: Object, now: float, name: str, number: int) -> Object:
    sharing = {"family": FAMILY["name"], "stateBytes": 60 * GIB, "maxSlowdownPercent": 10}
    obj = job_object(NAMESPACE, name, created=now - 7000, pool=POOL, sharing=sharing)
    stays = ResidencyRecord(
        GROUP, number, now - 6900, joined=True, charged=54e5, profiled=True, slowdown=1.1 + number, above=1
    )
    return with_record(obj, replace(judged(obj, healthy(number, 8), now - 40, pool), residency=stays), pool)


def _group(residents: Sequence[Object], now: float) -> Object:
    """The WorkerGroup of these RLHFJobs, whose last word is old."""
    silent = Condition(
        "Answers", False, "GroupDoesNotAnswer",
        "it has not answered since 07:55:00 UTC (TimeoutError: http://10.0.0.7:9500: " + "x" * 90 + ")",
        now - 300, 1,
    )  # fmt: skip
    ready = Condition("Ready", True, "Ready", "it can grant turns", now - 3000, 1)
    members = tuple(
        GroupResident(
            f"{job['metadata']['uid']}-{number}", f"{NAMESPACE}/{job['metadata']['name']}",
            60 * GIB, now - 6900,
            joined=True,
        )
        for number, job in enumerate(residents, 1)
    )  # fmt: skip
    record = GroupRecord(
        conditions=(ready, silent), number=2, opened=now - 7000, bound_at=now - 6990,
        members=("pod-a", "pod-b"), residents=members, nodes=("gpu-" + "1" * 59, "gpu-2"),
    )  # fmt: skip
    spec = {"pool": POOL, "family": FAMILY["name"], "replicas": 2, "gpusPerReplica": 4}
    metadata = {
        "name": GROUP, "namespace": GROUPS_NAMESPACE, "uid": "uid-group", "resourceVersion": "1",
        "generation": 1, "creationTimestamp": timestamp(now - 7000),
    }  # fmt: skip
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "WorkerGroup",
        "metadata": metadata,
        "spec": spec,
        "status": group_status(record, 1, 3),
    }


def _with_actors(pool: Object, now: float, name: str, count: int) -> Object:
    """A run with so many rollout actors, of whose steps two are known."""
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    rollout = {
        "gpusPerActor": 1,
        "actors": {"min": 2, "max": 4, "static": 3},
        "template": {"spec": {"containers": [{"name": "engine", "image": "engine:1", "resources": limits}]}},
    }
    obj = job_object(NAMESPACE, name, created=now - 900, pool=POOL, rollout=rollout)
    node = "gpu-node-with-a-name-as-long-as-it-may-be-" + "n" * 21
    actors = tuple(
        Actor(number, node, 1, ActorState.RUNNING, now - 100, bound=now - 99) for number in range(count)
    )
    leaves = Actor(9, node, 1, ActorState.RECALLED, now - 90, f"{NAMESPACE}/{LENDER}", now + 5, now - 89)
    rows = (
        StepRow(7, now - 50, 12.0, 11.5, 20.0, 3, 3, 33.0, 32.0, 0, 0, 4.0, "LongestFirst", "Planned"),
        StepRow(8, now - 30, 11.0, 11.5, 20.0, 2, 2, 22.0, 23.0, 5, 0, 9.0, "LongestFirst", "Planned"),
    )
    account = RolloutRecord(StepPlan(9, 2, "LongestFirst", "Planned", "2 actors are enough"), recent=rows)
    record = replace(
        judged(obj, healthy(1, 8), now - 20, pool), actors=(*actors, leaves), actor_starts=12, rollout=account
    )
    return with_record(obj, record, pool)


def crowd(now: float) -> list[Object]:
    """Return 1,000 jobs with long names, one of them with 1,000 evals, and their pool."""
    pool = pool_object(POOL, _pool_status(now))
    out = [pool]
    records: dict[str, JobRecord] = {}
    for number in range(999):
        obj = job_object(NAMESPACE, long_name(number), created=now - 60.0 * number, pool=POOL)
        kind = ("healthy", "waiting", "stopped")[number % 3]
        if kind == "waiting":
            waits = Condition("Admitted", False, "WaitingForGPUs", "waits for GPUs", now - number, 1)
            record = JobRecord(conditions=(*conditions(now, Accepted="Valid"), waits))
        elif kind in records:
            record = records[kind]
        elif kind == "healthy":
            record = records[kind] = judged(obj, healthy(1), now, pool)
        else:
            curve = until_stop(obj, over_optimising(104), pool)
            record = records[kind] = stopped(judged(obj, curve, now, pool), now)
        out.append(with_record(obj, record, pool))
    curve = [(0.5 + 0.3 * math.sin(n / 90), n / 900) for n in range(1000)]
    out.append(_job(pool, now, "thousand", curve))
    return out


__all__ = [
    "BORROWER", "DENIED", "GAP_S", "GROUP", "LENDER", "NAMESPACE", "POOL", "RESIDENTS", "EvalPoint", "crowd",
    "handovers", "hostile", "long_name", "sharers",
]  # fmt: skip
