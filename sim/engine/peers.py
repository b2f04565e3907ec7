"""What each eval's peers had: the running means of other runs of the same group at the same eval."""

from __future__ import annotations

from bisect import insort

from controller.policy.types import Peers


class PeerBoard:
    """Running mean scores by group and eval number, as runs report them.

    A run's running mean is that of its scores up to that eval; each run counts once per eval number.
    """

    __slots__ = ("_means", "_totals")

    def __init__(self) -> None:
        self._means: dict[tuple[str, int], list[float]] = {}
        self._totals: dict[int, tuple[float, int]] = {}

    def report(self, row: int, group: str, number: int, score: float) -> Peers | None:
        """Take in a score; return what the others had at this eval, None if nobody was here before."""
        total, count = self._totals.get(row, (0.0, 0))
        total, count = total + score, count + 1
        self._totals[row] = (total, count)
        others = self._means.setdefault((group, number), [])
        peers = Peers(len(others), _median(others)) if others else None
        insort(others, total / count)
        return peers


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
