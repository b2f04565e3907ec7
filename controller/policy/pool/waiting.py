"""The reason for which each queued job waits."""

from __future__ import annotations

from collections.abc import Mapping

from controller.policy.pool.best_fit import FreeGpus
from controller.policy.pool.delegates import waits_for_quota
from controller.policy.pool.placement import Shape, fit_job, shape
from controller.policy.pool.residencies import Residencies
from controller.policy.queueing.base import sizes
from controller.policy.sharing import NO_GROUP_FITS
from controller.policy.types import JobKey, JobView, Waiting
from controller.policy.wording import named


def reasons(
    rest: list[JobView],
    free: Mapping[str, int],
    inadmissible: Mapping[JobKey, Waiting],
    paused: Mapping[JobKey, str],
    offered: Mapping[JobKey, JobView] | None,
    residencies: Residencies | None = None,
) -> tuple[Waiting, ...]:
    """Return why each job waits.

    Args:
        rest: who waits, next one first.
        free: GPUs per node that nobody uses.
        inadmissible: who cannot run at all.
        paused: who backs off.
        offered: jobs for which an external queue has quota; None: no such queue is asked.
        residencies: of worker groups; None: the pool has none.
    """
    waiting = []
    head = next((j.key for j in rest if offered is None or j.key in offered), None)
    total, largest = sum(free.values()), max(free.values(), default=0)
    fits: dict[Shape, bool] = {}
    room = FreeGpus(free)
    for position, job in enumerate(rest, start=1):
        if offered is not None and job.key not in offered:
            waiting.append(waits_for_quota(job, position))
            continue
        if job.sharing is not None and residencies is not None:
            waiting.append(Waiting(job.key, position, NO_GROUP_FITS, residencies.why_not(job, total)))
            continue
        asked = shape(job)
        if asked not in fits:
            fits[asked] = fit_job(room, asked) is not None
        if fits[asked]:
            assert head is not None  # this one, if no other
            why = f"it would fit, but {named(head, job.key)} comes first"
            waiting.append(Waiting(job.key, position, "BehindHead", why))
        else:
            there = f"{total} {'is' if total == 1 else 'are'} free"
            message = f"needs {sizes(job)} at once; {there}, at most {largest} on one node"
            waiting.append(Waiting(job.key, position, "WaitingForGPUs", message))
    waiting += [
        Waiting(key, 0, "BackingOff", why) for key, why in sorted(paused.items()) if key not in inadmissible
    ]
    waiting += inadmissible.values()
    return tuple(waiting)
