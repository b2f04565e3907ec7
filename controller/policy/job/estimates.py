"""A run's whole duration: from its own pace, from finished runs like it, or as its user states.

Runs of one kind (`Kind`) of the same namespace and pool take about the same time per step: the same images,
gang and labels. Where none has ended, those of the same images and gang count. Of several the median is
taken, which one odd run does not move. A run that was stopped counts with the time that its pace would have
made of all its steps; one that failed does not count.

Once the run itself makes steps its own pace takes over: the time that steps took since the first that was
seen, by the operator's clock, times those that are left. Early on that is noisy, for start-up and the first
evals weigh on few steps, so up to `OWN_PACE` the two are mixed in proportion to the share of the steps that
was seen to be made (a choice, not a fit).

Without history the user's statement stands in for it; without that, the own pace stands alone.

**What is said is not taken for what is.** Steps, and how many there are, and how long a run will take, are
said by those who want to go first. So (1) what is said is corrected by how wrong such words were of the
namespace's runs before, ended ones and those that are past their time already (`Correction`), upwards only.
(2) The least that a run was ever to take is kept (`Expected`). One that has run for `OVERDUE` times as long,
corrected by ended runs, has no estimate any more, and with it no place before others. (3) What is done is
told by the time that it ran and never by the share that it reports. So whoever lies goes first for as long as
he said, and half of that again, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from statistics import median
from typing import NamedTuple

from controller.policy.job.record import Expected, JobRecord, RunProgress
from controller.policy.job.types import Desired

OWN_PACE = 0.1  # share of the run from which on its own pace alone counts
PACE_KNOWN = 0.05  # and from which on it is held to what its pace came to
OVERDUE = 1.5  # times as long as it was to take: then nobody knows how long it will


class Kind(NamedTuple):
    """A kind of runs that are alike. ``labels``: the RLHFJob's own, sorted."""

    namespace: str
    images: tuple[str, ...]
    replicas: int
    gpus_per_replica: int
    labels: tuple[tuple[str, str], ...] = ()
    actor_gpus: int = 0  # of its base actors together

    @property
    def gpus(self) -> int:
        return self.replicas * self.gpus_per_replica + self.actor_gpus

    @property
    def broad(self) -> Kind:
        """The same without the labels."""
        return self._replace(labels=())


class PastRun(NamedTuple):
    """A run that has ended: seconds of running time that all its steps took, or would have taken."""

    seconds: float
    steps: int | None  # how many steps that is; None: it never told


class Correction(NamedTuple):
    """Factors of 1 or more by which a namespace's runs took longer than was expected of them.

    Attributes:
        stated: than their users said.
        paced: than the pace of their steps promised.
        due: the same by ended runs alone. What goes on for too long says how far not to trust the next, and
            excuses nobody.
    """

    stated: float = 1.0
    paced: float = 1.0
    due: tuple[float, float] = (1.0, 1.0)  # stated, paced


class History:
    """Ended runs by kind, exact and broad, and by namespace how wrong their expected times were."""

    __slots__ = ("_corrections", "_runs")

    def __init__(
        self, runs: Iterable[tuple[Kind, PastRun]], corrections: Mapping[str, Correction] | None = None
    ) -> None:
        found: dict[Kind, list[PastRun]] = {}
        for kind, run in runs:
            for key in {kind, kind.broad}:
                found.setdefault(key, []).append(run)
        self._runs: Mapping[Kind, list[PastRun]] = found
        self._corrections = corrections or {}

    def correction(self, namespace: str) -> Correction:
        return self._corrections.get(namespace, Correction())

    def whole(self, kind: Kind, steps: int | None = None) -> float | None:
        """Median running time (s) of runs of this kind, else of its broad one; None: there was none.

        ``steps``: how many the run at hand means to make; where past runs told theirs, their time per step
        counts, so that a run of twice the steps is expected to take twice as long.
        """
        runs = self._runs.get(kind) or self._runs.get(kind.broad)
        if not runs:
            return None
        if steps:
            paces = [run.seconds / run.steps for run in runs if run.steps]
            if paces:
                return median(paces) * steps
        return median(run.seconds for run in runs)


NO_HISTORY = History(())


def past_run(record: JobRecord, gpus: int) -> PastRun | None:
    """Return what a job's record tells of how long such runs take; None: it has not ended, or tells
    nothing."""
    if gpus <= 0:
        return None
    seconds = max(0.0, record.attained - record.lost) / gpus
    steps = record.progress.total_steps if record.progress is not None else None
    if seconds <= 0:
        return None
    if record.finished == "Complete":
        return PastRun(seconds, steps)
    stopped = record.decision is not None and record.decision.pods_gone_at is not None
    if stopped and record.finished is None and record.progress is not None and record.progress.step > 0:
        return PastRun(seconds / record.progress.share, steps)
    return None


class Wrong(NamedTuple):
    """A run's time, so far or in all, divided by the time expected; None: no time was expected."""

    stated: float | None
    paced: float | None
    ended: bool


def how_wrong(record: JobRecord, gpus: int, worked: float) -> Wrong | None:
    """Return what a run tells of the words of its namespace; None: nothing, or not yet.

    ``worked``: s of running time so far whose work was not lost. A run that goes on tells something only once
    it has taken longer than was said.
    """
    stated = record.expected
    if stated is None or worked <= 0.0:
        return None
    past = past_run(record, gpus)
    took, least = (past.seconds, 0.0) if past is not None else (worked, 1.0)

    def ratio(expected: float | None) -> float | None:
        return took / expected if expected and took >= least * expected else None

    found = Wrong(ratio(stated.stated), ratio(stated.paced), past is not None)
    return None if found[:2] == (None, None) else found


def correction(found: Iterable[Wrong]) -> Correction:
    """Return the median of each ratio, never less than 1: no run is expected to be quicker than stated."""
    known = list(found)

    def middle(ratios: Iterable[float | None]) -> float:
        return max(1.0, median([ratio for ratio in ratios if ratio is not None] or [1.0]))

    ended = [wrong for wrong in known if wrong.ended]
    due = middle(wrong.stated for wrong in ended), middle(wrong.paced for wrong in ended)
    return Correction(middle(w.stated for w in known), middle(w.paced for w in known), due)


def stated(known: Expected | None, desired: Desired) -> Expected | None:
    """Return what a run is held to by what its user states now, while it runs."""
    word = desired.expected_seconds
    if word is None:
        return known
    before = known or Expected()
    return replace(before, stated=min(word, inf if before.stated is None else before.stated))


def paced(known: Expected | None, progress: RunProgress, desired: Desired) -> Expected | None:
    """Return what a run is held to by its pace as it is measured now."""
    own = _own_pace(progress, desired.gpus)
    if own is None or _seen(progress) < PACE_KNOWN:
        return known
    before = known or Expected()
    return replace(before, paced=min(own, inf if before.paced is None else before.paced))


class Times(NamedTuple):
    """Running time (s) of a whole run, what is left of it, and after how much more it is overdue."""

    whole: float
    left: float
    overdue_in: float


def by_word(
    record: JobRecord, stated: float | None, worked: float, gpus: int, trust: Correction
) -> Times | None:
    """Return the times by what the user states, or by the run's own pace where that is slower.

    None: nothing is stated, or the run is overdue.

    Args:
        record: the job's record.
        stated: running time that its user states now (s).
        worked: running time so far whose work was not lost (s).
        gpus: the job's GPUs.
        trust: by how much the namespace's runs took longer than stated.
    """
    if stated is None:
        return None
    held = record.expected.stated if record.expected is not None else None
    most = OVERDUE * trust.due[0] * min(stated, inf if held is None else held)
    if worked >= most:
        return None
    whole_, progress = stated * trust.stated, record.progress
    own = _own_pace(progress, gpus)
    if own is not None and progress is not None and _seen(progress) >= OWN_PACE:
        whole_ = max(whole_, own)
    return Times(whole_, max(0.0, whole_ - worked), most - worked)


def by_pace(
    kind: Kind, record: JobRecord, past: History, stated: float | None, worked: float
) -> Times | None:
    """By its own pace, runs like it, or what its user states; None: nothing is known, or it is overdue."""
    trust, held = past.correction(kind.namespace), record.expected
    if stated is not None and held is not None and held.stated is not None:
        stated = min(stated, held.stated)
    found = whole(kind, record.progress, past, None if stated is None else stated * trust.stated)
    due = whole(kind, record.progress, past, None if stated is None else stated * trust.due[0])
    if found is None or due is None:
        return None
    if held is not None and held.paced is not None:
        due, found = held.paced * trust.due[1], max(found, held.paced * trust.paced)
    if worked >= OVERDUE * due:
        return None
    return Times(found, max(0.0, found - worked), OVERDUE * due - worked)


def whole(
    kind: Kind, progress: RunProgress | None, history: History = NO_HISTORY, stated: float | None = None
) -> float | None:
    """Return seconds of running time that the whole run takes; None: nothing is known.

    Args:
        kind: what makes runs alike.
        progress: how far the run has come, if it has reported it.
        history: of earlier runs.
        stated: running time that its user expects (s).
    """
    expected = history.whole(kind, progress.total_steps if progress is not None else None)
    if expected is None:
        expected = stated
    own = _own_pace(progress, kind.gpus)
    if own is None or progress is None:
        return expected
    if expected is None:
        return own
    trust = min(1.0, _seen(progress) / OWN_PACE)
    return trust * own + (1 - trust) * expected


def _seen(progress: RunProgress) -> float:
    """Share of the run's steps that were seen to be made, 0 to 1."""
    return max(0.0, min(1.0, (progress.step - progress.first_step) / progress.total_steps))


def _own_pace(progress: RunProgress | None, gpus: int) -> float | None:
    if progress is None or gpus <= 0:
        return None
    steps, took = progress.step - progress.first_step, progress.worked - progress.first_worked
    if steps <= 0 or took <= 0:
        return None
    return (progress.worked + max(0, progress.total_steps - progress.step) * took / steps) / gpus
