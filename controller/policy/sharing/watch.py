"""Residents that are too slow for too long; the last one that came has to go then.

Measured is what a step took beyond what it would have taken alone: waits for turns and switches. Rollouts
that vary are not in it, so it has no noise but that of the others' turns. Sums fade by a twentieth a step,
which is a mean of about the last 20, as many as a prediction rests on. A resident is too slow if that mean is
above its limit after each of its last `STAYS` steps (as many as a profile has), of which none counts that
began before the newest resident came: before, other residents were there. Then the resident that came last is
preempted, whoever is slow: the others were told that they would be within their limits, and were until it
came. A resident alone is never preempted for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.frozen import dataclass
from controller.policy.group_types import STAYS, times_allowed
from controller.policy.sharing.types import Resident

FADES = 0.95  # of the sums, a step


@dataclass(frozen=True, slots=True)
class Slowness:
    """Measured steps of one resident since the last one came.

    Args:
        took, alone: faded sums of microseconds, of its steps and of what they would have taken alone.
        above: steps in a row after which the mean was above the limit.
    """

    took: float = 0.0
    alone: float = 0.0
    above: int = 0

    @property
    def slowdown(self) -> float:
        """Steps take so many times as long as alone; 1 before the first step."""
        return self.took / self.alone if self.alone > 0.0 else 1.0

    def step(self, took: int, alone: int, max_slowdown_percent: int) -> Slowness:
        """Return it after one more step."""
        took_all, alone_all = FADES * self.took + took, FADES * self.alone + alone
        slow = took_all > alone_all * times_allowed(max_slowdown_percent)
        return Slowness(took_all, alone_all, self.above + 1 if slow else 0)


@dataclass(frozen=True, slots=True)
class TooSlow:
    """``leaves`` is to be preempted, because ``slow`` stays above its limit."""

    leaves: str
    slow: str
    message: str


def too_slow(residents: Sequence[Resident], measured: Mapping[str, Slowness]) -> TooSlow | None:
    """Return who has to leave; None: nobody."""
    if len(residents) < 2:
        return None
    for one in residents:
        slowness = measured.get(one.key, Slowness())
        if slowness.above >= STAYS:
            last = max(residents, key=lambda resident: (resident.came, resident.key))
            message = (
                f"{one.key} has been {slowness.slowdown:.2f} times as slow as alone after each of"
                f" {slowness.above} steps, {times_allowed(one.max_slowdown_percent):.2f} is allowed:"
                f" {last.key}, who came last, leaves"
            )
            return TooSlow(last.key, one.key, message)
    return None
