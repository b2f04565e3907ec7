"""Explanation of where a job stands, in sentences: pure, from the RLHFJob alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from controller.api.rule_text import read as read_rule
from controller.api.rule_text import rule_and_modifiers
from controller.cli import formatting
from controller.cli.job_view import Reading, best_sentence, rule
from controller.cli.remedies import as_steps, cure, marks, sentence
from controller.cli.remedies import document as mark_document
from controller.frozen import dataclass
from controller.policy.group_types import slowdown_limit, times_allowed
from controller.policy.job import (
    MARKED,
    Best,
    Decision,
    Finding,
    JobRecord,
    LifeRecord,
    LonePeak,
    Mark,
    ended_early,
    evidence,
    found_gone,
    lone_peak,
    losses,
    lost_best,
    other_rules,
    other_rules_sentence,
    promise,
    residency,
    trains,
    was_right,
    ways_on,
)
from controller.policy.job import conditions as c
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import Mode, Verdict
from controller.policy.wording import ELSEWHERE, UID, agreeing, counted, how_far, percent, whole_by

# Of TerminationTarget: nobody asks for a stop any more, so none is held back.
_NOT_ASKED = frozenset({"CalledOff", "NoLongerDeclining", "Resumed"})
ENDED_EARLY = 0.9  # share of a run's steps before which it is told that it ended by itself


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of `evalstop explain` about a job.

    Attributes:
        headline: one sentence.
        facts: (label, text).
        next_steps: commands with what they do.
        marks: what of it needs a hand.
    """

    headline: str
    facts: tuple[tuple[str, str], ...]
    stages: tuple[tuple[float, str], ...]
    next_steps: tuple[tuple[str, str], ...]
    marks: tuple[Finding, ...] = ()


def explain(job: Reading, now: float, usual_noise: str = "") -> Explanation:
    """Return why it was stopped, waits, runs on, or is refused.

    Args:
        job: which.
        now: s since the epoch.
        usual_noise: what its pool's other runs show of an eval's noise, in words; "": not known.
    """
    found = marks(job, now) if not job.problem else ()
    return Explanation(
        _headline(job, now),
        (*_facts(job, found, now), *([("usual noise", usual_noise)] if usual_noise else [])),
        tuple(stages(job.record.decision)),
        tuple(_next_steps(job, found)),
        found,
    )


def _headline(job: Reading, now: float) -> str:
    if job.problem:
        return f"{job.key}: this evalstop cannot read its status ({job.problem})"
    state, decision = job.state, job.record.decision
    if state == "New":
        return f"{job.key}: the operator has not looked at it yet"
    if decision is not None and decision.mode is Mode.ENFORCE:
        ago = formatting.span(max(0.0, now - decision.at))
        if decision.by == "User":
            return f"{job.key}: {state}, by its user (runState: Stopped), {ago} ago"
        of = f" (guardrail {decision.proposal.metric!r})" if decision.proposal.metric else ""
        return f"{job.key}: {state} by {decision.by}{of} at step {decision.proposal.step}, {ago} ago"
    if decision is not None:
        why = "mode Shadow: nothing is touched"
        target = job.condition(c.TERMINATION)
        if job.mode != Mode.SHADOW and target is not None and not target.status:
            capped = target.reason == "Shadow"
            why = "its pool's modeCap allows Shadow only" if capped else f"{target.reason}: {target.message}"
        when = f"at step {decision.proposal.step}"
        return f"{job.key}: {state}; {decision.by} would have stopped it {when} ({why})"
    if found := [one for one in marks(job, now) if one.warning or state in ("Running", "Starting")]:
        return f"{job.key}: {state} ({found[0].reason}: {found[0].message})"
    message = _message_of_state(job)
    return f"{job.key}: {state}" + (f" ({message})" if message else "")


def _message_of_state(job: Reading) -> str:
    """Return the message of the condition that its state rests on."""
    state = job.state
    type_ = {
        "Refused": c.ACCEPTED,
        c.RUNS_ON: c.ACCEPTED,
        "Failed": c.FAILED,
        "Completed": c.COMPLETED,
        "Starting": c.RUNNING,
        "Queued": c.ADMITTED,
        "Unfit": c.ADMITTED,
        "Preempting": c.ADMITTED,
        "Declining": c.DECLINING,
        "Demoted": c.DEMOTED,
    }.get(state)
    found = job.condition(type_) if type_ else None
    if found is None:
        verdict = job.record.rule.verdict if job.record.rule is not None else None
        return _verdict_text(job, verdict) if verdict is not None and state == "Running" else ""
    return f"{found.reason}: {found.message}"


def _verdict_text(job: Reading, verdict: Verdict) -> str:
    below = below_best(job)
    where = f"{percent(below, 2)} below its best; " if below is not None and below >= 0.005 else ""
    return f"{where}the rule says {verdict.verb}: {verdict.reason}"


def below_best(job: Reading) -> float | None:
    """Return by what share of the best the newest score is worse; None: there are no two to compare."""
    record = job.record
    if not record.evals or record.best is None or not record.best.score:
        return None
    gap = (record.best.score - record.evals[-1].score) * (1.0 if job.maximize else -1.0)
    return max(0.0, gap / abs(record.best.score))


def _facts(job: Reading, found: tuple[Finding, ...], now: float) -> Iterator[tuple[str, str]]:
    record, decision = job.record, job.record.decision
    if short := evidence(record, job.direction):
        yield "in short", short
    yield "rule", rule(job.spec)
    own = read_rule(rule_and_modifiers(job.spec)[0], RULES)
    if own is not None and record.evals:
        yield "promises", promise(own, record.evals_seen)
        yield "others", other_rules_sentence(other_rules(record, own.name, job.direction, job.scale))
    direction = "higher is better" if job.maximize else "lower is better"
    yield "metric", f"{job.metric.get('name', '-')} ({direction}), mode {job.mode}"
    read = job.condition(c.METRICS)
    if read is not None and read.reason == c.MODE_OFF:
        yield "watched", read.message
    if job.state == c.RUNS_ON:
        yield "runs on", "it keeps its GPUs and trains; until its spec can be carried out, no rule stops it"
    if not any(one.reason == c.DIRECTION_DOUBTFUL for one in found):
        for doubt in job.doubts:
            yield "direction", doubt
    if record.baseline is not None and record.baseline.step >= 0:
        last = f"step {record.baseline.step} of attempt {record.baseline.life.partition('-')[0] or 1}"
        yield "compared", f"only evals after {last}: those before were scored otherwise"
    for pin in record.baseline.pins if record.baseline is not None else ():
        score = f", scored {formatting.number(pin.score)} then" if pin.score is not None else ""
        yield "before", f"step {pin.step}{score}, still pinned at {pin.path}"
    verdict = record.rule.verdict if record.rule is not None else None
    if decision is not None and decision.by != "User":
        p = decision.proposal
        yield (
            "decision",
            f"{p.reason}: {formatting.statistic(p.statistic, p.threshold)} "
            f"against {formatting.number(p.threshold)}",
        )
        if p.e_value is not None:
            yield "e-value", formatting.number(p.e_value)
        yield "said", decision.message
    elif verdict is not None:
        grade = f", {verdict.grade}" if verdict.grade is not None else ""
        yield (
            "verdict",
            f"{verdict.verb}{grade}, {verdict.reason}: "
            f"{formatting.statistic(verdict.statistic, verdict.threshold)} "
            f"against {formatting.number(verdict.threshold)}",
        )
        if verdict.e_value is not None:
            yield "e-value", formatting.number(verdict.e_value)
    if held := _held_back(record, found):
        yield "held back", held
    if claim_step := _lay_there(record):
        text = f"held checkpoints up to step {claim_step} before the run began"
        first = record.lives[0].resumed if record.lives else None
        yield "folder", f"{text}; it did not go on from them" if first == 0 else text
    if record.progress is not None:
        far = record.progress
        yield "progress", how_far(far.step, far.total_steps) + _ended_there(record, found)
    if short := rollout_sentence(job):
        yield "actors", short
    if short := residency_sentence(job):
        yield "group", short
    if again := _started_again(record, found):
        yield "process", again
    if record.sparing is not None and record.spared is not None:
        yield (
            "resumed",
            f"no rule stops it for {counted(record.sparing.evals, 'eval')}; {record.spared} "
            f"{agreeing(record.spared, 'is', 'are')} left",
        )
    if record.outcome is not None:
        if record.outcome.former:
            yield "stop before", record.outcome.former
        earlier = decision is None or decision.at != record.outcome.decided
        yield "earlier stop" if earlier else "outcome", was_right(record.outcome)
    yield from _scores(job)
    if lost := lost_best(record):
        yield "lost", lost
    yield from (("lost", text) for text in losses(record))
    if job.mode == Mode.SHADOW and record.finished is None and record.best is not None and not record.secured:
        name = f"{job.name}{job.flags()}"
        yield "secured", f"nothing: mode Shadow secures no checkpoint (evalstop pin {name} best keeps one)"
    for kept, label in ((record.secured, "secured"), *((k, "retained") for k in record.retained)):
        if kept is not None:
            known = ", ".join(filter(None, (f"{kept.digest[:19]}...", whole_by(kept.evidence))))
            text = f"step {kept.step} at {kept.path} ({formatting.size(kept.bytes)}, {known})"
            gone = label == "retained" and kept in found_gone(record)
            yield label, f"{text}; a resume found it gone or changed" if gone else text
    if job.page_notes and not any(job.page_notes == one.message for one in found):
        yield "metrics", job.page_notes
    for guard in record.guards:
        if guard.verdict is not None:
            v = guard.verdict
            numbers = formatting.statistic(v.statistic, v.threshold)
            numbers += f" against {formatting.number(v.threshold)}"
            better = f"{'higher' if job.maximized(guard.metric) else 'lower'} is better"
            yield (
                "guardrail",
                f"{guard.metric} ({better}): {v.verb}, {v.reason}, {numbers} at step {guard.step}",
            )
    if record.past_grades is not None:
        past = record.past_grades
        for spent, what in ((past.warned, "warned of"), (past.demoted, "demoted"), (past.stopped, "stopped")):
            if spent > 0:
                yield (
                    "in Shadow" if job.mode == "Shadow" else "meanwhile",
                    (f"{formatting.gpu_hours(spent)} of service while it was, or would be, {what}"),
                )
    for one in found:
        yield "trouble" if one.warning else "note", sentence(one, now)


def _held_back(record: JobRecord, found: tuple[Finding, ...]) -> str:
    """Return which check keeps the stop away that its rule asks for; "": none, or a mark says so."""
    target = record.condition(c.TERMINATION)
    if target is None or target.status or record.decision is not None or not trains(record):
        return ""
    if target.reason in _NOT_ASKED:
        return ""
    told = any(
        one.reason == target.reason and (one.message == target.message or one.mark is Mark.UNSAFE)
        for one in found
    )
    return "" if told else f"{target.reason}: {target.message}"


def _lay_there(record: JobRecord) -> int:
    """Return the step of the newest checkpoint that lay in the folder before a run's first attempt; 0: none,
    or nobody knows any more."""
    claim = record.claim
    first = claim is not None and claim.attempt == 1 and not claim.life
    return claim.newest_step if first and claim is not None else 0


def _ended_there(record: JobRecord, found: tuple[Finding, ...]) -> str:
    """Return that a run ended by itself before its last steps, a clause; "": it did not, or its last part was
    not seen. Told from nearer to its end on than where it is remarked (`ended_early.complaint`).
    """
    far = ended_early.ended_by_itself(record)
    if far is None:
        return ""
    if far.step > ENDED_EARLY * far.total_steps or any(one.mark is Mark.UNWATCHED for one in found):
        return ""
    return " when its page was last read; then it ended by itself, without an error"


def _started_again(record: JobRecord, found: tuple[Finding, ...]) -> str:
    """Return that the trainer was started again within its attempt, whoever did that; "": it was not."""
    former, newest = (None, None, *record.lives)[-2:]
    if former is None or newest is None or former.attempt.number != newest.attempt.number:
        return ""
    step = f", and went on from step {newest.resumed}" if newest.resumed else ""
    # Of one that names no start the record has the step before its first eval.
    if (first := _first_eval(record, newest)) is not None:
        step = f"; its first eval since is that of step {first}"
    if any(one.reason == c.BEGAN_AT_THE_START for one in found):
        step = ", and began at the start"
    return f"started again within attempt {newest.attempt.number}, at {formatting.moment(newest.at)}{step}"


def _first_eval(record: JobRecord, newest: LifeRecord) -> int | None:
    """Return the step of the newest process' first eval, where the step that it started from was taken from
    that one; None: it said it.

    That eval may be on record no more: it then lies as far from those that are as they lie apart.
    """
    steps = [p.step for p in record.evals if p.attempt == newest.attempt]
    if newest.resumed is None or not steps:
        return None
    first = newest.resumed + 1
    apart = math.gcd(*(b - a for a, b in pairwise(steps)))
    return first if first == steps[0] or (apart > 1 and (steps[0] - first) % apart == 0) else None


def rollout_sentence(job: Reading) -> str:
    """Return what a job's rollout actors and its last step say; "": it has none."""
    record = job.record
    account = record.rollout
    if not record.actors and account is None:
        return ""
    states = Counter(str(actor.state) for actor in record.actors)
    text = ", ".join(f"{count} {state}" for state, count in states.items()) or "none now"
    if account is not None and account.recent:
        last = account.recent[-1]
        text += f"; step {last.step} took {last.seconds:.1f} s"
        text += f" ({last.planned_seconds:.1f} planned)" if last.planned_seconds is not None else ""
        text += f" with {counted(last.actors, 'actor')}" + (f": {last.reason}" if last.reason else "")
    if account is not None and account.failed:
        text += f"; {account.failed} ended or were put aside unasked"
    return text


def residency_sentence(job: Reading) -> str:
    """Return what a job's residency in a worker group says; "": it asks for none, and was charged nothing."""
    asked, known = job.spec.get("sharing") or {}, job.record.residency
    spent = residency.charged(job.record)
    if known is None or not known.group:
        if not asked:
            return f"none now; charged {formatting.gpu_hours(spent)} of groups in all" if spent else ""
        text = f"none now, it asks for one of family {asked.get('family')}"
        if known is not None and known.not_in:
            text += f", not in {', '.join(known.not_in)}, where it slowed others"
    else:
        how = "leaves" if known.leaving else "a resident" if known.joined else "not taken in yet"
        text = f"{known.group} (family {asked.get('family', 'unknown')}), {how}"
        if (lost := residency.loses_turns(job.record)) is not None:
            text += f"; {lost.message.partition(': ')[2]}"
        if (waits := residency.waits(job.record)) is not None:
            text += f"; {waits[1].message.partition(': ')[2]}"
        text += ", alone until enough steps of its kind are measured" if known.kind_measured is False else ""
        if known.slowdown is not None:
            allowed = times_allowed(slowdown_limit(asked))
            text += f"; steps take {known.slowdown:.2f} times as long as alone, {allowed:.2f} is allowed"
            text += f", longer for {counted(known.above, 'step')} now" if known.above else ""
    return text + (f"; charged {formatting.gpu_hours(spent)} of groups" if spent else "")


def _scores(job: Reading) -> Iterator[tuple[str, str]]:
    record = job.record
    if record.best is not None:
        yield "best", best_sentence(record, record.best)
        if record.awaiting is not None:
            yield "awaiting", _awaiting(job, record.best, record.awaiting)
        if (peak := not_counted(job)) is not None:
            yield "not counted", peak.sentence(job.direction)
    if record.evals:
        newest = record.evals[-1]
        text = f"{formatting.number(newest.score)} at step {newest.step}"
        if newest.stderr is not None:
            text += f" (standard error {formatting.number(newest.stderr)})"
        if record.best is not None and newest.step != record.best.step:
            gap = abs(newest.score - record.best.score)
            worse = (newest.score < record.best.score) is job.maximize
            share = f", {percent(gap / abs(record.best.score))}" if record.best.score else ""
            text += f": {formatting.number(gap)}{share} {'worse' if worse else 'better'} than the best"
        yield "newest", text
    if record.evals_seen or record.evals_missed:
        missed = f", {record.evals_missed} gone before they were read" if record.evals_missed else ""
        yield "evals", f"{record.evals_seen} seen by the rule{missed}"


def not_counted(job: Reading) -> LonePeak | None:
    """Return the best eval that is better than the best and counts for nothing; None: there is none."""
    named = (read_rule(one, MODIFIERS) for one in rule_and_modifiers(job.spec)[1:])
    modifiers = (one for one in named if one is not None)
    return lone_peak(job.record, modifiers, job.direction, f"{job.name}{job.flags()}")


def _awaiting(job: Reading, best: Best, awaiting: Best) -> str:
    """Return the eval whose checkpoint is kept beside the best's, and what for."""
    beside = job.record.beside
    pinned = beside is not None and beside.stands_for(awaiting)
    if awaiting.score != best.score and (awaiting.score > best.score) is job.maximize:
        why = "is the best if later evals bear it out"
    else:
        why = "is the best if later evals show that the one above is none"
    where = f"pinned beside, at {beside.path}" if pinned and beside is not None else "not pinned yet"
    return f"{formatting.number(awaiting.score)} at step {awaiting.step}: {why}; its checkpoint is {where}"


def stages(decision: Decision | None) -> Iterator[tuple[float, str]]:
    """Yield what was done about a stop, in its order: (when (s), what)."""
    if decision is None:
        return
    yield decision.at, "decided" if decision.mode is Mode.ENFORCE else "decided, in Shadow: nothing is done"
    if decision.held_nothing:
        return  # it only stays out of the queue
    known = (
        (decision.deferred_at, "copy of the best checkpoint put off until it is suspended"),
        (decision.retained_at, "best checkpoint retained and verified"),
        (decision.suspended_at, "workload suspended"),
        (decision.pods_gone_at, "pods gone: GPUs free"),
        (decision.handed_at, f"GPUs handed to {_handed_to(decision)}"),
    )
    done = [(when, what) for when, what in known if when is not None and math.isfinite(when)]
    yield from sorted(done, key=lambda stage: stage[0])


def _handed_to(decision: Decision) -> str:
    to = decision.handed_to or ""
    return ELSEWHERE if to.startswith(UID) else to


def _next_steps(job: Reading, found: tuple[Finding, ...]) -> Iterator[tuple[str, str]]:
    """Yield the cures, then what else helps. One command may cure two faults: it is told with each."""
    cures = dict.fromkeys(do for one in found for do in as_steps(cure(job, one.code, one.message)))
    yield from cures
    told = {command for command, _ in cures}
    yield from (step for step in _ways(job, told) if step[0] not in told)


def _ways(job: Reading, told: set[str]) -> Iterator[tuple[str, str]]:
    name = f"{job.name}{job.flags()}"
    state = job.state
    if state == "New":
        yield "evalstop doctor", "is the operator there, and may it work?"
    if state in ("Queued", "Unfit", "Preempting"):
        yield f"evalstop queue {job.spec.get('pool', 'POOL')} --job {job.key}", "its place in the queue"
    if job.record.rollout is not None and job.record.admission is not None:
        yield f"evalstop rollouts {name}", "its actors and its last steps, planned and measured"
    if job.record.residency is not None and job.record.residency.group:
        yield f"evalstop groups {job.record.residency.group}", "whose turn it is there, and who waits"
    elif job.spec.get("sharing") and state == "Queued":
        yield f"evalstop groups --pool {job.spec.get('pool', 'POOL')}", "the groups that there are"
    if state == "Stopped" or (state == "WouldStop" and job.mode == Mode.SHADOW):
        yield from ways_on(job.record, name)
    if job.record.evals and state not in ("Queued", "Refused"):
        yield f"evalstop simulate {name} --rule glr", "what another rule would have done"
    unwell = {"Failed", "Starting", *MARKED} - {Mark.WOULD_STOP}
    waits = state in unwell or (state == "Running" and not job.record.evals)
    if waits and not any(f"evalstop doctor {name}" in command for command in told):
        yield f"evalstop doctor {name}", "looks at its pods, metrics and checkpoints"


def document(job: Reading, found: Explanation) -> dict[str, Any]:
    """Return all of it as JSON."""
    from controller.cli.job_view import kept, point

    record, decision = job.record, job.record.decision
    verdict = record.rule.verdict if record.rule is not None else None
    out: dict[str, Any] = {
        "job": job.key,
        "state": job.state,
        "why": found.headline.partition(": ")[2],
        "mode": job.mode,
        "metric": job.metric.get("name"),
        "direction": "Maximize" if job.maximize else "Minimize",
        "rule": rule(job.spec),
        "decision": None,
        "verdict": None,
        "outcome": None,
        "best": None if record.best is None else {"step": record.best.step, "score": record.best.score},
        "bestIsAlone": record.best_is_alone,
        "before": [kept(one) for one in record.baseline.pins] if record.baseline is not None else [],
        "notCounted": None,
        "evals": [point(p) for p in record.evals],
        "secured": None if record.secured is None else kept(record.secured),
        "retained": [kept(k) for k in record.retained],
        "conditions": [
            {"type": x.type, "status": x.status, "reason": x.reason, "message": x.message}
            for x in record.conditions
        ],
        "stages": [{"time": formatting.moment(at), "what": what} for at, what in found.stages],
        "marks": [mark_document(job, one) for one in found.marks],
        "next": [command for command, _ in found.next_steps],
    }
    if decision is not None:
        p = decision.proposal
        out["decision"] = {
            "by": decision.by,
            "mode": str(decision.mode),
            "reason": p.reason,
            "message": decision.message,
            "step": p.step,
            "bestStep": p.best_step,
            "metric": p.metric or None,
            "statistic": _finite(p.statistic),
            "threshold": _finite(p.threshold),
            "eValue": p.e_value,
            "handedTo": decision.handed_to,
        }
    if (peak := not_counted(job)) is not None:
        out["notCounted"] = {
            "step": peak.step,
            "lastStep": peak.last,
            "score": peak.score,
            "others": peak.others,
            "reason": peak.reason,
            "path": peak.path or None,
            "text": peak.sentence(job.direction),
        }
    if job.spec.get("sharing") or record.residency is not None or record.charged:
        out["residency"] = _residency(job)
    if (was := record.outcome) is not None:
        out["outcome"] = {
            "verdict": str(was.verdict),
            "text": was_right(was),
            "mode": str(was.mode),
            "step": was.step,
            "evals": was.evals,
            "former": was.former or None,
            "bestStep": was.best.step,
            "laterBestStep": None if was.later is None else was.later.step,
        }
    if verdict is not None:
        out["verdict"] = {
            "verb": str(verdict.verb),
            "reason": verdict.reason,
            "statistic": _finite(verdict.statistic),
            "threshold": _finite(verdict.threshold),
            "eValue": verdict.e_value,
            "grade": None if verdict.grade is None else str(verdict.grade),
        }
    return out


def _residency(job: Reading) -> dict[str, Any]:
    asked, known = job.spec.get("sharing") or {}, job.record.residency
    there = known is not None and bool(known.group)
    return {
        "family": asked.get("family"),
        "group": known.group if known is not None and there else None,
        "joined": known.joined if known is not None else False,
        "leaving": known.leaving if known is not None else False,
        "profiled": known.kind_measured if known is not None else None,
        "slowdown": known.slowdown if known is not None else None,
        "maxSlowdownPercent": slowdown_limit(asked) if asked else None,
        "notIn": list(known.not_in) if known is not None else [],
        "chargedGPUSeconds": residency.charged(job.record),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
