"""Who decides when a pool's jobs run, one file for each: how a workload is lined up, started and put out.

Adapters are pure: objects as the API server sends them in, writes out. What a delegate means to the pool's
plan is a line of `controller.policy.delegation`. A fourth delegate is a word of `policy.types.Delegate`, that
line, and one file here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.api.gpupool import GPUPool
from controller.delegates.base import Adapter, Known, NotYet, Placement, Write
from controller.delegates.builtin import Builtin
from controller.delegates.kueue import Kueue
from controller.delegates.none import Nobody
from controller.policy.types import Delegate

__all__ = ["ADAPTERS", "Adapter", "Known", "NotYet", "Placement", "Write", "of_pool", "of_workload"]

ADAPTERS: Mapping[Delegate, Adapter] = {a.delegate: a for a in (Builtin(), Nobody(), Kueue())}


def of_pool(pool: GPUPool | None) -> Adapter:
    """The adapter of a pool's delegate; of a pool that is not there, the built-in one."""
    return ADAPTERS[Delegate.BUILTIN if pool is None else pool.spec.delegate]


def of_workload(workload: Mapping[str, Any]) -> Adapter:
    """The adapter by which a workload can be started and put out: it may be of a time when its pool had
    another delegate."""
    return next((a for a in ADAPTERS.values() if a.manages(workload)), ADAPTERS[Delegate.BUILTIN])
