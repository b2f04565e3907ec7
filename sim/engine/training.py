"""Virtual trainers: when a run that holds its GPUs reaches its evals, its end, and its checkpoints.

A run's time is: start delay, (restart cost,) then training, interrupted by ``eval_cost`` at each eval. All
times of a run are computed from the moment its training began, so nothing drifts.
"""

from __future__ import annotations

from bisect import bisect_right
from math import floor

from sim.latencies import Latencies
from sim.workload import Workload


class Training:
    """Training progress of every job of a workload."""

    __slots__ = ("_began", "_cost", "_evals", "_first", "_overhead", "done", "latencies", "next", "work")

    def __init__(self, workload: Workload, latencies: Latencies) -> None:
        rows = len(workload)
        self.latencies = latencies
        self.done: list[float] = [0] * rows  # s of training in safety
        self.next = [0] * rows  # first eval that is not made yet, as far as the job would start now
        self.work = workload.work
        self._evals = workload.evals
        self._cost = latencies.eval_cost
        self._began: list[float] = [0.0] * rows  # when the present run's training began or will begin
        self._first = [0] * rows  # first eval of the present run
        self._overhead = (latencies.start_delay, latencies.start_delay + latencies.restart_cost)

    def evals(self, row: int) -> int:
        """Return how many evals the job makes if it runs to its end."""
        evals = self._evals[row] if self._evals else None
        return len(evals.at) if evals is not None else 0

    def left(self, row: int, again: bool) -> float:
        """Return the seconds from the readiness of the waiting job's members until its end.

        ``again``: the job has run before.

        The start is not among them: the operator counts a run from its members' readiness on, too
        (`controller.policy.job.service`).
        """
        left = self.work[row] - self.done[row]
        # Nothing is added where nothing is due: whole seconds stay exact ints.
        if self._cost:
            left += (self.evals(row) - self.next[row]) * self._cost
        restart = self.latencies.restart_cost
        return left + restart if again and restart else left

    def begin(self, row: int, now: float, again: bool) -> None:
        """Begin a run that was admitted at ``now``."""
        overhead = self._overhead[again]
        self._began[row] = now + overhead if overhead else now
        self._first[row] = self.next[row]

    def end_at(self, row: int) -> float:
        """Return when the present run ends if it is let run."""
        if not self._cost:
            return self._began[row] + (self.work[row] - self.done[row])
        return self._reaches(row, self.work[row], self.evals(row) - self._first[row])

    def eval_at(self, row: int, number: int) -> float:
        """Return when eval ``number`` of the present run is made (its own cost included)."""
        return self._reaches(row, self._position(row, number), number - self._first[row] + 1)

    def _position_at(self, row: int, now: float, made: int) -> float:
        """Return seconds of training done at ``now``, by the present run and those before it."""
        spent = now - self._began[row]
        if spent <= 0:
            return self.done[row]
        if self._cost:
            spent -= (made - self._first[row]) * self._cost
        reached = min(self.done[row] + spent, self.work[row])
        if self._cost and made < self.evals(row):  # in the middle of an eval training stands still
            return min(reached, self._position(row, made))
        return reached

    def pause(self, row: int, now: float, *, graceful: bool) -> float:
        """End the present run at ``now``; return the seconds that are lost since the last checkpoint.

        ``graceful``: with one more checkpoint first. An eval that was not finished is made again, and so
        are those after the checkpoint that the job goes back to.
        """
        made, interval = self.made(row, now), self.latencies.checkpoint_interval
        reached = self._position_at(row, now, made)
        self.next[row] = made
        kept = reached
        if interval and not graceful:
            kept = max(self.done[row], min(reached, floor(reached / interval) * interval))
            while self.next[row] and self._position(row, self.next[row] - 1) > kept:
                self.next[row] -= 1
        self.done[row] = kept
        return reached - kept

    def made(self, row: int, now: float) -> int:
        """Return how many evals are made at ``now``."""
        made, count = self._first[row], self.evals(row)
        if made == count:
            return made
        evals = self._evals[row]
        assert evals is not None  # it has some
        if not self._cost:  # near it at once; rounding may be off by one
            at, work, done, began = evals.at, self.work[row], self.done[row], self._began[row]
            share = (now - began + done) / work if work else 1.0
            made = max(made, bisect_right(at, share) - 1)
            while made < count and began + (at[made] * work - done) <= now:
                made += 1
            return made
        while made < count and self.eval_at(row, made) <= now:
            made += 1
        return made

    def _reaches(self, row: int, position: float, evals: int) -> float:
        time = self._began[row] + (position - self.done[row])
        return time + evals * self._cost if self._cost else time

    def _position(self, row: int, number: int) -> float:
        evals = self._evals[row]
        assert evals is not None  # only jobs with evals are asked
        return evals.at[number] * self.work[row]
