"""kopf as a thin watch shell: a thread with an event loop of its own that hands every event over.

Only ``on.event`` handlers, so kopf writes nothing: no finalizers, no annotations, no Kubernetes Events.
All state and all decisions live in the engine's loop. kopf ends on some API faults by design (an in-stream
500, a 410 on the watch request); whoever runs this shell must end the process when the thread ends.

It watches what administrators write of the operator's own kinds: GPUPools. Everything else comes by
`controller.kube.listwatch`. kopf reads as `json.loads` does, so one RLHFJob that is nested too deep would end
the watch of all namespaces; and it starts a task with a queue for each object that it sees, and keeps a
memory of it for as long as the object is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kopf

from controller import names
from controller.kube.connect import Connection
from controller.kube.resources import BY_KOPF, Resource

# (resource, object as the server sends it, gone): called in the engine's loop, one call per event.
Sink = Callable[[Resource, Mapping[str, Any], bool], None]

Known = Callable[[Resource, Mapping[str, Any]], bool]

HEARTBEAT = 1.0  # s between signs of life from kopf's loop
QUIET = 2.0  # s without an event after which kopf is taken to have gone through its LISTs
IDLE = 0.2  # s for which kopf keeps the task and queue of an object that says nothing more
CHUNK = 100  # objects of a LIST that kopf holds in full at a time


class JitteredBackoffs:
    """Pauses (s) between tries, without end: kopf gives up, and ends the process, when they run out.

    Re-iterable: kopf starts a new iteration for each request.
    """

    def __init__(self, first: float = 0.5, factor: float = 2.0, cap: float = 30.0) -> None:
        self._first, self._factor, self._cap = first, factor, cap

    def __iter__(self) -> Iterator[float]:
        pause = self._first
        while True:
            # Half to full: operators that lost the same API server do not come back in step.
            yield pause * random.uniform(0.5, 1.0)
            pause = min(self._cap, pause * self._factor)


_IDENTITY: Any = names.MANAGED_BY  # in kopf's own peering, which is off


class WatchShell:
    """Runs kopf in a thread and feeds ``sink`` in ``loop``.

    ``started`` is set (in ``loop``) once kopf runs and goes on to list every kind; ``through`` when it has
    gone through as many objects as `start` was told, or has had nothing to say for a while; ``ended`` when
    the thread is over, with the exception that ended it, if any, in ``error``. ``heartbeat`` is the monotonic
    time of its last sign of life.

    Args:
        known: whether a state of an object need not be handed over; asked in kopf's thread.
    """

    def __init__(
        self,
        connection: Connection,
        sink: Sink,
        loop: asyncio.AbstractEventLoop,
        known: Known,
        resources: tuple[Resource, ...] = BY_KOPF,
    ) -> None:
        self._connection = connection
        self._sink, self._known = sink, known
        self._loop = loop
        self._resources = resources
        self._stop = threading.Event()  # made before the thread, or a stop could come too early
        self._ready = threading.Event()
        self.started = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self.heartbeat = time.monotonic()
        self.through = asyncio.Event()
        self._to_see, self._last = 0, math.inf  # objects; when it last went through one, or could begin

    def start(self, there: int) -> None:
        """Begin. ``there``: objects that its first LISTs will bring, as far as known."""
        self._to_see = there
        if not there:
            self.through.set()
        self._thread.start()

    async def stop(self, patience: float = 8.0) -> None:
        """Ask kopf to end and wait; a thread that hangs is left behind (it is a daemon)."""
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.ended.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # whatever ended the thread is the supervisor's to report
            self.error = error
        finally:
            with contextlib.suppress(RuntimeError):  # the engine's loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self.ended.set)
                self._loop.call_soon_threadsafe(self.through.set)

    async def _operate(self) -> None:
        # Made before kopf starts: kopf cancels what it finds to have come after it.
        beat = asyncio.create_task(self._beat())
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=self._settings(),
                # Else it asks for the user's name, and in an image its number has none.
                identity=_IDENTITY,
                standalone=True,
                clusterwide=True,
                stop_flag=self._stop,
                ready_flag=self._ready,
            )
        finally:
            beat.cancel()
            # A thread of the loop's executor waits for this flag. Where kopf gave up by itself nobody has set
            # it: the loop would wait for that thread, and nobody would hear that the watches have ended.
            self._stop.set()

    async def _beat(self) -> None:
        told = False
        while True:
            self.heartbeat = now = time.monotonic()
            if self._ready.is_set() and not told:
                told, self._last = True, now
                self._loop.call_soon_threadsafe(self.started.set)
            if now - self._last > QUIET and not self.through.is_set():
                self._loop.call_soon_threadsafe(self.through.set)
            await asyncio.sleep(HEARTBEAT if told else 0.1)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            configuration = self._connection.configuration
            return kopf.ConnectionInfo(
                server=configuration.host,
                ca_path=configuration.ssl_ca_cert,
                ca_data=configuration.ca_cert_data,
                insecure=not configuration.verify_ssl,
                certificate_path=configuration.cert_file,
                private_key_path=configuration.key_file,
                scheme="Bearer",
                token=self._connection.read_token(),
            )

        for resource in self._resources:
            self._watch(registry, resource)
        return registry

    def _watch(self, registry: kopf.OperatorRegistry, resource: Resource) -> None:
        async def handler(event: Any, **_: Any) -> None:
            obj, gone = event["object"], event["type"] == "DELETED"
            if event["type"] is None:
                self._to_see, self._last = self._to_see - 1, time.monotonic()
                if self._to_see == 0:
                    self._loop.call_soon_threadsafe(self.through.set)
            if gone or not self._known(resource, obj):
                self._loop.call_soon_threadsafe(self._sink, resource, obj, gone)

        kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            registry=registry,
            id=f"watch-{resource.plural}",
        )(handler)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.standalone = True
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.error_backoffs = JitteredBackoffs()
        settings.networking.enforce_retry_after = True
        settings.networking.trust_env = False
        settings.watching.connect_timeout = 10
        settings.watching.server_timeout = 600
        settings.watching.chunk_size = CHUNK
        settings.queueing.idle_timeout = IDLE
        settings.process.ultimate_exiting_timeout = None  # it would SIGKILL us; the engine owns the exit
        settings.persistence.finalizer = f"{names.GROUP}/kopf"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{names.GROUP}")
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{names.GROUP}")
        for resource in self._resources:
            if resource.selector:
                address = (resource.group, resource.version, resource.plural)
                settings.watching.label_selectors[address] = resource.selector
        return settings
