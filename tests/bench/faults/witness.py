"""Watches the cluster past the proxy: each version of each run's objects, and every GPU that a pod holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controller import names
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import JOBS, PODS, RLHFJOBS, Resource

Object = Mapping[str, Any]
_ALL = (RLHFJOBS, JOBS, PODS)


@dataclass(frozen=True, slots=True)
class Seen:
    at: float  # s since the epoch
    kind: str
    name: str
    deleted: bool
    obj: Object


class Witness:
    """``twice``: what it saw of GPUs that two pods held, in words; ``promised``: of more gangs admitted
    than fit, some of whose pods then wait."""

    def __init__(self, api: Api, gpus: Mapping[str, int]) -> None:
        self._api, self._gpus = api, gpus
        self._runs: dict[str, list[Seen]] = defaultdict(list)
        self._pods: dict[str, tuple[str, str, int]] = {}  # uid -> (name, node, GPUs), bound and not terminal
        # Child Jobs that are not suspended -> GPUs of a member, members; and their pods that succeeded.
        self._children: dict[str, tuple[int, int]] = {}
        self._succeeded: dict[str, set[str]] = defaultdict(set)
        self.twice: list[str] = []
        self.promised: list[str] = []
        self.changed = asyncio.Event()

    async def watch(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource in _ALL:
                group.create_task(self._follow(resource))

    async def _follow(self, resource: Resource) -> None:
        everything = replace(resource, selector="")
        while True:
            with contextlib.suppress(ApiError):
                found, version = await self._api.list(everything)
                for obj in found:
                    self._see(resource, "ADDED", obj)
                self._gone_meanwhile(resource, {obj["metadata"]["uid"] for obj in found})
                async for event in self._api.watch(everything, version):
                    if event["type"] != "BOOKMARK":
                        self._see(resource, event["type"], event["object"])
            await asyncio.sleep(0.2)

    def _gone_meanwhile(self, resource: Resource, there: set[str]) -> None:
        """Between two watches objects go without a word."""
        for seen in tuple(self._runs.values()):
            last = {s.name: s for s in seen if s.kind == resource.kind}
            for one in last.values():
                if not one.deleted and one.obj["metadata"]["uid"] not in there:
                    self._see(resource, "DELETED", one.obj)

    def _see(self, resource: Resource, type_: str, obj: Object) -> None:
        deleted = type_ == "DELETED"
        metadata = obj["metadata"]
        if resource is PODS:
            self._pod(obj, deleted)
        run = (
            metadata["name"] if resource is RLHFJOBS else (metadata.get("labels") or {}).get(names.LABEL_JOB)
        )
        if run is None:
            return
        self._runs[run].append(Seen(time.time(), resource.kind, metadata["name"], deleted, obj))
        member = (metadata.get("labels") or {}).get(names.LABEL_COMPONENT) == "workload"
        if resource is PODS and member and (obj.get("status") or {}).get("phase") == "Succeeded":
            self._succeeded[run].add(metadata["uid"])
        if resource is JOBS:
            self._child(run, obj, deleted)
        self.changed.set()
        self.changed = asyncio.Event()

    # -- GPUs --------------------------------------------------------------------------------------------

    def _pod(self, pod: Object, deleted: bool) -> None:
        uid = pod["metadata"]["uid"]
        spec, phase = pod["spec"], (pod.get("status") or {}).get("phase")
        count = sum(
            int(((c.get("resources") or {}).get("limits") or {}).get(names.GPU_RESOURCE, 0))
            for c in spec["containers"]
        )
        node = spec.get("nodeName")
        if deleted or phase in ("Succeeded", "Failed") or not node or not count:
            self._pods.pop(uid, None)
            return
        fresh = uid not in self._pods
        self._pods[uid] = (pod["metadata"]["name"], node, count)
        held = sum(n for _, where, n in self._pods.values() if where == node)
        if fresh and held > self._gpus.get(node, 0):
            who = ", ".join(f"{name} {n}" for name, where, n in self._pods.values() if where == node)
            self.twice.append(
                f"{time.time():.3f} {node} has {self._gpus.get(node, 0)} GPUs, bound are {held}: {who}"
            )

    def _child(self, run: str, child: Object, deleted: bool) -> None:
        """GPUs of children that may run: never more than there are."""
        labels = child["metadata"].get("labels") or {}
        if labels.get(names.LABEL_COMPONENT) == "access":
            return
        spec, status = child["spec"], child.get("status") or {}
        over = any(
            c["type"] in ("Complete", "Failed") and c["status"] == "True"
            for c in status.get("conditions") or ()
        )
        if deleted or over or spec.get("suspend"):
            self._children.pop(run, None)
            return
        limits = spec["template"]["spec"]["containers"][0]["resources"]["limits"]
        fresh = run not in self._children
        self._children[run] = (int(limits[names.GPU_RESOURCE]), int(spec["parallelism"]))
        if fresh and self._promised(self._children) > sum(self._gpus.values()):
            # The event of a pod that ended may still be on its way, by another stream.
            then = dict(self._children)
            asyncio.get_running_loop().call_later(2.0, self._look_again, then, time.time())

    def _promised(self, children: Mapping[str, tuple[int, int]]) -> int:
        """GPUs of these children's members that have not succeeded yet."""
        return sum(
            gpus * max(0, members - len(self._succeeded[run])) for run, (gpus, members) in children.items()
        )

    def _look_again(self, children: Mapping[str, tuple[int, int]], at: float) -> None:
        promised, there = self._promised(children), sum(self._gpus.values())
        if promised > there:
            self.promised.append(f"{at:.3f} {there} GPUs, promised are {promised}: {children}")

    # -- runs --------------------------------------------------------------------------------------------

    def of(self, run: str, kind: str) -> Iterator[Seen]:
        return (s for s in self._runs[run] if s.kind == kind)

    def newest(self, run: str) -> Object | None:
        """The RLHFJob as last seen; None: there is none."""
        found = None
        for seen in self.of(run, RLHFJOBS.kind):
            found = None if seen.deleted else seen.obj
        return found

    def suspended_at(self, run: str) -> float | None:
        """When the child's spec last said suspend after it had not; None: it runs, or never ran."""
        at, running = None, False
        for seen in self.of(run, JOBS.kind):
            if (seen.obj["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) == "access":
                continue
            if seen.obj["spec"].get("suspend"):
                at, running = (seen.at if running else at), False
            else:
                at, running = None, True
        return at

    def access_pods(self, run: str) -> list[str]:
        """Access Jobs of the run that are there and not over."""
        there: dict[str, bool] = {}
        for seen in self.of(run, JOBS.kind):
            if (seen.obj["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) != "access":
                continue
            status = seen.obj.get("status") or {}
            over = any(
                c["type"] in ("Complete", "Failed") and c["status"] == "True"
                for c in status.get("conditions") or ()
            )
            there[seen.name] = not (seen.deleted or over)
        return [name for name, is_there in there.items() if is_there]

    def write(self, run: str, path: Path) -> None:
        """Everything seen of a run, one JSON object a line."""
        with path.open("w") as file:
            for seen in self._runs[run]:
                line = {
                    "at": round(seen.at, 3),
                    "kind": seen.kind,
                    "name": seen.name,
                    "deleted": seen.deleted,
                }
                obj = {k: v for k, v in seen.obj.items() if k in ("spec", "status", "metadata")}
                obj["metadata"] = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
                file.write(json.dumps({**line, "obj": obj}) + "\n")

    def forget(self, run: str) -> None:
        self._runs.pop(run, None)
