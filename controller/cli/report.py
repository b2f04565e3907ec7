"""`evalstop report`: a job or a pool as one HTML file that can be sent, kept and printed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.policy.wording import some

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.web.dashboard.feed import Job, Pool
    from controller.web.dashboard.report import Source

Object = dict[str, Any]

Subject = Annotated[str, typer.Argument(metavar="JOB|POOL", help="A job by its name, or a pool with --pool.")]
IsPool = Annotated[bool, typer.Option("--pool", help="The argument is a GPUPool.")]
Html = Annotated[bool, typer.Option("--html", help="As one HTML file: the form there is.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="File to write; - is stdout. Default: evalstop-NAME-TIME.html.", dir_okay=False
    ),
]
Log = Annotated[
    Path | None,
    typer.Option(
        "--log",
        help="From a decision log of the operator's instead of the cluster.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]


@command
@flags.connects
def report(
    subject: Subject,
    html: Html = True,
    out: Out = None,
    pool: IsPool = False,
    log: Log = None,
    namespace: flags.Namespace = "",
    connection: Connection = USUAL,
) -> None:
    """Write JOB or POOL as one HTML file: its stops, what they saved, whether they were right, and waits.

    Without script and without an outside address. A name that is no job's is taken for a pool's.
    """
    from controller.web.dashboard import report as reports

    del html
    if log is not None and out is not None and output.is_read(out, [log]):
        raise Failure(Exit.USAGE, f"--out: {out} is the log itself", "name another file: it would be lost")
    now = time.time()
    if log is not None:
        source = _of_log(log, namespace)
        text = _logged(source, subject, now, pool, namespace)
    else:
        text = _of_cluster(subject, namespace, pool, connection, now)
    if str(out) == "-":
        sys.stdout.write(text)
        return
    into = out or Path(f"evalstop-{subject.replace('/', '-')}-{reports.stamp(now)}.html")
    try:
        into.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(
            Exit.USAGE, f"--out: cannot write {into}: {error.strerror}", "name another file"
        ) from None
    typer.echo(f"{into}: {len(text.encode()) / 1000:.0f} kB", err=True)


def _of_cluster(subject: str, namespace: str, is_pool: bool, connection: Connection, now: float) -> str:
    from controller.cli import cluster
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS, RLHFJOBS

    async def work(api: CallerApi) -> tuple[Object | None, list[Object], list[Object]]:
        found: Object | None = None
        if not is_pool:
            try:
                found = await cluster.job(api, subject)
            except Failure as failure:
                if failure.code is not Exit.NOT_FOUND or "/" in subject:
                    raise
        try:
            pools, _ = await api.list(GPUPOOLS)
        except ApiError as error:
            if error.status not in (401, 403):
                raise
            pools = []
        if found is None and pools and subject not in {p["metadata"]["name"] for p in pools}:
            raise Failure(
                Exit.NOT_FOUND,
                f"there is no RLHFJob and no GPUPool {subject!r}",
                "evalstop list -A and evalstop pools name what there is",
            )
        if found is not None:
            near, _ = await cluster.listed(api, RLHFJOBS, str(found["metadata"]["namespace"]))
        else:
            near, _ = await cluster.listed(api, RLHFJOBS, namespace or None)
        await cluster.say_if_away(api, *near)
        return found, pools, near

    found, pools, near = cluster.run(work, connection, namespace)
    return _from_statuses(subject, found, pools, near, now, namespace if found is None else "")


def _from_statuses(
    subject: str,
    found: Object | None,
    pools: list[Object],
    near: list[Object],
    now: float,
    namespace: str = "",
) -> str:
    """Return the report from objects as the API server has them. ``namespace``: the one whose jobs are near;
    "": all are, or it is a job's."""
    from controller.web.dashboard import report as reports
    from controller.web.dashboard.feed import read_job, read_pool

    by_name = {str(p["metadata"]["name"]): p for p in pools}
    wanted = subject if found is None else str((found.get("spec") or {}).get("pool"))
    jobs = [read_job(obj, by_name) for obj in near]
    jobs = [job for job in jobs if job.pool == wanted]
    pool: Pool | None = read_pool(by_name[wanted]) if wanted in by_name else None
    notes = []
    if pool is None:
        notes.append(f"GPUPool {wanted} cannot be read by you, or is not there.")
    if namespace:
        notes.append("Runs of other namespaces were not asked for.")
    if found is None:
        unseen = reports.unseen(pool, jobs, namespace)
        source = reports.Source(tuple(jobs), "the cluster's statuses", unseen=unseen, notes=tuple(notes))
        return reports.pool_report(subject, pool, now, source, namespace)
    job = read_job(found, by_name)
    mine = [back for back in (pool.status.last_handovers if pool else ()) if back.source == job.key]
    decided = job.record.decision.at if job.record.decision is not None else None
    unseen = sum(1 for back in mine if decided is None or abs(back.decided - decided) >= 2.0)
    source = reports.Source(tuple(jobs), "the cluster's statuses", unseen=unseen, notes=tuple(notes))
    return reports.job_report(job, now, source)


def _of_log(log: Path, namespace: str) -> Source:
    from controller.web.dashboard import report as reports

    def wanted(key: str, pool: str) -> bool:
        return not namespace or key.startswith(f"{namespace}/")

    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return reports.from_log(lines, log.name, wanted)
    except OSError as error:
        raise Failure(
            Exit.USAGE, f"--log: cannot read {log}: {error.strerror}", "name another file"
        ) from None


def _logged(source: Source, subject: str, now: float, is_pool: bool, namespace: str) -> str:
    from controller.web.dashboard import report as reports

    matching: list[Job] = [job for job in source.jobs if subject in (job.key, job.name)]
    if is_pool or (not matching and any(job.pool == subject for job in source.jobs)):
        jobs = tuple(job for job in source.jobs if job.pool == subject)
        if not jobs:
            raise _missing(source, subject, is_pool, namespace)
        uids = {job.uid for job in jobs}
        from dataclasses import replace

        stops = tuple(job for job in source.stops if job.uid in uids)
        notes = source.notes
        if namespace:
            notes += ("Runs of other namespaces were left out, as -n asks.",)
        return reports.pool_report(subject, None, now, replace(source, jobs=jobs, stops=stops, notes=notes))
    if not matching:
        raise _missing(source, subject, is_pool, namespace)
    if len({job.key for job in matching}) > 1:
        keys = ", ".join(sorted({job.key for job in matching})[:5])
        raise Failure(Exit.USAGE, f"{subject!r} is the name of several runs", f"name one of them: {keys}")
    return reports.job_report(matching[-1], now, source)


def _missing(source: Source, subject: str, is_pool: bool, namespace: str) -> Failure:
    runs = sorted({job.key for job in source.jobs})
    pools = sorted({job.pool for job in source.jobs if job.pool})
    there = [f"{word} in it: {some(names, 5)}" for word, names in (("runs", runs), ("pools", pools)) if names]
    nothing = f"of namespace {namespace} it tells of no run" if namespace else "it tells of none at all"
    return Failure(
        Exit.NOT_FOUND,
        f"{source.name} tells of no {'pool' if is_pool else 'run and no pool'} {subject!r}",
        "; ".join(there) or f"{nothing}: is it a decision log?",
    )
