"""Events of a pod are listed only while it does not start, and seldom."""

from __future__ import annotations

import asyncio
from typing import Any

from controller.kube.errors import Unavailable
from controller.kube.resources import EVENTS, Resource
from controller.operator.state.event_looks import FIRST, FORGOTTEN, MOST
from controller.operator.state.pod_starts import PodStarts

MOUNT = {"reason": "FailedMount", "message": "no", "lastTimestamp": "2026-11-27T00:00:00Z"}


def pod(uid: str = "u", phase: str = "Pending") -> dict[str, Any]:
    metadata = {"name": f"run-{uid}", "namespace": "ns", "uid": uid}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase}}


class World:
    def __init__(self) -> None:
        self.now, self.broken = 1000.0, False
        self.asked: list[str] = []
        self.touched: list[str] = []
        self.starts = PodStarts(self, self.touched.append, lambda: self.now)  # type: ignore[arg-type]

    async def list(self, resource: Resource, namespace: str, *, fields: str) -> tuple[list[Any], str]:
        assert (resource, namespace) == (EVENTS, "ns")
        self.asked.append(fields)
        if self.broken:
            raise Unavailable(0, "ConnectionBroken", "no answer")
        return [MOUNT], "1"

    def wait(self, seconds: float) -> None:
        self.now += seconds
        asyncio.run(self.starts.look_due())


def test_what_holds_a_pod_up_is_found_once_told_once_and_looked_for_seldom() -> None:
    world = World()
    assert world.starts.of("ns/run", [pod()]) is None
    world.wait(FIRST - 0.1)
    assert world.asked == []
    world.wait(0.2)
    found = world.starts.of("ns/run", [pod()])
    assert found is not None
    assert (found.pod, found.waits) == ("run-u", "FailedMount")
    for _ in range(100):
        world.wait(MOST / 10)
        world.starts.of("ns/run", [pod()])
    assert world.touched == ["ns/run"]
    assert set(world.asked) == {"involvedObject.uid=u"}
    assert len(world.asked) < 20


def test_a_pod_that_started_or_is_another_one_or_gone_is_looked_at_no_more() -> None:
    world = World()
    world.starts.of("ns/run", [pod()])
    world.wait(FIRST)
    assert world.starts.of("ns/run", [pod("v")]) is None, "another pod in its place"
    assert world.starts.of("ns/run", [pod("v", "Running")]) is None
    world.starts.of("ns/gone", [pod("w")])
    asked = len(world.asked)
    world.wait(FORGOTTEN + 1.0)
    assert len(world.asked) == asked


def test_events_that_cannot_be_listed_hinder_nothing() -> None:
    world = World()
    world.broken = True
    world.starts.of("ns/run", [pod()])
    world.wait(FIRST)
    assert world.starts.of("ns/run", [pod()]) is None
    world.broken = False
    world.wait(2 * FIRST)
    assert world.starts.of("ns/run", [pod()]) is not None
