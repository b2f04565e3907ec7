"""Scores of each eval's peers, by the operator's own `controller.policy.job.peers`, kept up as scores come
in.

A run's steps are its progress: runs of one group are taken to have equally many steps, and evals at the same
share of the training to be at the same step, however many evals each run makes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from controller.policy.job import Direction, PeerCurve, standings
from controller.policy.types import Peers

# Steps in a whole training. Shares that differ by rounding alone (3 * 0.1 and 0.3) are one step.
STEPS = 2**40


class PeerBoard:
    """The curves of all runs so far, by namespace and group (`peers.are_peers`), as runs report them.

    `standings` walks all runs of the group. A step that a second run asks about is kept from then on, with
    the means of all that have reached it in order, so that on a common grid of evals a report costs no walk.
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}

    def report(self, row: int, group: tuple[str, str], at: float, score: float) -> Peers | None:
        """Take in a score; return what the others had at this step, None if nobody came so far before.

        ``group``: namespace, and what the run is scored by. ``at``: share of the training done, above that
        of the row's last report. ``score``: higher is better.
        """
        step = round(at * STEPS)
        runs = self._groups.setdefault(group, _Group())
        found = runs.at(step)
        runs.add(row, step, score)
        return found


class _Group:
    __slots__ = ("_asked", "_curves", "_kept", "_means")

    def __init__(self) -> None:
        self._curves: dict[int, PeerCurve] = {}
        self._asked: set[int] = set()
        self._kept: list[int] = []  # steps whose means are kept, in order
        self._means: dict[int, list[float]] = {}  # of the runs that have reached them, in order

    def at(self, step: int) -> Peers | None:
        if step not in self._means:
            if step not in self._asked:
                self._asked.add(step)
                found = standings(self._curves.values(), (step,), Direction.MAXIMIZE)
                return Peers(found[0].runs, found[0].median) if found else None
            means = (curve.mean_at(step) for curve in self._curves.values())
            self._means[step] = sorted(mean for mean in means if mean is not None)
            insort(self._kept, step)
        reached = self._means[step]
        return Peers(len(reached), _median(reached)) if reached else None

    def add(self, row: int, step: int, score: float) -> None:
        before = self._curves.get(row)
        if before is None:
            curve, passed = PeerCurve((step,), (score,), 0), bisect_left(self._kept, step)
        else:
            curve = PeerCurve((*before.steps, step), (*before.sums, before.sums[-1] + score), 0)
            passed = bisect_right(self._kept, before.steps[-1])
        self._curves[row] = curve
        for reached in self._kept[passed : bisect_right(self._kept, step)]:
            mean = curve.mean_at(reached)
            assert mean is not None  # it lies between the run's first eval and this one
            insort(self._means[reached], mean)


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
