"""Slow-downs of residents: recorded turns of all of them, played again on one group.

Every resident repeats its recorded turns, from another place in them in each round, and `turns.choose` says
whose turn is next. A formula over duties does not do: two short jobs beside one whose turn lasts 1.5 of their
cycles wait as long as a duty of .5 would not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from controller.frozen import dataclass
from controller.policy.sharing.profile import Profile, RecordedTurn
from controller.policy.sharing.turns import TurnQueue

ROUNDS = 4
MOST_TURNS = 400  # of one round, all residents together


@dataclass(frozen=True, slots=True)
class Player:
    """One resident's recorded turns, and microseconds of its part of a switch."""

    turns: tuple[RecordedTurn, ...]
    lag: int
    load: int
    offload: int


def player(profile: Profile, state_bytes: int) -> Player:
    """Return a resident of this profile."""
    return Player(profile.turns, profile.lag, profile.load(state_bytes), profile.offload(state_bytes))


@lru_cache(maxsize=4096)  # a pass asks again and again for the same residents
def slowdowns(players: tuple[Player, ...], cap: int = 1) -> tuple[float, ...]:
    """Return by how much longer each resident's steps take than alone: 1.1 is 10 % longer.

    Args:
        players: the residents; one alone is not slowed down.
        cap: turns in a row.
    """
    if len(players) < 2:
        return (1.0,) * len(players)
    shared, alone = [0] * len(players), [0] * len(players)
    for number in range(ROUNDS):
        for i, (took, would) in enumerate(_round(players, cap, number)):
            shared[i] += took
            alone[i] += would
    return tuple(took / would if would else 1.0 for took, would in zip(shared, alone, strict=True))


def _round(players: Sequence[Player], cap: int, number: int) -> list[tuple[int, int]]:
    """Return what the turns of each player took, shared and alone, from its first release on."""
    runs = [_Run(one, number, i, len(players)) for i, one in enumerate(players)]
    queue: TurnQueue[int] = TurnQueue(cap)
    now = 0
    least = max(len(one.turns) for one in players)
    for _ in range(MOST_TURNS):
        for run in sorted((run for run in runs if not run.waits and run.asks <= now), key=_asks):
            run.waits = True
            queue.ask(run.index)
        before = queue.loaded
        who = queue.grant()
        if who is None:
            now = min(run.asks for run in runs)
            continue
        run = runs[who]
        if before is not None and before != who:
            now += players[before].offload + run.player.load
        now += run.held()
        run.released(now)
        if min(one.done for one in runs) > least:
            break
    return [(run.last - run.first, run.last_alone - run.first_alone) for run in runs]


def _asks(run: _Run) -> tuple[int, int]:
    return run.asks, run.index


class _Run:
    """One player in one round: when it asks next, shared and alone."""

    __slots__ = (
        "alone", "asks", "done", "ends", "ends_alone", "first", "first_alone", "index", "last", "last_alone",
        "place", "player", "waits",
    )  # fmt: skip

    def __init__(self, player: Player, number: int, index: int, of: int) -> None:
        self.player, self.index = player, index
        count = len(player.turns)
        self.place = (number * count // ROUNDS + index * count // of) % count
        self.waits = False
        self.done = self.first = self.last = self.first_alone = self.last_alone = 0
        # They begin apart: in round n by n quarters of a turn's way.
        self.asks = self.alone = self._away() * (1 + number * index) // ROUNDS
        self.ends = self.ends_alone = self.asks + self._away(1)

    def _away(self, later: int = 0) -> int:
        turns = self.player.turns
        return turns[(self.place + later) % len(turns)].away

    def held(self) -> int:
        return self.player.turns[self.place].held

    def released(self, now: int) -> None:
        """Go on after a release at ``now``: the next turn, and when it is asked for."""
        alone = self.alone + self.held()
        if not self.done:
            self.first, self.first_alone = now, alone
        self.last, self.last_alone = now, alone
        self.done += 1
        self.waits = False
        self.place = (self.place + 1) % len(self.player.turns)
        if self.player.lag:
            # The next rollouts have been going on beside the turn; those after them begin with the request.
            self.asks, self.alone = max(self.ends, now), max(self.ends_alone, alone)
            away = self._away(1)
            self.ends, self.ends_alone = self.asks + away, self.alone + away
        else:
            away = self._away()
            self.asks, self.alone = now + away, alone + away
