"""Protocol of a delegate's adapter. It gives patches, to be sent in order, each idempotent.

Every delegate is an `Adapter`; one whose jobs wait in a queue outside is an `ExternalQueue` besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from controller.api.gpupool import GPUPool
from controller.kube.resources import Resource
from controller.policy.job import QueueView
from controller.policy.types import Delegate, Problem

Object = Mapping[str, Any]


class NotYet(Exception):
    """It cannot be done now, and nothing was: what it depends on is under way, or not read yet."""


class Write(NamedTuple):
    """A merge patch of an object, to be sent only at the version that was read."""

    resource: Resource
    obj: Object
    patch: Mapping[str, Any]
    subresource: str = ""


class Placement(NamedTuple):
    """Fields that an admission puts into the pods: all of it is gone again when the workload is suspended."""

    number: int  # of the admission
    pool: str
    node_selector: Mapping[str, str]


class Known(Protocol):
    """An external queue's own objects, as far as they are read."""

    def get(self, resource: Resource, key: str) -> Object | None:
        """Return an object by namespace/name, or by name; None: it is not there, or not read yet."""
        ...

    def values(self, resource: Resource) -> Iterable[Object]: ...

    def of_job(self, resource: Resource, job: str) -> Iterable[Object]:
        """Return those whose pods carry an RLHFJob's label in its namespace."""
        ...

    def listed(self, resource: Resource) -> bool:
        """Return whether all of that kind have been read."""
        ...

    def absent(self, resource: Resource) -> bool:
        """Return whether the API server has no such kind."""
        ...


class Adapter(Protocol):
    """One delegate: what every one of them does."""

    delegate: ClassVar[Delegate]

    def manages(self, workload: Object) -> bool:
        """Return whether a workload is its to start and suspend."""
        ...

    def problem(self, workload: Object, pool: GPUPool, queue: str, where: str) -> Problem | None:
        """Return what of a workload, or of a template (``where`` says which), this delegate cannot run."""
        ...

    def start(self, workload: Object, place: Placement, known: Known, now: float) -> Sequence[Write]:
        """Let a suspended workload run. An answer that was given already is not given again.

        Raises:
            NotYet: see there.
        """
        ...

    def stop(self, workload: Object, reason: str, again: bool, known: Known, now: float) -> Sequence[Write]:
        """Have a workload's pods end; ``again``: it may be queued anew at once.

        Raises:
            NotYet: see there.
        """
        ...


@runtime_checkable
class ExternalQueue(Adapter, Protocol):
    """A delegate whose jobs wait in a queue outside, with objects of its own."""

    resources: ClassVar[tuple[Resource, ...]]  # objects of its own that it must be shown

    def enqueue(self, child: dict[str, Any], queue: str) -> None:
        """Mark a child that is about to be made, so that it waits for its turn."""
        ...

    def view(self, workload: Object, known: Known) -> QueueView | None:
        """Return what the queue has on record of a workload; None: nothing."""
        ...

    def queue_problem(
        self, namespace: str, queue: str, gpus: int, pool: GPUPool, known: Known
    ) -> Problem | None:
        """Return why that queue cannot give a gang of so many GPUs its turn, whatever else happens."""
        ...

    def pool_problem(self, pool: GPUPool, known: Known) -> Problem | None:
        """Return why it can serve no job of the pool."""
        ...

    def resume(self, workload: Object, known: Known) -> Sequence[Write]:
        """Queue again what `stop` had put out."""
        ...

    def refuse(self, workload: Object, message: str, known: Known, now: float) -> Sequence[Write]:
        """Give back quota for which there are no nodes."""
        ...

    def sync(
        self, pools: Iterable[GPUPool], changed: Iterable[Object], known: Known, now: float
    ) -> Sequence[Write]:
        """Return what is to be written that concerns no RLHFJob. ``changed``: its objects that may be the
        reason."""
        ...
