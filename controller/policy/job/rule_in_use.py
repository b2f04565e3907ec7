"""A job's rule with its modifiers, and what a recorded memory must have been made under to be theirs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from controller.frozen import dataclass
from controller.names import EVALS_KEPT
from controller.policy.job.record import Best, JobRecord, RuleRecord
from controller.policy.job.types import Desired, Direction, Guardrail, ProxyMetric
from controller.policy.stopping import MODIFIERS, RULES, StopRule, gate, make_rule, noise, rule_fingerprint
from controller.policy.stopping.precision import TIMES
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
_UNREPORTED = "-unreported"  # the same of one whose evals contradict their standard errors
INVERTED = "-min"  # ends the fingerprint of a rule for a metric that is to be minimised


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
    scale: EvalScale = NOTHING_DECLARED  # as declared, in the trainer's own orientation
    believes_errors: bool = True  # the standard errors that the trainer reports

    @property
    def gated(self) -> bool:
        """Return whether a `Gate` decides which evals count: it is outermost wherever it is listed."""
        return isinstance(self.rule, gate.Gate)

    @property
    def imprecise(self) -> float:
        """Return as how many times as large as the others' an eval's standard error lets it count for
        nothing."""
        return self.rule.params.imprecise if isinstance(self.rule, gate.Gate) else TIMES

    @property
    def rises(self) -> bool:
        """Return whether its statistic rises towards its threshold: else it is no share of that."""
        return self.name in RULES and RULES[self.name].rises

    @staticmethod
    def of(desired: Desired, fleet: FleetView = NO_FLEET_VIEW, total_steps: int | None = None) -> RuleInUse:
        """Return the rules of a spec, shown with each eval of the Primary metric what they look at besides.

        That is the pool's usual noise, the share of ``total_steps`` that is done, peers and training loss.
        Guardrails are shown the first two, and judged under the same modifiers, but for those that look at
        more.

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
            guards={g.metric: _guard(g, plain, fleet, total_steps) for g in desired.guardrails},
            proxy=desired.proxy,
            scale=desired.scale,
        )

    def without_ranges(self, metrics: Container[str], metric: str) -> RuleInUse:
        """Return the rules once the declared ranges of these metrics are not believed any more.

        Its own metric is ``metric``. What was judged by such a range is judged again without it.
        """
        own = self
        if metric in metrics and self.scale.range is not None:
            bare = self._marked(_UNBOUNDED)
            own = replace(self, scale=self.scale._replace(range=None), params_hash=bare)
        if not own.guards:
            return own
        return replace(own, guards={m: g.without_ranges(metrics, m) for m, g in own.guards.items()})

    def without_errors(self) -> RuleInUse:
        """Return the rules once the standard errors of the Primary metric are not believed any more."""
        if not self.believes_errors:
            return self
        return replace(self, believes_errors=False, params_hash=self._marked(_UNREPORTED))

    def _marked(self, mark: str) -> str:
        inverted = INVERTED if self.params_hash.endswith(INVERTED) else ""
        return f"{self.params_hash.removesuffix(INVERTED)}{mark}{inverted}"

    def orient(self, point: EvalPoint) -> EvalPoint:
        """Return the point as a rule sees it: higher is better."""
        return point if self.direction is Direction.MAXIMIZE else point.reversed()

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
        seen = scale.counted(seen if self.believes_errors else seen._replace(stderr=None))
        progress = point.step / self.total_steps if self.total_steps else None
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

    def counted(self, base: tuple[Any, ...], points: tuple[EvalPoint, ...]) -> frozenset[int]:
        """Return steps of these evals that count, by the state before them."""
        seen = _SeenBy(
            self.rule, self.direction, self.fleet_noise, self.total_steps, self.scale, self.believes_errors
        )
        return _counted(seen, base, points)

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


class _SeenBy(NamedTuple):
    """Values that decide which evals count beside themselves: equal ones show a rule the same."""

    rule: StopRule
    direction: Direction
    fleet_noise: FleetNoise | None
    total_steps: int | None
    scale: EvalScale
    believes_errors: bool


# A plan asks for the same evals again and again, and the next plan of the job once more: to fold them anew
# each time was two thirds of what plans cost of runs whose best is not kept yet.
@lru_cache(maxsize=64)
def _counted(seen: _SeenBy, base: tuple[Any, ...], points: tuple[EvalPoint, ...]) -> frozenset[int]:
    use = RuleInUse(
        seen.rule,
        "",
        "",
        seen.direction,
        fleet_noise=seen.fleet_noise,
        total_steps=seen.total_steps,
        scale=seen.scale,
        believes_errors=seen.believes_errors,
    )
    known: set[int] = set()
    state = base
    for point in points:
        state, _ = use.observe(state, point)
        known.add(point.step)
        known.difference_update(use.dropped(state))
    return frozenset(known.difference(use.waiting(state)))


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
    # A state holds oriented scores: under the other direction it is another memory.
    fingerprint += INVERTED if direction is Direction.MINIMIZE else ""
    uses = frozenset(RULES[rule.name].uses + sum((MODIFIERS[m.name].uses for m in modifiers), ()))
    return RuleInUse(made, rule.name, fingerprint, direction, needs=frozenset(needs), uses=uses)


def _guard(
    guard: Guardrail, modifiers: tuple[PolicySpec, ...], fleet: FleetView, total_steps: int | None
) -> RuleInUse:
    use = _make(_Spelt(guard.rule, modifiers), guard.direction)
    usual = next((known.noise for known in fleet.guardrails if known.metric == guard.metric), None)
    total = total_steps if "progress" in use.uses else None
    return replace(use, scale=guard.scale, fleet_noise=usual, total_steps=total)


def newest_mark(record: JobRecord) -> tuple[Attempt, int] | None:
    """Life and step up to which evals are known, counted or not; None: none is."""
    if record.evals:
        return record.evals[-1].attempt, record.evals[-1].step
    baseline = record.baseline
    return None if baseline is None or not baseline.life else (Attempt.parse(baseline.life), baseline.step)


def made_under(record: JobRecord, use: RuleInUse) -> bool:
    """Return whether the record's memory is this very rule's: another rule cannot read it."""
    return record.rule is not None and record.rule.params_hash == use.params_hash


def disbelieves_errors(record: JobRecord) -> bool:
    """Return whether its rule goes without the standard errors that the trainer reports."""
    return record.rule is not None and _UNREPORTED in record.rule.params_hash


def contradicts_its_errors(record: JobRecord, new: Iterable[EvalPoint] = ()) -> bool:
    """Return whether a run's evals, and those ``new`` ones, scatter far more than their standard errors say.

    By the newest process' evals; while these are few, as it was before them.
    """
    if not record.lives:
        return False
    newest, known = record.lives[-1].attempt, newest_mark(record)
    last = known[1] if known is not None and known[0] == newest else -1
    evals = [p for p in (*record.evals, *(p for p in new if p.step > last)) if p.attempt == newest]
    if len(evals) < noise.FAR_LEAST + 2 and record.rule is not None:
        return disbelieves_errors(record)
    share = noise.FAR_STILL if disbelieves_errors(record) else noise.FAR_SHARE
    doubt = noise.doubtful(evals[-EVALS_KEPT:], share)
    return doubt is not None and doubt.too_small


def same_but_for_belief(one: str, other: str) -> bool:
    """Return whether two fingerprints are of one rule, whether or not its metric's range and standard errors
    are believed.

    A trainer's scores decide whether they are, so no budget is refilled by it.
    """
    return _believing(one) == _believing(other)


def _believing(fingerprint: str) -> str:
    return fingerprint.replace(_UNBOUNDED, "").replace(_UNREPORTED, "")
