"""A step's plan: 1,000 prompts of 4 copies, up to 32 actors, all dispatches; against the engine.

The baseline of the time is its bound, 30 ms. Errors are those of the estimate against the simulator's
engine on the same lengths, for the plan that is chosen, and for every fourth point of the curve by
dispatch: the mean over batches, of the count where it is the largest. The trainer's order is not in a
forecast, so of `Even` one batch says little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from controller.policy.rollout import (
    ActorLaw,
    CurvePoint,
    Dispatch,
    RolloutPlan,
    RolloutSettings,
    Supply,
    forecast,
    plan_rollout,
)
from sim.rollout.run import generate
from sim.rollout.setting import RolloutSetting, Scheme
from sim.rollout.workload import GSM8K, StepBatch, batches
from tests.bench.rows import Row, median_row

PROMPTS, COPIES, MOST = 1000, 4, 32
ALLOWED_MS = 30.0
PLANS = 51
BATCHES = 5
SETTING = RolloutSetting(prompts=PROMPTS, copies=COPIES, slots=64, most=MOST)
SETTINGS = RolloutSettings(min=1, max=MOST, static=3)


def law() -> ActorLaw:
    """Return the engine's law as a planner knows it once reports have shown it."""
    true, prompt = SETTING.law, GSM8K.prompt
    return ActorLaw(
        iteration=true.iteration,
        sequence=true.sequence + true.context * prompt,
        growth=true.context,
        prefill=true.prefill * prompt,
        slots=SETTING.slots,
    )


def run(say: Callable[[str], None]) -> Iterator[Row]:
    wall, cpu = [], []
    errors: dict[str, list[tuple[float, float]]] = {}
    for seed in range(BATCHES):
        (batch,) = batches(GSM8K, PROMPTS, COPIES, per_epoch=1, epochs=1, seed=seed)
        means = tuple(sum(lengths) / COPIES for lengths in batch.lengths)
        seen = forecast(means, COPIES, GSM8K.copies, GSM8K.cap)
        plan = plan_rollout(seen, law(), SETTINGS, Supply())
        for _ in range(PLANS // BATCHES):
            began, used = time.perf_counter(), time.process_time()
            plan_rollout(seen, law(), SETTINGS, Supply())
            wall.append(1000 * (time.perf_counter() - began))
            cpu.append(1000 * (time.process_time() - used))
        say(f"batch {seed}: {plan.message}")
        for name, point in _points(plan):
            errors.setdefault(name, []).append(_error(point, batch, means))
    yield Row("rollout: a plan, median (baseline: its bound)", statistics.median(wall), "ms", ALLOWED_MS)
    yield median_row("rollout: a plan, median of its own CPU time", cpu, "ms", [ALLOWED_MS])
    for kind in ("chosen", *(d.value for d in Dispatch if d is not Dispatch.AUTO)):
        found = [values for name, values in errors.items() if name.split(",")[0] == kind]
        for which, what in ((0, "time"), (1, "GPU-seconds")):
            worst = max((statistics.fmean(v[which] for v in values) for values in found), key=abs)
            yield Row(f"rollout: {what} by the estimate, {kind}, against the engine", 100 * worst, "%")


def _points(plan: RolloutPlan) -> Iterator[tuple[str, CurvePoint]]:
    for point in plan.curve:
        if (point.actors, point.dispatch) == (plan.actors, plan.dispatch):
            yield "chosen", point
        if point.actors % 4 == 0:
            yield f"{point.dispatch.value},{point.actors}", point


def _error(point: CurvePoint, batch: StepBatch, means: tuple[float, ...]) -> tuple[float, float]:
    scheme = Scheme("fixed", dispatch=point.dispatch.value, cut=0.7)
    report = generate(
        SETTING,
        scheme,
        batch.prompts(means),
        None,
        Supply(),
        count=point.actors,
        release=(True,) * point.actors,
    )
    return point.seconds / report.seconds - 1.0, point.gpu_seconds / report.held - 1.0
