"""Profiles of kinds of jobs: the turns of 5 to 20 steps that one of them did alone, and switch times.

A *turn* is what a job does on a group between two releases: it is away (rollouts, rewards, tools) and then
holds the group. Kinds, not jobs, have profiles: the pool keeps them, so the second job of a kind is placed
at once. A profile is enough when 5 steps were measured and the means of cycle and held time have a standard
error of at most 5 %, or when 20 were; the newest 20 are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from controller.frozen import dataclass
from controller.policy.params import ParamError

LEAST_STEPS, MOST_STEPS = 5, 20
ERROR = 0.05  # relative standard error of a mean that is good enough
MOST_TURNS = 8  # of one step
LONGEST = 7 * 86_400 * 1_000_000  # microseconds of one phase
BANDWIDTH = 25_000_000_000  # bytes/s between device and host where nobody measured it: our guess


class RecordedTurn(NamedTuple):
    """One turn of a job alone, microseconds.

    away: since its last release; with a step of lag, how long its rollouts take. held: of the group.
    """

    away: int
    held: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of one kind.

    Args:
        kind: by which jobs are alike: family, model, batch, algorithm.
        turns: of the newest steps, in their order.
        per_step: turns of one step.
        lag: steps by which training may be behind rollouts, 0 or 1.
        loads, offloads: microseconds of the newest switches, its own part of each.

    ``steps``, ``cycle``, ``duty`` and ``known`` follow from these; 0 and False if nothing was measured.

    Raises:
        ParamError: a number is impossible.
    """

    kind: str
    turns: tuple[RecordedTurn, ...] = ()
    per_step: int = 1
    lag: int = 0
    loads: tuple[int, ...] = ()
    offloads: tuple[int, ...] = ()
    # Of the turns, once for all: plans ask for them again and again.
    steps: int = field(init=False, compare=False, repr=False, default=0)
    cycle: float = field(init=False, compare=False, repr=False, default=0.0)  # microseconds of a step alone
    duty: float = field(init=False, compare=False, repr=False, default=0.0)  # share of it that is held
    known: bool = field(init=False, compare=False, repr=False, default=False)  # enough to be placed by

    def __post_init__(self) -> None:
        if not self.kind or len(self.kind) > 253:
            raise ParamError("profile.kind", self.kind, "1 to 253 characters")
        if not 1 <= self.per_step <= MOST_TURNS:
            raise ParamError("profile.perStep", self.per_step, f"1 to {MOST_TURNS} turns")
        if self.lag not in (0, 1):
            raise ParamError("profile.lag", self.lag, "0 or 1 step")
        if len(self.turns) % self.per_step or len(self.turns) > MOST_STEPS * self.per_step:
            raise ParamError("profile.turns", len(self.turns), f"whole steps, at most {MOST_STEPS}")
        for away, held in self.turns:
            if not 0 <= away <= LONGEST or not 1 <= held <= LONGEST:
                raise ParamError("profile.turns", (away, held), f"0 to {LONGEST} away, 1 to {LONGEST} held")
        for name in ("loads", "offloads"):
            times = getattr(self, name)
            if len(times) > MOST_STEPS or any(not 0 <= time <= LONGEST for time in times):
                raise ParamError(f"profile.{name}", times, f"at most {MOST_STEPS} times of 0 to {LONGEST}")

        steps = len(self.turns) // self.per_step
        times = self._step_times()
        cycle = sum(times) / steps if steps else 0.0
        held = sum(turn.held for turn in self.turns)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "cycle", cycle)
        object.__setattr__(self, "duty", held / (steps * cycle) if steps else 0.0)
        object.__setattr__(self, "known", steps >= MOST_STEPS or self._steady(times))

    def _steady(self, times: Sequence[int]) -> bool:
        """Return whether so few steps tell the means already."""
        if len(times) < LEAST_STEPS:
            return False
        held = [sum(turn.held for turn in step) for step in self._by_step()]
        return _error(times) <= ERROR and _error(held) <= ERROR

    def load(self, state_bytes: int) -> int:
        """Return microseconds until its state is on the device: the median, or by bytes and `BANDWIDTH`."""
        return _median(self.loads, state_bytes)

    def offload(self, state_bytes: int) -> int:
        """Return microseconds until its state has left the device: the median, or by bytes."""
        return _median(self.offloads, state_bytes)

    def with_step(
        self, turns: Sequence[RecordedTurn], load: int | None = None, offload: int | None = None
    ) -> Profile:
        """Return the profile after one more step that was done alone; ``load``, ``offload``: if it switched.

        Raises:
            ParamError: another number of turns than a step has.
        """
        if len(turns) != self.per_step:
            raise ParamError("profile.step", len(turns), f"{self.per_step} turns")
        return replace(
            self,
            turns=(*self.turns, *turns)[-MOST_STEPS * self.per_step :],
            loads=self.loads if load is None else (*self.loads, load)[-MOST_STEPS:],
            offloads=self.offloads if offload is None else (*self.offloads, offload)[-MOST_STEPS:],
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values, for the pool's status."""
        return {
            "kind": self.kind,
            "turns": [list(turn) for turn in self.turns],
            "perStep": self.per_step,
            "lag": self.lag,
            "loads": list(self.loads),
            "offloads": list(self.offloads),
        }

    def _by_step(self) -> list[tuple[RecordedTurn, ...]]:
        return [self.turns[i : i + self.per_step] for i in range(0, len(self.turns), self.per_step)]

    def _step_times(self) -> list[int]:
        if self.lag == 0:
            return [sum(away + held for away, held in step) for step in self._by_step()]
        # With a step of lag the next rollouts go on beside the turn.
        return [sum(max(away, held) for away, held in step) for step in self._by_step()]


def profile_from(values: Mapping[str, Any]) -> Profile:
    """Return the profile of `Profile.as_dict`.

    Raises:
        ParamError: something is missing, of another type, or impossible; it names the field.
    """
    names = {"kind", "turns", "perStep", "lag", "loads", "offloads"}
    if not isinstance(values, Mapping) or set(values) != names:
        found = sorted(values) if isinstance(values, Mapping) else values
        raise ParamError("profile", found, f"the fields {', '.join(sorted(names))}")
    if not isinstance(values["kind"], str):
        raise ParamError("profile.kind", values["kind"], "text")
    turns = values["turns"]
    if not isinstance(turns, list) or not all(isinstance(one, list) and len(one) == 2 for one in turns):
        raise ParamError("profile.turns", turns, "pairs of microseconds, [away, held]")
    (per_step,), (lag,) = _whole("perStep", [values["perStep"]]), _whole("lag", [values["lag"]])
    return Profile(
        values["kind"],
        tuple(RecordedTurn(*_whole("turns", one)) for one in turns),
        per_step,
        lag,
        loads=tuple(_whole("loads", values["loads"])),
        offloads=tuple(_whole("offloads", values["offloads"])),
    )


def _whole(name: str, values: Any) -> list[int]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise ParamError(f"profile.{name}", values, "whole numbers")
    return values


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean, relative to it."""
    count = len(values)
    mean = sum(values) / count
    if count < 2 or not mean > 0.0:
        return math.inf
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count) / mean


def _median(times: Sequence[int], state_bytes: int) -> int:
    if times:
        return sorted(times)[len(times) // 2]
    return state_bytes * 1_000_000 // BANDWIDTH
