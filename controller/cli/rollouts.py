"""`evalstop rollouts JOB`: its actors, its steps as planned and as they were, and who has what it lends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from controller.cli import flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.flags import Document
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, terminal
from controller.policy.wording import ELSEWHERE, UID, agreeing, counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading
    from controller.policy.actor_types import Actor
    from controller.policy.job import StepRow

Object = dict[str, Any]
STEPS = (
    Column("STEP", right=True),
    Column("DISPATCH", gives_way=2),
    Column("ACTORS", right=True),
    Column("PLANNED", right=True, gives_way=1),
    Column("SECONDS", right=True),
    Column("PLANNED", right=True, gives_way=1),
    Column("GPU-S", right=True),
    Column("PLANNED", right=True, gives_way=1),
    Column("MOVED", right=True, gives_way=3),
    Column("LENT GPU-S", right=True, gives_way=4),
    Column("WHY"),
)
ACTORS = (
    Column("ACTOR", right=True),
    Column("KIND"),
    Column("STATE"),
    Column("NODE", name=True),
    Column("GPUS", right=True),
    Column("AGE", right=True),
    Column("RECALLED FOR", name=True),
)


@command
@flags.connects
def rollouts(
    job: flags.Job,
    namespace: flags.Namespace = "",
    watch: flags.Watch = False,
    form: flags.Page = Document.TEXT,
    connection: Connection = USUAL,
) -> None:
    """Show the rollout actors of JOB, and its last steps: planned and measured, count, moved, lent, why."""
    from controller.cli import cluster, job_view

    def show(obj: Object, again: bool) -> None:
        found, now = job_view.read(obj), time.time()
        if not output.document(document(found, now), form, stream=watch):
            lines = page(found, now, terminal())
            output.lines(["", *lines] if again else lines)

    async def work(api: CallerApi) -> None:
        obj = await cluster.job(api, job)
        if not (obj.get("spec") or {}).get("rollout") and not (obj.get("status") or {}).get("actors"):
            name = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
            raise Failure(
                Exit.REFUSED,
                f"{name} has no rollout actors: it names no spec.rollout",
                "docs/use/rollouts.md says what elastic rollouts are",
            )
        show(obj, again=False)
        if watch:
            await _follow(api, obj, show)

    cluster.run(work, connection, namespace)


async def _follow(api: CallerApi, obj: Object, show: Any) -> None:
    """Print the job again whenever what is shown of it has changed."""
    from controller.cli.watching import follow
    from controller.kube.resources import RLHFJOBS

    metadata, before = obj["metadata"], _shown(obj)
    fields = f"metadata.name={metadata['name']}"
    version = metadata["resourceVersion"]
    changes = follow(api, RLHFJOBS, metadata["namespace"], "", version, [obj], fields)
    async for kind, changed in changes:
        if kind == "DELETED":
            typer.echo(f"{metadata['namespace']}/{metadata['name']} was deleted", err=True)
            return
        if (now := _shown(changed)) != before:
            before = now
            show(changed, again=True)


def _shown(obj: Object) -> tuple[Any, ...]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return (spec.get("rollout"), *(status.get(name) for name in ("summary", "actors", "rollout")))


def page(job: Reading, now: float, screen: Terminal) -> list[str]:
    """Return the whole answer as lines. ``now``: s since the epoch."""
    from controller.cli.why import facts, wrapped

    if job.problem:
        return wrapped(f"{job.key}: this evalstop cannot read its status ({job.problem})", screen)
    lines = [*wrapped(headline(job), screen, style="bold"), ""]
    lines += facts(tuple(_facts(job, now)), screen)
    record = job.record
    if record.rollout is not None and record.rollout.recent:
        rows = [_step_row(one) for one in reversed(record.rollout.recent)]
        lines += ["", *render(STEPS, rows, screen)]
    if record.actors:
        base = _base(job)
        rows = [_actor_row(one, place, base, now) for place, one in enumerate(_staying_first(record.actors))]
        lines += ["", *render(ACTORS, rows, screen)]
    return lines


def headline(job: Reading) -> str:
    """Return in one sentence what actors a job may have, and has."""
    spec = job.spec.get("rollout") or {}
    actors = spec.get("actors") or {}
    record, base = job.record, _base(job)
    staying = sum(actor.stays for actor in record.actors)
    text = f"{job.key}: {job.state}, {counted(staying, 'rollout actor')}"
    if actors:
        text += f" ({actors.get('min')} to {actors.get('max')}, mode {spec.get('mode') or 'Enforce'})"
    more = []
    if staying > base:
        more.append(f"{staying - base} of them spare")
    if record.admission is not None and staying < base:
        more.append(f"{counted(base - staying, 'base actor')} let go, with a right of return")
    leaving = len(record.actors) - staying
    if leaving:
        more.append(f"{leaving} leave")
    return ", ".join([text, *more])


def _facts(job: Reading, now: float) -> Iterator[tuple[str, str]]:
    account = job.record.rollout
    if account is None:
        yield "steps", "none has been announced yet"
        return
    if (plan := account.plan) is not None:
        cost = "" if plan.seconds is None else f" {plan.seconds:.1f} s"
        cost += "" if plan.gpu_seconds is None else f", {plan.gpu_seconds:.0f} GPU-seconds"
        yield (
            "plan",
            f"step {plan.step}: {counted(plan.actors, 'actor')}, {plan.dispatch}"
            + (f",{cost}" if cost else "")
            + f" ({plan.reason}" + (f": {plan.message})" if plan.message else ")"),
        )  # fmt: skip
    running = sum(
        actor.gpus * max(0.0, now - actor.bound) for actor in job.record.actors if actor.bound is not None
    )
    yield "held", f"{formatting.gpu_hours(account.held + running)} by actors, each from binding to end"
    if account.lent:
        yield "lent", f"{formatting.gpu_hours(account.lent)} for which base actors were let go"
    if account.saved or (job.spec.get("rollout") or {}).get("mode") == "Shadow":
        amount, how = (
            formatting.gpu_hours(abs(account.saved)),
            "saved" if account.saved >= 0.0 else "cost more",
        )
        yield "saved", f"{amount} that carrying plans out would have {how} (Shadow)"
    if account.failed:
        yield (
            "failed",
            f"{counted(account.failed, 'actor')} ended or {agreeing(account.failed, 'was', 'were')} put "
            "aside without having been asked to leave",
        )
    if account.aside is not None:  # of a step that has not ended
        yield "aside", f"step {account.aside.step}: {account.aside.failures}"
    elif account.measured is not None and account.measured.failures:
        yield "aside", f"step {account.measured.step}: {account.measured.failures}"
    if account.starved:
        yield (
            "starved",
            f"{counted(account.starved, 'time')} in a row its trainer had no actor left and queued again",
        )


def _base(job: Reading) -> int:
    """Return how many actors the job is admitted with."""
    spec = job.spec.get("rollout") or {}
    actors = spec.get("actors") or {}
    word = "static" if spec.get("mode") == "Shadow" else "min"
    return int(actors.get(word) or actors.get("min") or 0)


def _staying_first(actors: tuple[Actor, ...]) -> list[Actor]:
    return sorted(actors, key=lambda one: (not one.stays, one.number))


def _actor_row(one: Actor, place: int, base: int, now: float) -> list[str]:
    kind = "leaves" if not one.stays else "base" if place < base else "spare"
    age = formatting.span(max(0.0, now - one.since))
    return [
        str(one.number),
        kind,
        str(one.state),
        one.node,
        str(one.gpus),
        age,
        ELSEWHERE if one.for_whom.startswith(UID) else one.for_whom or formatting.NOTHING,
    ]


def _step_row(one: StepRow) -> list[str]:
    def number(value: float | None, digits: int = 1) -> str:
        return formatting.NOTHING if value is None else f"{value:.{digits}f}"

    return [
        str(one.step), one.dispatch or formatting.NOTHING,
        str(one.actors), number(one.planned_actors, 0),
        number(one.seconds), number(one.planned_seconds),
        number(one.gpu_seconds, 0), number(one.planned_gpu_seconds, 0),
        str(one.moved), number(one.lent, 0), one.reason or formatting.NOTHING,
    ]  # fmt: skip


def document(job: Reading, now: float) -> dict[str, Any]:
    """Return all of it as JSON, with what is not known as null."""
    record, base = job.record, _base(job)
    account, plan = record.rollout, record.rollout.plan if record.rollout is not None else None
    return {
        "job": job.key,
        "state": job.state,
        "problem": job.problem or None,
        "mode": (job.spec.get("rollout") or {}).get("mode") or "Enforce",
        "base": base,
        "actors": [
            {
                "number": one.number,
                "kind": "leaves" if not one.stays else "base" if place < base else "spare",
                "state": str(one.state),
                "node": one.node,
                "gpus": one.gpus,
                "since": formatting.moment(one.since),
                "recalledFor": one.for_whom or None,
            }
            for place, one in enumerate(_staying_first(record.actors))
        ],
        "rights": max(0, base - sum(one.stays for one in record.actors)) if record.admission else 0,
        "plan": None if plan is None else {
            "step": plan.step, "actors": plan.actors, "dispatch": plan.dispatch, "seconds": plan.seconds,
            "gpuSeconds": plan.gpu_seconds, "reason": plan.reason, "message": plan.message,
        },
        "steps": [] if account is None else [step(one) for one in account.recent],
        "heldGPUSeconds": 0.0 if account is None else account.held,
        "lentGPUSeconds": 0.0 if account is None else account.lent,
        "savedGPUSeconds": 0.0 if account is None else account.saved,
        "failed": 0 if account is None else account.failed,
    }  # fmt: skip


def step(one: StepRow) -> dict[str, Any]:
    """Return a step that has ended as JSON."""
    return {
        "step": one.step,
        "ended": formatting.moment(one.at),
        "dispatch": one.dispatch or None,
        "reason": one.reason or None,
        "actors": {"planned": one.planned_actors, "measured": one.actors},
        "seconds": {"planned": one.planned_seconds, "measured": one.seconds, "whole": one.whole_seconds},
        "gpuSeconds": {"planned": one.planned_gpu_seconds, "measured": one.gpu_seconds},
        "moved": one.moved,
        "lentGPUSeconds": one.lent,
    }
