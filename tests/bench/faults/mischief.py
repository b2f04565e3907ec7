"""Faults carried out: signals to exactly this bench's processes, full disks; and when who was in trouble."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from deploy.local import processes
from tests.bench.faults.operators import LEASE, Operator
from tests.bench.faults.plan import ANSWERS, Fault
from tests.bench.faults.proxy import FaultyProxy
from tests.bench.faults.stage import Slot

# s after an API server's fault until watches and retries that back off are surely through.
_AFTER_ANSWERS = 5.0
_AFTER_AWAY = 35.0
_AFTER_OPERATOR = 4.0
_AFTER_OWN = 3.0
_PATIENCE = 20.0  # s that a fault waits for the process that it is meant for, or for somebody who meets it


@dataclass(slots=True)
class Trouble:
    """``run`` "": of everybody. ``end`` None: it goes on."""

    kind: str
    run: str
    begin: float  # s since the epoch
    end: float | None = None  # with the time that its after-effects may last
    over: float | None = None  # when the fault itself had ended, and a Lease was renewed again


class Mischief:
    """What is wrong at present, and was. ``done``: faults by kind that really happened."""

    def __init__(self, proxy: FaultyProxy, operators: list[Operator], session: aiohttp.ClientSession) -> None:
        self._proxy, self._operators, self._session = proxy, operators, session
        self.troubles: list[Trouble] = []
        self.done: Counter[str] = Counter()
        self._waits: set[asyncio.Task[None]] = set()

    def spans(self, run: str) -> list[tuple[float, float]]:
        """When something was wrong for this run (s since the epoch)."""
        now = time.time()
        return [(t.begin, now if t.end is None else t.end) for t in self.troubles if t.run in ("", run)]

    def acute(self) -> list[tuple[float, float]]:
        """When there was no operator, or no API server that answered it as it should, and shortly after: a
        Lease that could not be renewed is lost a moment later, and with it what was scraped meanwhile."""
        now = time.time()
        return [(t.begin, now if t.over is None else t.over) for t in self.troubles if not t.run]

    def ended(self, operator: Operator) -> None:
        """A process of the operator has ended, for whatever reason: there may be none until one leads.

        One that ended by itself could not renew its Lease for a while before, nor write what it scraped.
        """
        trouble = self._begin(f"{operator.name} ended")
        if operator.exit_code is None or operator.exit_code >= 0:
            trouble.begin -= float(LEASE["EVALSTOP_LEASE_RENEW_SECONDS"])

        async def wait() -> None:
            await self.until_led()
            trouble.over = time.time()
            trouble.end = trouble.over + _AFTER_OPERATOR

        self._waits.add(asyncio.create_task(wait()))

    def forget_before(self, at: float) -> None:
        self.troubles = [t for t in self.troubles if t.end is None or t.end >= at]

    async def carry_out(self, fault: Fault, run: str, slot: Slot, rng: random.Random) -> bool:
        """Do it, and undo it; whether it met anything."""
        if fault.kind in ANSWERS:
            await self._answers(fault)
        elif fault.kind.startswith("operator"):
            await self._operator(fault, rng)
        elif fault.kind in ("disk-full", "retention-full"):
            if not slot.small:
                return False
            volume = "checkpoints" if fault.kind == "disk-full" else "retained"
            trouble = self._begin(fault.kind, run)
            try:
                await asyncio.to_thread(slot.fill, volume)
                await asyncio.sleep(fault.lasts)
            finally:
                slot.empty(volume)
                # What was refused for want of room is tried again after its pause.
                trouble.end = time.time() + 10.0 + _AFTER_OWN
        elif not await self._process(fault, run, rng):
            return False
        self.done[fault.kind] += 1
        return True

    def _begin(self, kind: str, run: str = "") -> Trouble:
        trouble = Trouble(kind, run, time.time())
        self.troubles.append(trouble)
        return trouble

    async def _answers(self, fault: Fault) -> None:
        trouble = self._begin(fault.kind)
        met = self._proxy.felt[fault.kind]
        self._proxy.on(fault.kind, fault.lasts)
        try:
            await asyncio.sleep(fault.lasts)
            # Nobody asked meanwhile, as where no operator lived: a fault that nobody meets would be none.
            deadline = time.monotonic() + _PATIENCE
            while self._proxy.felt[fault.kind] == met:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.1)
        finally:
            self._proxy.off(fault.kind)
            trouble.over = time.time() + _AFTER_ANSWERS
            trouble.end = time.time() + (_AFTER_AWAY if fault.kind == "away" else _AFTER_ANSWERS)

    async def _operator(self, fault: Fault, rng: random.Random) -> None:
        leaders = [o for o in self._operators if await o.leads(self._session)]
        operator = rng.choice(leaders or self._operators)
        trouble = self._begin(fault.kind)
        try:
            if fault.kind == "operator-kill":
                operator.kill()
                await asyncio.sleep(0.5)
            else:
                operator.freeze()
                try:
                    await asyncio.sleep(fault.lasts)
                finally:
                    operator.wake()
                await asyncio.sleep(1.0)
            await self.until_led()
        finally:
            trouble.over = time.time()
            trouble.end = time.time() + _AFTER_OPERATOR

    async def until_led(self, seconds: float = 120.0) -> bool:
        """Wait until some operator leads; whether one does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for operator in self._operators:
                if await operator.leads(self._session):
                    return True
            await asyncio.sleep(0.2)
        return False

    async def _process(self, fault: Fault, run: str, rng: random.Random) -> bool:
        trainer = fault.kind.startswith("trainer")
        deadline = time.monotonic() + _PATIENCE
        while not (found := await asyncio.to_thread(processes_of, run, trainer)):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.15)
        target = rng.choice(found)
        trouble = self._begin(fault.kind, run)
        try:
            if fault.kind.endswith("kill"):
                await asyncio.sleep(rng.uniform(0.0, 0.4))
                return processes.send(target, signal.SIGKILL)
            if not processes.send(target, signal.SIGSTOP):
                return False
            try:
                await asyncio.sleep(fault.lasts)
            finally:
                processes.send(target, signal.SIGCONT)
            return True
        finally:
            # What failed is tried again after a pause.
            trouble.end = time.time() + (_AFTER_OWN if trainer else 10.0 + _AFTER_OWN)


def processes_of(run: str, trainer: bool) -> list[processes.Process]:
    """The programs in the trainer's, or the access, containers of this run, of this very bench's plane."""
    mark = b"tests.bench.faults.trainer" if trainer else b"controller.checkpoints.access"
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark not in (entry / "cmdline").read_bytes():
                continue
            words = (entry / "environ").read_bytes()
            if f"/{run}".encode() not in words or not _ours(int(entry.name)):
                continue
            found.append(processes.identify(int(entry.name)))
        except (OSError, ProcessLookupError):
            continue
    return found


def _ours(pid: int) -> bool:
    """Whether this process is its ancestor."""
    me = os.getpid()
    while pid > 1:
        if pid == me:
            return True
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return False
