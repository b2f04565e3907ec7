"""Specs of jobs and pools as they were read.

Each is validated once, and again when it, or what it rests on, has changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from controller import workloads
from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJob
from controller.kube.cache import Cache, key_of
from controller.kube.resources import GPUPOOLS
from controller.operator.state.ownership import generation, pool_of
from controller.policy.job import Desired
from controller.policy.types import JobKey, Mode, Problem
from controller.workloads.group_jobs import family_problem

Object = Mapping[str, Any]
T = TypeVar("T", bound=Hashable)


class ReadSpec(NamedTuple):
    """A spec as it was read, and ``stamp``: what it was read from."""

    stamp: tuple[Any, ...]
    desired: Desired
    scraping: convert.Scraping | None


class Specs:
    """Specs of all jobs and pools in the cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pools: dict[str, tuple[tuple[Any, ...], GPUPool | Problem]] = {}
        self._caps: dict[str, Mode] = {}  # by pool: how far it lets the operator go, also once it is gone
        self._specs: dict[JobKey, ReadSpec] = {}

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone."""
        self._specs.pop(key, None)

    def pools(self) -> list[GPUPool]:
        """Pools that can be used, oldest first."""
        objects = sorted(
            self._cache.values(GPUPOOLS),
            key=lambda o: (o["metadata"].get("creationTimestamp", ""), o["metadata"]["name"]),
        )
        parsed = (self.pool(o["metadata"]["name"]) for o in objects)
        return [p for p in parsed if isinstance(p, GPUPool)]

    def pool(self, name: str) -> GPUPool | Problem | None:
        """Return the pool; what is wrong with it; None if there is none."""
        obj = self._cache.get(GPUPOOLS, name)
        if obj is None:
            self._pools.pop(name, None)
            return None
        if (cap := convert.mode_cap(obj)) is not None:
            self._caps[name] = cap
        stamp = (obj["metadata"]["uid"], generation(obj))
        known = self._pools.get(name)
        if known is None or known[0] != stamp:
            known = self._pools[name] = (stamp, _usable(convert.parse_pool(obj)))
        return known[1]

    def job(self, obj: Object, pool: GPUPool | Problem | None) -> ReadSpec:
        """Return the spec of an RLHFJob. ``pool``: its own, as `pool` returns it."""
        key, name = key_of(obj), pool_of(obj)
        # Validating a spec costs as much as all the rest of a load and its plan.
        stamp = (
            obj["metadata"]["uid"],
            generation(obj),
            obj["metadata"].get("deletionTimestamp"),
            self._pools[name][0] if isinstance(pool, GPUPool) else pool,
            cap := self._caps.get(name),
            there := self._pool_names() if pool is None else (),
        )
        known = self._specs.get(key)
        if known is None or known.stamp != stamp:
            template = ((obj.get("spec") or {}).get("workload") or {}).get("template") or {}
            job = convert.parse_job(obj)
            read = convert.desired(obj, pool, cap, there, job)
            read = replace(
                read,
                key=key,
                note=workloads.expiry_note(template),
                # Thousands of these are kept, and most jobs' are equal.
                metric=_shared(read.metric),
                scale=_shared(read.scale),
                gang_timeout=_shared(read.gang_timeout),
                preempt_grace=_shared(read.preempt_grace),
                scrape_interval=_shared(read.scrape_interval),
                first_eval=_shared(read.first_eval),
                address_hint=workloads.address_hint(obj),
                folder_hint=workloads.folder_hint(obj),
            )
            if read.problem is None:
                read = replace(read, problem=workloads.template_shape_problem(obj))
            scraping = _shared(convert.scraping(job)) if isinstance(job, RLHFJob) else None
            known = self._specs[key] = ReadSpec(stamp, read, scraping)
        return known

    def _pool_names(self) -> tuple[str, ...]:
        return tuple(sorted(str(pool["metadata"]["name"]) for pool in self._cache.values(GPUPOOLS)))


def _usable(pool: GPUPool | Problem) -> GPUPool | Problem:
    """Return the pool, or what is wrong with one of its families of workers."""
    for family in pool.spec.sharing.families if isinstance(pool, GPUPool) and pool.spec.sharing else ():
        template = family.template.model_dump()
        problem = family_problem(family.name, template, family.gpus_per_replica, family.host_bytes)
        if problem is not None:
            return problem
    return pool


@lru_cache(maxsize=1024, typed=True)
def _shared(value: T) -> T:
    """Return an equal value that others have, too."""
    return value
