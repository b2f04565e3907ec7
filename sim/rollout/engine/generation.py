"""One step's generation on the kernel: actors come, work, give their last responses away, and go.

A real client hears of ended responses with the next frame of tokens of their actor (`frames`): until then
their slots are empty, and the last response is not there. Engine and actors go on from what they have.

Everything that was decided before (which actors, when they are ready, how responses reach them, whether an
actor leaves when it has nothing more to do) is an argument. Times are s of virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sim.kernel import Kernel
from sim.rollout.engine.actor import Actor
from sim.rollout.engine.dispatch import Dispatch
from sim.rollout.engine.work import ActorReport, GenerationReport, Prompt, Response
from sim.rollout.laws import Law

TRANSFER_SECONDS = 0.001  # until another actor has the cache of a prompt that was prefilled elsewhere


class Generation:
    """A step's responses, from its begin to the end of the last one.

    Args:
        kernel: of virtual time.
        law: of the actors.
        slots: of each.
        dispatch: deals the responses.
        responses: how many there are.
        release: whether each actor leaves as soon as it has nothing more to do; else with the last
            response. What
            joins later leaves.
        shared_prefill: whether the copies of a prompt on one actor share its prefill.
        done: called with the report when the last response has ended.
        left: called with each actor when it is gone.
        frames: s between an actor's frames of tokens to the client, from its first token on; 0: the client
            hears of everything at once.
        way: s from the client's decision to the engine's queue; only with frames.
    """

    def __init__(
        self,
        kernel: Kernel,
        law: Law,
        slots: int,
        dispatch: Dispatch,
        responses: int,
        *,
        release: Sequence[bool],
        shared_prefill: bool = True,
        done: Callable[[GenerationReport], None] | None = None,
        left: Callable[[Actor], None] | None = None,
        frames: float = 0.0,
        way: float = 0.0,
    ) -> None:
        self.actors: list[Actor] = []
        self.report: GenerationReport | None = None
        self._kernel, self._law, self._slots, self._dispatch = kernel, law, slots, dispatch
        self._release, self._shared = release, shared_prefill
        self._done, self._left_actor = done, left
        self._frames, self._way = frames, way
        self._missing = responses
        self._began = kernel.now
        self._moved = 0
        self._cache_ready: dict[int, float] = {}
        self._prefill_busy = 0.0

    @property
    def missing(self) -> int:
        """Responses that have not ended."""
        return self._missing

    @property
    def queued(self) -> float:
        """Tokens that are expected of what no actor has yet."""
        return self._dispatch.queued

    def prefill_elsewhere(self, prompts: Sequence[Prompt], actors: int) -> None:
        """Let an actor of its own prefill each prompt once, in the order in which actors will need them."""
        rounds = range(-(-len(prompts) // actors))
        order = [prompts[i] for start in rounds for i in _column(start, len(prompts), actors)]
        at = self._kernel.now
        for prompt in order:
            at += prompt.tokens * self._law.prefill
            self._cache_ready[prompt.number] = at + TRANSFER_SECONDS
        self._prefill_busy = at - self._kernel.now

    def begin(self, actors: Sequence[tuple[float, float]], there: Callable[[], None] | None = None) -> None:
        """Deal to actors, of which each was bound and is ready at these times.

        ``there``: called once they are all in ``actors``, before any of them does anything."""
        for bound, ready in actors:
            self._new(bound, ready)
        if there is not None:
            there()
        self._dispatch.deal(self.actors)
        for actor in list(self.actors):
            if actor.report.ready <= self._kernel.now:
                self._between(actor)

    def add(self, bound: float, ready: float) -> Actor:
        """Let one more actor join."""
        return self._new(bound, ready)

    def recall(self, actor: Actor) -> None:
        """Let an actor give its responses back after the iteration that runs, and leave."""
        actor.recalled = True
        if actor.running:
            actor.poke()
        elif not actor.released:
            self._between(actor)

    def _new(self, bound: float, ready: float) -> Actor:
        actor = Actor(
            len(self.actors), self._kernel, self._law, self._slots,
            bound=bound, ready=ready, boundary=self._boundary, shared_prefill=self._shared,
        )  # fmt: skip
        self.actors.append(actor)
        if ready > self._kernel.now:
            self._kernel.at(ready, actor.number, self._wake, actor)
        return actor

    def _wake(self, actor: Actor) -> bool:
        if not actor.released and not actor.running:
            self._between(actor)
        return True

    def _boundary(self, actor: Actor) -> None:
        if self._frames > 0.0:
            self._framed(actor)
            return
        self._count(actor.ended)
        actor.ended.clear()
        self._between(actor)
        self._cut()

    def _count(self, ended: Sequence[Response]) -> None:
        for response in ended:
            self._missing -= 1
            if 0 <= response.home < len(self.actors):
                self.actors[response.home].dealt_done += 1

    def _framed(self, actor: Actor) -> None:
        """Between two stretches, where the client hears of it later: go on with what the actor has."""
        frame = self._next_frame(actor)
        if actor.ended:
            actor.unreported += len(actor.ended)
            self._kernel.at(frame, actor.number, self._frame_arrived, (actor, list(actor.ended)))
            actor.ended.clear()
        if actor.recalled:
            self._between(actor)
            return
        if actor.cut:
            actor.cut = False
            if self._dispatch.to_cut(self.actors) is actor:
                self._kernel.at(frame, actor.number, self._come_back, (actor, actor.take_all()))
        self._go_on(actor)
        if not actor.running:
            actor.first_token = None  # the next one is sent at once

    def _next_frame(self, actor: Actor) -> float:
        now, first = self._kernel.now, actor.first_token
        if first is None or now <= first:
            return now
        return max(now, first + math.ceil((now - first) / self._frames - 1e-9) * self._frames)

    def _go_on(self, actor: Actor) -> None:
        """Have an actor work on its own queue, from the end of the iteration that runs."""
        if actor.running:
            if actor.waiting and len(actor.live) < actor.slots:
                actor.poke()
            return
        actor.admit()
        if actor.live:
            actor.go()

    def _frame_arrived(self, given: object) -> bool:
        """Take in a frame that has ends: what they leave room for is given now."""
        assert isinstance(given, tuple)
        actor, ended = given
        actor.unreported -= len(ended)
        self._count(ended)
        if self._missing == 0:
            self._end()
        elif not actor.released and not actor.recalled:
            if actor.free > 0:
                self._send(actor)
            self._go_on(actor)
            if not (actor.running or actor.unreported or actor.in_transit) and self._releases(actor):
                self._leave(actor)
        self._cut()
        return True

    def _send(self, actor: Actor) -> None:
        """Give more to an actor with free slots: it has it when it has come there."""
        before = len(actor.waiting)
        self._dispatch.refill(actor)
        if self._way <= 0.0:
            return
        given = [actor.waiting.pop() for _ in range(len(actor.waiting) - before)][::-1]
        if given:
            actor.in_transit += len(given)
            self._kernel.at(self._kernel.now + self._way, actor.number, self._arrived, (actor, given))

    def _arrived(self, sent: object) -> bool:
        assert isinstance(sent, tuple)
        actor, given = sent
        actor.in_transit -= len(given)
        if actor.released:  # lost meanwhile
            self._dispatch.give_back(given)
            self._offer()
        else:
            actor.waiting.extend(given)
            self._go_on(actor)
        return True

    def _come_back(self, given: object) -> bool:
        assert isinstance(given, tuple)
        self._give(*given)
        return True

    def _between(self, actor: Actor) -> None:
        """Between two stretches: give away, take more, go on, or leave."""
        if actor.recalled:
            self._dispatch.give_back(actor.take_all())
            self._leave(actor)
            self._offer()
            return
        if actor.cut:
            actor.cut = False
            if self._dispatch.to_cut(self.actors) is actor:
                self._move(actor)
                return
        if actor.free > 0:
            self._dispatch.refill(actor)
        wait = self._next_cache(actor)
        if wait is None:
            actor.admit(prefilled=bool(self._cache_ready))
        if actor.live:
            actor.go()
        elif wait is not None:
            self._kernel.at(wait, actor.number, self._wake, actor)
        elif self._missing == 0:
            self._end()
        elif self._releases(actor) and not actor.waiting:
            self._leave(actor)

    def _next_cache(self, actor: Actor) -> float | None:
        """Return when the cache of its next prompt comes, if it is not there."""
        if not self._cache_ready or not actor.waiting:
            return None
        at = self._cache_ready[actor.waiting[0].prompt.number]
        return at if at > self._kernel.now else None

    def _cut(self) -> None:
        actor = self._dispatch.to_cut(self.actors)
        if actor is None:
            return
        if actor.running:
            actor.cut = True
            actor.poke()
        else:
            self._move(actor)

    def _move(self, actor: Actor) -> None:
        self._give(actor, actor.take_all())

    def _give(self, actor: Actor, held: Sequence[Response]) -> None:
        """Give what an actor held to free slots of the others that run, the most free first."""
        for response in held:
            self._note_move(response)
            target = max(
                (other for other in self.actors if other is not actor and other.live),
                key=lambda other: (other.free, -other.number),
                default=None,
            )
            if target is None:  # they all ended while it came back
                self._dispatch.give_back([response])
                self._offer()
                continue
            target.waiting.append(response)
            target.poke()
        if self._releases(actor):
            self._leave(actor)

    def _releases(self, actor: Actor) -> bool:
        return actor.number >= len(self._release) or self._release[actor.number]

    def _note_move(self, response: Response) -> None:
        response.moves += 1
        self._moved += 1

    def _offer(self) -> None:
        """Let actors with free slots take what was given back."""
        for actor in self.actors:
            if not actor.released and actor.free > 0:
                if self._frames > 0.0 and actor.report.ready <= self._kernel.now:
                    self._send(actor)
                    self._go_on(actor)
                elif actor.running:
                    actor.poke()
                elif actor.report.ready <= self._kernel.now:
                    self._between(actor)

    def _leave(self, actor: Actor) -> None:
        if actor.released:
            return
        actor.released = True
        actor.report.ended = self._kernel.now
        if self._left_actor is not None:
            self._left_actor(actor)

    def _end(self) -> None:
        if self.report is not None:
            return
        for actor in self.actors:
            self._leave(actor)
        reports: list[ActorReport] = [actor.report for actor in self.actors]
        self.report = GenerationReport(
            self._began,
            self._kernel.now - self._began,
            reports,
            self._moved,
            self._prefill_busy,
        )
        if self._done is not None:
            self._done(self.report)


def _column(start: int, prompts: int, actors: int) -> list[int]:
    """Return the ``start``-th prompt of each of the actors' groups."""
    bounds = [(i * prompts // actors, (i + 1) * prompts // actors) for i in range(actors)]
    return [begin + start for begin, end in bounds if begin + start < end]
