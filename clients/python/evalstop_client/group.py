"""A job's side of a shared worker group (docs/use/sharing.md). Standard library only, Python 3.9.

    group = Group.of_pod()                     # what run.json names
    while step < steps:
        batch = rollouts(policy)               # elsewhere; others have the training GPUs meanwhile
        with group.turn() as t:
            t.forward_backward(batch, loss="ppo")
            t.optim_step(lr)
        step += 1                              # only here does the turn count
        policy = group.read("weights")         # without a turn

A turn is a transaction: what was called in it counts once its end was answered, and not before. So scores
and checkpoints are published after the ``with``, or by `Turn.after`. A turn that is lost raises `TurnLost`
and none of its
calls count: the group has the state that the turn began with, and the job does the step again (`Group.run`
does so by itself).

A call whose answer is lost is made again under the same number, and gets the same answer. Nothing here goes
by a clock but how long to try: a grant counts if its token is newer than the last one that this client had.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from evalstop_client.arrays import array_of, is_array
from evalstop_client.envelope import Array, EnvelopeError, decode, encode, joined
from evalstop_client.rollouts import _Pinned

if TYPE_CHECKING:
    from evalstop_client.client import EvalStopClient

log = logging.getLogger("evalstop")

WAIT = 25.0  # s for which the group may hold a request for a turn
_SOON = 2.0  # s, where a process may be told to end meanwhile
PATIENCE = 600.0  # s without any answer after which the job gives up: a group's pods are made again within
ENVELOPE = "application/vnd.evalstop.envelope"
TOKEN = "/var/run/secrets/evalstop.dev/token"  # the projected token, by default
_ASK_AGAIN = 60.0  # s between two questions for a newer ticket
_EARLY = 3600.0  # s before its end at which a ticket is renewed
_PIECE = 64 << 20  # bytes of a region that are read at once
_ANSWER = 1 << 30  # bytes of an answer
_LONGEST_PAUSE = 2.0  # s between two tries
_CONNECTS = 20.0  # s for a connection to be made, after which somebody else may be the one to ask

_Result = TypeVar("_Result")


class GroupError(RuntimeError):
    """The group cannot do what was asked; the message says why."""


class TurnLost(GroupError):
    """A turn is over, and none of its calls count. ``version``: the state that the group has."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class StateLost(GroupError):
    """The group has lost the job's state: the run starts again from its newest checkpoint."""


class NoResidency(GroupError):
    """The job has no place in a group, or no more."""


class HostMemoryFull(GroupError):
    """The group's host memory does not hold the state: the family's ``hostBytes`` are too small."""


class Leaving(GroupError):
    """This process is to end, and has no turn."""


class CallRefused(GroupError, ValueError):
    """The group refuses a call: there is no such function, or not with such arguments. The turn goes on."""


class StateMoved(GroupError):
    """A version is not kept any more: the job has had another turn. ``version``: the newest."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class Ticket(NamedTuple):
    """The right to ask a group: at which member 0, with which certificate (its SHA-256), as which
    resident."""

    ticket: str
    resident: str
    address: str
    fingerprint: str

    @staticmethod
    def of(document: Mapping[str, Any]) -> Ticket:
        """Return the ticket of an answer.

        Raises:
            ValueError: a field is missing.
        """
        fields = [document.get(name) for name in Ticket._fields]
        if not all(isinstance(field, str) and field for field in fields):
            missing = [name for name, field in zip(Ticket._fields, fields) if not field]
            raise ValueError(f"a ticket without {', '.join(missing)}")
        return Ticket(*fields)  # type: ignore[arg-type]

    @property
    def ends(self) -> float | None:
        """The time at which it is over, s since the epoch; None: it does not say."""
        try:
            head = self.ticket.partition(".")[0]
            return float(json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["ends"])
        except (ValueError, KeyError, TypeError):
            return None


class Tickets(Protocol):
    """A source of tickets."""

    def get(self) -> Ticket | None:
        """Return one; None: not yet, ask again.

        Raises:
            NoResidency: there is none for this job.
            OSError, http.client.HTTPException: nobody answered.
        """


class TicketFile:
    """A file with one ticket, as a group on loopback writes it. It is read again each time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def get(self) -> Ticket:
        return Ticket.of(json.loads(self._path.read_text(encoding="utf-8")))


class OperatorTickets:
    """Tickets of the operator's step port, for the pod's projected token.

    Args:
        urls: of each process that may lead.
        ca: PEM text of its authority.
        token: file of the projected token.
        attempt: this one's number.
    """

    def __init__(self, urls: Sequence[str], ca: str, token: str, attempt: int) -> None:
        if not urls:
            raise ValueError("urls: expected at least one address of the operator's, got none")
        self._urls, self._token, self._attempt = list(urls), token, attempt
        self._context = ssl.create_default_context(cadata=ca)

    @staticmethod
    def of_pod(environ: Mapping[str, str] = os.environ) -> OperatorTickets:
        """Return them as the pod's ``run.json`` names the operator.

        Raises:
            OSError, KeyError, ValueError: it names none: the job has no ``spec.sharing``.
        """
        folder = Path(environ["EVALSTOP_RUN_DIR"])
        document = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        group = document["group"]
        ca = group.get("ca") or (folder / "steps-ca.crt").read_text(encoding="utf-8")
        token = environ.get("EVALSTOP_STEPS_TOKEN") or group.get("token") or TOKEN
        return OperatorTickets(group["urls"], ca, token, int(document["attempt"]))

    def get(self) -> Ticket | None:
        fault: Exception | None = None
        for url in self._urls:
            parts = urlsplit(url)
            connection = http.client.HTTPSConnection(parts.netloc, timeout=10.0, context=self._context)
            try:
                with open(self._token, encoding="ascii") as file:
                    headers = {
                        "Authorization": f"Bearer {file.read().strip()}",
                        "Content-Type": "application/json",
                    }
                body = json.dumps({"attempt": self._attempt})
                connection.request("POST", parts.path.rstrip("/") + "/v1/groups/ticket", body, headers)
                answer = connection.getresponse()
                document = _document(answer.read(1 << 20))
            except (OSError, http.client.HTTPException) as error:
                fault = error
                continue
            finally:
                connection.close()
            if answer.status == 200:
                return Ticket.of(document)
            if answer.status in (421, 429, 500, 502, 503, 504):  # not the leader, or no residency yet
                fault = None
                continue
            raise NoResidency(f"{answer.status} {document.get('reason')}: {document.get('message')}")
        if fault is not None:
            raise fault
        return None


class Answer(NamedTuple):
    """The result of a function: JSON, and arrays by name (`arrays.as_numpy`, `arrays.as_torch`)."""

    result: Any
    arrays: dict[str, Array]


class State(NamedTuple):
    """The newest version that counts, and where each member has its regions (name: bytes)."""

    version: int
    members: tuple[MemberState, ...]


class MemberState(NamedTuple):
    number: int
    address: str
    fingerprint: str
    regions: dict[str, int]


class _Reply(NamedTuple):
    status: int
    body: bytes
    envelope: bool

    @property
    def document(self) -> dict[str, Any]:
        return _document(self.body)


class Turn:
    """One turn. Made by `Group.turn`.

    Attributes:
        version: that it began with.
        functions: that there are.
        released: the version that has its calls, once it is released.
    """

    def __init__(self, group: Group, granted: Mapping[str, Any]) -> None:
        self._group = group
        self.token = str(granted["token"])
        self.version = int(granted["version"])
        self.functions: tuple[str, ...] = tuple(granted.get("functions") or ())
        self.seconds = float(granted.get("turnSeconds") or 600.0)
        self.released: int | None = None
        self._number = 0
        self._after: list[Callable[[], object]] = []

    def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, arrays: Mapping[str, Any] | None = None
    ) -> Answer:
        """Call a function, once whatever happens to the answer.

        Args:
            name: of the function.
            arguments: JSON values.
            arrays: by name: NumPy's, torch's, lists of numbers, or `Array`.

        Raises:
            CallRefused: there is no such function, or it refuses these arguments. The turn goes on.
            TurnLost: the turn is over, and its calls do not count.
            StateLost, NoResidency, GroupError: as they say.
        """
        if self.released is not None:
            raise GroupError(f"{name}: the turn is released")
        parts = encode(
            {"function": name, "arguments": dict(arguments or {})},
            {key: array_of(value) for key, value in (arrays or {}).items()},
        )
        number = self._number + 1
        path = f"/v1/turns/{self.token}/calls/{number}"
        reply = self._group._ask("POST", path, joined(parts), timeout=self.seconds + 60.0, envelope=True)
        if reply.status == 422:
            self._number = number  # it was answered, and a repetition would get the same
        if reply.status != 200:
            raise self._group._fault(f"{name}:", reply)
        self._number = number
        try:
            header, found = decode(reply.body)
        except EnvelopeError as fault:
            raise GroupError(f"{name}: an answer that is no envelope: {fault}") from None
        return Answer(header.get("result"), found)

    # The functions of the families here, as the Tinker API calls them.

    def forward(self, batch: Mapping[str, Any], **arguments: Any) -> Answer:
        """Return log-probabilities of a batch. Arrays of the batch travel as arrays, the rest as JSON."""
        return self._call("forward", batch, arguments)

    def forward_backward(self, batch: Mapping[str, Any], **arguments: Any) -> Answer:
        """Add the gradients of a loss on a batch."""
        return self._call("forward_backward", batch, arguments)

    def optim_step(self, lr: float, **arguments: Any) -> Answer:
        """Make a step of the optimizer with the gradients so far."""
        return self._call("optim_step", {"lr": lr}, arguments)

    def _call(self, name: str, batch: Mapping[str, Any], arguments: Mapping[str, Any]) -> Answer:
        given = {**batch, **arguments}
        arrays = {key: value for key, value in given.items() if is_array(value)}
        return self.call(name, {key: value for key, value in given.items() if key not in arrays}, arrays)

    def after(self, publish: Callable[[], object]) -> None:
        """Have something done once the turn counts: a score reported, a checkpoint written. Not if it is
        lost."""
        self._after.append(publish)

    def _publish(self) -> None:
        for publish in self._after:
            publish()


class Group:
    """A job's residency in a worker group. One thread takes turns; `state` and `read` may be another's.

    Args:
        tickets: where tickets come from.
        client: whose page shows how long turns are waited for and held.
        patience: s without any answer after which `GroupError` is raised.
        leaves: asked while the group is waited for; True ends the wait with `Leaving` (a process that was
            sent SIGTERM). A turn that it holds ends by itself then, and does not count.
    """

    def __init__(
        self,
        tickets: Tickets,
        *,
        client: EvalStopClient | None = None,
        patience: float = PATIENCE,
        leaves: Callable[[], bool] | None = None,
    ) -> None:
        self._tickets, self._client, self._patience, self._leaves = tickets, client, patience, leaves
        self._ticket: Ticket | None = None
        self._renews = False  # another one is to be asked for; until one comes the present one is used
        self._asks_after = 0.0
        self._connections = threading.local()
        self._last = (0, 0, 0)  # order of the newest token that was had
        self.version: int | None = None  # of the state, as far as this client knows
        self._counted: int | None = None  # with which its newest turn began, or to which it led

    @staticmethod
    def of_pod(environ: Mapping[str, str] = os.environ, **options: Any) -> Group:
        """Return the group as ``run.json`` has it. ``options``: of `Group`.

        Raises:
            OSError, KeyError, ValueError: the job has no ``spec.sharing``.
        """
        return Group(OperatorTickets.of_pod(environ), **options)

    @staticmethod
    def of_file(path: str | os.PathLike[str], **options: Any) -> Group:
        """Return the group that a file with a ticket names. ``options``: of `Group`."""
        return Group(TicketFile(path), **options)

    @contextmanager
    def turn(self, step: int | None = None, *, again: bool = False) -> Iterator[Turn]:
        """Wait for a turn, have it within the ``with``, and release it at its end.

        An error within ends it without counting.

        Args:
            step: of the training that it is for: several turns may be of one.
            again: ask for the next one with the release.

        Raises:
            TurnLost: it is over, and none of its calls count.
            StateLost, NoResidency, HostMemoryFull, GroupError: as they say.
        """
        with self._phase("waitForTurn", False):
            turn = self._take(step)
        with self._phase("turn", True):
            try:
                yield turn
            except TurnLost:
                raise
            except BaseException:
                self._discard(turn)
                raise
            self._release(turn, again)
        turn._publish()

    def run(
        self, work: Callable[[Turn], _Result], step: int | None = None, *, again: bool = False
    ) -> _Result:
        """Return what ``work`` returns in a turn that counts; one that is lost is done again."""
        while True:
            try:
                with self.turn(step, again=again) as turn:
                    result = work(turn)
                return result
            except TurnLost as lost:
                log.warning("%s; it is done again from version %d", lost, lost.version)

    # the state, without a turn

    def state(self) -> State:
        """Return the newest version that counts, and where it lies."""
        reply = self._ask("GET", "/v1/state", None, timeout=30.0)
        if reply.status != 200:
            raise self._fault("state:", reply)
        try:
            found = reply.document
            state = State(
                int(found["version"]),
                tuple(
                    MemberState(
                        int(one["index"]),
                        str(one["address"]),
                        str(one["fingerprint"]),
                        {str(name): int(size) for name, size in one["regions"].items()},
                    )
                    for one in found["members"]
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise GroupError(f"state: {type(fault).__name__}: {fault}") from None
        if self._is_strange(state.version):
            raise StateLost(f"state: {self._anew(state.version)}")
        return state

    def _is_strange(self, version: int) -> bool:
        """Return whether a version is none that this job's turns can have led to: a group that started anew
        gives its residents a fresh state, with a version of its own."""
        return self._counted is not None and version not in (self._counted, self._counted + 1)

    def _anew(self, version: int) -> str:
        return f"the group has version {version} and not {self._counted}: it has started anew"

    def read(self, region: str, member: int = 0, state: State | None = None) -> bytearray:
        """Return a region of a member's, whole; of the newest version, or of that of ``state``.

        Raises:
            StateMoved: the job has had another turn since ``state``.
            ValueError: there is no such region or member.
        """
        if state is None:
            state = self.state()
        place = next((one for one in state.members if one.number == member), None)
        if place is None:
            raise ValueError(f"member: {member}, expected one of {[one.number for one in state.members]}")
        if region not in place.regions:
            there = ", ".join(sorted(place.regions)) or "none: version 0 is not kept"
            raise ValueError(f"region: {region!r}, there are {there}")
        found = bytearray(place.regions[region])
        at = 0
        while at < len(found):
            end = min(at + _PIECE, len(found))
            path, headers = f"/v1/states/{state.version}/{region}", {"Range": f"bytes={at}-{end - 1}"}
            reply = self._ask(
                "GET", path, None, timeout=120.0, at=(place.address, place.fingerprint), headers=headers
            )
            if reply.status not in (200, 206):
                raise self._fault(f"region {region}:", reply)
            if len(reply.body) != end - at and not (reply.status == 200 and len(reply.body) == len(found)):
                raise GroupError(f"region {region}: {len(reply.body)} bytes, expected {end - at}")
            if reply.status == 200:
                return bytearray(reply.body)
            found[at:end] = reply.body
            at = end
        return found

    def close(self) -> None:
        """Close this thread's connections."""
        for connection in vars(self._connections).setdefault("open", {}).values():
            connection.close()
        vars(self._connections).clear()

    # a turn

    def _take(self, step: int | None) -> Turn:
        wait = WAIT if self._leaves is None else _SOON
        while True:
            self._stay()
            reply = self._ask(
                "POST", "/v1/turns", json.dumps({"wait": wait, "step": step}).encode(), timeout=wait + 30.0
            )
            if reply.status == 202:
                continue
            if reply.status != 200:
                raise self._fault("turn:", reply)
            try:
                turn = Turn(self, reply.document)
                order = _order(turn.token)
            except (KeyError, TypeError, ValueError) as fault:
                raise GroupError(f"turn: a grant that cannot be used: {fault}") from None
            if order <= self._last:
                log.info("a late answer to an earlier request for a turn: %s", turn.token)
                time.sleep(0.05)
                continue
            self._last = order
            if self.version is not None and turn.version != self.version:
                self._discard(turn)
                raise GroupError(
                    f"turn: the group has version {turn.version}, and this process knows of "
                    f"{self.version}: another "
                    "process of the job takes turns as well, expected one alone"
                )
            self.version = self._counted = turn.version
            return turn

    def _release(self, turn: Turn, again: bool) -> None:
        path = f"/v1/turns/{turn.token}/release"
        self.version = None  # until it is answered, nobody here knows
        reply = self._ask("POST", path, json.dumps({"again": again}).encode(), timeout=turn.seconds + 60.0)
        if reply.status == 200:
            turn.released = self.version = self._counted = int(reply.document["version"])
            return
        fault = self._fault("release:", reply)
        if isinstance(fault, TurnLost):
            self.version = fault.version
            if fault.version == turn.version + 1:  # it counted, and the answer was lost
                turn.released = self._counted = fault.version
                return
        raise fault

    def _discard(self, turn: Turn) -> None:
        """Give a turn up: none of its calls count, and nobody waits for its end. Best effort."""
        try:
            body = json.dumps({"discard": True}).encode()
            self._once("POST", f"/v1/turns/{turn.token}/release", body, 10.0, None, {}, False)
        except (OSError, http.client.HTTPException, GroupError) as fault:
            log.info("the turn is left to end by itself: %s", fault)

    def _phase(self, name: str, training: bool) -> AbstractContextManager[None]:
        if self._client is None:
            return nullcontext()
        return self._client.phase(name, training_gpus=training)

    def _stay(self) -> None:
        if self._leaves is not None and self._leaves():
            raise Leaving("this process is to end")

    # asking

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        timeout: float,
        at: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        envelope: bool = False,
    ) -> _Reply:
        """Return the answer; ask again, the same way, while there is none."""
        given_up = time.monotonic() + self._patience
        pause, renewed, faults = 0.05, False, 0
        while True:
            why: object
            try:
                reply = self._once(method, path, body, timeout, at, headers or {}, envelope)
                reason = reply.document.get("reason") if reply.status in (401, 403) else None
                if reply.status in (401, 403) and reason in ("WrongTicket", "NoTicket") and not renewed:
                    self._renews = renewed = True
                    continue
                if reply.status not in (429, 502, 503, 504):
                    return reply
                why = f"{reply.status} {reply.document.get('message')}"
                pause = max(pause, 0.5)
            except (OSError, http.client.HTTPException) as fault:
                self._forget(at)
                why = f"{type(fault).__name__}: {fault}"
                faults += 1
                # Member 0 may be somewhere else now. A pod that is gone refuses, is unreachable, or keeps
                # silent, by the network; and its address may be another one's. One fault may be a cut.
                if isinstance(fault, ConnectionRefusedError) or faults > 1:
                    self._renews = True
            if time.monotonic() >= given_up:
                raise GroupError(f"the group has not answered {path} for {self._patience:g} s: {why}")
            log.info("group %s: %s", path, why)
            self._stay()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout: float,
        at: tuple[str, str] | None,
        headers: Mapping[str, str],
        envelope: bool,
    ) -> _Reply:
        ticket = self._present_ticket()
        where = at or (ticket.address, ticket.fingerprint)
        connection = self._connection(where, timeout)
        given = {"Authorization": f"Bearer {ticket.ticket}", **headers}
        if body is not None:
            given["Content-Type"] = ENVELOPE if envelope else "application/json"
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        content = answer.read(_ANSWER)
        if (
            answer.length and len(content) < _ANSWER
        ):  # the connection broke: what is missing is asked for again
            raise http.client.IncompleteRead(content, answer.length)
        if answer.length:
            raise GroupError(f"{path}: an answer of more than {_ANSWER} bytes")
        kind = answer.getheader("Content-Type") or ""
        return _Reply(answer.status, content, kind.startswith(ENVELOPE))

    def _present_ticket(self) -> Ticket:
        """Return the ticket; a new one where it is needed. One that is good lasts without an operator."""
        ticket, now = self._ticket, time.monotonic()
        if ticket is not None and not self._renews:
            ends = ticket.ends
            if ends is None or time.time() < ends - _EARLY or now < self._asks_after:
                return ticket
        self._renews = False
        self._asks_after = (
            now + _ASK_AGAIN
        )  # an operator that is silent must not hold up a turn again and again
        try:
            found = self._tickets.get()
        except (OSError, http.client.HTTPException, ValueError):
            if ticket is None:
                raise
            return ticket
        if found is None:
            if ticket is None:
                raise ConnectionError("no residency in a group yet")
            return ticket
        self._ticket = found
        return found

    def _connection(self, where: tuple[str, str], timeout: float) -> http.client.HTTPSConnection:
        open_: dict[tuple[str, str], http.client.HTTPSConnection] = vars(self._connections).setdefault(
            "open", {}
        )
        connection = open_.get(where)
        if connection is None:
            connection = open_[where] = _Pinned(where[0], where[1], timeout)
        if connection.sock is None:
            connection.timeout = min(timeout, _CONNECTS)
            connection.connect()
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection

    def _forget(self, at: tuple[str, str] | None) -> None:
        """Close what a failed request has left half done."""
        open_: dict[tuple[str, str], http.client.HTTPSConnection] = vars(self._connections).setdefault(
            "open", {}
        )
        for where in [at] if at is not None else list(open_):
            connection = open_.pop(where, None)
            if connection is not None:
                connection.close()

    def _fault(self, what: str, reply: _Reply) -> GroupError:
        document = reply.document
        reason, message = document.get("reason"), document.get("message") or document.get("why")
        text = f"{what} {reply.status} {reason}: {message}"
        if document.get("why") and document.get("message"):
            text += f" ({document['why']})"
        version = document.get("version")
        if reply.status == 409 and reason == "StateMoved":
            return StateMoved(text, int(version or 0))
        if reply.status == 507:
            return HostMemoryFull(text)
        if reply.status == 409 and type(version) is int:
            if self._is_strange(version):
                return StateLost(f"{text}; {self._anew(version)}")
            return TurnLost(text, version)
        if reply.status in (403, 410):
            return StateLost(text) if document.get("lost") is True else NoResidency(text)
        if reply.status in (400, 404, 413, 422):
            if isinstance(document.get("functions"), list):
                text += f"; there are {', '.join(map(str, document['functions']))}"
            return CallRefused(text)
        return GroupError(text)


def _order(token: str) -> tuple[int, int, int]:
    """Return what a token is newer by: admission, start, and sequence. The random part says nothing of
    that."""
    parts = token.split(".")
    if len(parts) != 4:
        raise ValueError(f"token {token[:80]!r}, expected <admission>.<start>.<random>.<sequence>")
    return int(parts[0]), int(parts[1]), int(parts[3])


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
