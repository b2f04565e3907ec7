"""Draw a job's eval curve in the terminal, with its best and its stop marked."""

from __future__ import annotations

from collections.abc import Sequence

from controller.cli.curve import Curve, Mark, draw
from controller.cli.job_view import Reading
from controller.cli.terminal import Terminal
from controller.policy.job import JobRecord, course
from controller.policy.wording import counted

HEIGHT, PROXY_HEIGHT = 10, 4
WIDTH = 78  # where nobody knows how wide the screen is


def curves(job: Reading, screen: Terminal, more: Sequence[Mark] = ()) -> list[str]:
    """Return the eval scores, and beneath them the proxy reward where the trainer tells it; [] without
    evals."""
    record = job.record
    if not record.evals:
        return []
    width = min(screen.width or WIDTH, 100)
    whole = course(record)
    points = [(float(p.step), p.score) for p in whole.points]
    title = f"{job.metric.get('name', 'score')} by step"
    if whole.points[0].bucket:
        title += f", before step {whole.first} the newest of each {counted(whole.width, 'step')}"
    elif record.evals_seen > len(record.evals):
        title += f", the last {len(record.evals)} of {counted(record.evals_seen, 'eval')}"
    lines = draw(Curve(title, points, (*_marks(record), *more)), width, HEIGHT, screen)
    proxies = [(float(p.step), p.proxy) for p in whole.points if p.proxy is not None]
    if len(proxies) > 1:
        lines += ["", *draw(Curve("proxy reward by step", proxies), width, PROXY_HEIGHT, screen)]
    return lines


def _marks(record: JobRecord) -> list[Mark]:
    scores = {p.step: p.score for p in record.evals}
    if record.best is not None:
        scores.setdefault(record.best.step, record.best.score)
    marks = []
    best, decision = record.best, record.decision
    if best is not None and best.step in scores:
        marks.append(Mark(best.step, best.score, "◆", "B", "green", f"best, step {best.step}"))
    if decision is not None and decision.proposal.step in scores:
        step = decision.proposal.step
        what = "stop" if decision.mode == "Enforce" else "stop (Shadow)"
        marks.append(Mark(step, scores[step], "✖", "X", "red", f"{what} decided, step {step}"))
    return marks
