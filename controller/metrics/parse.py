"""Prometheus text of a trainer (docs/trainer-contract.md) -> ScrapeView.

A body is taken whole or not at all: a line that cannot be read makes the scrape fail, so that no decision
rests on half a page. What is readable but unusable is named in the view's message: two values for one series
are left out (a gap, and a gap never stops a run); a score that is not finite is passed on, since the brain
ignores such scores and must know that the eval was not missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller import names
from controller.metrics.points import points_of
from controller.metrics.samples import (
    DEFAULT_LIMITS,
    Limits,
    MetricsError,
    Sample,
    count,
    printable,
    refuse,
    same,
    samples_in,
)
from controller.policy.jobs import MetricPoints, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt

__all__ = ["DEFAULT_LIMITS", "Limits", "MetricsError", "parse", "printable"]


def parse(
    body: bytes, metric: str, limits: Limits = DEFAULT_LIMITS, others: Sequence[str] = ()
) -> ScrapeView:
    """Read one metrics page; ``metric`` is the Primary metric's name, the value of the ``metric`` label.

    ``others`` names the metrics whose evals are wanted besides; one that the page lacks is left out.

    Returns:
        A view with outcome OK, ``at`` 0. ``points`` may be empty: ``metrics_seen`` then tells what there is.

    Raises:
        MetricsError: over a limit, or not Prometheus text, or not what the contract says. Nothing else.
    """
    samples = samples_in(body, limits)
    notes: list[str] = []
    seen = sorted({s.labels.get("metric", "") for s in samples if s.name == names.METRIC_EVAL_SCORE} - {""})
    points = points_of(samples, metric, notes)
    beside = ((name, points_of(samples, name, notes)) for name in others)

    totals = (
        s for s in samples if s.name == names.METRIC_EVALS_TOTAL and s.labels.get("metric", metric) == metric
    )

    def gauge(name: str) -> float | None:
        return _single((s for s in samples if s.name == name), name, notes)

    view = ScrapeView(
        outcome=ScrapeOutcome.OK,
        metrics_seen=tuple(printable(name, 128) for name in seen[: limits.names]),
        points=tuple(points[-limits.points :]),
        evals_total=count(_single(totals, names.METRIC_EVALS_TOTAL, notes)),
        proxy=gauge(names.METRIC_PROXY_REWARD),
        kl=gauge(names.METRIC_KL),
        step=count(gauge(names.METRIC_STEP)),
        total_steps=count(gauge(names.METRIC_TOTAL_STEPS)),
        checkpoint_step=count(gauge(names.METRIC_CHECKPOINT_STEP)),
        resumed_step=count(gauge(names.METRIC_RESUMED_STEP)),
        request_served=count(gauge(names.METRIC_REQUEST_SERVED)),
        evaluator=_evaluator(samples),
        others=tuple(MetricPoints(name, tuple(found[-limits.points :])) for name, found in beside if found),
    )
    return replace(view, message="; ".join(notes[:4]))


def _single(samples: Iterable[Sample], name: str, notes: list[str]) -> float | None:
    """The newest attempt's one finite value. None: absent, not finite or contradicting itself."""
    values: dict[Attempt, list[float]] = {}
    for sample in samples:
        try:
            attempt = Attempt.parse(sample.labels.get("attempt", "0")[:32])
        except ValueError as error:
            raise refuse(f"{name}: {printable(str(error), 160)}") from None
        values.setdefault(attempt, []).append(sample.value)
    if not values:
        return None
    first, *others = values[max(values)]
    if not all(same(first, other) for other in others):
        notes.append(f"{name} has several values for one attempt: ignored, expected one series")
        return None
    return first if math.isfinite(first) else None


def _evaluator(samples: list[Sample]) -> str | None:
    infos = (s for s in samples if s.name == names.METRIC_EVALUATOR_INFO and s.value == 1)
    versions = {s.labels.get("version", "") for s in infos}
    return printable(",".join(sorted(versions - {""})), 128) or None
