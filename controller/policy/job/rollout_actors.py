"""A job's rollout actors in one pass: made, let go, gone with the job, and the account of their GPUs.

What steps want comes from the step API (`RolloutView`) and is in memory only: after a change of leader
nothing is wanted but the base actors until the next step is announced, and nobody is let go meanwhile. Who
gets an actor is the pool's to say (`pool.lending`).

Few writes: an actor's entry, its Job, its deletion, the end of its entry, and one for each step's plan. That
a pod is ready, or where it was bound, is written with the next of these (`minor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from controller.policy.actor_types import Actor, ActorState, RolloutTerms
from controller.policy.job.actors import ActorSeen, plan_actors
from controller.policy.job.context import PlanContext
from controller.policy.job.event import Event
from controller.policy.job.record import JobRecord
from controller.policy.job.rollout_history import with_step
from controller.policy.job.rollout_record import RolloutRecord, StepMeasured
from controller.policy.job.types import DeleteActor, MakeActor, Observed, Plan, RolloutView, WriteRun
from controller.policy.types import Mode

NOTHING_SEEN = RolloutView()


def carry_out(context: PlanContext) -> None:
    """Plan the next acts upon the job's actors; of a job without actors nothing changes.

    ``context.actors_left`` is set: how many still hold GPUs, or will.
    """
    terms, record, now = context.desired.rollout, context.record, context.now
    view = context.observed.rollout or NOTHING_SEEN
    if terms is None and not record.actors and not view.actors:
        return
    grace = terms or RolloutTerms(0, 0)
    leaves = terms is None or _leaves(context)
    made = plan_actors(
        record.actors,
        {seen.number: seen for seen in view.actors},
        now,
        leaves=leaves,
        grace=grace.recall_seconds,
        start_timeout=grace.start_seconds,
        bind_timeout=grace.bind_seconds,
        released=() if terms is None or leaves else {*let_go(terms, view, record.actors), *view.going},
    )
    if tuple(map(_as_written, made.actors)) != tuple(map(_as_written, record.actors)):
        context.record = with_entries(
            record, made.actors, terms, now, failed=len(made.failures), bound=dict(view.bound)
        )
    for lost in made.failures:
        message = f"rollout actor {lost.number} on node {lost.node}: {lost.why}; it is put aside and counted"
        context.event("ActorFailed", message, warning=True)
    _renew_authority(context)
    for actor in made.make:
        if context.observed.workload is not None and record.admission is not None:
            context.act(MakeActor(actor, record.admission.number))
    for gone in made.delete:
        context.act(DeleteActor(gone.number, gone.grace))
    strays = {seen.number for seen in view.actors if not seen.over} - {a.number for a in made.actors}
    context.actors_left = len(made.actors) + len(strays)
    if made.wake_at is not None:
        context.wake_in(max(0.0, made.wake_at - now))
    _note_plan(context, terms, view)


def noted(made: Plan, observed: Observed, before: JobRecord, terms: RolloutTerms | None) -> Plan:
    """Return the plan with what is seen of actors in its record; if that is all that is new: `Plan.minor`."""
    view = observed.rollout
    if view is None:
        return made
    record = made.record
    seen = {one.number: one for one in view.actors}
    actors = tuple(_as_seen(actor, seen.get(actor.number)) for actor in record.actors)
    # What comes of itself is no reason to write; what a pod waits for may not come.
    news = any(now.waits and not then.waits for now, then in zip(actors, record.actors, strict=True))
    if actors != record.actors:
        record = replace(record, actors=actors)
    known = record.rollout.measured if record.rollout is not None else None
    events = made.events
    if view.ended is not None and view.ended != known:
        told = _told_aside(record, view.ended.step)
        record = replace(record, rollout=_with_step(record, before, terms, view.ended))
        if view.ended.failed > told:
            events = (*events, _put_aside(view.ended.step, view.ended.failed, view.ended.failures))
    elif view.aside is not None and view.aside.count > _told_aside(record, view.aside.step):
        record = replace(record, rollout=replace(record.rollout or RolloutRecord(), aside=view.aside))
        events = (*events, _put_aside(view.aside.step, view.aside.count, view.aside.failures))
    if record is made.record:
        return made
    # An Event is posted once, so that what it tells of has to be written.
    minor = True if made.record == before and events is made.events and not news else None
    return replace(made, record=record, events=events, minor=minor)


def wanted(terms: RolloutTerms, view: RolloutView | None) -> int:
    """Return how many actors a job's newest step plan has now, base actors among them.

    Before its first step, and as long as nobody knows its plan: its base actors. In a step, and after it,
    those that were let go are wanted no more. For a step that comes nobody is to start before it is time.
    """
    if terms.shadow or view is None or view.planned is None:
        return terms.base
    if not view.due:
        return 0
    return max(0, view.planned.actors - len(view.released))


def let_go(terms: RolloutTerms, view: RolloutView, actors: Sequence[Actor]) -> tuple[int, ...]:
    """Return the numbers of actors that their job has no more use for: those that steps let go, and between
    two steps the newest of those beyond the next one's plan."""
    if terms.shadow or view.planned is None:
        return ()
    found = set(view.released)
    comes = view.ended is None or view.planned.step > view.ended.step
    if comes and not view.generating and not terms.keeps:
        # One that is on its way out already (on a lost node for long) is none of those that are too many.
        staying = [one.number for one in as_known(actors, view) if one.stays and one.number not in found]
        # Base actors are those that were there first: of them none is let go before its work is done.
        found.update(staying[max(terms.base, view.planned.actors) :])
    return tuple(sorted(found))


def as_known(actors: Sequence[Actor], view: RolloutView | None) -> tuple[Actor, ...]:
    """Return the entries as the pool is to see them: those that were let go are on their way out, though no
    write says so."""
    if view is None:
        return tuple(actors)
    deleted = {one.number for one in view.actors if one.deleting} | {*view.going}
    return tuple(
        replace(actor, state=ActorState.RECALLED) if actor.stays and actor.number in deleted else actor
        for actor in actors
    )


def with_entries(
    record: JobRecord,
    actors: tuple[Actor, ...],
    terms: RolloutTerms | None,
    now: float,
    failed: int = 0,
    bound: Mapping[int, float] = MappingProxyType({}),
) -> JobRecord:
    """Return the record with other entries: the account of those before goes on until ``now`` (s).

    ``bound``: when actors' pods got their nodes (s), where that is not written in their entries.
    """
    account = settled(record, terms, now)
    left = {actor.number for actor in actors}
    held = 0.0
    for actor in record.actors:
        since = bound.get(actor.number) if actor.bound is None else actor.bound
        if actor.number not in left and since is not None:
            held += actor.gpus * max(0.0, now - since)
    account = replace(account, held=account.held + held, failed=account.failed + failed)
    starts = max([record.actor_starts, *(actor.number + 1 for actor in actors)])
    return replace(record, actors=actors, actor_starts=starts, rollout=account)


def settled(record: JobRecord, terms: RolloutTerms | None, now: float) -> RolloutRecord:
    """Return the account with what base actors that were let go have lent until ``now`` (s)."""
    account = record.rollout or RolloutRecord()
    since, admission = account.lent_until, record.admission
    lent = account.lent
    if terms is not None and admission is not None and since is not None and since >= admission.at:
        away = max(0, terms.base - sum(actor.stays for actor in record.actors))
        lent += away * terms.gpus * max(0.0, now - since)
    return replace(account, lent=lent, lent_until=now)


def _leaves(context: PlanContext) -> bool:
    """Return whether the job is on its way off its GPUs, or has none.

    While a run that is to leave goes on, to its next checkpoint or to be looked at once more, its step needs
    its actors: they go with the suspend.
    """
    record, workload = context.record, context.observed.workload
    if context.desired.deleting or record.admission is None or record.finished is not None:
        return True
    if workload is None or workload.finished is not None:
        return True
    if record.admission.withdrawn is not None:
        return True
    decision = record.decision
    stops = decision is not None and decision.mode is Mode.ENFORCE
    return workload.suspended and (stops or record.preempting is not None)


def _note_plan(context: PlanContext, terms: RolloutTerms | None, view: RolloutView) -> None:
    """Note the newest step's plan: the one write of a step, which brings all that is new along.

    Not before its actors are to start: until then it may be planned anew.
    """
    known = context.record.rollout
    if view.planned is None or not view.due or (known is not None and known.plan == view.planned):
        return
    account = settled(context.record, terms, context.now)
    context.update(rollout=replace(account, plan=view.planned))


def _with_step(
    record: JobRecord, before: JobRecord, terms: RolloutTerms | None, ended: StepMeasured
) -> RolloutRecord:
    """Return the account with a step that has ended. Its plan may have been replaced in this very pass."""
    account = record.rollout or RolloutRecord()
    plans = [known.rollout.plan for known in (record, before) if known.rollout is not None]
    plan = next((one for one in plans if one is not None and one.step == ended.step), None)
    at = ended.at if ended.at is not None else account.lent_until or 0.0
    lent = max(account.lent_seen, settled(record, terms, at).lent)
    recent = with_step(account.recent, plan, ended, at, lent - account.lent_seen)
    # Whoever starves in a step has not ended it.
    starved = account.starved if record.preempting is not None else 0
    account = replace(account, recent=recent, lent_seen=lent, starved=starved, aside=None)
    saved = account.saved
    if ended.would_take is not None and ended.gpu_seconds is not None:
        saved += ended.gpu_seconds - ended.would_take
    return replace(account, measured=ended, saved=saved)


def _renew_authority(context: PlanContext) -> None:
    """Write the run file of a run under way anew if it is not as it would be written now.

    The authority of the step API's certificate stands in it, and may be renewed.
    """
    record, workload = context.record, context.observed.workload
    if context.desired.rollout is None or record.admission is None or workload is None or workload.suspended:
        return
    if record.run.attempt == record.admission.number and context.observed.run_written is None:
        context.act(WriteRun(record.run))


def _told_aside(record: JobRecord, step: int) -> int:
    """Return how many actors of a step were told of as put aside before its end. What was told of the same
    step in an earlier attempt does not count."""
    told = record.rollout.aside if record.rollout is not None else None
    begun = record.admission.at if record.admission is not None else 0.0
    return told.count if told is not None and told.step == step and told.at >= begun else 0


def _put_aside(step: int, failed: int, failures: str) -> Event:
    """Return what is told of actors that a step's trainer lost, or put aside."""
    count = f"{failed} rollout actor" + ("" if failed == 1 else "s")
    message = f"step {step}: its trainer lost or put aside {count}"
    return Event("ActorPutAside", ": ".join(filter(None, (message, failures))), warning=True)


def _as_seen(actor: Actor, seen: ActorSeen | None) -> Actor:
    if seen is None:
        return actor
    if seen.bound is not None and actor.bound is None:
        actor = replace(actor, bound=seen.bound)
    if seen.ready and actor.state is ActorState.STARTING:
        actor = replace(actor, state=ActorState.RUNNING)
    starts = actor.state is ActorState.STARTING
    return replace(actor, waits=seen.trouble.waits if starts and seen.trouble is not None else "")


def _as_written(actor: Actor) -> Actor:
    """Return of an entry what is written at once."""
    state = ActorState.RECALLED if actor.state is ActorState.RECALLED else ActorState.STARTING
    return replace(actor, state=state, bound=None)
