"""`evalstop pin`: keep the checkpoints of chosen steps, for as long as they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import flags, formatting, output
from controller.cli.change import patch, read_job, report_change, until
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, terminal
from controller.policy.wording import agreeing

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading

BEST = "best"

Steps = Annotated[
    list[str] | None,
    typer.Argument(help="Steps, or the word best; none: show what is pinned.", metavar="[STEP]..."),
]
Remove = Annotated[bool, typer.Option("--remove", help="Take these pins back.")]


@command
@flags.connects
def pin(
    job: flags.Job,
    steps: Steps = None,
    remove: Remove = False,
    namespace: flags.Namespace = "",
    wait: flags.Wait = False,
    wait_seconds: flags.WaitSeconds = 600.0,
    dry_run: flags.DryRun = False,
    connection: Connection = USUAL,
) -> None:
    """Keep JOB's checkpoints of these STEPs from the trainer's rotation, whatever becomes the best.

    A step that is not saved yet is waited for. --remove takes pins back.
    """
    from controller.cli import cluster

    async def work(api: CallerApi) -> None:
        found = await read_job(api, job)
        if not steps:
            output.lines(page(found, terminal()))
            return
        named = [_step(text, found) for text in steps]
        before = [int(s) for s in (found.spec.get("checkpoints") or {}).get("pins") or []]
        after = [s for s in before if s not in named] if remove else sorted({*before, *named})
        if after == before:
            typer.echo(f"{cluster.called(found.obj)}: nothing to change, its pins are {_listed(before)}")
        else:
            _check(found, after)
            await patch(api, found, {"checkpoints": {"pins": after}}, dry_run, guard=True)
            report_change(found, f"pins {_listed(after)} (were {_listed(before)})", dry_run)
        if not remove and (over := _over(found, named)):
            typer.echo(f"note: {over}", err=True)
        await cluster.say_if_away(api, found.obj)
        if wait and not dry_run and not remove:
            await until(api, found, _pinned(named), wait_seconds, f"pinned at {_listed(named)}")

    cluster.run(work, connection, namespace)


def page(job: Reading, screen: Terminal) -> list[str]:
    """Return what is pinned, and what is asked for."""
    from controller.cli.why import wrapped

    wanted = [int(s) for s in (job.spec.get("checkpoints") or {}).get("pins") or []]
    there = {kept.step: kept for kept in job.record.pinned}
    if not wanted and not there:
        return [*wrapped(f"{job.key} pins nothing:", screen), f"evalstop pin {job.name}{job.flags()} STEP"]
    condition = job.condition("CheckpointsPinned")
    rows = []
    for step in sorted({*wanted, *there}):
        kept = there.get(step)
        if kept is not None:
            rows.append([str(step), "pinned", formatting.size(kept.bytes), kept.path])
        else:
            rows.append(
                [
                    str(step),
                    condition.reason if condition is not None and not condition.status else "asked for",
                    "-",
                    "-",
                ]
            )
    columns = (
        Column("STEP", right=True),
        Column("STATE"),
        Column("SIZE", right=True),
        Column("PATH", text=True),
    )
    lines = render(columns, rows, screen)
    if condition is not None and not condition.status:
        lines += ["", *wrapped(f"{condition.reason}: {condition.message}", screen)]
    return lines


def _step(text: str, job: Reading) -> int:
    if text == BEST:
        if job.record.best is None:
            raise Failure(
                Exit.REFUSED,
                f"{job.key} has no eval yet, so no best step",
                f"evalstop pin {job.name}{job.flags()} STEP",
            )
        return job.record.best.step
    if not (text.isascii() and text.isdigit()):
        raise Failure(
            Exit.USAGE, f"STEP: {text!r} is not allowed, expected a whole number or best", "give --help"
        )
    return int(text)


def _over(job: Reading, named: list[int]) -> str:
    """Return that a run has ended, so that only a checkpoint that is there can be pinned; "": it goes on, or
    each of them is pinned."""
    from controller.policy.job import end_is_unknown

    missing = [step for step in named if step not in {kept.step for kept in job.record.pinned}]
    if job.record.finished is None or end_is_unknown(job.record) or not missing:
        return ""
    steps = f"{agreeing(len(missing), 'that of step', 'those of steps')} {_listed(missing)}"
    return (
        f"{job.key} has ended ({job.record.finished}) and saves no checkpoint any more: {steps} can be "
        f"pinned only where the trainer's rotation has left {agreeing(len(missing), 'it', 'them')}; "
        f"evalstop pin {job.name}{job.flags()} tells"
    )


def _check(job: Reading, after: list[int]) -> None:
    from controller.policy.job import PINS_MAX

    if len(after) > PINS_MAX:
        raise Failure(
            Exit.REFUSED,
            f"{job.key} would have {len(after)} pins ({_listed(after)}), at most {PINS_MAX} are kept",
            f"take one back first: evalstop pin {job.name}{job.flags()} --remove STEP",
        )


def _pinned(named: list[int]) -> Callable[[Reading], str | None]:
    def done(job: Reading) -> str | None:
        there = {kept.step: kept for kept in job.record.pinned}
        if any(step not in there for step in named):
            return None
        return "; ".join(f"step {step} is pinned at {there[step].path}" for step in named)

    return done


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
