"""Plans, in a process of its own: a plan takes up to 30 ms of CPU, which would hold up the event loop.

``python -m controller.steps.planner`` is that process: pickled questions on its standard input, pickled
plans on its standard output, each after its length. Both ends are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import pickle
import struct
import sys
from typing import BinaryIO

from controller import log
from controller.policy.rollout import RolloutPlan, StepQuestion, planned

SECONDS = 10.0  # that a plan may take before its process is ended
_LENGTH = struct.Struct(">I")

_logger = log.get("evalstop.steps")


class PlannerProcess:
    """Asks the process, one question at a time, and starts another one if it is gone or hangs.

    Of several questions that wait, the one whose step begins first is asked first.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: list[tuple[float, int, StepQuestion, asyncio.Future[RolloutPlan | None]]] = []
        self._order = itertools.count()
        self._asking: asyncio.Task[None] | None = None
        self.failures = 0

    async def plan(self, question: StepQuestion, begins_at: float = 0.0) -> RolloutPlan | None:
        """Return the plan that a question asks for; None: it could not be planned now.

        Args:
            question: of a step.
            begins_at: when the step begins (s, of any clock); infinite: nobody waits for it.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RolloutPlan | None] = loop.create_future()
        heapq.heappush(self._waiting, (begins_at, next(self._order), question, answer))
        if self._asking is None or self._asking.done():
            self._asking = loop.create_task(self._ask_all())
        return await answer

    async def _ask_all(self) -> None:
        """Ask what waits. An answer under way is read to its end, though nobody may wait for it any more."""
        while self._waiting:
            *_, question, answer = heapq.heappop(self._waiting)
            if answer.done():
                continue  # nobody waits for it any more
            found = None
            try:
                async with asyncio.timeout(SECONDS):
                    found = await self._ask(pickle.dumps(question))
            except Exception as error:
                self.failures += 1
                _logger.warning(
                    "the planner's process did not answer", why=f"{type(error).__name__}: {error}"
                )
                await self._end()
            finally:
                if not answer.done():
                    answer.set_result(found)

    async def _ask(self, question: bytes) -> RolloutPlan | None:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "controller.steps.planner",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_LENGTH.pack(len(question)) + question)
        await process.stdin.drain()
        head = await process.stdout.readexactly(_LENGTH.size)
        found = pickle.loads(await process.stdout.readexactly(_LENGTH.unpack(head)[0]))
        return found if isinstance(found, RolloutPlan) else None

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """End the process; whoever waits has no plan."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        while self._waiting:
            *_, answer = self._waiting.pop()
            if not answer.done():
                answer.set_result(None)
        await self._end()


def _serve(read: BinaryIO, write: BinaryIO) -> None:
    while len(head := read.read(_LENGTH.size)) == _LENGTH.size:
        question = pickle.loads(read.read(_LENGTH.unpack(head)[0]))
        try:
            answer = planned(question)
        except ValueError as error:
            print(f"evalstop planner: {error}", file=sys.stderr)
            answer = None
        found = pickle.dumps(answer)
        write.write(_LENGTH.pack(len(found)) + found)
        write.flush()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(5)  # answers come first
    with contextlib.suppress(BrokenPipeError):  # who asked is gone
        _serve(sys.stdin.buffer, sys.stdout.buffer)
