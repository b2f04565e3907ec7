"""Guardrails: metrics that must not fall while the Primary one rises, each judged by a rule of its own.

Any of them can stop the run. They share one budget of false alarms with the Primary metric: with m metrics
judged, every rule that has an ``alpha`` gets alpha / m (`shared`). By the union bound the chance that any of
them ever stops a run of which no metric falls is then at most alpha, however the metrics depend on one
another. Rules without an ``alpha`` promise no such chance, and theirs add up; what m of them do is a matter
of tuning them.

Where every rule yields an e-value, the run's own is their mean: if no metric falls, each has a mean of at
most 1, hence so has theirs, whatever their dependence. A metric without an eval yet is 1 in it: nothing is
known against it. A rule that stops at m / alpha makes it 1 / alpha at least, so that a stop always carries
the evidence that its alpha promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, ClassVar

from controller.policy.params import describe
from controller.policy.stopping.base import RuleType, State, StopRule
from controller.policy.types import EvalInContext, EvalPoint, Grade, PolicySpec, Verb, Verdict

_URGENCY = {Verb.CONTINUE: 0, Verb.CONFIRM: 1, Verb.STOP: 2}
_SEVERITY = {None: 0, Grade.WARNED: 1, Grade.DEMOTED: 2}


def shared(spec: PolicySpec, metrics: int, rules: Mapping[str, RuleType]) -> PolicySpec:
    """Return the rule at its share of the false-alarm budget of ``metrics`` judged metrics: alpha / metrics.

    A rule without an ``alpha``, or one that does not exist, is given back as it is.
    """
    entry = rules.get(spec.name)
    alpha = next((i for i in describe(entry.params) if i.name == "alpha"), None) if entry else None
    if alpha is None or metrics == 1:
        return spec
    whole = spec.params.get("alpha", alpha.default)
    if not isinstance(whole, int | float) or whole == 0:  # 0: it has none
        return spec
    return replace(spec, params={**spec.params, "alpha": whole / metrics})


def together(verdicts: Sequence[tuple[str, Verdict]], metrics: int = 1) -> tuple[str, Verdict]:
    """Return what the metrics' verdicts come to: (metric, verdict) of the one that asks for most, the first
    of such.

    It carries the run's e-value and the gravest grade. ``metrics``: how many are judged; those without
    a verdict have had no eval yet.

    Raises:
        ValueError: there is no verdict.
    """
    metric, found = max(verdicts, key=lambda pair: (_URGENCY[pair[1].verb], _SEVERITY[pair[1].grade]))
    each = [verdict.e_value for _, verdict in verdicts]
    known = [e for e in each if e is not None]
    mean = None
    if len(known) == len(each):
        count = max(metrics, len(each))
        mean = fsum((*(e / count for e in known), (count - len(each)) / count))
    grade = max((v.grade for _, v in verdicts), key=_SEVERITY.__getitem__)
    return metric, found._replace(e_value=mean, grade=grade)


class Guarded:
    """The rules of all judged metrics as one, for those who see all scores of an eval at once (simulator).

    ``point.others`` has the guardrails' scores; one that is missing there keeps its last verdict. Their rules
    are shown the run's progress and the pool's usual noise besides, as a job's are. State: (state of the
    Primary metric's rule, (state, last verdict) of each guardrail's).
    """

    name: ClassVar[str] = "guarded"
    version: ClassVar[int] = 3

    def __init__(self, rule: StopRule, guards: Mapping[str, StopRule]) -> None:
        self.params: Any = rule.params
        self._rule = rule
        self._guards = dict(guards)

    def initial(self) -> State:
        return (self._rule.initial(), tuple((rule.initial(), None) for rule in self._guards.values()))

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        primary, guards = state
        primary, verdict = self._rule.observe(primary, point)
        verdicts, after = [("", verdict)], []
        for (metric, rule), (inner, last) in zip(self._guards.items(), guards, strict=True):
            score = point.others.get(metric)
            if score is not None:
                seen = EvalInContext.of(
                    EvalPoint(point.step, score, point.attempt),
                    progress=point.progress,
                    fleet_noise=point.others_noise.get(metric),
                )
                inner, last = rule.observe(inner, seen)
            after.append((inner, last))
            if last is not None:
                verdicts.append((metric, last))
        metric, verdict = together(verdicts, 1 + len(self._guards))
        if metric:
            verdict = verdict._replace(reason=f"Guardrail{verdict.reason}")
        return (primary, tuple(after)), verdict
