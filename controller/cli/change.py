"""Commands that change an RLHFJob's spec: `mode`, `stop`, `resume`. The operator carries them out."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command, of_api
from controller.policy.wording import agreeing, counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading

POLL = 1.0  # s between looks of --wait


class Mode(StrEnum):
    ENFORCE = "Enforce"
    SHADOW = "Shadow"
    OFF = "Off"


class Source(StrEnum):
    """The checkpoint that a resumed run starts from."""

    BEST = "best"
    LATEST = "latest"
    STEP = "step"


ModeWord = Annotated[
    Mode,
    typer.Argument(
        metavar="Enforce|Shadow|Off",
        help="Enforce: stop the run. Shadow: only record. Off: do not judge.",
        case_sensitive=False,
    ),
]
From = Annotated[
    Source | None,
    typer.Option(
        "--from", help="Checkpoint to go on from. Default: best; with --step: step.", case_sensitive=False
    ),
]
Step = Annotated[int | None, typer.Option("--step", min=0, help="Step of the checkpoint to go on from.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ForEvals = Annotated[
    int | None,
    typer.Option("--for-evals", min=1, max=24, help="For so many evals its rules speak but stop nothing."),
]
Id = Annotated[str, typer.Option("--id", help="Name of the request; one is made up if none is given.")]


@command
@flags.connects
def mode(
    job: flags.Job,
    to: ModeWord,
    namespace: flags.Namespace = "",
    dry_run: flags.DryRun = False,
    connection: Connection = USUAL,
) -> None:
    """Set how far the operator may go with JOB: Enforce, Shadow or Off."""
    from controller.cli import cluster

    async def work(api: CallerApi) -> None:
        from controller.policy.job import end_is_unknown

        found = await read_job(api, job)
        if found.mode == to.value:
            typer.echo(f"{cluster.called(found.obj)} is in mode {to.value} already")
        else:
            await patch(api, found, {"mode": to.value}, dry_run)
            report_change(found, f"mode {to.value} (was {found.mode})", dry_run)
            if to is Mode.ENFORCE and (text := unsecured(found)):
                typer.echo(f"note: {text}", err=True)
        if found.record.finished is not None and not end_is_unknown(found.record):
            text = f"{found.key} has ended ({found.record.finished}): its mode does nothing any more"
            typer.echo(f"note: {text}", err=True)
        await _cap(api, found, to)
        await cluster.say_if_away(api, found.obj)

    cluster.run(work, connection, namespace)


@command
@flags.connects
def stop(
    job: flags.Job,
    namespace: flags.Namespace = "",
    wait: flags.Wait = False,
    wait_seconds: flags.WaitSeconds = 600.0,
    dry_run: flags.DryRun = False,
    connection: Connection = USUAL,
) -> None:
    """Stop JOB now: its best checkpoint is retained and its GPUs are freed. `resume` undoes it."""
    from controller.cli import cluster

    async def work(api: CallerApi) -> None:
        found = await read_job(api, job)
        if found.record.finished is not None:
            raise Failure(
                Exit.REFUSED, f"{found.key} has ended ({found.record.finished})", "nothing is to be done"
            )
        if found.spec.get("runState") == "Stopped":
            typer.echo(f"{cluster.called(found.obj)} {stopped_before(found)}")
        else:
            already = stopped_before(found) if _stands_still(found) else ""
            await patch(api, found, {"runState": "Stopped"}, dry_run)
            report_change(found, f"{already}; it is to stay so" if already else "is to be stopped", dry_run)
        await cluster.say_if_away(api, found.obj)
        if wait and not dry_run:
            await until(api, found, _stopped, wait_seconds, "stopped, its pods gone")

    cluster.run(work, connection, namespace)


@command
@flags.connects
def resume(
    job: flags.Job,
    source: From = None,
    step: Step = None,
    for_evals: ForEvals = None,
    request: Id = "",
    yes: Yes = False,
    namespace: flags.Namespace = "",
    wait: flags.Wait = False,
    wait_seconds: flags.WaitSeconds = 600.0,
    dry_run: flags.DryRun = False,
    connection: Connection = USUAL,
) -> None:
    """Have a stopped JOB go on: from its best kept checkpoint, its latest, or that of a step."""
    from controller.cli import cluster

    chosen = source or (Source.BEST if step is None else Source.STEP)
    if (chosen is Source.STEP) != (step is not None):
        raise Failure(
            Exit.USAGE,
            "--step says which checkpoint with --from step, and only then",
            "give --step N, or --from best or --from latest without --step",
        )

    async def work(api: CallerApi) -> None:
        found = await read_job(api, job)
        check_resumable(found, chosen)
        if step is not None and not dry_run:
            _ask_about(found, step, yes)
        wish = {
            "id": request or request_id("cli"),
            "from": chosen.value.capitalize(),
            "step": step,
            "forEvals": for_evals,
        }
        await patch(api, found, {"runState": "Run", "resume": wish}, dry_run)
        named = f"the checkpoint of step {step}" if step is not None else f"its {chosen.value} checkpoint"
        spared = f"; for {counted(for_evals, 'eval')} no rule stops it" if for_evals else ""
        report_change(found, f"is to go on from {named}{spared} (request {wish['id']})", dry_run)
        if refused := refusal(found):
            typer.echo(f"note: not before its spec can be carried out: {refused}", err=True)
        if not for_evals and not dry_run and (again := may_stop_again(found, chosen)):
            typer.echo(f"note: {again}", err=True)
        if chosen is Source.BEST and (doubt := from_before(found)):
            typer.echo(f"note: {doubt}", err=True)
        await cluster.say_if_away(api, found.obj)
        if wait and not dry_run:
            await until(api, found, _resumed(str(wish["id"])), wait_seconds, "back in the queue")

    cluster.run(work, connection, namespace)


def request_id(of: str) -> str:
    """Return an id for a request to resume: nobody else's, for two with one id are one request to the
    operator.

    Args:
        of: the command that asks.
    """
    return f"{of}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


def may_stop_again(job: Reading, chosen: Source) -> str:
    """Return why its rule may stop the run again at once where it goes on from there, and the command with
    which it does not; "": there is no sign of that."""
    from controller.policy.job import SPARED_EVALS, stopped_by_rule, stopped_soon

    if stopped_soon(job.record):
        why = "its rule stopped it soon after an earlier resume too, and may again"
    elif chosen is Source.LATEST and stopped_by_rule(job.record):
        why = "the evals for which its rule stopped it are remembered there, and it may stop it again at once"
    else:
        return ""
    command = f"evalstop resume {job.name}{job.flags()} --from {chosen.value} --for-evals {SPARED_EVALS}"
    if chosen is Source.STEP:
        command += " --step …"
    return f"{why}; so that no rule stops it for {SPARED_EVALS} evals: {command}"


def from_before(job: Reading) -> str:
    """Return that the best was compared with nothing, and how to go on from what is pinned of before; "": it
    was, or nothing is."""
    from controller.policy.job import alone_best

    pins = job.record.baseline.pins if job.record.baseline is not None else ()
    if not pins or not (alone := alone_best(job.record)):
        return ""
    asked = f"evalstop resume {job.name}{job.flags()} --from step --step {pins[-1].step}"
    return f"its best was {alone}; from there: {asked}"


def unsecured(job: Reading) -> str:
    """Return what mode Shadow, which secures no checkpoint, has left to be done; "": nothing."""
    best, kept = job.record.best, job.record.secured
    if best is None or job.record.finished is not None or (kept is not None and kept.stands_for(best)):
        return ""
    return (
        f"the checkpoint of its best eval, step {best.step}, is not in safety: it is looked for now, and if "
        "the trainer's rotation has removed it, the best eval that still has one counts"
    )


async def read_job(api: CallerApi, name: str) -> Reading:
    """Return the RLHFJob of a name, read."""
    from controller.cli import cluster, job_view

    return job_view.read(await cluster.job(api, name))


async def patch(
    api: CallerApi, job: Reading, spec: Mapping[str, Any], dry_run: bool, *, guard: bool = False
) -> Any:
    """Merge fields into the spec of exactly this object; with ``guard`` only if it has not changed since.

    Raises:
        Failure: the server refuses it.
    """
    from controller.kube.errors import ApiError
    from controller.kube.resources import RLHFJOBS

    metadata = job.obj["metadata"]
    try:
        return await api.merge_patch(
            RLHFJOBS,
            job.name,
            {"spec": dict(spec)},
            job.namespace,
            uid=metadata["uid"],
            version=metadata["resourceVersion"] if guard else None,
            dry_run=dry_run,
            strict=True,
        )
    except ApiError as error:
        raise of_api(error, f"change {job.key}") from error


def report_change(job: Reading, what: str, dry_run: bool) -> None:
    """Print what was changed, as kubectl does."""
    from controller.cli.cluster import called

    typer.echo(f"{called(job.obj)} {what}" + (" (dry run: nothing was changed)" if dry_run else ""))


async def _cap(api: CallerApi, job: Reading, to: Mode) -> None:
    """Says so if the pool allows less than what was asked for."""
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS

    reach = (Mode.OFF, Mode.SHADOW, Mode.ENFORCE)
    try:
        pool = await api.get(GPUPOOLS, str(job.spec.get("pool")))
    except ApiError:
        return  # not everybody may read pools; the operator applies the cap in any case
    cap = Mode((pool.get("spec") or {}).get("modeCap") or Mode.ENFORCE)
    if reach.index(cap) < reach.index(to):
        typer.echo(
            f"note: GPUPool {job.spec.get('pool')} allows {cap.value} at most, so that is what holds",
            err=True,
        )


def refusal(job: Reading) -> str:
    """Return why a job's spec cannot be carried out, and where to read what to do; "": it can."""
    from controller.policy.job import conditions as c

    accepted = job.record.condition(c.ACCEPTED)
    if accepted is None or accepted.status:
        return ""
    message = f"{accepted.reason}: {accepted.message}"
    return f"{message}\nevalstop why {job.name}{job.flags()} says what to do"


def check_resumable(job: Reading, source: Source) -> None:
    """Check that a job can go on from there.

    Raises:
        Failure: it cannot; with what can be done instead.
    """
    from controller.policy.job import end_is_unknown

    decision = job.record.decision
    name = f"{job.name}{job.flags()}"
    if end_is_unknown(job.record):
        return  # nobody saw how it ended, so its user may say that it is to go on
    if job.record.finished is not None:
        raise Failure(
            Exit.REFUSED,
            f"{job.key} has ended ({job.record.finished}): only a stopped run can go on",
            "make a new RLHFJob whose trainer starts from the checkpoint that evalstop get shows",
        )
    if decision is None or decision.mode != "Enforce":
        raise Failure(
            Exit.REFUSED,
            f"{job.key} is {job.state}, not stopped: there is nothing to resume",
            f"evalstop why {name} says what it does; evalstop stop {name} stops it",
        )
    pinned = job.record.secured is not None and decision.deferred_at is not None  # its copy follows
    if source is Source.BEST and decision.pods_gone_at is not None and not (job.record.retained or pinned):
        raise Failure(
            Exit.REFUSED,
            f"no checkpoint of {job.key} was retained, so there is no best one to go on from",
            f"evalstop resume {name} --from latest, or --step N for a step whose checkpoint is there",
        )


def _ask_about(job: Reading, step: int, yes: bool) -> None:
    """Ask before a run goes on from a step that is not known to have a checkpoint.

    Raises:
        Failure: no, or nobody is there to be asked.
    """
    record = job.record
    kept = {k.step for k in (record.secured, *record.retained, *record.pinned) if k is not None}
    if step in kept or yes:
        return
    known = "none is in safety"
    if kept:
        steps = ", ".join(map(str, sorted(kept)))
        known = f"in safety {agreeing(len(kept), 'is step', 'are steps')} {steps}"
    message = (
        f"no checkpoint of step {step} of {job.key} is known: {known}. The trainer's own folder may have it"
    )
    again = f"evalstop resume {job.name}{job.flags()} --step {step}"
    if not sys.stdin.isatty():
        raise Failure(Exit.REFUSED, message, f"{again} --yes tries it; without it the run stays stopped")
    if not typer.confirm(f"{message}. Try it?"):
        raise Failure(Exit.REFUSED, f"{job.key} stays stopped", f"{again} --yes does not ask")


def _stands_still(job: Reading) -> bool:
    """Return whether a stop of it was carried out, by whomever."""
    decision = job.record.decision
    return decision is not None and decision.mode == "Enforce" and decision.pods_gone_at is not None


def stopped_before(job: Reading) -> str:
    """Return since when it is stopped or to be, and by whom."""
    from controller.cli import formatting

    decision = job.record.decision
    if decision is None or decision.mode != "Enforce":
        return "is to be stopped already"
    by = "its user" if decision.by == "User" else decision.by
    if decision.pods_gone_at is None:
        return f"is being stopped already: decided by {by} at {formatting.moment(decision.at)}"
    return f"is stopped already, since {formatting.moment(decision.pods_gone_at)}, by {by}"


def _stopped(job: Reading) -> str | None:
    decision = job.record.decision
    return job.state if decision is not None and decision.pods_gone_at is not None else None


def _resumed(request: str) -> Callable[[Reading], str | None]:
    def done(job: Reading) -> str | None:
        condition = job.condition("Resumed")
        failed = condition is not None and not condition.status and condition.reason != "Restoring"
        if (
            condition is not None
            and failed
            and condition.generation >= job.obj["metadata"].get("generation", 0)
        ):
            raise Failure(
                Exit.REFUSED,
                f"{job.key} does not go on: {condition.reason}: {condition.message}",
                f"evalstop resume {job.name}{job.flags()} --from latest, or --step N of another one",
            )
        if job.record.resume_id != request:
            return None
        return condition.message if condition is not None else job.state

    return done


async def until(
    api: CallerApi,
    job: Reading,
    done: Callable[[Reading], str | None],
    seconds: float,
    what: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Wait until ``done`` returns what became of the job, and print it.

    Raises:
        Failure: it did not within ``seconds``; the job's state and most telling condition are named.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = await read_job(api, job.key)
        if (outcome := done(found)) is not None:
            typer.echo(f"{found.key}: {outcome}")
            return
        if time.monotonic() >= deadline:
            from controller.cli.cluster import operator_away

            away = await operator_away(api, time.time(), [found.obj])
            raise Failure(
                Exit.TIMEOUT,
                f"{found.key} is not {what} after {seconds:g} s; it is {found.state}"
                + (f"; {away.removesuffix('; see evalstop doctor')}" if away else ""),
                "evalstop doctor" if away else f"evalstop why {found.name}{found.flags()}",
            )
        await sleep(min(POLL, max(0.0, deadline - time.monotonic())))
