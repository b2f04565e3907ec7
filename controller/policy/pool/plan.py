"""The pool's plan: which jobs are stopped, which start where, which wait and why. Pure and deterministic.

Whose each GPU is: `accounts`. A gang is admitted only when the GPUs of all its members are free at once, and
what it was admitted to is charged to it from then on, so that no two gangs are ever admitted to the same GPU.
To whom GPUs will go that are still in use: `reservations`. The winner is chosen again, by the same policy,
when they are free; a reservation never decides an admission.

Where jobs have rollout actors: `lending`. Where jobs share worker groups: `groups`.

In a pool whose delegate is None nobody queues: every job starts at once, and where its pods go is left to
kube-scheduler. Only a gang that did not find room in time (`gangs`) waits until no other gang is looking for
some, so that those that fit only one after the other get their turn.

Where namespaces are guaranteed GPUs or limited, that comes before the policy's order (`queueing.quotas`).

In a pool whose delegate is Kueue jobs wait there, and only those start for which it has quota (`delegation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.policy.actor_types import LendingPlan
from controller.policy.fleet import LimitedStops, learn, limit_stops
from controller.policy.pool.delegates import (
    DELEGATIONS,
    TOO_LARGE,
    Delegation,
    OfferRoom,
    offers,
    refusals,
    wake_ups,
)
from controller.policy.pool.demotion import REASON as DEMOTED
from controller.policy.pool.demotion import as_demoted, give_way
from controller.policy.pool.gpu_accounting import LEAVING, GpuAccounts, free_gpus, gpu_accounts
from controller.policy.pool.groups import Groups, stand_ins, with_shares
from controller.policy.pool.inadmissible import backing_off, inadmissible_jobs
from controller.policy.pool.lending import Loans
from controller.policy.pool.lending_room import LendingRoom
from controller.policy.pool.placement import AnyRoom, NodeRoom
from controller.policy.pool.planner import Planner
from controller.policy.pool.reservations import current, reserve, source_of
from controller.policy.pool.waiting import reasons
from controller.policy.queueing import EvalStop, QueuePolicy, make_policy
from controller.policy.queueing.quota_ledger import QuotaLedger, charged, explained
from controller.policy.types import (
    Admission,
    Grant,
    HeldBack,
    JobKey,
    JobState,
    JobView,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    Preemption,
    Quota,
    Reservation,
    Waiting,
)

__all__ = ["free_gpus", "plan_pool"]

STOPPING = JobState.STOPPING


def plan_pool(snapshot: PoolSnapshot, now: float) -> PoolPlan:
    """Return what is to happen in this pool at ``now`` (s).

    Raises:
        ParamError: the pool's queue policy or one of its parameters does not exist or is out of bounds.
    """
    case = _Case.of(snapshot, now)  # 1. whose each GPU is, and who cannot run at all
    stops = limit_stops(case.snapshot.jobs, case.snapshot, now)  # 2. which proposals to stop count
    chosen = _choose(case, stops)  # 3. who is released, admitted, preempted, by the queue policy
    _demote(case, chosen)  # 4. who gives way to those that still wait, or need not leave any more
    lent = _lend(case, chosen)  # 5. which spare actors are recalled for whom, and which start
    reserved = _reserve(case, chosen)  # 6. to whom GPUs go that are still in use
    return _report(case, stops, chosen, reserved, lent)  # 7. all of it, and why each other job waits


@dataclass
class _Case:
    """The input of a pool's plan, prepared.

    Attributes:
        room: what is free; it is used up.
        racks: by node.
    """

    snapshot: PoolSnapshot
    now: float
    how: Delegation
    accounts: GpuAccounts
    quotas: tuple[Quota, ...]
    policy: PolicySpec
    inadmissible: dict[JobKey, Waiting]
    paused: dict[JobKey, str]
    offered: dict[JobKey, JobView]  # jobs for which an external queue has quota
    room: NodeRoom | AnyRoom
    views: dict[JobKey, JobView]
    loans: Loans | None  # None: no job has rollout actors
    groups: Groups | None  # None: the pool offers no sharing

    @classmethod
    def of(cls, snapshot: PoolSnapshot, now: float) -> _Case:
        how = DELEGATIONS[snapshot.delegate]
        if how.offers:
            # Who is next is decided outside. For whom freed GPUs are reserved is a guess by the same order.
            snapshot = replace(snapshot, policy=PolicySpec("fifo", {"backfill": True}))
        snapshot = with_shares(current(snapshot, now))
        accounts = gpu_accounts(snapshot, stand_ins(snapshot.sharing))
        snapshot = accounts.as_charged(snapshot)
        groups = Groups.of(snapshot, accounts, now) if how.orders and how.places else None
        if groups is not None:
            snapshot = groups.within_limits()
        paused = backing_off(snapshot, now)
        offered = offers(j for j in snapshot.jobs if j.key not in paused) if how.offers else {}
        inadmissible = inadmissible_jobs(snapshot, *(() if groups is None else (groups.joins,)))
        racks = {n.name: n.rack for n in snapshot.nodes if n.rack}
        loans = None
        if groups is not None:
            groups.close_for_overdue(lambda key: key not in inadmissible and key not in paused)
        room: NodeRoom | AnyRoom = NodeRoom(accounts.free, racks)
        if how.offers:
            room = OfferRoom(accounts.free, racks, offered.keys())
        elif not how.places:
            room = AnyRoom()
        elif any(j.rollout is not None for j in snapshot.jobs):
            going = (place for j in snapshot.jobs if j.state in LEAVING for place in accounts.account(j))
            loans = Loans.of(snapshot, accounts.free, {*inadmissible, *paused}, now, going, groups)
            room = loans.room()
        elif groups is not None:
            room = groups.room(accounts.free)
        return cls(
            snapshot,
            now,
            how,
            accounts,
            quotas=snapshot.quotas if how.orders else (),
            policy=snapshot.policy if how.offers or how.places else PolicySpec("fifo"),
            inadmissible=inadmissible,
            paused=paused,
            offered=offered,
            room=room,
            views={j.key: j for j in snapshot.jobs},
            loans=loans,
            groups=groups,
        )

    def new_policy(self) -> QueuePolicy:
        return make_policy(self.policy, self.quotas)

    def what_if(self, free: Mapping[str, int]) -> NodeRoom:
        """Return another room with these free GPUs per node, whose groups are as they are by now; GPUs of
        those without residents are free."""
        if self.groups is None:
            return NodeRoom(free)
        room = self.groups.other_room(free)
        for node, gpus in self.groups.coming():
            room.free.add(node, gpus)
        for name in room.residencies.empty():
            room.dissolve(name)
        return room

    def competes(self, key: JobKey) -> bool:
        """Return whether a job is shown to the queue policy."""
        return key not in self.inadmissible and key not in self.paused


@dataclass
class _Chosen:
    """Jobs chosen to get GPUs, and jobs chosen to give them up.

    Attributes:
        rest: who waits after it, next one first.
        barred: those of them whom their namespace's limit holds back.
        quota_ledger: what each quota has in use once those who are admitted run; None: there are no quotas.
        leaving: in the order in which their GPUs are given out.
    """

    planner: Planner
    released: list[JobView]
    admitted: tuple[Admission, ...]
    preemptions: list[Preemption]
    rest: list[JobView]
    barred: list[JobView]
    wake_at: float | None
    quota_ledger: QuotaLedger | None = None
    leaving: list[JobView] = field(default_factory=list)
    called_off: list[JobView] = field(default_factory=list)


def _choose(case: _Case, stops: LimitedStops) -> _Chosen:
    """Ask the queue policy."""
    snapshot, now, views = case.snapshot, case.now, case.views
    planner = Planner(EvalStop(case.new_policy()), case.room)
    held = {h.key for h in stops.held}
    jobs = (as_demoted(replace(j, proposal=None) if j.key in held else j) for j in snapshot.jobs)
    if case.quotas:
        jobs = (_with_all_it_has(j, case.accounts) for j in jobs)
    planner.rebuild((j for j in jobs if case.competes(j.key)), now)
    for job in snapshot.jobs:
        if job.state is JobState.ADMITTED and not job.preemptible and job.proposal is None:
            planner.policy.shielded(as_demoted(job), now)
    decision = planner.decide(now)
    source, placed = source_of(snapshot), case.room.placed
    groups = {} if case.groups is None else case.groups.residencies.joined
    admitted = tuple(
        Admission(
            j.key,
            placed[j.key].gang,
            source(j.key, placed[j.key].gang, groups.get(j.key)),
            views[j.key].offer,
            None if j.base_actors is None else placed[j.key].actors,
            groups.get(j.key),
        )
        for j in decision.admit
    )
    taken = {a.key for a in admitted}
    chosen = _Chosen(
        planner,
        released=[views[j.key] for j in decision.release],
        admitted=admitted,
        preemptions=[Preemption(j.key, why) for j, why in decision.preempt],
        rest=[views[j.key] for j in planner.policy.queue() if j.key not in taken],
        barred=[views[j.key] for j in planner.policy.barred()],
        wake_at=decision.wake_at,
    )
    if case.quotas:
        chosen.quota_ledger = ledger = charged(case.quotas, snapshot.jobs, taken)
        chosen.barred += [j for j in chosen.rest if ledger.bars(j.key, j.gpus)]
        chosen.rest = [j for j in chosen.rest if not ledger.bars(j.key, j.gpus)]
    if case.groups is not None:
        out = [*(j.key for j in chosen.released), *(p.key for p in chosen.preemptions)]
        chosen.preemptions += case.groups.must_leave(out)
    going = sorted((j for j in snapshot.jobs if j.state in LEAVING), key=lambda j: j.state is not STOPPING)
    chosen.leaving = [*going, *chosen.released, *(views[p.key] for p in chosen.preemptions)]
    return chosen


def _demote(case: _Case, chosen: _Chosen) -> None:
    """Let demoted runs give way to those that would still wait."""
    if not case.how.places:
        return
    assert isinstance(case.room, NodeRoom)
    going = {j.key for j in chosen.leaving}
    run = [j for j in case.snapshot.jobs if j.state is JobState.ADMITTED and j.key not in going]
    lower = [j for j in run if j.demoted and j.preemptible]
    stay = [j for j in run if not (j.demoted and j.preemptible)]
    # An external queue may give the quota of one that gives way to whomever it likes, to this one again
    # among them: so only for those who have quota.
    if case.how.offers:
        wait = [j for j in chosen.rest if j.key in case.offered]
    else:
        wait = [*chosen.rest, *chosen.barred]
    if case.quotas:
        stay += _starting(case, chosen)
    room = case.what_if(case.room.free)
    if isinstance(case.room, LendingRoom):  # nobody gives way where a recall would do
        for node, gpus in case.room.recallable().items():
            room.free.add(node, gpus)
    demoted = give_way(case.new_policy, stay, lower, chosen.leaving, wait, room, case.now, quotas=case.quotas)
    chosen.preemptions += [Preemption(j.key, DEMOTED) for j in demoted]
    chosen.leaving += demoted
    _call_off(case, chosen)


def _call_off(case: _Case, chosen: _Chosen) -> None:
    """Have those stay that were preempted, and that nobody waits for any more: whoever did has gone, or has
    got other GPUs. As long as anybody waits, whoever leaves goes on to leave."""
    if case.how.offers or chosen.rest or chosen.barred or chosen.preemptions:
        return
    chosen.called_off = [j for j in chosen.leaving if j.may_stay and j.sharing is None]
    stay = {j.key for j in chosen.called_off}
    chosen.leaving = [j for j in chosen.leaving if j.key not in stay]


def _starting(case: _Case, chosen: _Chosen) -> list[JobView]:
    """Return the jobs that are admitted in this pass as they will run."""
    views = case.views
    return [replace(views[a.key], state=JobState.ADMITTED, nodes=a.nodes) for a in chosen.admitted]


def _lend(case: _Case, chosen: _Chosen) -> LendingPlan | None:
    """Recall spare actors for gangs that would start without them; start others on what nobody can use."""
    loans, room, now = case.loans, case.room, case.now
    if loans is None:
        return None
    assert isinstance(room, LendingRoom)
    what_if = loans.what_if(room)
    loans.admitted(room)
    rest = [j for j in chosen.rest if not loans.waits_for_recall(j.key)]
    if loans.spare and rest:
        policy = case.new_policy()
        going = {j.key for j in chosen.leaving}
        stay = [j for j in case.snapshot.jobs if j.state is JobState.ADMITTED and j.key not in going]
        run = [*stay, *_starting(case, chosen)] if case.quotas else []
        policy.rebuild([*map(as_demoted, run), *map(as_demoted, rest)], now)
        for job in run:
            policy.shielded(as_demoted(job), now)
        loans.recall(policy.decide(now, what_if).admit, what_if)
    if chosen.quota_ledger is not None:
        loans.recall_for_quota(chosen.barred, chosen.quota_ledger)
    waiting = [*chosen.rest, *chosen.barred]
    loans.grant({j.key for j in chosen.leaving}, waiting, chosen.quota_ledger)
    return loans.plan()


def _reserve(case: _Case, chosen: _Chosen) -> tuple[Reservation, ...]:
    waiting, leaving, groups = [*chosen.rest, *chosen.barred], chosen.leaving, case.groups
    if groups is not None:
        emptied = groups.emptied(job.key for job in leaving)
        leaving = [*groups.close(bool(chosen.rest)), *leaving, *emptied]
    return reserve(
        case.snapshot,
        leaving,
        chosen.admitted,
        waiting,
        case.room.free,
        case.accounts,
        case.now,
        NodeRoom if groups is None else groups.other_room,
    )


def _report(
    case: _Case,
    stops: LimitedStops,
    chosen: _Chosen,
    reserved: tuple[Reservation, ...],
    lent: LendingPlan | None,
) -> PoolPlan:
    snapshot, now = case.snapshot, case.now
    waiting = reasons(
        chosen.rest,
        case.room.free,
        case.inadmissible,
        case.paused,
        case.offered if case.how.offers else None,
        case.groups.residencies if case.groups is not None else None,
    )
    taken = {a.key for a in chosen.admitted}
    if chosen.quota_ledger is not None:
        waiting = explained(waiting, chosen.barred, chosen.quota_ledger, case.views)
    if case.loans is not None:
        waiting = case.loans.explained(waiting)
    shared = None
    if case.groups is not None:
        workers = {key: nodes.workers for key, nodes in case.room.placed.items()}
        shared = case.groups.plan(workers)
    settled = {h.key for h in stops.held} | {j.key for j in chosen.released}
    not_taken = {key: job for key, job in case.offered.items() if key not in taken}
    running = (j for j in snapshot.jobs if j.state is JobState.ADMITTED)
    return PoolPlan(
        grants=tuple(Grant(j.key, j.proposal) for j in chosen.released if j.proposal is not None),
        admissions=chosen.admitted,
        preemptions=tuple(chosen.preemptions),
        refusals=refusals(case.offered, waiting, snapshot.offer_seconds, now),
        lifted=tuple(j.key for j in snapshot.jobs if j.refused and _would_fit(case.inadmissible.get(j.key))),
        reservations=reserved,
        waiting=waiting,
        held_back=(*stops.held, *_uncontended(snapshot.jobs, settled)),
        policy_states=_policy_states(case, chosen),
        stops=stops.stops,
        noise=learn(snapshot.noise, running, snapshot.limits.scope),
        falls=stops.falls,
        wake_at=_wake_at(
            snapshot,
            reserved,
            now,
            chosen.wake_at,
            stops.wake_at,
            *wake_ups(not_taken, snapshot.offer_seconds, now),
            *(r.expires for r in (lent.reserved if lent is not None else ())),
            *(case.groups.wakes() if case.groups is not None else ()),
        ),
        lending=lent,
        sharing=shared,
        called_off=tuple(j.key for j in chosen.called_off) or None,
    )


def _would_fit(amiss: Waiting | None) -> bool:
    return amiss is None or amiss.reason != TOO_LARGE


def _policy_states(case: _Case, chosen: _Chosen) -> tuple[tuple[JobKey, tuple[int, ...]], ...]:
    """Return what the policy asks to remember of its jobs once this plan is carried out, where that is
    news."""
    planner, views, now = chosen.planner, case.views, case.now
    for admission in chosen.admitted:
        view = replace(views[admission.key], state=JobState.ADMITTED, since=now, nodes=admission.nodes)
        planner.admitted(view, now)
    for preemption in chosen.preemptions:
        planner.leaving(replace(views[preemption.key], state=JobState.PREEMPTING), now)
    asked = ((key, planner.policy.policy_state(key), job) for key, job in views.items() if case.competes(key))
    return tuple(
        (key, state) for key, state, job in asked if state != job.policy_state and job.state is not STOPPING
    )


def _wake_at(
    snapshot: PoolSnapshot, reserved: tuple[Reservation, ...], now: float, *others: float | None
) -> float | None:
    """Return when to plan again: a reservation is due for renewal or ends, a back-off is over, or what others
    say."""
    half = snapshot.reservation_seconds / 2
    wakes = [w for w in others if w is not None]
    wakes += [h.expires - half if h.expires - half > now else h.expires for h in reserved]
    wakes += [j.not_before for j in snapshot.jobs if j.not_before is not None and j.not_before > now]
    return min(wakes, default=None)


def _uncontended(jobs: tuple[JobView, ...], settled: set[JobKey]) -> tuple[HeldBack, ...]:
    """Return jobs that ask to be stopped only when others wait, and nobody does."""
    why = "nobody waits for its GPUs, and its modifier onlyWhenContended lets it go on until somebody does"
    asking = (j for j in jobs if j.proposal is not None and j.proposal.when_contended)
    return tuple(
        HeldBack(j.key, "NobodyWaits", why)
        for j in asking
        if j.state is JobState.ADMITTED and j.key not in settled
    )


def _with_all_it_has(job: JobView, accounts: GpuAccounts) -> JobView:
    """Return a leaving gang with what is still charged to it in the place of pods that are gone: who waits
    for it is not to have somebody else preempted meanwhile."""
    if job.state not in LEAVING or not job.bound:
        return job
    return replace(job, bound=tuple(accounts.of_gang(job)))
