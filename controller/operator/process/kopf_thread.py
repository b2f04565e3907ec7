"""kopf in a thread with an event loop of its own.

At its end kopf cancels every task that came after its start, those of others in the same loop too. It ends by
design on some API faults (404 to a watch, say), and the engine then ends the process.

It does not always come to its own end: a watch that is about to list anew when kopf cancels it may go on. So
the engine is told by the cleanup handler already, when everything else of kopf has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import kopf

from controller import names
from controller.kube.kopf_session import KopfSession

HEARTBEAT = 1.0  # s between signs of life from kopf's loop
_IDENTITY: Any = names.MANAGED_BY  # in kopf's own peering, which is off


class KopfThread:
    """Runs kopf until `stop`.

    ``ended`` is set, in the engine's loop, when kopf has given up, or was stopped. ``error`` is then the
    exception that ended the thread, if one did and the thread is over. ``heartbeat`` is the monotonic time of
    its last sign of life.

    Args:
        registry: kopf's handlers.
        session: their memo.
        namespaces: which it watches; none: all.
        loop: the engine's.
    """

    def __init__(
        self,
        registry: kopf.OperatorRegistry,
        session: KopfSession,
        namespaces: tuple[str, ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry, self._session, self._namespaces, self._loop = registry, session, namespaces, loop
        self._stop = threading.Event()  # made before the thread, or a stop could come too early
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self.ended, self._over = asyncio.Event(), asyncio.Event()
        session.closed = lambda: self._set(self.ended)
        self.error: BaseException | None = None
        self.heartbeat = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    async def stop(self, patience: float = 8.0) -> None:
        """Ask kopf to end and wait; a thread that hangs is left behind (it is a daemon)."""
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._over.wait()

    def _set(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the engine's loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(event.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # whatever ended the thread is the engine's to report
            self.error = error
        finally:
            self._set(self.ended)
            self._set(self._over)

    async def _operate(self) -> None:
        # Made before kopf starts: kopf cancels what it finds to have come after it.
        beat = asyncio.create_task(self._beat())
        try:
            await kopf.operator(
                registry=self._registry,
                memo=self._session,
                # Else it asks for the user's name, and in an image its number has none.
                identity=_IDENTITY,
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
            )
        finally:
            beat.cancel()
            # A thread of the loop's executor waits for this flag. Where kopf gave up by itself nobody has set
            # it: the loop would wait for that thread, and nobody would hear that the watches have ended.
            self._stop.set()

    async def _beat(self) -> None:
        while True:
            self.heartbeat = time.monotonic()
            await asyncio.sleep(HEARTBEAT)
