"""`controller.policy.stopping.gate` over whole matrices: which evals count, and when that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.policy.stopping import gate, noise, spending
from controller.policy.stopping.gate import GateParams

Matrix = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

LARGEST = float(np.finfo(np.float32).max)


class Passed(NamedTuple):
    """The evals that a gate lets count, for all runs at once.

    Attributes:
        order: columns of the evals that count, in their order, -1 from where there are no more.
        known: how many of them the rule has been shown at each eval.
        silent: the eval waits and lies higher than the last that counts, so there is no STOP at it.
        coarse: the eval is dropped as too imprecise.
    """

    order: Whole
    known: Whole
    silent: Flags
    coarse: Flags

    def moved(self, values: Matrix) -> Matrix:
        """Return a matrix with only the evals that count, moved to the left; NaN from there."""
        found = np.take_along_axis(values, np.maximum(self.order, 0), axis=1)
        there: Matrix = np.where(self.order >= 0, found, np.nan)
        return there

    def beside(self, scores: Matrix, stderrs: Matrix) -> tuple[Matrix, Matrix, Whole]:
        """Return scores and errors of all evals but those too imprecise, moved to the left (NaN from there),
        and at which of them the evals are that count."""
        left = np.argsort(self.coarse, axis=1, kind="stable")
        gone = np.take_along_axis(self.coarse, left, axis=1)
        moved = [np.where(gone, np.nan, np.take_along_axis(m, left, axis=1)) for m in (scores, stderrs)]
        now_at = np.argsort(left, axis=1, kind="stable")
        found = np.take_along_axis(now_at, np.maximum(self.order, 0), axis=1)
        return moved[0], moved[1], np.where(self.order >= 0, found, -1)

    def seen(self, stop: Flags) -> Flags:
        """Return STOPs by eval from STOPs by eval that counts: the last known verdict, where one is given."""
        last = np.take_along_axis(stop, np.maximum(self.known - 1, 0), axis=1)
        return last & (self.known > 0) & ~self.silent


class _Walk:
    """All runs, eval by eval: the fields of `gate.Memory` as columns."""

    def __init__(
        self,
        scores: Matrix,
        stderrs: Matrix,
        p: GateParams,
        usual: Matrix | None,
        steps: Matrix,
        pairs: Sequence[tuple[Matrix, Matrix]],
        samples: Matrix | None,
    ) -> None:
        runs, count = scores.shape
        self.samples = np.full(scores.shape, np.nan) if samples is None else samples
        self.steps, self.pairs = steps, pairs
        self.usual = np.zeros(runs) if usual is None else usual  # noise as the pool knows it
        self.x, self.p, self.rows = scores, p, np.arange(runs)
        self.errors = np.where(stderrs > 0.0, stderrs, 0.0)  # NaN is not
        self.last = np.full(runs, -1)
        self.held = np.full((runs, max(2, p.evals)), -1)  # oldest first
        self.drops = np.zeros(runs, dtype=np.int64)
        self.dropped = np.zeros(runs, dtype=bool)  # by the newest eval: it counts once
        self.first = np.zeros(runs)
        self.recent = np.full((runs, noise.ROBUST_MOST), np.nan)
        self.order = np.full((runs, count), -1)
        self.number = np.zeros(runs, dtype=np.int64)
        self.needed = np.full(runs, p.evals)
        self.coarsest = np.full(runs, -1)  # the least precise eval that counted
        self.coarse = np.zeros((runs, count), dtype=bool)

    def score(self, at: Whole) -> Matrix:
        found: Matrix = self.x[self.rows, at]
        return found

    def error(self, one: Whole, other: Whole) -> Matrix:
        """Return the larger standard error of two evals; 0: neither is known."""
        found: Matrix = np.maximum(self.errors[self.rows, one], self.errors[self.rows, other])
        return found

    def scale(self, one: Whole, other: Whole) -> Matrix:
        """Return the distance beyond which an eval waits; infinite where nobody knows."""
        error = self.error(one, other)
        estimated = _robust(self.recent)
        learned = np.where(self.usual > 0.0, self.usual, np.nan)
        estimated = np.where(np.isnan(estimated), learned, estimated)
        limit = np.where(np.isnan(estimated), np.inf, self.p.sigmas_estimated * estimated)
        return np.where(error > 0.0, self.p.sigmas_reported * error, limit)

    def below(self, last: Whole, now: Whole) -> Matrix:
        """Return the distance beyond which an eval waits that lies below the last one."""
        limit, larger = self.scale(last, now), self.error(last, now)
        limit = np.where(larger > 0.0, self.p.sigmas_below * larger, limit)
        for against, error in self.pairs:
            known = error[self.rows, now]
            same = (against[self.rows, now] == self.steps[self.rows, last]) & np.isfinite(known + limit)
            of_both = self.p.sigmas_below / math.sqrt(2.0) * known
            limit = np.where(same, np.fmin(limit, of_both), limit)
        return limit

    def count(self, which: Flags, at: Whole) -> None:
        """Count the evals in columns ``at`` from now on, in the runs of ``which``."""
        r = np.flatnonzero(which)
        if not len(r):
            return
        a = at[r]
        self.order[r, self.number[r]] = a
        self.number[r] += 1
        self.last[r], self.drops[r] = a, 0
        reported = self.errors[r, a] > 0.0
        most = np.where(self.coarsest[r] >= 0, self.errors[r, np.maximum(self.coarsest[r], 0)], 0.0)
        self.coarsest[r] = np.where(self.errors[r, a] > most, a, self.coarsest[r])
        self.recent[r[reported]] = np.nan
        r, a = r[~reported], a[~reported]
        fresh = np.isnan(self.recent[r, -1])
        self.first[r[fresh]] = [gate.near(float(score)) for score in self.x[r[fresh], a[fresh]]]
        moved = np.clip(self.x[r, a] - self.first[r], -LARGEST, LARGEST).astype(np.float32)
        self.recent[r] = np.column_stack([self.recent[r, 1:], moved.astype(np.float64)])

    def take(self, t: int) -> None:
        self.dropped[:] = False
        self._offer(~np.isnan(self.x[:, t]), np.full(len(self.rows), t))

    def _offer(self, which: Flags, now: Whole) -> None:
        """Show these runs one eval each, that of column ``now``, and once it has settled the first of those
        that waited, the others that did, and it again, in their turn."""
        if not which.any():
            return
        coarse = self._too_coarse(which, now)
        begun = self._begin(which & ~coarse, now)
        which = which & ~coarse & ~begun
        waited = self.held.copy()
        settled = self._show(which, now)
        for i in range(1, waited.shape[1]):
            self._offer(settled & (waited[:, i] >= 0), waited[:, i])
        self._offer(settled, now)

    def _coarser(self, one: Whole, other: Whole) -> Flags:
        """Return where an eval is far less precise than another (`precision.Precision.coarser`)."""
        r, times = self.rows, self.p.imprecise
        one, other = np.maximum(one, 0), np.maximum(other, 0)
        error, than = self.errors[r, one], self.errors[r, other]
        known = (self.samples[r, one] > 0.0) & (self.samples[r, other] > 0.0)
        as_many = known & (times * self.samples[r, one] >= self.samples[r, other])
        found: Flags = (than > 0.0) & (error > times * than) & ~as_many
        return found

    def _apart(self, one: Whole, other: Whole) -> Flags:
        return self._coarser(one, other) | self._coarser(other, one)

    def _lose(self, which: Flags, at: Whole) -> None:
        """Drop an eval that is too imprecise in each of these runs."""
        self.drops += which & ~self.dropped
        self.dropped |= which
        self.coarse[np.flatnonzero(which), at[which]] = True

    def _too_coarse(self, which: Flags, now: Whole) -> Flags:
        """Drop evals that are far less precise than all that count; return in which runs."""
        there = which & (self.last >= 0) & (self.coarsest >= 0) & (self.drops < self.p.most)
        found: Flags = there & self._coarser(now, self.coarsest)
        self._lose(found, now)
        return found

    def _begin(self, which: Flags, now: Whole) -> Flags:
        """Take in one of the first three evals, where one of them is less precise than another; return in
        which runs (`gate.Gate._begin`)."""
        one, other = self.held[:, 0].copy(), self.held[:, 1].copy()
        fresh = which & (self.last < 0) & (one >= 0)
        second, third = fresh & (other < 0), fresh & (other >= 0)
        near_one, near_other = ~self._apart(one, now), ~self._apart(other, now)
        near_both = ~self._apart(one, other)
        two = second & ~near_one
        self.held[two, 1] = now[two]
        three = third & ~(near_one & near_other & near_both)
        if three.any():
            errors = [self.errors[self.rows, np.maximum(at, 0)] for at in (one, other, now)]
            least = np.argmax(np.stack(errors), axis=0)
            odd = np.where(near_one & ~near_other, 1, np.where(near_other & ~near_one, 0, least))
            of = np.stack([one, other, now])
            self.held[three] = -1
            self._lose(three, of[odd, self.rows])
            self._offer(three, np.where(odd == 0, other, one))
            self._offer(three, np.where(odd == 2, other, now))
        return two | three

    def _show(self, which: Flags, now: Whole) -> Flags:
        """Show these runs one eval each; in which of them it settled the first one that waited.

        That one counts or is dropped, none waits any more, and of the new one nothing is decided yet.
        """
        now = np.maximum(now, 0)
        fresh = which & (self.last < 0)
        one, other = self.held[:, 0], self.held[:, 1]
        waits = fresh & (one < 0)  # the first eval has nothing before it
        alone = fresh & (one >= 0) & (other < 0)
        both = fresh & (other >= 0)
        first = np.maximum(one, 0)
        falls = alone & (self.score(first) - self.score(now) > self.scale(first, now))
        bears = both & self._bears_out(np.maximum(other, 0), first, now)
        self.count((alone & ~falls) | bears, first)
        self.drops[bears] = 1
        self.dropped |= both
        self.count(both & ~bears, np.maximum(other, 0))
        waiting = which & ~fresh & (one >= 0)
        bears = waiting & self._bears_out(np.maximum(self.last, 0), first, now)
        number = (self.held >= 0).sum(axis=1)
        more = bears & (number < self.needed)
        settled: Flags = waiting & ~more
        self.count(settled & bears, first)
        drops = settled & ~bears
        self.drops += drops & ~self.dropped
        self.dropped |= drops
        self.held[which & ~falls & ~more] = -1
        self.held[falls, 1] = now[falls]
        self.held[more, number[more]] = now[more]
        judged = which & ~waits & ~falls & ~waiting
        last = np.maximum(self.last, 0)
        rise = self.score(now) - self.score(last)
        near = np.abs(rise) <= np.where(rise < 0.0, self.below(last, now), self.scale(last, now))
        passes = near | (self.drops >= self.p.most)
        self.count(judged & passes, now)
        far = waits | (judged & ~passes)
        self.held[far, 0] = now[far]
        return settled

    def _bears_out(self, start: Whole, jumped: Whole, now: Whole) -> Flags:
        jump = self.score(jumped) - self.score(start)
        gone = self.score(now) - self.score(start)
        found: Flags = gone * np.copysign(1.0, jump) >= self.p.borne_out * np.abs(jump)
        return found


def longest(steps: Matrix, progress: Matrix | None) -> Matrix:
    """Return the most evals that a run was taken to have up to each eval; 0: its length is not known."""
    found, most = np.zeros(steps.shape), np.zeros(len(steps))
    if progress is None:
        return found
    first, last, regular = steps[:, 0], steps[:, 0], np.ones(len(steps))
    for t in range(1, steps.shape[1]):
        step = steps[:, t]
        far = 2.0 * (step - last) * (regular - 1.0) >= last - first
        last, regular = np.where(far, step, last), regular + far
        with np.errstate(divide="ignore", invalid="ignore"):
            left = (step / progress[:, t] - step) * (regular - 1.0) / (last - first)
            evals = np.clip(t + 1 + np.floor(left + 1e-6), spending.FEWEST, spending.MOST)
        credible = (progress[:, t] > 0.0) & (progress[:, t] <= 1.0) & (last > first)
        most = np.where(credible, np.maximum(most, evals), most)
        found[:, t] = most
    return found


def passed(
    scores: Matrix,
    stderrs: Matrix,
    p: GateParams,
    steps: Matrix,
    progress: Matrix | None,
    usual: Matrix | None = None,
    pairs: Sequence[tuple[Matrix, Matrix]] = (),
    samples: Matrix | None = None,
) -> Passed:
    """Return what the gate lets through of each run.

    ``pairs``: of each eval the step of an earlier one that it is paired with, and the error of their
    difference (NaN: none). ``samples``: scored at each (NaN: not known).
    """
    runs, count = scores.shape
    most = longest(steps, progress)
    walk = _Walk(scores, stderrs, p, usual, steps, pairs, samples)
    known, silent = np.zeros((runs, count), dtype=np.int64), np.zeros((runs, count), dtype=bool)
    for t in range(count):
        few = (most[:, t] > 0.0) & (most[:, t] <= p.short_run)
        last = (most[:, t] == t + 1.0) & (t + 1 < spending.MOST)
        walk.needed = np.where(few | last, 1, p.evals)
        walk.take(t)
        known[:, t] = walk.number
        held = walk.held[:, 0]
        above = walk.score(np.maximum(held, 0)) > walk.score(np.maximum(walk.last, 0))
        silent[:, t] = (held >= 0) & ((walk.last < 0) | above)
        silent[:, t] |= np.isnan(scores[:, t])
    return Passed(walk.order, known, silent, walk.coarse)


def _robust(recent: Matrix) -> Matrix:
    """`noise.robust` of every row; NaN: too few scores."""
    sizes = np.sort(np.abs(recent[:, 2:] - 2.0 * recent[:, 1:-1] + recent[:, :-2]), axis=1)  # NaN last
    number = (~np.isnan(sizes)).sum(axis=1)
    enough = number >= noise.ROBUST_LEAST - 2
    at = np.arange(len(sizes))
    low, high = np.maximum(number - 1, 0) // 2, number // 2
    middle = (sizes[at, low] + sizes[at, np.minimum(high, sizes.shape[1] - 1)]) / 2.0
    squares = np.square(np.minimum(np.nan_to_num(sizes), noise.LARGEST)).sum(axis=1)
    mean = np.sqrt(squares / (noise.PER_VARIANCE * np.maximum(number, 1)))
    found: Matrix = np.where(middle > 0.0, np.minimum(middle / noise.ROBUST_UNIT, mean), mean)
    return np.where(enough, found, np.nan)
