"""Rules that can stop nothing of a run, whatever its scores: they let more pass, or wait longer, than it has.

Known from the spec: a rule that lets every fall pass that the declared range of scores has room for. Known
from the trainer's page: a rule that speaks at a later eval than the last one of the run, by its total steps
and the shortest distance that its evals have had: a bound, so that a rule which could stop the run is not
named. Of a trainer that is asked for evals between, the usual distance stands for it. Known from its evals:
a rule that measures falls by standard errors which are by far larger than all that the evals scatter, or by
that of one eval, far less precise than the others; and one that lets no stop through without the proxy of
each eval, where no eval has one. Or the evaluator, or the unit of the scores, is another one before a rule
has evals enough to speak. And a page that does not say whose it is: by such a one mode Enforce stops no run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median_low

from controller.policy.job import conditions as c
from controller.policy.job import imprecise, progress, short_baselines, trainer_requests
from controller.policy.job.context import PlanContext
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, ScrapeOutcome, ScrapeView
from controller.policy.params import ParamError
from controller.policy.stopping import Bound, StopRule, earliest, lets_pass, make_rule, noise
from controller.policy.stopping.confirm import Confirm
from controller.policy.types import EvalScale, Mode, Problem, Verb
from controller.policy.wording import counted

PAGE_WITHOUT_IDENTITY = "PageWithoutIdentity"  # for mode Enforce
RANGE_TOO_NARROW = "RangeTooNarrow"  # for the fall that the rule lets pass
RUN_TOO_SHORT = "RunTooShort"  # for the eval at which the rule speaks first
PROXY_UNKNOWN = "ProxyUnknown"  # and a modifier lets no stop through without it
EVAL_IMPRECISE = "EvalImprecise"  # far more than most, and counts; and the rule measures by the largest error
EVALUATOR_CHANGES = "EvaluatorChanges"  # faster than the rule has evals enough of one version
UNIT_CHANGES = "UnitChanges"  # the same of the scores' unit
STDERR_TOO_LARGE = "StderrTooLarge"  # for what the evals scatter, and the rule measures by it
BY_NOISE = ("sigmas", "min_delta_sigmas")  # parameters with which other rules measure falls by noise, too
SAME_PROXIES = 8  # exactly alike: no reward of a model that trains
LEAST_EVALS = 4  # from which on their distance is taken for the run's


def unable_by_spec(desired: Desired) -> tuple[Problem, ...]:
    """Return each of its rules that can stop nothing, by the ranges that the spec declares; () is right."""
    judged = [("", desired.rule, desired.scale)]
    judged += [(guard.metric, guard.rule, guard.scale) for guard in desired.guardrails]
    found = []
    for metric, spec, scale in judged:
        try:
            rule = make_rule(spec, desired.modifiers)
        except ParamError:
            continue  # that is told as what it is
        of = f"guardrail {metric!r}: " if metric else ""
        found += [Problem(RANGE_TOO_NARROW, of + text)] if (text := _by_range(rule, scale)) else []
    return tuple(found)


def note(context: PlanContext, use: RuleInUse) -> None:
    """Say in condition RuleCanStop, while it is so, that no rule, or not the Primary metric's, can stop it.

    A page that is not read changes nothing of it.
    """
    scrape = context.observed.scrape
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK:
        return
    if text := _by_page(context, scrape):
        context.conditions.set(c.ABLE, False, PAGE_WITHOUT_IDENTITY, text)
        return
    reason, text = RANGE_TOO_NARROW, _by_range(use.rule, use.scale)
    if not text:
        reason, text = RUN_TOO_SHORT, _by_length(context, use)
    if not text:
        reason, text = STDERR_TOO_LARGE, "" if _speaks(context) else _by_errors(context)
    if not text:
        reason, text = EVAL_IMPRECISE, imprecise.blinds(context.record, use) if _by_noise(context) else ""
    if not text:
        reason, text = PROXY_UNKNOWN, _by_proxy(context)
    if short_baselines.goes_on(context.record, use.rule):
        reason, text = _by_changes(context, use)
    if text:
        context.conditions.set(c.ABLE, False, reason, text)
    else:
        context.conditions.drop(c.ABLE)


def _speaks(context: PlanContext) -> bool:
    """Return whether the rule asks for a stop now: then the fall was large enough."""
    rule = context.record.rule
    return rule is not None and rule.verdict is not None and rule.verdict.verb is Verb.STOP


def _by_page(context: PlanContext, scrape: ScrapeView) -> str:
    """Return that a stop cannot rest on this page; "": it can, or the mode asks for none."""
    if context.desired.mode is not Mode.ENFORCE or scrape.page is not None:
        return ""
    return (
        "the page does not say whose it is (rlhf_run_info with the uid and attempt of run.json), so it may "
        "be another trainer's: its evals are read, and mode Enforce stops no run by them"
    )


def _by_range(rule: StopRule, scale: EvalScale) -> str:
    falls = lets_pass(rule)
    if falls is None or scale.range is None:
        return ""
    low, high = scale.range
    if falls.value < high - low:
        return ""
    return (
        f"{_where(falls)}: the rule lets a fall of {falls.value:g} in all pass, and scores between {low:g} "
        f"and {high:g} (range) cannot fall by more than {high - low:g}: it can never stop this run"
    )


def _by_length(context: PlanContext, use: RuleInUse) -> str:
    first, total, record = earliest(use.rule), progress.total_steps(context), context.record
    if first is None or not total or len(record.evals) < LEAST_EVALS:
        return ""
    # Where the trainer is asked for evals between, nobody knows how many there will be: as many as so far. A
    # rule that confirms asks for all that it needs.
    asked = trainer_requests.can_be_asked(context)
    confirms = asked and any(one.name == Confirm.name for one in context.desired.modifiers)
    apart = 1 if confirms else _distance(record, median_low if asked else min)
    if not _one_unit(context, record.evals[-1].step, total):
        return ""
    most = _evals_of(record, total, apart)
    if first.value <= most:
        return ""
    about = "about " if asked else ""
    return (
        f"{_where(first, context.desired)}: the rule stops nothing before eval {first.value:.0f}, and this "
        f"run has {about}{counted(most, 'eval')} at most ({total} steps, an eval each "
        f"{counted(apart, 'step')}): it can never stop it"
    )


def _by_noise(context: PlanContext) -> bool:
    """Return whether the rule measures falls by the evals' own errors: differences on the same prompts come
    first."""
    rule, evals = context.desired.rule, context.record.evals
    by_noise = rule.name in noise.RULES_BY_NOISE or any(rule.params.get(one) for one in BY_NOISE)
    return by_noise and bool(evals) and not evals[-1].prompt_pairs


def _by_errors(context: PlanContext) -> str:
    if not _by_noise(context):
        return ""
    doubt = noise.doubtful(context.record.evals, near_share=_near_share(context))
    if doubt is None or doubt.too_small:
        return ""
    return (
        f"the trainer reports standard errors of about {doubt.reported:.2g}, and its evals scatter by about "
        f"{doubt.scatter:.2g}: the rule measures falls by those errors, and hardly any is large enough to "
        "stop this run"
    )


def _near_share(context: PlanContext) -> float:
    """Return how many of the differences are to be far below what the errors explain: fewer once it is told,
    or it would be told anew, and not, at every other eval."""
    told = context.conditions.get(c.ABLE)
    still = told is not None and told.reason == STDERR_TOO_LARGE
    return noise.NEAR_STILL if still else noise.NEAR_SHARE


def _by_proxy(context: PlanContext) -> str:
    strict = [i for i, one in enumerate(context.desired.modifiers) if one.params.get("strict")]
    evals = context.record.evals
    if not strict or len(evals) < LEAST_EVALS:
        return ""
    proxies = [point.proxy for point in evals if point.proxy is not None]
    if not proxies:
        why = f"none of the last {counted(len(evals), 'eval')} has one"
    elif len(proxies) >= SAME_PROXIES and len(set(proxies)) == 1:
        why = f"it is {proxies[0]:g} in all of the last {counted(len(proxies), 'eval')}, as if never computed"
    else:
        return ""
    return (
        f"spec.modifiers[{strict[0]}].divergence.strict: it lets no stop through without the proxy of each "
        f"eval, and {why}: the rule can never stop this run"
    )


def _by_changes(context: PlanContext, use: RuleInUse) -> tuple[str, str]:
    baseline = context.record.baseline
    unit = baseline is not None and baseline.unit
    text = short_baselines.complaint(context.record, use.rule, use.direction)
    return UNIT_CHANGES if unit else EVALUATOR_CHANGES, text


def _one_unit(context: PlanContext, newest: int, total: int) -> bool:
    """Return whether evals are counted in the same steps as the run: a trainer may count samples there. Then
    no eval is of a step that the trainer has not come to."""
    scrape = context.observed.scrape
    step = scrape.step if scrape is not None else None
    return step is not None and newest <= step <= total


def _distance(record: JobRecord, of: Callable[[list[int]], int]) -> int:
    """Return the shortest, or the usual, distance (steps) of two evals of one process, of those that are
    kept; 1: none is known."""
    pairs = pairwise(record.evals)
    found = [b.step - a.step for a, b in pairs if a.attempt == b.attempt and b.step > a.step]
    return of(found) if found else 1


def _evals_of(record: JobRecord, total: int, apart: int) -> int:
    """Return how many evals a run of so many steps has at most: one each ``apart``, one at its start and one
    at its end, or those that were seen and those that are left."""
    left = max(0, total - record.evals[-1].step) // apart + 1
    return max(total // apart + 2, record.evals_seen + record.evals_missed + left)


def _where(bound: Bound, desired: Desired | None = None) -> str:
    """Return the field of the spec that sets a bound. ``desired``: of whose modifiers it may be."""
    first, *rest = bound.parameter.split("_")
    name = f"{bound.owner}.{first}{''.join(part.capitalize() for part in rest)}"
    modifiers = [one.name for one in desired.modifiers] if desired is not None else []
    if bound.owner in modifiers:
        return f"spec.modifiers[{modifiers.index(bound.owner)}].{name}"
    return f"spec.stopRule.{name}"
