"""`kubectl exec`: a command in a running container, its streams as channels of one WebSocket.

The API server passes the client's WebSocket on as it is to nodes that declare `FEATURE`. Each binary message
begins with the number of its channel; the protocol is Kubernetes' `v5.channel.k8s.io` (in v4 nobody
closes stdin).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from deploy.local.agent.process import ContainerProcess

FEATURE = "ExtendWebSocketsToKubelet"  # of node.status.declaredFeatures
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK = 1 << 15
_TYPING_PAUSE = 0.05  # s


@dataclass(frozen=True)
class ExecRequest:
    """Command of an exec or attach, and the streams that its client asks for."""

    argv: Sequence[str]
    stdin: bool = False
    terminal: bool = False


async def serve(request: web.Request, process: ContainerProcess, command: ExecRequest) -> web.StreamResponse:
    """Run a command for the client of `request` until the command ends or the client leaves."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=1 << 22)
    if not socket.can_prepare(request):
        return web.Response(status=501, text="exec: by WebSocket only; SPDY is not spoken here\n")
    await socket.prepare(request)
    try:
        session = await _Session.begin(socket, process, command)
    except (OSError, ProcessLookupError) as error:
        await _send_status(socket, {"status": "Failure", "reason": "InternalError", "message": str(error)})
    else:
        await session.run()
    await socket.close()
    return socket


class _Session:
    """One command with its streams joined to a socket."""

    def __init__(
        self, socket: web.WebSocketResponse, child: asyncio.subprocess.Process, terminal: int | None
    ) -> None:
        self._socket = socket
        self._child = child
        self._terminal = terminal

    @staticmethod
    async def begin(
        socket: web.WebSocketResponse, process: ContainerProcess, command: ExecRequest
    ) -> _Session:
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        if not command.terminal:
            child = await process.join(command.argv, pipe if command.stdin else nothing, pipe, pipe)
            return _Session(socket, child, None)
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)  # one that waits would hold up every pod of the agent
        try:
            child = await process.join(command.argv, theirs, theirs, theirs, terminal=True)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return _Session(socket, child, ours)

    async def run(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            if self._terminal is not None:
                await self._copy_terminal(self._terminal)
            else:
                assert self._child.stdout is not None
                assert self._child.stderr is not None
                await asyncio.gather(
                    self._copy(self._child.stdout, _STDOUT), self._copy(self._child.stderr, _STDERR)
                )
            await _send_status(self._socket, _result(await self._child.wait()))
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has left; what it started goes with it
        finally:
            listening.cancel()
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            if self._terminal is not None:
                os.close(self._terminal)

    async def _copy(self, stream: asyncio.StreamReader, channel: int) -> None:
        while chunk := await stream.read(_CHUNK):
            await self._socket.send_bytes(bytes([channel]) + chunk)

    async def _copy_terminal(self, terminal: int) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(terminal, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                try:
                    chunk = os.read(terminal, _CHUNK)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: nobody has the other side open any more
                    return
                await self._socket.send_bytes(bytes([_STDOUT]) + chunk)
        finally:
            loop.remove_reader(terminal)

    async def _listen(self) -> None:
        """Pass on standard input and window sizes; when the client leaves, kill the command."""
        async for message in self._socket:
            if message.type is WSMsgType.BINARY and message.data:
                await self._take(message.data[0], message.data[1:])
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def _type(self, terminal: int, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(terminal, data) :]
            except BlockingIOError:  # the program does not read, and nobody says when it will
                await asyncio.sleep(_TYPING_PAUSE)

    async def _take(self, channel: int, data: bytes) -> None:
        if channel == _RESIZE and self._terminal is not None:
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, packed)
        elif channel == _STDIN and self._terminal is not None:
            await self._type(self._terminal, data)
        elif self._child.stdin is not None:
            with contextlib.suppress(ConnectionError):
                if channel == _STDIN:
                    self._child.stdin.write(data)
                    await self._child.stdin.drain()
                elif channel == _CLOSE and data == bytes([_STDIN]):
                    self._child.stdin.close()


def _result(code: int) -> dict[str, object]:
    if code == 0:
        return {"status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: {code}"
    return {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": message,
        "details": {"causes": causes},
    }


async def _send_status(socket: web.WebSocketResponse, status: dict[str, object]) -> None:
    body = {"metadata": {}, **status}
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([_ERROR]) + json.dumps(body).encode())
