"""Kubernetes Events with a bound: repeats are folded into one object, a flood is cut off and counted.

A recorder never fails its caller: an Event is a courtesy, and a pass must not be repeated for one.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.api.values import timestamp
from controller.kube.client import Api
from controller.kube.errors import AlreadyExists, ApiError, NotFound
from controller.kube.resources import EVENTS

MAX_MESSAGE = 1024  # characters: what the API accepts
COMPONENT = "evalstop"


@dataclass(slots=True)
class _Series:
    count: int
    posted_at: float
    created: bool = False


class Recorder:
    """Posts Events about objects.

    An Event is identified by (object uid, type, reason, message); its name is a hash of these, so that the
    same fact told again, also after a restart of the operator, counts up one object. A repeat within
    ``quiet`` seconds is only counted. Each object may have ``burst`` distinct Events and earns another one
    every ``refill`` seconds; what is over is dropped and told to ``dropped``. ``component`` and ``host`` are
    the source that each Event names.
    """

    def __init__(
        self,
        api: Api,
        instance: str,
        clock: Callable[[], float],
        *,
        component: str = COMPONENT,
        host: str = "",
        quiet: float = 300.0,
        burst: int = 25,
        refill: float = 60.0,
        remembered: int = 4096,
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._api = api
        self._instance = instance
        self._component = component
        self._source = {"component": component, **({"host": host} if host else {})}
        self._clock = clock
        self._quiet, self._burst, self._refill, self._remembered = quiet, burst, refill, remembered
        self._dropped = dropped
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._budget: OrderedDict[str, tuple[float, float]] = OrderedDict()  # uid -> (tokens, at)

    async def post(
        self, about: Mapping[str, Any], reason: str, message: str, *, warning: bool = False
    ) -> bool:
        """Tell of ``about`` (a whole object). Returns whether an API call was made and taken."""
        now = self._clock()
        metadata = about["metadata"]
        text = _clean(message)
        kind = "Warning" if warning else "Normal"
        name = _name(metadata, kind, reason, text)
        series = self._series.get(name)
        if series is not None and now - series.posted_at < self._quiet:
            series.count += 1
            return False
        if series is None and not self._take(metadata["uid"], now):
            self._dropped(reason)
            return False
        if series is None:
            series = self._series[name] = _Series(0, now)
        self._series.move_to_end(name)
        while len(self._series) > self._remembered:
            self._series.popitem(last=False)
        series.count += 1
        series.posted_at = now
        try:
            await self._write(about, name, kind, reason, text, series, now)
        except ApiError:
            self._dropped(reason)
            return False
        return True

    def _take(self, uid: str, now: float) -> bool:
        tokens, at = self._budget.get(uid, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - at) / self._refill)
        enough = tokens >= 1.0
        self._budget[uid] = (tokens - 1.0 if enough else tokens, now)
        self._budget.move_to_end(uid)
        while len(self._budget) > self._remembered:
            self._budget.popitem(last=False)
        return enough

    async def _write(
        self,
        about: Mapping[str, Any],
        name: str,
        kind: str,
        reason: str,
        message: str,
        series: _Series,
        now: float,
    ) -> None:
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"  # where Events of cluster-scoped objects go
        stamp = timestamp(int(now))
        if not series.created:
            body = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "type": kind,
                "reason": reason,
                "message": message,
                "involvedObject": {
                    "apiVersion": about["apiVersion"],
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    **({"namespace": metadata["namespace"]} if metadata.get("namespace") else {}),
                },
                "source": self._source,
                "reportingComponent": self._component,
                "reportingInstance": self._instance,
                "count": series.count,
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
            }
            try:
                await self._api.create(EVENTS, body)
                series.created = True
                return
            except AlreadyExists:  # told before a restart, or the answer to an earlier create was lost
                series.created = True
                series.count += 1
        patch = {"count": series.count, "lastTimestamp": stamp}
        try:
            await self._api.merge_patch(EVENTS, name, patch, namespace)
        except NotFound:  # Events expire after an hour: the next telling makes a new one
            series.created = False


def _name(metadata: Mapping[str, Any], kind: str, reason: str, message: str) -> str:
    facts = "\0".join((metadata["uid"], kind, reason, message))
    return f"{metadata['name'][:40]}.{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def _clean(message: str) -> str:
    """Return one line without control characters (a trainer's text may end up here), at most what the API
    takes."""
    line = "".join(c if c.isprintable() else " " for c in message)
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
