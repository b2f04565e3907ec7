"""The last steps of a job with rollout actors: what was planned beside what it took, bounded.

They are what `evalstop rollouts`, the dashboard's lanes and the marks are made of. They stand in the status,
and come with the one write that each step's plan takes.
"""

from __future__ import annotations

from controller.policy.job.rollout_record import STEPS_KEPT, StepMeasured, StepPlan, StepRow


def with_step(
    rows: tuple[StepRow, ...], plan: StepPlan | None, measured: StepMeasured, at: float, lent: float | None
) -> tuple[StepRow, ...]:
    """Return the rows with a step that has ended, the newest last.

    Args:
        rows: of earlier steps. One of the same step or a later one is left out: the trainer went back.
        plan: of that step; None, or of another step: it had none.
        measured: what it took.
        at: when its end was seen (s).
        lent: GPU-seconds that base actors were lent since the step before; None: not known.
    """
    if plan is not None and plan.step != measured.step:
        plan = None
    row = StepRow(
        measured.step, at, measured.seconds, whole_seconds=measured.whole_seconds, actors=measured.actors,
        gpu_seconds=measured.gpu_seconds, moved=measured.moved, failed=measured.failed, lent=lent,
    )  # fmt: skip
    if plan is not None:
        row = StepRow(
            row.step, row.at, row.seconds, plan.seconds, row.whole_seconds, row.actors, plan.actors,
            row.gpu_seconds, plan.gpu_seconds, row.moved, row.failed, lent, plan.dispatch, plan.reason,
        )  # fmt: skip
    return (*(one for one in rows if one.step < measured.step), row)[-STEPS_KEPT:]
