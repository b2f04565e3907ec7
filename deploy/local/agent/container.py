"""One container of a pod through all its runs: prepare, start, probe, restart, stop."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from controller.kube.client import Object
from deploy.local.agent.context import Node
from deploy.local.agent.env import ConfigError
from deploy.local.agent.grace import Grace, first_of
from deploy.local.agent.images import UnmappedImage
from deploy.local.agent.logs import LogFile, last_output
from deploy.local.agent.prepare import prepare
from deploy.local.agent.probes import HandlerFailed, Probe, carry_out
from deploy.local.agent.process import Command, ContainerProcess, Ended
from deploy.local.agent.projection import VolumeError
from deploy.local.agent.record import INIT, MAIN, Record
from deploy.local.agent.restarts import Backoff, wants_restart
from deploy.local.agent.volumes import PodVolumes

log = logging.getLogger(__name__)

_MESSAGE_BYTES = 4096
_FALLBACK_LINES, _FALLBACK_BYTES = 80, 2048
_CONFIG_RETRY = 1.0  # s; a missing ConfigMap is looked for again
_KEPT_RUNS = 2  # the present one and the one before, for `kubectl logs --previous`


class Host(Protocol):
    """The pod, as its containers need it."""

    node: Node
    pod: Object
    folder: Path
    volumes: PodVolumes
    hosts: Path | None
    pod_ip: str

    def changed(self) -> None:
        """Note that the container's record has changed: the pod's status must be written again."""

    def event(self, reason: str, message: str, warning: bool = False) -> None:
        """Post an event on the pod."""

    @property
    def grace_seconds(self) -> float:
        """The pod's terminationGracePeriodSeconds."""


class Container:
    """Runs one container for its pod.

    ``record`` is what the API is told; ``finished`` is set when no run follows.
    """

    def __init__(self, host: Host, spec: Object, record: Record) -> None:
        self.host = host
        self.spec = spec
        self.record = record
        self.stopping = asyncio.Event()
        self.usable = asyncio.Event()  # a sidecar whose startup has succeeded, once
        self.finished = asyncio.Event()
        self.writer: LogFile | None = None
        self._backoff = Backoff(host.node.restart_backoff)
        self._process: ContainerProcess | None = None
        self._folder: Path = host.folder / "containers" / spec["name"]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun = False
        self._number = record.restarts  # of this run; the record follows when it has started
        self._killed = ""  # why we ended it ourselves (a probe, a hook)

    # Running

    async def run(self) -> None:
        """Run until the container has ended for good or was stopped; never raises but CancelledError."""
        self._begun = True
        try:
            await self._run()
        except Exception as error:  # a defect of ours must show on the pod, not hang it
            log.exception("container %s of %s", self.spec["name"], self.host.pod["metadata"]["name"])
            self.record.end(128, 0, "StartError", f"node agent: {type(error).__name__}: {error}")
        finally:
            self.finished.set()
            self.host.changed()

    async def _run(self) -> None:
        if (ended := self.record.terminated) is not None:
            if not wants_restart(self.host.pod, self.spec, self.record.kind, ended["exitCode"]):
                return
            self._number += 1
        while not self.stopping.is_set():
            began = time.monotonic()
            prepared = await self._prepared()
            if prepared is None:
                return
            ended_with = await self._once(*prepared)
            self.host.changed()
            if self.stopping.is_set():
                return
            if not wants_restart(self.host.pod, self.spec, self.record.kind, ended_with.exit_code):
                return
            pause = self._backoff.after(time.monotonic() - began)
            if pause:
                message = f"back-off {pause:g}s restarting failed container={self.spec['name']}"
                self.record.wait("CrashLoopBackOff", message)
                self.host.event(
                    "BackOff", f"Back-off restarting failed container {self.spec['name']}", warning=True
                )
                self.host.changed()
                await self._pause(pause)
            self._number += 1

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _prepared(self) -> tuple[Command, Path] | None:
        """Return the command and the folder of its run, waiting for what is missing; None when stopped
        meanwhile."""
        folder = self._folder / str(self._number)
        folder.mkdir(parents=True, exist_ok=True)
        message_file = folder / "termination-log"
        message_file.touch()
        message_file.chmod(0o666)
        host = self.host
        while not self.stopping.is_set():
            try:
                command = await prepare(
                    host.node, host.pod, self.spec, host.volumes, message_file, host.hosts
                )
                return None if self.stopping.is_set() else (command, folder)
            except UnmappedImage as error:
                self._cannot("ErrImageNeverPull", str(error))
                await self.stopping.wait()  # the table does not change while we run
            except (ConfigError, VolumeError, OSError) as error:
                self._cannot("CreateContainerConfigError", str(error))
                await self._pause(_CONFIG_RETRY)
        return None

    def _cannot(self, reason: str, message: str) -> None:
        waiting = self.record.state.get("waiting") or {}
        if (waiting.get("reason"), waiting.get("message")) != (reason, message):
            self.host.event("Failed", f"Error: {message}", warning=True)
            self.record.wait(reason, message)
            self.host.changed()

    async def _once(self, command: Command, folder: Path) -> Ended:
        """Run the container once, from start to end, and return how it ended."""
        name = self.spec["name"]
        number = self._number
        self._forget(number - _KEPT_RUNS)
        self.writer = LogFile(self.log_path(number))
        self._killed = ""
        process = self._process = ContainerProcess(command, folder, self.writer.feed)
        try:
            if await process.started:
                self.record.run(number, f"local://{self.host.pod['metadata']['uid']}/{name}/{number}")
                self.host.event("Started", f"Started container {name}")
                self._spawn(self._live(process))
                self.host.changed()
            ended = await asyncio.shield(process.ended)
        except asyncio.CancelledError:
            await process.kill()
            raise
        finally:
            self._cancel_tasks()
            self.writer.close()
        self._record_end(ended, folder)
        return ended

    def _record_end(self, ended: Ended, folder: Path) -> None:
        if ended.error:
            self.record.begin(self._number)
            self.host.event("Failed", f"Error: failed to start container: {ended.error}", warning=True)
            self.record.end(128, 0, "StartError", ended.error)
            return
        reason = "Completed" if ended.exit_code == 0 else "Error"
        message = _tail(folder / "termination-log", _MESSAGE_BYTES)
        if (
            not message
            and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
            and ended.exit_code
        ):
            message = last_output(self.log_path(self._number), _FALLBACK_LINES, _FALLBACK_BYTES)
        self.record.end(ended.exit_code, ended.signal, reason, message)

    # While it runs

    async def _live(self, process: ContainerProcess) -> None:
        """Run the postStart hook, then the startup probe; readiness and liveness probes follow it."""
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook:
            try:
                await carry_out(hook, self.spec, self.host.pod_ip, process, self.host.grace_seconds + 1)
            except HandlerFailed as error:
                self.host.event("FailedPostStartHook", f"PostStartHook failed: {error}", warning=True)
                self._spawn(self._kill(process, self.host.grace_seconds, "FailedPostStartHook"))
                return
        if spec := self.spec.get("startupProbe"):
            await self._probe(process, "Startup", spec, lambda ok: self._startup(process, spec, ok))
        else:
            self._is_started(process)

    def _startup(self, process: ContainerProcess, spec: Object, ok: bool) -> bool:
        if ok:
            self._is_started(process)
        else:
            self._probe_kill(process, "Startup", spec)
        return False

    def _is_started(self, process: ContainerProcess) -> None:
        self.record.started = True
        self.usable.set()
        if spec := self.spec.get("readinessProbe"):
            self._spawn(self._probe(process, "Readiness", spec, self._readiness))
        else:
            self.record.ready = self.record.kind != INIT
        if spec := self.spec.get("livenessProbe"):
            self._spawn(self._probe(process, "Liveness", spec, lambda ok: self._liveness(process, spec, ok)))
        self.host.changed()

    def _readiness(self, ok: bool) -> bool:
        if self.record.ready != ok:
            self.record.ready = ok
            self.host.changed()
        return True

    def _liveness(self, process: ContainerProcess, spec: Object, ok: bool) -> bool:
        if not ok:
            self._probe_kill(process, "Liveness", spec)
        return ok

    def _probe_kill(self, process: ContainerProcess, kind: str, spec: Object) -> None:
        seconds = spec.get("terminationGracePeriodSeconds")
        grace = self.host.grace_seconds if seconds is None else float(seconds)
        self._spawn(self._kill(process, grace, f"{kind} probe failed"))

    async def _probe(self, process: ContainerProcess, kind: str, spec: Object, on_change: Any) -> None:
        def failed(message: str) -> None:
            if not self.stopping.is_set():
                self.host.event("Unhealthy", f"{kind} probe failed: {message}", warning=True)

        await Probe(spec).run(self.spec, self.host.pod_ip, process, on_change, failed)

    async def _kill(self, process: ContainerProcess, seconds: float, why: str) -> None:
        if not self._killed and not self.stopping.is_set():
            self._killed = why
            self.host.event("Killing", f"Container {self.spec['name']} failed: {why}, will be restarted")
            await self._terminate(process, Grace(seconds))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    # Stopping

    async def stop(self, grace: Grace) -> None:
        """Run the preStop hook, send the stop signal, and SIGKILL when the grace is over; no run follows.

        A second call does no harm.
        """
        self.stopping.set()
        process = self._process
        if process is not None and not process.ended.done():
            self.host.event("Killing", f"Stopping container {self.spec['name']}")
            await self._terminate(process, grace)
        if self._begun:
            await self.finished.wait()

    async def _terminate(self, process: ContainerProcess, grace: Grace) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if hook and not grace.expired.is_set() and process.started.done():
            task = asyncio.ensure_future(
                carry_out(hook, self.spec, self.host.pod_ip, process, grace.left or 1.0)
            )
            await first_of(task, process.ended, grace.expired)
            if not task.done():
                task.cancel()
            elif not task.cancelled() and (error := task.exception()) is not None:
                self.host.event("FailedPreStopHook", f"PreStopHook failed: {error}", warning=True)
        if not grace.expired.is_set():
            name = (self.spec.get("lifecycle") or {}).get("stopSignal") or "SIGTERM"
            process.signal(signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGTERM)
            await first_of(process.ended, grace.expired)
        if not process.ended.done():
            await process.kill()

    # Logs

    def _forget(self, run: int) -> None:
        """Remove what an old run has left."""
        log_path = self.log_path(run)
        for path in (log_path, Path(f"{log_path}.1")):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._folder / str(run), ignore_errors=True)

    def log_path(self, run: int) -> Path:
        """Return the log of one run, by its number of restarts."""
        return self._folder / f"{run}.log"

    @property
    def process(self) -> ContainerProcess | None:
        """Its process, while it runs."""
        return self._process if self._process is not None and not self._process.ended.done() else None

    @property
    def is_main(self) -> bool:
        return self.record.kind == MAIN


def _tail(path: Path, limit: int) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
