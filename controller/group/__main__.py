"""``python -m controller.group``: exit code 0: asked to end; 1: a part ended; 2: settings wrong."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from controller import log
from controller.environ import listed
from controller.group import certificate
from controller.group.account import Clock
from controller.group.app import Door, create
from controller.group.coordination import Coordination, Rules
from controller.group.devices import Device, LocalDevice, NvmlDevice
from controller.group.disk import Disk, text
from controller.group.exchange import Exchange
from controller.group.links import Link
from controller.group.memory import HostMemory
from controller.group.metrics import GroupMetrics
from controller.group.registration import Admitted, Registration
from controller.group.settings import PREFIX, Settings, describe
from controller.group.supervisor import MemberMessage, Supervisor
from controller.group.workers import Command
from controller.policy.sharing import coordinator as co
from controller.policy.sharing import member as me
from controller.program import Program, stop_signal
from controller.web.connections import Limits
from controller.web.server import WebServer

_FRAME = 1 << 20  # bytes of a frame beside the call's body

_logger = log.get("evalstop.group")


class Pod:
    """One member: what begins once it is admitted.

    Args:
        settings: of the pod.
        environ: of the process, which workers get without what is the supervisor's.
        address: at which it is reached; fingerprint: of its certificate.
    """

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], address: str, fingerprint: str
    ) -> None:
        self._settings, self._address, self._fingerprint = settings, address, fingerprint
        self._disk = Path(settings.disk)
        own = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
        self._command = Command(
            settings.python or sys.executable, settings.family, own, settings.body_bytes + _FRAME
        )
        self.metrics = GroupMetrics()
        self.memory = HostMemory(Path(settings.memory), settings.host_bytes)
        self.door = Door(self.memory, self.metrics, settings.body_bytes)
        self.supervisor: Supervisor | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parts: list[asyncio.Task[None]] = []
        self.admitted = asyncio.Event()

    def take(self, admitted: Admitted) -> None:
        """Take what the operator said."""
        self.door.admitted = admitted
        self.door.keys_changed()
        self.admitted.set()

    async def begin(self) -> None:
        """Begin as the member that the ticket says.

        Raises:
            OSError: device, memory or disk cannot be used.
        """
        settings, admitted = self._settings, self.door.admitted
        assert admitted is not None
        ticket, index = admitted.ticket, admitted.index
        device = await self._device()
        member = me.Member(
            ticket.pod, ticket.admission, ticket.pods, self.memory.newest(), self.memory.versions()
        )
        self.supervisor = Supervisor(
            me.member_restarted(member),
            index,
            self._command,
            device,
            settings.device_bytes,
            self.memory,
            self._report,
        )
        self.supervisor.failed = self._failed  # type: ignore[method-assign]
        self.metrics.supervisor = self.supervisor
        if index == 0:
            self._coordinate(admitted)
        else:
            self._exchange = Exchange(settings.body_bytes + _FRAME, self._address, self._fingerprint)
            self._exchange.supervisor = self.supervisor
            self._spawn(self._exchange.run(lambda: self.door.admitted), "exchange")
        self.supervisor.begin()
        _logger.info(
            "began", group=ticket.group, admission=ticket.admission, index=index, address=self._address
        )

    def _coordinate(self, admitted: Admitted) -> None:
        settings, ticket = self._settings, admitted.ticket
        disk = Disk(self._disk)
        kept = disk.read()
        if kept.admission not in (0, ticket.admission):
            raise OSError(f"{self._disk}: of admission {kept.admission}, this pod is of {ticket.admission}")
        kept.admission, kept.start = ticket.admission, kept.start + 1
        kept.opened = kept.opened or time.time()
        disk.write(text(kept))  # before anybody hears of this start
        state = co.restarted(
            ticket.admission, kept.start, secrets.token_hex(8), ticket.pods, dict(kept.versions),
            settings.turns_in_a_row, tuple(kept.leaving),
        )  # fmt: skip
        rules = Rules(
            ticket.group, settings.turn_seconds, settings.idle_seconds, settings.max_residents,
            settings.host_bytes, settings.gpus * len(ticket.pods), settings.body_bytes,
            self._address.rpartition(":")[0].strip("[]"),
        )  # fmt: skip
        group = Coordination(rules, state, kept, disk, Clock(kept.opened), self._disk)
        group.supervisor = self.supervisor
        group.servers[ticket.pod] = (self._address, self._fingerprint)
        for uid in ticket.pods[1:]:
            group.links[uid] = Link(
                uid, kept.start, settings.body_bytes + _FRAME, group.hello, group.receive_frame
            )
        self.door.coordination = self.metrics.coordination = group
        for part in group.parts():
            self._spawn(part, "coordination")
        group.begin()

    async def _device(self) -> Device:
        settings = self._settings
        if settings.device == "NVML":
            device = NvmlDevice(settings.residual_bytes)
            await device.begin()
            return device
        return LocalDevice(Path(settings.device), settings.device_bytes)

    def _report(self, sent: MemberMessage) -> None:
        group = self.door.coordination
        if group is not None:
            asyncio.get_running_loop().call_soon(group.receive, self._settings.pod, sent)
        else:
            self._exchange.send(sent)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.parts.append(asyncio.create_task(work, name=name))

    def _failed(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def end(self) -> None:
        """Kill workers, end all parts."""
        for part in self.parts:
            part.cancel()
        await asyncio.gather(*self.parts, return_exceptions=True)
        if self.supervisor is not None:
            await self.supervisor.end()
        if self.door.coordination is not None:
            self.door.coordination.close()


class _Later:
    """Stands for an app that is made before the event loop serves anybody."""

    made: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.made(scope, receive, send)


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run a member until SIGTERM or SIGINT and return its exit code."""
    host = settings.address or environ.get("POD_IP") or settings.listen
    disk = Path(settings.disk)
    context, fingerprint = certificate.kept(disk, [host])
    stop = stop_signal()
    limits = Limits(
        connections=256, per_peer=64, request=max(86_400.0, 2 * settings.turn_seconds), keep_alive=60.0
    )
    app = _Later()  # its port is known once it listens, and the app needs that
    server = WebServer(app, settings.listen, settings.port, tls=context, limits=limits, name="group")
    await server.start()
    address = f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}"
    pod = Pod(settings, environ, address, fingerprint)
    app.made = create(pod.door)
    registration = Registration(
        settings.pod, listed(settings.operator), settings.operator_ca, settings.token, address, fingerprint,
        disk / "ticket.json", pod.take,
    )  # fmt: skip
    registration.recall()
    registering = asyncio.create_task(registration.run(settings.register_seconds), name="registration")
    stopping = asyncio.create_task(stop.wait())
    admitting = asyncio.create_task(pod.admitted.wait())
    try:
        await asyncio.wait({stopping, registering, admitting}, return_when=asyncio.FIRST_COMPLETED)
        if pod.admitted.is_set():
            await pod.begin()
        watched: set[asyncio.Future[Any]] = {stopping, registering, pod.failed, *pod.parts}
        done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        for one in done - {stopping}:
            one.result()
        return 0 if stopping in done else 1
    finally:
        for task in (stopping, registering, admitting):
            task.cancel()
        await asyncio.gather(stopping, registering, admitting, return_exceptions=True)
        pod.failed.cancel()
        await server.stop()
        await pod.end()


main = Program("controller.group", Settings.from_environ, describe, run, (OSError,)).main

if __name__ == "__main__":
    sys.exit(main())
