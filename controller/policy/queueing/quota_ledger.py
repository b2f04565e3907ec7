"""Quota accounting: GPUs of a pool that namespaces are guaranteed, and the most that they may have.

A gang counts whole, from its admission until it is off its GPUs, whether its pods have nodes or not. So what
it was promised or is reserved counts against the limit, and the two never disagree about who has what. So do
base actors, lent or not, and spare actors as long as they are there.

Which of an entry's gangs lie within its guarantee: those that run are walked in the order in which they
started, and each lies within it that fits beside those before it that do. All others are borrowed whole. A
run that its rule has demoted is always borrowed: it gives way to everybody anyhow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from controller.policy.queueing.base import sizes
from controller.policy.types import JobKey, JobState, JobView, Quota, Waiting
from controller.policy.wording import counted

AT_LIMIT = "AtQuotaLimit"

Entry = int | None  # place in `PoolSnapshot.quotas`; None: a namespace in no entry


class Usage(NamedTuple):
    """GPUs of one entry. ``waiting``: those that its waiting gangs ask for."""

    used: int
    borrowed: int
    waiting: int


class QuotaLedger:
    """GPUs in use by entry. A namespace in no entry is guaranteed nothing and limited by nothing.

    ``used``: what its jobs were admitted with. ``lent``: of their spare actors: it counts against the limit,
    and not against the guarantee, for it has to go when somebody needs it.
    """

    __slots__ = ("_entries", "lent", "quotas", "used")

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self.quotas = tuple(quotas)
        self._entries = {name: n for n, quota in enumerate(self.quotas) for name in quota.namespaces}
        self.used = [0] * len(self.quotas)
        self.lent = [0] * len(self.quotas)

    def entry(self, key: JobKey) -> Entry:
        return self._entries.get(key.partition("/")[0])

    def charge(self, key: JobKey, gpus: int, lent: int = 0) -> None:
        """Add the GPUs of a job, and of its spare actors; negative: take them off again."""
        entry = self.entry(key)
        if entry is not None:
            self.used[entry] += gpus
            self.lent[entry] += lent

    def guaranteed(self, key: JobKey, gpus: int) -> bool:
        """Return whether a gang that waits would lie within its guarantee, beside all that its entry has."""
        entry = self.entry(key)
        return entry is not None and self.used[entry] + gpus <= self.quotas[entry].guaranteed

    def bars(self, key: JobKey, gpus: int) -> bool:
        """Return whether a gang that waits would lie above its limit."""
        entry = self.entry(key)
        if entry is None or not gpus:
            return False
        limit = self.quotas[entry].limit
        return limit is not None and self.used[entry] + self.lent[entry] + gpus > limit

    def copy(self) -> QuotaLedger:
        other = QuotaLedger.__new__(QuotaLedger)
        other.quotas, other._entries = self.quotas, self._entries
        other.used, other.lent = self.used.copy(), self.lent.copy()
        return other


def inside(ledger: QuotaLedger, running: Iterable[tuple[JobKey, int, bool]]) -> set[JobKey]:
    """Return which of the running gangs lie within their guarantees.

    ``running``: (key, GPUs, demoted) of each in the order in which they started.
    """
    left = [quota.guaranteed for quota in ledger.quotas]
    found = set()
    for key, gpus, demoted in running:
        entry = ledger.entry(key)
        if entry is not None and not demoted and gpus <= left[entry]:
            left[entry] -= gpus
            found.add(key)
    return found


def charged(quotas: Sequence[Quota], jobs: Iterable[JobView], admitted: Iterable[JobKey] = ()) -> QuotaLedger:
    """Return what each entry has; ``admitted``: of the queued ones, who is admitted just now."""
    starting = set(admitted)
    ledger = QuotaLedger(quotas)
    for job in jobs if quotas else ():
        if job.state is not JobState.QUEUED or job.key in starting:
            ledger.charge(job.key, job.gpus, job.spare_gpus)
    return ledger


def usage(quotas: Sequence[Quota], jobs: Iterable[JobView], admitted: Iterable[JobKey] = ()) -> list[Usage]:
    """Return how each entry stands, in their order."""
    jobs, starting = list(jobs) if quotas else [], set(admitted)
    ledger = charged(quotas, jobs, starting)
    waiting = [0] * len(ledger.quotas)
    for job in jobs:
        entry = ledger.entry(job.key)
        if entry is not None and job.state is JobState.QUEUED and job.key not in starting:
            waiting[entry] += job.gpus
    has = [used + lent for used, lent in zip(ledger.used, ledger.lent, strict=True)]
    return [
        Usage(used, max(0, used - quota.guaranteed), asked)
        for quota, used, asked in zip(ledger.quotas, has, waiting, strict=True)
    ]


def whose(quota: Quota, key: JobKey) -> str:
    """Return a name for a quota that a job of it may see: the names of other namespaces are left out."""
    others = len(quota.namespaces) - 1
    more = "" if not others else " and 1 more" if others == 1 else f" and {others} more"
    return f"namespace {key.partition('/')[0]}{more}"


def too_large(quotas: Sequence[Quota], jobs: Iterable[JobView]) -> dict[JobKey, Waiting]:
    """Queued gangs that are larger than all that they may ever have, and why."""
    ledger = QuotaLedger(quotas)
    found = {}
    for job in jobs if quotas else ():
        entry = ledger.entry(job.key)
        if entry is None or job.state is not JobState.QUEUED or not ledger.bars(job.key, job.gpus):
            continue
        quota = quotas[entry]
        message = (
            f"spec.gang: {sizes(job)} are more than the limit of "
            f"{quota.limit} that the pool's quota sets for {whose(quota, job.key)}; "
            f"at most {quota.limit} is right"
        )
        found[job.key] = Waiting(job.key, 0, "TooLarge", message)
    return found


def explained(
    waiting: Iterable[Waiting],
    barred: Iterable[JobView],
    ledger: QuotaLedger,
    views: Mapping[JobKey, JobView],
) -> tuple[Waiting, ...]:
    """Return why jobs wait, with what quotas have to do with it. ``barred``: those at their limit."""
    found = []
    for why in waiting:
        job = views[why.key]
        entry = ledger.entry(job.key)
        if entry is not None and why.position and not job.demoted and ledger.guaranteed(job.key, job.gpus):
            quota = ledger.quotas[entry]
            text = (
                f"{why.message}; it fits into the {counted(quota.guaranteed, 'GPU')} guaranteed to "
                f"{whose(quota, job.key)} ({ledger.used[entry]} in use), so borrowed runs give way where "
                "that makes room"
            )
            why = replace(why, message=text)
        found.append(why)
    for job in barred:
        entry = ledger.entry(job.key)
        if entry is None:
            continue
        quota, has = ledger.quotas[entry], ledger.used[entry] + ledger.lent[entry]
        text = (
            f"needs {sizes(job)}; the pool's quota allows {quota.limit} "
            f"at most to {whose(quota, job.key)}, of which {has} {'is' if has == 1 else 'are'} in use"
        )
        found.append(Waiting(job.key, 0, AT_LIMIT, text))
    return tuple(found)


def quota_state(
    quotas: Sequence[Quota], jobs: Sequence[JobView], admitted: Iterable[JobKey] = ()
) -> Mapping[JobKey, str]:
    """Return how each waiting job stands with its quota: guaranteed, borrows, or at its limit."""
    starting = set(admitted)
    ledger = charged(quotas, jobs, starting)
    found = {}
    for job in jobs if quotas else ():
        if job.state is not JobState.QUEUED or job.key in starting:
            continue
        if not job.demoted and ledger.guaranteed(job.key, job.gpus):
            found[job.key] = "guaranteed"
        else:
            found[job.key] = "at limit" if ledger.bars(job.key, job.gpus) else "borrows"
    return found
