"""Measures by turns that a group has reported: the profile of a kind, and how slow a resident is.

A reported turn is (away, held, step, waited), microseconds: since its last release until it asked, from its
grant to its release, the step that it was for (-1: not told), from asking to the grant, the switch included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from statistics import median_high
from typing import NamedTuple

from controller.frozen import dataclass
from controller.policy.sharing.profile import (
    ERROR,
    LEAST_STEPS,
    MOST_STEPS,
    MOST_TURNS,
    Profile,
    RecordedTurn,
)
from controller.policy.sharing.watch import Slowness

NOTHING = Slowness()
# Means that differ by so much are no error of measuring any more: four standard errors of a profile's.
CHANGED = 4.0 * ERROR
LOOK_AGAIN = 600.0  # s between measurements of a kind that is known


class ReportedTurn(NamedTuple):
    """See the module."""

    away: int
    held: int
    step: int
    waited: int


def measured(
    kind: str, turns: Iterable[ReportedTurn], loads: Sequence[int] = (), offloads: Sequence[int] = ()
) -> Profile | None:
    """Return a kind's profile by the turns of one of its jobs; None: they are not enough yet.

    The first step's time away is not known, and the newest step may go on: neither counts. Steps with
    another number of turns than most are left out. Nor does the first load: it starts the worker. ``loads``:
    the newest of the residency, at most `MOST_STEPS`.
    """
    steps: list[tuple[int, list[RecordedTurn]]] = []
    for turn in turns:
        if turn.step < 0 or not steps or steps[-1][0] != turn.step:
            steps.append((turn.step, []))
        steps[-1][1].append(RecordedTurn(turn.away, turn.held))
    whole = [found for _, found in steps[1:-1]]
    if len(whole) < LEAST_STEPS:
        return None
    per_step = Counter(map(len, whole)).most_common(1)[0][0]
    if per_step > MOST_TURNS:
        return None
    alike = [found for found in whole if len(found) == per_step][-MOST_STEPS:]
    profile = Profile(
        kind,
        tuple(turn for step in alike for turn in step),
        per_step,
        loads=tuple(loads)[-MOST_STEPS:] if len(loads) >= MOST_STEPS else tuple(loads)[1:],
        offloads=tuple(offloads)[-MOST_STEPS:],
    )
    return profile if profile.known else None


def outdated(known: Profile, newer: Profile) -> bool:
    """Return whether a kind has changed since its profile was measured: its steps have another number of
    turns, cycle or held time differ by `CHANGED`, or a switch by `ERROR` of a cycle.

    Times away and held are a job's own, whoever else is in the group. Nobody who is alone switches: how
    long that takes is only known once two have shared.
    """
    if known.per_step != newer.per_step:
        return True
    held, now_held = (one.duty * one.cycle for one in (known, newer))
    if abs(newer.cycle - known.cycle) > CHANGED * known.cycle or abs(now_held - held) > CHANGED * held:
        return True
    return any(
        bool(new) and abs(median_high(new) - (median_high(old) if old else 0)) > ERROR * known.cycle
        for old, new in ((known.loads, newer.loads), (known.offloads, newer.offloads))
    )


def due(known: bool, alone: bool, looked: float | None, now: float) -> bool:
    """Return whether a resident's turns are to be looked at for the profile of its kind.

    Args:
        known: the kind has a profile: it is looked at again every `LOOK_AGAIN` s, shared or alone. One that
            has none is measured while the resident is alone.
        alone: nobody else is in the group.
        looked: when turns of this kind were enough the last time (s); None: never, by what is remembered.
        now: time (s).
    """
    if not known:
        return alone
    return looked is None or now >= looked + LOOK_AGAIN


class Look(NamedTuple):
    """Result of a look at a resident's turns.

    Attributes:
        enough: they are enough for a profile.
        profile: of the kind from now on; None: what is known of it stays.
    """

    enough: bool
    profile: Profile | None = None


def look(
    kind: str,
    known: Profile | None,
    turns: Iterable[ReportedTurn],
    loads: Sequence[int] = (),
    offloads: Sequence[int] = (),
) -> Look:
    """Return what the turns of one of its jobs say of a kind.

    Args:
        kind: its name.
        known: its profile so far; None: there is none, or none that can be read.
        turns: newest of one residency, in their order.
        loads: its newest, at most `MOST_STEPS`, microseconds.
        offloads: the same.
    """
    found = measured(kind, turns, loads, offloads)
    if found is None:
        return Look(False)
    return Look(True, found if known is None or outdated(known, found) else None)


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one resident since the newest one came; the step that was under way then does not count.

    Attributes:
        slowness: of the steps that are done.
        step: of the newest turn; None: there was none.
        whole: that step began after the newest resident had come.
        took, alone: microseconds of that step so far.
    """

    slowness: Slowness = NOTHING
    step: int | None = None
    whole: bool = False
    took: int = 0
    alone: int = 0

    def after(self, turn: ReportedTurn, max_slowdown_percent: int) -> Pace:
        """Return it after one more turn; a step is done when a turn of another one comes."""
        pace = self
        if turn.step < 0 or turn.step != pace.step:
            slowness = pace.slowness
            if pace.whole and pace.took:
                slowness = slowness.step(pace.took, pace.alone, max_slowdown_percent)
            pace = Pace(slowness, turn.step, pace.step is not None)
        return replace(
            pace,
            took=pace.took + turn.away + turn.waited + turn.held,
            alone=pace.alone + turn.away + turn.held,
        )


class TurnsOf(NamedTuple):
    """One resident by a report: turns that it released so far, the newest of them, and by how much (percent)
    its steps may take longer."""

    name: str
    released: int
    newest: Sequence[tuple[int, int, int, int]]  # each as a `ReportedTurn`
    max_slowdown_percent: int


@dataclass(frozen=True, slots=True)
class Paces:
    """Paces of a group's residents, as its reports come.

    Attributes:
        newest: the resident that came last; no step counts that began before it came.
        of: by resident.
        counted: turns of each that were looked at.
    """

    newest: str = ""
    of: Mapping[str, Pace] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)

    def after(self, residents: Sequence[TurnsOf]) -> Paces:
        """Return them after one more report. ``residents``: in the order in which they came."""
        newest = residents[-1].name if residents else ""
        paces = dict(self.of) if newest == self.newest else {}
        counted = dict(self.counted)
        for one in residents:
            pace = paces.get(one.name, Pace())
            new = min(one.released - counted.get(one.name, one.released), len(one.newest))
            for turn in one.newest[-new:] if new > 0 else ():
                pace = pace.after(ReportedTurn(*turn), one.max_slowdown_percent)
            paces[one.name], counted[one.name] = pace, one.released
        return Paces(newest, paces, counted)
