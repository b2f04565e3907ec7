"""How long a run takes as a whole: from its own pace, from finished runs like it, or as its user states.

Runs of one kind (`Kind`) of the same namespace and pool take about the same time per step: the same images,
gang and labels. Where none has ended, those of the same images and gang count. Of several the median is
taken, which one odd run does not move. A run that was stopped counts with the time that its pace would have
made of all its steps; one that failed does not count.

Once the run itself makes steps its own pace takes over. Remaining time at a constant pace is
``worked x (1 - p) / p`` after a share ``p`` of the steps; early on that is noisy, for start-up and the first
evals weigh on few steps, so up to `OWN_PACE` the two are mixed in proportion to ``p`` (a choice, not a fit).

Without history the user's statement stands in for it; without that, the own pace stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from controller.policy.jobs import JobRecord, RunProgress

OWN_PACE = 0.1  # share of the run from which on its own pace alone counts


class Kind(NamedTuple):
    """What makes runs alike. ``labels``: the RLHFJob's own, sorted."""

    namespace: str
    images: tuple[str, ...]
    replicas: int
    gpus_per_replica: int
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def gpus(self) -> int:
        return self.replicas * self.gpus_per_replica

    @property
    def broad(self) -> Kind:
        """The same without the labels."""
        return self._replace(labels=())


class PastRun(NamedTuple):
    """A run that has ended: seconds of running time that all its steps took, or would have taken."""

    seconds: float
    steps: int | None  # how many steps that is; None: it never told


class History:
    """Past runs by kind, exact and broad."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[tuple[Kind, PastRun]]) -> None:
        found: dict[Kind, list[PastRun]] = {}
        for kind, run in runs:
            for key in {kind, kind.broad}:
                found.setdefault(key, []).append(run)
        self._runs: Mapping[Kind, list[PastRun]] = found

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
    """What a job's record tells of how long such runs take; None: it has not ended, or tells nothing."""
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


def whole(
    kind: Kind, progress: RunProgress | None, history: History = NO_HISTORY, stated: float | None = None
) -> float | None:
    """Seconds of running time that the whole run takes; None: nothing is known.

    Args:
        progress: how far it has come, if it has told. stated: what its user expects, s.
    """
    expected = history.whole(kind, progress.total_steps if progress is not None else None)
    if expected is None:
        expected = stated
    own = _own_pace(progress, kind.gpus)
    if own is None or progress is None:
        return expected
    if expected is None:
        return own
    trust = min(1.0, progress.share / OWN_PACE)
    return trust * own + (1 - trust) * expected


def _own_pace(progress: RunProgress | None, gpus: int) -> float | None:
    if progress is None or gpus <= 0 or progress.step <= 0 or progress.worked <= 0:
        return None
    return progress.worked / gpus / progress.share
