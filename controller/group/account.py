"""The account of a group's residents: turns, switches, waits and charges. Whole microseconds of a clock
that does not go back, from when the group was opened."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.policy.sharing import Charges
from controller.policy.sharing import coordinator as co

TURNS_KEPT, SWITCHES_KEPT = 160, 20
RECENT_KEPT = 60  # turns of all residents together


class Clock:
    """Microseconds since the group was opened, over all starts of its member 0.

    Args:
        opened: s since the epoch.
        wall: clock, s since the epoch; only where this start begins is read from it.
        monotonic: clock, s.
    """

    def __init__(
        self,
        opened: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic, self._began = monotonic, monotonic()
        self._at = max(0, round((wall() - opened) * 1e6))

    def now(self) -> int:
        return self._at + round((self._monotonic() - self._began) * 1e6)

    def not_before(self, time: int) -> None:
        """Go on from a time that an earlier start has seen, if the machine's clock was set back."""
        self._at += max(0, time - self.now())


@dataclass(slots=True)
class Record:
    """One resident's turns so far."""

    turns: deque[tuple[int, int, int, int]] = field(default_factory=lambda: deque(maxlen=TURNS_KEPT))
    loads: deque[int] = field(default_factory=lambda: deque(maxlen=SWITCHES_KEPT))
    offloads: deque[int] = field(default_factory=lambda: deque(maxlen=SWITCHES_KEPT))
    released: int = 0
    lost: int = 0
    in_row: int = 0  # turns lost by the group's side since the newest that was released
    failing: int = 0  # when the first of these was
    why: str = ""  # of the newest of these
    longest_wait: int = 0
    asked: int | None = None  # when it did, while it waits
    step: int = -1
    back: int | None = None  # when it released its last turn
    granted: int = 0
    away: int = 0
    waited: int = 0  # for the present turn, its switch included


class Account:
    """Follows the coordinator's states.

    Args:
        gpus: of the whole group.
        now: microseconds.
    """

    def __init__(self, gpus: int, now: int) -> None:
        self.charges: Charges[str] = Charges(max(1, gpus), now)
        self.records: dict[str, Record] = {}
        self.calls = self.switches = self.expired = 0
        self.since = 0  # of the present phase of the turn
        self.began = 0  # the present turn, with its switch
        # (resident, began, granted, ended, whether it counted); never granted: granted is ended.
        self.recent: deque[tuple[str, int, int, int, bool]] = deque(maxlen=RECENT_KEPT)

    def follow(self, before: co.Coordinator, after: co.Coordinator, now: int) -> None:
        """Take up what one event changed."""
        came = {name for name, _ in after.versions} - {name for name, _ in before.versions}
        for name in came:
            self.come(name, now)
        for name in set(after.waiting) - set(before.waiting):
            record = self.records[name]
            record.asked = now
            record.away = now - record.back if record.back is not None else 0
        old, new = before.turn, after.turn
        if (old is None) != (new is None) or (old and new and old.phase is not new.phase):
            self.since = now
        if old is not None and (new is None or new.token != old.token):
            self._over(old, after, now)
        if new is not None and (old is None or new.token != old.token):
            self._begun(new, before, now)
        if new is not None and new.phase is co.Phase.HELD and (old is None or old.phase is co.Phase.LOADING):
            self._granted(new, now)
        for name in {name for name, _ in before.versions} - {name for name, _ in after.versions}:
            self.charges.leave(name, now)

    def come(self, name: str, now: int) -> None:
        """Take up a resident, at its joining or after a start."""
        self.records.setdefault(name, Record())
        if name not in self.charges:
            self.charges.join(name, now)

    def failed(self, resident: str, why: str, now: int) -> None:
        """Take up why a turn was lost that its holder did not lose itself."""
        record = self.records[resident]
        record.failing = record.failing if record.in_row else now
        record.in_row += 1
        record.why = why

    def switched(self, resident: str, before: str | None, load: int, offload: int) -> None:
        """Take up the times of a switch, of the slowest member."""
        self.switches += 1
        self.records[resident].loads.append(load)
        if before is not None and before in self.records and offload:
            self.records[before].offloads.append(offload)

    def restore(self, kept: Mapping[str, Any], residents: Collection[str], now: int) -> None:
        """Go on with the charges that an earlier start wrote.

        Raises:
            ValueError: they are none.
        """
        self.charges = Charges.of(kept, now)
        for name in [name for name in self.charges.present() if name not in residents]:
            self.charges.leave(name, now)
        for name in residents:
            self.come(name, now)

    def _begun(self, turn: co.OpenTurn, before: co.Coordinator, now: int) -> None:
        record, self.began = self.records[turn.resident], now
        if record.asked is None:  # it was granted at once
            record.away = now - record.back if record.back is not None else 0
            record.asked = now
        self.charges.hold(turn.resident, now)

    def _granted(self, turn: co.OpenTurn, now: int) -> None:
        record = self.records[turn.resident]
        record.granted = now
        record.waited = 0 if record.asked is None else now - record.asked
        record.longest_wait = max(record.longest_wait, record.waited)
        record.asked = None

    def _over(self, turn: co.OpenTurn, after: co.Coordinator, now: int) -> None:
        record = self.records[turn.resident]
        self.charges.release(now)
        record.asked = None if turn.resident not in after.waiting else now
        counted = after.version(turn.resident) == turn.version + 1
        granted = record.granted if record.granted >= self.began else now
        self.recent.append((turn.resident, self.began, granted, now, counted))
        if counted:
            held = max(1, now - record.granted)
            record.turns.append((record.away, held, record.step, record.waited))
            record.released += 1
            record.in_row, record.failing, record.why = 0, 0, ""
        else:
            record.lost += 1
            self.expired += 1
        record.back = now
