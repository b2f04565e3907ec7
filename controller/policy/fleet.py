"""What a pool's proposals to stop say together: a budget of stops, and a breaker for many at once.

Each stop rule looks at its own run. A fault that they share, such as another evaluator or a broken prompt
set, lowers every score at once, and every rule is right about what it sees. So the pool asks two more
questions before it releases anybody; what it holds back stays proposed and is looked at again at each
pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.policy.queueing.base import queue_key
from controller.policy.types import HeldBack, JobState, JobView, StopLimits

HOUR = 3600.0  # s
FEW = 3  # proposals below which the breaker never opens: two runs may well decline together

COMMON_MODE = "ManyAtOnce"
BUDGET_SPENT = "StopBudgetSpent"


class Sifted(NamedTuple):
    """``grant``: who may be released now. ``held``: who may not, and why. ``wake_at`` (s): when some may."""

    grant: tuple[JobView, ...]
    held: tuple[HeldBack, ...]
    wake_at: float | None


def sift(jobs: Iterable[JobView], limits: StopLimits, stopped: Iterable[float], now: float) -> Sifted:
    """Which of the jobs that propose their stop may be released at ``now`` (s).

    ``stopped``: when stops were granted that a rule had asked for (s); older than an hour count no more.
    The breaker comes first: while it is open nothing is released. Then the budget, in the queue's order.
    """
    running = [j for j in jobs if j.state is JobState.ADMITTED]
    asking = sorted((j for j in running if j.proposal is not None), key=queue_key)
    if not asking:
        return Sifted((), (), None)
    recent = sorted(at for at in stopped if now - HOUR < at <= now)
    if why := _common_mode(len(asking), len(running), len(recent), limits):
        return Sifted((), tuple(HeldBack(j.key, COMMON_MODE, why) for j in asking), None)
    if limits.per_hour is None:
        return Sifted(tuple(asking), (), None)
    left = max(0, limits.per_hour - len(recent))
    if left >= len(asking):
        return Sifted(tuple(asking), (), None)
    why = f"{len(recent)} stops in the last hour, {left} more are allowed; {len(asking)} jobs ask for one"
    # The budget grows again when the oldest of the stops that fill it is an hour old.
    wake = recent[0] + HOUR if recent else None
    held = tuple(HeldBack(j.key, BUDGET_SPENT, why) for j in asking[left:])
    return Sifted(tuple(asking[:left]), held, wake)


def _common_mode(asking: int, running: int, recent: int, limits: StopLimits) -> str | None:
    """Stops of the last hour count as asking, and as running: a fault that they share may come in drops."""
    if limits.breaker_percent is None or asking + recent < FEW:
        return None
    together, all_ = asking + recent, running + recent
    if 100 * together < limits.breaker_percent * all_:
        return None
    return (
        f"{together} of {all_} jobs were stopped in the last hour or ask to be, {limits.breaker_percent} % "
        "or more: a cause that they share, such as another evaluator, is likelier than as many declines"
    )
