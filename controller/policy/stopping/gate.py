"""Gate: an eval that jumps is held until the next ones, and counts only if they agree with it.

One eval of 0 because the scorer was down, or one far too high, moves everything that rules compare: best
stretch, peak, noise. No rule can tell it from a collapse at that moment; the evals after it can. So an eval x
that is further from the last one that counted, l, than

    sigmas reported * the larger of their standard errors      above l, where one is known (`noise.error`)
    sigmas below * the same                                    below l
    sigmas estimated * a robust estimate of the noise          where none is (`noise.robust`)

waits. Once ``evals`` in a row after it have gone at least the share ``borne_out`` of the way from l to x, it
counts; at the first one that has not, it is dropped, and the rule never sees it. Either way those after it
are judged in their turn, from x or from l: one far above a jump bears it out, and is none the less far from
it; one half way to an outlier may lie near enough to count. What counts is shown to the rule in its order.
The limit is for the difference of two evals, whose standard deviation is sqrt(2) times that of one: 5 are
3.5 of these. Below it is less, and where that standard deviation is known of the prompts that both scored it
counts if it is smaller (`EvalPoint.prompt_pairs`): a rule that sees more would be stopped by a dip that the
gate lets pass.

An eval that is far less precise than all that count (``imprecise``, `precision`) is dropped at once: it says
next to nothing, and its standard error would count for all others. Of the first two evals the third tells
which is of the run's usual precision.

Two evals in a row that are bad are a matter of how many there are, and so is what a wait costs: a tenth of
a run of ten. So one eval is enough where the run will have no more than ``short_run``, by the share of it
that is done (`spending.Pace`), of totals that change the largest; and at the last eval of any, after which
nothing could bear it out.

The first eval has nothing before it and waits for the second. Where that one is far below, the third decides
which of the two counts: it bears the first out, or the first is dropped. Where it is far above, the first
counts, and the second has to be borne out.
A standard error of exactly 0 is none: no eval of a few prompts is without noise.

Before there is a scale (no standard error, fewer than `noise.ROBUST_LEAST` evals that count, no usual noise
of the fleet) every eval counts for the rule. The highest of these is judged again once there is one: that of
the others, for an outlier among so few would hide in its own. Until then it is `doubtful`, and no best to
rely on alone; then it passes, or is `refuted`: it can be no best any more, though the rule has seen it.

Where the trainer can be asked, the evals that are to bear one out are asked for at once (`job.fresh_evals`):
a wait then costs minutes, and not a tenth of a short run. One that lies above is asked about too: if the
score collapses at the next eval, it would be dropped, and with it the best of the run.

While an eval waits the rule's last verdict stands, but a STOP is not said over one that lies higher than the
last that counted. At most ``most`` evals in a row make others drop, or are imprecise: what comes more often
is the run's noise.

A gate stands before the rule and all its other modifiers, wherever it is listed (`make_rule`): they see the
evals that count, in their order, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping import noise, precision, spending, windows
from controller.policy.stopping.base import State, StopRule
from controller.policy.stopping.precision import Precision
from controller.policy.types import EvalInContext, EvalPoint, Grade, Paired, Peers, PromptPair, Verb, Verdict

WAITS = "AwaitsNextEval"  # reason of the verdict on an eval that waits


@dataclass(frozen=True, slots=True)
class GateParams:
    sigmas_reported: float = param(
        5.0,
        unit="standard errors",
        doc="distance above the last eval that counts, beyond which an eval waits for the next",
        gt=0.0,
        le=1000.0,
    )
    sigmas_below: float = param(
        4.25,
        unit="standard errors",
        doc="the same for an eval below the last one, of both on the same prompts where their difference is "
        "known: less, for it is such a one that stops a run",
        gt=0.0,
        le=1000.0,
    )
    sigmas_estimated: float = param(
        8.0,
        unit="standard deviations",
        doc="the same, of the noise as the run shows it, where no standard error is reported",
        gt=0.0,
        le=1000.0,
    )
    borne_out: float = param(
        0.5,
        unit="share of the jump",
        doc="how far the next eval must have gone the same way for the one that waits to count",
        gt=0.0,
        le=1.0,
    )
    evals: int = param(
        2, unit="evals", doc="that must bear out the one that waits, in a row after it", ge=1, le=3
    )
    short_run: int = param(
        20,
        unit="evals",
        doc="of a run that will have no more, by its progress, one eval bears another out; 0: never",
        ge=0,
        le=200,
    )
    most: int = param(
        3,
        unit="evals",
        doc="that made those before them drop, in a row, before one counts wherever it lies",
        ge=1,
        le=8,
    )
    imprecise: float = param(
        precision.TIMES,
        unit="times",
        doc="the largest standard error of those that count, beyond which an eval of fewer samples is "
        "dropped as too imprecise",
        gt=1.0,
        le=1_000_000.0,
    )
    count_dropped: bool = param(
        False,
        unit="yes or no",
        doc="whether an eval that is dropped counts for the noise that a rule estimates",
    )


class Memory(NamedTuple):
    """The gate's own state, beside that of the rule it wraps.

    Attributes:
        last: score, standard error (None: none reported) and step of the last eval that counted; (): none
            has.
        seen: evals so far.
        pace: `spending.Pace`.
        held: evals that wait, oldest first (`_pack`).
        first: about the first score that `noise.robust` looks at (`near`).
        recent: the newest scores less ``first``, packed (`windows.pack`).
        drops: times in a row that an eval made others drop.
        dropped: steps of those that the newest eval made drop.
        lost: score and standard error of those dropped since the rule was last shown one, for its noise.
        young: step and score of what counted since there was no scale, oldest first, until the highest of it
            is judged again; step -1: with a scale.
        refuted: steps of those of them that the newest eval showed to be no best.
        coarsest: `precision.Precision` of the least precise eval that counted; (): of none it is known.
    """

    last: tuple[Any, ...] = ()
    seen: int = 0
    pace: tuple[int, ...] = ()
    held: tuple[tuple[Any, ...], ...] = ()
    first: float = 0.0
    recent: str = ""
    drops: int = 0
    dropped: tuple[int, ...] = ()
    lost: tuple[tuple[float, float | None], ...] = ()
    young: tuple[tuple[int, float], ...] = ()
    refuted: tuple[int, ...] = ()
    coarsest: tuple[Any, ...] = ()

    def stored(self) -> tuple[Any, ...]:
        """Return the fields without those at the end that are empty or 0, as all are at the beginning."""
        fields = [*self]
        while fields and not fields[-1]:
            fields.pop()
        return tuple(fields)


class Gate:
    """Show the wrapped rule the evals that count.

    State: (the fields of `Memory` (`Memory.stored`), the wrapped rule's last verdict or (), its state).
    """

    name: ClassVar[str] = "gate"
    version: ClassVar[int] = 6
    uses: ClassVar[tuple[str, ...]] = ("progress",)
    inner_at: ClassVar[int] = 2  # of the state

    def __init__(self, params: GateParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule
        innermost = rule
        while hasattr(innermost, "_rule"):
            innermost = innermost._rule
        # Nothing is known against a run of which nothing was shown yet.
        self._no_evidence = 1.0 if getattr(innermost, "yields_e_value", False) else None

    def initial(self) -> State:
        return (Memory().stored(), (), self._rule.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        memory, packed, inner = Memory(*state[0]), state[1], state[2]
        memory, counts = self.decide(memory, point)
        verdict = None if counts else _read(packed)
        for one in counts:
            inner, verdict = self._rule.observe(inner, one)
        shown = verdict or Verdict(Verb.CONTINUE, WAITS, 0.0, 0.0, self._no_evidence)
        after = (memory.stored(), _stored_verdict(verdict), inner)
        if memory.held and shown.verb is not Verb.CONFIRM:
            higher = not memory.last or memory.held[0][1] > memory.last[0]
            if shown.verb is Verb.CONTINUE or higher:
                shown = shown._replace(verb=Verb.CONTINUE, reason=WAITS)
        return after, shown

    def decide(self, memory: Memory, point: EvalPoint) -> tuple[Memory, list[EvalPoint]]:
        """Return the memory after an eval, and the evals that count from now on, oldest first."""
        seen = memory.seen + 1
        pace = spending.Pace(*memory.pace).after(seen, point.step, point.progress)
        before = memory._replace(seen=seen, pace=tuple(pace), dropped=(), refuted=())
        memory, counts = self._decide(before, point)
        if not counts:
            return memory, counts
        errors = [before.last[1]] if before.last else [noise.error(one) for one in counts[:1] if before.held]
        blind = not any(errors) and not noise.error(point) and not _has_scale(before, point)
        if blind or memory.young:
            young = memory.young or (((-1, before.last[0]),) if before.last else ())
            young = (*young, *((one.step if blind else -1, one.score) for one in counts))
            memory = self._judge_again(memory._replace(young=young), point)
        return memory, counts

    def _decide(self, memory: Memory, point: EvalPoint) -> tuple[Memory, list[EvalPoint]]:
        held = [_unpack(one, point) for one in memory.held]
        counts: list[EvalPoint] = []
        if not memory.last:
            if not held:
                return memory._replace(held=(_pack(point),)), []
            first = held[0]
            if any(self._apart(one, point) for one in held) or self._apart(first, held[-1]):
                return self._begin(memory, [*held, point])
            if len(held) == 1:
                limit = self._scale(memory, _larger(noise.error(first), noise.error(point)), point)
                if limit is not None and first.score - point.score > limit:
                    return memory._replace(held=(*memory.held, _pack(point))), []
                memory, counts = self._count(memory, first, noise.error(first))
            elif self._bears_out(held[1].score, first.score, point.score):
                memory, counts = self._count(memory, first, noise.error(first))
                memory = self._drop(memory, held[1])
            else:
                memory, counts = self._count(self._drop(memory, first), held[1], noise.error(held[1]))
        elif self._coarse(memory, point):
            return self._drop(memory, point, counts=False), []
        elif held:
            borne_out = self._bears_out(memory.last[0], held[0].score, point.score)
            if borne_out and len(held) < self._needed(memory):
                return memory._replace(held=(*memory.held, _pack(point))), []
            if borne_out:
                memory, counts = self._count(memory, held[0], noise.error(held[0]))
            else:
                memory = self._drop(memory, held[0])
            memory = memory._replace(held=())
            for one in (*held[1:], point):
                memory, more = self._decide(memory, one)
                counts += more
            return memory, counts
        if memory.held:
            memory = memory._replace(held=())
        own = noise.error(point)
        error = _larger(memory.last[1], own)
        limit = self._scale(memory, error, point)
        if limit is not None and point.score < memory.last[0]:
            limit = self._below(memory, limit, error, point)
        if limit is None or abs(point.score - memory.last[0]) <= limit or memory.drops >= self.params.most:
            memory, more = self._count(memory, point, own)
            return memory, [*counts, *more]
        return memory._replace(held=(_pack(point),)), counts

    def _begin(self, memory: Memory, evals: list[EvalPoint]) -> tuple[Memory, list[EvalPoint]]:
        """Return the memory after the first two or three evals, of which some are less precise than others.

        Of three those that are more precise than the least precise one count, or those two that are alike.
        """
        if len(evals) == 2:
            return memory._replace(held=tuple(map(_pack, evals))), []
        first, second, third = evals
        alike = [one for one in (first, second) if not self._apart(one, third)]
        odd = max(evals, key=lambda one: Precision.of(one).error)
        if len(alike) == 1:
            odd = second if alike[0] is first else first
        memory, counts = self._drop(memory._replace(held=()), odd, counts=False), []
        for one in evals:
            if one is not odd:
                memory, more = self._decide(memory, one)
                counts += more
        return memory, counts

    def _apart(self, one: EvalPoint, other: EvalPoint) -> bool:
        """Return whether either of two evals is far less precise than the other."""
        a, b = Precision.of(one), Precision.of(other)
        return a.coarser(b, self.params.imprecise) or b.coarser(a, self.params.imprecise)

    def _coarse(self, memory: Memory, point: EvalPoint) -> bool:
        """Return whether an eval is too imprecise to count; not if so many before it were."""
        if not memory.coarsest or memory.drops >= self.params.most:
            return False
        return Precision.of(point).coarser(Precision(*memory.coarsest), self.params.imprecise)

    def agreeing(self, state: State) -> tuple[int, ...]:
        """Return steps of the evals that wait and that another one of them bears out; none where none does.

        All so far bear the first out. One far beyond the others is borne out by none of them.
        """
        memory = Memory(*state[0])
        if not memory.last:
            return ()
        scores = [one[1] for one in memory.held]
        return tuple(
            step
            for at, (step, score) in enumerate(one[:2] for one in memory.held)
            if any(self._bears_out(memory.last[0], score, other) for n, other in enumerate(scores) if n != at)
        )

    def _needed(self, memory: Memory) -> int:
        """Return how many evals have to bear out one that waits."""
        evals = spending.Pace(*memory.pace).evals
        last = evals == memory.seen < spending.MOST  # nothing comes after it
        return 1 if last or 0 < evals <= self.params.short_run else self.params.evals

    def _bears_out(self, start: float, jumped: float, now: float) -> bool:
        jump = jumped - start
        return (now - start) * math.copysign(1.0, jump) >= self.params.borne_out * abs(jump)

    def _scale(self, memory: Memory, stderr: float | None, point: EvalPoint) -> float | None:
        """Return the distance beyond which an eval waits; None: nobody knows."""
        if stderr is not None and stderr > 0.0:
            return self.params.sigmas_reported * stderr
        return self._estimated(windows.unpack(memory.recent), point)

    def _below(self, memory: Memory, limit: float, error: float | None, point: EvalPoint) -> float:
        """Return the distance beyond which an eval waits that lies below the last one; ``limit``: above.

        ``error``: the larger standard error of both.
        """
        below = self.params.sigmas_below
        if error is not None:
            limit = below * error
        paired = noise.of_difference(point, memory.last[2])
        return limit if paired is None else min(limit, below / math.sqrt(2.0) * paired.sigma)

    def _estimated(self, scores: Sequence[float], point: EvalPoint) -> float | None:
        known = noise.robust(scores)
        if known is None and point.fleet_noise is not None:
            known = point.fleet_noise.sigma or None  # of its own namespace: no other decides what counts
        return None if known is None else self.params.sigmas_estimated * known

    def _judge_again(self, memory: Memory, point: EvalPoint) -> Memory:
        """Return the memory after the evals that counted without a scale were judged, the highest first.

        An eval is refuted or passes; it goes on waiting while there is no scale yet, or while the evals after
        it are still to come.
        """
        error = memory.last[1]
        while (at := _highest(memory.young)) is not None:
            score, others = memory.young[at][1], [s for i, (_, s) in enumerate(memory.young) if i != at]
            after = others[max(1, at) :][: self.params.evals]
            limit = self.params.sigmas_reported * error if error else self._estimated(others, point)
            if limit is None or len(after) < self.params.evals:
                return memory
            start = others[max(0, at - 1)]
            if score - start <= limit or all(self._bears_out(start, score, one) for one in after):
                break
            left = tuple(one for i, one in enumerate(memory.young) if i != at)
            memory = memory._replace(young=left, refuted=(*memory.refuted, memory.young[at][0]))
        return memory._replace(young=())

    def _drop(self, memory: Memory, point: EvalPoint, *, counts: bool = True) -> Memory:
        """Return the memory with this eval dropped. ``counts``: for the noise, if that is asked for."""
        lost = memory.lost
        if counts and self.params.count_dropped:
            lost = (*lost, (point.score, noise.error(point)))
        # Two that agreed are dropped by one eval, which may be the bad one: it counts no sooner for that.
        drops = memory.drops + (not memory.dropped)
        return memory._replace(drops=drops, dropped=(*memory.dropped, point.step), lost=lost)

    def _count(self, memory: Memory, point: EvalPoint, error: float | None) -> tuple[Memory, list[EvalPoint]]:
        """Return the memory with this eval counted, and it alone as the rule is to be shown it.

        ``error``: its standard error (`noise.error`).
        """
        first, recent = 0.0, ""  # not asked for beside reported ones
        if not error:
            error = None
            first = memory.first if memory.recent else near(point.score)
            scores = [*windows.unpack(memory.recent), windows.single(point.score - first)]
            recent = windows.pack(scores[-noise.ROBUST_MOST :])
        shown = EvalInContext.with_lost(point, memory.lost) if memory.lost else point
        last = (point.score, error, point.step)
        coarsest = memory.coarsest
        if error and (not coarsest or error > coarsest[0]):
            coarsest = tuple(Precision.of(point))
        memory = memory._replace(last=last, drops=0, first=first, recent=recent, lost=(), coarsest=coarsest)
        return memory, [shown]


def near(score: float) -> float:
    """Return a number near the score that a status holds in few digits."""
    found = float(f"{score:.3g}")
    return found if math.isfinite(found) else score


def waiting(state: State) -> tuple[int, ...]:
    """Return steps of the evals that wait, oldest first. ``state``: of a `Gate`."""
    return tuple(one[0] for one in Memory(*state[0]).held)


def dropped(state: State) -> tuple[int, ...]:
    """Return steps of the evals that the newest one made drop, oldest first. ``state``: of a `Gate`."""
    return Memory(*state[0]).dropped


def refuted(state: State) -> tuple[int, ...]:
    """Return steps of evals that counted without a scale and by the newest one's are no best. ``state``: of a
    `Gate`."""
    return Memory(*state[0]).refuted


def unscaled(state: State) -> tuple[int, ...]:
    """Return steps of the evals that counted without a scale, as long as the highest of them is still to be
    judged by one. ``state``: of a `Gate`."""
    return tuple(step for step, _ in Memory(*state[0]).young if step >= 0)


def doubtful(state: State) -> int | None:
    """Step of the highest eval that counted without a scale and is still to be judged by one; None: none."""
    young = Memory(*state[0]).young
    at = _highest(young)
    return None if at is None else young[at][0]


def coarsest(state: State) -> Precision | None:
    """Return the precision of the least precise eval that counted; None: of none it is known. ``state``: of a
    `Gate`."""
    found = Memory(*state[0]).coarsest
    return Precision(*found) if found else None


def could_bear_out(state: State) -> bool:
    """Return whether an eval waits that another of the same policy would bear out. ``state``: of a `Gate`.

    Not so for the first two: of these the first would be dropped by it.
    """
    memory = Memory(*state[0])
    return bool(memory.last and memory.held)


def _highest(young: Sequence[tuple[int, float]]) -> int | None:
    """Return where the first of the highest is that counted without a scale; None: there is none."""
    at = [i for i, (step, _) in enumerate(young) if step >= 0]
    return max(at, key=lambda i: young[i][1], default=None)


def _has_scale(memory: Memory, point: EvalPoint) -> bool:
    """Return whether the scores that counted, or the fleet, tell how noisy an eval is."""
    if point.fleet_noise is not None and point.fleet_noise.sigma:
        return True
    return len(windows.unpack(memory.recent)) >= noise.ROBUST_LEAST


def _larger(one: float | None, other: float | None) -> float | None:
    return max(one or 0.0, other or 0.0) or None


def _pack(point: EvalPoint) -> tuple[Any, ...]:
    """Return all of an eval that rules look at, without what is not known at its end."""
    pair = None if point.paired is None else tuple(point.paired)
    peers = None if point.peers is None else tuple(point.peers)
    pairs = tuple(tuple(one) for one in point.prompt_pairs) or None
    fields: list[Any] = [point.step, point.score, point.stderr, point.samples, point.proxy, pair]
    fields += [point.progress, point.loss, peers, point.prompts, pairs]
    while fields[-1] is None:
        fields.pop()
    return tuple(fields)


def _unpack(packed: tuple[Any, ...], now: EvalPoint) -> EvalPoint:
    """Return the eval again; what the fleet shows of its noise, and the range, are those of ``now``."""
    fields = [*packed, *(None,) * 11][:11]
    step, score, stderr, samples, proxy, pair, progress, loss, peers, prompts, pairs = fields
    point = EvalPoint(
        step,
        score,
        stderr=stderr,
        samples=samples,
        proxy=proxy,
        paired=None if pair is None else Paired(*pair),
        prompts=prompts,
        prompt_pairs=tuple(PromptPair(*one) for one in pairs or ()),
    )
    if all(one is None for one in (progress, loss, peers, now.fleet_noise, now.range)):
        return point
    return EvalInContext.of(
        point,
        progress=progress,
        loss=loss,
        peers=None if peers is None else Peers(*peers),
        fleet_noise=now.fleet_noise,
        range=now.range,
    )


def _stored_verdict(verdict: Verdict | None) -> tuple[Any, ...]:
    if verdict is None:
        return ()
    grade = None if verdict.grade is None else str(verdict.grade)
    numbers = (_short(verdict.statistic), _short(verdict.threshold), *verdict[4:6])
    fields: list[Any] = [str(verdict.verb), verdict.reason, *numbers, grade]
    while fields[-1] is None or fields[-1] is False:
        fields.pop()
    return tuple(fields)


def _short(number: float) -> float:
    """Return a number that is told again in as many digits as anybody reads."""
    return float(f"{number:.6g}")


def _read(packed: tuple[Any, ...]) -> Verdict | None:
    if not packed:
        return None
    verb, *rest = packed
    grade = Grade(rest.pop()) if len(rest) == 6 and rest[-1] is not None else None
    return Verdict(Verb(verb), *rest[:5])._replace(grade=grade)
