"""Helpers for tests of the node agent: short ways to make a pod, wait for it and ask about it."""

import json
import time
from collections.abc import Callable
from typing import Any

from controller.kube.errors import ApiError
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane
from tests.support.agent_fixture import SHELL_IMAGE

Object = dict[str, Any]


def container(script: str = "", name: str = "main", **fields: Any) -> Object:
    """A container of the test shell image that runs `script`."""
    command = {"command": ["sh", "-c", script]} if script else {}
    return {"name": name, "image": SHELL_IMAGE, **command, **fields}


class Pods:
    """The pods of one namespace."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane = plane
        self.client = plane.client()
        self.namespace = namespace
        self.root = f"/api/v1/namespaces/{namespace}"

    def create(self, name: str, *containers: Object, restart: str = "Never", **spec: Any) -> Object:
        body = {"restartPolicy": restart, "terminationGracePeriodSeconds": 2, **spec}
        return self.make("pods", name, {"spec": {**body, "containers": list(containers)}})

    def make(self, resource: str, name: str, body: Object) -> Object:
        made: Object = self.client.post(f"{self.root}/{resource}", {"metadata": {"name": name}, **body})
        return made

    def get(self, name: str) -> Object | None:
        try:
            found: Object = self.client.get(f"{self.root}/pods/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def wait(self, name: str, wanted: Callable[[Object], Any], seconds: float = 45.0) -> Object:
        """The pod as soon as `wanted` holds for it."""
        deadline = time.monotonic() + seconds
        while True:
            pod = self.get(name)
            if pod is not None and wanted(pod):
                return pod
            assert time.monotonic() < deadline, (
                f"after {seconds} s: {json.dumps((pod or {}).get('status'), indent=1)}"
            )
            time.sleep(0.05)

    def wait_phase(self, name: str, *phases: str, seconds: float = 45.0) -> Object:
        return self.wait(name, lambda pod: pod["status"]["phase"] in phases, seconds)

    def wait_gone(self, name: str, seconds: float = 45.0) -> None:
        deadline = time.monotonic() + seconds
        while self.get(name) is not None:
            assert time.monotonic() < deadline, f"pod {name} still there after {seconds} s: {self.get(name)}"
            time.sleep(0.05)

    def delete(self, name: str, grace: int | None = None) -> None:
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        self.client.delete(f"{self.root}/pods/{name}{query}")

    def logs(self, name: str, *arguments: str) -> str:
        return self.plane.kubectl("logs", "-n", self.namespace, name, *arguments)

    def wait_words(self, name: str, count: int = 1, seconds: float = 45.0) -> list[str]:
        """What a pod has said, once that is so many words: it runs before it has said anything, and an agent
        that came back does not know all its pods at once."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                said = self.logs(name)
                if len(words := said.split()) >= count:
                    return words
            except PlaneError as error:
                said = str(error)
            assert time.monotonic() < deadline, f"after {seconds} s {name} has said only {said!r}"
            time.sleep(0.05)

    def output(self, name: str, seconds: float = 45.0) -> str:
        """What a pod that ends by itself has said."""
        pod = self.wait_phase(name, "Succeeded", "Failed", seconds=seconds)
        text = self.logs(name)
        assert pod["status"]["phase"] == "Succeeded", f"{json.dumps(pod['status'], indent=1)}\n{text}"
        return text

    def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of the events about a pod."""
        listed = self.client.get(f"{self.root}/events?fieldSelector=involvedObject.name={name}")
        return [(event["reason"], event["message"]) for event in listed["items"]]

    def wait_event(self, name: str, reason: str, seconds: float = 30.0) -> str:
        """The message of the first event of that reason."""
        deadline = time.monotonic() + seconds
        while True:
            found = [message for r, message in self.events(name) if r == reason]
            if found:
                return found[0]
            assert time.monotonic() < deadline, f"no event {reason}: {self.events(name)}"
            time.sleep(0.1)


def state(pod: Object, name: str = "main") -> Object:
    """The ContainerStatus of a container, init containers included."""
    status = pod["status"]
    listed = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found: Object = next((s for s in listed if s["name"] == name), {})
    return found


def ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or [])
