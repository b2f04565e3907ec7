"""One job as a pass sees it: the planner's three inputs, and the objects they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.frozen import dataclass
from controller.kube import wire
from controller.kube.cache import key_of
from controller.kube.packed import Stored
from controller.operator.state.compressed import Compressed
from controller.policy.job import Desired, JobRecord, Observed, ScrapeView
from controller.policy.types import JobKey

Object = Mapping[str, Any]
State = tuple[int, int]  # of a job: its revision (grows with what else `load` reads), its resourceVersion


class Unreadable(Exception):
    """An object that the job's plan needs could not be read; the message says which, and why."""


def sound(obj: Object) -> Object:
    """Return the object.

    Raises:
        Unreadable: it was put aside.
    """
    if why := wire.problem(obj):
        raise Unreadable(f"{obj['kind']} {key_of(obj)}: {why}")
    return obj


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """One job as a pass sees it: the planner's three inputs, and the objects they were made of.

    The objects as the cache holds them, so that to remember a job as it was loaded costs next to nothing.
    """

    key: JobKey
    stored: Stored
    pool: GPUPool | None
    desired: Desired
    observed: Observed
    record: JobRecord
    stored_child: Stored | None
    stored_pods: tuple[Stored, ...]
    revision: int = 0  # (`State`)
    stored_actor_pods: tuple[Stored, ...] = ()  # of its rollout actors that have an entry
    scraping: convert.Scraping | None = None  # None: its spec does not say how
    page: Compressed[ScrapeView] | None = None  # the last scrape, as the cluster state holds it

    @property
    def obj(self) -> Object:
        """The RLHFJob."""
        return self.stored.open()

    @property
    def child(self) -> Object | None:
        """Its workload."""
        return self.stored_child.open() if self.stored_child is not None else None

    @property
    def pods(self) -> tuple[Object, ...]:
        """The pods that hold GPUs in its name."""
        return tuple(pod.open() for pod in self.stored_pods)

    @property
    def uid(self) -> str:
        return self.desired.uid

    @property
    def state(self) -> State:
        """Return what it was when it was loaded (`ClusterState.state`)."""
        return self.revision, self.stored.version
