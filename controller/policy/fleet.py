"""What a pool's proposals to stop say together, and how many of them it lets through.

Each stop rule looks at its own run. A fault that runs share, such as another evaluator or a broken prompt
set, lowers every score at once, and every rule is right about what it sees. So the pool asks four more
questions before it releases anybody, in this order; what it holds back stays proposed and is looked at again
at each pass.

1. Shared fall (`fleet_falls`): did the others fall at the same moment?
2. Breaker: were so many stopped within the hour, or ask to be, that a common cause is likelier? It is open as
   long as they are; it closes by itself when stops are an hour old, when jobs no longer ask (their rules take
   it back, they end, a user stops them), or when the limit is raised. Jobs that ask to be stopped only if
   others wait may do so for days, so they do not open it.
3. Precision (`fleet_precision`): is the evidence enough for the share of right stops that the pool promises?
4. Budget: how many stops does the hour have left?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.policy.fleet_falls import ask, mixes, remember
from controller.policy.fleet_precision import DAY, day_of, needed, rejected
from controller.policy.queueing.base import queue_key
from controller.policy.types import (
    HeldBack,
    JobState,
    JobView,
    MetricNoise,
    PastStop,
    SharedFall,
    StopCount,
    StopLimits,
)

HOUR = 3600.0  # s
STOPS_KEPT = 512  # that a pool remembers by itself; of earlier ones counts what its jobs still tell
FEW = 3  # proposals below which the breaker never opens: two runs may well decline together

SHARED_FALL = "FellTogether"
ASKS_OTHERS = "WaitsForOthers"
COMMON_MODE = "ManyAtOnce"
TOO_LITTLE = "TooLittleEvidence"
BUDGET_SPENT = "StopBudgetSpent"


class Fleet(Protocol):
    """The part of a `PoolSnapshot` that the questions are about."""

    @property
    def limits(self) -> StopLimits: ...
    @property
    def stopped(self) -> Sequence[PastStop]: ...
    @property
    def ended(self) -> int: ...
    @property
    def breaker_since(self) -> float | None: ...
    @property
    def noise(self) -> Sequence[MetricNoise]: ...
    @property
    def falls(self) -> Sequence[SharedFall]: ...


@dataclass(frozen=True, slots=True)
class Sifted:
    """``grant``: who may be released now. ``held``: who may not, and why. ``wake_at`` (s): when some may."""

    grant: tuple[JobView, ...]
    held: tuple[HeldBack, ...]
    wake_at: float | None
    stops: StopCount
    falls: tuple[SharedFall, ...]


def sift(jobs: Iterable[JobView], fleet: Fleet, now: float) -> Sifted:
    """Which of the jobs that propose their stop may be released at ``now`` (s)."""
    limits, jobs = fleet.limits, tuple(jobs)
    running = [j for j in jobs if j.state is JobState.ADMITTED]
    left = sorted((j for j in running if j.proposal is not None), key=queue_key)
    held: list[HeldBack] = []
    wakes: list[float] = []
    recent = sorted(s.at for s in fleet.stopped if now - HOUR < s.at <= now)
    # When the oldest of them is an hour old, the budget grows, the breaker may close, the count changes.
    wakes += [recent[0] + HOUR] if recent else []
    today = [s for s in fleet.stopped if day_of(now) <= s.at <= now]

    falls = _shared_falls(left, running, fleet, held, wakes, now)
    # Those that are to be stopped only if somebody waits come last: they may never use what they are given.
    left = sorted(_without(left, held), key=_patient)
    crowd = _common_mode(sum(not _patient(j) for j in left), len(running), len(recent), limits)
    if crowd is not None:
        held += [HeldBack(j.key, COMMON_MODE, crowd) for j in left]
        left = []
    room = len(left) if limits.per_hour is None else max(0, limits.per_hour - len(recent))
    if limits.precision is not None:
        # By evidence, the strongest first; of equals in the queue's order.
        left.sort(key=lambda j: (_patient(j), -_evidence(j)))
        ran = sum(1 for j in jobs if j.state is not JobState.QUEUED or j.attempt)
        account = ran + len(today) + fleet.ended
        asking, left = len(left), _precise(left, room, limits, account, today, held)
        wakes += [day_of(now) + DAY] if len(left) < asking else []
    if room < len(left):
        why = f"{len(recent)} stops in the last hour, {room} more are allowed; {len(left)} jobs ask for one"
        held += [HeldBack(j.key, BUDGET_SPENT, why) for j in left[room:]]
        left = left[:room]
    since = None if crowd is None else now if fleet.breaker_since is None else fleet.breaker_since
    reason, message = (
        (COMMON_MODE, crowd) if crowd else (held[0].reason, held[0].message) if held else ("", "")
    )
    stops = StopCount(len(recent), len(today), since, len(held), reason, message)
    return Sifted(tuple(left), tuple(held), min(wakes, default=None), stops, falls)


def _without(jobs: list[JobView], held: Iterable[HeldBack]) -> list[JobView]:
    keys = {h.key for h in held}
    return [j for j in jobs if j.key not in keys]


def _shared_falls(
    asking: list[JobView],
    running: list[JobView],
    fleet: Fleet,
    held: list[HeldBack],
    wakes: list[float],
    now: float,
) -> tuple[SharedFall, ...]:
    """Hold back those whose fall is shared or may be; return the falls known now."""
    percent, falls = fleet.limits.shared_fall_percent, tuple(fleet.falls)
    if percent is None:
        return falls
    waits: dict[str, str] = {}
    new: list[SharedFall] = []
    for job in asking:
        if mixes(job, falls) is not None:
            continue
        asked = ask(job, running, fleet.noise, percent, fleet.limits.shared_fall_wait, now)
        if asked.fall is not None:
            falls = remember(falls, asked.fall)
            new.append(asked.fall)
        elif asked.wait_until is not None:
            waits[job.key] = asked.message
            wakes.append(asked.wait_until)
    for job in asking:
        # One just found concerns all of its kind: what they have in memory reaches back before it.
        told = next((f for f in new if f.concerns(job.metric)), None)
        fall = mixes(job, falls) or told
        if fall is not None:
            why = f"{fall.fell} of {fall.of} jobs fell at the same moment, so that is no decline of its own"
            held.append(HeldBack(job.key, SHARED_FALL, why))
        elif job.key in waits:
            held.append(HeldBack(job.key, ASKS_OTHERS, waits[job.key]))
    return falls


def _common_mode(asking: int, running: int, recent: int, limits: StopLimits) -> str | None:
    """Stops of the last hour count as asking, and as running: a fault that they share may come in drops."""
    if limits.breaker_percent is None or asking + recent < FEW:
        return None
    together, all_ = asking + recent, running + recent
    if 100 * together < limits.breaker_percent * all_:
        return None
    return (
        f"{together} of {all_} jobs were stopped in the last hour or ask to be, {limits.breaker_percent} % "
        "or more: a cause that they share, such as another evaluator, is likelier than as many declines"
    )


def _patient(job: JobView) -> bool:
    """Whether the job is to be stopped only if somebody waits for its GPUs."""
    return job.proposal is not None and job.proposal.when_contended


def _evidence(job: JobView) -> float:
    """The e-value behind the job's proposal; 0: none."""
    assert job.proposal is not None
    e_value = job.proposal.e_value
    return e_value if e_value is not None and e_value == e_value else 0.0


def _precise(
    asking: list[JobView],
    room: int,
    limits: StopLimits,
    account: int,
    today: Sequence[PastStop],
    held: list[HeldBack],
) -> list[JobView]:
    """Those whose evidence is enough beside that of the others; the rest are held back.

    Only as many are weighed as may be released: a stop that is held back must not count for the others. For
    the same reason those that are to be stopped only if somebody waits are weighed one by one.
    """
    assert limits.precision is not None
    jobs, alpha = max(account, limits.precision_jobs), 1.0 - limits.precision
    past = [s.e_value for s in today if s.e_value is not None]

    def enough(evidence: Sequence[float]) -> int:
        return rejected(evidence, jobs, alpha, past)

    urgent = [j for j in asking if not _patient(j)]
    weighed = [_evidence(j) for j in urgent[:room]]
    certain = weighed[: enough(weighed)]
    # Where all that were weighed are let through, those after them fail at the budget, not at their evidence.
    first = urgent[: len(certain)] + (urgent[room:] if len(certain) == room else [])
    then = [j for j in asking if _patient(j) and enough([*certain, _evidence(j)]) > len(certain)]
    _hold_weak(asking, [*first, *then], needed(jobs, alpha, len(past) + len(certain) + 1), held)
    return first + then


def _hold_weak(asking: list[JobView], strong: list[JobView], least: float, held: list[HeldBack]) -> None:
    kept = {j.key for j in strong}
    for job in asking:
        if job.key not in kept:
            why = f"its e-value is {_evidence(job):.4g}; the pool's precision takes {least:.4g} for one more"
            held.append(HeldBack(job.key, TOO_LITTLE, why))
