"""The coordinator of a group as a pure state machine: each event gives a new state, and what is to be done.

Whoever runs it does outputs in their order. `Record` has to be on member 0's disk before `recorded` is
called; nothing else waits for the disk. After a restart `restarted` begins anew from the disk, under the next
start number: whatever was said under an earlier one is refused by its token.

A turn: `Load` to all members, and when all have loaded, `Granted`. Calls: `Run` to all, and when all ran,
`Answer`; a repeated number gets the same answer. Release: `Write` to all, `Record` when all have written,
`Released` when it is recorded. Before the record the turn's calls count for nothing, after it once.
No clock: who runs it calls `expire` when a holder was silent or a function took too long, and `remind` to
send again what was not answered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from controller.policy.sharing.messages import (
    Answer,
    Died,
    Forget,
    FromMember,
    Gone,
    Granted,
    Kill,
    Load,
    Loaded,
    Missing,
    Ran,
    Refused,
    Released,
    Run,
    ToJob,
    Token,
    ToMember,
    TurnOver,
    Write,
    Written,
    same,
)
from controller.policy.sharing.turns import choose


class Phase(StrEnum):
    """Phases of a turn."""

    LOADING = "Loading"
    HELD = "Held"
    CALLING = "Calling"
    WRITING = "Writing"
    RECORDING = "Recording"


class OpenTurn(NamedTuple):
    """The present turn.

    Args:
        token, resident: whose it is.
        version: that it began with.
        phase: of it.
        awaited: UIDs of members that have not answered.
        number: of the newest call that was answered.
        function: that is called.
        answer: of member 0, to the newest call.
        again: the release asks for the next turn.
    """

    token: Token
    resident: str
    version: int
    phase: Phase
    awaited: frozenset[str]
    number: int = 0
    function: str = ""
    answer: str = ""
    again: bool = False


class Coordinator(NamedTuple):
    """The coordinator's state.

    Args:
        admission, start, random: of its tokens.
        members: UIDs of the pods that were admitted; member 0 is the first.
        versions: of each resident, as recorded on disk.
        cap: turns in a row.
        sequence: of the newest turn.
        waiting: residents, in the order in which they asked.
        loaded, row: as in `turns.choose`.
        turn: the present one; None: nobody has the group.
        leaving: residents that are to be forgotten, each with the members that have not yet.
    """

    admission: int
    start: int
    random: str
    members: tuple[str, ...]
    versions: tuple[tuple[str, int], ...] = ()
    cap: int = 1
    sequence: int = 0
    waiting: tuple[str, ...] = ()
    loaded: str | None = None
    row: int = 0
    turn: OpenTurn | None = None
    leaving: tuple[tuple[str, frozenset[str]], ...] = ()

    def version(self, resident: str) -> int | None:
        """Return the newest version that counts; None: it is no resident."""
        return dict(self.versions).get(resident)


class Send(NamedTuple):
    """Send a message to a member, by its pod's UID."""

    uid: str
    message: ToMember


class Reply(NamedTuple):
    """Tell a job."""

    resident: str
    message: ToJob


class Record(NamedTuple):
    """Write to disk that this version counts, then call `recorded`. Version None: it is no resident."""

    resident: str
    version: int | None
    token: Token | None


class ResidencyOver(NamedTuple):
    """Worker and state of a resident are gone from all members."""

    resident: str


Output = Send | Reply | Record | ResidencyOver
Step = tuple[Coordinator, tuple[Output, ...]]


def restarted(
    admission: int,
    start: int,
    random: str,
    members: tuple[str, ...],
    versions: dict[str, int],
    cap: int = 1,
    leaving: tuple[str, ...] = (),
) -> Coordinator:
    """Return a coordinator that begins under a new start number, with what its disk has: the versions, and
    the residents of which something may still be on members."""
    state = Coordinator(admission, start, random, members, tuple(sorted(versions.items())), cap)
    return state._replace(leaving=tuple((resident, frozenset(members)) for resident in leaving))


def join(state: Coordinator, resident: str) -> Step:
    """Take a resident with a fresh state."""
    if state.version(resident) is not None:
        return state, ()
    versions = tuple(sorted({**dict(state.versions), resident: 0}.items()))
    return state._replace(versions=versions), (Record(resident, 0, None),)


def leave(state: Coordinator, resident: str) -> Step:
    """Let a resident go: its turn is over, its states are forgotten."""
    return _end(state, resident, lost=False)


def ask(state: Coordinator, resident: str) -> Step:
    """Let a resident wait for a turn. A repeated request changes nothing and gets the same answer."""
    if state.version(resident) is None:
        return state, (Reply(resident, Refused(403, f"{resident} is no resident")),)
    turn = state.turn
    if turn is not None and turn.resident == resident:
        if turn.phase is Phase.HELD and turn.number == 0:
            return state, (Reply(resident, Granted(turn.token, turn.version)),)
        return state, ()
    if resident not in state.waiting:
        state = state._replace(waiting=(*state.waiting, resident))
    return _next(state)


def call(state: Coordinator, resident: str, token: Token, number: int, function: str) -> Step:
    """Call a function in a turn. ``number``: 1, 2, …; a repeated one gets the same answer."""
    turn = state.turn
    if turn is None or turn.resident != resident or not same(turn.token, token):
        return state, _over(state, resident, token)
    if number == turn.number and turn.phase is not Phase.CALLING:
        return state, (Reply(resident, Answer(turn.token, number, turn.answer)),)
    if number == turn.number + 1 and turn.phase is Phase.CALLING:
        return state, ()  # it is being answered
    if number != turn.number + 1 or turn.phase is not Phase.HELD:
        message = f"call {number} in phase {turn.phase}, expected {turn.number + 1} in {Phase.HELD}"
        return state, (Reply(resident, Refused(422, message)),)
    turn = turn._replace(phase=Phase.CALLING, awaited=frozenset(state.members), function=function)
    return state._replace(turn=turn), _outstanding(state, turn)


def release(state: Coordinator, resident: str, token: Token, again: bool = False) -> Step:
    """Release a turn; ``again``: and ask for the next one."""
    turn = state.turn
    if turn is None or turn.resident != resident or not same(turn.token, token):
        return state, _over(state, resident, token)
    if turn.phase in (Phase.WRITING, Phase.RECORDING):
        return state, ()
    if turn.phase is not Phase.HELD:
        return state, (Reply(resident, Refused(422, f"release in phase {turn.phase}")),)
    turn = turn._replace(phase=Phase.WRITING, awaited=frozenset(state.members), again=again)
    return state._replace(turn=turn), _outstanding(state, turn)


def recorded(state: Coordinator, resident: str, version: int | None, token: Token | None) -> Step:
    """Go on after a `Record` is on disk."""
    turn = state.turn
    if token is None or version is None or turn is None or not same(turn.token, token):
        return state, ()
    versions = tuple(sorted({**dict(state.versions), resident: version}.items()))
    waiting = state.waiting
    if turn.again and resident not in waiting:
        waiting = (*waiting, resident)
    state = state._replace(versions=versions, turn=None, waiting=waiting)
    state, outputs = _next(state)
    return state, (Reply(resident, Released(token, version)), *outputs)


def expire(state: Coordinator, token: Token) -> Step:
    """Take a turn away: its workers die, its calls count for nothing. Not while it is being recorded."""
    turn = state.turn
    if turn is None or not same(turn.token, token) or turn.phase is Phase.RECORDING:
        return state, ()
    kill = tuple(Send(uid, Kill(token)) for uid in state.members)
    over = Reply(turn.resident, TurnOver(token, turn.version))
    state, outputs = _next(state._replace(turn=None, loaded=None, row=0))
    return state, (*kill, over, *outputs)


def remind(state: Coordinator) -> Step:
    """Send again what was not answered."""
    outputs = _outstanding(state, state.turn) if state.turn is not None else ()
    return state, (*outputs, *_forgets(state))


def receive(state: Coordinator, uid: str, message: FromMember) -> Step:
    """Take a member's message. Only members that were admitted are heard, and only about the present turn."""
    if not known(state, uid):
        return state, ()
    if isinstance(message, Gone):
        return _residency_ended(state, uid, message.resident)
    turn = state.turn
    if turn is None or not same(turn.token, message.token):
        return state, ()
    if isinstance(message, Died):
        return expire(state, turn.token)
    if isinstance(message, Missing):
        return _end(state, turn.resident, lost=True)
    if not _answers(turn, message) or uid not in turn.awaited:
        return state, ()
    if isinstance(message, Ran) and uid == state.members[0]:
        turn = turn._replace(answer=message.answer)
    turn = turn._replace(awaited=turn.awaited - {uid})
    if turn.awaited:
        return state._replace(turn=turn), ()
    return _all_answered(state, turn)


def known(state: Coordinator, uid: str) -> bool:
    """Return whether a pod is one of those that were admitted; one made again is not."""
    return uid in state.members


def _answers(turn: OpenTurn, message: FromMember) -> bool:
    if isinstance(message, Loaded):
        return turn.phase is Phase.LOADING
    if isinstance(message, Ran):
        return turn.phase is Phase.CALLING and message.number == turn.number + 1
    if isinstance(message, Written):
        return turn.phase is Phase.WRITING and message.version == turn.version + 1
    return False


def _all_answered(state: Coordinator, turn: OpenTurn) -> Step:
    if turn.phase is Phase.LOADING:
        turn = turn._replace(phase=Phase.HELD)
        return state._replace(turn=turn), (Reply(turn.resident, Granted(turn.token, turn.version)),)
    if turn.phase is Phase.CALLING:
        turn = turn._replace(phase=Phase.HELD, number=turn.number + 1)
        answer = Answer(turn.token, turn.number, turn.answer)
        return state._replace(turn=turn), (Reply(turn.resident, answer),)
    turn = turn._replace(phase=Phase.RECORDING)
    return state._replace(turn=turn), (Record(turn.resident, turn.version + 1, turn.token),)


def _next(state: Coordinator) -> Step:
    """Begin the next turn, if nobody has one and somebody waits."""
    if state.turn is not None or not state.waiting:
        return state, ()
    place = choose(state.waiting, state.loaded, state.row, state.cap)
    resident = state.waiting[place]
    version = state.version(resident)
    assert version is not None
    sequence = state.sequence + 1
    token = Token(state.admission, state.start, state.random, sequence)
    turn = OpenTurn(token, resident, version, Phase.LOADING, frozenset(state.members))
    state = state._replace(
        sequence=sequence,
        waiting=state.waiting[:place] + state.waiting[place + 1 :],
        loaded=resident,
        row=state.row + 1 if resident == state.loaded else 1,
        turn=turn,
    )
    return state, _outstanding(state, turn)


def _outstanding(state: Coordinator, turn: OpenTurn) -> tuple[Output, ...]:
    """Return what members have not answered yet; what was not recorded yet."""
    message: ToMember
    if turn.phase is Phase.LOADING:
        message = Load(turn.token, turn.resident, turn.version, state.versions)
    elif turn.phase is Phase.CALLING:
        message = Run(turn.token, turn.number + 1, turn.function)
    elif turn.phase is Phase.WRITING:
        message = Write(turn.token, turn.version + 1)
    else:
        return ()
    return tuple(Send(uid, message) for uid in state.members if uid in turn.awaited)


def _over(state: Coordinator, resident: str, token: Token) -> tuple[Output, ...]:
    version = state.version(resident)
    if version is None:
        return (Reply(resident, Refused(403, f"{resident} is no resident")),)
    return (Reply(resident, TurnOver(token, version)),)


def _end(state: Coordinator, resident: str, *, lost: bool) -> Step:
    """End a residency; ``lost``: because a member has not got its state."""
    if state.version(resident) is None:
        return state, ()
    outputs: tuple[Output, ...] = ()
    turn = state.turn
    versions = tuple(pair for pair in state.versions if pair[0] != resident)
    state = state._replace(
        versions=versions,
        waiting=tuple(one for one in state.waiting if one != resident),
        leaving=(*state.leaving, (resident, frozenset(state.members))),
    )
    if turn is not None and turn.resident == resident:
        over = Refused(403, f"{resident}: its state is lost" if lost else f"{resident} is no resident")
        kill = tuple(Send(uid, Kill(turn.token)) for uid in state.members)
        state = state._replace(turn=None, loaded=None, row=0)
        outputs = (*kill, Reply(resident, over))
    elif state.loaded == resident:
        state = state._replace(loaded=None, row=0)
    record = Record(resident, None, None)
    forgets = _forgets(state)
    state, more = _next(state)
    return state, (record, *outputs, *forgets, *more)


def _forgets(state: Coordinator) -> tuple[Output, ...]:
    return tuple(
        Send(uid, Forget(state.admission, state.start, resident))
        for resident, members in state.leaving
        for uid in state.members
        if uid in members
    )


def _residency_ended(state: Coordinator, uid: str, resident: str) -> Step:
    left, outputs = [], list[Output]()
    for one, members in state.leaving:
        rest = members - {uid} if one == resident else members
        if rest:
            left.append((one, rest))
        elif one == resident:
            outputs.append(ResidencyOver(one))
    return state._replace(leaving=tuple(left)), tuple(outputs)
