"""Gauges and counters of worker groups, made at each scrape from what the operator has of them.

A label is a state, an end or an account, never a group: `evalstop groups` names them. Counters add up what
groups report of their present starts, so of a group that ends what it did since the last scrape is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from controller.gauges import ProcessMetrics
from controller.web.groups import NO_ANSWER, NOT_READY, OPENING, READY, RESIDENT_STATES, STATES

SAME_SCRAPE = 1.0  # s
Series = Iterable[tuple[tuple[str, ...], float]]


class GroupFigures(NamedTuple):
    """One group at a scrape.

    Attributes:
        state: one of `STATES`.
        residents: the state of each, of `RESIDENT_STATES`.
        start: number of its newest start.
        opened: s, when that start was admitted.
        reported: s, when its newest report was got; None: there is none.
        unanswered: s, since when questions bring none; None: the newest did.
        released, lost: turns of that start, by how they ended.
        switches: of that start.
        charged, vacant: GPU-seconds of that start, of residents and without any.
    """

    name: str
    state: str
    residents: tuple[str, ...]
    gpus: int
    start: int
    opened: float
    reported: float | None
    released: int = 0
    lost: int = 0
    switches: int = 0
    charged: float = 0.0
    vacant: float = 0.0
    unanswered: float | None = None


class _Totals(NamedTuple):
    start: int
    sums: tuple[float, ...]


class GroupGauges:
    """Counts of all worker groups.

    Args:
        read: returns all groups as they are now; none while this process does not lead.
        clock: seconds since the epoch.
    """

    def __init__(self, read: Callable[[], Iterable[GroupFigures]], clock: Callable[[], float]) -> None:
        self._all, self._clock, self._begun = read, clock, clock()
        self._seen: tuple[float, list[GroupFigures]] = (-SAME_SCRAPE, [])
        self._last: dict[str, _Totals] = {}
        self._totals = [0.0] * 5

    def register(self, metrics: ProcessMetrics) -> None:
        """Show them among a process's metrics."""
        metrics.gauge("evalstop_worker_groups", "Worker groups, by state", self._states, "state")
        metrics.gauge("evalstop_worker_group_gpus", "GPUs of worker groups", self._gpus)
        metrics.gauge(
            "evalstop_worker_group_residents",
            "Residents of worker groups, by state",
            self._residents,
            "state",
        )
        metrics.gauge(
            "evalstop_worker_group_unready_seconds",
            "For how long the first of the groups that cannot grant turns (yet) has been started; 0: none",
            self._unready,
        )
        metrics.gauge(
            "evalstop_worker_group_unheard_seconds",
            "For how long the first of the groups that were ready has not answered; 0: none is there",
            self._unheard,
        )
        metrics.counter(
            "evalstop_worker_group_turns", "Turns in worker groups, by how they ended", self._turns, "end"
        )
        metrics.counter(
            "evalstop_worker_group_switches", "Turns for which a state was loaded", self._switches
        )
        metrics.counter(
            "evalstop_worker_group_gpu_seconds",
            "GPU-seconds of worker groups: charged to residents, or without any (vacant)",
            self._gpu_seconds,
            "account",
        )

    def _read(self) -> list[GroupFigures]:
        """Return all groups, looked at once for all metrics of one scrape."""
        now = self._clock()
        if not 0.0 <= now - self._seen[0] < SAME_SCRAPE:
            self._seen = now, list(self._all())
        return self._seen[1]

    def _states(self) -> Series:
        found = Counter(one.state for one in self._read())
        return [((state,), float(found[state])) for state in STATES]

    def _gpus(self) -> Series:
        return [((), float(sum(one.gpus for one in self._read())))]

    def _residents(self) -> Series:
        found = Counter(state for one in self._read() for state in one.residents)
        return [((state,), float(found[state])) for state in RESIDENT_STATES]

    def _unready(self) -> Series:
        now = self._clock()
        waits = (now - one.opened for one in self._read() if one.state in (OPENING, NOT_READY))
        return [((), max(0.0, max(waits, default=0.0)))]

    def _unheard(self) -> Series:
        now = self._clock()
        ages = (now - self._heard(one) for one in self._read() if one.state in (READY, NO_ANSWER))
        return [((), max(0.0, max(ages, default=0.0)))]

    def _heard(self, one: GroupFigures) -> float:
        """Return when a group was heard last (s). One that this process has not asked yet is not silent."""
        known = [at for at in (one.reported, one.unanswered) if at is not None]
        return min(known, default=max(one.opened, self._begun))

    def _turns(self) -> Series:
        released, lost, *_ = self._sums()
        return [(("Released",), released), (("Lost",), lost)]

    def _switches(self) -> Series:
        return [((), self._sums()[2])]

    def _gpu_seconds(self) -> Series:
        *_, charged, vacant = self._sums()
        return [(("charged",), charged), (("vacant",), vacant)]

    def _sums(self) -> list[float]:
        """Return the totals, after what groups report beyond their last."""
        last: dict[str, _Totals] = {}
        for one in self._read():
            now = (one.released, one.lost, one.switches, one.charged, one.vacant)
            before = self._last.get(one.name)
            known = before.sums if before is not None and before.start == one.start else (0.0,) * len(now)
            # A resident that left takes its sums along: totals do not go back.
            self._totals = [
                sum_ + max(0.0, new - old) for sum_, new, old in zip(self._totals, now, known, strict=True)
            ]
            last[one.name] = _Totals(one.start, tuple(map(float, now)))
        self._last = last
        return self._totals
