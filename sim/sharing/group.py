"""A virtual worker group: residents that come and go, ask for turns, switch, hold and release.

Whose turn is next is said by the policy's `TurnQueue`, what it costs by its `Charges`. An event costs a few
microseconds: a resident's next request follows from its last release, so rollouts need no events.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.policy.sharing import Charges, TurnQueue
from sim.kernel import Kernel


class VirtualResident:
    """One job on a group.

    Attributes:
        took, alone: microseconds from the first release that counts to the last one, on the group and as it
            would have been alone; `measured` turns are in them.
        place: of the turn that is next.
        ticket: of the request that it will make; None: it has made it, or is nowhere.
    """

    __slots__ = (
        "_alone_asks", "_alone_ends", "_ends", "_since", "_since_alone", "alone", "away", "held", "key",
        "lag", "load", "measured", "offload", "place", "row", "ticket", "took",
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        row: int,
        times: tuple[list[int], list[int]],
        *,
        lag: int = 0,
        load: int = 0,
        offload: int = 0,
    ) -> None:
        self.key, self.row, self.lag, self.load, self.offload = key, row, lag, load, offload
        self.away, self.held = times
        self.place = 0
        self.ticket: int | None = None
        self.took = self.alone = self.measured = 0
        self._since = self._since_alone = -1
        self._ends = self._alone_asks = self._alone_ends = 0

    def first_request(self, now: int) -> int:
        """Return when it asks for the next turn, if its rollouts begin now."""
        asks = now + self.away[self.place]
        self._since = self._since_alone = -1
        self._alone_asks = asks
        if self.lag:
            self._ends = self._alone_ends = asks + self._later()
        return asks

    def released(self, now: int) -> int | None:
        """Count a turn that was released, and return when it asks for the next; None: it was the last."""
        place = self.place
        alone = self._alone_asks + self.held[place]
        if self._since >= 0:
            self.took += now - self._since
            self.alone += alone - self._since_alone
            self.measured += 1
        self._since, self._since_alone = now, alone
        self.place = place = place + 1
        if place == len(self.away):
            return None
        if self.lag:
            asks = self._ends if self._ends > now else now
            self._alone_asks = alone_asks = max(self._alone_ends, alone)
            later = self._later()
            self._ends, self._alone_ends = asks + later, alone_asks + later
            return asks
        away = self.away[place]
        self._alone_asks = alone + away
        return now + away

    def _later(self) -> int:
        """Return how long the rollouts after the next take; 0: there are none."""
        place = self.place + 1
        return self.away[place] if place < len(self.away) else 0


Ended = Callable[[VirtualResident], None]
# Microseconds that a turn took, and would have alone; True: something came of it to decide about.
Stepped = Callable[[VirtualResident, int, int], bool]


class VirtualGroup:
    """One group on a kernel.

    Args:
        kernel: of the simulation.
        gpus: of the group.
        queue: who is next.
        ended: called when a resident has done its last turn and left.
        stepped: called after each turn but a resident's first and its last.
    """

    __slots__ = ("_ended", "_stepped", "charges", "closed", "holder", "kernel", "queue", "switches", "turns")

    def __init__(
        self,
        kernel: Kernel,
        gpus: int,
        queue: TurnQueue[VirtualResident],
        ended: Ended | None = None,
        stepped: Stepped | None = None,
    ) -> None:
        self.kernel, self.queue = kernel, queue
        self.charges: Charges[VirtualResident] = Charges(gpus, int(kernel.now))
        self.holder: VirtualResident | None = None
        self.closed = False
        self.turns = self.switches = 0
        self._ended, self._stepped = ended, stepped

    def join(self, resident: VirtualResident, begins: int) -> None:
        """Let a resident come now and begin its rollouts at ``begins``."""
        self.charges.join(resident, int(self.kernel.now))
        resident.ticket = self.kernel.at(resident.first_request(begins), resident.row, self._asked, resident)

    def leave(self, resident: VirtualResident) -> int:
        """Let a resident go that does not hold the group, and return its charge."""
        if resident.ticket is not None:
            self.kernel.cancel(resident.ticket)
            resident.ticket = None
        self.queue.leave(resident)
        return self.charges.leave(resident, int(self.kernel.now))

    def _asked(self, resident: VirtualResident) -> bool:
        resident.ticket = None
        self.queue.ask(resident)
        if self.holder is None:
            self._grant()
        return True

    def _grant(self) -> None:
        queue = self.queue
        before = queue.loaded
        who = queue.grant()
        self.holder = who
        if who is None:
            return
        now = int(self.kernel.now)
        self.charges.hold(who, now)
        self.turns += 1
        if before is not who:
            self.switches += 1
            now += who.load if before is None else before.offload + who.load
        self.kernel.at(now + who.held[who.place], who.row, self._released, who)

    def _released(self, who: VirtualResident) -> bool:
        if self.closed:
            return True
        now = int(self.kernel.now)
        self.charges.release(now)
        self.holder = None
        took, alone, counted = who.took, who.alone, who.measured
        asks = who.released(now)
        news = False
        if asks is not None and self._stepped is not None and who.measured > counted:
            news = self._stepped(who, who.took - took, who.alone - alone)
        if asks is None:
            self.leave(who)
            if self._ended is not None:
                self._ended(who)
            if self.closed:
                return True
        elif who not in self.charges:
            pass  # it was sent away in `stepped`
        elif asks == now:
            self.queue.ask(who)  # the release asks for the next turn
        else:
            who.ticket = self.kernel.at(asks, who.row, self._asked, who)
        if self.holder is None:
            self._grant()
        return asks is not None and not news
