"""Worker processes: started by exec, asked over a socket, ended by SIGKILL.

What a worker is asked and answers: docs/understand/groups-wire.md, "Supervisor and worker".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from controller import log
from controller.bounded import shown
from controller.frozen import dataclass
from controller.group.wire import envelope, framed, header_of

PROGRAM = "evalstop_client.worker"

_logger = log.get("evalstop.group")


class WorkerFailed(Exception):
    """A worker is gone, or said that it cannot do what it was asked; the message says why."""

    def __init__(self, why: str, full: bool = False) -> None:
        super().__init__(why)
        self.full = full  # memory was


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts workers.

    Args:
        python: the interpreter.
        family: the family's class, ``package.module:Class`` or ``/path/file.py:Class``.
        environ: of the workers.
        most: bytes of an answer.
    """

    python: str
    family: str
    environ: Mapping[str, str]
    most: int


class WorkerProcess:
    """One resident's worker on this member.

    Args:
        resident: whose.
        ended: called once with it when its process is gone.
    """

    def __init__(self, resident: str, ended: Callable[[WorkerProcess], None]) -> None:
        self.resident, self._ended = resident, ended
        self.functions: dict[str, Any] = {}
        self.regions: dict[str, int] = {}
        self.generation: int | None = None  # with which it has met the others
        self.killed = False
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._asking, self._most = asyncio.Lock(), 0
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self, command: Command, place: Mapping[str, Any]) -> None:
        """Start it and wait until it has its family.

        Raises:
            WorkerFailed: it ended, or the family cannot be made.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        environ = {
            **command.environ,
            "EVALSTOP_WORKER_SOCKET": str(theirs.fileno()),
            "EVALSTOP_WORKER_PARENT": str(os.getpid()),
            "EVALSTOP_WORKER_FAMILY": command.family,
            "EVALSTOP_WORKER_PLACE": json.dumps(place),
        }
        self._socket = ours
        try:
            self._process = await asyncio.create_subprocess_exec(
                command.python, "-m", PROGRAM,
                stdin=asyncio.subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environ,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise WorkerFailed(f"{command.python}: {error.strerror}") from None
        finally:
            theirs.close()
        self._most = command.most
        self._watch = asyncio.create_task(self._wait(), name=f"worker {self.resident}")
        if self.killed:  # meanwhile
            self.kill()
        async with self._asking:
            header = header_of(await self._receive())
        hello = self._answer(header, "hello")
        self.functions = dict(hello.get("functions") or {})

    async def ask(self, request: Mapping[str, Any], answer: str) -> dict[str, Any]:
        """Ask for something and return the object that the answer has under its name.

        Raises:
            WorkerFailed: it is gone or refuses.
        """
        async with self._asking:
            await self._send(framed(envelope(request)))
            return self._answer(header_of(await self._receive()), answer)

    async def call(self, body: bytes | memoryview) -> bytes:
        """Pass a job's call on and return the answer as it came.

        Raises:
            WorkerFailed: it is gone.
        """
        async with self._asking:
            await self._send([struct.pack(">Q", memoryview(body).nbytes), body])
            return await self._receive()

    def kill(self) -> None:
        """Kill it and what it started, whatever it does."""
        self.killed = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def reaped(self) -> None:
        """Return once its process is gone."""
        if self._watch is not None:
            await asyncio.shield(self._watch)

    async def _wait(self) -> None:
        assert self._process is not None
        assert self._socket is not None
        code = await self._process.wait()
        # Whoever it started has its descriptors, too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # who waits for its answer hears that there is none
        if not self.killed:
            _logger.warning("a worker ended", resident=self.resident, pid=self._process.pid, code=code)
        self._ended(self)

    def _answer(self, header: Mapping[str, Any], name: str) -> dict[str, Any]:
        found = header.get(name)
        if isinstance(found, dict):
            return found
        full = "full" in header
        why = header.get("full") or header.get("failed") or f"no {name} in the answer"
        raise WorkerFailed(shown(why, 500), full)

    async def _send(self, parts: list[bytes | memoryview]) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            for part in parts:
                await loop.sock_sendall(self._socket, part)
        except OSError:
            raise WorkerFailed("the worker ended") from None

    async def _receive(self) -> bytes:
        size = struct.unpack(">Q", await self._exactly(8))[0]
        if size > self._most:
            raise WorkerFailed(f"an answer of {size} bytes, at most {self._most} are allowed")
        return bytes(await self._exactly(size))

    async def _exactly(self, size: int) -> bytearray:
        assert self._socket is not None
        loop, body, at = asyncio.get_running_loop(), bytearray(size), 0
        view = memoryview(body)
        try:
            while at < size:
                count = await loop.sock_recv_into(self._socket, view[at:])
                if not count:
                    raise WorkerFailed("the worker ended")
                at += count
        except OSError:
            raise WorkerFailed("the worker ended") from None
        return body

    def close(self) -> None:
        """Give its socket back, once it is reaped."""
        if self._socket is not None:
            self._socket.close()
