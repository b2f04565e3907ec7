"""The evals of a pool's runs, read from their statuses once per change, for rules that compare peers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.api import convert
from controller.kube.cache import Cache
from controller.kube.resources import RLHFJOBS
from controller.policy.job import PeerCurve
from controller.policy.types import JobKey


class _Read(NamedTuple):
    version: tuple[str, str]  # uid and resourceVersion
    evaluator: str
    curve: PeerCurve | None


class PeerCurves:
    """Reads curves from the cache; each is kept until its RLHFJob changes."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: dict[JobKey, _Read] = {}

    def of(self, keys: Iterable[JobKey], evaluator: str) -> list[PeerCurve]:
        """Curves of those of these jobs that have evals of this version of the evaluator ("": unnamed)."""
        reads = (self._read(key) for key in keys)
        return [r.curve for r in reads if r is not None and r.curve is not None and r.evaluator == evaluator]

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone."""
        self._known.pop(key, None)

    def _read(self, key: JobKey) -> _Read | None:
        obj = self._cache.get(RLHFJOBS, key)
        if obj is None:
            return None
        version = (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
        known = self._known.get(key)
        if known is None or known.version != version:
            try:
                record = convert.record(obj.get("status"))
                known = _Read(version, record.evaluator, PeerCurve.of(record))
            except convert.StatusError:
                known = _Read(version, "", None)  # left alone, and no peer of anybody
            self._known[key] = known
        return known
