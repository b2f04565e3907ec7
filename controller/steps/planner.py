"""Plans, in a process of its own: a plan takes up to 30 ms of CPU, which would hold up the event loop.

``python -m controller.steps.planner`` is that process: pickled questions on its standard input, pickled
plans on its standard output, each after its length. Both ends are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    """Asks the process, one question at a time, and starts another one if it is gone or hangs."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.failures = 0

    async def plan(self, question: StepQuestion) -> RolloutPlan | None:
        """Return the plan that a question asks for; None: it could not be planned now."""
        async with self._turn:
            try:
                async with asyncio.timeout(SECONDS):
                    return await self._ask(pickle.dumps(question))
            except (OSError, EOFError, TimeoutError) as error:
                self.failures += 1
                _logger.warning(
                    "the planner's process did not answer", why=f"{type(error).__name__}: {error}"
                )
                await self._end()
                return None
            except BaseException:
                await self._end()  # its answer would be taken for that of the next question
                raise

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
        """End the process."""
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
