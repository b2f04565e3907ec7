"""The scores of a run's peers at its step: running means of its namespace's other runs, in the same metric.

As in Vizier's median stopping rule (Golovin et al., KDD 2017, section 3.2.2): of each other run the mean of
all its evals up to that step, and of those means the median. A peer counts once it has reached the step,
whether it still runs or has ended. Where a run is so far beyond the step that the evals kept in its status no
longer reach back to it, what it had there is not known, and it does not count.

Runs of other namespaces are nobody's peers, whatever the pool's scope: being below them stops a run, and they
may report what they like.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import newest_mark
from controller.policy.job.types import Desired, Direction, ScrapeView
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import JobKey, PeersAt, namespace_of


class PeerCurve(NamedTuple):
    """A run's evals as its peers use them: steps, and the sum of all its scores up to each step.

    In the trainer's own orientation. ``earlier``: evals before the first of these.
    """

    steps: tuple[int, ...]
    sums: tuple[float, ...]
    earlier: int

    @staticmethod
    def of(record: JobRecord) -> PeerCurve | None:
        """Return the curve of a job's evals; None: there are none, or the sum of older ones is not known."""
        earlier = record.evals_seen - len(record.evals)
        before = record.earlier_sum if earlier else 0.0
        if not record.evals or before is None:
            return None
        sums = tuple(accumulate((p.score for p in record.evals), initial=before))[1:]
        return PeerCurve(tuple(p.step for p in record.evals), sums, earlier)

    def mean_at(self, step: int) -> float | None:
        """Mean of all scores up to ``step``; None: it has not come so far, or nobody knows any more."""
        if not self.steps[0] <= step <= self.steps[-1]:
            return None
        index = bisect_right(self.steps, step)
        return self.sums[index - 1] / (self.earlier + index)


def are_peers(one: JobKey, other: JobKey) -> bool:
    """Return whether two runs of a pool with the same metric, direction and evaluator are each other's
    peers."""
    return one != other and namespace_of(one) == namespace_of(other)


def wanted(desired: Desired) -> bool:
    """Return whether the job's rule or one of its modifiers looks at peers. Guardrails have none."""
    chosen = [RULES.get(desired.rule.name), *(MODIFIERS.get(m.name) for m in desired.modifiers)]
    return any("peers" in kind.needs for kind in chosen if kind is not None)


def unseen_steps(record: JobRecord, scrape: ScrapeView | None) -> tuple[int, ...]:
    """Return steps of the scrape's evals that the record does not have yet, in order."""
    mark = newest_mark(record)
    points = scrape.points if scrape is not None else ()
    return tuple(sorted({p.step for p in points if mark is None or p.attempt != mark[0] or p.step > mark[1]}))


def standings(curves: Iterable[PeerCurve], steps: Iterable[int], direction: Direction) -> tuple[PeersAt, ...]:
    """Return how the peers stood at each of these steps, higher is better; a step none has reached is left
    out."""
    known, sign = list(curves), 1.0 if direction is Direction.MAXIMIZE else -1.0
    found = []
    for step in steps:
        means = [sign * mean for curve in known if (mean := curve.mean_at(step)) is not None]
        if means:
            found.append(PeersAt(step, len(means), median(means)))
    return tuple(found)
