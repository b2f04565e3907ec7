"""Delegates, one file for each: how a workload is queued, started and suspended, by who decides when it runs.

Adapters are pure: objects as the API server sends them in, writes out. What a delegate means to the pool's
plan is a line of `policy.pool.delegates`. A fourth delegate is a word of `policy.types.Delegate`, that
line, and one file here: it has the word's name, in lower case, and its adapter as `ADAPTER`, an `Adapter`
and, if its jobs wait in a queue outside, an `ExternalQueue`.

May import: `controller.workloads`, `controller.kube`, `controller.api`, `controller.policy` (contract "Arrows
run one way").
Tests: tests/delegates, tests/kueue.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from controller.api.gpupool import GPUPool
from controller.delegates.base import Adapter, ExternalQueue, Known, NotYet, Placement, Write
from controller.policy.pool import DELEGATIONS
from controller.policy.types import Delegate

__all__ = [
    "ADAPTERS",
    "EXTERNAL_QUEUES",
    "Adapter",
    "ExternalQueue",
    "Known",
    "NotYet",
    "Placement",
    "Write",
    "of_pool",
    "of_workload",
    "queue_of_pool",
    "queue_of_workload",
]


def named(word: str) -> Adapter:
    """Return the adapter in the file that a delegate's word names."""
    adapter: Adapter = import_module(f"{__name__}.{word.lower()}").ADAPTER
    return adapter


# In the order of the plan's lines.
ADAPTERS: Mapping[Delegate, Adapter] = {delegate: named(delegate) for delegate in DELEGATIONS}
EXTERNAL_QUEUES: Mapping[Delegate, ExternalQueue] = {
    delegate: adapter for delegate, adapter in ADAPTERS.items() if isinstance(adapter, ExternalQueue)
}


def of_pool(pool: GPUPool | None) -> Adapter:
    """Return the adapter of a pool's delegate; of a pool that is not there, the built-in one."""
    return ADAPTERS[Delegate.BUILTIN if pool is None else pool.spec.delegate]


def of_workload(workload: Mapping[str, Any]) -> Adapter:
    """Return the adapter by which a workload can be started and suspended: it may be of a time when its
    pool had another delegate."""
    return next((a for a in ADAPTERS.values() if a.manages(workload)), ADAPTERS[Delegate.BUILTIN])


def queue_of_pool(pool: GPUPool | None) -> ExternalQueue | None:
    """Return the external queue that a pool delegates to; None: it delegates to none."""
    return EXTERNAL_QUEUES.get(of_pool(pool).delegate)


def queue_of_workload(workload: Mapping[str, Any]) -> ExternalQueue | None:
    """Return the external queue that a workload waits in; None: in none."""
    return EXTERNAL_QUEUES.get(of_workload(workload).delegate)
