"""Operator and definitions of different versions: no field of a status is taken away or forgotten unseen."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from api_examples import JOB
from hypothesis import given
from test_api_record import DESIRED, RECORDS

from controller.api.convert import StatusError, status
from controller.api.newer import refuse_newer_job, refuse_newer_pool
from controller.kube.cache import Cache
from controller.kube.errors import Refused, from_response
from controller.kube.resources import RLHFJOBS
from controller.operator.process.leader_election import Unopposed
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.state.cluster import ClusterState
from controller.policy.job.record import JobRecord

ABOUT = JOB["metadata"] | {"uid": "u", "resourceVersion": "1", "generation": 1}
POOL = {"capacity": 8, "reservations": [{"source": "a/b", "target": "a/c", "nodes": ["n"], "admission": 1}]}


@given(RECORDS)
def test_what_this_version_writes_it_works_on(found: JobRecord) -> None:
    refuse_newer_job(status(found, DESIRED, 0.0))


def test_so_it_does_on_an_object_without_a_status() -> None:
    refuse_newer_job(None)
    refuse_newer_pool(None)
    refuse_newer_pool(POOL)


@pytest.mark.parametrize(
    ("stored", "path"),
    [
        ({"mood": "good"}, "status.mood"),
        ({"best": {"step": 3, "score": "1", "colour": "red"}}, "status.best.colour"),
        ({"rule": {"verdict": {"tone": 1}}}, "status.rule.verdict.tone"),
        ({"retained": [{"path": "a"}, {"glow": True}]}, r"status.retained\[1\].glow"),
    ],
)
def test_a_field_of_a_newer_version_is_named(stored: dict[str, Any], path: str) -> None:
    with pytest.raises(StatusError, match=f"^{path}: this version of EvalStop has no such field"):
        refuse_newer_job(stored)


def test_so_is_one_of_a_pool() -> None:
    with pytest.raises(StatusError, match=r"^status.reservations\[0\].why: "):
        refuse_newer_pool(json.loads(json.dumps(POOL).replace('"source"', '"why": 1, "source"')))


def test_the_operator_plans_nothing_for_such_a_job_and_says_so() -> None:
    cache, metrics = Cache(), Metrics()
    world = ClusterState(cache, time.monotonic)
    brain = PlanCache(world, metrics, time.time)
    known = JOB | {"metadata": ABOUT, "status": {"attempt": 1}}
    cache.put(RLHFJOBS, known)
    key = "team/run"
    assert brain.newest_plan(key) is not None
    newer = {"metadata": ABOUT | {"resourceVersion": "2"}, "status": {"attempt": 1, "mood": "good"}}
    cache.put(RLHFJOBS, known | newer)
    assert brain.newest_plan(key) is None
    assert list(brain.unreadable) == [key]
    assert brain.cached_plan(key) is None, "nor is an earlier plan carried out"


OLD_DEFINITION = (
    ' "" is invalid: patch: Invalid value: "{\\"apiVersion\\":\\"evalstop.dev/v1alpha1\\",…}": '
    'strict decoding error: unknown field "status.epoch"'
)


class OlderServer:
    """Answers a status patch as a server with an older definition: without Strict it forgets the field."""

    async def merge_patch(self, *_: Any, strict: bool = False, **__: Any) -> dict[str, Any]:
        if not strict:
            return JOB | {"metadata": ABOUT}
        body = json.dumps({"kind": "Status", "reason": "Invalid", "message": OLD_DEFINITION}).encode()
        raise from_response(422, body, {})


def test_an_older_definition_refuses_the_status_and_the_field_is_named() -> None:
    cache, metrics, term = Cache(), Metrics(), Unopposed()
    server: Any = OlderServer()
    writer = StatusWriter(server, cache, ClusterState(cache, time.monotonic), metrics, term)
    pool = {"metadata": ABOUT, "status": {}}
    with pytest.raises(
        Refused, match=r'^Invalid \(422\): strict decoding error: unknown field "status.epoch"$'
    ):
        asyncio.run(writer.pool(pool, {"capacity": 3}))
