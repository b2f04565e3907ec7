"""Pool-wide checks before a stop, on virtual GPUs: the decisions are those of `controller.policy`.

It keeps for the simulated pool what a GPUPool's status keeps for a real one (noise, shared falls, since when
the breaker has been open) and shows `fleet.limit_stops` the running jobs as the operator would. Runs of one
group are scored by one metric, and no evaluator has a version here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controller.names import EVALS_KEPT
from controller.policy.fleet import (
    ASKS_POOL,
    LimitedStops,
    day_start,
    learn,
    limit_stops,
    rules_with_e_values,
    usual,
    usual_of_guardrails,
    without_e_value,
)
from controller.policy.job import READINGS_KEPT
from controller.policy.params import ParamError
from controller.policy.stopping import noise
from controller.policy.types import (
    Ended,
    EvalPoint,
    FleetNoise,
    JobView,
    MetricNoise,
    PastStop,
    Proposal,
    Reading,
    ScoredBy,
    SharedFall,
    StopLimits,
    namespace_of,
)
from sim.engine.virtual_job import JudgedJob
from sim.foresight import RuleSpec
from sim.workload import Workload


@dataclass(slots=True)
class _Run:
    """A judged run that holds its GPUs, and its newest evals: (when its score was known, the eval).

    ``others``: what its guardrails' evals have shown of their noise, by metric (`noise.show`).
    """

    job: JudgedJob
    known: list[tuple[float, EvalPoint]]
    others: dict[str, noise.ShownState]
    noise: FleetNoise | None = None


class Fleet:
    """A pool's limits and what it knows of its jobs. A `controller.policy.fleet.limits.Fleet`, too."""

    __slots__ = (
        "_ended",
        "_known",
        "_others",
        "_paused",
        "_scored_by",
        "_since_learned",
        "asking",
        "breaker_since",
        "delayed",
        "ended",
        "falls",
        "limits",
        "noise",
        "runs",
        "stopped",
    )

    def __init__(self, workload: Workload, limits: StopLimits, rule: RuleSpec) -> None:
        """Begin with no runs.

        Raises:
            ParamError: precision is promised and the rule yields no e-values.
        """
        wrong = without_e_value([rule.rule, *(guard for _, guard in rule.guardrails)])
        if limits.precision is not None and wrong is not None:
            expected = f"{' or '.join(rules_with_e_values())}, where a precision is promised"
            raise ParamError("stopRule", wrong.name, expected)
        group = workload.group
        self._scored_by = [
            ScoredBy(namespace_of(workload.key(row)), group[row] if group else "", "")
            for row in range(len(workload))
        ]
        self.limits = limits
        self.runs: dict[int, _Run] = {}
        self.asking: dict[int, Proposal] = {}  # verdicts that stand, by row
        self.stopped: list[PastStop] = []
        self.ended: tuple[Ended, ...] = ()  # today, and those that wait for more GPUs
        self._ended: list[tuple[float, str]] = []  # when, of which namespace
        self.delayed: dict[int, float] = {}  # since when stops wait, or waited, for other namespaces, by row
        self._paused: set[int] = set()  # preempted, and not admitted again yet
        self.breaker_since: float | None = None
        self.noise: tuple[MetricNoise, ...] = ()
        self.falls: tuple[SharedFall, ...] = ()
        self._known: dict[int, list[tuple[float, EvalPoint]]] = {}
        self._others: dict[int, dict[str, noise.ShownState]] = {}
        self._since_learned = 0  # evals since the noise was learned

    def started(self, job: JudgedJob) -> None:
        """Add a judged job that was admitted."""
        self._paused.discard(job.sequence)
        row = job.sequence
        self.runs[row] = _Run(job, self._known.setdefault(row, []), self._others.setdefault(row, {}))

    def left(self, job: JudgedJob, now: float, *, stopped: bool = False, ended: bool = False) -> None:
        """Remove a job that leaves its GPUs at ``now`` (s): stopped by its rule, ended, or preempted."""
        proposal = self.asking.pop(job.sequence, None)
        self.runs.pop(job.sequence, None)
        if stopped and proposal is not None:
            self.stopped.append(PastStop(now, proposal.e_value, job.key))
        elif ended:
            self._ended.append((now, namespace_of(job.key)))
        elif not stopped:
            self._paused.add(job.sequence)

    def usual(self, row: int) -> FleetNoise | None:
        """Return what the pool tells this job of its noise."""
        return usual(self.noise, self._scored_by[row], self.limits.scope)

    def usual_of(self, row: int, metrics: Iterable[str]) -> dict[str, FleetNoise]:
        """Return what the pool tells this job of the noise of its guardrail metrics."""
        return dict(usual_of_guardrails(self.noise, self._scored_by[row], self.limits.scope, metrics))

    def observe(self, row: int, now: float, point: EvalPoint) -> None:
        """Record a running job's newest score."""
        run = self.runs[row]
        run.known.append((now, point))
        del run.known[:-EVALS_KEPT]
        run.noise = noise.own(p for _, p in run.known)
        for metric, score in point.others.items():
            before = run.others.get(metric, noise.NOTHING_SHOWN)
            run.others[metric] = noise.show(before, EvalPoint(point.step, score))
        self._since_learned += 1
        # As often as there are jobs, so that learning costs no more than the evals do.
        if self._since_learned >= len(self.runs):
            self._since_learned = 0
            self.noise = learn(self.noise, self._views(), self.limits.scope)

    def cut(self, row: int, fall: SharedFall) -> list[EvalPoint]:
        """Forget the job's evals before a fall that it shares; those since then."""
        known = self._known[row]
        known[:] = [(at, point) for at, point in known if fall.counts(at)]
        self._others.get(row, {}).clear()
        self.asking.pop(row, None)
        return [point for _, point in known]

    def concerned(self, fall: SharedFall) -> list[int]:
        """Return rows that have evals before this fall."""
        rows = (r for r in self._known if fall.concerns(self._scored_by[r]))
        return [r for r in rows if self._known[r] and not fall.counts(self._known[r][0][0])]

    def limit_stops(self, now: float) -> tuple[LimitedStops, tuple[SharedFall, ...]]:
        """Return who of those that ask may be stopped at ``now`` (s), and the shared falls that were just
        found."""
        gone = Counter(name for at, name in self._ended if at >= day_start(now))
        gone.update(self._scored_by[row].namespace for row in self._paused)
        self.ended = tuple(Ended(name, gone[name]) for name in sorted(gone))
        limited = limit_stops(self._views(), self, now)
        waits = {held.key for held in limited.held if held.reason == ASKS_POOL}
        for row, run in self.runs.items():
            if run.job.key in waits:
                self.delayed.setdefault(row, now)
        new = tuple(fall for fall in limited.falls if fall not in self.falls)
        self.falls, self.breaker_since = limited.falls, limited.stops.breaker_since
        return limited, new

    def _views(self) -> Iterator[JobView]:
        for row, run in self.runs.items():
            job = run.job
            yield JobView(
                job.key,
                job.submitted,
                row,
                job.replicas,
                job.gpus_per_replica,
                job.priority,
                job.state,
                proposal=self.asking.get(row),
                metric=self._scored_by[row].metric,
                noise=run.noise,
                guardrail_noise=noise.shown_of(run.others.items()),
                readings=tuple(Reading(at, point.score) for at, point in run.known[-READINGS_KEPT:]),
                delayed_at=self.delayed.get(row),
            )
