"""Operator and simulator learn alike: the same reports, through a session of the step API and through a
simulated job, leave the same law, trust and count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.policy.rollout import (
    Dispatch,
    Learned,
    RolloutPlan,
    StepQuestion,
    Supply,
    forecast,
    planned,
    rank_correlation,
)
from controller.steps.directory import ActorPod, Directory, RolloutJob
from controller.steps.sessions import Session
from controller.steps.wire import Announcement, Done, Ended, Registered
from sim.rollout.run import Job, generate, planner_settings
from sim.rollout.setting import RolloutSetting, Scheme

SMALL = RolloutSetting(prompts=96, per_epoch=4, epochs=1, slots=16, most=4, start=0.0, recall=0.0)
SCHEMES = [Scheme("auto", {}), Scheme("one queue", {"dispatch": Dispatch.LONGEST_FIRST.value})]


class OfOneMind:
    """A planner in the same process."""

    async def plan(self, question: StepQuestion, begins_at: float = 0.0) -> RolloutPlan | None:
        return planned(question)


class Unsigned:
    """Nobody looks at the tickets."""

    public = ""

    def sign(self, ticket: object) -> str:
        return ""


async def by_session(simulated: Job) -> tuple[list[Learned], list[Learned]]:
    """Play a simulated job's steps, and tell a session of each; what both know after each step."""
    setting, scheme = simulated.setting, simulated.scheme
    law, settings = setting.first_law(), planner_settings(setting, scheme)
    job = RolloutJob("job-1", "ns/a", 1, "pod", settings, law, start=0.0, recall=0.0)
    directory = Directory(lambda: 0.0)
    directory.put_job(job)
    planner: Any = OfOneMind()
    signer: Any = Unsigned()
    session = Session(job, directory, planner, signer, lambda: 0.0, lambda: 0.0)
    theirs, ours = [], []
    for number, batch in enumerate(simulated.steps):
        predicted = simulated.predict(number)
        expected = forecast(predicted, setting.copies, simulated.history.spread, setting.profile.cap)
        supply = Supply(start=0.0, recall=0.0)
        plan = simulated.plan(predicted, supply)
        assert plan is not None
        pods = [ActorPod(f"actor-{i}-{number}", i) for i in range(plan.actors)]
        directory.put_actors("job-1", [])
        session.announce(job, Announcement(number, 0.0, expected))
        assert session._planning is not None
        await session._planning
        directory.put_actors("job-1", pods)
        session.begin(job, number)
        for pod in pods:
            session.register(job, pod.number, pod.pod, Registered("127.0.0.1:1", "ab", setting.slots, None))
        report = generate(
            setting,
            scheme,
            batch.prompts(predicted),
            plan,
            supply,
            count=plan.actors,
            release=(False,) * plan.actors,
        )
        for actor, pod in zip(report.actors, pods, strict=True):
            session.done(job, Done(number, pod.number, False, simulated._work(actor)))
        rank = rank_correlation(predicted, [sum(one) / len(one) for one in batch.lengths])
        session.end(job, Ended(number, report.seconds, report.tokens, rank, expected, {}, {}))
        simulated.learn(batch, predicted, report, plan, supply, 0.0)
        theirs.append(session._learned)
        ours.append(simulated.learned)
    return theirs, ours


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_the_same_steps_teach_operator_and_simulator_the_same(scheme: Scheme) -> None:
    theirs, ours = asyncio.run(by_session(Job(SMALL, scheme, 3)))
    assert len(ours) == 4
    assert theirs == ours
    first, second = ours[:2]
    assert first.known, "the first reports end the guess"
    assert second.trust.time_error is not None
    assert first.trust.time_error is None, "and its step was no error of predictions"
