"""The record of a job's guardrail metrics, and the verdict of all its judged metrics together.

Of a guardrail only the newest eval, its rule's memory, what its evals show of their noise and how far the
last ones lay apart are kept, for a status is small. So where the past is rewritten, by a resume from an
earlier step, a guardrail that had gone beyond that step begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controller.policy.job import scores, verdict_age
from controller.policy.job.evals import is_eval
from controller.policy.job.record import GUARD_APART_KEPT, Guard, JobRecord
from controller.policy.job.rule_in_use import RuleInUse, same_but_for_belief
from controller.policy.job.types import Desired, ScrapeView
from controller.policy.stopping import carry_spent, noise, reference
from controller.policy.stopping.guardrails import together
from controller.policy.types import Attempt, EvalPoint, GuardrailNoise, Mode, Verb, Verdict


def watch(record: JobRecord, rules: Mapping[str, RuleInUse], scrape: ScrapeView) -> JobRecord:
    """Return the record with the scrape's new guardrail evals in it; the same record when there are none."""
    life = record.lives[-1] if record.lives else None
    seen = {
        other.metric: [p for p in other.points if life is None or p.attempt == life.attempt]
        for other in scrape.others
    }
    known = {guard.metric: guard for guard in record.guards}
    after = []
    for metric, use in rules.items():
        guard = known.get(metric)
        if guard is not None and guard.params_hash != use.params_hash:
            guard = _anew(guard, rules)
        if (
            guard is not None
            and life is not None
            and guard.attempt != life.attempt
            and life.resumed is not None
        ):
            guard = rewind((guard,), life.resumed, rules)[0]
            if _begins_with(record, life.attempt):
                guard = _anew(guard, rules)
        guard = _ingest(metric, guard, use, seen.get(metric, ()))
        after += [] if guard is None else [guard]
    return record if tuple(after) == record.guards else replace(record, guards=tuple(after))


def _begins_with(record: JobRecord, life: Attempt) -> bool:
    """Return whether the Primary metric's rule has begun anew with this process: what is known of before may
    be of another branch."""
    before = sum(1 for p in record.evals if p.attempt != life)
    return record.rule is not None and record.rule.unjudged > 0 and record.rule.unjudged >= before


def rewind(guards: tuple[Guard, ...], step: int, rules: Mapping[str, RuleInUse]) -> tuple[Guard, ...]:
    """Return the guardrails' memory when the run goes on from ``step``: who had gone beyond it begins anew
    there, with what is left of its budget of false stops."""
    return tuple(guard if guard.step <= step else replace(_anew(guard, rules), step=step) for guard in guards)


def begun_anew(
    guards: tuple[Guard, ...], rules: Mapping[str, RuleInUse] = MappingProxyType({})
) -> tuple[Guard, ...]:
    """Return the guardrails' memory when what they have seen counts no more; they still know what is new.

    ``rules``: those that keep what they spent of their budgets; without: another evaluator scores them.
    """
    return tuple(_anew(guard, rules) for guard in guards)


def joint_verdict(record: JobRecord, desired: Desired) -> tuple[str, Verdict] | None:
    """Return what all judged metrics come to now: (guardrail's metric or "" for the Primary one, verdict).

    A guardrail that is scored no more proposes nothing, so it does not speak in the place of one that does.
    """
    if record.rule is None or record.rule.verdict is None:
        return None
    known = [("", record.rule.verdict)]
    known += [(guard.metric, guard.verdict) for guard in record.guards if guard.verdict is not None]
    metric, verdict = together(known, 1 + len(desired.guardrails))
    overdue = {guard.metric for guard in record.guards if verdict_age.is_overdue(guard, record)}
    stop = record.decision
    decided = stop.proposal.metric if stop is not None and stop.mode is Mode.ENFORCE else None
    # What a stop was granted on while it was new stands for as long as its copy takes.
    if metric in overdue and metric != decided and verdict.verb is not Verb.CONTINUE:
        other, fresh = together([one for one in known if one[0] not in overdue])
        if fresh.verb is not Verb.CONTINUE:
            return other, fresh._replace(e_value=verdict.e_value, grade=verdict.grade)
    return metric, verdict


def noise_shown(record: JobRecord) -> tuple[GuardrailNoise, ...] | None:
    """Return what the guardrails' evals show of their noise, of those that have had enough; None: of none."""
    return noise.shown_of((guard.metric, guard.noise) for guard in record.guards)


def _anew(guard: Guard, rules: Mapping[str, RuleInUse] = MappingProxyType({})) -> Guard:
    state: tuple[Any, ...] = ()
    use = rules.get(guard.metric)
    if use is not None and guard.state and same_but_for_belief(guard.params_hash, use.params_hash):
        state = carry_spent(use.rule, use.rule.initial(), guard.state)
    return replace(guard, state=state, verdict=None, noise=noise.NOTHING_SHOWN)


def _ingest(metric: str, guard: Guard | None, use: RuleInUse, points: Iterable[EvalPoint]) -> Guard | None:
    """``points``: of the newest life.

    An eval is paired with the best one that counts through a third, as the Primary metric's are: by the evals
    on the page, since of a guardrail's earlier ones no more is kept.
    """
    page = sorted(filter(is_eval, points), key=lambda p: p.step)
    if guard is not None and all(p.attempt == guard.attempt and p.step <= guard.step for p in page):
        return guard
    before: list[EvalPoint] = []
    for point in page:
        if guard is not None and point.attempt != guard.attempt and guard.step >= point.step:
            guard = rewind((guard,), point.step - 1, {metric: use})[0]
        # A pair with an eval that is not on the page any more is taken at its word.
        known = {p.step: point.score - p.mean for p in point.prompt_pairs}
        known |= {p.step: p.score for p in before}
        if guard is not None and guard.step < point.step:
            known[guard.step] = guard.score
        seen = scores.believed(point, use.scale, before, known)
        if guard is None or point.step > guard.step:
            memory = guard.state if guard is not None else ()
            seen = scores.paired_with(reference(use.rule, memory), seen, before, use.scale)
            state, verdict = use.observe(memory or use.rule.initial(), seen)
            shown = noise.show(guard.noise if guard is not None else noise.NOTHING_SHOWN, seen)
            mark = (metric, point.step, point.attempt, point.score)
            guard = Guard(*mark, use.params_hash, state, verdict, shown, _apart(guard, point))
        before.append(seen)
    return guard


def _apart(guard: Guard | None, point: EvalPoint) -> tuple[object, ...]:
    """Return how many steps lie between two evals of a guardrail, of the last ones, with this new one.

    ``guard``: before it. Where the run went back to in between is no eval, so from there nothing is measured.
    """
    if guard is None:
        return ()
    if guard.verdict is None and guard.attempt != point.attempt:
        return guard.apart
    return (*guard.apart, point.step - guard.step)[-GUARD_APART_KEPT:]
