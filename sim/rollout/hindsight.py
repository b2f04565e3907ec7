"""The best count in hindsight: every count is carried out, and the objective chooses among what came of it.

The same predictions, dispatch and release as ours; only the count is known to be right.
"""

from __future__ import annotations

from controller.policy.rollout import CurvePoint, Supply, best_point
from sim.rollout.run import Job, StepOutcome, generate, planner_settings
from sim.rollout.setting import RolloutSetting, Scheme


def run_hindsight(
    setting: RolloutSetting, scheme: Scheme, seed: int
) -> tuple[list[StepOutcome], list[StepOutcome]]:
    """Return the steps of our own run, and those of the best counts beside it.

    Starts are free here: a count that was right in one step costs nothing in the next.
    """
    job = Job(setting, scheme, seed)
    ours: list[StepOutcome] = []
    bests: list[StepOutcome] = []
    for number, batch in enumerate(job.steps):
        predicted = job.predict(number)
        supply = Supply()
        plan = job.plan(predicted, supply)
        assert plan is not None
        settings = planner_settings(setting, scheme)
        points, outcomes = [], {}
        prompts = batch.prompts(predicted)
        for count in range(settings.min, settings.max + 1):
            report = generate(setting, scheme, prompts, plan, supply, count=count, release=(True,) * count)
            cost = (report.held) * setting.gpus_per_actor
            points.append(CurvePoint(count, plan.dispatch, report.seconds, cost))
            outcomes[count] = report
        chosen = best_point(points, settings)
        for found, count in ((ours, plan.actors), (bests, chosen.actors)):
            report = outcomes[count]
            cost = report.held * setting.gpus_per_actor
            between = setting.rest(report.tokens)
            found.append(
                StepOutcome(
                    report.seconds,
                    between,
                    cost,
                    cost,
                    count,
                    report.moved,
                    plan.seconds,
                    plan.reason.value,
                    0,
                )
            )
        job.learn(batch, predicted, outcomes[plan.actors], plan, supply, 0.0)
    return ours, bests
