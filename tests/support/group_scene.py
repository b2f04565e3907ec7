"""A worker group as it was recorded: the WorkerGroup, its two residents, the GPUPool, and a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from controller.api.workergroup import group_status
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.job import conditions as c
from controller.policy.job.record import Condition, JobRecord, ResidencyRecord
from controller.policy.pool.group_record import GroupRecord, GroupResident
from controller.web import groups as seen
from controller.web.app import create
from controller.web.dashboard.queues import FixedAddress
from controller.web.group_report import checked
from tests.support.dashboard_world import Object, healthy, job_object, judged, pool_object, with_record
from tests.support.queue_server import served

GIB = 1 << 30
START = 1_800_000_000.0
FAMILY = {
    "name": "qwen-7b",
    "template": {"spec": {"containers": [{"name": "worker", "image": "family:1"}]}},
    "replicas": 2,
    "gpusPerReplica": 4,
    "deviceBytes": 320 * GIB,
    "hostBytes": 192 * GIB,
}
SHARING = {"family": "qwen-7b", "stateBytes": 60 * GIB, "maxSlowdownPercent": 10}
POOL = pool_object(
    status={"capacity": 16, "free": 2, "held": 0, "foreign": 0, "shared": 8, "running": 2, "queued": 1},
    sharing={"families": [FAMILY], "maxResidents": 3},
)
READY = Condition("Ready", True, "Ready", "it can grant turns", START - 3000.0, 1)
SILENCE = Condition(
    "Answers", False, "GroupDoesNotAnswer",
    "it has not answered since 07:55:00 UTC (TimeoutError): turns go on", START - 300.0, 1,
)  # fmt: skip


def residency(number: int, **change: Any) -> ResidencyRecord:
    return replace(
        ResidencyRecord("wg-3", number, START - 2900.0, joined=True, charged=5400.0, profiled=True), **change
    )


def resident(namespace: str, name: str, number: int = 1, **change: Any) -> Object:
    """An RLHFJob with a residency in ``wg-3``."""
    obj = job_object(namespace, name, created=START - 3600.0, sharing=SHARING)
    record: JobRecord = judged(obj, healthy(number, 8), START - 40.0, POOL)
    return with_record(obj, replace(record, residency=residency(number, **change)), POOL)


def waiting(namespace: str, name: str, message: str) -> Object:
    """An RLHFJob that waits for a residency."""
    obj = job_object(namespace, name, created=START - 600.0, sharing=SHARING)
    conditions = (
        Condition(c.ACCEPTED, True, "Valid", "the spec can be carried out", START - 599.0, 1),
        Condition(c.ADMITTED, False, "NoGroupFits", message, START - 598.0, 1),
    )
    return with_record(obj, JobRecord(conditions=conditions, queued_at=START - 599.0), POOL)


def group(*jobs: Object, name: str = "wg-3", **change: Any) -> Object:
    """The WorkerGroup whose residents these RLHFJobs are."""
    members = tuple(
        GroupResident(
            f"{job['metadata']['uid']}-{job['status']['residency']['number']}",
            f"{job['metadata']['namespace']}/{job['metadata']['name']}",
            60 * GIB,
            START - 2900.0,
            joined=True,
        )
        for job in jobs
    )
    record = GroupRecord(
        conditions=(READY,), number=2, opened=START - 3000.0, bound_at=START - 2990.0,
        members=("pod-a", "pod-b"), residents=members, nodes=("gpu-1", "gpu-2"),
    )  # fmt: skip
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "WorkerGroup",
        "metadata": {
            "name": name, "namespace": GROUPS_NAMESPACE, "uid": f"uid-{name}", "resourceVersion": "1",
            "generation": 1, "creationTimestamp": "2027-01-15T07:10:00Z",
        },
        "spec": {"pool": "research", "family": "qwen-7b", "replicas": 2, "gpusPerReplica": 4},
        "status": group_status(replace(record, **change), 1, 3),
    }  # fmt: skip


A, B = resident("team-a", "math-a", 1, slowdown=1.04), resident("team-a", "math-b", 2, slowdown=1.13, above=4)
NAMES = "team-a-math-a-1", "team-a-math-b-2"


def report(**change: Any) -> dict[str, Any]:
    """What member 0 said last: math-a has the turn for 12 s, math-b has waited for 9 s."""
    second = 1_000_000
    now = 3000 * second

    def one(name: str, job: str, charge: int, lost: int) -> dict[str, Any]:
        return {
            "name": name, "job": job, "kind": "team-a/qwen-7b/abc", "version": 40 + lost,
            "turns": [[30 * second, 20 * second, n, 4 * second] for n in (38, 39, 40)],
            "loads": [2 * second] * 3, "offloads": [second] * 3, "charge": charge * 840 * second,
            "released": 40, "lost": lost, "longestWait": 21 * second,
        }  # fmt: skip

    def past(number: int) -> list[Any]:
        began = now - (12 + 25 * (4 - number)) * second
        ended = began + 23 * second
        return [NAMES[number % 2], began, began + 3 * second, ended, number != 1]

    return {
        "group": "wg-3", "admission": 2, "start": 1, "now": now, "opened": 0, "ready": True,
        "members": [
            {"uid": "pod-a", "index": 0, "connected": True, "hostBytes": 120 * GIB},
            {"uid": "pod-b", "index": 1, "connected": True, "hostBytes": 124 * GIB},
        ],
        "turn": {
            "resident": NAMES[0], "sequence": 81, "phase": "Calling", "since": now - 5 * second,
            "began": now - 12 * second, "function": "optim_step",
        },
        "waiting": [{"resident": NAMES[1], "since": now - 9 * second}],
        "loaded": NAMES[0],
        "residents": [one(NAMES[0], "team-a-math-a", 5760, 0), one(NAMES[1], "team-a-math-b", 5940, 1)],
        "leaving": [], "gone": [], "lost": [], "vacant": 360 * 840 * second,
        "calls": 160, "switches": 78, "expired": 1, "recent": [past(n) for n in range(4)],
    } | change  # fmt: skip


JOBS = {"team-a/math-a": A, "team-a/math-b": B}
OBJECTS = [POOL, A, B, group(A, B)]


def silent() -> seen.Group:
    """The same group, which has not answered for five minutes: its newest report is older."""
    obj = group(A, B, conditions=(SILENCE, READY))
    told = seen.LatestReport(checked(report()), SILENCE.since - 5.0, "TimeoutError", SILENCE.since)
    return seen.group(obj, seen.Around(JOBS.get, POOL, told))


def live() -> seen.Group:
    """The group as the operator would serve it. An overdue job of another namespace has closed it."""
    told = seen.LatestReport(checked(report()), START, "")
    return seen.group(group(A, B), seen.Around(JOBS.get, POOL, told, "team-c/old"))


class Source:
    """Two groups, one of which cannot be read."""

    def __init__(self, first: seen.Group | None = None) -> None:
        self.first = first or live()

    def names(self) -> list[str]:
        return ["wg-3", "wg-4"]

    def group(self, name: str) -> seen.Group | str:
        return self.first if name == "wg-3" else "status.number: not a number"


@contextlib.contextmanager
def operator(first: seen.Group | None = None) -> Iterator[FixedAddress]:
    """The operator's queue API with that group, or another one, in a thread; gives the way to it."""
    with served(create(None, lambda: START, groups=Source(first))) as way:  # type: ignore[arg-type]  # it has no pools
        yield way
