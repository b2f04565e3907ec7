"""Other orders of turns, to compare with first come, first served. They bound no wait by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.policy.sharing import TurnQueue
from sim.kernel import Kernel
from sim.sharing.group import VirtualResident

Queue = TurnQueue[VirtualResident]


class _Ranked(Queue):
    """Whoever has the smallest rank is next; ties: who asked first."""

    __slots__ = ("_asked", "_kernel")

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self._asked: dict[VirtualResident, int] = {}

    def ask(self, resident: VirtualResident) -> None:
        super().ask(resident)
        self._asked[resident] = int(self._kernel.now)

    def grant(self) -> VirtualResident | None:
        if len(self.waiting) > 1:
            best = min(self.waiting, key=self.rank)
            self.waiting.remove(best)
            self.waiting.insert(0, best)
        return super().grant()

    def rank(self, resident: VirtualResident) -> float:
        raise NotImplementedError


class ResponseRatio(_Ranked):
    """The highest (wait + turn) / (turn + switch): short turns and long waits first."""

    __slots__ = ()

    def rank(self, resident: VirtualResident) -> float:
        held = resident.held[resident.place]
        waited = int(self._kernel.now) - self._asked[resident]
        loaded = self.loaded
        switch = 0 if loaded is resident else resident.load + (loaded.offload if loaded is not None else 0)
        return -(waited + held) / (held + switch)


class Shortest(_Ranked):
    """The shortest turn."""

    __slots__ = ()

    def rank(self, resident: VirtualResident) -> float:
        return resident.held[resident.place]


class RoundRobin(_Ranked):
    """The next one after the last in the order in which residents came."""

    __slots__ = ()

    def rank(self, resident: VirtualResident) -> float:
        last = self.loaded.row if self.loaded is not None else -1
        return resident.row if resident.row > last else resident.row + 1e6


ORDERS: Mapping[str, Callable[[Kernel], Queue]] = {
    "first come, first served": lambda _: Queue(),
    "response ratio": ResponseRatio,
    "shortest turn first": Shortest,
    "round robin": RoundRobin,
}
