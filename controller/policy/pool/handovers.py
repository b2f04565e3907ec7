"""The last handovers of a pool: from the decision to stop a job to the start of the job that got its GPUs.

Put together from the jobs' records at each pass, so that a crash loses none; what is known of a job that was
deleted since stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from controller.frozen import dataclass
from controller.policy.job import JobRecord
from controller.policy.stored import Count, Name, Time, Word
from controller.policy.types import JobKey, Mode
from controller.policy.wording import UID

HANDOVERS_KEPT = 32


@dataclass(frozen=True, slots=True)
class Handover:
    """A stop, from its decision to the run of the job that got the GPUs."""

    source: Annotated[JobKey, "Who was stopped (namespace/name)."]
    by: Annotated[Word, "Name of the rule, or User."]
    gpus: Annotated[Count, "GPUs handed back, its share of a worker group among them."]
    decided: Annotated[Time, Name("decidedTime"), "When the stop was decided."]
    retained: Annotated[
        Time | None,
        Name("retainedTime"),
        "When its best checkpoint was copied out of the trainer's reach and verified.",
    ] = None
    suspended: Annotated[Time | None, Name("suspendedTime"), "When it was suspended."] = None
    pods_gone: Annotated[Time | None, Name("podsGoneTime"), "When its pods were gone or terminal."] = None
    target: Annotated[JobKey | None, "Who got the GPUs (namespace/name)."] = None
    running: Annotated[Time | None, Name("runningTime"), "When all pods of that job were ready."] = None


def newest_handovers(
    known: Iterable[Handover], jobs: Iterable[tuple[JobKey, int, JobRecord]]
) -> tuple[Handover, ...]:
    """Return the newest `HANDOVERS_KEPT`, by the time of the decision, newest last.

    Args:
        known: result of the last pass.
        jobs: key, GPUs and record of each job of the pool. Of one that shared a worker group its share counts
            as long as it is a resident, and what was noted then stays.
    """
    jobs = list(jobs)
    back = {(key, record.taken_back.decided) for key, _, record in jobs if record.taken_back is not None}
    found = {(h.source, h.decided): h for h in known if (h.source, h.decided) not in back}
    for key, gpus, record in jobs:
        stop = _of(key, gpus, record)
        if stop is not None:
            before = found.get((key, stop.decided))
            if before is not None:
                stop = replace(stop, gpus=max(stop.gpus, before.gpus))
            if before is not None and before.target and stop.target and stop.target.startswith(UID):
                stop = replace(stop, target=before.target)  # deleted since: its name is known here alone
            running = before.running if before is not None and before.target == stop.target else None
            found[key, stop.decided] = replace(stop, running=running)
    started = {
        (record.admission.source, key): record.admission.running_since
        for key, _, record in jobs
        if record.admission is not None and record.admission.source is not None
    }
    newest = sorted(found.values(), key=lambda h: (h.decided, h.source))[-HANDOVERS_KEPT:]
    return tuple(
        replace(h, running=started.get((h.source, h.target)))
        if h.running is None and h.target is not None
        else h
        for h in newest
    )


def _of(key: JobKey, gpus: int, record: JobRecord) -> Handover | None:
    decision = record.decision
    if decision is None or decision.mode is not Mode.ENFORCE or decision.held_nothing:
        return None
    return Handover(
        source=key,
        by=decision.by,
        gpus=gpus,
        decided=decision.at,
        retained=decision.retained_at,
        suspended=decision.suspended_at,
        pods_gone=decision.pods_gone_at,
        target=decision.handed_to,
    )
