"""What a job's status tells of other jobs: names within its namespace, and of others a uid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.api import convert
from controller.kube.cache import Cache
from controller.kube.resources import RLHFJOBS
from controller.operator.state.job_names import JobNames
from controller.policy.actor_types import Actor, ActorState
from controller.policy.job.record import AdmissionRecord, Decision, JobRecord
from controller.policy.job.types import Desired
from controller.policy.pool.handovers import Handover, newest_handovers
from controller.policy.types import Mode, PolicySpec, Proposal

PROPOSAL = Proposal(70, 40, "ConsecutiveDeclines", 3.0, 3.0)
DESIRED = Desired("mine/run", "u", 1, "gold", 1, 1, PolicySpec("kDeclines", {}))
DECISION = Decision("kDeclines", Mode.ENFORCE, PROPOSAL, "fell", 100.0)


def job(key: str, version: int = 1) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    metadata = {
        "namespace": namespace,
        "name": name,
        "uid": f"uid-of-{name[:2]}",
        "resourceVersion": str(version),
    }
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": metadata,
        "spec": {"pool": "p"},
    }


def names(*keys: str) -> tuple[Cache, JobNames]:
    cache = Cache()
    made = JobNames(cache)
    for key in keys:
        cache.put(RLHFJOBS, job(key))
    return cache, made


def told(handed_to: str, source: str) -> JobRecord:
    admission = AdmissionRecord(1, ("n1",), 50.0, source)
    return JobRecord(
        attempt=1, admission=admission, decision=replace(DECISION, handed_to=handed_to, handed_at=101.0)
    )


def test_a_status_names_no_job_of_another_namespace() -> None:
    _, made = names("mine/run", "rich/secret-model", "rich/xylophone")
    record = told("rich/secret-model", "rich/xylophone")
    stored = convert.status(made.hidden(record, "mine/run"), DESIRED, 0.0)
    assert "rich" not in str(stored)
    assert stored["decision"]["handedTo"] == "uid:uid-of-se"
    assert stored["admission"]["source"] == "uid:uid-of-xy"
    # The operator itself goes on with the names; and what is hidden once more is the same.
    again = made.shown(convert.record(stored))
    assert (again.decision, again.admission) == (record.decision, record.admission)
    assert convert.status(made.hidden(again, "mine/run"), DESIRED, 0.0) == stored


def test_an_actor_names_nobody_of_another_namespace_who_recalls_it() -> None:
    _, made = names("mine/run", "mine/next", "rich/secret-model")
    whom = ("rich/secret-model", "mine/next", "")
    actors = tuple(Actor(i, "n1", 1, ActorState.RECALLED, for_whom=one) for i, one in enumerate(whom))
    record = JobRecord(attempt=1, actors=actors)
    hidden = made.hidden(record, "mine/run")
    assert [actor.for_whom for actor in hidden.actors] == ["uid:uid-of-se", "mine/next", ""]
    assert made.shown(convert.record(convert.status(hidden, DESIRED, 0.0))).actors == actors


def test_of_its_own_namespace_jobs_are_named() -> None:
    _, made = names("mine/run", "mine/next")
    record = told("mine/next", "mine/next")
    assert made.hidden(record, "mine/run") is record
    assert made.shown(record) is record


def test_a_job_that_is_gone_stays_unnamed_and_a_namesake_is_not_taken_for_it() -> None:
    cache, made = names("mine/run", "rich/secret-model")
    hidden = made.hidden(told("rich/secret-model", "mine/before"), "mine/run")
    cache.drop(RLHFJOBS, job("rich/secret-model", 2))
    assert made.shown(hidden) is hidden
    assert made.hidden(hidden, "mine/run") is hidden
    later = job("rich/secret-model", 3)
    later["metadata"]["uid"] = "another"
    cache.put(RLHFJOBS, later)
    assert made.shown(hidden) is hidden
    gone = made.hidden(told("rich/gone", "mine/before"), "mine/run")
    assert gone.decision is not None
    assert gone.decision.handed_to == "uid:unknown"


def test_a_pools_memory_keeps_the_name_of_a_target_that_is_gone() -> None:
    known = Handover("mine/run", "kDeclines", 4, 100.0, target="rich/secret-model", running=120.0)
    record = told("uid:gone", "mine/before")
    (found,) = newest_handovers([known], [("mine/run", 4, record)])
    assert (found.target, found.running) == ("rich/secret-model", 120.0)
    (found,) = newest_handovers([], [("mine/run", 4, record)])
    assert found.target == "uid:gone"


def test_a_job_that_is_gone_has_a_uid_and_one_that_nobody_knew_is_unknown() -> None:
    """It read ``uid:`` and nothing: as if it were known, and were nobody."""
    cache, made = names("mine/run", "rich/secret-model")
    cache.drop(RLHFJOBS, job("rich/secret-model"))
    stored = convert.status(made.hidden(told("rich/secret-model", "rich/before"), "mine/run"), DESIRED, 0.0)
    assert stored["decision"]["handedTo"] == "uid:uid-of-se"
    assert stored["admission"]["source"] == "uid:unknown"
    again = made.hidden(made.shown(convert.record(stored)), "mine/run")
    assert convert.status(again, DESIRED, 0.0) == stored


def test_of_jobs_that_are_gone_the_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.operator.state.job_names.DELETED_KEPT", 1)
    cache, made = names("rich/aa", "rich/bb")
    for name in ("aa", "bb"):
        cache.drop(RLHFJOBS, job(f"rich/{name}"))
    assert made.hidden(told("rich/aa", "rich/bb"), "mine/run") == told("uid:unknown", "uid:uid-of-bb")
