"""`evalstop get`: one RLHFJob on one page, or any of them as the cluster has it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from controller.cli import flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command, tell
from controller.cli.flags import Format
from controller.cli.jobs import fields, state_style, table
from controller.cli.table import CUT_TO, Column, render
from controller.cli.terminal import Terminal, terminal
from controller.policy.wording import counted, how_far

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading

Object = dict[str, Any]


@command
@flags.connects
def get(
    names: flags.Jobs,
    namespace: flags.Namespace = "",
    form: flags.Output = Format.TABLE,
    watch: flags.Watch = False,
    no_headers: flags.NoHeaders = False,
    connection: Connection = USUAL,
) -> None:
    """Show RLHFJobs by name, one page each: state, scores, checkpoints in safety, GPUs, conditions.

    -o wide gives a row each, -o json and -o yaml the objects as the cluster has them.
    """
    from controller.cli import cluster, job_view
    from controller.kube.resources import RLHFJOBS

    screen = terminal()
    several = False

    def lines(found: list[Object], first: bool) -> list[str]:
        now = time.time()
        if form is Format.WIDE:
            chosen = fields(wide=True, everywhere=several)
            return table(found, chosen, now, screen, first and not no_headers)
        shown = []
        for place, obj in enumerate(found):
            shown += ([] if first and not place else [""]) + page(job_view.read(obj), now, screen)
        return shown

    async def work(api: CallerApi) -> None:
        nonlocal several
        found: list[Object] = []
        missing: list[Failure] = []
        for name in names:
            try:
                found.append(await cluster.job(api, name))
            except Failure as failure:
                if failure.code is not Exit.NOT_FOUND:
                    raise
                missing.append(failure)
        if missing and (watch or not found):
            raise missing[0]
        several = len({o["metadata"]["namespace"] for o in found}) > 1
        if watch:
            from controller.cli.watching import Watched, show

            keys = dict.fromkeys((o["metadata"]["namespace"], o["metadata"]["name"]) for o in found)
            each = [Watched(RLHFJOBS, where, fields=f"metadata.name={name}") for where, name in keys]
            await show(api, each, form, lines)
            return
        if not output.objects(found, form, one=len(names) == 1):
            output.lines(lines(found, True))
            await cluster.say_if_away(api, *found)
        for one in missing[:-1]:
            tell(one)
        if missing:
            raise missing[-1]

    cluster.run(work, connection, namespace)


def page(job: Reading, now: float, screen: Terminal) -> list[str]:
    """Return one job on one page."""
    from controller.cli.why import facts

    state = screen.paint(job.state, state_style(job.state))
    room = len(job.key) if screen.width is None else max(CUT_TO, screen.width - len(job.state) - 2)
    lines = [f"{screen.paint(screen.cut_middle(job.key, room), 'bold')}: {state}"]
    lines += facts(tuple(_facts(job, now)), screen)
    kept = list(_checkpoints(job))
    if kept:
        places = (
            Column("CHECKPOINT"),
            Column("STEP", right=True),
            Column("SCORE", right=True, gives_way=3),
            Column("SIZE", right=True, gives_way=2),
            Column("DIGEST", gives_way=4),
            Column("PATH", text=True),
        )
        lines += ["", *render(places, kept, screen)]
    if job.record.conditions:
        columns = (
            Column("CONDITION"),
            Column("STATUS", style=lambda s: "" if s == "True" else "dim"),
            Column("REASON"),
            Column("SINCE", right=True, gives_way=2),
            Column("MESSAGE", text=True, gives_way=1),
        )
        rows = [
            [c.type, str(c.status), c.reason, formatting.span(max(0.0, now - c.since)), c.message]
            for c in job.record.conditions
        ]
        lines += ["", *render(columns, rows, screen)]
    return lines


def _facts(job: Reading, now: float) -> Iterator[tuple[str, str]]:
    from controller.cli.job_view import best_sentence, rule
    from controller.policy.job import place

    record, spec = job.record, job.spec
    if job.problem:
        yield "trouble", f"this evalstop cannot read its status: {job.problem}"
    gang = spec.get("gang") or {}
    replicas, each = gang.get("replicas", 1), gang.get("gpusPerReplica", 0)
    yield "pool", f"{spec.get('pool')}, priority {spec.get('priority', 0)}"
    yield "gang", f"{replicas} x {counted(each, 'GPU')}"
    if spec.get("sharing") or record.residency is not None or record.charged:
        from controller.cli.explanation import residency_sentence  # few have a group, and it loads much

        if short := residency_sentence(job):
            yield "group", short
    yield "rule", rule(spec)
    yield "metric", f"{job.metric.get('name')}, {job.metric.get('direction', 'Maximize')}"
    yield "mode", job.mode + (", runState Stopped" if spec.get("runState") == "Stopped" else "")
    yield "attempt", str(record.attempt)
    if record.layout is not None:
        yield "layout", f"{record.layout.name}, by {record.layout.by}"
    if (owner := record.file_owner) is not None:
        yield "files of", f"user {owner.user}, group {owner.group}, by {owner.by}"
    if record.evals:
        newest = record.evals[-1]
        yield "newest", f"{formatting.number(newest.score)} at step {newest.step}"
    if record.best is not None:
        yield "best", best_sentence(record, record.best)
    if record.progress is not None:
        p = record.progress
        yield "progress", how_far(p.step, p.total_steps)
    if record.admission is not None:
        yield "nodes", place(record.admission).removeprefix("on ") or "any"
        if record.admission.running_since is not None:
            yield "running", f"for {formatting.span(max(0.0, now - record.admission.running_since))}"
    if record.attained:
        yield "service", formatting.gpu_hours(record.attained)
    if record.lost:
        yield "lost", f"{formatting.gpu_hours(record.lost)} by {counted(record.preemptions, 'preemption')}"
    if record.decision is not None:
        by = "its user: " if record.decision.by == "User" else ""
        yield "decision", f"{by}{record.decision.message}"


def _checkpoints(job: Reading) -> Iterator[list[str]]:
    record = job.record
    found = [
        ("secured", record.secured),
        *(("retained", k) for k in record.retained),
        *(("pinned", k) for k in record.pinned),
    ]
    found += [("resumes from", record.restored)]
    for label, kept in found:
        if kept is not None:
            score = formatting.number(kept.score)
            yield [
                label,
                str(kept.step),
                score,
                formatting.size(kept.bytes),
                kept.digest[:19] + "...",
                kept.path,
            ]
