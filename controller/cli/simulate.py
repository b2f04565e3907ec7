"""`evalstop simulate`: this job's own evals under another rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import complete, flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.flags import Document
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, terminal
from controller.policy.wording import agreeing, counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading
    from sim.what_if import CurveOutcome

Rules = Annotated[
    list[str],
    typer.Option(
        "--rule",
        help="NAME or NAME:param=value,…; modifiers follow after a +. May be repeated.",
        autocompletion=complete.rules,
    ),
]


@command
@flags.connects
def simulate(
    job: flags.Job,
    rule: Rules,
    namespace: flags.Namespace = "",
    form: flags.Page = Document.TEXT,
    ascii_only: flags.Ascii = False,
    connection: Connection = USUAL,
) -> None:
    """What another --rule would have done to JOB, by the evals in its status (the last 32).

    The job's own rule stands beside it. What a stopped run would have done after its stop was never seen.
    """  # noqa: D401 -- help text
    from controller.cli import cluster, job_view

    async def work(api: CallerApi) -> Reading:
        found = job_view.read(await cluster.job(api, job))
        if form is Document.TEXT:
            await cluster.say_if_away(api, found.obj)
        return found

    found = cluster.run(work, connection, namespace)
    if not found.record.evals:
        raise Failure(
            Exit.REFUSED,
            f"{found.key} has no evals to show to a rule",
            f"evalstop doctor {found.name}{found.flags()} says what its trainer exports",
        )
    outcomes = judged(found, rule)
    seen, kept = found.record.evals_seen, len(found.record.evals)
    notes = [*differences(found, outcomes[0])]
    if seen > kept:
        notes.insert(
            0,
            f"only the last {kept} of {counted(seen, 'eval')} {agreeing(kept, 'is', 'are')} in the status, "
            f"from step {found.record.evals[0].step} on, and each rule begins with the first of them; "
            "evalstop what-if on the operator's decision log has them all",
        )
    whole: dict[str, Any] = {
        "job": found.key,
        "evals": kept,
        "evalsSeen": seen,
        "note": ". ".join(notes) or None,
        "outcomes": [outcome.as_dict() for outcome in outcomes],
    }
    if output.document(whole, form):
        return
    output.lines(_page(found, outcomes, rule, terminal(ascii_only=ascii_only)))
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def differences(job: Reading, own: CurveOutcome) -> Iterator[str]:
    """Yield in which its own rule's outcome differs from the run: another stop, or another best."""
    record, decision = job.record, job.record.decision
    if decision is not None and (decision.by == "User" or decision.proposal.metric):
        return  # another one stopped it
    real = None if decision is None else decision.proposal.step
    if own.stopped_step != real:
        did = "does not stop it now" if real is None else f"came to a stop at step {real}"
        yield (
            f"in the run itself its rule {did}: there it also knows the pool's usual noise, and evals "
            "that are not in the status any more"
        )
    best, kept = record.best, {p.step for p in record.evals}
    if own.stopped_step == real and best is not None and best.step in kept - {own.best_step}:
        yield (
            f"KEPT STEP has the highest score up to the stop; the run's own best, step {best.step}, is the "
            "highest of those that other evals bear out, and its checkpoint is the one that is kept"
        )


def judged(job: Reading, texts: list[str]) -> list[CurveOutcome]:
    """Return the job's own rule first, then the others, on its evals.

    Raises:
        Failure: a rule cannot be used.
    """
    from controller.api.convert import desired
    from controller.policy.job import Direction, declared_scale
    from controller.policy.params import ParamError
    from sim import specs
    from sim.what_if import curve

    record = job.record
    progress = record.progress
    total = progress.total_steps if progress is not None else None
    pace = progress.worked / progress.step if progress is not None and progress.step else None
    outcomes = []
    try:
        chosen = [own_rule(job), *(specs.rule(text) for text in texts)]
    except (ParamError, ValueError) as error:
        raise Failure(
            Exit.USAGE, f"--rule: {error}", "evalstop simulate --help; the rules: docs/use/stop-rules.md"
        ) from None
    for one in chosen:
        outcomes.append(
            curve(
                record.evals,
                one,
                direction=Direction.MAXIMIZE if job.maximize else Direction.MINIMIZE,
                total_steps=total,
                end_step=total,
                gpu_seconds_per_step=pace,
                scale=declared_scale(desired(job.obj, None), record),
            )
        )
    return outcomes


def own_rule(job: Reading) -> Any:
    """Return the rule of the job's spec, in the simulator's form."""
    from controller.api.convert import desired
    from sim.foresight import RuleSpec

    wanted = desired(job.obj, None)
    return RuleSpec(wanted.rule, wanted.modifiers)


def _page(job: Reading, outcomes: list[CurveOutcome], texts: list[str], screen: Terminal) -> list[str]:
    from controller.cli.curve import Mark
    from controller.cli.pictures import curves

    columns = (
        Column("RULE"),
        Column("WARNED", right=True, gives_way=6),
        Column("STOPPED", right=True),
        Column("WHY", gives_way=5),
        Column("KEPT STEP", right=True, gives_way=2),
        Column("KEPT SCORE", right=True, gives_way=1),
        Column("LOST", right=True, gives_way=4),
        Column("GPU-HOURS SAVED", right=True, gives_way=4),
    )
    own = outcomes[0].rule.partition(":")[0].partition("+")[0]
    rows = []
    for place, one in enumerate(outcomes):
        rows.append(
            [
                f"{own} (its own)" if place == 0 else texts[place - 1],
                _step(one.warned_step),
                _step(one.stopped_step),
                one.reason or formatting.NOTHING,
                _step(one.best_step),
                formatting.number(one.best_score),
                "unknown" if one.stopped_step is not None and one.score_lost is None else _lost(one),
                formatting.NOTHING if one.gpu_hours_saved is None else f"{one.gpu_hours_saved:.2f}",
            ]
        )
    scores = {p.step: p.score for p in job.record.evals}
    digits = "123456789"
    marks = [
        Mark(one.stopped_step, scores[one.stopped_step], digits[n % 9], digits[n % 9], "yellow",
             f"{texts[n]} stops, step {one.stopped_step}")
        for n, one in enumerate(outcomes[1:])
        if one.stopped_step in scores and one.stopped_step is not None
    ]  # fmt: skip
    lines = [*curves(job, screen, marks), "", *render(columns, rows, screen)]
    for one in outcomes:
        if one.missing:
            lines.append(f"{one.rule}: looks at {', '.join(one.missing)}, which its evals do not have")
    return lines


def _step(step: int | None) -> str:
    return formatting.NOTHING if step is None else str(step)


def _lost(one: CurveOutcome) -> str:
    if one.score_lost is None:
        return formatting.NOTHING
    beyond = {True: "", False: " (noise)", None: ""}[one.lost_quality] if one.score_lost else ""
    return formatting.number(one.score_lost) + beyond
