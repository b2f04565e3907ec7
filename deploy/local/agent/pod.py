"""One pod on one node, from admission to its last trace."""

from __future__ import annotations

import asyncio
import logging
import shutil
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from controller.kube.client import Object
from controller.kube.errors import ApiError, Conflict, NotFound
from controller.kube.resources import PODS
from deploy.local.agent.container import Container
from deploy.local.agent.context import Node
from deploy.local.agent.events import now_text
from deploy.local.agent.fit import Refusal, ignored_settings
from deploy.local.agent.grace import Grace, first_of
from deploy.local.agent.projection import VolumeError
from deploy.local.agent.record import INIT, MAIN, SIDECAR, Record, kind_of
from deploy.local.agent.status import phase_of, pod_status
from deploy.local.agent.volumes import PodVolumes

log = logging.getLogger(__name__)

_TERMINAL = ("Succeeded", "Failed")
_VOLUME_RETRY = 0.5  # s, first pause; doubles to _VOLUME_RETRY_LONGEST
_VOLUME_RETRY_LONGEST = 8.0
_SETTLE = 0.02  # s, in which changes gather before the API is told


class End(Enum):
    """Reason why a pod's containers are stopped."""

    DELETED = "deleted"
    REMOVED = "gone"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


class PodWorker:
    """Runs one pod. `update` and `removed` tell it what the watch saw; `run` ends when the object is gone."""

    def __init__(self, node: Node, pod: Object, pod_ip: str, refusal: Refusal | None) -> None:
        self.node = node
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.pod_ip = pod_ip
        self.folder = node.folder / "pods" / self.uid
        self.volumes = PodVolumes(node, pod, self.folder / "volumes")
        self.hosts: Path | None = None
        self._refusal = refusal
        status = pod.get("status") or {}
        self._started = status.get("startTime") or now_text()
        self._reason, self._message = status.get("reason") or "", status.get("message") or ""
        self._phase_before = status.get("phase") or "Pending"
        spec = pod["spec"]
        listed = [(c, True) for c in spec.get("initContainers") or []] + [
            (c, False) for c in spec["containers"]
        ]
        self.records = [Record(c["name"], c["image"], kind_of(c, init)) for c, init in listed]
        self.containers = [
            Container(self, c, record) for (c, _), record in zip(listed, self.records, strict=True)
        ]
        self._specs = {c["name"]: c for c, _ in listed}
        if not spec.get("initContainers"):
            for record in self.records:
                record.wait("ContainerCreating")
        self._adopt(status)
        self._over = self._phase_before in _TERMINAL  # nothing will be started any more
        self._volumes_ready = False
        self._dirty = asyncio.Event()
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._grace: Grace | None = None
        self._removed = asyncio.Event()
        self._leaving = asyncio.Event()  # the agent is
        self._sent: Object | None = None
        self._sending = asyncio.Lock()  # an older status must not overtake a newer one
        self._runs: set[asyncio.Task[None]] = set()
        self.terminal = self._over  # holds nothing of the node's any more
        self._place_address()

    def _adopt(self, status: Object) -> None:
        former = {
            s["name"]: s
            for s in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        }
        for record in self.records:
            if record.name in former:
                record.adopt(former[record.name])

    def _place_address(self) -> None:
        """Write the addresses into our copy of the pod.

        The downward API reads them from there, before the server has them.
        """
        status = self.pod.setdefault("status", {})
        status.update(hostIP=self.node.ip, hostIPs=[{"ip": self.node.ip}])
        if self.pod_ip:
            status.update(podIP=self.pod_ip, podIPs=[{"ip": self.pod_ip}])

    # What the watch says

    def update(self, pod: Object) -> None:
        """Take in a newer version of the pod object."""
        self.pod = pod
        self._place_address()
        self.volumes.pod_changed(pod)
        self._dirty.set()
        if pod["metadata"].get("deletionTimestamp"):
            self._stop(End.DELETED, pod["metadata"].get("deletionGracePeriodSeconds"))

    def removed(self) -> None:
        """Kill at once whatever still runs: the pod object has vanished."""
        self._removed.set()
        self._stop(End.REMOVED, 0)

    def shut_down(self, seconds: float) -> None:
        """Stop the containers within ``seconds`` because the agent ends; no status is written."""
        self._leaving.set()
        self._stop(End.SHUTDOWN, min(seconds, self.grace_seconds))

    def _stop(self, why: End, seconds: float | None) -> None:
        wanted = self.grace_seconds if seconds is None else float(seconds)
        if self._grace is None:
            self._grace = Grace(wanted)
        else:
            self._grace.shorten(wanted)
        if not self._end.done():
            self._end.set_result(why)

    # For its containers

    @property
    def grace_seconds(self) -> float:
        seconds = self.pod["spec"].get("terminationGracePeriodSeconds")
        return 30.0 if seconds is None else float(seconds)

    def changed(self) -> None:
        self._dirty.set()

    def event(self, reason: str, message: str, warning: bool = False) -> None:
        self.node.events.post(self.pod, reason, message, warning)

    def container(self, name: str) -> Container | None:
        """Return a container by its name."""
        return next((c for c in self.containers if c.spec["name"] == name), None)

    # Life

    async def run(self) -> None:
        """From admission until the pod object is gone (or the agent leaves)."""
        reporter = asyncio.create_task(self._report(), name=f"status of {self.uid}")
        try:
            if not self._over:
                await self._live()
            await self._release()
            await self._send_until_known(final=True)
            await self._await_deletion()
            if self._removed.is_set():
                await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        finally:
            reporter.cancel()
            for task in self._runs:
                task.cancel()

    async def _live(self) -> None:
        if self._refusal is not None:
            self._reason, self._message = self._refusal
            self._over = True
            self.event(self._reason, self._message, warning=True)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._dirty.set()
        if ignored := ignored_settings(self.pod, self.node.changes_users):
            self.event(
                "SettingsIgnored", f"accepted without effect on this development node: {', '.join(ignored)}"
            )
        flow = asyncio.create_task(self._flow(), name=f"pod {self.uid}")
        deadline = self._arm_deadline()
        try:
            await first_of(flow, self._end)
            if flow.done():
                flow.result()
                self._over = True
        except Exception as error:
            log.exception("pod %s", self.pod["metadata"]["name"])
            self._reason, self._message = "NodeAgentError", f"{type(error).__name__}: {error}"
        finally:
            flow.cancel()
            if deadline is not None:
                deadline.cancel()
        await self._stop_containers()
        self._over = True

    def _arm_deadline(self) -> asyncio.TimerHandle | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return None

        def expire() -> None:
            if not self._end.done():
                self._reason = "DeadlineExceeded"
                self._message = "Pod was active on the node longer than the specified deadline"
                self.event("DeadlineExceeded", self._message)
                self._stop(End.DEADLINE, None)

        ran = datetime.now(UTC) - datetime.fromisoformat(self._started)
        return asyncio.get_running_loop().call_later(max(float(seconds) - ran.total_seconds(), 0.0), expire)

    async def _flow(self) -> None:
        """Volumes, init containers in their order, then all main containers until they are done."""
        await self._mount()
        self._write_hosts()
        self._volumes_ready = True
        for container in self.containers:
            match container.record.kind:
                case "init":
                    await self._finish(container)
                    if not container.record.succeeded:
                        return
                case "sidecar":
                    self._start(container)
                    await first_of(container.usable, container.finished)
        mains = [container for container in self.containers if container.is_main]
        for record in self.records:
            if record.kind == MAIN and record.state == {"waiting": {"reason": "PodInitializing"}}:
                record.wait("ContainerCreating")
        for container in mains:
            self._start(container)
        for container in mains:
            await container.finished.wait()

    async def _finish(self, container: Container) -> None:
        if not container.record.succeeded:
            self._start(container)
            await container.finished.wait()

    def _start(self, container: Container) -> None:
        task = asyncio.create_task(container.run(), name=f"{self.uid}/{container.spec['name']}")
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _mount(self) -> None:
        pause = _VOLUME_RETRY
        while True:
            try:
                await self.volumes.mount()
                return
            except VolumeError as error:
                reason = "FailedAttachVolume" if "Multi-Attach" in str(error) else "FailedMount"
                self.event(reason, str(error), warning=True)
                log.info("pod %s: %s", self.pod["metadata"]["name"], error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _VOLUME_RETRY_LONGEST)

    def _write_hosts(self) -> None:
        if self.pod["spec"].get("hostNetwork"):
            return
        spec = self.pod["spec"]
        name = spec.get("hostname") or self.pod["metadata"]["name"]
        lines = [
            "127.0.0.1\tlocalhost",
            "::1\tlocalhost ip6-localhost ip6-loopback",
            f"{self.pod_ip}\t{name}",
        ]
        lines += [f"{alias['ip']}\t{' '.join(alias['hostnames'])}" for alias in spec.get("hostAliases") or []]
        self.hosts = self.folder / "etc-hosts"
        self.hosts.write_text("\n".join(lines) + "\n")

    async def _stop_containers(self) -> None:
        """Stop main and init containers together, then the sidecars, the last started first."""
        grace = self._grace or Grace(self.grace_seconds)
        self._grace = grace
        for container in self.containers:
            if container.record.kind != SIDECAR:
                container.stopping.set()
        await asyncio.gather(*(c.stop(grace) for c in self.containers if c.record.kind != SIDECAR))
        for container in reversed(self.containers):
            if container.record.kind == SIDECAR:
                await container.stop(grace)

    async def _release(self) -> None:
        """Give back what the node lent, before the API hears that the pod is done."""
        self.volumes.stop()
        for record in self.records:
            if record.running or ("waiting" in record.state and record.last_state):
                if record.running:
                    record.lose()
                else:
                    self._show_last(record)
        if self._leaving.is_set():
            self.node.attachments.release(self.uid)
            return
        self.node.gpus.release(self.uid)
        await self.volumes.close()
        self.terminal = True

    @staticmethod
    def _show_last(record: Record) -> None:
        """Show the last run of a container that waited for its next one when the pod ended."""
        record.state, record.last_state = record.last_state, {}

    async def _await_deletion(self) -> None:
        """Wait until a pod that has ended is marked as deleted, and remove its object for good."""
        deleted = False
        while not (self._removed.is_set() or self._leaving.is_set()):
            self._dirty.clear()
            if self.pod["metadata"].get("deletionTimestamp") and not deleted:
                deleted = await self._delete()
            await first_of(self._removed, self._leaving, self._dirty)

    async def _delete(self) -> bool:
        """Remove the object (finalizers may still hold it); False when the API server did not answer."""
        metadata = self.pod["metadata"]
        for pause in (0.1, 0.3, 1.0, 3.0):
            if self._leaving.is_set():
                break
            try:
                await self.node.api.delete(PODS, metadata["name"], metadata["namespace"], self.uid, grace=0)
                return True
            except (NotFound, Conflict):
                return True
            except ApiError as error:
                log.warning("delete pod %s: %s", metadata["name"], error)
            await asyncio.sleep(pause)
        self._dirty.set()
        return False

    # Telling the API

    async def _report(self) -> None:
        """Patch the status whenever something has changed."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(_SETTLE)
            self._dirty.clear()
            try:
                await self._send_until_known()
            except Exception:  # a defect of ours: the next change is told all the same
                log.exception("status of pod %s", self.pod["metadata"]["name"])

    async def _send_until_known(self, final: bool = False) -> None:
        """Patch the status, again and again while the API server does not answer or somebody else writes the
        pod in between. A namesake in the pod's place is a conflict too: it lasts until the watch tells of it.

        Once nothing will be started any more, only the final status is sent: what the node lent the pod is
        given back before the API server hears that it is done.
        """
        pause = 0.1
        while not (self._removed.is_set() or self._leaving.is_set()):
            try:
                async with self._sending:
                    if self._over and not final:
                        return
                    await self._send()
                return
            except ApiError as error:
                if error.status in (404, 422):
                    log.warning("status of pod %s is given up: %s", self.pod["metadata"]["name"], error)
                    return
                log.warning("status of pod %s: %s", self.pod["metadata"]["name"], error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    async def _send(self) -> None:
        status = self.status()
        if status == self._sent:
            return
        metadata = self.pod["metadata"]
        answer = await self.node.api.merge_patch(
            PODS,
            metadata["name"],
            {"status": status},
            metadata["namespace"],
            subresource="status",
            uid=self.uid,
            by_keys=True,
        )
        self._sent = status
        self.pod["status"] = answer.get("status") or {}
        self._place_address()

    def status(self) -> Object:
        """Return the pod's status as it is now."""
        if self._phase_before in _TERMINAL:
            phase = self._phase_before
        elif self._refusal is not None or self._reason in ("DeadlineExceeded", "NodeAgentError"):
            phase = "Failed"
        else:
            # Sidecars are stopped before the end is told; until then the pod still runs.
            phase = phase_of(self.pod, self._specs, self.records, self._over)
            if not self._over and phase in _TERMINAL:
                phase = "Running" if all(r.kind != INIT or r.succeeded for r in self.records) else "Pending"
        return pod_status(
            self.pod,
            self.records,
            phase,
            self._volumes_ready,
            (self.pod_ip, self.node.ip),
            self._started,
            self._reason,
            self._message,
        )
