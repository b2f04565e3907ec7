"""`evalstop why`: the decision with its numbers, the curve, and what to do next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from controller.cli import flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import command
from controller.cli.flags import Document
from controller.cli.terminal import Terminal, clean, terminal
from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.explanation import Explanation
    from controller.cli.job_view import Reading


# Parameters with which a rule learns noise from the pool's other runs, as the gate and some rules always do.
IN_SIGMAS = frozenset({"minDeltaSigmas", "sigmas"})


@command
@flags.connects
def why(
    job: flags.Job,
    namespace: flags.Namespace = "",
    form: flags.Page = Document.TEXT,
    ascii_only: flags.Ascii = False,
    connection: Connection = USUAL,
) -> None:
    """Why JOB was stopped, waits, runs on or is refused: the decision, its numbers, the curve."""
    from controller.cli import cluster, explanation, job_view

    usual = ""

    async def work(api: CallerApi) -> Reading:
        nonlocal usual
        found = job_view.read(await cluster.job(api, job))
        if form is Document.TEXT:
            await cluster.say_if_away(api, found.obj)
            usual = await _usual_noise(api, found)
        return found

    found = cluster.run(work, connection, namespace)
    explained = explanation.explain(found, time.time(), usual)
    if output.document(explanation.document(found, explained), form):
        return
    output.lines(page(found, explained, terminal(ascii_only=ascii_only)))


async def _usual_noise(api: CallerApi, job: Reading) -> str:
    """Return what the pool's other runs show of an eval's noise, which the job's rule may judge by; "": they
    show nothing, the rule asks for none, or the caller may not read the pool."""
    from controller.api.rule_text import rule_and_modifiers
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS
    from controller.policy.stopping import gate, noise
    from controller.policy.types import FleetNoise

    pool = str(job.spec.get("pool") or "")
    asked = {name: params or {} for one in rule_and_modifiers(job.spec) for name, params in one.items()}
    always = {gate.Gate.name, *noise.RULES_BY_NOISE}
    judges = always & asked.keys() or any(IN_SIGMAS & params.keys() for params in asked.values())
    if not judges or not pool or not job.record.evals:
        return ""
    try:
        known = ((await api.get(GPUPOOLS, pool)).get("status") or {}).get("noise") or []
    except ApiError:
        return ""
    metric = str(job.metric.get("name"))
    for one in known:
        of = one.get("namespace"), one.get("metric"), str(one.get("evaluator") or "")
        if of == (job.namespace, metric, job.record.evaluator) and one.get("jobs"):
            sigma = formatting.number(one.get("sigma"))
            told = f"{sigma} per eval by {counted(int(one['jobs']), 'run')} of this namespace, which"
            mine = noise.own(job.record.evals)
            if noise.contradicts(FleetNoise(float(one.get("sigma") or 0.0), 0.0), mine):
                shown = formatting.number(mine.sigma if mine is not None else None)
                return (
                    f"{told} is not used: this run's own evals show {shown}, far less: evalstop pools {pool}"
                )
            return f"{told} counts beside what this run shows: evalstop pools {pool}"
    return ""


def page(job: Reading, explained: Explanation, screen: Terminal) -> list[str]:
    """Return the whole answer as lines."""
    from controller.cli.pictures import curves

    lines = [*wrapped(explained.headline, screen, style="bold"), ""]
    lines += facts(explained.facts, screen)
    if drawn := curves(job, screen):
        lines += ["", *drawn]
    if explained.stages:
        start = explained.stages[0][0]
        lines += ["", screen.paint("What was done", "bold")]
        for at, what in explained.stages:
            when = formatting.moment(at) if at == start else formatting.since(start, at)
            first, *rest = wrapped(what, screen, 24)
            lines += [f"  {when:>20}  {first}", *(" " * 24 + line for line in rest)]
    if explained.next_steps:
        lines += ["", screen.paint("What you can do", "bold")]
        lines += [f"  {clean(do)}" + (f"    # {what}" if what else "") for do, what in explained.next_steps]
    return lines


def facts(found: tuple[tuple[str, str], ...], screen: Terminal) -> list[str]:
    """Labels and texts in two columns; long texts go on below themselves."""
    margin = max((len(label) for label, _ in found), default=0) + 4
    lines = []
    for label, text in found:
        first, *rest = wrapped(text, screen, margin) or [""]
        style = "red" if label == "trouble" else ""
        lines.append(f"  {screen.paint(f'{label:<{margin - 2}}', style)}{first}")
        lines += [" " * margin + line for line in rest]
    return lines


def wrapped(text: str, screen: Terminal, margin: int = 0, style: str = "") -> list[str]:
    """Return the text in lines that fit beside a margin; one line where nobody knows how wide the
    screen is."""
    import textwrap

    text = clean(text)
    if screen.width is None:
        return [screen.paint(text, style)]
    room = max(8, screen.width - margin)
    return [screen.paint(line, style) for line in textwrap.wrap(text, room, break_on_hyphens=False)]
