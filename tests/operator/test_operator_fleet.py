"""On a real control plane: what a pool asks before a stop, what it learns of its jobs, and what it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from controller.api import fleet as fleet_status
from controller.kube.errors import ApiError
from controller.kube.resources import EVENTS, GPUPOOLS, RLHFJOBS
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import (
    Attempt,
    EvalPoint,
    FleetNoise,
    FleetView,
    MetricNoise,
    Paired,
    ScoredBy,
    SharedFall,
    StopCount,
)
from tests.support import pool_memory
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

CALM = [0.70, 0.71, 0.69, 0.70, 0.72, 0.69, 0.71, 0.70, 0.71, 0.70]
LOW = [0.40, 0.39, 0.38]


class Trainers:
    """What each job's trainer shows; a new eval is given out only when the operator has read the last."""

    def __init__(self, rig: Rig, names: Sequence[str]) -> None:
        self._rig, self._points = rig, {name: list[EvalPoint]() for name in names}
        self.evaluator: str | None = None
        self.labelled = False  # each eval names its evaluator: the page shows those of the present one alone

    async def show(self, scores: dict[str, list[float]], paired: Paired | None = None) -> None:
        """Evals of these jobs, read together; returns when they are in the jobs' statuses."""
        for name, new in scores.items():
            points = self._points[name]
            first = len(points) + 1
            points += [EvalPoint(10 * n, s, Attempt(1), paired=paired) for n, s in enumerate(new, first)]
            self._rig.outcome[name] = ScrapeView(
                ScrapeOutcome.OK,
                at=time.time(),
                metrics_seen=("gold",),
                points=tuple(points[-len(new) :] if self.labelled else points),
                checkpoint_step=points[-1].step,
                evaluator=self.evaluator,
                evals_labelled=self.labelled,
            )
        for name in scores:
            await eventually(lambda name=name: self._read(name), what=f"evals of {name}")
        await asyncio.sleep(1.1)  # the times of evals are kept in whole seconds

    async def _read(self, name: str) -> bool:
        record = await self._rig.record(name)
        newest = self._points[name][-1].step
        return bool(record.evals and record.evals[-1].step == newest) or (
            record.baseline is not None and record.baseline.step == newest
        )


async def pool_status(rig: Rig) -> dict[str, Any]:
    return (await rig.api.get(GPUPOOLS, rig.pool_name)).get("status") or {}


async def pool_condition(rig: Rig, type_: str) -> tuple[str, str] | None:
    conditions = (await pool_status(rig)).get("conditions") or ()
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == type_), None)


async def pool_events(rig: Rig) -> set[str]:
    found = (await rig.api.list(EVENTS, "default", fields=f"involvedObject.name={rig.pool_name}"))[0]
    return {event["reason"] for event in found}


def test_a_fall_that_all_jobs_share_stops_none_and_a_decline_after_it_is_found(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    jobs = ["a", "b", "c", "d"]

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            for name in jobs:
                await rig.make_job(name, gpus=1)
            trainers = Trainers(rig, jobs)
            async with rig.operator():
                for name in jobs:
                    await eventually(lambda name=name: rig.is_true(name, "Running"))
                # Not all at once: pages are read one after the other, and a job all of whose evals came a
                # second after the last ones of another has none before the other's fall.
                await trainers.show(dict.fromkeys(jobs, CALM[:-1]))
                await trainers.show(dict.fromkeys(jobs, CALM[-1:]))
                for name in jobs:  # what is not in safety when the fall is known is not kept
                    await eventually(lambda name=name: rig.is_true(name, "BestCheckpointSecured"))
                for score in LOW:
                    await trainers.show({name: [score] for name in jobs})

                async def shared() -> bool:
                    return bool(fleet_status.shared_falls(await pool_status(rig)))

                await eventually(shared, what="the shared fall to be known")
                for name in jobs:
                    await eventually(lambda name=name: began_anew(rig, name))
                (fall,) = fleet_status.shared_falls(await pool_status(rig))
                assert (fall.metric, fall.fell, fall.of) == ("gold", 4, 4)
                for name in jobs:
                    record = await rig.record(name)
                    assert record.decision is None
                    assert record.baseline is not None
                    assert record.baseline.kept is not None
                    assert record.baseline.kept.score == 0.72
                await trainers.show({name: [0.40] for name in jobs})
                for score in (0.35, 0.3, 0.25):
                    await trainers.show({"a": [score]} | {name: [0.40] for name in jobs[1:]})
                await eventually(lambda: rig.is_true("a", "GPUsReleased"), 40, what="the one stop")
                for name in jobs[1:]:
                    assert (await rig.record(name)).decision is None

                async def taught() -> bool:
                    return bool(fleet_status.noise(await pool_status(rig)))

                await eventually(taught, what="the noise to be learned")
                await eventually(lambda: stopped(rig, 1), what="the stop to be counted")
                assert "SharedFall" in await pool_events(rig)
                assert await pool_condition(rig, "StopsHeldBack") == ("False", "NothingHeldBack")

    asyncio.run(story())


async def began_anew(rig: Rig, name: str) -> bool:
    return (await rig.record(name)).baseline is not None


async def stopped(rig: Rig, number: int) -> bool:
    return ((await pool_status(rig)).get("stops") or {}).get("lastHour") == number


def test_another_evaluator_begins_a_rule_anew(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            trainers = Trainers(rig, ["run"])
            trainers.evaluator = "v1"
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"))
                await trainers.show({"run": [1.0, 2.0, 3.0, 2.9, 2.8]})
                await eventually(lambda: rig.is_true("run", "BestCheckpointSecured"))
                trainers.evaluator = "v2"
                await trainers.show({"run": [0.5]})
                await eventually(lambda: rig.has_reason("run", "QualityDeclining", "BeganAnew"))
                await trainers.show({"run": [0.52, 0.51]})
                record = await rig.record("run")
                stored = (await rig.job("run"))["status"]
            assert (record.decision, record.evaluator) == (None, "v2")
            assert [p.step for p in record.evals] == [70, 80]
            assert record.best is not None
            assert record.best.step == 70
            assert record.baseline is not None
            assert record.baseline.kept is not None
            assert record.baseline.kept.best_step == 30
            assert stored["baseline"]["step"] == 60

    asyncio.run(story())


def test_an_evaluator_that_is_another_one_at_each_eval_is_told_and_the_highest_stays(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """A time, a commit or a seed in its version: the run could never be stopped, and its best was let go."""

    async def pinned(step: int) -> bool:
        secured = (await rig.record("run")).secured
        return secured is not None and secured.best_step == step

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            trainers = Trainers(rig, ["run"])
            trainers.labelled = True
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"))
                for i, score in enumerate([0.5, 0.66, 0.4, 0.3, 0.2]):
                    trainers.evaluator = f"judge@20:{i:02}"
                    await trainers.show({"run": [score]})
                    await eventually(lambda step=10 * (i + 1): pinned(step), what="the newest best's pin")
                await eventually(lambda: rig.has_reason("run", "RuleCanStop", "EvaluatorChanges"))
                record, stored = await rig.record("run"), (await rig.job("run"))["status"]
            assert record.baseline is not None
            assert record.baseline.short is not None
            assert [pin.best_step for pin in record.baseline.pins] == [10, 20]
            assert stored["printed"]["best"] == "0.2 (alone)"
            assert stored["printed"]["reason"] == "EvaluatorChanges"

    asyncio.run(story())


def test_a_pool_that_promises_precision_weighs_e_values_and_refuses_other_rules(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    async def story() -> None:
        async with rig:
            for wrong in ("1", "0.4", "95%"):
                with pytest.raises(ApiError, match="precision"):
                    await rig.make_pool(stopLimits={"precision": wrong})
            await rig.make_pool(stopLimits={"precision": "0.95", "precisionJobs": 1000})
            await rig.make_job("plain", gpus=1)
            await rig.make_job("paired", gpus=1, stopRule={"eProcess": {}})
            trainers = Trainers(rig, ["paired"])
            async with rig.operator():
                await eventually(lambda: rig.has_reason("plain", "Accepted", "RuleWithoutEValue"))
                _, _, message = await rig.condition("plain", "Accepted") or (None, "", "")
                assert "spec.stopRule: 'kDeclines' yields no e-values" in message
                assert "expected eProcess" in message
                await eventually(lambda: rig.is_true("paired", "Running"))
                await trainers.show({"paired": [0.7, 0.71, 0.7]}, Paired(10, 60, 0.0, 0.04))
                await trainers.show({"paired": [0.55, 0.55, 0.55]}, Paired(10, 60, -0.15, 0.04))
                await eventually(lambda: rig.has_reason("paired", "TerminationTarget", "TooLittleEvidence"))
                assert await pool_condition(rig, "StopsHeldBack") == ("True", "TooLittleEvidence")
                await trainers.show({"paired": [0.55, 0.54]}, Paired(10, 200, -0.15, 0.04))
                await eventually(lambda: rig.is_true("paired", "GPUsReleased"), 40, what="the stop")
                record = await rig.record("paired")
            assert record.decision is not None
            assert record.decision.proposal.e_value is not None
            assert record.decision.proposal.e_value >= 1000 / 0.05

    asyncio.run(story())


def test_limits_hold_stops_back_say_so_and_let_them_go_when_they_are_raised(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    jobs = ["a", "b", "c", "d"]

    async def limit(**limits: Any) -> None:
        wanted: dict[str, Any] = {"perHour": None, "breakerPercent": None, "sharedFallPercent": 0}
        patch = {"spec": {"stopLimits": wanted | limits}}
        await rig.api.merge_patch(GPUPOOLS, rig.pool_name, patch)

    async def held(reason: str, number: int = 3) -> bool:
        reasons = [await rig.reason(name, "TerminationTarget") for name in jobs[:3]]
        return reasons.count(reason) == number

    async def released() -> bool:
        return [await rig.is_true(name, "GPUsReleased") for name in jobs[:3]].count(True) == 2

    async def story() -> None:
        async with rig:
            await rig.make_pool(stopLimits={"perHour": 0, "sharedFallPercent": 0})
            for name in jobs:
                await rig.make_job(name, gpus=1)
            trainers = Trainers(rig, jobs)
            async with rig.operator() as engine:
                for name in jobs:
                    await eventually(lambda name=name: rig.is_true(name, "Running"))
                await trainers.show({name: [0.5, 0.6, 0.7] for name in jobs})
                await trainers.show({name: [0.6, 0.5, 0.4] for name in jobs[:3]})
                await eventually(lambda: held("StopBudgetSpent"))
                assert await pool_condition(rig, "StopsHeldBack") == ("True", "StopBudgetSpent")
                await limit(breakerPercent=50)
                await eventually(lambda: held("ManyAtOnce"))
                assert await pool_condition(rig, "StopsHeldBack") == ("True", "ManyAtOnce")
                assert "breakerSince" in (await pool_status(rig))["stops"]
                await eventually(lambda: has_event(rig, "BreakerOpen"))
                assert b"evalstop_circuit_breaker_open 1.0" in engine.metrics.text()
                await limit(perHour=2)
                await eventually(released, 40, what="two stops")
                await eventually(lambda: held("StopBudgetSpent", 1))
                # They are counted by the pass after the one that granted them.
                await eventually(lambda: stopped(rig, 2), what="both to be counted")
                status = await pool_status(rig)
                await eventually(lambda: has_event(rig, "BreakerClosed"))
                text = engine.metrics.text()
                ended = [name for name in jobs[:3] if await rig.is_true(name, "GPUsReleased")]
                (asking,) = set(jobs[:3]) - set(ended)
                await rig.patch(ended[0], {"spec": {"resume": {"id": "1", "from": "Best"}}})
                uid = (await rig.job(ended[1]))["metadata"]["uid"]
                await rig.api.delete(RLHFJOBS, ended[1], rig.namespace, uid)
                await eventually(lambda: rig.is_true(ended[0], "Running"), 40, what="the resumed run")
                await limit(perHour=1)
                await eventually(lambda: rig.has_reason(asking, "TerminationTarget", "StopBudgetSpent"))
                after = await pool_status(rig)
            granted = [entry["job"] for entry in after["stops"]["granted"]]
            assert sorted(granted) == sorted(f"{rig.namespace}/{name}" for name in ended), "both still count"
            assert (status["stops"]["lastHour"], "breakerSince" in status["stops"]) == (2, False)
            assert b'evalstop_stops_held_back_total{reason="ManyAtOnce"} 3.0' in text

    asyncio.run(story())


async def has_event(rig: Rig, reason: str) -> bool:
    return reason in await pool_events(rig)


def test_what_the_fleet_remembers_survives_in_the_pools_status(rig: Rig, kubelet: FakeKubelet) -> None:
    """Read back by another operator, and pruned of nothing by the API server."""
    noise = (MetricNoise("ns", "gold", "v1", FleetNoise(0.0123, 17.5), 4),)
    falls = (SharedFall("ns", "", "", 100.0, 160.0, 3, 4), SharedFall("ns", "gold", "v1", 200.0, 260.0, 5, 6))
    stored = pool_memory.stored(StopCount(2, 5, 1234.5), noise, falls)

    async def story() -> None:
        async with rig:
            made = await rig.make_pool()
            answer = await rig.api.merge_patch(
                GPUPOOLS,
                rig.pool_name,
                {"status": stored},
                subresource="status",
                version=made["metadata"]["resourceVersion"],
                uid=made["metadata"]["uid"],
            )
            status = answer["status"]
        assert {key: status[key] for key in stored} == stored
        assert fleet_status.noise(status) == noise
        assert fleet_status.shared_falls(status) == falls
        assert fleet_status.stops(status).breaker_since == 1234.5
        assert fleet_status.view_for(status, ScoredBy("ns", "gold", "v1")).fall == falls[1]
        assert fleet_status.view_for(status, ScoredBy("ns", "gold", "v2")).fall == falls[0]
        assert fleet_status.view_for(status, ScoredBy("other", "gold", "v1")) == FleetView()
        assert (
            fleet_status.view_for({"noise": [{"namespace": "ns"}]}, ScoredBy("ns", "gold", "v1"))
            == FleetView()
        )

    asyncio.run(story())
