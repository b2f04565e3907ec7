"""Two processes that decide together through a pipe, as a trainer's do through torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from evalstop_client.ranks import Ranks

WAIT_S = 60.0


class PipeRanks(Ranks):
    """One of two ranks. Each call waits for the other rank to make its own, as a collective does."""

    size = 2

    def __init__(self, rank: int, pipe: Connection) -> None:
        self.rank, self._pipe = rank, pipe

    def highest(self, values: Sequence[int]) -> list[int]:
        return [max(pair) for pair in zip(values, self._exchange("highest", list(values)), strict=True)]

    def one(self, text: str | None) -> str | None:
        other = self._exchange("one", text)
        said = (text, other) if self.rank == 0 else (other, text)
        return next((word for word in said if word is not None), None)

    def barrier(self) -> None:
        self._exchange("barrier", None)

    def _exchange(self, what: str, value: Any) -> Any:
        """Raises RuntimeError where the other rank is in another collective: torch ends the run there."""
        self._pipe.send((what, value))
        if not self._pipe.poll(WAIT_S):
            raise RuntimeError(f"the other rank did not come to {what}")
        other, found = self._pipe.recv()
        if other != what:
            raise RuntimeError(f"collective mismatch: {what} here, {other} there")
        return found
