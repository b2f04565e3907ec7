"""Nobody queues: every job starts at once, and plain kube-scheduler is left to find its pods a place.

Workloads are started and suspended as under `Builtin`; that nobody waits and no node is planned is the pool's
plan's part (`controller.policy.pool.delegates`).
"""

from __future__ import annotations

from typing import ClassVar

from controller.delegates.base import Adapter, Object
from controller.delegates.builtin import Builtin
from controller.policy.types import Delegate


class Nobody(Builtin):
    """Jobs wait for nothing."""

    delegate: ClassVar[Delegate] = Delegate.NONE

    def manages(self, workload: Object) -> bool:
        """Return False: no external queue has any workload here; `Builtin` does the same."""
        return False


ADAPTER: Adapter = Nobody()
