"""A budget of false stops, spent look by look over the evals that a run will have.

How many that are: the evals so far, and what is left of the run by its progress over the evals' usual
distance (steps, `Pace`), at least `FEWEST` and at most `MOST`. Where no total is known, the rule's own
horizon. Nine tenths of the budget are spent on these: each look gets what is left of it, by its weight among
the looks left. Where the total is known, they weigh by the square of how much of the run is done: later ones
compare more evals, a slow fall is deepest there, and who falls early leaves looks enough. They weigh alike
where it is not, for the run may end at any, and where the prompts of both evals are known (`scan`). A tenth
is kept for what comes beyond, of which the j-th look after takes 1 / (j + 2) of what is left, so that it is
never used up. A total that is wrong makes a run harder or easier to stop, and never spends more than there
is. Of totals that change the one counts that makes for most evals: what a look may spend must not rise
suddenly, for then what longer windows passed before does not tell how seldom they pass now.

What a look may spend is the share of it that a comparison of the newest evals with the best before may pass
by chance, on a run whose true score never falls:

- single evals: (t - 1) pairs, each passed with 1 - Phi(c) at most (union bound);
- longer windows: their pairs (`windows.comparisons`) the same way, or what was measured on flat Gaussian runs
  (windows of 3 and more, a quarter of the run), whichever is less. That any of a look's passes c is as
  probable as if they were `worth` independent ones. But successive looks see nearly the same: if all had the
  same chance, the t-th would be the first to pass with `RATE` c^4 exp(-c^2 / 2) / (t + `LATER`) at most. One
  that may spend more than the one before may also be the first by having a lower limit: for that part of its
  chance (`Look.more`) it counts as if it were alone.

What was measured holds for the small chances of a small budget only. So longer windows spend as if the budget
were `MEASURED` at most (`of_windows`), and what that leaves is spent on single evals, whose bound is proved.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

FEWEST, MOST = 5, 200  # evals that a run is taken to have
WITHIN = 0.9  # of the budget, for the evals that it will have
RATE, LATER = 0.29, 40.0
# Of that so much is enough up to `EARLY` evals, and `MORE` with each eval after: few stretches can be made.
EARLY, FEWER, MORE = 8, 0.47, 0.033
SECOND = 2  # eval at which anything can be compared
MEASURED = 0.04  # budget up to which what was measured of longer windows holds
AT_FIRST = 0.05  # weight of a look, beside the square of the share of the run that is done
AS_PLANNED = 1.02  # times what a look was to spend from the beginning on, that still counts as that
LEAST_Z = 2.0  # below it the rate does not fall as z rises
HIGHEST_Z = 12.0
STEPS = 2**28
STEP = (HIGHEST_Z - LEAST_Z) / STEPS  # exact, as are its multiples
LEAST_CHANCE = 1e-7  # below it `NormalDist.cdf` is too coarse for the rate to fall at every step
WORTH_ABOUT = 10  # independent comparisons, to begin with
SECANTS, NEAR = 6, 1e-5  # at most so many; the logarithm's error from which on one more is exact enough

_NORMAL = NormalDist()


class Pace(NamedTuple):
    """The pace of a run's evals, without those asked for between: these lie nearer than half as far.

    Attributes:
        first: step of the first eval.
        last: step of the newest regular one.
        regular: how many of these there are.
        evals: most that the run was taken to have; 0: its length is not known.
    """

    first: int = 0
    last: int = 0
    regular: int = 0
    evals: int = 0

    def after(self, seen: int, step: int, progress: float | None) -> Pace:
        """Return the pace after the ``seen``-th eval.

        Args:
            seen: evals so far, with this one.
            step: of this one.
            progress: share of the run that is done at ``step``; None: its length is not known. Nor is it
                above 1: the run goes on beyond its total, and lives on the tenth that was kept.
        """
        if not self.regular:
            return Pace(step, step, 1, self.evals)
        first, last, regular, most = self
        if 2.0 * (step - last) * (regular - 1) >= last - first:
            last, regular = step, regular + 1
        if progress is not None and 0.0 < progress <= 1.0 and last > first:
            left = (step / progress - step) * (regular - 1) / (last - first)
            most = max(most, max(FEWEST, min(MOST, seen + math.floor(left + 1e-6))))
        return Pace(first, last, regular, most)


class Look(NamedTuple):
    """Spending limit of one look.

    Attributes:
        share: of the budget.
        more: share of that by which it is more than the look before was to spend; 1: it is not known.
    """

    share: float
    more: float


def of_windows(alpha: float) -> float:
    """Return the share of a budget that longer windows spend as if it were all of it."""
    return min(1.0, MEASURED / alpha)


def look(seen: int, evals: int, spent: float, *, late: bool = True) -> Look:
    """Return what the ``seen``-th look may spend, of a run of ``evals``.

    ``spent``: share of the budget that the looks before it did. ``late``: whether later looks weigh more;
    else all weigh alike. Nothing can be compared at the first.
    """
    if seen < SECOND:
        return Look(0.0, 1.0)
    if seen > evals:
        return Look((1.0 - spent) / (seen - evals + 2), 0.0)
    of_left, planned, more = _plan(seen, evals, late)
    found = max(0.0, WITHIN - spent) * of_left
    return Look(found, 1.0 if found > AS_PLANNED * WITHIN * planned else more)


@lru_cache(maxsize=8192)
def _plan(seen: int, evals: int, late: bool) -> tuple[float, float, float]:
    """Return the share of what is left, and of all, that the ``seen``-th look was to spend from the beginning
    on, and `Look.more` of it."""
    if not late:
        return 1.0 / (evals - seen + 1), 1.0 / (evals - 1), 0.0
    own = weight(seen, evals)
    return own / left(seen, evals), own / left(SECOND, evals), 1.0 - weight(seen - 1, evals) / own


def weight(seen: Any, evals: Any) -> Any:
    """Return the weight of a look of a run of ``evals``."""
    return AT_FIRST + (seen / evals) ** 2


def left(seen: Any, evals: Any) -> Any:
    """Return the weight of this look and all after it."""
    rest = evals - seen + 1
    squares = evals * (evals + 1) * (2 * evals + 1) - seen * (seen - 1) * (2 * seen - 1)
    return AT_FIRST * rest + squares / (6.0 * evals**2)


def single_chance(z: float, seen: int) -> float:
    """Return how probable it is at most that the newest of ``seen`` flat evals lies z below any before."""
    return (seen - 1) * _NORMAL.cdf(-z)


def single_limit(chance: float, seen: int) -> float:
    """Return the z that `single_chance` gives ``chance`` at; infinite for 0."""
    return _quantile(chance, seen - 1)


@lru_cache(maxsize=4096)
def windows_limit(chance: float, more: float, seen: int, pairs: int, noise_known: bool = True) -> float:
    """Return the z that longer windows pass on a flat run first at this look with at most ``chance``.

    ``more``: of the `Look`. ``pairs``: how many of them there are; infinite for none. ``noise_known``: how
    noisy an eval is, is not guessed from the scores.
    """
    if not pairs or chance <= 0.0:
        return math.inf
    return min(_lowest(chance, more, seen, noise_known), _quantile(chance, pairs))


def _lowest(chance: float, more: float, seen: int, noise_known: bool) -> float:
    """Return the lowest z of a grid from `LEAST_Z` to `HIGHEST_Z` whose `rate` is at most ``chance``.

    It is looked for beside where secants of the rate's logarithm lead to, and by halves where they do not.
    """

    def passes(at: int) -> bool:
        return rate(LEAST_Z + at * STEP, more, seen, noise_known) > chance

    low, high, width = 0, STEPS, 1
    if chance >= LEAST_CHANCE:
        high = max(1, min(STEPS, math.ceil((_near(chance, more, seen, noise_known) - LEAST_Z) / STEP)))
        low = high - 1
        while high < STEPS and passes(high):
            low, high, width = high, min(STEPS, high + width), 16 * width
        while low > 0 and width == 1 and not passes(low):
            low, high = max(0, low - 4 * (high - low)), low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return LEAST_Z + high * STEP


def _near(chance: float, more: float, seen: int, noise_known: bool) -> float:
    """Return about where the rate is ``chance``."""
    z = max(LEAST_Z, _quantile(chance, WORTH_ABOUT))
    over, slope = math.log(rate(z, more, seen, noise_known) / chance), -z
    for _ in range(SECANTS):
        to = min(HIGHEST_Z, max(LEAST_Z, z - over / slope))
        found = rate(to, more, seen, noise_known)
        if to == z or found <= 0.0:
            break
        now = math.log(found / chance)
        slope, z, over = (now - over) / (to - z), to, now
        if abs(over) < NEAR or slope >= 0.0:
            break
    return z - over / slope if slope < 0.0 else z


def rate(z: float, more: float, seen: int, noise_known: bool = True) -> float:
    """Return the measured bound on longer windows' first passing of z >= `LEAST_Z` at this look."""
    rate = RATE * (stretches(seen) if noise_known else 1.0)
    alone = max(1.0, min(worth(z), of_few(seen))) * _NORMAL.cdf(-z)
    return float(min(alone, more * alone + rate * z**4 * math.exp(-z * z / 2.0) / (seen + LATER)))


def worth(z: Any) -> Any:
    """Return how many independent comparisons those of one look are worth at z: less where all of them pass
    more often, being nearly the same."""
    return 3.0 * z - 1.0


def of_few(seen: int) -> float:
    """Return the same where few stretches can be made, whatever z is."""
    return 0.65 * (seen - 4)


def stretches(seen: int) -> float:
    """Return which share of `RATE` is enough at this look."""
    return min(1.0, FEWER + MORE * max(0, seen - EARLY))


def _quantile(chance: float, pairs: int) -> float:
    if chance <= 0.0:
        return math.inf
    return -_NORMAL.inv_cdf(min(0.5, chance / pairs))
