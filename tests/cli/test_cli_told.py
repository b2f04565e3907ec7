"""What `why` and `doctor` tell of a run that a try-out found told otherwise than it was."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.cli.doctor import installation
from controller.cli.explanation import explain, stages
from controller.cli.job_view import read
from controller.cli.remedies import sentence
from controller.policy.job import conditions as c
from controller.policy.job.marks import Finding, Mark
from controller.policy.job.record import Decision, LifeRecord
from controller.policy.types import Attempt, EvalPoint, Mode, Proposal
from tests.support import cli_world as w


def test_a_run_that_never_ran_was_not_suspended() -> None:
    """`why` listed "workload suspended, pods gone" of one that was Stopped from its start."""
    asked = Proposal(0, 0, "UserRequest", 0.0, 0.0)
    at = w.START + 5.0
    never = Decision("User", Mode.ENFORCE, asked, "spec.runState is Stopped", at, None, at, at)
    assert [what for _, what in stages(never)] == ["decided"]
    ran = replace(never, suspended_at=at + 1.0, pods_gone_at=at + 2.0)
    assert [what for _, what in stages(ran)] == ["decided", "workload suspended", "pods gone: GPUs free"]


@pytest.mark.parametrize(("mark", "told"), [(Mark.UNFIT, "(it waits for 72s)"), (Mark.UNSAFE, "(for 72s)")])
def test_how_long_a_job_waits_is_not_how_long_its_reason_holds(mark: Mark, told: str) -> None:
    """A quota that came an hour after the job was said to have lasted since the job came."""
    assert sentence(Finding(mark, "TooLarge", "4 of 2", 0.0, 300.0), 72.0).endswith(told)


@pytest.mark.parametrize(("number", "told"), [(1, True), (2, False)])
def test_a_trainer_started_again_within_its_attempt_is_told(number: int, told: bool) -> None:
    """Its Job was suspended by hand, and started again; nothing told why evals began anew."""
    lives = tuple(
        LifeRecord(Attempt(attempt, life), "pod", w.START, w.START + at, resumed=at)
        for attempt, life, at in ((1, "a", 0), (number, "b", 60))
    )
    record = replace(w.running(), lives=lives)
    facts = dict(explain(read(w.whole("healthy", record)), w.START + 90.0).facts)
    text = "started again within attempt 1, at 2025-11-13 02:14:20Z, and went on from step 60"
    assert facts.get("process") == (text if told else None)


@pytest.mark.parametrize(
    ("evals", "told", "how"),
    [
        ((70, 80), False, "; its first eval since is that of step 70"),
        ((10, 20), False, "; its first eval since is that of step 10"),
        ((10, 20), True, ", and began at the start"),
    ],
)
def test_a_step_that_no_process_named_is_none_from_which_it_went_on(
    evals: tuple[int, ...], told: bool, how: str
) -> None:
    """`why` said "and went on from step 9" of a trainer that began at the start, and evaluated step 10."""
    began = w.condition(c.RESUMED, False, c.BEGAN_AT_THE_START, "it was to go on from step 60")
    lives = tuple(
        LifeRecord(Attempt(1, life), "pod", w.START, w.START, resumed=at)
        for life, at in (("a", 0), ("b", evals[0] - 1))
    )
    record = replace(w.running(), lives=lives, evals=tuple(EvalPoint(n, 0.5, Attempt(1, "b")) for n in evals))
    if told:
        record = replace(record, conditions=(*record.conditions, began))
    facts = dict(explain(read(w.whole("healthy", record)), w.START + 90.0).facts)
    assert facts["process"] == f"started again within attempt 1, at 2025-11-13 02:13:20Z{how}"


@pytest.mark.parametrize(
    ("resumed", "evals", "how"),
    [
        (9, (50, 60, 80), "; its first eval since is that of step 10"),  # which has left the record
        (10, (50, 60, 80), ", and went on from step 10"),
        (9, (50, 51, 52), ", and went on from step 9"),
        (30, (50,), ", and went on from step 30"),
        (30, (), ", and went on from step 30"),
    ],
)
def test_nor_once_the_first_eval_has_left_the_record(resumed: int, evals: tuple[int, ...], how: str) -> None:
    lives = tuple(
        LifeRecord(Attempt(1, life), "pod", w.START, w.START, resumed=at)
        for life, at in (("a", 0), ("b", resumed))
    )
    record = replace(w.running(), lives=lives, evals=tuple(EvalPoint(n, 0.5, Attempt(1, "b")) for n in evals))
    facts = dict(explain(read(w.whole("healthy", record)), w.START + 90.0).facts)
    assert facts["process"] == f"started again within attempt 1, at 2025-11-13 02:13:20Z{how}"


def test_an_operator_of_no_replicas_is_to_be_scaled() -> None:
    """The cure was to look at the log of a pod that is not there."""

    class Answers:
        async def list(self, *_: Any, **__: Any) -> tuple[list[Any], str]:
            return [], "1"

    metadata = {"name": "evalstop-operator", "namespace": "evalstop-system"}
    for wanted, cure in ((0, "scale deployment/evalstop-operator --replicas=1"), (1, "logs deployment/")):
        deployment = {"metadata": metadata, "spec": {"replicas": wanted, "selector": {}}, "status": {}}

        async def look(deployment: Any = deployment) -> list[Any]:
            return [one async for one in installation._deployment(Answers(), deployment, "operator")]  # type: ignore[arg-type]

        (found,) = asyncio.run(look())
        assert cure in found.cure.line
