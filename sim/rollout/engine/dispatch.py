"""Dispatch of responses to actors: one queue, the paper's groups by rank, or equal counts in given order.

Each class deals what a dispatch decides; which of them is used, with how many actors, comes from a plan.
`Groups` may cut: an actor whose work is mostly done gives its last responses to free slots of other running
actors, either each by its own share (`local`, RLHFless) or by the share of all (RLHFuse, over all actors at
once).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from sim.rollout.engine.actor import Actor
from sim.rollout.engine.work import Prompt, Response


class Dispatch(Protocol):
    """Deals prompts to actors."""

    def deal(self, actors: Sequence[Actor]) -> None:
        """Give work to all actors of the plan, at the begin; some may not be ready yet."""

    def refill(self, actor: Actor) -> None:
        """Give more to an actor with free slots, if there is more."""

    def give_back(self, responses: Sequence[Response]) -> None:
        """Take what an actor held that is recalled."""

    @property
    def queued(self) -> float:
        """Tokens that are expected of what no actor has yet."""

    def to_cut(self, actors: Sequence[Actor]) -> Actor | None:
        """Return the running actor that is to give its responses to the others now, if any."""


def _responses(prompt: Prompt) -> list[Response]:
    return [Response(prompt, length) for length in prompt.lengths]


class OneQueue:
    """The longest prompt first; a free actor takes one with all its copies, so that it is prefilled once."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._queue: deque[list[Response]] = deque(
            _responses(prompt) for prompt in sorted(prompts, key=lambda p: (-p.predicted, p.number))
        )

    def deal(self, actors: Sequence[Actor]) -> None:
        """One actor after the other: the longest share an actor, so that the others can leave early."""
        for actor in actors:
            if actor.report.ready <= actor.now:
                self.refill(actor)

    def refill(self, actor: Actor) -> None:
        while self._queue and actor.free > 0:
            self._take(actor)

    def _take(self, actor: Actor) -> None:
        if self._queue:
            actor.waiting.extend(self._queue.popleft())

    def give_back(self, responses: Sequence[Response]) -> None:
        for response in responses:
            response.moves += 1
        # Those that have the most are the nearest to their end; longest first still, each by itself.
        for response in sorted(responses, key=lambda r: r.prompt.predicted - r.generated):
            self._queue.appendleft([response])

    @property
    def queued(self) -> float:
        return sum(max(0.0, r.prompt.predicted - r.generated) for one in self._queue for r in one)

    def to_cut(self, actors: Sequence[Actor]) -> Actor | None:
        return None


class Groups:
    """Consecutive groups of equal counts, one for each actor, longest first within each if ranked.

    Args:
        prompts: in the order in which the trainer has them.
        ranked: whether they are sorted by prediction first, so that the first group has the longest.
        cut: share of the responses that must be done before the others are moved; None: never.
        local: whether each actor's own share counts, not that of all.
    """

    def __init__(
        self, prompts: Sequence[Prompt], *, ranked: bool, cut: float | None = None, local: bool = True
    ) -> None:
        self._prompts = sorted(prompts, key=lambda p: (-p.predicted, p.number)) if ranked else list(prompts)
        self._cut, self._local = cut, local
        self._all = sum(len(prompt.lengths) for prompt in prompts)
        self._orphans: deque[Response] = deque()

    def deal(self, actors: Sequence[Actor]) -> None:
        count = len(actors)
        for i, actor in enumerate(actors):
            begin, end = i * len(self._prompts) // count, (i + 1) * len(self._prompts) // count
            for prompt in self._prompts[begin:end]:
                dealt = _responses(prompt)
                for response in dealt:
                    response.home = actor.number
                actor.waiting.extend(dealt)
                actor.dealt += len(dealt)

    def refill(self, actor: Actor) -> None:
        while self._orphans and actor.free > 0:
            actor.waiting.append(self._orphans.popleft())

    def give_back(self, responses: Sequence[Response]) -> None:
        for response in responses:
            response.moves += 1
        self._orphans.extend(responses)

    @property
    def queued(self) -> float:
        return sum(max(0.0, r.prompt.predicted - r.generated) for r in self._orphans)

    def to_cut(self, actors: Sequence[Actor]) -> Actor | None:
        if self._cut is None:
            return None
        running = [actor for actor in actors if actor.live and not actor.cut]
        if len(running) < 2:
            return None
        free = sum(actor.free for actor in running)
        if self._local:
            may = [actor for actor in running if actor.dealt_done >= self._cut * actor.dealt]
        else:
            done = self._all - sum(actor.left for actor in actors)
            may = running if done >= self._cut * self._all else []
        fits = [actor for actor in may if actor.left <= free - actor.free]
        return min(fits, key=lambda actor: (actor.left, actor.number), default=None)
