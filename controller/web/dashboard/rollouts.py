"""A job's rollouts on its page, and a pool's lent GPUs: as far as the viewer may know whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.frozen import dataclass
from controller.policy.actor_types import Actor
from controller.policy.job import StepRow
from controller.policy.wording import ELSEWHERE
from controller.web.dashboard.feed import Job
from controller.web.dashboard.lanes import Bar, Lane, Lanes

_AHEAD = 10.0  # s by which lanes of actors that are there go beyond what is known, where no step has ended
Named = Callable[[str], str]  # a job's key as the viewer may see it


@dataclass(frozen=True, slots=True)
class ShownActor:
    """An actor in a list. ``kind``: base, spare or leaves. ``for_whom``: who recalled it; "": nobody."""

    actor: Actor
    kind: str
    for_whom: str


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollouts of one job.

    Attributes:
        steps: the last that have ended, the newest first.
        lent: base actors that were let go, with a right of return.
        lanes: their chart; None: there is nothing to draw yet.
    """

    actors: tuple[ShownActor, ...]
    steps: tuple[StepRow, ...]
    lent: int
    lanes: Lanes | None


@dataclass(frozen=True, slots=True)
class Loan:
    """GPUs that a job has on top of its own: a spare actor.

    ``lenders``: jobs whose base actors were let go, with how many GPUs; none: it is on GPUs that were free.
    """

    borrower: str
    actor: Actor
    lenders: tuple[tuple[str, int], ...]


def rollouts(job: Job, named: Named) -> Rollouts | None:
    """Return what a job's page shows of its rollouts; None: it has none."""
    terms, record = job.desired.rollout, job.record
    if terms is None and not record.actors and record.rollout is None:
        return None
    base = terms.base if terms is not None else 0
    staying = [actor for actor in record.actors if actor.stays]
    kinds = {actor.number: "base" if place < base else "spare" for place, actor in enumerate(staying)}
    actors = tuple(
        ShownActor(actor, kinds.get(actor.number, "leaves"), named(actor.for_whom) if actor.for_whom else "")
        for actor in record.actors
    )
    steps = record.rollout.recent if record.rollout is not None else ()
    lent = max(0, base - len(staying)) if record.admission is not None else 0
    return Rollouts(actors, tuple(reversed(steps)), lent, lanes(actors, steps))


def lanes(actors: Iterable[ShownActor], steps: tuple[StepRow, ...]) -> Lanes | None:
    """Return the lanes of learner and actors over the last steps; None: there are none yet.

    They end a step after the newest time that is known, and not now: a page changes only when its data does.
    """
    shown = tuple(actors)
    known = [*(step.at for step in steps), *(_begin(one.actor) for one in shown)]
    ahead = (steps[-1].whole_seconds or steps[-1].seconds) if steps else _AHEAD
    now = max(known, default=0.0) + ahead
    learner: list[Bar] = []
    counts: list[Bar] = []
    for step in steps:
        begun = step.at - step.seconds
        if step.whole_seconds is not None and step.whole_seconds > step.seconds:
            learner.append(Bar(step.at - step.whole_seconds, begun, "trains", ""))
        learner.append(Bar(begun, step.at, "generates", str(step.step)))
        planned = "" if step.planned_actors is None else f" of {step.planned_actors}"
        counts.append(Bar(begun, step.at, "generates", f"{step.actors}{planned}"))
    found = [Lane("learner", tuple(learner)), Lane("actors", tuple(counts))] if learner else []
    begins = [bar.begin for lane in found for bar in lane.bars]
    first = min(begins, default=min(known, default=now))
    for one in shown:
        begin = max(first, _begin(one.actor))
        end = one.actor.until if one.kind == "leaves" and one.actor.until is not None else now
        found.append(Lane(f"actor {one.actor.number}", (Bar(begin, max(begin, end), one.kind, ""),)))
    return Lanes(tuple(found)) if found else None


def _begin(actor: Actor) -> float:
    return actor.bound if actor.bound is not None else actor.since


def loans(jobs: Iterable[Job], named: Named) -> list[Loan]:
    """Return a pool's spare actors, each with whose GPUs were let go, by names that the viewer may see."""
    borrowed: list[tuple[str, Actor]] = []
    lent: dict[str, int] = {}
    for job in jobs:
        terms, record = job.desired.rollout, job.record
        if terms is None or record.admission is None:
            continue
        staying = [actor for actor in record.actors if actor.stays]
        borrowed += [(named(job.key), actor) for actor in staying[terms.base :]]
        if rights := max(0, terms.base - len(staying)):
            name = named(job.key)
            lent[name] = lent.get(name, 0) + rights * terms.gpus
    # Nobody's right is to certain GPUs, so all who lend stand beside each one that borrows.
    lenders = tuple(sorted(lent.items(), key=lambda one: (one[0] == ELSEWHERE, one[0])))
    return [Loan(who, actor, lenders) for who, actor in sorted(borrowed, key=lambda b: (b[0], b[1].number))]
