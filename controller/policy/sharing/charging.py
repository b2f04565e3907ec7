"""Charges for a group's GPUs: held time is its holder's, idle time is shared by the residents evenly.

A turn is held from the beginning of its switch to its release. While nobody holds the group its residents pay
the same part each; while it has none, nobody does (`Charges.vacant`). Sums are exact: charges are whole
numbers of `UNITS` to a GPU-microsecond, and `UNITS` can be divided by every number of residents that there
may be. So at any time

    sum of all charges + vacant = UNITS x GPUs x time since the group was opened.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fractions import Fraction
from math import lcm
from typing import Any, Generic, TypeVar

from controller.policy.sharing.types import MOST_RESIDENTS, SECOND

UNITS = lcm(*range(1, MOST_RESIDENTS + 1))  # 840
_Who = TypeVar("_Who", bound=Hashable)


def gpu_seconds(charge: int) -> Fraction:
    """Return a charge in GPU-seconds, exactly."""
    return Fraction(charge, UNITS * SECOND)


class Charges(Generic[_Who]):
    """Charges of one group's residents.

    Idle time is summed once for all: a resident pays what was added since it came. So an event costs the same
    whatever the number of residents.
    """

    __slots__ = ("_each", "_gpus", "_held", "_holder", "_idle_before", "_left", "_now", "_vacant")

    def __init__(self, gpus: int, now: int) -> None:
        self._gpus, self._now = gpus, now
        self._holder: _Who | None = None
        self._each = 0  # idle charge of one resident since the group was opened
        self._held: dict[_Who, int] = {}
        self._idle_before: dict[_Who, int] = {}  # of `_each`, when it came
        self._left: dict[_Who, int] = {}
        self._vacant = 0

    def __contains__(self, resident: _Who) -> bool:
        """Return whether somebody is a resident now."""
        return resident in self._held

    @property
    def holder(self) -> _Who | None:
        return self._holder

    def join(self, resident: _Who, now: int) -> None:
        """Let a resident pay from now on.

        Raises:
            ValueError: it does already, there are too many, or time went back.
        """
        if resident in self._held:
            raise ValueError(f"{resident} is a resident already")
        if len(self._held) >= MOST_RESIDENTS:
            raise ValueError(f"{len(self._held) + 1} residents: at most {MOST_RESIDENTS} are allowed")
        self._go_on(now)
        self._held[resident] = 0
        self._idle_before[resident] = self._each

    def hold(self, resident: _Who, now: int) -> None:
        """Let a resident hold the group, from the beginning of its switch.

        Raises:
            ValueError: it is no resident, another holds it, or time went back.
        """
        if resident not in self._held:
            raise ValueError(f"{resident} is no resident")
        if self._holder is not None:
            raise ValueError(f"{resident}: {self._holder} holds the group")
        self._go_on(now)
        self._holder = resident

    def release(self, now: int) -> None:
        """Let nobody hold the group."""
        self._go_on(now)
        self._holder = None

    def leave(self, resident: _Who, now: int) -> int:
        """Let a resident pay no longer, and return its whole charge."""
        self._go_on(now)
        if self._holder == resident:
            self._holder = None
        charge = self._held.pop(resident) + self._each - self._idle_before.pop(resident)
        self._left[resident] = self._left.get(resident, 0) + charge
        return charge

    def charge(self, resident: _Who, now: int) -> int:
        """Return what a resident was charged up to now, all its stays together."""
        self._go_on(now)
        before = self._left.get(resident, 0)
        if resident not in self._held:
            return before
        return before + self._held[resident] + self._each - self._idle_before[resident]

    def total(self, now: int) -> int:
        """Return the charges of all residents, those that left among them, without `vacant`."""
        self._go_on(now)
        present = sum(self._held.values()) + sum(self._each - before for before in self._idle_before.values())
        return present + sum(self._left.values())

    def present(self) -> tuple[_Who, ...]:
        """Return who is a resident now."""
        return tuple(self._held)

    def as_dict(self, now: int) -> dict[str, Any]:
        """Return everything as JSON values, for `of`; keys are residents, which must be text."""
        self._go_on(now)
        return {
            "gpus": self._gpus, "now": self._now, "each": self._each, "held": dict(self._held),
            "idleBefore": dict(self._idle_before), "left": dict(self._left), "vacant": self._vacant,
        }  # fmt: skip

    @classmethod
    def of(cls, values: Mapping[str, Any], now: int) -> Charges[_Who]:
        """Return charges that go on from `as_dict`; nobody holds the group, so what passed since is idle.

        Raises:
            ValueError: something is missing, of another type, or later than ``now``.
        """
        try:
            charges = cls(values["gpus"], values["now"])
            charges._each, charges._vacant = values["each"], values["vacant"]
            charges._held, charges._left = dict(values["held"]), dict(values["left"])
            charges._idle_before = dict(values["idleBefore"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"charges: {error} is missing or wrong") from None
        numbers = [charges._gpus, charges._now, charges._each, charges._vacant]
        of_each = [charges._held, charges._left, charges._idle_before]
        if any(type(one) is not int for one in [*numbers, *(n for one in of_each for n in one.values())]):
            raise ValueError("charges: expected whole numbers")
        if set(charges._held) != set(charges._idle_before):
            raise ValueError("charges: residents differ")
        charges._go_on(now)
        return charges

    def vacant(self, now: int) -> int:
        """Return what nobody was charged, because there was no resident."""
        self._go_on(now)
        return self._vacant

    def _go_on(self, now: int) -> None:
        passed = now - self._now
        if passed < 0:
            raise ValueError(f"now: {now}, expected at least {self._now}: time does not go back")
        if not passed:
            return
        self._now = now
        if self._holder is not None:
            self._held[self._holder] += passed * self._gpus * UNITS
        elif self._held:
            self._each += passed * self._gpus * UNITS // len(self._held)
        else:
            self._vacant += passed * self._gpus * UNITS
