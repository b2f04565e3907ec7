"""Late starts: what a step would have been planned to take, had it been known when its actors are ready.

A plan has to guess that. Where actors come late, because GPUs were lent or starts were slow, its time is
wrong though lengths and law were right. Measured times are held against this instead (`trust`).
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.rollout.types import Dispatch


def with_starts(
    planned: float, meant: Sequence[float], ready: Sequence[float], dispatch: Dispatch
) -> float | None:
    """Return s that the step would have been planned to take; at least ``planned``.

    With one queue the same work is shared by those who are there: whoever comes later takes less. Groups wait
    for their actors.

    Args:
        planned: s that it was planned to take.
        meant: s from the begin at which the plan had each of its actors ready.
        ready: s from the begin at which actors were ready, those of them that came.
        dispatch: of the plan.

    Returns:
        None: nobody came, and nothing can be said.
    """
    came = sorted(ready)[: len(meant)]
    if not came:
        return None
    wanted = sorted(meant)
    late = max((is_ - was for is_, was in zip(came, wanted, strict=False)), default=0.0)
    if len(came) == len(wanted) and late <= 0.0:
        return planned
    work = sum(max(0.0, planned - at) for at in wanted)
    found, begun = planned, 0.0
    for count, at in enumerate(came, 1):
        begun += at
        found = (work + begun) / count
        if count == len(came) or found <= came[count]:
            break
    if dispatch is not Dispatch.LONGEST_FIRST:
        found = max(found, planned + late)
    return max(planned, found)
