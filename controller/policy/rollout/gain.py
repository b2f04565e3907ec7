"""The fall of a job's step time by its last added actors, as measured.

Pools share spare actors by it. The planner's curve is a promise: a job whose forecasts are too hopeful would
have everybody's GPUs. So two counts of actors are compared that the job has really had.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.frozen import dataclass

WINDOW = 3  # newest steps at each of the two counts


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that has ended.

    Args:
        actors: that it had, the most at a time.
        seconds: that it took whole, the learner's part among them.
        tokens: generated in it.
    """

    actors: int
    seconds: float
    tokens: int


def measured_gain(steps: Sequence[StepTime], gpus_per_actor: int) -> float | None:
    """Return s by which the step got shorter for each GPU of the last added actors; None: steps of one count
    alone are known. Below 0: it got longer.

    The count of the newest step is compared with the nearest lower one, or where there is none with the
    nearest higher one, each by its newest `WINDOW` steps. Lengths drift, so times are compared for each
    token, and the difference is of a step with as many tokens as the newest.

    Args:
        steps: oldest first.
        gpus_per_actor: at least 1.
    """
    if not steps:
        return None
    newest = steps[-1]
    others = {step.actors for step in steps if step.tokens > 0} - {newest.actors}
    if not others or newest.tokens <= 0:
        return None
    lower = [count for count in others if count < newest.actors]
    other = max(lower) if lower else min(others)
    gain = (_per_token(steps, other) - _per_token(steps, newest.actors)) * newest.tokens
    return gain / ((newest.actors - other) * gpus_per_actor)


def _per_token(steps: Sequence[StepTime], actors: int) -> float:
    """Return s for each token of the newest steps with so many actors."""
    found = [step for step in steps if step.actors == actors and step.tokens > 0][-WINDOW:]
    return sum(step.seconds for step in found) / sum(step.tokens for step in found)
