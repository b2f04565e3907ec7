"""Prometheus text of a trainer (docs/use/trainer-contract.md) -> ScrapeView.

A body is taken whole or not at all: a line that cannot be read makes the scrape fail, so that no decision
rests on half a page. What is readable but unusable is named in the view's message: two values for one series
are left out (a gap, and a gap never stops a run); a score that is not finite is passed on, since the brain
ignores such scores and must know that the eval was not missed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from controller import names
from controller.metrics.points import evaluators_of, points_of
from controller.metrics.samples import (
    DEFAULT_LIMITS,
    Limits,
    MetricsError,
    Sample,
    count,
    divided,
    refuse_labels,
    same,
    samples_of,
    wanted_lines,
)
from controller.policy.job import MetricPoints, Page, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint
from controller.untrusted_text import printable

__all__ = ["DEFAULT_LIMITS", "Limits", "MetricsError", "parse", "printable"]

METRIC_CHARS = 200  # of a metric's name, as in spec.metrics[].name


class Evals(NamedTuple):
    """Evals of a page, as its lines give them; the other fields are those of `ScrapeView` that follow from
    them.

    ``digest`` is of those lines and of the evaluator's version: most scrapes find the same ones. ``notes``
    say what of the evals could not be used.
    """

    digest: bytes
    notes: tuple[str, ...]
    metrics_seen: tuple[str, ...]
    points: tuple[EvalPoint, ...]
    others: tuple[MetricPoints, ...]
    evals_labelled: bool

    @classmethod
    def of(cls, digest: bytes, notes: tuple[str, ...], view: ScrapeView) -> Evals:
        """Return what a page said from the view that was made of it."""
        return cls(digest, notes, view.metrics_seen, view.points, view.others, view.evals_labelled)


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
    return read(body, metric, limits, others)[0]


def read(
    body: bytes,
    metric: str,
    limits: Limits = DEFAULT_LIMITS,
    others: Sequence[str] = (),
    known: Evals | None = None,
) -> tuple[ScrapeView, Evals]:
    """`parse`, with what the last page of the same target said about its evals; the same lines are not
    parsed again. ``known`` is of the same ``metric``, ``others`` and ``limits``."""
    wanted = wanted_lines(body, limits)
    of_evals, rest = divided(wanted)
    samples = samples_of(rest, limits)
    versions = _evaluators(samples)
    digest = blake2b("\n".join((repr(versions), *of_evals)).encode(), digest_size=16).digest()
    if known is None or known.digest != digest:
        known = _evals(digest, of_evals, metric, limits, others, versions)
    view = _view(known, samples, versions, metric)
    if not known.metrics_seen and (found := misplaced(body, wanted, metric)):
        view = replace(view, misplaced=found)
    return view, known


def misplaced(body: bytes, wanted: Sequence[str], metric: str) -> str:
    """Return how a page without evals has the metric all the same: without its label, or as a series of its
    own name; "": it does not.

    A page that has any line of the contract (``wanted``) is written by a client, whose evals may be to come.
    """
    expected = f'expected {names.METRIC_EVAL_SCORE}{{metric="{printable(metric, 128)}",step="…"}}'
    if any(line.lstrip().startswith(names.METRIC_EVAL_SCORE) for line in wanted):
        return f"{names.METRIC_EVAL_SCORE} is there without the label metric, {expected}"
    if wanted:
        return ""
    name = re.sub(r"[^a-zA-Z0-9_:]", "_", metric)
    series = re.search(rf"^[ \t]*((?:[a-zA-Z_:][\w:]*_)?{name})[ \t{{]".encode(), body, re.MULTILINE)
    return f"a series {printable(series[1].decode(), 128)} is there, {expected}" if series else ""


def _evals(
    digest: bytes, lines: list[str], metric: str, limits: Limits, others: Sequence[str], versions: list[str]
) -> Evals:
    samples = samples_of(lines, limits)
    notes: list[str] = []

    def found(name: str) -> list[EvalPoint]:
        return points_of(samples, name, notes)[-limits.points :]

    seen = sorted({s.labels.get("metric", "") for s in samples if s.name == names.METRIC_EVAL_SCORE} - {""})
    points, scored_by = found(metric), evaluators_of(samples, metric)
    beside = [
        MetricPoints(name, _comparable(found(name), evaluators_of(samples, name), versions))
        for name in others
    ]
    return Evals(
        digest,
        tuple(notes),
        tuple(printable(name, METRIC_CHARS) for name in seen[: limits.names]),
        _comparable(points, scored_by, versions),
        tuple(other for other in beside if other.points),
        len(versions) == 1 and all((p.attempt, p.step) in scored_by for p in points),
    )


def _view(evals: Evals, samples: list[Sample], versions: list[str], metric: str) -> ScrapeView:
    notes = list(evals.notes)
    page = _page(samples)
    totals = (
        s for s in samples if s.name == names.METRIC_EVALS_TOTAL and s.labels.get("metric", metric) == metric
    )

    def gauge(name: str) -> float | None:
        return _single((s for s in samples if s.name == name), name, notes, page)

    view = ScrapeView(
        outcome=ScrapeOutcome.OK,
        metrics_seen=evals.metrics_seen,
        points=evals.points,
        evals_total=count(_single(totals, names.METRIC_EVALS_TOTAL, notes, page)),
        proxy=gauge(names.METRIC_PROXY_REWARD),
        kl=gauge(names.METRIC_KL),
        loss=gauge(names.METRIC_LOSS),
        step=count(gauge(names.METRIC_STEP)),
        total_steps=count(gauge(names.METRIC_TOTAL_STEPS)),
        checkpoint_step=count(gauge(names.METRIC_CHECKPOINT_STEP)),
        resumed_step=count(gauge(names.METRIC_RESUMED_STEP)),
        request_served=count(gauge(names.METRIC_REQUEST_SERVED)),
        evaluator=printable(",".join(versions), 128) or None,
        evals_labelled=evals.evals_labelled,
        others=evals.others,
        page=page,
    )
    return replace(view, message="; ".join(notes[:4])) if notes else view


def _page(samples: list[Sample]) -> Page | None:
    """Return whose page it is. None: it does not say.

    Raises:
        MetricsError: it says so twice, or not as the contract has it.
    """
    infos = [s for s in samples if s.name == names.METRIC_RUN_INFO and s.value == 1]
    if not infos:
        return None
    speakers = {(s.labels.get("uid", ""), s.labels.get("attempt", "")) for s in infos}
    uid, attempt = speakers.pop()
    if speakers:
        raise refuse_labels(f"{names.METRIC_RUN_INFO} is there for several processes: expected one series")
    if not uid:
        raise refuse_labels(f"{names.METRIC_RUN_INFO} has no uid: expected that of run.json")
    try:
        return Page(printable(uid, 64), Attempt.parse(attempt[:32]))
    except ValueError as error:
        raise refuse_labels(f"{names.METRIC_RUN_INFO}: {printable(str(error), 160)}") from None


def _single(samples: Iterable[Sample], name: str, notes: list[str], page: Page | None) -> float | None:
    """Return the page's process's one finite value, else the last one's. None: absent, not finite or
    several."""
    values: dict[Attempt, list[float]] = {}
    for sample in samples:
        try:
            attempt = Attempt.parse(sample.labels.get("attempt", "0")[:32])
        except ValueError as error:
            raise refuse_labels(f"{name}: {printable(str(error), 160)}") from None
        values.setdefault(attempt, []).append(sample.value)
    if not values:
        return None
    own = page.attempt if page is not None and page.attempt in values else [*values][-1]
    first, *others = values[own]
    if not all(same(first, other) for other in others):
        notes.append(f"{name} has several values for one attempt: ignored, expected one series")
        return None
    return first if math.isfinite(first) else None


def _evaluators(samples: list[Sample]) -> list[str]:
    """Versions of the evaluator that the page names: one, mostly."""
    infos = (s for s in samples if s.name == names.METRIC_EVALUATOR_INFO and s.value == 1)
    return sorted({s.labels.get("version", "") for s in infos} - {""})


def _comparable(
    points: Sequence[EvalPoint], scored_by: Mapping[tuple[Attempt, int], str], versions: list[str]
) -> tuple[EvalPoint, ...]:
    """Return evals without those that another evaluator than the page's one scored, as they say."""
    if len(versions) != 1:
        return tuple(points)
    return tuple(p for p in points if scored_by.get((p.attempt, p.step), versions[0]) == versions[0])
