"""A job's steps, in memory: what was announced, the plan, which actors are ready, what was learned.

All of it comes again from the trainer and the sidecars, so nothing is stored: after a change of leader a
step goes on with the actors it knows, and the next announcement is planned from scratch.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from controller.policy.rollout import (
    REMEMBERED,
    ActorLaw,
    Dispatch,
    Learned,
    RolloutPlan,
    RolloutSettings,
    StepQuestion,
    StepSeen,
    Supply,
    WorkReport,
    actors_due,
    check_size,
    expected_seconds,
    learned,
    planned,
    ready_times,
    way_seconds,
)
from controller.steps.directory import Demand, Directory, RolloutJob
from controller.steps.planner import PlannerProcess
from controller.steps.wire import MOST_FAILURES, Announcement, Done, Ended, Registered
from controller.web.tickets import SECONDS, Signer, Ticket

REGISTERED_SECONDS = 45.0  # without a registration an actor is not named any more; one registers each 10 s
LOOK_BEFORE = 1.0  # s before actors are to start, at which a pass looks what there is room for by then
MOST_WATCHES = 4  # of a job, at a time

Note = Callable[[StepQuestion, RolloutPlan], None]


def unnoted(question: StepQuestion, plan: RolloutPlan) -> None:
    """Keep no log."""


class Conflict(Exception):
    """Not now: of another attempt, an older step, or too often. ``reason`` is a code word."""

    def __init__(self, reason: str, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.reason, self.status = reason, status


@dataclass(slots=True)
class _Ready:
    pod: str
    seen: float
    registered: Registered


@dataclass(slots=True)
class _Planned:
    """A step's plan and the supply that it was made with; with mode Shadow also the plan that is not carried
    out."""

    plan: RolloutPlan
    supply: Supply
    other: RolloutPlan | None = None


class Session:
    """One job in one attempt."""

    def __init__(
        self,
        job: RolloutJob,
        directory: Directory,
        planner: PlannerProcess,
        signer: Signer,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        note: Note = unnoted,
    ) -> None:
        self.uid, self.attempt = job.uid, job.attempt
        self._note = note
        self._directory, self._planner, self._signer = directory, planner, signer
        self._clock, self._now = clock, monotonic
        self._learned = Learned(job.law)
        self.step = -1  # newest that was begun
        self._announced = -1
        self._given: Announcement | None = None  # of that step
        self._renewed, self._renewing = -1, False  # the newest step that was planned anew; whether it is now
        self._planned: dict[int, _Planned] = {}  # by step
        self._released: set[int] = set()
        self._reports: dict[int, WorkReport] = {}
        self._aside: tuple[str, ...] = ()  # which actors the step under way lost or put aside, and why
        self._aside_at = 0.0
        self._generating = False
        self._ended_at: float | None = None
        self._ended_before: float | None = None
        self._begins_at = 0.0  # of the step that was announced, by its trainer's estimate
        self._timer: asyncio.TimerHandle | None = None  # when its actors are to start
        self._looked = -1  # the newest step before whose actors' start a pass was asked for
        self._due = -1  # the newest step of which they are
        self._between = 0.0
        self._asked_at: float | None = None  # for the actors of the step that comes, or is under way
        self._asked_clock = 0.0  # the same by the clock of entries
        self._way: float | None = None  # of that step so far, by the last of its actors
        self._ways: deque[float] = deque(maxlen=REMEMBERED)  # `lead_seconds`
        self._begun_at = 0.0  # of the step under way
        self._came: dict[int, float] = {}  # s after that at which its actors were ready, by number
        self._ready: dict[int, _Ready] = {}
        self.revision = 1
        self._changed = asyncio.Condition()
        self._watches = 0
        self._planning: asyncio.Task[None] | None = None
        self._closing = False

    # -- calls ---------------------------------------------------------------------------------------------

    def announce(self, job: RolloutJob, given: Announcement) -> None:
        """Plan a step that comes, beside the loop; the plan is there when it begins, or the step is
        static."""
        if given.step < max(self.step, self._announced) or (given.step == self.step and self._generating):
            raise Conflict(
                "OldStep", f"step: {given.step} is announced, {max(self.step, self._announced)} is the newest"
            )
        try:
            check_size(given.forecast, self._slotted().slots)
        except ValueError as error:  # ParamError names field, value and bound
            raise Conflict("BadRequest", str(error), 400) from None
        self._announced, self._given = given.step, given
        self._renewed, self._renewing = -1, False
        self._begins_at = self._now() + given.begins_in
        if self._planning is not None:
            self._planning.cancel()
        supply = self._supply(job, given.begins_in, given.begins_in)
        self._planning = asyncio.get_running_loop().create_task(self._plan(job, given, supply))

    def _supply(self, job: RolloutJob, lead: float = 0.0, between: float = 0.0) -> Supply:
        """Return what there is for a step. ``lead``: s until it begins. ``between``: s that pass between two
        steps, where none has passed yet."""
        return Supply(
            held=len(self._named(job)),
            start=job.start,
            recall=job.recall,
            lead=lead,
            between=self._between or between,
            most=job.most,
        )

    async def _plan(self, job: RolloutJob, given: Announcement, supply: Supply) -> None:
        question = self._question(job, given, job.settings, supply, self._learned.before)
        plan = await self._asked(question, self._begins_at)
        if plan is not None and given.step == self._announced and given.step not in self._planned:
            self._take(given.step, plan, supply)
            self._want()
        if job.shadow is not None and given.step == self._announced:
            other = await self._asked(self._question(job, given, job.shadow, supply, None), math.inf)
            if given.step in self._planned:
                self._planned[given.step].other = other

    async def _plan_anew(self, job: RolloutJob, given: Announcement, supply: Supply) -> None:
        question = self._question(job, given, job.settings, supply, self._learned.before)
        plan = await self._asked(question, self._begins_at)
        if given.step == self._announced and self.step < given.step:
            if plan is not None:
                self._take(given.step, plan, supply)
            self._renewing = False
            self._want()

    def _renews(self, job: RolloutJob) -> bool:
        """Return whether the step that was announced is planned anew before its actors start, or is being so:
        there is room for more of them than when it was announced. Once a step."""
        given, known = self._given, self._planned[self._announced].supply.most
        if self._renewed == self._announced:
            return self._renewing
        if given is None or known is None or job.most is None or job.shadow is not None:
            return False
        if min(job.most, job.settings.max) <= known:
            return False
        self._renewed, self._renewing = self._announced, True
        supply = self._supply(job, max(0.0, self._begins_at - self._now()), given.begins_in)
        self._planning = asyncio.get_running_loop().create_task(self._plan_anew(job, given, supply))
        return True

    def _take(self, step: int, plan: RolloutPlan, supply: Supply) -> None:
        """Keep a step's plan; those of steps that are over go."""
        self._planned = {number: known for number, known in self._planned.items() if number >= self.step}
        self._planned[step] = _Planned(plan, supply)

    def _question(
        self,
        job: RolloutJob,
        given: Announcement,
        settings: RolloutSettings,
        supply: Supply,
        before: tuple[int, Dispatch] | None,
    ) -> StepQuestion:
        return StepQuestion(
            job.key,
            given.step,
            given.forecast,
            self._learned.law,
            settings,
            supply,
            self._learned.trust,
            before,
        )

    async def _asked(self, question: StepQuestion, begins_at: float) -> RolloutPlan | None:
        plan = await self._planner.plan(question, begins_at)
        if plan is not None:
            self._note(question, plan)
        return plan

    def begin(self, job: RolloutJob, step: int) -> dict[str, Any]:
        """Return the plan and the actors that are ready. From memory alone."""
        if step < self.step:
            raise Conflict("OldStep", f"step: {step} begins, {self.step} has begun")
        if step > self.step or not self._generating:
            self.step, self._generating = step, True
            self._released.clear()
            self._reports.clear()
            self._aside = ()
            if self._ended_at is not None:
                self._between = self._now() - self._ended_at
            self._begun_at = self._now()
            self._came = dict.fromkeys(self._named(job), 0.0)
            if step not in self._planned:
                self._take(step, *self._static(job, step))
            self._want()
            self.news()  # who watches the step before hears that it is over
        return self._answer(job)

    def _static(self, job: RolloutJob, step: int) -> tuple[RolloutPlan, Supply]:
        """Return a plan without a forecast, which costs nothing to make, and the supply that it is of."""
        supply = self._supply(job)
        question = StepQuestion(job.key, step, None, self._learned.law, job.settings, supply)
        plan = planned(question)
        self._note(question, plan)
        return plan, supply

    def _go_on(self, job: RolloutJob, step: int) -> None:
        """Take over a step that began before this process led: nobody else knows of it any more."""
        if step > self.step:
            self.begin(job, step)

    async def watch(self, job: RolloutJob, step: int, after: int, seconds: float) -> dict[str, Any] | None:
        """Return what changed since a revision, at the latest after so many seconds; None: the job is
        gone."""
        self._go_on(job, step)
        if step != self.step:
            raise Conflict("OldStep", f"step: {step} is watched, {self.step} has begun")
        if self._watches >= MOST_WATCHES:
            raise Conflict("TooMany", f"more than {MOST_WATCHES} watches of one job", 429)
        self._watches += 1
        try:
            async with self._changed:
                try:
                    async with asyncio.timeout(seconds):
                        await self._changed.wait_for(
                            lambda: (
                                self.revision != after  # it may be of the leader before
                                or self.step != step
                                or not self._generating
                                or self._closing
                            )
                        )
                except TimeoutError:
                    pass
        finally:
            self._watches -= 1
        now = self._directory.job(self.uid)
        return None if now is None or now.attempt != self.attempt else self._answer(now)

    def done(self, job: RolloutJob, given: Done) -> None:
        """Take an actor's report; if it is released, it is wanted no more."""
        self._go_on(job, given.step)
        if given.step != self.step:
            raise Conflict("OldStep", f"step: {given.step} is meant, {self.step} has begun")
        if given.failure and self._generating and len(self._aside) < MOST_FAILURES:
            self._aside_at = self._aside_at if self._aside else self._clock()
            self._aside = (*self._aside, given.failure)
            self._want()
            if not given.release:
                return  # nothing is asked, and its pod may be gone: that is why it was lost
        if given.actor not in self._directory.actors(self.uid):
            raise Conflict("NoSuchActor", f"actor: this job has no actor {given.actor} now")
        if given.report is not None:
            self._reports[given.actor] = given.report
        if given.release:
            self._released.add(given.actor)
        self._want()

    def end(self, job: RolloutJob, given: Ended) -> None:
        """Learn from a step: the law, whether predictions are worth planning by."""
        self._go_on(job, given.step)
        if given.step != self.step or not self._generating:
            raise Conflict(
                "OldStep",
                f"step: {given.step} ends, {self.step} has begun"
                + ("" if self._generating else " and ended"),
            )
        self._generating, self._ended_at, self._asked_at = False, self._now(), None
        if self._way is not None:
            self._ways.append(self._way)
            self._way = None
        self.news()
        known = self._planned.get(given.step)
        plan = known.plan if known is not None else None
        other = known.other if known is not None else None
        most, held = self._directory.account(self.uid)
        whole = self._now() - self._ended_before if self._ended_before is not None else None
        self._ended_before = self._ended_at
        expected = self._expected(known)
        seen = StepSeen(given.seconds, given.rank, tuple(self._reports.values()), plan, expected)
        self._learned = learned(self._learned, self._slotted(), seen)
        self._directory.ended(
            self.uid,
            {
                "step": given.step,
                "at": self._clock(),
                "seconds": given.seconds,
                "wholeSeconds": whole,
                "most": most,
                "actorSeconds": held,
                "wouldTake": other.gpu_seconds if other is not None else None,
                "tokens": given.tokens,
                "rank": given.rank,
                "phases": dict(given.phases),
                "counts": dict(given.counts),
                "failures": given.failures,
                "reports": self._learned.used,
                "actors": plan.actors if plan is not None else None,
                "dispatch": plan.dispatch.value if plan is not None else None,
                "planned": plan.seconds if plan is not None else None,
                "expected": expected,
                "plannedGpuSeconds": plan.gpu_seconds if plan is not None else None,
                "reason": plan.reason.value if plan is not None else None,
                "message": plan.message if plan is not None else "",
                "law": asdict(self._learned.law),
            },
        )
        self._want()

    def register(self, job: RolloutJob, number: int, pod: str, registered: Registered) -> dict[str, Any]:
        """Take in where an actor is; return whose it is and the key of tickets."""
        before = self._ready.get(number)
        pod_of = self._directory.actors(job.uid).get(number)
        if before is None and self._asked_at is not None and pod_of is not None:
            asked = self._asked_clock
            way = way_seconds(asked, pod_of.since, asked + self._now() - self._asked_at)
            self._way = max(way, self._way or 0.0)
        if self._generating:
            self._came.setdefault(number, self._now() - self._begun_at)
        self._ready[number] = _Ready(pod, self._now(), registered)
        if before is None or (before.pod, before.registered.fingerprint, before.registered.address) != (
            pod,
            registered.fingerprint,
            registered.address,
        ):
            self._want()
            self.news()
        return {"job": job.uid, "attempt": job.attempt, "actor": number, "key": self._signer.public}

    # -- what changes --------------------------------------------------------------------------------------

    def news(self) -> None:
        """Wake watches: actors came, went, or are recalled."""
        self.revision += 1

        async def wake() -> None:
            async with self._changed:
                self._changed.notify_all()

        asyncio.get_running_loop().create_task(wake())

    async def close(self) -> None:
        """Answer whoever watches: the process ends."""
        self._closing = True
        self.leave_off()
        async with self._changed:
            self._changed.notify_all()

    def leave_off(self) -> None:
        """Look again at nothing: its job is over, or the process."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_again(self) -> None:
        """Take in that the job, or how much is free for it, is another now."""
        self.news()
        self._want()

    def _named(self, job: RolloutJob) -> dict[int, _Ready]:
        """Return the actors that are ready, by number: those of the job that registered lately."""
        pods, now = self._directory.actors(job.uid), self._now()
        self._ready = {
            number: ready
            for number, ready in self._ready.items()
            if number in pods or now - ready.seen < REGISTERED_SECONDS  # its pod is seen a moment late
        }
        return {
            number: ready
            for number, ready in sorted(self._ready.items())
            if number in pods
            and pods[number].pod == ready.pod
            and now - ready.seen < REGISTERED_SECONDS
            and number not in self._released
        }

    def _answer(self, job: RolloutJob) -> dict[str, Any]:
        known, pods = self._planned.get(self.step), self._directory.actors(job.uid)
        named = self._named(job)
        leave = sorted(number for number in named if pods[number].leaving)
        ends = self._clock() + SECONDS
        actors = [
            {
                "number": number,
                "address": ready.registered.address,
                "fingerprint": ready.registered.fingerprint,
                "slots": ready.registered.slots,
                "ticket": self._signer.sign(Ticket(job.uid, job.attempt, number, ends)),
            }
            for number, ready in named.items()
            if number not in leave
        ]
        return {
            "step": self.step,
            "revision": self.revision,
            "actors": actors,
            "leave": leave,
            "coming": job.coming,
            "plan": None if known is None else _plain(known.plan, job.settings.cut),
        }

    def _want(self) -> None:
        """Tell what the step under way wants; between two, what the one that was announced does."""
        ready = frozenset(self._ready) & frozenset(self._directory.actors(self.uid))
        comes = not self._generating and self._announced > self.step and self._announced in self._planned
        if comes:
            plan = self._planned[self._announced].plan
            due = self._announced == self._due or self._is_due(plan)
            # Who was let go in the step before goes, whichever is told first, until its like are to start.
            released = frozenset() if due else frozenset(self._released)
            demand = Demand(self._announced, plan, False, released, ready, due)
        else:
            known, released = self._planned.get(self.step), frozenset(self._released)
            plan_now = known.plan if known is not None else None
            demand = Demand(self.step, plan_now, self._generating, released, ready)
            if self._generating and self._aside:
                demand = replace(demand, aside=self._aside, aside_at=self._aside_at)
        self._directory.want(self.uid, demand)

    def _is_due(self, plan: RolloutPlan) -> bool:
        """Return whether actors for the step that was announced are to start now; else look again when they
        are.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        job = self._directory.job(self.uid)
        if job is None:
            return True
        base = min(plan.actors, job.settings.min)
        due = actors_due(job.start, job.recall, self._ways, base, job.at_hand)
        left = self._begins_at - self._now() - due.seconds
        if left <= 0.0:
            if self._renews(job):
                return False
            self._due, self._asked_at = self._announced, None if due.lent else self._now()
            self._asked_clock = self._clock()
            return True
        if left > LOOK_BEFORE:
            left -= LOOK_BEFORE
        elif self._looked != self._announced:
            self._looked = self._announced
            self._directory.wanted(self.uid)
        self._timer = asyncio.get_running_loop().call_later(left, self._want)
        return False

    def _expected(self, known: _Planned | None) -> float | None:
        if known is None:
            return None
        meant = ready_times(known.supply, known.plan.actors)
        return expected_seconds(known.plan, meant, self._came.values())

    def _slotted(self) -> ActorLaw:
        slots = [ready.registered.slots for ready in self._ready.values() if ready.registered.slots]
        return replace(self._learned.law, slots=min(slots)) if slots else self._learned.law


def _plain(plan: RolloutPlan, cut: float) -> Mapping[str, Any]:
    return {
        "actors": plan.actors,
        "dispatch": plan.dispatch.value,
        "release": list(plan.release),
        "cut": cut,
        "seconds": plan.seconds,
        "gpuSeconds": plan.gpu_seconds,
        "reason": plan.reason.value,
        "message": plan.message,
    }


class Sessions:
    """All jobs' sessions; a job that is in another attempt gets another one."""

    def __init__(
        self,
        directory: Directory,
        planner: PlannerProcess,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        note: Note = unnoted,
    ) -> None:
        self._directory, self._planner, self._clock, self._now = directory, planner, clock, monotonic
        self._note = note
        self.signer = Signer()
        self._found: dict[str, Session] = {}
        directory.changed = self._changed

    def of(self, job: RolloutJob) -> Session:
        """Return the session of a job's present attempt."""
        found = self._found.get(job.uid)
        if found is None or found.attempt != job.attempt:
            if found is not None:
                found.leave_off()
            found = Session(
                job, self._directory, self._planner, self.signer, self._clock, self._now, self._note
            )
            self._found[job.uid] = found
        return found

    async def close(self) -> None:
        """Answer all watches: the process ends."""
        for session in self._found.values():
            await session.close()
        await asyncio.sleep(0)  # those answers are made now

    def _changed(self, uid: str) -> None:
        session, job = self._found.get(uid), self._directory.job(uid)
        if session is None:
            return
        if job is None or job.attempt != session.attempt:
            session.leave_off()
            session.news()  # whoever watches it hears that it is over
            del self._found[uid]
        else:
            session.look_again()
