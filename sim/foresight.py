"""First STOP of a rule, computed before the run: one event per stopped job instead of one per eval.

A rule's verdicts on a job depend on that job's evals only, and those do not depend on when they are made.
So the first STOP of each job is known as soon as its evals are, and evals that change nothing need not be
simulated. Not for rules that look at other runs (``peers``), nor for queue policies that watch progress, nor
for modifiers by which a verdict counts only while it stands.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import NamedTuple, TypeGuard

from controller.policy.stopping import MODIFIERS, RULES, StopRule, make_rule
from controller.policy.stopping.guardrails import Guarded, shared
from controller.policy.types import EvalInContext, EvalPoint, Peers, PolicySpec, Verb, Verdict
from sim.workload import Evals


class RuleSpec(NamedTuple):
    """A stop rule and its modifiers, by name and parameters.

    Attributes:
        groups: whose runs it judges, empty: all.
        guardrails: (metric, rule) of what must not fall either; all share the budget of false alarms
            (`controller.policy.stopping.guardrails`).
    """

    rule: PolicySpec
    modifiers: tuple[PolicySpec, ...] = ()
    groups: tuple[str, ...] = ()
    guardrails: tuple[tuple[str, PolicySpec], ...] = ()

    def judges(self, group: str) -> bool:
        """Return whether it judges runs of this group."""
        return not self.groups or group in self.groups

    @property
    def needs(self) -> frozenset[str]:
        """Return what it looks at besides the score: names of `EvalPoint` fields."""
        chosen = [RULES.get(self.rule.name), *(MODIFIERS.get(m.name) for m in self.modifiers)]
        needs = frozenset(need for kind in chosen if kind is not None for need in kind.needs)
        return needs | {"others"} if self.guardrails else needs

    @property
    def uses(self) -> frozenset[str]:
        """Return what it looks at where it is known."""
        kinds = [RULES[r.name] for r in (self.rule, *(g for _, g in self.guardrails)) if r.name in RULES]
        return frozenset(use for kind in kinds for use in kind.uses)

    @property
    def standing(self) -> bool:
        """Return whether verdicts matter as long as they stand, and not the first STOP alone."""
        return any(MODIFIERS[m.name].standing for m in self.modifiers if m.name in MODIFIERS)

    def make(self) -> StopRule:
        """Return the stop rule with its modifiers and guardrails.

        Raises:
            ParamError: a rule or parameter does not exist or is out of bounds.
        """
        judged = 1 + len(self.guardrails)
        primary = make_rule(shared(self.rule, judged, RULES), self.modifiers)
        if not self.guardrails:
            return primary
        plain = tuple(m for m in self.modifiers if not MODIFIERS[m.name].needs)
        return Guarded(primary, {m: make_rule(shared(r, judged, RULES), plain) for m, r in self.guardrails})


class Foreseen(NamedTuple):
    """The first STOP of a job: at which eval (from 0), the verdict, and the best eval up to it."""

    eval: int
    verdict: Verdict
    best: int


def point(evals: Evals, number: int, *, context: bool, peers: Peers | None = None) -> EvalPoint:
    """Eval ``number`` (from 0) as a rule sees it; with its context if the rule looks at it."""
    if not context and not len(evals.paired) and not len(evals.stderrs):
        return EvalPoint(number + 1, evals.scores[number])
    plain = EvalPoint(
        number + 1,
        evals.scores[number],
        stderr=evals.stderrs[number] if len(evals.stderrs) else None,
        proxy=evals.proxies[number] if len(evals.proxies) else None,
        paired=evals.paired[number] if len(evals.paired) else None,
    )
    loss = evals.losses[number] if len(evals.losses) else None
    others = {metric: s for metric, scores in evals.others.items() if _known(s := scores[number])}
    return EvalInContext.of(plain, progress=evals.at[number], loss=loss, peers=peers, others=others)


def _known(score: float | None) -> TypeGuard[float]:
    """Return whether this is a score that a rule may see."""
    return score is not None and isfinite(score)


def first_stop(rule: StopRule, evals: Evals, *, context: bool = True) -> Foreseen | None:
    """By the streaming rule, eval by eval."""
    state = rule.initial()
    best, highest = 0, -inf
    for number, score in enumerate(evals.scores):
        if not isfinite(score):
            continue
        if score > highest:
            best, highest = number, score
        state, verdict = rule.observe(state, point(evals, number, context=context))
        if verdict.verb is Verb.STOP:
            return Foreseen(number, verdict, best)
    return None
