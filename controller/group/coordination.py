"""Member 0's coordinator: carries out what the state machine of `policy.sharing.coordinator` wants done.

Requests wait here for what the machine tells their job; versions go to the disk volume before it goes on;
silence and overtime are seen here, because the machine has no clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from controller import bounded, log
from controller.frozen import dataclass
from controller.group.account import Account, Clock
from controller.group.disk import ENDED_KEPT, Disk, Kept, Residency, text
from controller.group.links import Link
from controller.group.supervisor import MemberMessage, Supervisor
from controller.group.turn_log import TurnLog
from controller.group.wire import NAME, Refused, packed, token_text, unpacked
from controller.policy.sharing import (
    Answer,
    Died,
    Forget,
    Granted,
    Load,
    Loaded,
    Ran,
    Released,
    Run,
    Token,
    ToMember,
    TurnOver,
    Written,
)
from controller.policy.sharing import Refused as Told403
from controller.policy.sharing import coordinator as co
from controller.policy.wording import LASTED

LOOK = 0.1  # s between looks at the time
_KEEP_CHARGES = 5.0  # s

_logger = log.get("evalstop.group")


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that the group was opened with.

    Args:
        group: its name.
        turn_seconds, idle_seconds: that a turn may last, and a holder be silent.
        max_residents: of it.
        host_bytes: of each member.
        gpus: of the whole group.
        body_bytes: of a call.
        host: at which rank 0 meets the others.
    """

    group: str
    turn_seconds: float
    idle_seconds: float
    max_residents: int
    host_bytes: int
    gpus: int
    body_bytes: int
    host: str


@dataclasses.dataclass(slots=True)
class _Turn:
    """The present turn's bodies, times and reasons, of which the machine knows nothing."""

    token: Token
    before: str | None  # whose state was loaded
    begun: float
    granted: float = 0.0
    last_contact: float = 0.0  # with the holder
    why: str = ""
    full: bool = False
    given_up: bool = False  # it was lost by its holder
    body: bytes | memoryview = b""  # of the newest call
    answer: bytes = b""
    statuses: dict[str, str] = field(default_factory=dict)  # by member, of the newest call
    load: int = 0
    offload: int = 0
    place: dict[str, Any] = field(default_factory=dict)


class Coordination:
    """The group, on member 0.

    Args:
        rules: of it.
        state: as `restarted` returns it.
        kept: what the disk has.
        disk: where it is written.
        supervisor: member 0's own; `receive` takes what it says.
        links: to the other members, by UID; made with `hello` and `receive` of this object.
        clock: of reports and charges.
        turn_log: of the coordinator's events; None: none is written.
    """

    def __init__(
        self,
        rules: Rules,
        state: co.Coordinator,
        kept: Kept,
        disk: Disk,
        clock: Clock,
        folder: Path | None = None,
    ) -> None:
        self.rules, self.state, self.kept, self.disk, self.clock = rules, state, kept, disk, clock
        self.account = Account(rules.gpus, clock.now())
        self.supervisor: Supervisor | None = None
        self.links: dict[str, Link] = {}
        self.functions: dict[str, list[str]] = {}
        self.regions: dict[str, dict[str, dict[str, int]]] = {}  # by member and resident
        self.servers: dict[str, tuple[str, str]] = {}  # address and fingerprint, by member
        self._log = TurnLog(folder / "turns.jsonl") if folder is not None else None
        self._charges = folder / "charges.json" if folder is not None else None
        self._turn: _Turn | None = None
        self._last: _Turn | None = None
        self._asking: asyncio.Future[Any] | None = None  # of the request that the machine is told of now
        self._worlds: dict[str, tuple[int, int]] = {}  # generation and port, by resident
        self._meet_anew: set[str] = set()
        self._waits: dict[str, list[tuple[Token | None, int | None, asyncio.Future[Any]]]] = {}
        self._records: asyncio.Queue[tuple[co.Record | None, bytes, asyncio.Future[None] | None]] = (
            asyncio.Queue()
        )
        self._monotonic: Callable[[], float] = asyncio.get_running_loop().time
        self._go_on_charging()

    # -- what jobs ask ---------------------------------------------------------------------------------------

    async def turn(self, resident: str, wait: float, step: int) -> dict[str, Any] | None:
        """Return a grant, or None: not yet, within so many seconds.

        Raises:
            Refused: 403.
        """
        self._resident(resident)
        future = self._expect(resident, None, None)
        record = self.account.records[resident]
        self.advance("ask", resident)
        record.step = step
        found = await self._result(resident, future, wait)
        if found is None:
            return None
        assert isinstance(found, Granted)
        return {
            "token": token_text(found.token), "version": found.version,
            "turnSeconds": self.rules.turn_seconds, "idleSeconds": self.rules.idle_seconds,
            "functions": self.functions.get(resident, []),
        }  # fmt: skip

    def ahead(self, resident: str) -> int:
        """Return how many are before a resident that waits."""
        waiting = self.state.waiting
        return (waiting.index(resident) if resident in waiting else 0) + (self.state.turn is not None)

    async def call(self, resident: str, token: Token, number: int, function: str, body: bytes) -> bytes:
        """Return the answer of a function of a turn, as the worker wrote it.

        Raises:
            Refused: 403, 404, 409 or 422, 507.
        """
        self._resident(resident)
        self._note_contact(token)
        turn, mine = self.state.turn, self._turn
        new = (
            turn is not None
            and mine is not None
            and turn.token == token
            and turn.resident == resident
            and turn.phase is co.Phase.HELD
            and number == turn.number + 1
        )
        if new:
            assert mine is not None
            functions = self.functions.get(resident, [])
            if function not in functions:
                raise Refused(
                    404, "NoSuchFunction", f"no function {function!r}; there are {', '.join(functions)}",
                    functions=functions,
                )  # fmt: skip
            mine.body, mine.answer, mine.statuses = body, b"", {}
        future = self._expect(resident, token, number)
        self._request(future, "call", resident, token, number, function)
        if new:
            self.account.calls += 1
        found = await self._result(resident, future, None)
        assert isinstance(found, tuple)
        status, answer = found
        if status != "ok":
            raise Refused(422, "BadCall", status.removeprefix("refused: "))
        return bytes(answer)

    async def release(self, resident: str, token: Token, again: bool) -> int:
        """Release a turn and return the version that its calls are in.

        Raises:
            Refused: 403, 409, 422 or 507.
        """
        self._resident(resident)
        future = self._expect(resident, token, None)
        self._note_contact(token)
        self._request(future, "release", resident, token, again)
        found = await self._result(resident, future, None)
        assert isinstance(found, Released)
        return found.version

    def discard(self, resident: str, token: Token) -> int:
        """Take a turn away because its holder wants that, and return the version that counts.

        Raises:
            Refused: 403.
        """
        version = self._resident(resident)
        if self.state.turn is not None and self.state.turn.resident == resident:
            self.lose(token, "its holder gave it up", by_holder=True)
        return version

    def state_of(self, resident: str) -> dict[str, Any]:
        """Return where the newest version that counts can be read.

        Raises:
            Refused: 403.
        """
        version = self._resident(resident)
        members = [
            {
                "index": index, "address": self.servers.get(uid, ("", ""))[0],
                "fingerprint": self.servers.get(uid, ("", ""))[1],
                "regions": self._regions_of(uid, resident) if version else {},
            }
            for index, uid in enumerate(self.state.members)
        ]  # fmt: skip
        return {"version": version, "members": members}

    def _regions_of(self, uid: str, resident: str) -> dict[str, int]:
        if uid == self.state.members[0] and self.supervisor is not None:
            return self.supervisor.memory.regions(resident, self.state.version(resident) or 0) or {}
        return self.regions.get(uid, {}).get(resident, {})

    # -- what the operator says ------------------------------------------------------------------------------

    async def join(self, name: str, job: str, size: int, kind: str) -> None:
        """Take a resident; it is on disk when this returns.

        Raises:
            Refused: 410 or 422.
        """
        _check_name(name)
        if self.state.version(name) is not None:
            return
        if name in self.kept.gone or name in self.kept.leaving:
            raise Refused(410, "ResidencyOver", f"{name}: this residency has ended")
        residents = self.kept.residents
        if len(residents) >= self.rules.max_residents:
            raise Refused(
                422, "NoRoom", f"{len(residents)} residents, at most {self.rules.max_residents} are allowed"
            )
        sizes = [one.bytes for one in residents.values()] + [size]
        if (needed := sum(sizes) + max(sizes)) > self.rules.host_bytes:
            raise Refused(
                422, "NoRoom",
                f"stateBytes: {size}: all states and one beside would take {needed} of "
                f"{self.rules.host_bytes} bytes of host memory",
            )  # fmt: skip
        residents[name] = Residency(job, size, kind, self.clock.now())
        self.advance("join", name)
        await self._recorded()

    async def leave(self, name: str) -> None:
        """Let a resident go. One that never came to this start is gone at once, and never comes.

        Raises:
            Refused: 422.
        """
        _check_name(name)
        kept = self.kept
        if self.state.version(name) is not None:
            self.advance("leave", name)
        elif name not in (*kept.gone, *kept.leaving):
            kept.gone = [*kept.gone, name][-ENDED_KEPT:]
        await self._recorded()

    async def _recorded(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._records.put_nowait((None, text(self.kept), done))
        await done

    # -- what members say ------------------------------------------------------------------------------------

    def hello(self, uid: str, message: Mapping[str, Any], new: bool) -> None:
        """Take a member's first words on a connection; ``new``: its supervisor is another process."""
        regions = message.get("regions")
        self.regions[uid] = {
            str(name): {str(r): int(n) for r, n in sizes.items()}
            for name, sizes in (regions if isinstance(regions, dict) else {}).items()
            if isinstance(sizes, dict)
        }
        self.servers[uid] = (str(message.get("address", "")), str(message.get("fingerprint", "")))
        if not new:
            return
        self._meet_anew |= set(self.kept.residents)
        self._forget_unknown(uid, self.regions[uid])
        turn, newest = self.state.turn, message.get("newest")
        if (
            turn is not None
            and isinstance(newest, list)
            and newest >= [turn.token.start, turn.token.sequence]
        ):
            self._because(
                turn.token, f"the supervisor of member {self.state.members.index(uid)} was restarted"
            )
            self.advance("receive", uid, Died(turn.token))
        self.advance("remind")

    def receive_frame(self, uid: str, message: Mapping[str, Any], body: memoryview | None) -> None:
        """Take what a member says over its connection.

        Raises:
            Refused: 400: it is no message.
        """
        more = message.get("more")
        found: Any = unpacked(message)
        self.receive(
            uid,
            MemberMessage(
                found, None if body is None else bytes(body), more if isinstance(more, dict) else {}
            ),
        )

    def receive(self, uid: str, sent: MemberMessage) -> None:
        """Take what a member says."""
        message, turn, more = sent.message, self._turn, sent.more
        if "asleep" in more:
            self._meet_anew.add(str(more["asleep"]))
            return
        mine = turn is not None and getattr(message, "token", None) == turn.token
        if mine and turn is not None:
            present = self.state.turn
            if isinstance(message, Ran):
                if present is None or message.number != present.number + 1:
                    return
                turn.statuses[uid] = message.answer
                if uid == self.state.members[0]:
                    turn.answer = sent.body or b""
                if len(set(turn.statuses.values())) > 1:
                    self.lose(turn.token, f"members answered differently: {turn.statuses}")
                    return
            elif isinstance(message, Loaded):
                turn.load = max(turn.load, int(more.get("load", 0)))
                turn.offload = max(turn.offload, int(more.get("offload", 0)))
                if uid == self.state.members[0] and "functions" in more and present is not None:
                    self.functions[present.resident] = [str(one) for one in more["functions"]]
            elif isinstance(message, Written) and present is not None:
                self.regions.setdefault(uid, {})[present.resident] = dict(more.get("regions", {}))
            elif isinstance(message, Died):
                self._because(message.token, str(more.get("why", "a worker died")), bool(more.get("full")))
        self.advance("receive", uid, message)

    def _forget_unknown(self, uid: str, residents: Collection[str]) -> None:
        """Have a member forget states of residents that there are not."""
        leaving = {name for name, _ in self.state.leaving}
        for name in set(residents) - set(dict(self.state.versions)) - leaving:
            self._send(uid, Forget(self.state.admission, self.state.start, name))

    # -- the machine -----------------------------------------------------------------------------------------

    def advance(self, name: str, *given: Any) -> None:
        """Tell the machine something, and do what it wants done."""
        before = self.state
        after, outputs = getattr(co, name)(before, *given)
        self.state = after
        now = self.clock.now()
        if self._log is not None:
            self._log.write(now, before, name, given, after)
        self.account.follow(before, after, now)
        self._follow(before, after)
        for output in outputs:
            if isinstance(output, co.Send):
                self._send(output.uid, output.message)
            elif isinstance(output, co.Reply):
                self._answer_job(output)
            elif isinstance(output, co.Record):
                self._keep(output)
            else:
                self._over(output.resident)

    def lose(self, token: Token, why: str, *, by_holder: bool = False) -> None:
        """Take a turn away. ``by_holder``: nothing of the group's is to blame."""
        self._because(token, why)
        if by_holder and self._turn is not None and self._turn.token == token:
            self._turn.given_up = True
        self.advance("expire", token)

    def _because(self, token: Token, why: str, full: bool = False) -> None:
        if self._turn is not None and self._turn.token == token and not self._turn.why:
            self._turn.why, self._turn.full = why, full

    def _follow(self, before: co.Coordinator, after: co.Coordinator) -> None:
        turn, now = after.turn, self._monotonic()
        old = before.turn
        if old is not None and (turn is None or turn.token != old.token):
            counted = after.version(old.resident) == old.version + 1
            if not counted:
                self._meet_anew.add(old.resident)
                why = self._turn.why if self._turn is not None else ""
                stays = after.version(old.resident) is not None
                if stays and not (self._turn is not None and self._turn.given_up):
                    self.account.failed(old.resident, why, self.clock.now())
                _logger.warning(
                    "a turn was lost", resident=old.resident, token=token_text(old.token), why=why
                )
        if turn is not None and (self._turn is None or self._turn.token != turn.token):
            self._last = self._turn
            self._turn = _Turn(turn.token, before.loaded, now)
            if turn.resident in self._meet_anew or turn.resident not in self._worlds:
                generation = self._worlds.get(turn.resident, (0, 0))[0] + 1
                self._worlds[turn.resident] = (generation, _free_port() if len(after.members) > 1 else 0)
                self._meet_anew.discard(turn.resident)
            generation, port = self._worlds[turn.resident]
            residency = self.kept.residents.get(turn.resident)
            self._turn.place = {
                "host": self.rules.host, "port": port,
                # Generations of an earlier start of the coordinator are others.
                "generation": after.start * 1_000_000 + generation,
                **({"stateBytes": residency.bytes} if residency is not None else {}),
            }  # fmt: skip

    def _send(self, uid: str, message: ToMember) -> None:
        turn = self._turn
        body = turn.body if isinstance(message, Run) and turn is not None else None
        more = turn.place if isinstance(message, Load) and turn is not None else {}
        if self.supervisor is not None and uid == self.supervisor.state.uid:
            receive = self.supervisor.receive
            asyncio.get_running_loop().call_soon(receive, self.state.members[0], message, body, more)
        elif uid in self.links:
            self.links[uid].send({**packed(message), "more": more}, body)

    def _keep(self, record: co.Record) -> None:
        kept = self.kept
        if record.version is None:
            kept.versions.pop(record.resident, None)
            kept.residents.pop(record.resident, None)
            kept.leaving.append(record.resident)
        else:
            kept.versions[record.resident] = record.version
        self._records.put_nowait((record, text(kept), None))

    def _over(self, resident: str) -> None:
        kept = self.kept
        if resident in kept.leaving:
            kept.leaving.remove(resident)
        kept.gone = [*kept.gone, resident][-ENDED_KEPT:]
        kept.lost = [one for one in kept.lost if one in kept.gone]
        for found in self.regions.values():
            found.pop(resident, None)
        self._records.put_nowait((None, text(kept), None))

    # -- requests that wait ----------------------------------------------------------------------------------

    def _resident(self, resident: str) -> int:
        version = self.state.version(resident)
        if version is None:
            lost = resident in self.kept.lost
            why = "its state was lost" if lost else "it is no resident of this group"
            raise Refused(403, "NoResident", f"{resident}: {why}", **({"lost": True} if lost else {}))
        return version

    def _expect(self, resident: str, token: Token | None, number: int | None) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._waits.setdefault(resident, []).append((token, number, future))
        return future

    def _request(self, future: asyncio.Future[Any], name: str, *given: Any) -> None:
        self._asking = future
        try:
            self.advance(name, *given)
        finally:
            self._asking = None

    async def _result(self, resident: str, future: asyncio.Future[Any], wait: float | None) -> Any:
        try:
            async with asyncio.timeout(wait):
                return await future
        except TimeoutError:
            return None
        finally:
            waits = [one for one in self._waits.get(resident, []) if one[2] is not future]
            if waits:
                self._waits[resident] = waits
            else:
                self._waits.pop(resident, None)

    def _answer_job(self, output: co.Reply) -> None:
        """Give what a job is told to its requests that wait for that."""
        message, turn = output.message, self._turn
        result: Any = message
        error: Refused | None = None
        if isinstance(message, Granted) and turn is not None:
            if not turn.granted:
                turn.granted = self._monotonic()
                if turn.load:
                    self.account.switched(output.resident, turn.before, turn.load, turn.offload)
            turn.last_contact = self._monotonic()
        elif isinstance(message, Answer) and turn is not None:
            turn.last_contact = self._monotonic()
            result = (message.answer, turn.answer)
        elif isinstance(message, TurnOver):
            error = self._turn_over(message)
        elif isinstance(message, Told403):
            lost = message.message.endswith("its state is lost")
            if lost and output.resident not in self.kept.lost:
                self.kept.lost.append(output.resident)
            reason = "NoResident" if message.status == 403 else "BadCall"
            error = Refused(message.status, reason, message.message, **({"lost": True} if lost else {}))
        for token, number, future in list(self._waits.get(output.resident, [])):
            if isinstance(message, Told403):
                mine = message.status == 403 or future is self._asking
            else:
                mine = _is_for(message, token, number)
            if future.done() or not mine:
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _turn_over(self, message: TurnOver) -> Refused:
        for turn in (self._turn, self._last):
            if turn is not None and turn.token == message.token and turn.why:
                reason, status = ("HostMemoryFull", 507) if turn.full else ("TurnOver", 409)
                return Refused(
                    status, reason, "the turn of this token is over", version=message.version, why=turn.why
                )
        return Refused(
            409, "TurnOver", "the turn of this token is over", version=message.version, why="it is over"
        )

    def _note_contact(self, token: Token) -> None:
        if self._turn is not None and self._turn.token == token:
            self._turn.last_contact = self._monotonic()

    # -- beside ----------------------------------------------------------------------------------------------

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """Return what has to run as long as the group does; none of it ends by itself."""
        return [self._write(), self._watch()]

    def begin(self) -> None:
        """Begin, once supervisor and links are there."""
        assert self.supervisor is not None
        here = {resident for resident, _ in self.supervisor.memory.versions()}
        self._forget_unknown(self.state.members[0], here)
        self.advance("remind")

    def close(self) -> None:
        """Write the turn log and the charges to their end."""
        self._keep_charges()
        if self._log is not None:
            self._log.close()

    async def _write(self) -> None:
        while True:
            batch = [await self._records.get()]
            while not self._records.empty():
                batch.append(self._records.get_nowait())
            # The last one holds what all before it hold.
            await asyncio.to_thread(self.disk.write, batch[-1][1])
            for record, _, done in batch:
                if record is not None:
                    self.advance("recorded", record.resident, record.version, record.token)
                if done is not None and not done.done():
                    done.set_result(None)

    def _go_on_charging(self) -> None:
        """Take up the charges that an earlier start wrote."""
        if self._charges is not None and self._charges.exists():
            try:
                kept = bounded.load(self._charges.read_bytes(), "charges", 1 << 20)
                self.clock.not_before(int(kept["now"]))
                self.account.restore(kept, self.kept.residents, self.clock.now())
                return
            except (OSError, ValueError, TypeError, KeyError) as error:
                _logger.error("charges begin anew", why=str(error))
        for name in self.kept.residents:
            self.account.come(name, self.clock.now())

    def _keep_charges(self) -> None:
        """Write the charges; not synced: they are an account, and nothing is decided by them here."""
        if self._charges is not None:
            beside = self._charges.with_suffix(".part")
            beside.write_bytes(to_json(self.account.charges.as_dict(self.clock.now())))
            beside.replace(self._charges)

    async def _watch(self) -> None:
        kept = self._monotonic()
        while True:
            await asyncio.sleep(LOOK)
            if self._monotonic() - kept > _KEEP_CHARGES:
                kept = self._monotonic()
                self._keep_charges()
            state, turn, now = self.state.turn, self._turn, self._monotonic()
            if state is None or turn is None or state.token != turn.token:
                continue
            idle, most = self.rules.idle_seconds, self.rules.turn_seconds
            if state.phase is co.Phase.HELD and now - turn.last_contact > idle:
                self.lose(turn.token, f"its holder was silent for {idle:g} s", by_holder=True)
            elif now - (turn.granted or turn.begun) > most:
                doing = f"function {state.function}" if state.phase is co.Phase.CALLING else state.phase.value
                # Though its holder may be to blame: one whose turns are all too long trains nothing.
                self.lose(turn.token, f"{LASTED} {most:g} s ({doing})")


def _is_for(message: Any, token: Token | None, number: int | None) -> bool:
    """Return whether what a job is told answers a request: for a grant (no token), a call or a release."""
    if isinstance(message, Granted):
        return token is None
    if isinstance(message, Answer):
        return message.token == token and message.number == number
    if isinstance(message, Released):
        return message.token == token and number is None
    return isinstance(message, TurnOver) and message.token == token


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Refused(
            422, "BadName", f"name: {name[:80]!r} is not allowed, expected 1 to 63 of a-z, 0-9 and -"
        )
