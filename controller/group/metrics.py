"""A member's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from controller.gauges import ProcessMetrics

if TYPE_CHECKING:
    from controller.group.coordination import Coordination
    from controller.group.supervisor import Supervisor


class GroupMetrics(ProcessMetrics):
    """``supervisor`` and ``coordination`` are set once they are there; until then nothing is told."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.supervisor: Supervisor | None = None
        self.coordination: Coordination | None = None
        self.gauge("evalstop_group_host_bytes", "Bytes of states in this member's host memory.", self._host)
        self.gauge(
            "evalstop_group_workers", "Worker processes of this member, at work or asleep.", self._workers
        )
        self.gauge(
            "evalstop_group_device_waits", "1: this member waits until its device is free.", self._waits
        )
        self.counter("evalstop_group_worker_kills", "Workers that the supervisor killed.", self._kills)
        self.counter("evalstop_group_turns", "Turns, by how they ended.", self._turns, "end")
        self.counter("evalstop_group_calls", "Calls of functions.", self._calls)
        self.counter("evalstop_group_switches", "Turns for which a state was loaded.", self._switches)
        self.gauge("evalstop_group_waiting", "Residents that wait for a turn.", self._waiting)
        self.gauge("evalstop_group_residents", "Residents.", self._residents)
        self.gauge(
            "evalstop_group_members_connected", "Members that are connected to member 0.", self._connected
        )

    def _host(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.supervisor is None else [((), float(self.supervisor.memory.used()))]

    def _workers(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.supervisor is None else [((), float(len(self.supervisor.workers)))]

    def _waits(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.supervisor is None else [((), float(self.supervisor.state.leaving))]

    def _kills(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.supervisor is None else [((), float(self.supervisor.kills))]

    def _turns(self) -> Iterable[tuple[tuple[str, ...], float]]:
        if self.coordination is None:
            return []
        account = self.coordination.account
        released = sum(record.released for record in account.records.values())
        return [(("Released",), float(released)), (("Lost",), float(account.expired))]

    def _calls(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.coordination is None else [((), float(self.coordination.account.calls))]

    def _switches(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.coordination is None else [((), float(self.coordination.account.switches))]

    def _waiting(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.coordination is None else [((), float(len(self.coordination.state.waiting)))]

    def _residents(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [] if self.coordination is None else [((), float(len(self.coordination.state.versions)))]

    def _connected(self) -> Iterable[tuple[tuple[str, ...], float]]:
        if self.coordination is None:
            return []
        return [((), 1.0 + sum(link.connected for link in self.coordination.links.values()))]
