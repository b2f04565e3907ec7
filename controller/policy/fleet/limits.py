"""Limits on a pool's stops: how many of the proposed stops are let through, and which.

Each stop rule looks at its own run. A fault that runs share, such as another evaluator or a broken prompt
set, lowers every score at once, and every rule is right about what it sees. So the pool asks four more
questions before it releases anybody, in this order; what it holds back stays proposed and is looked at again
at each pass.

1. Shared fall (`shared_drops`): did the others fall at the same moment?
2. Breaker: were so many stopped within the hour, or ask to be, that a common cause is likelier? It is open as
   long as they are; it closes by itself when stops are an hour old, when jobs no longer ask (their rules take
   it back, they end, a user stops them), or when the limit is raised. Jobs that ask to be stopped only if
   others wait may do so for days, so they do not open it.
3. Precision (`ebh`): is the evidence enough for the share of right stops that the pool promises?
4. Budget: how many stops does the hour have left?

The first three are asked of each namespace by itself: what others report, or how many of them ask, neither
stops a run nor keeps it from being stopped, but for one wait where the pool's scope says so
(`shared_drops.elsewhere`). The budget is the pool's. It goes to the namespaces in turn, the one that had the
fewest stops in that hour first, so that whoever asks for many uses up nobody else's next one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from heapq import heapify, heappop, heappush
from typing import Protocol

from controller.frozen import dataclass
from controller.policy.fleet.ebh import DAY, day_start, evidence_threshold, rejection_count
from controller.policy.fleet.shared_drops import ask, elsewhere, mixes, remember
from controller.policy.fleet.tables import fair
from controller.policy.queueing.base import queue_key
from controller.policy.types import (
    Ended,
    FleetScope,
    HeldBack,
    JobState,
    JobView,
    MetricNoise,
    PastStop,
    SharedFall,
    StopCount,
    StopLimits,
    namespace_of,
)

HOUR = 3600.0  # s
STOPS_KEPT = 512  # that a pool remembers by itself; of earlier ones counts what its jobs still tell
FEW = 3  # proposals below which the breaker never opens: two runs may well decline together

SHARED_FALL = "FellTogether"
ASKS_OTHERS = "WaitsForOthers"
ASKS_POOL = "WaitsForNamespaces"
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
    def ended(self) -> Sequence[Ended]: ...
    @property
    def breaker_since(self) -> float | None: ...
    @property
    def noise(self) -> Sequence[MetricNoise]: ...
    @property
    def falls(self) -> Sequence[SharedFall]: ...


@dataclass(frozen=True, slots=True)
class LimitedStops:
    """Result of applying the pool's limits to the stops that are asked for.

    Attributes:
        grant: jobs that may be stopped now.
        held: jobs that may not, and why.
        wake_at: when some of them may (s); None: unknown.
    """

    grant: tuple[JobView, ...]
    held: tuple[HeldBack, ...]
    wake_at: float | None
    stops: StopCount
    falls: tuple[SharedFall, ...]


@dataclasses.dataclass(slots=True)
class _Space:
    """A namespace: its jobs, those that run, those that ask to be stopped, and its stops of the last hour."""

    name: str
    jobs: list[JobView] = field(default_factory=list)
    running: list[JobView] = field(default_factory=list)
    asking: list[JobView] = field(default_factory=list)  # in the queue's order
    recent: int = 0


def limit_stops(jobs: Iterable[JobView], fleet: Fleet, now: float) -> LimitedStops:
    """Return which of the jobs that propose their stop may be released at ``now`` (s)."""
    limits, held, wakes = fleet.limits, list[HeldBack](), list[float]()
    recent = sorted((s for s in fleet.stopped if now - HOUR < s.at <= now), key=lambda s: s.at)
    # When the oldest of them is an hour old, the budget grows, the breaker may close, the count changes.
    wakes += [recent[0].at + HOUR] if recent else []
    today = [s for s in fleet.stopped if day_start(now) <= s.at <= now]
    spaces = _spaces(jobs, recent)

    falls = tuple(fleet.falls)
    for space in spaces.values():
        falls = _shared_falls(space, spaces, fleet, falls, held, wakes, now)
    # Those that are to be stopped only if somebody waits come last: they may never use what they are given.
    left = sorted(_without((j for s in spaces.values() for j in s.asking), held), key=_turn)
    crowds = {}
    for space in spaces.values():
        urgent = sum(not _patient(j) for j in left if j.namespace == space.name)
        if (why := _common_mode(urgent, len(space.running), space.recent, limits)) is not None:
            crowds[space.name] = why
    held += [HeldBack(j.key, COMMON_MODE, crowds[j.namespace]) for j in left if j.namespace in crowds]
    left = [j for j in left if j.namespace not in crowds]
    room = len(left) if limits.per_hour is None else max(0, limits.per_hour - len(recent))
    served = {space.name: space.recent for space in spaces.values()}
    late: list[JobView] = []
    asking = len(left)
    if limits.precision is not None:
        # By evidence, the strongest first; of equals in the queue's order.
        left.sort(key=lambda j: (_patient(j), -_evidence(j)))
        left, late = _precise(left, room, served, limits, _accounts(spaces, fleet, today), held)
        wakes += [day_start(now) + DAY] if len(left) + len(late) < asking else []
    granted = {j.key for j in _turns(left, served, room)}
    over = [*(j for j in left if j.key not in granted), *late]
    many = len(left) + len(late)
    why = f"{len(recent)} stops in the last hour, {room} more are allowed; {many} jobs ask for one"
    held += [HeldBack(j.key, BUDGET_SPENT, why) for j in over]
    left = [j for j in left if j.key in granted]
    crowd = next(iter(crowds.values()), None)
    since = None if crowd is None else now if fleet.breaker_since is None else fleet.breaker_since
    reason, message = (
        (COMMON_MODE, crowd) if crowd else (held[0].reason, held[0].message) if held else ("", "")
    )
    stops = StopCount(len(recent), len(today), since, len(held), reason, message)
    return LimitedStops(tuple(left), tuple(held), min(wakes, default=None), stops, falls)


def kept_stops(stops: Sequence[PastStop]) -> list[PastStop]:
    """Return those that a pool remembers by itself, in their order: the newest, of each namespace its
    share."""
    return fair(stops[::-1], lambda stop: stop.namespace, STOPS_KEPT)[::-1]


def _spaces(jobs: Iterable[JobView], recent: Sequence[PastStop]) -> dict[str, _Space]:
    """Return the namespaces by name, in that order."""
    found: dict[str, _Space] = {}
    for job in jobs:
        name = namespace_of(job.key)
        space = found.get(name)
        if space is None:
            space = found[name] = _Space(name)
        space.jobs.append(job)
        if job.state is JobState.ADMITTED:
            space.running.append(job)
            if job.proposal is not None:
                space.asking.append(job)
    for stop in recent:
        found.setdefault(stop.namespace, _Space(stop.namespace)).recent += 1
    for space in found.values():
        space.asking.sort(key=queue_key)
    return dict(sorted(found.items()))


def _without(jobs: Iterable[JobView], held: Iterable[HeldBack]) -> list[JobView]:
    keys = {h.key for h in held}
    return [j for j in jobs if j.key not in keys]


def _turn(job: JobView) -> tuple[object, ...]:
    return (_patient(job), *queue_key(job))


def _turns(asking: Sequence[JobView], served: Mapping[str, int], room: int) -> Iterator[JobView]:
    """Yield the first ``room`` of them when the namespace that had the fewest stops goes next, its jobs in
    the order given. ``served``: the stops that each had in the last hour."""
    had = Counter(served)
    for patient in (False, True):
        lines: dict[str, list[tuple[int, JobView]]] = {}
        for place, job in enumerate(asking):
            if _patient(job) is patient:
                lines.setdefault(job.namespace, []).append((place, job))
        heap = [(had[name], line[0][0], name, 0) for name, line in lines.items()]
        heapify(heap)
        while heap and room > 0:
            count, _, name, at = heappop(heap)
            yield lines[name][at][1]
            room, had[name] = room - 1, count + 1
            if at + 1 < len(lines[name]):
                heappush(heap, (count + 1, lines[name][at + 1][0], name, at + 1))


def _shared_falls(
    space: _Space,
    spaces: Mapping[str, _Space],
    fleet: Fleet,
    falls: tuple[SharedFall, ...],
    held: list[HeldBack],
    wakes: list[float],
    now: float,
) -> tuple[SharedFall, ...]:
    """Hold back those whose fall is shared or may be; return the falls known now."""
    percent = fleet.limits.shared_fall_percent
    if percent is None:
        return falls
    waits: dict[str, str] = {}
    new: list[SharedFall] = []
    for job in space.asking:
        if mixes(job, falls) is not None:
            continue
        asked = ask(job, space.running, fleet.noise, percent, fleet.limits.shared_fall_wait, now)
        if asked.fall is not None:
            falls = remember(falls, asked.fall)
            new.append(asked.fall)
        elif asked.wait_until is not None:
            waits[job.key] = asked.message
            wakes.append(asked.wait_until)
    for job in space.asking:
        # One just found concerns all of its kind: what they have in memory reaches back before it.
        concerning = next((f for f in new if f.concerns(job.scored_by)), None)
        fall = mixes(job, falls) or concerning
        if fall is not None:
            why = f"{fall.fell} of {fall.of} jobs fell at the same moment, so that is no decline of its own"
            held.append(HeldBack(job.key, SHARED_FALL, why))
        elif job.key in waits:
            held.append(HeldBack(job.key, ASKS_OTHERS, waits[job.key]))
        elif (found := _delayed(job, space, spaces, fleet, percent, now)) is not None:
            why, until = found
            held.append(HeldBack(job.key, ASKS_POOL, why))
            wakes.append(until)
    return falls


def _delayed(
    job: JobView, space: _Space, spaces: Mapping[str, _Space], fleet: Fleet, percent: int, now: float
) -> tuple[str, float] | None:
    """Return why, and until when (s), a stop waits for what other namespaces report; None: it does not, or
    has."""
    if fleet.limits.scope is not FleetScope.POOL:
        return None
    since = now if job.delayed_at is None else job.delayed_at
    until = since + fleet.limits.shared_fall_wait
    if until <= now:
        return None
    others = {other.name: other.running for other in spaces.values() if other is not space}
    why = elsewhere(job, space.running, others, fleet.noise, percent)
    return (why, until) if why else None


def _common_mode(asking: int, running: int, recent: int, limits: StopLimits) -> str | None:
    """Return why a shared fault is likelier than so many declines; None: it is not.

    Stops of the last hour count as asking and as running, for a shared fault may show in one job after
    another.
    """
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
    """Return whether the job is to be stopped only if somebody waits for its GPUs."""
    return job.proposal is not None and job.proposal.when_contended


def _evidence(job: JobView) -> float:
    """Return the e-value behind the job's proposal; 0: none."""
    assert job.proposal is not None
    e_value = job.proposal.e_value
    return e_value if e_value is not None and e_value == e_value else 0.0


@dataclass(frozen=True, slots=True)
class _Account:
    """Sums behind a namespace's precision promise: its jobs of the day, and evidence of those stopped."""

    jobs: int
    past: tuple[float, ...]


def _accounts(spaces: Mapping[str, _Space], fleet: Fleet, today: Sequence[PastStop]) -> dict[str, _Account]:
    ended = Counter({entry.namespace: entry.jobs for entry in fleet.ended})
    stopped: dict[str, list[PastStop]] = {}
    for stop in today:
        stopped.setdefault(stop.namespace, []).append(stop)
    found = {}
    for name, space in spaces.items():
        ran = sum(1 for j in space.jobs if j.state is not JobState.QUEUED or j.attempt)
        past = stopped.get(name, [])
        jobs = max(ran + len(past) + ended[name], fleet.limits.precision_jobs)
        found[name] = _Account(jobs, tuple(s.e_value for s in past if s.e_value is not None))
    return found


def _precise(
    asking: Sequence[JobView],
    room: int,
    served: Mapping[str, int],
    limits: StopLimits,
    accounts: Mapping[str, _Account],
    held: list[HeldBack],
) -> tuple[list[JobView], list[JobView]]:
    """Return those whose evidence is enough beside that of the others of their namespace, and those that fail
    at the budget before their evidence is weighed; the rest are held back.

    Only as many are weighed as may be released: a stop that is held back must not count for the others. For
    the same reason those that are to be stopped only if somebody waits are weighed one by one.
    """
    assert limits.precision is not None
    alpha = 1.0 - limits.precision
    urgent: dict[str, list[JobView]] = {}
    for job in asking:
        if not _patient(job):
            urgent.setdefault(job.namespace, []).append(job)

    def enough(name: str, evidence: Sequence[float]) -> int:
        return rejection_count(evidence, accounts[name].jobs, alpha, accounts[name].past)

    # What a namespace is dealt and has not evidence enough for, others may have.
    wanted = {name: len(jobs) for name, jobs in urgent.items()}
    while True:
        able = {j.key for name, jobs in urgent.items() for j in jobs[: wanted[name]]}
        share = Counter(j.namespace for j in _turns([j for j in asking if j.key in able], served, room))
        sure = {
            name: enough(name, [_evidence(j) for j in jobs[: share[name]]]) for name, jobs in urgent.items()
        }
        if all(sure[name] == share[name] for name in urgent):
            break
        wanted = {name: sure[name] if sure[name] < share[name] else wanted[name] for name in urgent}
    strong, late = set[str](), set[str]()
    for name, jobs in urgent.items():
        strong |= {j.key for j in jobs[: sure[name]]}
        # Where all that were weighed are let through, those after them fail at the budget, not at their
        # evidence.
        late |= {j.key for j in jobs[sure[name] :]} if wanted[name] == len(jobs) else set()
    for job in asking:
        name = job.namespace
        if _patient(job):
            certain = [_evidence(j) for j in urgent.get(name, ())[: sure.get(name, 0)]]
            if enough(name, [*certain, _evidence(job)]) > len(certain):
                strong.add(job.key)
        if job.key not in strong and job.key not in late:
            least = evidence_threshold(
                accounts[name].jobs, alpha, len(accounts[name].past) + sure.get(name, 0) + 1
            )
            why = f"its e-value is {_evidence(job):.4g}; the pool's precision takes {least:.4g} for one more"
            held.append(HeldBack(job.key, TOO_LITTLE, why))
    return [j for j in asking if j.key in strong], [j for j in asking if j.key in late]
