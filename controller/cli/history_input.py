"""A pool's past as `evalstop export` and `what-if` take it: decision logs, exports, the cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import complete
from controller.cli.connection import Connection
from controller.cli.failure import Exit, Failure
from controller.objects import parse_time
from controller.policy.wording import agreeing, counted, did_you_mean, nearest

if TYPE_CHECKING:
    from controller.api.gpupool import GPUPool
    from controller.cli.cluster import CallerApi
    from controller.policy.job import Desired, JobRecord
    from controller.policy.types import JobView, PoolSnapshot
    from sim.traces.history import History
    from sim.traces.trace import Trace

Object = dict[str, Any]

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Decision logs (older files LOG.1, LOG.2, … come along) or exported histories. "
        "Default: the RLHFJobs in the cluster.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
WithCluster = Annotated[
    bool, typer.Option("--cluster", help="Take the cluster's RLHFJobs along with the files.")
]
PoolName = Annotated[str, typer.Option("--pool", help="GPUPool. Default: the only one there is.")]
OfNamespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Of the cluster only this namespace's RLHFJobs. Default: those of all namespaces.",
        autocompletion=complete.namespaces,
        rich_help_panel="Cluster",
    ),
]
NotRotated = Annotated[bool, typer.Option("--no-rotated", help="Only the files named, no LOG.1, LOG.2, ….")]

NONE = "the cluster has no RLHFJob"
USABLE = "evalstop sim formats lists what is read; docs/use/what-if.md tells what a history is made of"


def load(
    files: Sequence[Path],
    *,
    cluster: bool,
    pool: str,
    rotated: bool,
    connection: Connection,
    namespace: str,
) -> Trace:
    """Return the past of one pool.

    Raises:
        Failure: a file cannot be used, or the cluster cannot be asked; it says what to do next.
    """
    if namespace and files and not cluster:
        message = f"-n {namespace} chooses among the cluster's RLHFJobs, and only files are read"
        raise Failure(Exit.USAGE, message, "leave -n out, or give --cluster too")
    from sim.traces.past_files import read_past

    more: Callable[[History], None] | None = None
    notes: list[str] = []
    if cluster or not files:
        from controller.cli import cluster as clusters

        async def work(api: CallerApi) -> tuple[list[Object], list[Object] | None, str]:
            jobs, pools = await _objects(api, namespace)
            return jobs, pools, "" if jobs else await _none_there(api, namespace)

        jobs, pools, none = clusters.run(work, connection, namespace)
        more = _adder(jobs, pools, pool, notes, none)
    try:
        trace = read_past(files, pool=pool, rotated=rotated, more=more)
    except (ValueError, OSError) as error:
        raise Failure(Exit.USAGE, str(error), USABLE) from None
    trace.notes = notes + trace.notes
    return trace


async def _objects(api: CallerApi, namespace: str) -> tuple[list[Object], list[Object] | None]:
    """RLHFJobs and GPUPools; None: the caller may not read pools."""
    from controller.cli import cluster as clusters
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS, RLHFJOBS

    try:
        jobs, _ = await clusters.listed(api, RLHFJOBS, namespace or None)
    except Failure as failure:
        if failure.code is Exit.FORBIDDEN and not namespace:
            step = f"-n NAMESPACE takes one namespace's\n{failure.next_step}"
            raise Failure(failure.code, failure.message, step) from None
        raise
    try:
        pools, _ = await api.list(GPUPOOLS)
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return jobs, None
    return jobs, pools


async def _none_there(api: CallerApi, namespace: str) -> str:
    """Return where there is no RLHFJob, and how many there are elsewhere, as far as the caller may know.

    Raises:
        Failure: there is no such namespace.
    """
    from controller.cli import cluster as clusters
    from controller.kube.errors import ApiError
    from controller.kube.resources import RLHFJOBS

    if not namespace:
        return NONE
    await clusters.check_namespace(api, namespace)
    here = f"namespace {namespace} has no RLHFJob"
    try:
        elsewhere = len((await api.list(RLHFJOBS, None))[0])
    except ApiError:
        return here
    others = agreeing(elsewhere, "is in another namespace", "are in other namespaces")
    return f"{here}, {elsewhere or 'none'} {others}"


def _adder(
    jobs: Sequence[Object],
    pools: Sequence[Object] | None,
    pool: str,
    notes: list[str],
    none: str = NONE,
) -> Callable[[History], None]:
    """Return a function that adds the current state of the cluster to a history.

    ``notes`` receives a sentence about everything that could not be added. ``none``: where no job is.
    """

    def add(history: History) -> None:
        logged = history.snapshot.pool if history.snapshot is not None else ""
        chosen = _chosen(jobs, pool or logged, none)
        history.pool = chosen
        now, left = time.time(), Counter[str]()
        obj = next((p for p in pools or () if p["metadata"]["name"] == chosen), None)
        if pools is not None and obj is None:
            _refuse_unknown(chosen, jobs, pools, history)
        model = _model(obj)
        stands = []
        for job in jobs:
            if (job.get("spec") or {}).get("pool") != chosen:
                continue
            found = read_stored(job, model, now)
            if isinstance(found, str):
                left[found] += 1
            else:
                stands.append(found)
        if model is None:
            why = "cannot be read by you" if pools is None else "is not there, or cannot be used"
            notes.append(f"GPUPool {chosen} {why}: its nodes and queue policy are not known from it.")
        for reason, count in sorted(left.items()):
            notes.append(f"{counted(count, 'RLHFJob')} {agreeing(count, 'is', 'are')} left out: {reason}.")
        history.stands(now, snapshot(chosen, obj, model, history), stands)

    return add


def _chosen(jobs: Sequence[Object], pool: str, none: str) -> str:
    names = sorted({str((job.get("spec") or {}).get("pool")) for job in jobs})
    if pool or len(names) == 1:
        return pool or names[0]
    if not names:
        raise ValueError(f"{none}, expected the jobs whose past this is")
    raise ValueError(f"--pool: the RLHFJobs are of the pools {', '.join(names)}, expected one of them")


def _refuse_unknown(pool: str, jobs: Sequence[Object], pools: Sequence[Object], history: History) -> None:
    """Refuse a pool that is not there, and of which no job and no log tells either.

    Raises:
        ValueError: it is such a one.
    """
    logged = history.snapshot is not None and history.snapshot.pool == pool
    if logged or any((job.get("spec") or {}).get("pool") == pool for job in jobs):
        return
    names = [str(one["metadata"]["name"]) for one in pools]
    close = nearest(pool, names)
    question = f"; {did_you_mean(close)}" if close else ""
    raise ValueError(
        f"--pool: there is no GPUPool {pool!r}, expected one of {', '.join(names) or 'none'}{question}"
    )


def _model(obj: Object | None) -> GPUPool | None:
    from controller.api import convert
    from controller.api.gpupool import GPUPool

    found = convert.parse_pool(obj) if obj is not None else None
    return found if isinstance(found, GPUPool) else None


def read_stored(obj: Object, pool: GPUPool | None, now: float) -> tuple[JobView, Desired, JobRecord] | str:
    """Return an RLHFJob as its pool saw it, its wish and its record; or why it tells nothing."""
    from controller.api import convert
    from controller.policy.job import attained
    from controller.policy.types import JobState, JobView

    try:
        record = convert.record(obj.get("status"))
    except convert.StatusError:
        return "the status is of another version, or damaged"
    desired = convert.desired(obj, pool)
    if not desired.replicas or not desired.gpus_per_replica:
        return "the spec cannot be used"
    namespace = str(obj["metadata"].get("namespace", ""))
    priority = int((obj.get("spec") or {}).get("priority") or 0)
    ceiling = pool.ceiling(namespace) if pool is not None else None
    view = JobView(
        key=desired.key,
        submitted=parse_time(obj["metadata"]["creationTimestamp"]) or 0.0,
        sequence=0,
        replicas=desired.replicas,
        gpus_per_replica=desired.gpus_per_replica,
        priority=priority if ceiling is None else min(priority, ceiling),
        state=JobState.QUEUED if record.admission is None else JobState.ADMITTED,
        attained=attained(desired, record, now),
        weight=float(pool.weight(namespace)) if pool is not None else 1.0,
        estimate=desired.expected_seconds,
        metric=desired.metric,
        attempt=record.attempt,
    )
    return view, desired, record


def snapshot(name: str, obj: Object | None, model: GPUPool | None, history: History) -> PoolSnapshot:
    """Return the pool as its own status and spec tell, else as the log last said."""
    from controller.api import convert
    from controller.policy.types import NodeView, PolicySpec, PoolSnapshot

    last = history.snapshot
    sizes = ((obj or {}).get("status") or {}).get("nodeSizes") or ()
    nodes = tuple(
        NodeView(f"{size['gpus']}-{n}", int(size["gpus"]))
        for size in sizes
        for n in range(int(size["nodes"]))
    )
    if not nodes and last is not None:
        nodes = last.nodes
    if model is not None:
        limits = convert.stop_limits(model)
        return PoolSnapshot(
            name, convert.policy(model), nodes, (), delegate=model.spec.delegate, limits=limits
        )
    if last is not None:
        return PoolSnapshot(name, last.policy, nodes, (), delegate=last.delegate)
    return PoolSnapshot(name, PolicySpec("fifo"), nodes, ())
