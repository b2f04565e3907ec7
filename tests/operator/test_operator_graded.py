"""What acts by standing verdicts, on the real control plane: fresh evals, grades, guardrails, contention."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from controller.kube.resources import CONFIGMAPS
from controller.policy.job.types import MetricPoints, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint, Paired
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually


def evals(*scores: float, attempt: int = 1, paired: Paired | None = None) -> tuple[EvalPoint, ...]:
    """Steps 10, 20, …; ``paired`` is of the newest."""
    points = [EvalPoint(10 * (i + 1), float(s), Attempt(attempt), 0.01) for i, s in enumerate(scores)]
    points[-1] = points[-1]._replace(paired=paired)
    return tuple(points)


def shows(gold: tuple[EvalPoint, ...], **more: Any) -> ScrapeView:
    """What the trainer's page has."""
    at, step = time.time(), gold[-1].step
    return ScrapeView(
        ScrapeOutcome.OK, at=at, metrics_seen=("gold",), points=gold, step=step, checkpoint_step=step, **more
    )


async def run_file(rig: Rig, name: str) -> dict[str, Any]:
    found = await rig.api.get(CONFIGMAPS, f"{name}-run", rig.namespace)
    return json.loads(found["data"]["run.json"])


def test_a_stop_waits_for_the_fresh_eval_that_it_asked_for(rig: Rig, kubelet: FakeKubelet) -> None:
    """The best is scored beside it on the same prompts: the pairs decide, though the score rose."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            rig.names(["run"])
            rig.outcome["run"] = shows(evals(1, 4, 3.5, 3, 2.5), request_served=0)
            await rig.make_job("run", modifiers=[{"confirm": {}}])
            async with rig.operator():
                waits = lambda: rig.has_reason("run", "TerminationTarget", "AwaitingFreshEval")  # noqa: E731
                await eventually(waits, 60, what="the stop to wait")

                async def asked() -> bool:
                    return bool((await run_file(rig, "run"))["request"]["evaluate"])

                await eventually(asked, what="the request")
                told = await run_file(rig, "run")
                assert (told["request"]["id"], told["reference"]) == (1, 20)
                assert (await rig.record("run")).decision is None
            async with rig.operator():  # another process goes on with what is recorded
                rig.outcome["run"] = shows(
                    evals(1, 4, 3.5, 3, 2.5, 3.2, paired=Paired(20, 400, -0.5, 1.0)), request_served=1
                )
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), 40, what="the stop")
                record = await rig.record("run")
            assert record.decision is not None
            assert record.decision.proposal.reason == "ConfirmedOnSamePrompts"
            assert kubelet.store.done("retain") == [20]

    asyncio.run(story())


def test_a_demoted_run_gives_its_gpus_to_the_one_that_waits_and_is_not_stopped(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            rig.names(["falls", "waits"])
            rig.outcome["falls"] = shows(evals(1, 4, 3.5, 3))
            graded = [{"graded": {"warnAt": "0.3", "demoteAt": "0.5"}}]
            rule = {"kDeclines": {"k": 4}}
            await rig.make_job("falls", replicas=2, stopRule=rule, modifiers=graded, priority=5)
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("falls", "Demoted"), 60, what="the demotion")
                assert await rig.has_reason("falls", "QualityDeclining", "Warned")
                # The first of its pods is read before the second is ready.
                await eventually(lambda: rig.is_true("falls", "Running"), what="all of it to run")
                await rig.make_job("waits", replicas=2)
                await eventually(lambda: rig.is_true("waits", "Running"), 60, what="the other one to run")

                async def back_in_line() -> bool:
                    return (await rig.record("falls")).preemptions == 1

                # Its pool sees by itself that its pods are gone; its own record may say so later.
                await eventually(back_in_line, what="the demoted one to be back in line")
                falls = await rig.record("falls")
                text = engine.metrics.text().decode()
            assert falls.decision is None
            assert falls.preemptions == 1
            assert not await rig.is_true("falls", "Admitted")
            assert 'evalstop_graded_gpu_seconds_total{action="demote",mode="Enforce"}' in text

    asyncio.run(story())


def test_a_failing_guardrail_stops_the_run_once_somebody_waits(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            rig.names(["run", "waits"])
            safety = MetricPoints("safety", evals(9, 8, 7, 6))
            rig.outcome["run"] = shows(evals(1, 2, 3, 4), others=(safety,))
            await rig.make_job(
                "run",
                replicas=2,
                metrics=[{"name": "gold"}, {"name": "safety", "role": "Guardrail"}],
                modifiers=[{"onlyWhenContended": {}}],
            )
            async with rig.operator():
                idle = lambda: rig.has_reason("run", "TerminationTarget", "NobodyWaits")  # noqa: E731
                await eventually(idle, 60, what="the pool to hold the stop back")
                held = await rig.condition("run", "GuardrailsHolding")
                assert held is not None
                assert held[:2] == (False, "Failing")
                assert "'safety'" in held[2]
                await rig.make_job("waits", replicas=2)
                await eventually(lambda: rig.is_true("waits", "Running"), 60, what="the hand-over")
                await eventually(lambda: rig.handed_to("run"), what="the hand-over to be noted")
                record = await rig.record("run")
            assert record.decision is not None
            assert record.decision.proposal.metric == "safety"
            assert record.decision.handed_to == f"{rig.namespace}/waits"
            assert record.retained[-1].step == 40

    asyncio.run(story())


def test_an_event_can_be_declared_while_the_run_goes_on(rig: Rig, kubelet: FakeKubelet) -> None:
    """Another data set from step 60 on: with a cooldown that forgets, its lower scores stop nothing."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            rig.names(["run"])
            rig.outcome["run"] = shows(evals(1, 2, 3, 4, 5))
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "BestCheckpointSecured"), 60)
                event = {"cooldown": {"atStep": 60, "evals": 2, "forget": "Enabled"}}
                patched = await rig.patch("run", {"spec": {"modifiers": [event]}})

                async def heeded() -> bool:
                    seen = (await rig.job("run"))["status"].get("observedGeneration")
                    return bool(seen == patched["metadata"]["generation"])

                # Evals that are read before the event is known are a decline like any other.
                await eventually(heeded, what="the event to be known")
                rig.outcome["run"] = shows(evals(1, 2, 3, 4, 5, 2, 1.9, 1.8, 2.1))

                async def read() -> bool:
                    record = await rig.record("run")
                    return record.evals[-1].step == 90 and record.rule is not None

                await eventually(read, what="the evals after the event")
                record = await rig.record("run")
                assert record.decision is None
                assert not await rig.is_true("run", "QualityDeclining")
                rig.outcome["run"] = shows(evals(1, 2, 3, 4, 5, 2, 1.9, 1.8, 2.1, 1.7, 1.6, 1.5))
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), 40, what="the real decline")

    asyncio.run(story())
