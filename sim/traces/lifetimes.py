"""One job's past as part of a trace: how long it trained, what was seen of it, and how that ended."""

from __future__ import annotations

import math
from statistics import median

from controller.policy.job import (
    ADMITTED,
    COMPLETED,
    FAILED,
    Desired,
    Direction,
    RunState,
    attained,
    declared_scale,
)
from controller.policy.stopping import noise
from controller.policy.types import NOTHING_DECLARED, Attempt, EvalPoint, JobState, Mode, Paired, PolicySpec
from sim.foresight import RuleSpec
from sim.traces.facts import JobFacts
from sim.traces.past import BY_ITSELF, NEARLY, End, Past
from sim.traces.trace import TraceJob
from sim.workload import Evals

_FIRST = 1e-9  # share of the training at which an eval of step 0 stands: evals come after the start


def trace_job(key: str, facts: JobFacts, last: float) -> TraceJob | str:
    """Return the job with what became of it, or why nobody knows how long it would have trained. ``last``: s,
    end of the history."""
    view = facts.view
    assert view is not None
    end = _end(facts)
    service, lost = _service(facts, last), facts.record.lost if facts.record is not None else 0.0
    trained = max(0.0, service - lost) / view.gpus if view.gpus else 0.0
    steps = max(facts.step, facts.points[-1].step if facts.points else 0)
    done = min(1.0, steps / facts.total_steps) if facts.total_steps else 0.0
    span: float = steps  # steps that the whole of its work would make
    if trained <= 0.0:
        if end is not End.WAITING or view.estimate is None or view.estimate <= 0.0:
            return "never had GPUs"
        work, length, seen = view.estimate, "estimate", 0.0
    elif end in BY_ITSELF:
        work, length, seen = trained, "run", 1.0
        if end is End.COMPLETE and done > 0.0:  # its last scrape came before its last step
            span = max(steps, facts.total_steps)
            seen = 1.0 if done > NEARLY else done
    elif done > 0.0:
        work, length, seen, span = trained / done, "progress", done, facts.total_steps
    elif view.estimate is not None and view.estimate > trained:
        work, length, seen = view.estimate, "estimate", trained / view.estimate
        span = steps / seen
    else:
        work, length, seen = trained, "unknown", 1.0
    evals, scale = evals_of(facts, max(span, steps, 1.0))
    desired, record = facts.desired, facts.record
    past = Past(
        end=end,
        mode=desired.mode if desired is not None else Mode.ENFORCE,
        seen=seen,
        length=length,
        started=_started(facts),
        ended=_ended_at(facts, end),
        service=service,
        lost=lost,
        waited=_waited(facts),
        preempted=record.preemptions if record is not None else 0,
        attempts=record.attempt if record is not None else view.attempt,
        stop_eval=_stop_eval(facts, evals, scale),
        metric=desired.metric if desired is not None else "",
        direction=str(desired.direction) if desired is not None else "Maximize",
        step=steps or None,
        total_steps=facts.total_steps or None,
        checkpoint_every=_cadence(facts, trained / steps if steps else 0.0),
        missed=_missed(facts, scale),
        scale=scale,
        early=facts.early,
        rule=rule_of(desired) if desired is not None and desired.rule.name else None,
    )
    return TraceJob(
        key,
        view.submitted,
        view.gpus,
        work,
        line=facts.line,
        gpus_per_replica=view.gpus_per_replica,
        priority=view.priority,
        weight=view.weight,
        estimate=view.estimate,
        group="RLHF",
        evals=evals,
        past=past,
    )


def _service(facts: JobFacts, last: float) -> float:
    """Return GPU-seconds that it had its GPUs, as the operator counted them, else as the plans show."""
    view, record, desired = facts.view, facts.record, facts.desired
    assert view is not None
    if record is not None and desired is not None:
        until = facts.ended if facts.ended is not None else last
        counted = attained(desired, record, min(until, last))
        if counted > 0.0:
            return counted
    if view.attained > 0.0:  # leaves out the time until all pods were ready
        running = view.state is not JobState.QUEUED and facts.ended is not None
        return view.attained + ((facts.ended or facts.at) - facts.at) * view.gpus * running
    return facts.held


def _end(facts: JobFacts) -> End:
    record, desired, view = facts.record, facts.desired, facts.view
    assert view is not None
    if facts.finished == "Complete":
        return End.COMPLETE
    if facts.finished is not None:
        return End.FAILED
    decision = record.decision if record is not None else None
    if decision is not None and decision.mode is Mode.ENFORCE:
        return End.USER if decision.by == "User" else End.STOPPED
    if desired is not None and (desired.deleting or desired.run_state is RunState.STOPPED):
        return End.GONE if desired.deleting else End.USER
    if facts.ended is not None:
        return End.GONE
    return End.WAITING if view.state is JobState.QUEUED and not view.attained else End.RUNNING


def _started(facts: JobFacts) -> float | None:
    """Return when it was admitted for the first time."""
    record = facts.record
    if 1 in facts.admitted or record is None or record.attempt != 1:
        return facts.admitted.get(1)
    return next((c.since for c in record.conditions if c.type == ADMITTED and c.status), None)


def _waited(facts: JobFacts) -> float | None:
    """Return seconds that it waited in all; None: an admission of it was not seen."""
    attempts = facts.record.attempt if facts.record is not None else 0
    if facts.waits and len(facts.waits) >= attempts:
        return sum(facts.waits.values())
    started = _started(facts)
    if attempts == 1 and started is not None and facts.view is not None:
        return max(0.0, started - facts.view.submitted)
    return None


def _ended_at(facts: JobFacts, end: End) -> float | None:
    """Return when its GPUs were free again, or, of a run that ended by itself, when that was."""
    record = facts.record
    if record is not None and end in (End.COMPLETE, End.FAILED):
        return next(
            (c.since for c in record.conditions if c.type in (COMPLETED, FAILED) and c.status), facts.ended
        )
    if record is not None and record.decision is not None and end in (End.STOPPED, End.USER):
        return record.decision.pods_gone_at or record.decision.suspended_at or facts.ended
    return facts.ended if end is End.GONE else None


def _cadence(facts: JobFacts, seconds_per_step: float) -> float | None:
    """Return seconds of training between two checkpoints; None: fewer than two were told of."""
    steps = [b - a for a, b in zip(facts.checkpoints, facts.checkpoints[1:], strict=False) if b > a]
    return round(median(steps) * seconds_per_step, 3) if steps and seconds_per_step > 0.0 else None


def _missed(facts: JobFacts, scale: int) -> int:
    """Evals that were made and are not here: the trainer dropped them unread, or the log has not got them."""
    record = facts.record
    if record is None:
        return 0
    here = sum(1 for p in facts.points if math.isfinite(p.score)) - scale
    return record.evals_missed + max(0, record.evals_seen - here)


def _stop_eval(facts: JobFacts, evals: Evals | None, scale: int) -> int | None:
    decision = facts.record.decision if facts.record is not None else None
    if decision is None or decision.by == "User" or evals is None:
        return None
    counted = sum(1 for p in facts.points if p.step <= decision.proposal.step) - scale
    return min(max(1, counted), len(evals.at))


def evals_of(facts: JobFacts, steps: float) -> tuple[Evals | None, int]:
    """Its comparable evals, step ``steps`` at share 1; and how many there were before, on another scale."""
    scale = facts.record.baseline if facts.record is not None else None
    points = facts.points
    if scale is not None and scale.life:
        life = Attempt.parse(scale.life)
        earlier = facts.lives[: facts.lives.index(life)] if life in facts.lives else []
        points = [
            p for p in points if p.attempt not in earlier and (p.attempt != life or p.step > scale.step)
        ]
    before = len(facts.points) - len(points)
    if not points:
        return None, before
    sign = -1.0 if facts.desired is not None and facts.desired.direction is Direction.MINIMIZE else 1.0
    number = {p.step: n for n, p in enumerate(points, start=1)}

    def paired(point: EvalPoint) -> Paired | None:
        """Its differences, to the eval of the reference step; without, where the log lacks that eval."""
        found = point.paired
        if found is None or found.reference_step not in number:
            return None
        return found._replace(reference_step=number[found.reference_step], mean=sign * found.mean)

    signs = _signs(facts.desired)
    places = [(p.attempt, p.step) for p in points]
    losses = [facts.losses[place] for place in places if place in facts.losses]
    proxies, pairs = [p.proxy for p in points], [paired(p) for p in points]
    declared = NOTHING_DECLARED if facts.desired is None else declared_scale(facts.desired, facts.record)
    stderrs = [noise.error(declared.known_of(p)) for p in points]
    return Evals(
        [min(1.0, p.step / steps) if p.step > 0 else _FIRST for p in points],
        [sign * p.score for p in points],
        losses=losses if len(losses) == len(points) else (),
        proxies=proxies if any(p is not None for p in proxies) else (),
        paired=pairs if any(p is not None for p in pairs) else (),
        stderrs=stderrs if any(e is not None for e in stderrs) else (),
        others={
            metric: [sign * scores[place] if place in scores else None for place in places]
            for metric, sign in signs.items()
            if (scores := facts.others.get(metric))
        },
    ), before


def _signs(desired: Desired | None) -> dict[str, float]:
    """Of guardrail metrics, by name: -1 where lower is better."""
    guardrails = desired.guardrails if desired is not None else ()
    return {g.metric: -1.0 if g.direction is Direction.MINIMIZE else 1.0 for g in guardrails}


def rule_of(desired: Desired) -> RuleSpec:
    """Return a job's rule and guardrails, each at the whole budget of false alarms: `RuleSpec.make` shares
    it."""
    judged = 1 + len(desired.guardrails)
    guardrails = tuple((g.metric, _whole(g.rule, judged)) for g in desired.guardrails)
    return RuleSpec(_whole(desired.rule, judged), desired.modifiers, guardrails=guardrails)


def _whole(rule: PolicySpec, judged: int) -> PolicySpec:
    """Return what `controller.policy.stopping.guardrails.shared` made this share of the budget of."""
    share = rule.params.get("alpha")
    if judged == 1 or not isinstance(share, int | float):
        return rule
    return PolicySpec(rule.name, {**rule.params, "alpha": share * judged})
