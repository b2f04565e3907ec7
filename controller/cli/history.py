"""`evalstop history`: what happened to a job in the order of time, and its evals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from controller.api.values import seconds
from controller.cli import flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import command
from controller.cli.flags import Document
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, terminal
from controller.policy.job import conditions as c
from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading
    from controller.policy.job import Condition, JobRecord
    from controller.policy.types import EvalPoint

NEAR = 5.0  # s between a status and the Event that tells of the same
EARLIER_STOP = "EarlierStop"  # what the evals showed of the stop before the newest
STAGE = "Stop"  # what stands for a stage of a stop, of which there are several at once

Evals = Annotated[bool, typer.Option("--evals/--no-evals", help="The table of evals as well.")]


class Happened(NamedTuple):
    """Something that happened at a time (s). ``times``: how often, up to then."""

    at: float
    reason: str
    message: str
    times: int = 1


@command
@flags.connects
def history(
    job: flags.Job,
    namespace: flags.Namespace = "",
    form: flags.Page = Document.TEXT,
    evals: Evals = True,
    connection: Connection = USUAL,
) -> None:
    """What happened to JOB, in the order of time, and its evals.

    From its status and from its Events, which the cluster keeps for about an hour.
    """  # noqa: D401 -- help text
    from controller.cli import cluster, job_view
    from controller.cli.job_view import point
    from controller.kube.errors import ApiError
    from controller.kube.resources import EVENTS

    async def work(api: CallerApi) -> tuple[Reading, list[dict[str, Any]], str]:
        found = job_view.read(await cluster.job(api, job))
        if form is Document.TEXT:
            await cluster.say_if_away(api, found.obj)
        about = f"involvedObject.kind=RLHFJob,involvedObject.name={found.name}"
        try:
            events, _ = await api.list(EVENTS, found.namespace, fields=about)
        except ApiError as error:
            return found, [], error.message
        uid = found.obj["metadata"].get("uid")
        return found, [e for e in events if (e.get("involvedObject") or {}).get("uid") in (uid, "", None)], ""

    found, events, refused = cluster.run(work, connection, namespace)
    entries = timeline(found, events)
    whole = {
        "job": found.key,
        "happened": [
            {"time": formatting.moment(e.at), "reason": e.reason, "message": e.message, "times": e.times}
            for e in entries
        ],
        "evals": [point(p) for p in found.record.evals],
    }
    if output.document(whole, form):
        return
    screen = terminal()
    output.lines(_page(found, entries, screen, evals))
    if refused:
        typer.echo(f"Events cannot be read, so only what the status says is shown: {refused}", err=True)


def timeline(job: Reading, events: list[dict[str, Any]]) -> list[Happened]:
    """Return what status and Events tell, oldest first, each once.

    An Event is posted after the status is written: of what both tell, the time is the status's, so that
    things stand in the order in which they happened.
    """
    events_left = [_event(event) for event in events]
    of_status: list[Happened] = []
    for entry in _of_status(job):
        same = next((i for i, event in enumerate(events_left) if _same(event, entry)), None)
        if same is not None:
            entry = events_left.pop(same)._replace(at=entry.at)
        if not any(_same(other, entry) for other in of_status):
            of_status.append(entry)
    return sorted([*events_left, *of_status], key=lambda entry: entry.at)


def _same(one: Happened, other: Happened) -> bool:
    """Return whether two entries tell of one thing: the same reason, at once; or the same words."""
    if one.reason != other.reason:
        return False
    at_once = one.times == other.times == 1 and abs(one.at - other.at) < NEAR
    return one.message == other.message or (at_once and one.reason != STAGE)


def last_seen(event: dict[str, Any]) -> float:
    """Return when an Event was seen last (s since the epoch)."""
    series = event.get("series") or {}
    return seconds(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _event(event: dict[str, Any]) -> Happened:
    series = event.get("series") or {}
    count = int(series.get("count") or event.get("count") or 1)
    return Happened(last_seen(event), str(event.get("reason", "")), str(event.get("message", "")), count)


def _of_status(job: Reading) -> Iterator[Happened]:
    from controller.cli.explanation import stages
    from controller.policy.job import place, was_right

    created = job.obj["metadata"].get("creationTimestamp")
    if created:
        yield Happened(seconds(created), "Created", f"RLHFJob {job.key} for pool {job.spec.get('pool')}")
    record = job.record
    if record.queued_at is not None:
        yield Happened(record.queued_at, "Queued", "back in the queue")
    admission = record.admission
    if admission is not None:
        where = place(admission) or "planned on any node"
        yield Happened(admission.at, "Admitted", f"attempt {admission.number}: GPUs granted, {where}")
        if admission.running_since is not None:
            yield Happened(admission.running_since, "Running", "all pods are running")
    for kept in (record.secured, *record.retained):
        if kept is not None:
            what = "Secured" if kept is record.secured else "Retained"
            yield Happened(kept.at, what, f"checkpoint of step {kept.step} at {kept.path}")
    for condition in record.conditions:
        yield Happened(_told_at(record, condition), condition.reason, condition.message)
    for at, what in stages(record.decision):
        yield Happened(at, STAGE, what)
    if (was := record.outcome) is not None:
        if was.former:
            yield Happened(was.decided, EARLIER_STOP, was.former)
        newest = (was.seen_step, was.seen_attempt)
        read = next((at for p, at in timed(record) if (p.step, p.attempt) == newest), None)
        if read is not None:
            yield Happened(read, str(was.verdict), was_right(was))


def _told_at(record: JobRecord, condition: Condition) -> float:
    """Return when a condition's message was written: that of QualityDeclining tells of the newest eval that
    was judged, and the condition may hold since earlier ones."""
    if condition.type != c.DECLINING or not condition.status:
        return condition.since
    newest = [float(at) for _, at in timed(record)[-1:] if at is not None]
    decided = [record.decision.at] if record.decision is not None else []
    return max(condition.since, min([*newest, *decided], default=condition.since))


def timed(record: JobRecord) -> list[tuple[EvalPoint, float | None]]:
    """Return the evals kept, oldest first, each with when it was read (s; None: that is not known)."""
    times = (None,) * (len(record.evals) - len(record.eval_times)) + record.eval_times
    return list(zip(record.evals, times, strict=True))


def _page(job: Reading, entries: list[Happened], screen: Terminal, evals: bool) -> list[str]:
    columns = (
        Column("TIME"),
        Column("WHAT"),
        Column("TIMES", right=True, gives_way=1),
        Column("MESSAGE", text=True),
    )
    rows = [
        [formatting.moment(e.at), e.reason, str(e.times) if e.times > 1 else "", e.message or "-"]
        for e in entries
    ]
    lines = render(columns, rows, screen)
    if not evals:
        return lines
    record = job.record
    if not record.evals:
        return [*lines, "", "No evals yet."]
    shown = f"{len(record.evals)} of {counted(record.evals_seen, 'eval')} of {job.metric.get('name')}"
    lines += ["", shown if screen.width is None else screen.cut(shown, screen.width)]
    return lines + eval_table(job, screen)


def eval_table(job: Reading, screen: Terminal) -> list[str]:
    """Return the evals kept, oldest first; the best one is marked."""
    record = job.record
    columns = (
        Column("STEP", right=True),
        Column("SCORE", right=True),
        Column("STDERR", right=True, gives_way=2),
        Column("SAMPLES", right=True, gives_way=3),
        Column("PROXY", right=True, gives_way=1),
        Column("ATTEMPT", gives_way=4),
        Column("READ", gives_way=5),
        Column(""),
    )
    rows = []
    for p, read in timed(record):
        best = record.best is not None and p.step == record.best.step
        stopped = record.decision is not None and record.decision.proposal.step == p.step
        rows.append(
            [
                str(p.step),
                formatting.number(p.score),
                formatting.number(p.stderr),
                formatting.NOTHING if p.samples is None else str(p.samples),
                formatting.number(p.proxy),
                str(p.attempt),
                formatting.NOTHING if read is None else formatting.moment(read),
                " ".join(word for word, holds in (("best", best), ("stop", stopped)) if holds),
            ]
        )
    return render(columns, rows, screen)
