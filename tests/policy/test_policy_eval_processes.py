"""Evals that are reported by a process of their own for each checkpoint, in the trainer's pod."""

from __future__ import annotations

import pytest

from controller.policy.job import conditions as c
from controller.policy.job import cures, lives, verdicts
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Claim, JobRecord, LifeRecord, Operation
from controller.policy.job.types import AccessView, StartAccess
from controller.policy.types import Attempt, EvalPoint, PolicySpec
from tests.support.policy_world import PolicyWorld

SCORES = [0.5 + 0.02 * i if i < 6 else 0.62 - 0.03 * (i - 6) for i in range(14)]


@pytest.mark.parametrize("resumed", [None, "step"])
def test_they_are_evals_of_one_run(resumed: str | None) -> None:
    """None says where it started from, or each its own checkpoint: all their evals count."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a", rule=PolicySpec("kDeclines", {"k": 3}))
    world.settle()
    for i, score in enumerate(SCORES):
        life = Attempt(job.record.attempt, f"life-{i}")
        world.scores("ns/a", score, attempt=life)
        newest = job.observed.scrape.points[-1:]
        said = None if resumed is None else newest[0].step
        world.scrape("ns/a", points=newest, checkpoint_step=newest[0].step, resumed_step=said)
        world.settle()
        if job.record.decision is not None:
            break
    assert job.record.best is not None
    assert job.record.best.step == 70
    assert job.record.decision is not None, "the fall of three evals in a row was seen"


UNSEEN = "it lay there when process 1-life-4 was first seen, and an earlier one may have written it"


def test_the_pin_that_fails_says_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """No save records, or none that anybody knows: told once three in a row are each of another process. The
    cure was another location (tryout: p-noserve2)."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a")
    access = PolicyWorld._access

    def refuses(world: PolicyWorld, job, ask: StartAccess) -> AccessView:
        if ask.operation is not Operation.SECURE:
            return access(world, job, ask)
        told = f"none there; nothing that lies there is of this run; {UNSEEN}"
        return AccessView(ask.request_id, ask.operation, True, False, "CheckpointIncomplete", told)

    monkeypatch.setattr(PolicyWorld, "_access", refuses)
    world.settle()
    told = []
    for i, score in enumerate(SCORES[:4]):
        world.scores("ns/a", score, attempt=Attempt(job.record.attempt, f"life-{i}"))
        newest = job.observed.scrape.points[-1:]
        world.scrape("ns/a", points=newest, checkpoint_step=newest[0].step)
        world.go_on(60.0)
        condition = next(one for one in job.record.conditions if one.type == c.SECURED)
        assert (condition.status, condition.reason) == (False, "CheckpointIncomplete")
        told.append(condition.message)
    assert ["client.environment()" in text for text in told] == [False, False, True, True]
    key = cures.key_of("CheckpointIncomplete", told[-1])
    assert "client.environment()" in cures.cure_of(key).text
    assert told[-1].count("client.environment()") == 2, "what lacks, and what helps"
    assert cures.key_of("BestCheckpointLost", told[-1]) == key


def record(*lives_: tuple[str, int | None], number: int = 1) -> JobRecord:
    """Evals at steps 10, 20, …: the life of each, and the step from which that one started."""
    of = [(Attempt(number, life), 10 * (i + 1), resumed) for i, (life, resumed) in enumerate(lives_)]
    known = {attempt: LifeRecord(attempt, "p", 0.0, 0.0, resumed) for attempt, _, resumed in of}
    evals = tuple(EvalPoint(step, 0.5, attempt) for attempt, step, _ in of)
    return JobRecord(attempt=number, lives=tuple(known.values()), evals=evals, claim=Claim(number, 0.0))


@pytest.mark.parametrize(
    ("lives_", "apart"),
    [
        ([("a", None), ("b", 19), ("c", 29), ("d", 39)], True),
        ([("a", None), ("b", 19)], False),  # two may be a trainer that was started again
        ([("a", None), ("b", 10), ("c", 20), ("d", 30)], False),  # it says where it went on
        ([("a", None), ("a", None), ("a", None), ("a", None)], False),
        ([("a", None), ("b", 19), ("c", 29), ("c", 29)], False),
    ],
)
def test_they_are_told_from_a_trainer_that_was_started_again(lives_, apart: bool) -> None:
    assert bool(lives.apart_clause(record(*lives_))) is apart


def test_a_stop_that_waits_for_the_claim_of_one_says_what_it_lacks() -> None:
    """Each second another one begins, and claims are given up; "see why the claim Jobs do not end" was
    astray."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a")
    of_many = record(("a", None), ("b", 19), ("c", 29), ("d", 39))
    for known, key in ((of_many, "EvalProcess"), (record(("a", None), ("b", 19)), "StartUnknown")):
        problem = verdicts.unsafe(PlanContext(job.desired, job.observed, known, world.now))
        assert problem is not None
        assert problem.reason == "StartUnknown"
        assert cures.key_of(*problem) == key
