"""Adds scraped evals to a job's record: each once, in order; a resume replaces the evals after its step.

An eval is identified by attempt, life and step. What is not new, not finite, or of another life than the
newest changes nothing. When a new life resumes at step s, later steps of the former one leave the rule's
memory at once (that run of history did not happen); a best that is already pinned stays. Scores that cannot
be compared, because the evaluator changed, are not: the memory begins anew (`comparable`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from controller.names import EVALS_KEPT
from controller.policy.job import curve, lives, scores
from controller.policy.job.record import READINGS_KEPT, Best, JobRecord, ProtectedCheckpoint, RuleRecord
from controller.policy.job.types import Desired, Direction, Guardrail, ProxyMetric, ScrapeView
from controller.policy.stopping import (
    MODIFIERS,
    RULES,
    StopRule,
    carry_spent,
    gate,
    make_rule,
    rule_fingerprint,
)
from controller.policy.types import (
    NOTHING_DECLARED,
    Attempt,
    EvalInContext,
    EvalPoint,
    EvalScale,
    FleetNoise,
    FleetView,
    Peers,
    PeersAt,
    PolicySpec,
    Verdict,
)

NO_FLEET_VIEW = FleetView()
_UNBOUNDED = "-unbounded"  # in the fingerprint of a rule whose metric has left its declared range
_INVERTED = "-min"  # ends the fingerprint of a rule for a metric that is to be minimised


def better(direction: Direction, score: float, than: float) -> bool:
    """Return whether a score, in the trainer's own orientation, is the better of two."""
    return score > than if direction is Direction.MAXIMIZE else score < than


def best_of(
    direction: Direction, candidates: Iterable[EvalPoint | Best], than: Best | None = None
) -> Best | None:
    """Return the first of the highest, ``than`` before all of them; None: there are none."""
    best = than
    for one in candidates:
        if best is None or better(direction, one.score, best.score):
            best = Best(one.step, one.score, one.attempt)
    return best


@dataclass(frozen=True, slots=True)
class RuleInUse:
    """A job's rule together with what its recorded state must have been made under."""

    rule: StopRule
    name: str
    params_hash: str
    direction: Direction
    fleet_noise: FleetNoise | None = None
    total_steps: int | None = None  # of the run, where the rule looks at progress
    peers: tuple[PeersAt, ...] = ()  # at the steps of new evals
    needs: frozenset[str] = frozenset()  # fields of `EvalPoint` besides the score that rule and modifiers use
    uses: frozenset[str] = frozenset()  # fields that they look at where these are known
    guards: Mapping[str, RuleInUse] = field(default_factory=dict)  # by guardrail metric
    proxy: ProxyMetric | None = None
    gated: bool = False  # a `Gate` decides which evals count
    scale: EvalScale = NOTHING_DECLARED  # as declared, in the trainer's own orientation

    @property
    def rises(self) -> bool:
        """Return whether its statistic rises towards its threshold: else it is no share of that."""
        return self.name in RULES and RULES[self.name].rises

    @staticmethod
    def of(desired: Desired, fleet: FleetView = NO_FLEET_VIEW, total_steps: int | None = None) -> RuleInUse:
        """Return the rules of a spec, shown with each eval of the Primary metric what they look at besides.

        That is the pool's usual noise, the share of ``total_steps`` that is done, peers and training loss.
        Guardrails are judged by their evals alone, under the same modifiers, but for those that look at more.

        Raises:
            ParamError: the spec names a rule, modifier or parameter that does not exist or is out of bounds.
        """
        primary = _make(_Spelt(desired.rule, desired.modifiers), desired.direction)
        plain = tuple(m for m in desired.modifiers if not MODIFIERS[m.name].needs)
        return replace(
            primary,
            fleet_noise=fleet.noise,
            total_steps=total_steps if "progress" in primary.needs | primary.uses else None,
            peers=fleet.peers if "peers" in primary.needs else (),
            guards={g.metric: _guard(g, plain, total_steps) for g in desired.guardrails},
            proxy=desired.proxy,
            scale=desired.scale,
        )

    def without_ranges(self, metrics: Container[str], metric: str) -> RuleInUse:
        """Return the rules once the declared ranges of these metrics are not believed any more.

        Its own metric is ``metric``. What was judged by such a range is judged again without it.
        """
        own = self
        if metric in metrics and self.scale.range is not None:
            inverted = _INVERTED if self.params_hash.endswith(_INVERTED) else ""
            bare = f"{self.params_hash.removesuffix(_INVERTED)}{_UNBOUNDED}{inverted}"
            own = replace(self, scale=self.scale._replace(range=None), params_hash=bare)
        if not own.guards:
            return own
        return replace(own, guards={m: g.without_ranges(metrics, m) for m, g in own.guards.items()})

    def orient(self, point: EvalPoint) -> EvalPoint:
        """Return the point as a rule sees it: higher is better."""
        if self.direction is Direction.MAXIMIZE:
            return point
        paired = point.paired._replace(mean=-point.paired.mean) if point.paired is not None else None
        pairs = tuple(pair._replace(mean=-pair.mean) for pair in point.prompt_pairs)
        return point._replace(score=-point.score, paired=paired, prompt_pairs=pairs)

    def better(self, score: float, than: float) -> bool:
        return better(self.direction, score, than)

    def fold(
        self, state: tuple[Any, ...], points: Iterable[EvalPoint]
    ) -> tuple[tuple[Any, ...], Verdict | None]:
        """Return the state after these points, and the verdict on the last of them."""
        verdict = None
        for point in points:
            state, verdict = self.observe(state, point)
        return state, verdict

    def observe(
        self, state: tuple[Any, ...], point: EvalPoint, *, new: bool = False, loss: float | None = None
    ) -> tuple[tuple[Any, ...], Verdict]:
        """Show the rule one eval, oriented and with what is known besides.

        Progress and the fleet's noise are known at any time. Training loss (``loss``) and peers are so only
        when the eval is first seen (``new``): folded again, after a rewind or under other parameters, it
        comes without them. To the rules that look at them that is a gap, and a gap never stops a run.
        """
        seen = self.orient(point)
        scale = self.scale if self.direction is Direction.MAXIMIZE else self.scale.reversed()
        seen = scale.counted(seen)
        progress = min(1.0, point.step / self.total_steps) if self.total_steps else None
        peers = (
            next((Peers(p.runs, p.median) for p in self.peers if p.step == point.step), None) if new else None
        )
        known = (progress, loss, peers, self.fleet_noise, scale.range)
        if any(value is not None for value in known):
            seen = EvalInContext.of(
                seen,
                progress=progress,
                loss=loss,
                peers=peers,
                fleet_noise=self.fleet_noise,
                range=scale.range,
            )
        return self.rule.observe(state, seen)

    def waiting(self, state: tuple[Any, ...]) -> tuple[int, ...]:
        """Return steps of the evals that wait until later ones bear them out, oldest first
        (`stopping.gate`)."""
        return gate.waiting(state) if self.gated and state else ()

    def dropped(self, state: tuple[Any, ...]) -> tuple[int, ...]:
        """Return steps of the evals that the newest one made drop, or showed to be no best."""
        return (*gate.dropped(state), *gate.refuted(state)) if self.gated and state else ()

    def unscaled(self, state: tuple[Any, ...]) -> tuple[int, ...]:
        """Return steps of all evals that count, but were judged by no scale so far."""
        return gate.unscaled(state) if self.gated and state else ()

    def doubtful(self, state: tuple[Any, ...]) -> int | None:
        """Step of the highest eval that counts, but was judged by no scale so far; None: none is."""
        return gate.doubtful(state) if self.gated and state else None

    def could_bear_out(self, state: tuple[Any, ...]) -> bool:
        """Return whether an eval waits that another one of the same policy would bear out."""
        return gate.could_bear_out(state) if self.gated and state else False

    def agreeing(self, rule: RuleRecord) -> tuple[int, ...]:
        """Return steps of two or more evals that wait, and so far bear one another out.

        One that is settled is not among them: the only one after it waits alone.
        """
        found = self.rule.agreeing(rule.state) if isinstance(self.rule, gate.Gate) and rule.state else ()
        open_ = tuple(step for step in found if step not in (*rule.settled, *rule.refuted))
        return open_ if len(open_) > 1 else ()

    def counting(self, rule: RuleRecord, points: tuple[EvalPoint, ...]) -> list[EvalPoint]:
        """Return those of the evals that count, as far as is known after the last of them.

        ``rule``: its memory of them. Those that are not judged count as if they were the first of a run.
        """
        first = rule.unjudged
        before = self.counted(self.rule.initial(), points[:first])
        steps = {*rule.settled, *before, *self.counted(rule.base, points[first:])}.difference(rule.refuted)
        return [p for p in points if p.step in steps]

    def counted(self, base: tuple[Any, ...], points: tuple[EvalPoint, ...]) -> set[int]:
        """Return steps of these evals that count, by the state before them."""
        known: set[int] = set()
        state = base
        for point in points:
            state, _ = self.observe(state, point)
            known.add(point.step)
            known.difference_update(self.dropped(state))
        return known.difference(self.waiting(state))

    def dropped_since(self, before: JobRecord, after: JobRecord) -> tuple[int, ...]:
        """Return steps of the Primary metric's evals that were dropped between two passes, of those still
        kept."""
        if not self.gated or after.rule is None or after.evals is before.evals:
            return ()
        known = newest_mark(before)
        state = before.rule.state if before.rule and made_under(before, self) else ()
        waited = (*self.waiting(state), self.doubtful(state))
        new = [
            p.step
            for p in after.evals
            if p.step in waited
            or known is None
            or (p.attempt == after.lives[-1].attempt and (p.attempt != known[0] or p.step > known[1]))
        ]
        if len(new) <= 1:
            return tuple(s for s in self.dropped(after.rule.state) if s not in after.rule.settled)
        still = {p.step for p in self.counting(after.rule, after.evals)}
        return tuple(s for s in new if s not in still and s not in self.waiting(after.rule.state))

    def best_of(self, candidates: Iterable[EvalPoint | Best], than: Best | None = None) -> Best | None:
        return best_of(self.direction, candidates, than)

    def remember(self, base: tuple[Any, ...], evals: tuple[EvalPoint, ...], unjudged: int = 0) -> RuleRecord:
        """Return the rule's memory of these evals, but for the first ``unjudged`` of them."""
        state, verdict = self.fold(base, evals[unjudged:])
        return RuleRecord(self.name, self.rule.version, self.params_hash, base, state, verdict, unjudged)


class _Spelt:
    """A rule and its modifiers, equal to others of the same spelling: ``1`` is not ``1.0``, nor ``True``."""

    __slots__ = ("modifiers", "rule", "text")

    def __init__(self, rule: PolicySpec, modifiers: tuple[PolicySpec, ...]) -> None:
        self.rule, self.modifiers = rule, modifiers
        self.text = repr([(spec.name, sorted(spec.params.items())) for spec in (rule, *modifiers)])

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spelt) and self.text == other.text


@lru_cache(maxsize=1024)  # made at every plan, and checking parameters would be most of what a plan costs
def _make(spelt: _Spelt, direction: Direction) -> RuleInUse:
    rule, modifiers = spelt.rule, spelt.modifiers
    made, fingerprint = make_rule(rule, modifiers), rule_fingerprint(rule, modifiers)
    needs = RULES[rule.name].needs + sum((MODIFIERS[m.name].needs for m in modifiers), ())
    gated = any(m.name == gate.Gate.name for m in modifiers)
    # A state holds oriented scores: under the other direction it is another memory.
    fingerprint += _INVERTED if direction is Direction.MINIMIZE else ""
    uses = frozenset(RULES[rule.name].uses + sum((MODIFIERS[m.name].uses for m in modifiers), ()))
    return RuleInUse(made, rule.name, fingerprint, direction, needs=frozenset(needs), uses=uses, gated=gated)


def _guard(guard: Guardrail, modifiers: tuple[PolicySpec, ...], total_steps: int | None) -> RuleInUse:
    use = _make(_Spelt(guard.rule, modifiers), guard.direction)
    return replace(use, scale=guard.scale, total_steps=total_steps if "progress" in use.uses else None)


def ingest(record: JobRecord, use: RuleInUse, scrape: ScrapeView) -> JobRecord:
    """Return the record with the scrape's new evals in it; the same record when there are none.

    The page must be one that may be read (`lives.refusal`).
    """
    record = begin_life(_same_rule(record, use), use, scrape)
    if not record.lives or not scrape.points:
        return record
    life = record.lives[-1].attempt
    if lives.speaking(scrape) != life:
        return record
    record = _count_missed(record, scrape, life)
    points = sorted((p for p in scrape.points if p.attempt == life and is_eval(p)), key=lambda p: p.step)
    for point in points:
        record = _measured_again(_first_of_life(record, use, point), use, point)
        if _is_new(record, point):
            # Gauges say what loss and KL are now: of earlier evals they are not known.
            newest = point is points[-1]
            loss = scrape.loss if newest and "loss" in use.needs else None
            kl = scrape.kl if newest else None
            known = {p.step: p.score for p in (*((record.best,) if record.best else ()), *record.evals)}
            seen = scores.believed(point, use.scale, record.evals, known)
            best = record.best.step if record.best is not None else None
            seen = scores.paired_with(best, seen, record.evals, use.scale)
            record = _append(record, use, _with_proxy(seen, use.proxy, scrape), scrape.at, loss, kl)
    return record


def begin_life(record: JobRecord, use: RuleInUse, scrape: ScrapeView) -> JobRecord:
    """Return the record once the page's process is known: where it resumed, the memory ends there at once."""
    after = lives.note(record, scrape)
    if lives.start(after) == lives.start(record) or after.lives[-1].resumed is None:
        return after  # or only what it has saved is news
    if _forgotten(record, after.lives[-1].resumed):
        # What is known lies on the way all the same, and its best may not be pinned yet.
        return judged_from_now_on(after, use)
    return rewind(leaving(after), use, after.lives[-1].resumed)


def leaving(record: JobRecord) -> JobRecord:
    """Return the record with the highest checkpoint that the newest process is known to have started before.

    One from which an earlier process had started, or that lay there when the folder was claimed: it is of a
    branch that is left now, though no eval of that may ever have been read.
    """
    *former, newest = record.lives or (None,)
    if newest is None or newest.resumed is None:
        return record
    lay = record.claim.newest_step if record.claim is not None else 0
    step = max((lay, *(life.resumed or 0 for life in former)))
    if step <= max(record.abandoned_step, newest.resumed):
        return record
    return replace(record, abandoned_step=step)


def on_another_branch(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record once the newest process is known to have started from a checkpoint of another branch
    than the evals are of that came before it: the rule begins anew, with this process's."""
    life, former = record.lives[-1].attempt, record.rule
    if former is None or all(p.attempt == life for p in record.evals[former.unjudged :]):
        return record
    others = sum(1 for p in record.evals if p.attempt != life)
    record = _agreed(record, use, ())
    rule = _remembered(record, use, _anew(record, use), record.evals, others)
    best, awaiting = stand(use, rule, record.evals, record.best, record)
    return replace(record, rule=rule, best=best, awaiting=awaiting)


def _forgotten(record: JobRecord, step: int) -> bool:
    """Return whether evals up to ``step`` may be missing that are on the way now.

    A process that went back has taken later evals out of memory. One that then goes on from a checkpoint
    beyond all that it is known to have reached may be on the branch of those again: a trainer that looks for
    its newest checkpoint takes the highest step that lies there, whichever branch that is of.
    """
    former = record.lives[-1] if record.lives else None
    if former is None or former.resumed is None or former.resumed >= step:
        return False
    reached = lives.reached(record, former)
    if reached is None:
        return len(record.lives) > 1
    # Until its folder was claimed anew, nobody knows how far those go that lay there before it.
    unknown = record.claim is not None and not former.claimed
    return reached < step and (unknown or step <= record.abandoned_step)


def _first_of_life(record: JobRecord, use: RuleInUse, point: EvalPoint) -> JobRecord:
    """Return the record rewound to before a process's first eval, if it has not reported where it resumed."""
    if record.lives[-1].resumed is not None or not record.evals:
        return record
    if record.evals[-1].attempt == point.attempt:
        return record
    return rewind(lives.resumed(record, point.step - 1), use, point.step - 1)


def _measured_again(record: JobRecord, use: RuleInUse, point: EvalPoint) -> JobRecord:
    """Return the record without its newest eval if the newest process started from that very step, and has
    evaluated it once more: the rule sees one eval of a step, the last.

    The former one stays the best until there is a better one, unless it still waits to be borne out or others
    refuted it.
    """
    former, started = record.evals[-1] if record.evals else None, record.lives[-1].resumed
    if former is None or former.attempt == point.attempt or started is None:
        return record
    if not started <= point.step == former.step:
        return record
    rule = record.rule
    waits = rule is not None and former.step in {*_unsure(use, rule), *rule.refuted}
    after = rewind(record, use, point.step - 1, best_until=point.step - 1 if waits else point.step)
    return replace(after, abandoned_step=record.abandoned_step)  # no branch is left


def is_eval(point: EvalPoint) -> bool:
    """Return whether a score was measured at all: it is finite, and not of no samples."""
    return math.isfinite(point.score) and point.samples != 0


def _with_proxy(point: EvalPoint, proxy: ProxyMetric | None, scrape: ScrapeView) -> EvalPoint:
    """Return the eval with what the run optimises, where that is a metric of its own: of the same step and
    life."""
    if proxy is None or point.proxy is not None:
        return point
    found = (p for other in scrape.others if other.metric == proxy.metric for p in other.points)
    same = next((p.score for p in found if (p.attempt, p.step) == (point.attempt, point.step)), None)
    if same is None or not math.isfinite(same):
        return point
    return point._replace(proxy=same if proxy.direction is Direction.MAXIMIZE else -same)


def newest_mark(record: JobRecord) -> tuple[Attempt, int] | None:
    """Life and step up to which evals are known, counted or not; None: none is."""
    if record.evals:
        return record.evals[-1].attempt, record.evals[-1].step
    baseline = record.baseline
    return None if baseline is None or not baseline.life else (Attempt.parse(baseline.life), baseline.step)


def _is_new(record: JobRecord, point: EvalPoint) -> bool:
    mark = newest_mark(record)
    if mark is None:
        return True
    life, step = mark
    # What a mark without evals stands for is in no memory: another life may begin at any step.
    return point.step > step or (not record.evals and point.attempt != life)


def ignored_steps(record: JobRecord, scrape: ScrapeView) -> tuple[int, ...]:
    """Return steps that a trainer reported out of order within its present life, and that count for
    nothing."""
    if not record.evals:
        return ()
    newest, oldest = record.evals[-1], record.evals[0]
    known = {p.step for p in record.evals}
    return tuple(
        sorted(
            p.step
            for p in scrape.points
            if p.attempt == newest.attempt
            and is_eval(p)
            and oldest.step <= p.step < newest.step
            and p.step not in known
        )
    )


def rewind(record: JobRecord, use: RuleInUse, step: int, best_until: int | None = None) -> JobRecord:
    """Drop the evals after ``step``: the rule's memory is as it was when that step's eval had been seen.

    Where the window does not reach back that far, the rule's memory begins anew. ``best_until``: up to which
    step the best stays; None: ``step``.
    """
    until = step if best_until is None else best_until
    if record.rule is not None:
        record = _same_rule(record, use)  # its user may have chosen another since the last scrape
    kept = tuple(p for p in record.evals if p.step <= step)
    if len(kept) == len(record.evals):
        return _with_best(record, use, kept, until)
    whole = record.evals_seen <= len(
        record.evals
    )  # the window holds everything: its base is the initial state
    record = forget_all_but(record, use, kept)
    base = record.rule.base if record.rule and (kept or whole) else use.rule.initial()
    dropped = len(record.evals) - len(kept)
    unjudged = min(record.rule.unjudged, len(kept)) if record.rule is not None else 0
    rule = _remembered(record, use, base, kept, unjudged)
    if record.rule is not None:  # what was looked at on the branch that is left was looked at
        rule = replace(rule, state=carry_spent(use.rule, rule.state, record.rule.state))
    counting = use.counting(rule, kept)
    best = _best_after(record, use.direction, counting, until)
    best, awaiting = stand(use, rule, kept, best, record)
    made = replace(
        record,
        evals=kept,
        eval_times=record.eval_times[: max(0, len(record.eval_times) - dropped)],
        evals_seen=record.evals_seen - dropped if kept or whole else 0,
        earlier_sum=record.earlier_sum if kept else None,
        abandoned_step=_abandoned(record),
        rule=rule,
        best=best,
        awaiting=awaiting,
    )
    return _best_scored(made, counting)


def _remembered(
    record: JobRecord, use: RuleInUse, base: tuple[Any, ...], kept: tuple[EvalPoint, ...], unjudged: int
) -> RuleRecord:
    """Return the rule's memory of those of a record's evals that are kept, made anew.

    What counted for sure by the former memory is settled where the new one, which has not seen what bore it
    out, would wait for that once more. So is all that is not judged any more, whatever becomes of the rule.
    What counted for nothing is refuted where the new memory would believe it, or wait, once more.
    """
    rule, former = use.remember(base, kept, unjudged), record.rule
    if former is None:
        return rule
    settled, refuted = {*former.settled}, {*former.refuted}
    if made_under(record, use):
        counted = {p.step for p in use.counting(former, record.evals)}
        settled |= counted.difference(use.unscaled(former.state))
        judged = {p.step for p in record.evals[former.unjudged :]}
        refuted |= judged.difference(counted, use.waiting(former.state))
    sure = use.counted(base, kept[unjudged:]).difference(use.unscaled(rule.state))
    first = use.waiting(rule.state) if len(kept) == unjudged + 1 else ()  # a later one waits as it did
    refuted &= {*first, *use.unscaled(rule.state)}
    return replace(
        rule,
        settled=tuple(p.step for p in kept if p.step in settled and p.step not in sure),
        refuted=tuple(p.step for p in kept if p.step in refuted),
    )


def _unsure(use: RuleInUse, rule: RuleRecord) -> set[int | None]:
    """Return steps of evals that may count for nothing yet: they wait, or are to be judged again."""
    return {*use.waiting(rule.state), use.doubtful(rule.state)}.difference(rule.settled, rule.refuted)


def _with_best(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...], step: int) -> JobRecord:
    """No eval is dropped; but the best may be one of a branch that was left, and not secured."""
    if record.best is None or record.best.step <= step or record.rule is None:
        return record
    best = _best_after(record, use.direction, use.counting(record.rule, kept), step)
    best, awaiting = stand(use, record.rule, kept, best, record)
    return replace(record, best=best, awaiting=awaiting)


def restart(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Forget every eval: the rule begins anew. The best stays if it is pinned or retained."""
    kept: tuple[EvalPoint, ...] = ()
    record = forget_all_but(record, use, kept)
    best = _best_after(record, use.direction, (), -1)
    rule = use.remember(_anew(record, use), kept)
    return replace(
        record,
        evals=kept,
        eval_times=(),
        evals_seen=0,
        earlier_sum=None,
        abandoned_step=_abandoned(record),
        rule=rule,
        best=best,
        awaiting=None,
    )


def _abandoned(record: JobRecord) -> int:
    """Return the highest step from which the run has ever gone back, its present evals among them."""
    return max(record.abandoned_step, record.evals[-1].step if record.evals else 0)


def judged_from_now_on(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Begin the rule again within a process; the evals so far stay recorded, and are not judged again."""
    record = _agreed(record, use, ())
    rule = _remembered(record, use, _anew(record, use), record.evals, len(record.evals))
    return replace(record, rule=rule)


def _anew(record: JobRecord, use: RuleInUse) -> tuple[Any, ...]:
    """Return the state of a rule that forgets its evals; what it spent of its budget stays spent."""
    initial = use.rule.initial()
    if record.rule is None or not made_under(record, use):
        return initial
    return carry_spent(use.rule, initial, record.rule.state)


def made_under(record: JobRecord, use: RuleInUse) -> bool:
    """Return whether the record's memory is this very rule's: another rule cannot read it."""
    return record.rule is not None and record.rule.params_hash == use.params_hash


def same_but_for_range(one: str, other: str) -> bool:
    """Return whether two fingerprints are of one rule, whether or not its metric's range is believed.

    A trainer's scores decide whether it is, so no budget is refilled by it.
    """
    return one.replace(_UNBOUNDED, "") == other.replace(_UNBOUNDED, "")


def _same_rule(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record judged by this rule; if another rule made it, judge the evals still known again."""
    if made_under(record, use):
        return record
    initial, known = use.rule.initial(), record.best
    before = record.rule.params_hash if record.rule is not None else use.params_hash
    if before.endswith(_INVERTED) != use.params_hash.endswith(_INVERTED):
        # The other direction: what was the best is none.
        known = _best_after(replace(record, best=None), use.direction, (), -1)
    unjudged = record.rule.unjudged if record.rule is not None else 0
    rule = _remembered(record, use, initial, record.evals, unjudged)
    if record.rule is not None and same_but_for_range(before, use.params_hash):
        rule = replace(rule, state=carry_spent(use.rule, rule.state, record.rule.state))
    best = use.best_of(use.counting(rule, record.evals), known)
    best, awaiting = stand(use, rule, record.evals, best, record)
    return replace(record, rule=rule, best=best, awaiting=awaiting)


def _append(
    record: JobRecord,
    use: RuleInUse,
    point: EvalPoint,
    at: float,
    loss: float | None = None,
    kl: float | None = None,
) -> JobRecord:
    rule = record.rule
    assert rule is not None  # _same_rule saw to it
    state, verdict = use.observe(rule.state, point, new=True, loss=loss)
    base, evals, earlier = rule.base, (*record.evals, point), record.earlier_sum
    unjudged = rule.unjudged
    if len(evals) > EVALS_KEPT:
        if unjudged:
            unjudged -= 1
        else:
            base, _ = use.observe(base, evals[0])
        earlier = _sum_with(record, evals[0].score)
        evals = evals[1:]
    gone = [step for step in use.dropped(state) if step not in rule.settled]
    waits = use.waiting(state)
    out = {(p.attempt, p.step) for p in (*record.evals, point) if p.step in gone}
    record = on_account_of(record, out, score=None)
    best = record.best
    if best is not None and (best.attempt, best.step) in out:
        # It stood for the best for want of another. What is secured for it is no better.
        counts = use.counting(rule, (*record.evals, point))
        best = _best_after(record, use.direction, counts, -1)
        spare = record.awaiting  # of before the evals that are kept: it was secured for this
        if spare is not None and not any((p.attempt, p.step) == (spare.attempt, spare.step) for p in evals):
            best = use.best_of((spare,), best)
    was = {*use.waiting(rule.state), point.step}.difference(gone, waits)
    counting = [p for p in (*record.evals, point) if p.step in was]
    best = use.best_of(counting, best)
    now = replace(rule, state=state)  # with the base of before the oldest left
    known = {p.step for p in evals}
    settled = tuple(step for step in rule.settled if step in known)
    # On another branch one that was refuted may be borne out after all.
    refuted = tuple(step for step in rule.refuted if step in known and step not in was)
    now = replace(now, refuted=refuted)
    best, awaiting = stand(use, now, (*record.evals, point), best, record)
    awaiting = awaiting or _undecided_for_good(record, use, evals, best)
    made = replace(
        record,
        evals=evals,
        eval_times=(*record.eval_times, int(at))[-READINGS_KEPT:],
        evals_seen=record.evals_seen + 1,
        curve=curve.with_eval(record, point, verdict if use.rises else None, kl),
        earlier_sum=earlier,
        rule=replace(now, base=base, verdict=verdict, unjudged=unjudged, settled=settled),
        best=best,
        awaiting=awaiting,
    )
    return _best_scored(made, counting)


def _best_scored(record: JobRecord, counting: Iterable[EvalPoint]) -> JobRecord:
    """Return the record with the best's score in all that is pinned, retained or asked for on its account, if
    it is one of those that count: what counted for nothing on another branch has none there."""
    best = record.best
    if best is None or not any((p.attempt, p.step) == (best.attempt, best.step) for p in counting):
        return record
    return on_account_of(record, {(best.attempt, best.step)}, score=best.score)


def _undecided_for_good(
    record: JobRecord, use: RuleInUse, evals: tuple[EvalPoint, ...], best: Best | None
) -> Best | None:
    """Return what waits beside the best, if it is higher, and older than the evals kept: none will ever tell
    whether it counts. None: it is not so."""
    waited, kept = record.awaiting, record.beside
    if waited is None or best is None or kept is None or kept.score is None or not kept.stands_for(waited):
        return None
    known = any((p.attempt, p.step) == (waited.attempt, waited.step) for p in evals)
    return waited if not known and use.better(waited.score, best.score) else None


def stand(
    use: RuleInUse,
    rule: RuleRecord,
    evals: tuple[EvalPoint, ...],
    best: Best | None,
    record: JobRecord | None = None,
) -> tuple[Best | None, Best | None]:
    """Return a record's ``best`` and ``awaiting``, from the best of the evals that count.

    An eval that waits is no best unless there is no other. The best of those that wait is to be pinned beside
    it if it is higher, or if the best itself waits: which of the two is dropped shows at the next eval. Where
    the best's checkpoint is lost (``record``), it has to be higher than what stands in for it.
    Beside a best that may yet be refuted goes the best of all others, pins of before (``record``) too. So do
    those that waited when the rule began anew, for the run may be on their branch still. No later eval bears
    them out, so they are no best beside any that counts.
    """
    steps = {*use.waiting(rule.state)}.difference(rule.settled, rule.refuted)
    held = [p for p in evals if p.step in steps]
    undecided: list[EvalPoint] = []
    if rule.unjudged:
        before, _ = use.fold(use.rule.initial(), evals[: rule.unjudged])
        left = {*use.waiting(before)}.difference(rule.settled)
        undecided = [p for p in evals[: rule.unjudged] if p.step in left and p not in held]
        held += undecided
        if best is not None and any((p.attempt, p.step) == (best.attempt, best.step) for p in undecided):
            best = use.best_of(use.counting(rule, evals))
    refuted = {(p.attempt, p.step) for p in evals if p.step in rule.refuted}
    if best is not None and (best.attempt, best.step) in refuted:  # it stood for the best for want of another
        best = use.best_of(use.counting(rule, evals)) or best
    if best is None:
        best = use.best_of(held[:1] or evals[:1])
    if best is None:
        return None, None
    of_best = best.attempt, best.step  # another life has another step 40
    unsure = {*{use.doubtful(rule.state)}.difference(rule.settled, rule.refuted), *use.agreeing(rule)}
    lost = record is not None and best in record.lost_bests
    if not lost and any((p.attempt, p.step) == of_best for p in evals if p.step in unsure):
        others = (p for p in undecided if (p.attempt, p.step) != of_best)
        return best, use.best_of(others, _other_than(best, use, rule, evals, record))
    lone = any((p.attempt, p.step) == of_best for p in held)
    bar = best
    if record is not None and lost:
        held = [p for p in held if Best(p.step, p.score, p.attempt) not in record.lost_bests]
        known = replace(record, best=best, evals=evals, rule=rule)
        bar = keepable(known, use.direction, use) or best
    awaiting = use.best_of(p for p in held if (p.attempt, p.step) not in (of_best, (bar.attempt, bar.step)))
    if awaiting is None or not (lone or use.better(awaiting.score, bar.score)):
        awaiting = None
    return best, awaiting


def stand_anew(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Return the record with what waits beside the best chosen anew: a checkpoint was lost since.

    What waits there already has come since the rule began anew perhaps, and goes on waiting.
    """
    if record.rule is None or not made_under(record, use):
        return record
    best, awaiting = stand(use, record.rule, record.evals, record.best, record)
    waited = record.awaiting
    if waited is not None and waited != best and waited not in record.lost_bests:
        awaiting = use.best_of([waited], awaiting)
    return replace(record, best=best, awaiting=awaiting)


def _other_than(
    best: Best, use: RuleInUse, rule: RuleRecord, evals: tuple[EvalPoint, ...], record: JobRecord | None
) -> Best | None:
    """Return the best of the evals but for ``best`` and what agrees with it, and of pins of before them."""
    agree = use.agreeing(rule)
    agree = agree if best.step in agree else ()
    steps = {*use.waiting(rule.state)}.difference(rule.settled, rule.refuted, agree)
    counts = [*use.counting(rule, evals), *(p for p in evals if p.step in steps)]
    found = use.best_of(p for p in counts if (p.attempt, p.step) != (best.attempt, best.step))
    known = {(best.attempt, best.step), *((p.attempt, p.step) for p in evals)}
    if record is None:
        return found
    older = [one for pin in (record.secured, record.beside) if (one := _stood_for(record, pin)) is not None]
    return use.best_of((o for o in older if (o.attempt, o.step) not in known), found)


def settle_agreeing(record: JobRecord, use: RuleInUse) -> JobRecord:
    """Count waiting evals if two or more of them agree; called when the run ends or is to stop.

    The best until then stays secured beside: should the run go on, they may still be dropped.
    """
    found = _best_agreeing(record, use, record.evals)
    return record if found is None else replace(record, best=found, awaiting=record.best)


def forget_all_but(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...]) -> JobRecord:
    """Return the record, ready for the memory of all evals but ``kept`` to be dropped.

    Evals that still wait to be confirmed are decided here: they count if two or more agree and the checkpoint
    of the best of them is secured, and count for nothing otherwise: so does one that was the best for want of
    another.
    """
    if record.rule is None or not made_under(record, use):
        return record
    waits = {*use.waiting(record.rule.state)}.difference(record.rule.settled)
    agreeing = use.agreeing(record.rule)
    record = _agreed(record, use, kept)
    best = record.best
    undecided = {(p.attempt, p.step) for p in record.evals if p.step in waits and p not in kept}
    if best is not None and best.step in agreeing:
        undecided.discard((best.attempt, best.step))
    # What is pinned, retained or asked for on their account keeps no score: it is never taken for the best.
    return on_account_of(record, undecided, score=None)


def _agreed(record: JobRecord, use: RuleInUse, kept: tuple[EvalPoint, ...]) -> JobRecord:
    """Count two or more waiting evals that agree, if the best of them is secured."""
    found = _best_agreeing(record, use, tuple(p for p in record.evals if p not in kept))
    if found is None or record.beside is None or not record.beside.stands_for(found):
        return record
    rule = record.rule
    assert rule is not None  # by which they agree
    former = (record.secured.path,) if record.secured is not None else ()
    gone = tuple(path for path in former if path != record.beside.path)
    return replace(
        record,
        rule=replace(rule, settled=tuple({*rule.settled, *use.agreeing(rule)})),
        best=found,
        awaiting=None,
        secured=record.beside,
        beside=None,
        to_release=(*record.to_release, *gone),
    )


def _best_agreeing(record: JobRecord, use: RuleInUse, evals: tuple[EvalPoint, ...]) -> Best | None:
    """Return the best of the evals that wait, if two or more agree and it is above the best; None: it is not
    so."""
    steps = use.agreeing(record.rule) if record.rule and made_under(record, use) else ()
    found = use.best_of(p for p in evals if p.step in steps)
    if found is None or (record.best is not None and not use.better(found.score, record.best.score)):
        return None
    return found


def _sum_with(record: JobRecord, leaving: float) -> float | None:
    """Sum of the scores that are no longer kept once this one, the oldest, has gone; None: nobody knows."""
    if record.evals_seen == len(record.evals):
        return leaving
    total = None if record.earlier_sum is None else record.earlier_sum + leaving
    return total if total is not None and math.isfinite(total) else None


def on_account_of(record: JobRecord, evals: set[tuple[Attempt, int]], **change: Any) -> JobRecord:
    """Return the record with these fields changed in all that is pinned, retained or asked for on account of
    one of these evals (attempt and life, step)."""
    if not evals:
        return record

    def changed(kept: ProtectedCheckpoint) -> ProtectedCheckpoint:
        return replace(kept, **change) if (kept.attempt, kept.best_step) in evals else kept

    secured, beside, access = record.secured, record.beside, record.access
    if access is not None and (access.attempt, access.step) in evals:
        access = replace(access, **change)
    return replace(
        record,
        secured=None if secured is None else changed(secured),
        beside=None if beside is None else changed(beside),
        access=access,
        retained=tuple(map(changed, record.retained)),
    )


def _best_after(
    record: JobRecord,
    direction: Direction,
    counting: Iterable[EvalPoint],
    step: int,
) -> Best | None:
    """Return the best among what is left when the run goes on from ``step``.

    That is: evals up to there, the best itself if it is one of those (it may be older than the evals kept),
    and checkpoints that are pinned or retained, of whatever branch. Not those from before the scores could
    be compared, and none whose score nobody knows.
    """
    candidates: list[EvalPoint | Best] = [*counting]
    if record.best is not None and record.best.step <= step:
        candidates.append(record.best)
    for kept in (*record.retained, record.secured):
        if (one := _stood_for(record, kept)) is not None:
            candidates.append(one)
    return best_of(direction, candidates)


def _stood_for(record: JobRecord, kept: ProtectedCheckpoint | None) -> Best | None:
    """Return the eval for which a checkpoint is kept; None: its score is not known, or not on the present
    scale."""
    if kept is None or kept.score is None or kept.baseline != record.baseline_number:
        return None
    return Best(kept.best_step, kept.score, kept.attempt)


def keepable(record: JobRecord, direction: Direction, use: RuleInUse | None = None) -> Best | None:
    """Return the best eval whose checkpoint may still be had: the best, unless its checkpoint is lost.

    Then it is the best of the others that count by ``use``; if none is left, of those that wait to be borne
    out: what is perhaps good is better than nothing.
    """
    if record.best is None or record.best not in record.lost_bests:
        return record.best
    rule, top = record.rule, record.best.score

    def had(points: Iterable[EvalPoint]) -> list[EvalPoint]:
        """Return those whose checkpoint may be had. Without the rule an eval above the best was dropped, or
        waits to be borne out."""
        kept = (p for p in points if not better(direction, p.score, top))
        return [p for p in kept if Best(p.step, p.score, p.attempt) not in record.lost_bests]

    if use is None or rule is None or not made_under(record, use):
        left = had(record.evals)
    else:
        left = had(use.counting(rule, record.evals))
        if not left:
            waits = use.waiting(rule.state)
            left = had(p for p in record.evals if p.step in waits)
    # A copy of one that is lost was made for an earlier stop: there is nothing to pin it from any more.
    copies = tuple(k for k in record.retained if not any(map(k.stands_for, record.lost_bests)))
    return _best_after(replace(record, best=None, retained=copies), direction, left, -1)


def _count_missed(record: JobRecord, scrape: ScrapeView, attempt: Attempt) -> JobRecord:
    """Evals that left the trainer's window before a scrape saw them: its own count says how many there were.

    A gap changes the count only: the streak goes on over it.
    """
    if scrape.evals_total is None:
        return record
    mark = newest_mark(record)
    same_life = mark is None or mark[0] == attempt
    seen = record.evals_in_attempt if record.evals_in_attempt <= scrape.evals_total else 0
    after = mark[1] if mark is not None and same_life else -1
    visible = sum(1 for p in scrape.points if p.attempt == attempt and p.step > after)
    missed = max(0, scrape.evals_total - seen - visible)
    if missed == 0 and record.evals_in_attempt == scrape.evals_total:
        return record
    return replace(record, evals_missed=record.evals_missed + missed, evals_in_attempt=scrape.evals_total)
