"""One afternoon of a small cluster: what the dashboard's pictures show and its browser tests look at."""

from __future__ import annotations

from dataclasses import replace

from controller.api import values
from controller.policy.job.record import Condition, JobRecord
from controller.policy.types import Mode
from tests.support.dashboard_world import (
    Object,
    conditions,
    declining,
    followed_up,
    healthy,
    job_object,
    judged,
    over_optimising,
    pool_object,
    stopped,
    until_stop,
    with_record,
)

WAITING = ("team-b", "gemma-rm-large")
STOPPED = ("team-a", "overoptimising")
FALLING = ("team-a", "llama-dpo-kl0")


def scene(now: float) -> list[Object]:
    """Two pools and a dozen jobs in every state there is, as of ``now`` (s)."""
    pool = _research(now)
    small = pool_object(
        "night", {"capacity": 16, "free": 12, "held": 0, "foreign": 2, "running": 1, "queued": 0}
    )
    out = [pool, small]

    graded = [{"warmUp": {"minEvals": 5}}, {"graded": {}}]
    stop = job_object(*STOPPED, created=now - 9000, modifiers=graded)
    curve = until_stop(stop, over_optimising(104), pool)
    out.append(
        with_record(stop, stopped(judged(stop, curve, now - 760, pool), now - 755, "/".join(WAITING)), pool)
    )

    rule = {"kDeclines": {"k": 4, "minDelta": "0.01"}}
    fall = job_object(*FALLING, created=now - 7000, stopRule=rule, modifiers=graded)
    curve = until_stop(fall, over_optimising(7, 40), pool)[:-1]
    message = "3 declines in a row (threshold 4); best 0.9037 at step 130: 75% of the way to a stop"
    out.append(with_record(fall, declining(judged(fall, curve, now - 20, pool), now, message), pool))

    for seed, (namespace, name) in enumerate(
        (("team-a", "mistral-ppo-3"), ("team-b", "qwen-grpo-math"), ("team-c", "gemma-safety"))
    ):
        run = job_object(namespace, name, created=now - 5000 - 600 * seed)
        out.append(with_record(run, judged(run, healthy(seed, 14 + 3 * seed), now - 30 * seed, pool), pool))

    shadow = job_object("team-c", "phi-shadow", created=now - 8000, mode="Shadow")
    curve = until_stop(shadow, over_optimising(21), pool)
    record = stopped(judged(shadow, curve, now - 1500, pool), now - 1500, mode=Mode.SHADOW)
    out.append(followed_up(shadow, record, pool, now))

    for number, (namespace, name) in enumerate(
        (WAITING, ("team-c", "llama-judge"), ("team-a", "ablation-7"))
    ):
        why = f"{number} ahead; waits for 4 GPUs, {3 - number} are free"
        waits = Condition("Admitted", False, "WaitingForGPUs", why, now - 900 + 200 * number, 1)
        record = JobRecord(conditions=(*conditions(now - 900, Accepted="Valid"), waits))
        out.append(with_record(job_object(namespace, name, created=now - 900 + 200 * number), record, pool))

    for number in range(3):
        done = job_object("team-b", f"earlier-{number}", created=now - 90000 - 20000 * number)
        curve = until_stop(done, over_optimising(60 + number), pool)
        at = now - 60000 + 18000 * number
        record = stopped(judged(done, curve, at, pool), at, "team-c/gemma-safety")
        out.append(with_record(done, replace(record, admission=None), pool))
    ended = job_object("team-c", "finished-fine", created=now - 40000)
    record = judged(ended, healthy(9, 24), now - 3000, pool)
    over = conditions(now - 2900, Accepted="Valid", Completed="Complete", GPUsReleased="PodsGone")
    out.append(with_record(ended, replace(record, conditions=over, finished="Complete"), pool))
    return out


def many(count: int, now: float) -> list[Object]:
    """So many jobs, a third of them with curves."""
    pool = _research(now)
    out = [pool]
    records: dict[str, JobRecord] = {}
    for number in range(count):
        obj = job_object(f"team-{number % 12:02}", f"run-{number:04}", created=now - 60.0 * number)
        kind = number % 3
        if kind == 0:
            if "healthy" not in records:
                records["healthy"] = judged(obj, healthy(1), now, pool)
            out.append(with_record(obj, records["healthy"], pool))
        elif kind == 1:
            waits = Condition("Admitted", False, "WaitingForGPUs", "waits for GPUs", now - number, 1)
            accepted = conditions(now, Accepted="Valid")
            out.append(with_record(obj, JobRecord(conditions=(*accepted, waits)), pool))
        else:
            if "stopped" not in records:
                curve = until_stop(obj, over_optimising(104), pool)
                records["stopped"] = stopped(judged(obj, curve, now, pool), now)
            out.append(with_record(obj, records["stopped"], pool))
    return out


def _research(now: float) -> Object:
    backs = [
        _back("team-b/earlier-0", "team-c/gemma-safety", now - 60000, 0.0),
        _back("team-b/earlier-1", "team-c/gemma-safety", now - 42000, 0.4),
        _back("team-b/earlier-2", "team-c/gemma-safety", now - 24000, 0.8),
        _back("/".join(STOPPED), "/".join(WAITING), now - 755, 0.2),
    ]
    status = {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": "ready",
                "lastTransitionTime": values.timestamp(now - 90000),
            }
        ],
        "nodeSizes": [{"gpus": 4, "nodes": 8}],
        "capacity": 32,
        "free": 3,
        "held": 4,
        "foreign": 2,
        "running": 5,
        "queued": 3,
        "lastHandovers": backs,
        "stops": {"lastHour": 1, "today": 3},
    }
    return pool_object("research", status)


def _back(source: str, target: str, at: float, more: float) -> Object:
    return {
        "source": source,
        "target": target,
        "by": "kDeclines",
        "gpus": 4,
        "decidedTime": values.timestamp(at),
        "retainedTime": values.timestamp(at + 1.4 + more),
        "suspendedTime": values.timestamp(at + 1.6 + more),
        "podsGoneTime": values.timestamp(at + 4.2 + more),
        "runningTime": values.timestamp(at + 9.7 + 2 * more),
    }
