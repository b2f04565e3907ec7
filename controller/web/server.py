"""The API's server, in the event loop of the process that has it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the process's affair


class WebServer:
    """Serves an app, over plain HTTP or with a certificate. ``port`` is the real one once started.

    ``certificate``, ``key``: files in PEM; None: plain HTTP.
    """

    def __init__(
        self, app: FastAPI, host: str, port: int, certificate: str | None = None, key: str | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http="h11",  # unlike httptools', its heads have a limit
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._address = (host, port)
        self._task: asyncio.Task[None] | None = None
        self.port = port

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be had, or the certificate not be used; the message says which.
        """
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(self._address)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
        try:
            self._server.config.load()  # here, where a certificate that cannot be used is still told
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"the certificate cannot be used: {error}") from None
        self.port = listener.getsockname()[1]
        listener.listen(128)  # uvicorn may take a moment to accept; nobody need be refused until then
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="web")

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=5.0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
