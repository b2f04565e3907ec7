"""Jobs that wait in a pool, by the operator's queue API, or by the statuses of RLHFJobs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import typer

from controller.api.values import seconds
from controller.cli.connection import Connection
from controller.cli.failure import Exit, Failure
from controller.frozen import dataclass

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi

Object = dict[str, Any]
Connect = Callable[[], contextlib.AbstractContextManager[str]]

PATIENCE = 20.0  # s for an answer
MOST = 5000  # places that the operator tells at once
EVERY = 2.0  # s between two questions: places are in the operator's plan, which nobody can watch
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # s before each new try: a standby leads after half a minute at most
WAITING = ("New", "Queued", "Unfit", "Preempting")  # New: the operator has not looked at it yet
UNKNOWN = "unknown"  # a pool's policy, of a pool that the caller may not read
_NOT_FOUND = ("PoolNotFound", "JobNotFound", "GroupNotFound", "NotFound")


class NotYet(Failure):
    """An operator that has just begun: it answers shortly."""


class Question(Protocol):
    """A question to the operator's queue API. ``hint``: what says what there is."""

    @property
    def path(self) -> str: ...

    @property
    def hint(self) -> str: ...

    def of_all(self, answer: Object) -> Object:
        """Return what is wanted of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for positions.

    Attributes:
        job: one job, as namespace/name; "": all.
        namespace: the namespace whose jobs are shown; "": all.
    """

    pool: str
    job: str
    namespace: str
    limit: int

    @property
    def hint(self) -> str:
        return "evalstop pools and evalstop list -A say what there is"

    @property
    def path(self) -> str:
        from controller.web.queue_api import job_path, queue_path

        if self.job:
            return job_path(self.pool, self.job)
        return queue_path(self.pool, MOST if self.namespace else self.limit)

    def of_all(self, answer: Object) -> Object:
        """Return what is wanted of everybody's queue; places stay those in the whole pool's."""
        if self.job or not self.namespace:
            return answer
        if answer["total"] > len(answer["items"]):
            typer.echo(f"note: only the first {len(answer['items'])} of the pool were looked at", err=True)
        ours = [item for item in answer["items"] if item["job"].startswith(f"{self.namespace}/")]
        return {**answer, "total": len(ours), "items": ours[: self.limit]}


def ask(base: str, wanted: Question) -> Any:
    """Return the queue API's answer.

    Raises:
        Failure: it says no, or nobody answers; NotYet if it will say yes shortly.
    """
    from controller.web import queue_api

    try:
        return wanted.of_all(asyncio.run(queue_api.ask(base, wanted.path, PATIENCE)))
    except queue_api.Refused as refused:
        code = refused.reason
        found = Exit.NOT_FOUND if code in _NOT_FOUND else Exit.REFUSED
        kind = NotYet if code == "NotPlannedYet" else Failure
        message = f"{refused} ({code})" if code else str(refused)
        raise kind(found, message, wanted.hint) from None
    except (queue_api.NoAnswer, queue_api.NotQueueApi) as error:
        raise Failure(
            Exit.UNREACHABLE,
            f"no queue API at {base}: {error}",
            "evalstop doctor says whether the operator is there",
        ) from None


def poll(connect: Connect, wanted: Question, watch: bool) -> Iterator[Any]:
    """Yield the operator's answer; with ``watch`` one after the other, over a new connection when one ends:
    another replica may lead then.

    Raises:
        Failure: the first answer is none; or, later, one is no, or there is none for half a minute.
    """
    tries: int | None = None  # since the last answer; None: there was none yet
    while True:
        try:
            with connect() as base:
                while True:
                    yield ask(base, wanted)
                    if not watch:
                        return
                    tries = 0
                    time.sleep(EVERY)
        except Failure as failure:
            passes = isinstance(failure, NotYet) or failure.code is Exit.UNREACHABLE
            if tries is None or tries == len(PAUSES) or not passes:
                raise
            time.sleep(PAUSES[tries])
            tries += 1


@dataclass(frozen=True, slots=True)
class Operator:
    """A way to the operator's queue API: ``url``, or, if that is "", a port-forward to the leader.

    Raises:
        Failure: ``url`` is of another scheme than http and https.
    """

    url: str
    namespace: str
    port: int
    connection: Connection

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("http://", "https://")):
            raise Failure(
                Exit.USAGE,
                f"--url: {self.url!r} is not allowed, expected http://… or https://…",
                "give --url http://HOST:PORT",
            )

    @contextlib.contextmanager
    def connect(self) -> Iterator[str]:
        """Yield the base address."""
        from controller.cli.forward import forwarded, leader

        if self.url:
            yield self.url.rstrip("/")
            return
        target = leader(self.namespace, self.connection)
        with forwarded(self.namespace, target, self.port, self.connection) as base:
            yield base

    def show(
        self,
        wanted: Question,
        watch: bool,
        show: Callable[[Any], None],
        otherwise: Callable[[Failure], None],
    ) -> None:
        """Show the operator's answers; ``otherwise`` shows what can be read without it, where the caller may
        not reach it or nobody answers, and no ``url`` was given."""
        begun = False
        try:
            for answer in poll(self.connect, wanted, watch):
                begun = True
                show(answer)
        except Failure as failure:
            if self.url or begun or failure.code not in (Exit.FORBIDDEN, Exit.UNREACHABLE):
                raise
            otherwise(failure)


def by_status(
    failure: Failure,
    wanted: Wanted,
    connection: Connection,
    watch: bool,
    show: Callable[[Any], None],
) -> None:
    """Show why jobs wait, from the RLHFJobs that the caller may read; places in the queue are in no status.

    Args:
        failure: why the operator's queue API was not reached.
        wanted: which pool or job.
        connection: to the cluster.
        watch: whether to show it again whenever an RLHFJob changes.
        show: prints one answer.

    Raises:
        Failure: the one given, if no RLHFJob can be read either; or there is no such pool or job.
    """
    from controller.cli import cluster
    from controller.cli.watching import follow
    from controller.kube.cache import key_of
    from controller.kube.resources import RLHFJOBS

    begun = False

    async def work(api: CallerApi) -> None:
        nonlocal begun
        found, version, where = await _jobs(api, wanted)
        pool = await _pool(api, wanted.pool)
        whole = pool if where is None else None  # who sees only some of the jobs cannot tell their places
        narrowed = not wanted.job and not wanted.namespace and where is not None
        seen = where if narrowed else None
        first = _answer(found, wanted, pool, whole, seen)
        begun = True
        ordered = not wanted.job and any(place["position"] for place in first["items"])
        typer.echo(f"note: {_without_operator(failure, wanted, pool, ordered=ordered)}", err=True)
        show(first)
        if not watch:
            return
        held = {key_of(obj): obj for obj in found}
        async for kind, obj in follow(api, RLHFJOBS, where, "", version, found, _fields(wanted)):
            if kind == "DELETED":
                held.pop(key_of(obj), None)
            else:
                held[key_of(obj)] = obj
            show(_answer(held.values(), wanted, pool, whole, seen))

    try:
        cluster.run(work, connection)
    except Failure as second:
        if begun or second.code is Exit.NOT_FOUND:
            raise
        if second.code is not Exit.FORBIDDEN:
            raise failure from None
        named = wanted.job or wanted.namespace
        other = f"evalstop queue {wanted.pool} -n NAMESPACE shows those of one whose RLHFJobs you may list\n"
        raise Failure(
            failure.code,
            f"{failure}; nor may you list the RLHFJobs, whose statuses say who waits: {second}",
            failure.next_step if named else other + failure.next_step,
        ) from None


def _without_operator(failure: Failure, wanted: Wanted, pool: Object | None, *, ordered: bool) -> str:
    """Return what an answer from the statuses lacks. ``pool``: None, the caller may not read it."""
    why = f"places in the queue are the operator's to tell, and it was not reached: {failure}"
    if ordered:
        why += "; these are the queue policy's order by what the statuses say"
    if pool is None:
        why += f"; you may not read GPUPools, so it is not known whether {wanted.pool} is one"
    return why


def _fields(wanted: Wanted) -> str:
    return f"metadata.name={wanted.job.partition('/')[2]}" if wanted.job else ""


async def _jobs(api: CallerApi, wanted: Wanted) -> tuple[list[Object], str, str | None]:
    """Return the jobs that may wait, the resourceVersion of that, and the namespace that they are of; None:
    all."""
    from controller.cli import cluster
    from controller.kube.errors import ApiError
    from controller.kube.resources import RLHFJOBS

    if wanted.job:
        await cluster.job(api, wanted.job)  # if there is none, this says which there are
    where = wanted.job.partition("/")[0] or wanted.namespace or None
    if where is None:
        try:
            return (*await api.list(RLHFJOBS, None), None)
        except ApiError:
            where = api.namespace
    return (*await cluster.listed(api, RLHFJOBS, where, fields=_fields(wanted)), where)


async def _pool(api: CallerApi, pool: str) -> Object | None:
    """Return the GPUPool; None: the caller may not know it."""
    from controller.cli import cluster
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS

    try:
        return await api.get(GPUPOOLS, pool)
    except ApiError as error:
        if error.status != 404:
            return None
        return await cluster.pool(api, pool)


def _positions(found: Iterable[Object], pool: Object) -> dict[str, int]:
    """Return the places in a pool's queue by its policy and the statuses; {}: they are not to be had from
    those.

    Args:
        found: all RLHFJobs, of every namespace.
        pool: the GPUPool.
    """
    from controller.web.dashboard.feed import read_job, read_pool
    from controller.web.dashboard.lineup import line_up

    name = str(pool["metadata"]["name"])
    pool = _versioned(pool)
    mine = [o for o in found if (o.get("spec") or {}).get("pool") == name]
    jobs = [read_job(_versioned(obj), {name: pool}) for obj in mine]
    line = line_up(read_pool(pool), jobs, time.time())
    return {} if line is None else {place.job: place.position for place in line.items if place.position}


def _versioned(obj: Object) -> Object:
    """Return an object that names a version, as those of lists do."""
    return {**obj, "metadata": {"resourceVersion": "", **obj["metadata"]}}


def _answer(
    found: Iterable[Object],
    wanted: Wanted,
    pool: Object | None,
    whole: Object | None,
    seen: str | None = None,
) -> Any:
    """Return what the queue API would answer, as far as the statuses tell.

    Args:
        found: the jobs that are known.
        wanted: which of them are asked for.
        pool: the GPUPool; None: the caller may not read it.
        whole: the pool, if all jobs are known.
        seen: the one namespace that the caller may see, where all were asked for; None: it is not so.
    """
    from controller.cli import pools

    now, found = time.time(), list(found)
    policy = pools.ordered_by(pool) if pool is not None else UNKNOWN
    places = [_place(obj, now) for obj in found if (obj.get("spec") or {}).get("pool") == wanted.pool]
    if wanted.job:
        if not places:
            text = f"{wanted.job} does not stand before GPUPool {wanted.pool!r}"
            raise Failure(Exit.NOT_FOUND, text, "evalstop get shows its pool")
        return places[0]
    waiting = [place for place in places if place["state"] in WAITING]
    positions = _positions(found, whole) if whole is not None else {}
    for place in waiting:
        place["position"] = positions.get(place["job"])
    last = len(waiting) + 1
    waiting.sort(key=lambda p: (p["position"] or last, -(p["waitedSeconds"] or 0.0), p["job"]))
    narrowed = {} if seen is None else {"ofNamespace": seen}
    return {
        "pool": wanted.pool,
        **narrowed,
        "policy": policy,
        "planned": None,
        "total": len(waiting),
        "items": waiting[: wanted.limit],
    }


def _place(obj: Mapping[str, Any], now: float) -> Object:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = status.get("conditions") or []
    admitted: Mapping[str, Any] = next((c for c in conditions if c["type"] == "Admitted"), {})
    gang = spec.get("gang") or {}
    state = str(status.get("summary") or "New")
    since = status.get("queuedTime") or obj["metadata"]["creationTimestamp"]
    waits = state in WAITING
    return {
        "job": f"{obj['metadata']['namespace']}/{obj['metadata']['name']}",
        "state": state,
        "position": None,
        "reason": admitted.get("reason", "") if waits else "",
        "message": admitted.get("message", "") if waits else "",
        "waitedSeconds": max(0.0, now - seconds(since)) if waits else None,
        "overdue": False,
        "replicas": gang.get("replicas", 1),
        "gpus": gang.get("replicas", 1) * gang.get("gpusPerReplica", 0),
        "key": {"priority": spec.get("priority", 0)},
        "family": (spec.get("sharing") or {}).get("family", ""),
    }
