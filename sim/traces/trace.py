"""A trace: jobs as a log has them, and what else it says about its cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from controller.policy.types import PolicySpec, Quota
from controller.policy.wording import counted
from sim.cluster import Cluster
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.traces.errors import Skipped, TraceError
from sim.traces.past import Past
from sim.workload import Evals, Workload


@dataclass(slots=True)
class TraceJob:
    """One job.

    Attributes:
        submitted: s on the log's own clock.
        work: s of training.
        line: where it is from.
        truth: (hacks, peak as share of training) where a generated workload was recorded.
        outcome: what became of it, in a recorded run.
        past: on the cluster, in an exported history.
    """

    key: str
    submitted: float
    gpus: int
    work: float
    line: int = 0
    gpus_per_replica: int | None = None
    priority: int = 0
    weight: float = 1.0
    estimate: float | None = None
    group: str = ""
    evals: Evals | None = None
    truth: tuple[bool, float] | None = None
    file: Path | None = field(default=None, compare=False)
    outcome: dict[str, Any] | None = None
    past: Past | None = None


@dataclass(slots=True)
class Trace:
    """Jobs of one or more files, and how reading them went.

    ``left_out``: rows that are no jobs with GPUs and a known duration, by reason; they are not wrong.
    """

    files: list[Path]
    format: str
    jobs: list[TraceJob]
    skipped: Skipped = field(default_factory=Skipped)
    left_out: Counter[str] = field(default_factory=Counter)
    cluster: Cluster | None = None
    policy: PolicySpec | None = None
    quotas: tuple[Quota, ...] = ()
    rule: RuleSpec | None = None
    run: dict[str, Any] = field(default_factory=dict)  # how a recorded run was made
    latencies: Latencies | None = None  # of a recorded run, or as a history shows them
    history: dict[str, Any] = field(default_factory=dict)  # of what span and pool it is, nodes over time
    notes: list[str] = field(default_factory=list)

    def fit(self, cluster: Cluster) -> None:
        """Refuse (or skip) jobs that the empty cluster could not hold.

        Where only some jobs say what their gangs are made of, the others get the cluster's largest parts.

        Raises:
            TraceError: a job is too large, and rows that are wrong are not to be skipped.
        """
        kept = []
        for job in self.jobs:
            if (
                job.gpus <= cluster.gpus
            ):  # first, since a damaged row may ask for more than can be counted out
                shape = cluster.gang(job.gpus)
                if job.gpus_per_replica:
                    shape = job.gpus // job.gpus_per_replica, job.gpus_per_replica
                if cluster.holds(*shape):
                    kept.append(job)
                    continue
            room = counted(cluster.gpus, "GPU") + (
                f" on {counted(len(cluster.nodes), 'node')}" if cluster.nodes else ""
            )
            expected = f"a gang that fits into the empty cluster of {room} (job {job.key})"
            file = job.file or self.files[0]
            self.skipped.add(TraceError.value(file, job.line, "gpus", job.gpus, expected))
        self.jobs = kept
        if any(job.gpus_per_replica for job in kept):
            for job in kept:
                job.gpus_per_replica = job.gpus_per_replica or cluster.gang(job.gpus)[1]
        if not kept:
            raise TraceError(
                self.files[0], 0, "", f"no job fits into a cluster of {counted(cluster.gpus, 'GPU')}"
            )

    def workload(self) -> Workload:
        """Return the jobs in the order of their submission, the first one at 0 s."""
        jobs = sorted(self.jobs, key=lambda job: job.submitted)
        start = jobs[0].submitted if jobs else 0.0
        return Workload(
            [job.submitted - start for job in jobs],
            [job.gpus for job in jobs],
            [job.work for job in jobs],
            keys=[job.key for job in jobs],
            gpus_per_replica=[job.gpus_per_replica or 0 for job in jobs]
            if all(job.gpus_per_replica for job in jobs)
            else (),
            priority=[job.priority for job in jobs] if any(job.priority for job in jobs) else (),
            weight=[job.weight for job in jobs] if any(job.weight != 1.0 for job in jobs) else (),
            estimate=[job.estimate for job in jobs] if any(job.estimate for job in jobs) else (),
            group=[job.group for job in jobs] if any(job.group for job in jobs) else (),
            evals=[job.evals for job in jobs] if any(job.evals for job in jobs) else (),
        )


# s; from here on a float no longer tells one second from the next.
LONGEST = 2.0**53


class JobChecks:
    """Checks that hold for every job of every log, whatever its format."""

    def __init__(self, file: Path, *, ordered: bool) -> None:
        self._file = file
        self._ordered = ordered
        self._lines: dict[str, int] = {}
        self._latest = (-inf, 0)

    def check(self, job: TraceJob, fields: dict[str, str]) -> None:
        """Raise `TraceError` for the first thing wrong; ``fields``: what the log calls key, submitted, ….

        A job that is refused leaves no trace: the next one is compared with those that were taken.
        """
        file, line = self._file, job.line
        if any(not (c.isprintable() or c.isspace()) for c in job.key):  # a name may have blanks in it
            raise TraceError.value(file, line, fields["key"], job.key, "an id without control characters")
        if not -LONGEST <= job.submitted <= LONGEST:
            expected = "a finite time, of at most 2**53 s"
            raise TraceError.value(file, line, fields["submitted"], job.submitted, expected)
        if not 0.0 <= job.work <= LONGEST:
            expected = "a duration of at least 0 s and at most 2**53 s"
            raise TraceError.value(file, line, fields["work"], job.work, expected)
        if job.gpus < 1:
            raise TraceError.value(file, line, fields["gpus"], job.gpus, "at least 1 GPU")
        each = job.gpus_per_replica
        if each is not None and (each < 1 or job.gpus % each):
            expected = f"a divisor of {fields['gpus']}, {job.gpus}"
            raise TraceError.value(file, line, "gpus_per_replica", each, expected)
        if not 0.0 < job.weight < inf:
            raise TraceError.value(file, line, "weight", job.weight, "a finite number above 0")
        if job.estimate is not None and not 0.0 <= job.estimate <= LONGEST:
            expected = "a duration of at least 0 s and at most 2**53 s"
            raise TraceError.value(file, line, "estimate", job.estimate, expected)
        if job.key in self._lines:
            already = f"an id of its own ({job.key} is that of line {self._lines[job.key]})"
            raise TraceError.value(file, line, fields["key"], job.key.partition("/")[2], already)
        if self._ordered and job.submitted < self._latest[0]:
            expected = f"the order of time (line {self._latest[1]} has {self._latest[0]!r})"
            raise TraceError.value(file, line, fields["submitted"], job.submitted, expected)
        self._lines[job.key] = line
        self._latest = (job.submitted, line)
