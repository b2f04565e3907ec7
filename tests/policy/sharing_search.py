"""The search of every interleaving of two members, two residents and a budget of faults.

The world is one value: the coordinator, its disk, two members with their devices and host memory, two jobs,
and messages under way in any order. Member 0 is in one process with the coordinator, so they talk without
messages. States that were seen are not entered again. A state says how many calls are in it (each turn has
one), so a version that counts has to hold exactly its own number.

What is checked in every state: one worker's memory on a device; members at work for one job; a version that
counts is on every member that was admitted, with the calls of its turns; a job is told of a turn's release
at most once, and never otherwise than it was recorded. A state from which nothing goes on must be the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from controller.policy.sharing import coordinator as co
from controller.policy.sharing import member as me
from controller.policy.sharing import messages as ms

CALL, SPEED = 1, "forward_backward"
PODS = ("pod-0", "pod-1")
AGAIN = "pod-1-again"


class WrongError(AssertionError):
    """An invariant does not hold."""


class Job(NamedTuple):
    """A job: turns that it wants and has had; ``at``: idle, asked, called, releasing, done."""

    name: str
    wants: int
    had: int = 0
    at: str = "idle"
    token: ms.Token | None = None
    version: int = 0


class Device(NamedTuple):
    """A member's memory: whose state is on the device, the calls in it, and states in host memory."""

    owners: tuple[str, ...] = ()
    calls: int = 0
    host: tuple[tuple[str, int, int], ...] = ()  # resident, version, calls


class Budget(NamedTuple):
    """Faults that may still happen. ``crashes``: of a supervisor or worker, or a pod that is made again."""

    crashes: int = 0
    losses: int = 0
    doubles: int = 0
    expiries: int = 0


class World(NamedTuple):
    head: co.Coordinator
    disk: tuple[tuple[str, int], ...]
    pending: co.Record | None
    members: tuple[me.Member, ...]
    devices: tuple[Device, ...]
    jobs: tuple[Job, ...]
    wire: tuple[tuple[str, object], ...]  # to whom, what; sorted
    budget: Budget
    slow: tuple[int, ...]  # members whose devices are free only later


def begin(turns: tuple[int, ...], budget: Budget, slow: tuple[int, ...] = (0, 1)) -> World:
    """Return a world in which each job wants so many turns."""
    names = "ab"[: len(turns)]
    versions = dict.fromkeys(names, 0)
    head = co.restarted(1, 1, "r1", PODS, versions)
    members = tuple(me.Member(uid, 1, PODS) for uid in PODS)
    jobs = tuple(Job(name, count) for name, count in zip(names, turns, strict=True))
    world = World(
        head, tuple(sorted(versions.items())), None, members, (Device(), Device()), jobs, (), budget, slow
    )
    for i in range(len(jobs)):
        world = _request(world, i)
    return world


# What happens.


def steps(world: World) -> Iterator[tuple[str, World]]:
    """Yield everything that can happen next."""
    budget = world.budget
    last = None
    for i, (to, message) in enumerate(world.wire):
        if (to, message) == last:
            continue  # a double of the one before
        last = (to, message)
        rest = world._replace(wire=world.wire[:i] + world.wire[i + 1 :])
        yield f"{message} to {to}", _deliver(rest, to, message)
        if budget.losses:
            yield f"lost: {message}", rest._replace(budget=budget._replace(losses=budget.losses - 1))
        if budget.doubles:
            twice = world._replace(budget=budget._replace(doubles=budget.doubles - 1))
            yield f"doubled: {message}", _deliver(twice, to, message)
    for i, member in enumerate(world.members):
        if member.leaving:
            yield f"device {i} is free", _device_free(world, i)
    if world.pending is not None:
        yield "recorded", _recorded(world)
    turn = world.head.turn
    quiet = not world.wire and world.pending is None and not any(m.leaving for m in world.members)
    if turn is not None and budget.expiries:
        less = world._replace(budget=budget._replace(expiries=budget.expiries - 1))
        yield "expired", _head(less, co.expire(world.head, turn.token))
    if quiet:
        later = _timers(world)
        if later != world:
            yield "timers", later
        elif turn is not None and world.members[1].uid in PODS:
            # Somebody is silent for ever: a holder, or a member that has forgotten the turn.
            yield "expired at last", _head(world, co.expire(world.head, turn.token))
    if budget.crashes:
        yield from _crashes(world._replace(budget=budget._replace(crashes=budget.crashes - 1)))


def _timers(world: World) -> World:
    """Let everybody send again what was not answered, if anything would come of it now."""
    again = _head(world, co.remind(world.head))
    for i in range(len(world.jobs)):
        again = _request(again, i)
    useful = tuple(one for one in again.wire if _deliver(world, *one) != world)
    return again._replace(wire=useful)


def tidy(world: World) -> World:
    """Return the world without messages that can have no effect any more: of a turn before the newest."""
    left = tuple(one for one in world.wire if not (_old(world, *one) and _deliver(world, *one) == world))
    return world if len(left) == len(world.wire) else world._replace(wire=left)


def _old(world: World, to: str, message: object) -> bool:
    """Return whether a message is of an earlier turn than the newest that its receiver has seen."""
    if to == "member":
        token = getattr(message, "token", None)
        return token is not None and (token.start, token.sequence) < world.members[1].newest
    if to == "head":
        assert isinstance(message, tuple)
        token = message[2].token if message[0] == "member" else message[2] if len(message) > 2 else None
        newest = (world.head.start, world.head.sequence)
    else:
        token = getattr(message, "token", None)
        last = next(job.token for job in world.jobs if job.name == to)
        newest = (last.start, last.sequence) if last is not None else (0, 0)
    return token is not None and (token.start, token.sequence) < newest


def _crashes(world: World) -> Iterator[tuple[str, World]]:
    for i in range(2):
        if world.devices[i].owners:
            state, effects = me.worker_died(world.members[i])
            yield f"worker {i} died", _member(world, i, state, effects)
    yield "supervisor 1 died", _supervisor_died(world, 1)
    died = _supervisor_died(world, 0)
    for disk in {world.disk, _written(world)}:
        start = world.head.start + 1
        head = co.restarted(1, start, f"r{start}", PODS, dict(disk))
        yield "supervisor 0 died", died._replace(head=head, disk=disk, pending=None)
    made_again = me.Member(AGAIN, 0, ())  # it has no ticket yet: no admission, no peers
    yield (
        "pod 1 made again",
        world._replace(members=(world.members[0], made_again), devices=(world.devices[0], Device())),
    )


def _supervisor_died(world: World, i: int) -> World:
    return _member(world, i, me.member_restarted(world.members[i]), ())


def _written(world: World) -> tuple[tuple[str, int], ...]:
    record = world.pending
    if record is None or record.version is None:
        return world.disk
    return tuple(sorted({**dict(world.disk), record.resident: record.version}.items()))


def _deliver(world: World, to: str, message: object) -> World:
    if to == "head":
        assert isinstance(message, tuple)
        kind, *rest = message
        if kind == "member":
            return _head(world, co.receive(world.head, *rest))
        if kind == "ask":
            return _head(world, co.ask(world.head, *rest))
        if kind == "call":
            return _head(world, co.call(world.head, *rest, CALL, SPEED))
        return _head(world, co.release(world.head, *rest))
    if to == "member":
        return _told(world, 1, message)
    return _job(world, to, message)


def _head(world: World, step: co.Step) -> World:
    """Carry out what the coordinator wants done."""
    state, outputs = step
    world = world._replace(head=state)
    for output in outputs:
        if isinstance(output, co.Send):
            if output.uid == PODS[0]:
                world = _told(world, 0, output.message)
            else:
                world = _send(world, "member", output.message)
        elif isinstance(output, co.Reply):
            world = _send(world, output.resident, output.message)
        elif isinstance(output, co.Record):
            world = world._replace(pending=output)
    return world


def _told(world: World, i: int, message: object) -> World:
    state, effects = me.receive(world.members[i], PODS[0], message)  # type: ignore[arg-type]
    return _member(world, i, state, effects)


def _member(world: World, i: int, state: me.Member, effects: tuple[me.Effect, ...]) -> World:
    """Carry out what a member wants done; all but the device is at once."""
    world = world._replace(members=_with(world.members, i, state))
    for effect in effects:
        device = world.devices[i]
        done: tuple[me.Member, tuple[me.Effect, ...]] | None = None
        if isinstance(effect, me.Begin):
            if device.owners:
                raise WrongError(f"member {i}: {effect.resident} is loaded beside {device.owners}")
            calls = _calls(device, effect.resident, effect.version)
            device = device._replace(owners=(effect.resident,), calls=calls)
            done = me.began(state, effect.token)
        elif isinstance(effect, me.Execute):
            _alone_at_work(world, i, effect.token)
            device = device._replace(calls=device.calls + 1)
            done = me.ran(state, effect.token, effect.number, "ok")
        elif isinstance(effect, me.Save):
            host = {(r, v): c for r, v, c in device.host}
            host[effect.resident, effect.version] = device.calls
            device = device._replace(host=tuple(sorted((r, v, c) for (r, v), c in host.items())))
            done = me.saved(state, effect.token, effect.version)
        elif isinstance(effect, me.Drop):
            kept = tuple(one for one in device.host if one[:2] != (effect.resident, effect.version))
            device = device._replace(host=kept)
        world = world._replace(devices=_with(world.devices, i, device))
        if isinstance(effect, me.Reply):
            world = _reply(world, i, effect.message)
            state = world.members[i]
        if done is not None:
            world = _member(world, i, *done)
            state = world.members[i]
    if i not in world.slow and world.members[i].leaving:
        return _device_free(world, i)
    return world


def _reply(world: World, i: int, message: ms.FromMember) -> World:
    uid = world.members[i].uid
    if i == 0:
        return _head(world, co.receive(world.head, uid, message))
    return _send(world, "head", ("member", uid, message))


def _device_free(world: World, i: int) -> World:
    devices = _with(world.devices, i, world.devices[i]._replace(owners=(), calls=0))
    return _member(world._replace(devices=devices), i, *me.device_free(world.members[i]))


def _recorded(world: World) -> World:
    record = world.pending
    assert record is not None
    world = world._replace(disk=_written(world), pending=None)
    return _head(world, co.recorded(world.head, *record))


def _request(world: World, i: int) -> World:
    """Let a job send what it waits for, again if need be."""
    job = world.jobs[i]
    if job.at == "idle":
        job = job._replace(at="asked" if job.had < job.wants else "done")
        world = world._replace(jobs=_with(world.jobs, i, job))
    request = {
        "asked": ("ask", job.name),
        "called": ("call", job.name, job.token),
        "releasing": ("release", job.name, job.token),
    }.get(job.at)
    return world if request is None else _send(world, "head", request)


def _job(world: World, name: str, message: object) -> World:
    i = next(i for i, job in enumerate(world.jobs) if job.name == name)
    job = world.jobs[i]
    if isinstance(message, ms.Granted) and job.at == "asked" and _newer(message.token, job.token):
        if message.version != job.had:
            raise WrongError(f"{name} had {job.had} turns and is granted version {message.version}")
        job = job._replace(at="called", token=message.token, version=message.version)
    elif isinstance(message, ms.Answer) and job.at == "called" and message.token == job.token:
        job = job._replace(at="releasing")
    elif isinstance(message, ms.Released) and job.at == "releasing" and message.token == job.token:
        job = job._replace(at="idle", had=job.had + 1)
    elif (
        isinstance(message, ms.TurnOver) and message.token == job.token and job.at in ("called", "releasing")
    ):
        # What counts is told by the version: its own turn is in it or not.
        job = job._replace(at="idle", had=message.version)
        if message.version not in (job.version, job.version + (world.jobs[i].at == "releasing")):
            raise WrongError(f"{name} began with {job.version} and is told {message.version}")
    else:
        return world
    return _request(world._replace(jobs=_with(world.jobs, i, job)), i)


def _newer(token: ms.Token, last: ms.Token | None) -> bool:
    """Return whether a grant is none that the job has had: an answer to an earlier request may come late."""
    return last is None or (token.start, token.sequence) > (last.start, last.sequence)


# What must be so.


def check(world: World) -> None:
    """Raise `WrongError` unless what is recorded is there, with the calls of its turns."""
    for resident, version in world.disk:
        for i, member in enumerate(world.members):
            if version and member.uid in PODS:
                calls = [c for r, v, c in world.devices[i].host if (r, v) == (resident, version)]
                if calls != [version]:
                    raise WrongError(f"member {i}: version {version} of {resident} has calls {calls}")
    recorded = dict(world.disk)
    for job in world.jobs:
        if not job.had <= recorded[job.name] <= job.had + 1:
            raise WrongError(f"{job.name} had {job.had} turns, {recorded[job.name]} are recorded")


def ended(world: World) -> bool:
    """Return whether every job had its turns."""
    return all(job.at == "done" for job in world.jobs) or any(m.uid == AGAIN for m in world.members)


def _alone_at_work(world: World, i: int, token: ms.Token) -> None:
    """Raise unless what runs belongs to the turn that is held now, if one is."""
    turn = world.head.turn
    if turn is not None and turn.token != token and turn.phase is not co.Phase.LOADING:
        raise WrongError(f"member {i} is at work for {token} in the turn {turn.token}")


def _calls(device: Device, resident: str, version: int) -> int:
    if version == 0:
        return 0
    return next(c for r, v, c in device.host if (r, v) == (resident, version))


def search(world: World, most: int = 10_000_000, tidies: bool = True) -> int:
    """Enter every state that can come of this one, and return how many there are.

    Args:
        world: the first one.
        most: states, at most.
        tidies: whether messages without effect are left out; not where the machines are mutated.

    Raises:
        WrongError: an invariant does not hold in one of them; the way to it is in the message.
    """
    came: dict[World, tuple[World | None, str]] = {world: (None, "begin")}
    open_worlds = [world]
    while open_worlds:
        now = open_worlds.pop()
        try:
            check(now)
            onward = False
            for what, then in steps(now):
                if then != now:
                    onward = True
                if tidies:
                    then = tidy(then)
                if then not in came:
                    came[then] = (now, what)
                    open_worlds.append(then)
                    if len(came) > most:
                        raise RuntimeError(f"more than {most} states")
            if not onward and not ended(now):
                raise WrongError("nothing goes on")
        except WrongError as error:
            raise WrongError(f"{error}, after: {_way(came, now)}") from error
    return len(came)


def _way(came: dict[World, tuple[World | None, str]], world: World) -> str:
    said: list[str] = []
    at: World | None = world
    while at is not None:
        at, what = came[at]
        said.append(what)
    return "; ".join(reversed(said))


def _send(world: World, to: str, message: object) -> World:
    return world._replace(wire=tuple(sorted((*world.wire, (to, message)), key=repr)))


def _with(items: tuple, i: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:i], item, *items[i + 1 :])
