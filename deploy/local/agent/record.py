"""The record of one container: its runs, and its status as the API server is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controller.kube.client import Object
from deploy.local.agent.events import now_text

INIT, SIDECAR, MAIN = "init", "sidecar", "main"


@dataclass
class Record:
    """One container's state in the API's own terms (`state` and `last_state` are ContainerStates)."""

    name: str
    image: str
    kind: str
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last_state: Object = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def terminated(self) -> Object | None:
        """The terminated state, if that is where the container is now."""
        found: Object | None = self.state.get("terminated")
        return found

    @property
    def succeeded(self) -> bool:
        return self.terminated is not None and self.terminated["exitCode"] == 0

    def wait(self, reason: str, message: str = "") -> None:
        """Not running, and why; an end that went before becomes the last state."""
        if self.terminated is not None:
            self.last_state = self.state
        waiting = {"reason": reason, **({"message": message} if message else {})}
        self.state, self.ready, self.started = {"waiting": waiting}, False, False

    def run(self, number: int, container_id: str) -> None:
        """Record that the ``number``-th restart (0: the first run) has started."""
        self.begin(number)
        self.container_id = container_id
        self.state = {"running": {"startedAt": now_text()}}

    def begin(self, number: int) -> None:
        """From now on the state is the `number`-th restart's; an end that went before is the last state."""
        if self.terminated is not None:
            self.last_state = self.state
        self.restarts = number

    def end(self, exit_code: int, signal: int, reason: str, message: str) -> None:
        """Record the end of a run.

        ``reason`` is one of kubelet's: Completed, Error, StartError, ContainerStatusUnknown.
        """
        running = self.state.get("running") or {}
        terminated: Object = {
            "exitCode": exit_code,
            "reason": reason,
            "startedAt": running.get("startedAt", now_text()),
            "finishedAt": now_text(),
        }
        if self.container_id:
            terminated["containerID"] = self.container_id
        if signal:
            terminated["signal"] = signal
        if message:
            terminated["message"] = message
        self.state = {"terminated": terminated}
        self.ready = self.kind == INIT and exit_code == 0
        self.started = False

    def lose(self) -> None:
        """Record that a container may have run under an earlier agent, and that nobody knows how it ended."""
        message = "The container could not be located when the node agent started or the pod was terminated"
        self.end(137, 0, "ContainerStatusUnknown", message)

    def adopt(self, status: Object) -> None:
        """Go on from what the API knows (a former agent ran this container)."""
        self.restarts = int(status.get("restartCount") or 0)
        self.last_state = status.get("lastState") or {}
        self.container_id = status.get("containerID") or ""
        self.state = status.get("state") or self.state
        self.ready = bool(status.get("ready"))
        if self.running:
            self.lose()

    def status(self) -> Object:
        """Return the ContainerStatus."""
        found: dict[str, Any] = {
            "name": self.name,
            "image": self.image,
            "imageID": f"local://{self.image}" if self.container_id else "",
            "state": self.state,
            "lastState": self.last_state,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }
        if self.container_id:
            found["containerID"] = self.container_id
        return found


def kind_of(container: Object, init: bool) -> str:
    """Init containers that always restart are sidecars (native sidecars, on by default since 1.29)."""
    if not init:
        return MAIN
    return SIDECAR if container.get("restartPolicy") == "Always" else INIT
