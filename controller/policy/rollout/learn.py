"""Learning from a step: the law, trust in predictions, and what the step was made with, for the next one.

The one way by which operator and simulator learn. The first law is a guess: it is brought to the scale of
the first reports as a whole (`scaled_law`), and no step that was planned by a guess counts as an error of
predictions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from controller.frozen import dataclass
from controller.policy.rollout.late import with_starts
from controller.policy.rollout.refit import WorkReport, refit_law, scaled_law
from controller.policy.rollout.trust import Trust
from controller.policy.rollout.types import ActorLaw, Dispatch, RolloutPlan


@dataclass(frozen=True, slots=True)
class Learned:
    """Knowledge that a job has from its steps so far.

    Args:
        law: of its actors.
        known: True once reports have shaped the law; until then it is a guess.
        trust: in predictions.
        before: count and dispatch of the newest step; None: it was not planned, or there was none.
        used: number of reports of the newest step that were believed.
    """

    law: ActorLaw
    known: bool = False
    trust: Trust = field(default_factory=Trust)
    before: tuple[int, Dispatch] | None = None
    used: int = 0


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step as it was.

    Args:
        seconds: that its generation took.
        rank: correlation of predicted and actual lengths; None: too few prompts to say.
        reports: of its actors.
        plan: its plan; None: it had none.
        expected: s that it was planned to take with its actors' starts as they came (`expected_seconds`).
    """

    seconds: float
    rank: float | None
    reports: tuple[WorkReport, ...]
    plan: RolloutPlan | None
    expected: float | None


def expected_seconds(
    plan: RolloutPlan | None, meant: Iterable[float], ready: Iterable[float]
) -> float | None:
    """Return s that a step was planned to take, with its actors' starts as they came: that they were late is
    no error of lengths or law. None: it was not planned, or nobody came.

    Args:
        plan: of the step.
        meant: s from the begin at which it had each of its actors ready.
        ready: s from the begin at which actors were ready.
    """
    if plan is None or plan.seconds is None:
        return None
    return with_starts(plan.seconds, tuple(meant), tuple(ready), plan.dispatch)


def learned(so_far: Learned, law: ActorLaw, step: StepSeen) -> Learned:
    """Return what is known after a step.

    Args:
        so_far: before it.
        law: that of ``so_far``, with the slots that actors had in this step.
        step: as it was.
    """
    trust = so_far.trust.seen(step.rank, step.expected if so_far.known else None, step.seconds)
    shaped, used = refit_law(law if so_far.known else scaled_law(law, step.reports), step.reports)
    before = so_far.before if step.plan is None else (step.plan.actors, step.plan.dispatch)
    return Learned(shaped, so_far.known or used > 0, trust, before, used)
