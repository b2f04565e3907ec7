"""A member's supervisor: carries out what the state machine of `policy.sharing.member` wants done.

Effects that take time run beside; the machine goes on when they are over. A worker that fails, ends or keeps
the device for too long is killed: what it held is what no version counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import field
from typing import Any

from controller import log
from controller.bounded import shown
from controller.frozen import dataclass
from controller.group.devices import Device, until_free
from controller.group.memory import HostMemory
from controller.group.wire import Refused, header_of
from controller.group.workers import Command, WorkerFailed, WorkerProcess
from controller.policy.sharing import (
    Died,
    FromMember,
    Gone,
    Load,
    Ran,
    Run,
    Token,
    ToMember,
)
from controller.policy.sharing import member as me

OFFLOAD_SECONDS = 60.0  # that a worker may take to off-load
FREE_SECONDS = 5.0  # that the device may take to be free after it; then the worker is killed

_logger = log.get("evalstop.group")


@dataclass(frozen=True, slots=True)
class MemberMessage:
    """One thing that a member says: a message, a call's answer, and what comes with it: seconds, regions."""

    message: FromMember
    body: bytes | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


class Supervisor:
    """One member.

    Args:
        member: its state: of a new pod, or as `member_restarted` returns it.
        index: of the pod.
        command: how workers are started.
        device: of this member.
        device_bytes: that workers may take.
        memory: host memory.
        report: takes what is for the coordinator.
    """

    def __init__(
        self,
        member: me.Member,
        index: int,
        command: Command,
        device: Device,
        device_bytes: int,
        memory: HostMemory,
        report: Callable[[MemberMessage], None],
    ) -> None:
        self.state, self.index = member, index
        self.memory, self.device = memory, device
        self._command, self._device_bytes, self._report = command, device_bytes, report
        self.workers: dict[str, WorkerProcess] = {}
        self._dying: set[WorkerProcess] = set()
        self._leaver: str | None = None  # whose worker off-loads
        self._freeing = False
        self._from_load: dict[str, Any] = {}  # what came with the newest Load
        self._body: bytes | memoryview = b""  # of the newest Run
        self._answer: bytes | None = None  # of the newest call
        self._more: dict[str, Any] = {}  # for the next reply
        self._offloaded = 0  # microseconds of the last off-load
        self._met: dict[str, int] = {}  # by resident: generation of its newest worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._erasing: set[asyncio.Task[None]] = set()
        self.kills = 0

    def begin(self) -> None:
        """Begin: a device that somebody else left full is waited for."""
        self._step((self.state, ()))

    async def end(self) -> None:
        """Kill all workers and wait until they are gone."""
        for task in list(self._tasks):
            task.cancel()
        for worker in [*self.workers.values(), *self._dying]:
            worker.kill()
            await worker.reaped()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.device.close()

    def receive(
        self,
        sender: str,
        message: ToMember,
        body: bytes | memoryview | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a message of member 0's, with a call's body, and what comes with a Load."""
        before = self.state
        step = me.receive(before, sender, message)
        if isinstance(message, Load) and step[0].newest != before.newest:
            self._from_load, self._offloaded = dict(more or {}), 0
            self.memory.set_newest(step[0].newest)
        if isinstance(message, Run) and body is not None and step[0].running != before.running:
            self._body = body
        self._step(step)

    # -- what is to be done ----------------------------------------------------------------------------------

    def _step(self, step: me.MemberStep) -> None:
        self.state, effects = step
        for effect in effects:
            self._do(effect)
        if me.waits_for_device(self.state) and not self._freeing:
            self._freeing = True
            self._spawn(self._free())

    def _do(self, effect: me.Effect) -> None:
        if isinstance(effect, me.Begin):
            self._spawn(self._begin(effect))
        elif isinstance(effect, me.OffLoad):
            self._leaver = effect.resident
        elif isinstance(effect, me.End):
            self._kill(effect.resident)
        elif isinstance(effect, me.Execute):
            self._spawn(self._execute(effect, self._body))
        elif isinstance(effect, me.Save):
            self._spawn(self._save(effect))
        elif isinstance(effect, me.Drop):
            self._drop(effect.resident, effect.version)
        elif isinstance(effect.message, Gone):
            self._spawn(self._end_residency(effect.message))
        else:
            self._reply(effect.message)

    def _reply(self, message: FromMember) -> None:
        body = self._answer if isinstance(message, Ran) else None
        more, self._more = self._more, {}
        self._report(MemberMessage(message, body, more))

    async def _free(self) -> None:
        """Have the last worker give its memory back, and wait until the device says that it has."""
        begun = time.monotonic()
        leaver, self._leaver = self._leaver, None
        worker = self.workers.get(leaver) if leaver is not None else None
        if worker is not None:
            try:
                async with asyncio.timeout(OFFLOAD_SECONDS):
                    await worker.ask({"do": "offload"}, "offloaded")
                if not await until_free(self.device, self._sleepers(), FREE_SECONDS):
                    raise WorkerFailed("it says that it has off-loaded, and the device is not free")
            except (WorkerFailed, TimeoutError) as error:
                _logger.warning("killed: did not off-load", resident=leaver, why=str(error) or "too slow")
                self._kill(worker.resident)
        while self._dying:
            await next(iter(self._dying)).reaped()
        await until_free(self.device, self._sleepers())
        self._offloaded = _micros(begun) if worker is not None else 0
        self._freeing = False
        self._step(me.device_free(self.state))

    def _sleepers(self) -> int:
        return sum(resident != self.state.worker for resident in self.workers)

    async def _begin(self, effect: me.Begin) -> None:
        begun, resident, more = time.monotonic(), effect.resident, self._from_load
        worker = self.workers.get(resident)
        place = {**self._place(resident), **{name: more[name] for name in _MEETING if name in more}}
        generation = int(more.get("generation", 0))
        try:
            if worker is None:
                if self._met.get(resident) == generation and generation:
                    raise WorkerFailed("its worker is new, and the others have met already")
                worker = self.workers[resident] = WorkerProcess(resident, self._ended)
                await worker.start(self._command, place)
            if worker.killed:
                return
            self._met[resident] = worker.generation = generation
            folder = str(self.memory.folder(resident, effect.version)) if effect.version else None
            found = await worker.ask({"do": "load", "folder": folder, "place": place}, "loaded")
            worker.regions = _regions(found)
            state, most = sum(worker.regions.values()), more.get("stateBytes")
            if most is not None and state > most:
                raise WorkerFailed(f"its state has {state} bytes, {most} were announced", full=True)
        except WorkerFailed as error:
            self._lost(resident, worker, str(error), error.full)
            return
        self._more = {
            "load": _micros(begun), "offload": self._offloaded, "functions": sorted(worker.functions),
            "pid": worker.pid,
        }  # fmt: skip
        self._step(me.began(self.state, effect.token))
        self._more = {}

    async def _execute(self, effect: me.Execute, body: bytes | memoryview) -> None:
        resident = self.state.resident
        worker = self.workers.get(resident)
        try:
            if worker is None:
                raise WorkerFailed("the worker ended")
            answer = await worker.call(body)
            header = header_of(answer, "the worker's answer")
            if "failed" in header or not ("result" in header or "refused" in header):
                raise WorkerFailed(shown(header.get("failed", "no result in the answer"), 500))
        except (WorkerFailed, Refused) as error:
            if self.state.token == effect.token:
                self._lost(resident, worker, str(error))
            return
        if self.state.token != effect.token:
            return
        self._answer = answer
        status = "ok" if "result" in header else f"refused: {shown(header['refused'], 500)}"
        self._step(me.ran(self.state, effect.token, effect.number, status))

    async def _save(self, effect: me.Save) -> None:
        resident, version = effect.resident, effect.version
        worker = self.workers.get(resident)
        try:
            if worker is None:
                raise WorkerFailed("the worker ended")
            while self._erasing:  # what was dropped counts until it is
                await asyncio.wait(self._erasing)
            part = self.memory.begin(resident, version, sum(worker.regions.values()))
            base = str(self.memory.folder(resident, version - 1)) if version > 1 else None
            saved = await worker.ask({"do": "save", "folder": str(part), "base": base}, "saved")
        except MemoryError as error:
            self._lost(resident, worker, str(error), full=True)
            return
        except WorkerFailed as error:
            if self.state.token == effect.token:
                self._lost(resident, worker, str(error), error.full)
            return
        if self.state.token != effect.token:
            return  # whoever writes this version next clears it away
        self.memory.done(part)
        self._more = {"regions": _regions(saved)}
        self._step(me.saved(self.state, effect.token, version))
        self._more = {}

    async def _end_residency(self, message: Gone) -> None:
        """Say that nothing of a resident is left, once that is so."""
        resident = message.resident
        worker = self.workers.get(resident)
        if worker is not None:
            self._kill(resident)
            await worker.reaped()
        self._drop(resident)
        self.device.unlink(resident)
        self._met.pop(resident, None)
        self._report(MemberMessage(message))

    # -- workers ---------------------------------------------------------------------------------------------

    def _place(self, resident: str) -> dict[str, Any]:
        return {
            "resident": resident, "rank": self.index, "size": len(self.state.peers),
            "device": self.device.link(resident), "deviceBytes": self._device_bytes,
        }  # fmt: skip

    def _kill(self, resident: str) -> None:
        worker = self.workers.pop(resident, None)
        if worker is not None and worker not in self._dying:
            self.kills += 1
            self._dying.add(worker)
            worker.kill()

    def _lost(self, resident: str, worker: WorkerProcess | None, why: str, full: bool = False) -> None:
        """Take it that the worker of the present turn is lost."""
        if worker is not None and self.workers.get(resident) is not worker:
            return  # it was killed, and another took its place
        _logger.warning("a worker is lost", resident=resident, why=why)
        self._kill(resident)
        if self.state.worker == resident:
            self._more = {"why": why, "full": full}
            self._step(me.worker_died(self.state))
            self._more = {}

    def _ended(self, worker: WorkerProcess) -> None:
        self._dying.discard(worker)
        worker.close()
        if self.workers.get(worker.resident) is worker:
            if self.state.worker == worker.resident:
                self._lost(worker.resident, worker, "the worker ended")
            else:  # asleep
                del self.workers[worker.resident]
                self._report(MemberMessage(Died(_NOBODY), None, {"asleep": worker.resident}))
        self._dying.discard(worker)

    def _drop(self, resident: str, version: int | None = None) -> None:
        dropped = self.memory.drop(resident, version)
        if dropped is not None:
            task = self._spawn(asyncio.to_thread(self.memory.erase, dropped))
            self._erasing.add(task)
            task.add_done_callback(self._erasing.discard)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The machine waits for what this task would have said: the process ends, and begins anew.
            _logger.error("a task of the supervisor failed", error=repr(error), exc_info=error)
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Be told of an error that nothing here expects; whoever runs the supervisor replaces this."""


_MEETING = ("host", "port", "generation")
_NOBODY = Token(0, 0, "0", 0)


def _micros(since: float) -> int:
    return round((time.monotonic() - since) * 1e6)


def _regions(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(size) for name, size in (found.get("regions") or {}).items()}
