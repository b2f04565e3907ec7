"""Lists of jobs: rows, filters, order, pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controller.frozen import dataclass
from controller.policy.job import Direction, Finding, health
from controller.policy.wording import statistic
from controller.web.dashboard.feed import Job
from controller.web.dashboard.states import GROUPS, State, state

PAGE = 50  # rows; more are on further pages


@dataclass(frozen=True, slots=True)
class Row:
    """One job in a list.

    Attributes:
        best_lost: no checkpoint of its best eval is left.
        best_alone: its best eval was compared with no other: all before were scored otherwise.
        below: by how much its newest score is below its best, as a share of the best's size; None: not known.
        since: when it came into its state (s).
        marks: what of it needs a hand, the most urgent first.
        waste: GPU-seconds that it has held since its first warning.
    """

    job: Job
    state: State
    step: int | None
    total: int | None
    score: float | None
    best: float | None
    best_step: int | None
    best_lost: bool
    best_alone: bool
    below: float | None
    evidence: str
    since: float
    marks: tuple[Finding, ...]
    waste: float

    @property
    def needs_attention(self) -> bool:
        return self.job.problem != "" or any(one.warning for one in self.marks)

    @property
    def why(self) -> str:
        """Return why it is in its state, in a word; "": there is no reason to show."""
        return self.marks[0].reason if self.marks else ""


def row(job: Job, now: float) -> Row:
    """Return a job as a row of a list. ``now``: s since the epoch."""
    record = job.record
    marks = health(record, now) if not job.problem else ()
    warned = min((one.since for one in marks if one.warning), default=now)
    held = job.gpus if record.admission is not None else 0
    newest = record.evals[-1] if record.evals else None
    verdict = record.rule.verdict if record.rule is not None else None
    evidence = ""
    if verdict is not None and math.isfinite(verdict.statistic) and math.isfinite(verdict.threshold):
        evidence = f"{statistic(verdict.statistic, verdict.threshold, 3)} of {verdict.threshold:.3g}"
    sign = 1.0 if job.desired.direction is Direction.MAXIMIZE else -1.0
    below = None
    if newest is not None and record.best is not None:
        gap = sign * (record.best.score - newest.score)
        below = max(0.0, gap / abs(record.best.score)) if record.best.score else None
    since = max((c.since for c in record.conditions), default=job.created)
    return Row(
        job=job,
        state=state(job.summary),
        step=newest.step if newest else None,
        total=record.progress.total_steps if record.progress else None,
        score=newest.score if newest else None,
        best=record.best.score if record.best else None,
        best_step=record.best.step if record.best else None,
        best_lost=record.best_is_lost,
        best_alone=record.best_is_alone,
        below=below,
        evidence=evidence,
        since=since,
        marks=marks,
        waste=held * max(0.0, now - warned),
    )


_ORDERS: Mapping[str, Callable[[Row], Any]] = {
    "name": lambda r: r.job.key,
    "state": lambda r: (GROUPS.index(r.state.group), r.state.word, r.job.key),
    "pool": lambda r: (r.job.pool, r.job.key),
    "gpus": lambda r: (r.job.gpus, r.job.key),
    "step": lambda r: (-1 if r.step is None else r.step, r.job.key),
    "score": lambda r: (-math.inf if r.score is None else r.score, r.job.key),
    "below": lambda r: (-1.0 if r.below is None else r.below, r.job.key),
    "since": lambda r: (r.since, r.job.key),
}
ORDERS = tuple(_ORDERS)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Query of a list; empty text: anything. ``order`` begins with - for the largest first."""

    text: str = ""
    group: str = ""
    pool: str = ""
    namespace: str = ""
    order: str = "state"
    page: int = 1

    @staticmethod
    def of(query: Mapping[str, str]) -> ListQuery:
        """From a URL's query; what is not understood is as if it were not there."""
        order = query.get("sort", "state")
        page = query.get("page", "1")
        return ListQuery(
            text=query.get("q", "").strip()[:100],
            group=query.get("state", "") if query.get("state") in (*GROUPS, "attention") else "",
            pool=query.get("pool", ""),
            namespace=query.get("namespace", ""),
            order=order if order.lstrip("-") in _ORDERS else "state",
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
        )

    def query(self) -> dict[str, str]:
        """As a URL's query, without what is usual; the page left out."""
        found = {
            "q": self.text,
            "state": self.group,
            "pool": self.pool,
            "namespace": self.namespace,
            "sort": "" if self.order == "state" else self.order,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the rows that were wanted. ``counts``: of all rows before the state filter, by group."""

    rows: tuple[Row, ...]
    total: int
    page: int
    pages: int
    counts: Mapping[str, int]
    wanted: ListQuery

    @property
    def first(self) -> int:
        return (self.page - 1) * PAGE + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.page * PAGE, self.total)


def listing(rows: Iterable[Row], wanted: ListQuery) -> Listing:
    """Return the rows that are wanted, in order, cut to the page (the last one, if there are fewer)."""
    words = wanted.text.lower().split()
    found = [
        r
        for r in rows
        if (not wanted.pool or r.job.pool == wanted.pool)
        and (not wanted.namespace or r.job.namespace == wanted.namespace)
        and all(w in r.job.key.lower() or w in r.state.word.lower() for w in words)
    ]
    counts = Counter(r.state.group for r in found)
    counts["attention"] = sum(r.needs_attention for r in found)
    if wanted.group == "attention":
        found = [r for r in found if r.needs_attention]
    elif wanted.group:
        found = [r for r in found if r.state.group == wanted.group]
    found.sort(key=_ORDERS[wanted.order.lstrip("-")], reverse=wanted.order.startswith("-"))
    pages = max(1, math.ceil(len(found) / PAGE))
    page = min(max(1, wanted.page), pages)
    return Listing(
        tuple(found[(page - 1) * PAGE : page * PAGE]), len(found), page, pages, dict(counts), wanted
    )
