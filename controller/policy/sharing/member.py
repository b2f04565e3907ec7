"""One member of a group as a pure state machine: each event gives a new state, and what is to be done.

A member has at most one resident's worker on its device. A new turn's state is loaded only when the *device*
says that the memory of the last worker is free: an off-load that answers may have freed nothing, and after a
kill the driver frees later. A resident whose state is loaded already stays loaded.

States lie in host memory by version. `Write` keeps the next version beside the present one; the present one
is dropped when the coordinator begins a newer turn, which it does only once that is recorded. So whatever
dies in between, the version that counts is there, and of k residents there are at most k + 1 states.
``newest`` lies in host memory, too, which outlives a restart of the container: a `Load` that comes twice is
not begun again by a member that has forgotten its turn.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.policy.sharing.messages import (
    Died,
    Forget,
    FromMember,
    Gone,
    Kill,
    Load,
    Loaded,
    Missing,
    Ran,
    Run,
    Token,
    ToMember,
    Write,
    Written,
    same,
)

DIRTY = -1  # the device has a state that is no version


class Member(NamedTuple):
    """A member's state.

    Args:
        uid, admission, peers: of its pod, from its ticket; member 0 is the first of ``peers``.
        newest: start and sequence of the newest turn that it has begun; in host memory.
        states: (resident, version), in host memory.
        token, resident, version: of the present turn; None: there is none.
        worker: resident whose state is on the device, or being loaded.
        ready: the worker has it.
        on_device: version that the device has, or `DIRTY`.
        leaving: the device has not said yet that it is free of the worker before.
        running: number of the call that runs; 0: none.
        number, answer: of the newest call.
    """

    uid: str
    admission: int
    peers: tuple[str, ...]
    newest: tuple[int, int] = (0, 0)
    states: tuple[tuple[str, int], ...] = ()
    token: Token | None = None
    resident: str = ""
    version: int = 0
    worker: str | None = None
    ready: bool = False
    on_device: int = DIRTY
    leaving: bool = False
    running: int = 0
    number: int = 0
    answer: str = ""


class Begin(NamedTuple):
    """Load a state onto the device (version 0: a fresh one), then call `began`."""

    resident: str
    version: int
    token: Token


class OffLoad(NamedTuple):
    """Let a worker give its device memory back; ask the device until it is free, then call `device_free`."""

    resident: str


class End(NamedTuple):
    """Kill a worker and reap it; ask the device until it is free, then call `device_free`."""

    resident: str


class Execute(NamedTuple):
    """Call a function in the worker, then `ran`."""

    token: Token
    number: int
    function: str


class Save(NamedTuple):
    """Copy the device's state to host memory as this version, then call `saved`."""

    resident: str
    version: int
    token: Token


class Drop(NamedTuple):
    """Forget a version."""

    resident: str
    version: int


class Reply(NamedTuple):
    """Send a message to the coordinator."""

    message: FromMember


Effect = Begin | OffLoad | End | Execute | Save | Drop | Reply
MemberStep = tuple[Member, tuple[Effect, ...]]


def receive(state: Member, sender: str, message: ToMember) -> MemberStep:
    """Carry out a message of the coordinator's."""
    admission, start = (
        (message.admission, message.start)
        if isinstance(message, Forget)
        else (message.token.admission, message.token.start)
    )
    if not obeys(state, sender, admission, start):
        return state, ()
    if isinstance(message, Load):
        return _load(state, message)
    if isinstance(message, Forget):
        return _forget(state, message.resident)
    if not same(state.token, message.token):
        return state, ()
    if isinstance(message, Run):
        return _run(state, message)
    if isinstance(message, Write):
        return _write(state, message)
    assert isinstance(message, Kill)
    state, effects = _clear(state._replace(token=None, running=0), kill=True)
    return state, effects


def obeys(state: Member, sender: str, admission: int, start: int) -> bool:
    """Return whether a message is of this admission's member 0, and of its newest start."""
    return state.peers[:1] == (sender,) and admission == state.admission and start >= state.newest[0]


def waits_for_device(state: Member) -> bool:
    """Return whether the memory of the last worker is not free yet."""
    return state.leaving


def kept_at_write(state: Member, version: int) -> tuple[tuple[str, int], ...]:
    """Return the states that are there once a version is written: it, and all others."""
    return tuple(sorted({*state.states, (state.resident, version)}))


def device_free(state: Member) -> MemberStep:
    """Go on after the device has said that it is free."""
    state = state._replace(leaving=False)
    if state.token is not None and state.worker is None:
        return _begin(state)
    return state, ()


def began(state: Member, token: Token) -> MemberStep:
    """Go on after a state is on the device."""
    if not same(state.token, token):
        return state, ()
    return state._replace(ready=True, on_device=state.version), (Reply(Loaded(token)),)


def ran(state: Member, token: Token, number: int, answer: str) -> MemberStep:
    """Go on after a function."""
    if not same(state.token, token) or number != state.running:
        return state, ()
    return state._replace(running=0, number=number, answer=answer), (Reply(Ran(token, number, answer)),)


def saved(state: Member, token: Token, version: int) -> MemberStep:
    """Go on after a version is written."""
    if not same(state.token, token):
        return state, ()
    before = state.states
    states = kept_at_write(state, version)
    dropped = tuple(Drop(*one) for one in before if one not in states)
    state = state._replace(states=states, on_device=version)
    return state, (*dropped, Reply(Written(token, version)))


def worker_died(state: Member) -> MemberStep:
    """Go on without the worker: the turn is over here."""
    token = state.token
    state = state._replace(token=None, worker=None, ready=False, on_device=DIRTY, leaving=True, running=0)
    return state, () if token is None else (Reply(Died(token)),)


def member_restarted(state: Member) -> Member:
    """Return the member after its supervisor died, and its worker with it; host memory is what it was."""
    return Member(state.uid, state.admission, state.peers, state.newest, state.states, leaving=True)


def _load(state: Member, message: Load) -> MemberStep:
    token, resident, version, counting = message
    if same(state.token, token):
        return state, (Reply(Loaded(token)),) if state.ready and not state.running else ()
    if (token.start, token.sequence) <= state.newest:
        return state, ()  # it came late, or twice to one that has forgotten it
    # Whoever begins a newer turn has recorded all before it: one state beside those that count is enough.
    counts = {**dict(counting), resident: version}
    dropped = tuple(Drop(*one) for one in state.states if one[1] != counts.get(one[0], one[1]))
    states = tuple(one for one in state.states if one[1] == counts.get(one[0], one[1]))
    running = state.running
    state = state._replace(
        newest=(token.start, token.sequence),
        states=states,
        token=token,
        resident=resident,
        version=version,
        running=0,
        number=0,
        answer="",
    )
    if version > 0 and (resident, version) not in states:
        state, effects = _clear(state._replace(token=None), kill=True)
        return state, (*dropped, *effects, Reply(Missing(token)))
    if state.worker == resident and state.ready and state.on_device == version and not running:
        return state, (*dropped, Reply(Loaded(token)))
    clean = (state.worker, state.on_device) in state.states and state.ready and not running
    state, effects = _clear(state, kill=not clean)
    if waits_for_device(state):
        return state, (*dropped, *effects)
    state, more = _begin(state)
    return state, (*dropped, *effects, *more)


def _begin(state: Member) -> MemberStep:
    token = state.token
    assert token is not None
    state = state._replace(worker=state.resident, ready=False, on_device=DIRTY)
    return state, (Begin(state.resident, state.version, token),)


def _clear(state: Member, *, kill: bool) -> MemberStep:
    """Take the worker, if there is one, off the device."""
    worker = state.worker
    if worker is None:
        return state, ()
    effect = End(worker) if kill else OffLoad(worker)
    return state._replace(worker=None, ready=False, on_device=DIRTY, leaving=True), (effect,)


def _run(state: Member, message: Run) -> MemberStep:
    if not state.ready or state.running:
        return state, ()
    if message.number == state.number and state.number:
        return state, (Reply(Ran(message.token, state.number, state.answer)),)
    if message.number != state.number + 1:
        return state, ()
    state = state._replace(running=message.number, on_device=DIRTY)
    return state, (Execute(message.token, message.number, message.function),)


def _write(state: Member, message: Write) -> MemberStep:
    if not state.ready or state.running or message.version != state.version + 1:
        return state, ()
    if state.on_device == message.version:
        return state, (Reply(Written(message.token, message.version)),)
    return state, (Save(state.resident, message.version, message.token),)


def _forget(state: Member, resident: str) -> MemberStep:
    dropped = tuple(Drop(*one) for one in state.states if one[0] == resident)
    state = state._replace(states=tuple(one for one in state.states if one[0] != resident))
    effects: tuple[Effect, ...] = ()
    if state.resident == resident and state.token is not None:
        state = state._replace(token=None, running=0)
    if state.worker == resident:
        state, effects = _clear(state, kill=True)
    return state, (*dropped, *effects, Reply(Gone(resident)))
