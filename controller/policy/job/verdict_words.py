"""A verdict in a sentence, what its rule promises, and what the other rules say to the same evals.

For people: nothing is decided here. Rules are shown the evals that are kept one by one, never the buckets of
the curve, so what they say begins at the first of those (`OtherRule.since`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from controller.policy.job.gone_copies import found_gone
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction
from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE, RULES
from controller.policy.types import NOTHING_DECLARED, EvalScale, Mode, PolicySpec, Verb, Verdict
from controller.policy.wording import counted, percent, statistic, two_digits

USER = "User"
_NO_NUMBERS: Mapping[str, str] = {
    "TooFewEvals": "there are too few evals to judge by",
    "NoiseUnknown": "how noisy an eval is, is not known yet",
    "NoPairedDifferences": "the newest eval has no differences to a reference step",
    "BoundExceeded": "a prompt's scores differ by more than the declared bound",
    "LossUnknown": "the training loss is not known",
    "ProgressUnknown": "how long the run will be is not known",
    "TooFewPeers": "too few other runs have come as far",
    "AwaitsNextEval": "the newest eval waits for the next ones to bear it out",
    "Collapsed": "half of what it had gained is lost, at two evals in a row",
}
_FRESH = ("ConfirmedByFreshEvals", "ConfirmedOnSamePrompts", "NotConfirmed")
_BESIDES: Mapping[str, str] = {
    "RewardHacking": "the proxy rose meanwhile",
    "Collapse": "the proxy fell with it",
    "WarmingUp": "no rule stops it yet, it is warming up",
    "CoolingDown": "no rule stops it just now, after a declared event",
    "WaitingForMore": "it must stand for more evals",
    "AwaitingFreshEval": "a fresh eval was asked for",
}


def evidence(record: JobRecord, direction: Direction) -> str:
    """Return the numbers of its newest decision, or of its newest verdict, in a sentence: ``4 evals in a row
    fell, limit 3; 38.8 % worse than the best``; "": there are none. ``direction``: of the Primary metric."""
    decision, rule = record.decision, record.rule
    if decision is not None and decision.by in RULES:
        asked = decision.proposal
        verdict = Verdict(Verb.STOP, asked.reason, asked.statistic, asked.threshold)
        sentence = statement(decision.by, verdict)
        if asked.metric:  # the Primary metric's evals have no part in it
            return f"guardrail {asked.metric!r}: {sentence or asked.reason}"
        return "; ".join(filter(None, (sentence, _below(record, direction, asked.step))))
    if rule is None or rule.verdict is None:
        return ""
    newest = record.evals[-1].step if record.evals else None
    if record.finished is not None and rule.verdict.reason == "AwaitsNextEval":
        return "the run ended before later evals could bear the newest one out"
    return "; ".join(filter(None, (statement(rule.name, rule.verdict), _below(record, direction, newest))))


def statement(rule: str, verdict: Verdict) -> str:
    """Return what a rule's statistic is, against its threshold, in words."""
    if verdict.reason in _NO_NUMBERS:
        return _NO_NUMBERS[verdict.reason]
    s, t = verdict.statistic, verdict.threshold
    if verdict.reason in _FRESH and math.isfinite(s) and math.isfinite(t):
        return f"fresh evals are {_far(s, t)} standard errors worse than the best, limit {t:.2g}"
    if rule not in _STATEMENTS or not (math.isfinite(s) and math.isfinite(t)):
        return ""
    return "; ".join(filter(None, (_STATEMENTS[rule](s, t), _BESIDES.get(verdict.reason, ""))))


def _deviations(s: float, t: float) -> str:
    if s <= 0.0:
        return f"the newest evals are not worse than the best stretch, limit {t:.2g} standard deviations"
    return f"the newest evals are {_far(s, t)} standard deviations worse than the best stretch, limit {t:.2g}"


def _far(s: float, t: float) -> str:
    """Return a number of standard deviations with two digits, never as ``1.8e+14``. ``t``: the limit."""
    shown = statistic(s, t, 2)
    return two_digits(s) if "e" in shown and " " not in shown else shown


_STATEMENTS: Mapping[str, Callable[[float, float], str]] = {
    "kDeclines": lambda s, t: f"{counted(round(s), 'eval')} in a row fell, limit {t:.0f}",
    "drawdown": lambda s, t: f"the smoothed score is {s:.2g} worse than at its peak, limit {t:.2g}",
    "scan": _deviations,
    "glr": _deviations,
    "cusum": lambda s, t: (
        f"shortfalls against the best stretch add up to {_far(s, t)} standard deviations, limit {t:.2g}"
    ),
    "eProcess": lambda s, t: (
        f"the evidence that it is worse than its reference step is {s:.2g}, limit {t:.2g}"
    ),
    "fixedProgress": lambda s, t: f"{percent(s)} of the run is done, limit {percent(t)}",
    "lossPlateau": lambda s, t: (
        f"the training loss improved by {percent(s)}, the least that counts is {percent(t)}"
    ),
    "medianOfPeers": lambda s, t: f"its best is {s:.4g}, the median of its peers {t:.4g}",
}


def _below(record: JobRecord, direction: Direction, step: int | None) -> str:
    """Return by how much the eval of a step is worse than the best; "": it is not, or is no longer kept."""
    best = record.best
    found = next((p for p in reversed(record.evals) if p.step == step), None)
    if best is None or found is None or not best.score:
        return ""
    sign = -1.0 if direction is Direction.MINIMIZE else 1.0
    share = sign * (best.score - found.score) / abs(best.score)
    if not math.isfinite(share) or share < 0.0005:
        return ""
    return f"{percent(share)} worse than the best"


# -- what is promised of a run whose true score stays as it is --------------------


def alone_best(record: JobRecord) -> str:
    """Return that the best eval is the only one that its evaluator scored, and what is kept of before, in a
    clause; "": it was compared with others."""
    if not record.best_is_alone:
        return ""
    text = "compared with no other eval: all before were scored otherwise"
    pins = record.baseline.pins if record.baseline is not None else ()
    kept = [f"{one.step}" + (f" ({one.score:.4g})" if one.score is not None else "") for one in pins]
    return f"{text}; still pinned of those: step {', '.join(kept)}" if kept else text


def lost_best(record: JobRecord) -> str:
    """Return that the best eval's checkpoint is lost, and which one is in safety instead; "": it is not
    lost."""
    best = record.best
    kept = (*record.retained, *filter(None, (record.secured,)))
    if best is None or not record.best_is_lost:
        return ""
    text = f"the checkpoint of the best eval, step {best.step} ({best.score:.4g})"
    if not kept:
        return f"{text}: none is in safety"
    score = f" ({kept[-1].score:.4g})" if kept[-1].score is not None else ""
    return f"{text}: in safety is that of step {kept[-1].step}{score}"


def promise(rule: PolicySpec, evals: int) -> str:
    """Return what a rule promises on flat runs, in a sentence. ``evals``: of the run, as far as is known."""
    params = rule.params
    if rule.name == "kDeclines":
        k = int(params.get("k", 3))
        chance = flat_stops(k, evals)
        more = " at most" if params.get("min_delta") or params.get("min_delta_sigmas") else ""
        run = f"of flat runs of {counted(evals, 'eval')} it stops about {percent(chance, 2)}{more}"
        return f"it promises nothing: {run}, whatever the noise"
    alpha = params.get("alpha", 0.025 if rule.name in ("glr", "eProcess") else None)
    if alpha and rule.name in ("scan", "glr", "eProcess"):
        given = {
            "scan": "given independent noise of known size",
            "glr": "given Gaussian noise of known size",
            "eProcess": "whatever the noise, with prompts drawn anew for each eval",
        }[rule.name]
        return f"of runs whose true score never falls it stops at most {percent(float(alpha))}, {given}"
    if rule.name == "fixedProgress":
        return "it promises nothing: it stops every run that gets so far"
    if rule.name in ("lossPlateau", "medianOfPeers"):
        return "it promises nothing: it does not ask whether the score fell"
    return "it promises nothing: how many flat runs it stops depends on their noise (evalstop rules flat)"


@lru_cache(maxsize=256)
def flat_stops(k: int, evals: int) -> float:
    """Return the probability that ``evals`` scores of pure noise have ``k`` declines in a row.

    Of n! orders of n scores those without k declines in a row are n! times the coefficient of x^n in
    1 / sum over j >= 0 of (x^(jm) / (jm)! - x^(jm + 1) / (jm + 1)!), m = k + 1 (David and Barton,
    "Combinatorial Chance", 1962).
    """
    m, most = k + 1, min(evals, 500)
    if most < m:
        return 0.0
    below = [0.0] * (most + 1)
    for n in range(most + 1):
        if n % m in (0, 1):
            below[n] = (1.0 if n % m == 0 else -1.0) * math.exp(-math.lgamma(n + 1))
    left = [1.0] + [0.0] * most
    for n in range(1, most + 1):
        left[n] = -sum(below[i] * left[n - i] for i in range(1, n + 1) if below[i])
    return min(1.0, max(0.0, 1.0 - left[most]))


# -- what other rules say --------------------


class OtherRule(NamedTuple):
    """The answer of another rule, with its usual parameters, to a run's evals.

    Attributes:
        rule: its name.
        stop: step of the first eval at which it would have stopped the run; None: it would not.
        since: step of the first eval that it was shown.
    """

    rule: str
    stop: int | None
    since: int


def other_rules(
    record: JobRecord, own: str, direction: Direction, scale: EvalScale = NOTHING_DECLARED
) -> tuple[OtherRule, ...]:
    """Return what the rules that judge by scores alone say to the evals that are kept.

    Args:
        record: the run's.
        own: name of the run's own rule, which is left out.
        direction: of its Primary metric.
        scale: what is declared about that.
    """
    evals = record.evals
    if not evals:
        return ()
    found = []
    total = record.progress.total_steps if record.progress is not None else None
    for name, kind in RULES.items():
        if kind.needs or name == own:
            continue
        usual = name == DEFAULT_RULE.name
        spec, modifiers = (DEFAULT_RULE, DEFAULT_MODIFIERS) if usual else (PolicySpec(name), ())
        asked = Desired("", "", 0, "", 1, 1, spec, modifiers, direction, scale=scale)
        use = RuleInUse.of(asked, total_steps=total)
        state, stop = use.rule.initial(), None
        for point in evals:
            state, verdict = use.observe(state, point)
            if verdict.verb is Verb.STOP:
                stop = point.step
                break
        found.append(OtherRule(name, stop, evals[0].step))
    return tuple(found)


def other_rules_sentence(found: tuple[OtherRule, ...]) -> str:
    """Return what other rules say in a sentence: ``drawdown and cusum stop it at step 180, scan at step 190;
    glr does not; judged by the evals from step 10 on``; "": none was asked."""
    if not found:
        return ""
    stop: dict[int, list[str]] = {}
    for one in found:
        if one.stop is not None:
            stop.setdefault(one.stop, []).append(one.rule)
    go_on = [one.rule for one in found if one.stop is None]
    parts = []
    if stop:
        (step, names), *more = sorted(stop.items())
        stops = [f"{_listed(names)} {'stops' if len(names) == 1 else 'stop'} it at step {step}"]
        stops += [f"{_listed(names)} at step {step}" for step, names in more]
        parts.append(", ".join(stops))
    if go_on:
        do = "does" if len(go_on) == 1 else "do"
        parts.append(f"{_listed(go_on)} {do} not{'' if stop else ' stop it'}")
    return "; ".join([*parts, f"judged by the evals from step {found[0].since} on"])


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# -- ways to go on --------------------

SPARED_EVALS = 8  # after a resume: a stop within these is soon, and they are offered to be spared


def stopped_by_rule(record: JobRecord) -> bool:
    """Return whether the stop on record is one of a rule, not of its user."""
    return record.decision is not None and record.decision.by != USER


def stopped_soon(record: JobRecord) -> bool:
    """Return whether its rule stopped it within `SPARED_EVALS` evals of an earlier resume."""
    if not stopped_by_rule(record) or not record.resume_id:
        return False
    return sum(1 for p in record.evals if p.attempt.number == record.attempt) <= SPARED_EVALS


def ways_on(record: JobRecord, job: str) -> list[tuple[str, str]]:
    """Return how a run that was stopped, or would have been, may go on: (command, what it does).

    Args:
        record: the run's.
        job: its name and namespace as arguments of the command: ``run -n team``.
    """
    decision = record.decision
    if decision is None:
        return []
    if decision.mode is Mode.SHADOW:
        return [(f"evalstop mode {job} Enforce", "from now on its rule may stop it")]
    if decision.suspended_at is None:
        return []
    found = []
    gone = found_gone(record)
    if there := [one for one in record.retained if one not in gone]:
        step = there[-1].step
        found.append((f"evalstop resume {job} --from best", f"goes on from step {step}"))
        if stopped_soon(record):
            message = (
                f"the same, and no rule stops it for {SPARED_EVALS} evals: it was stopped soon after a resume"
            )
            found.append((f"evalstop resume {job} --from best --for-evals {SPARED_EVALS}", message))
    latest, goes_on = f"evalstop resume {job} --from latest", "goes on from the trainer's latest checkpoint"
    if decision.by == USER:
        found.append((latest, goes_on))
    else:  # there the evals that spoke for the stop are remembered
        message = f"{goes_on}; for {SPARED_EVALS} evals no rule stops it again"
        found.append((f"{latest} --for-evals {SPARED_EVALS}", message))
    return found
