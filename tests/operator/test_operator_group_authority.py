"""What a group's pods trust the step API by: written once, and again when it is another authority."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from controller.kube.cache import Cache
from controller.kube.resources import CONFIGMAPS
from controller.operator.reconcile.groups import GroupReconciler
from tests.support import group_scene as scene


class Api:
    """Answers as the API server would, and counts writes."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.writes: list[str] = []

    async def create(self, resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        self.writes.append("create")
        metadata = {**obj["metadata"], "uid": "uid-of-it", "resourceVersion": "1"}
        self.objects[metadata["name"]] = made = {**obj, "metadata": metadata}
        return made

    async def merge_patch(
        self, resource: Any, name: str, patch: dict[str, Any], *_: Any, **__: Any
    ) -> dict[str, Any]:
        self.writes.append("patch")
        known = self.objects[name]
        version = str(int(known["metadata"]["resourceVersion"]) + 1)
        self.objects[name] = known | patch | {"metadata": known["metadata"] | {"resourceVersion": version}}
        return dict(self.objects[name])


def test_it_is_written_when_it_is_news_and_by_no_other_pass() -> None:
    api, cache, group = Api(), Cache(), scene.group(scene.A, scene.B)
    steps = SimpleNamespace(urls=["https://op:9444"], ca="one")
    given: list[Any] = [api, cache, SimpleNamespace(steps=steps), None, None, None, lambda: 0.0]
    reconciler = GroupReconciler(*given)

    def passes() -> list[str]:
        before = len(api.writes)
        for _ in range(3):
            asyncio.run(reconciler.write_authority(group))
        return api.writes[before:]

    assert passes() == ["create"]
    steps.ca = "two"
    assert passes() == ["patch"]
    (written,) = api.objects.values()
    cache.put(CONFIGMAPS, written)  # as the watch brings it
    assert passes() == []
    assert list(written["data"].values()) == ["two"]
