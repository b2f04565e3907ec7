"""The decision log: every plan's input and output, one canonical JSON line each, replayable byte for byte.

    {"decision":{…output…},"input":{…},"kind":"job"|"pool"|"step","now":1732186000.25,"v":5}

The version is raised whenever the same input would be written differently. A line of any other version is
refused by name, not misread. In version 5 what a pool knows of its runs is told apart by namespace, and it
has quotas (`PoolSnapshot.quotas`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from controller import bounded
from controller.frozen import dataclass
from controller.policy.codec import decode, dumps, encode
from controller.policy.job import Desired, JobRecord, Observed, Plan, plan_job
from controller.policy.pool import plan_pool
from controller.policy.rollout import RolloutPlan, StepQuestion, as_logged
from controller.policy.rollout import planned as plan_step
from controller.policy.types import PoolPlan, PoolSnapshot

VERSION = 5
LINE_BYTES = 256 << 20  # of one line: a pool of 10,000 jobs has about 20 MB
LINE_VALUES = 20_000_000
READABLE = f"version {VERSION}"


class LogError(ValueError):
    """A line cannot be read: damaged, cut off, or of another version."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replayed line: what was decided then, and what the present code decides on the same input."""

    line: int
    kind: str
    subject: str  # namespace/name of the job, a step's with its number, or the pool's name
    now: float
    recorded: str
    replayed: str

    @property
    def same(self) -> bool:
        return self.recorded == self.replayed


def job_line(desired: Desired, observed: Observed, record: JobRecord, now: float, planned: Plan) -> str:
    """Return the log line of one `lifecycle.plan`, without its newline."""
    given = {"desired": encode(desired), "observed": encode(observed), "record": encode(record)}
    return _line("job", given, now, planned)


def pool_line(snapshot: PoolSnapshot, now: float, planned: PoolPlan) -> str:
    """Return the log line of one `pool.plan`, without its newline."""
    return _line("pool", encode(snapshot), now, planned)


def step_line(question: StepQuestion, now: float, planned: RolloutPlan) -> str:
    """Return the log line of one step's plan, without its newline: at most some 10 kB, by its histogram."""
    return _line("step", encode(question), now, as_logged(planned))


def replay(lines: Iterable[str]) -> Iterator[Replayed]:
    """Decide every line's input anew.

    Raises:
        LogError: a line cannot be read; the message has its number and why.
    """
    for number, text in enumerate(lines, start=1):
        if text.strip():
            yield _replay_line(number, text)


def _line(kind: str, given: Any, now: float, planned: Plan | PoolPlan | RolloutPlan) -> str:
    return dumps({"v": VERSION, "kind": kind, "now": now, "input": given, "decision": encode(planned)})


def _replay_line(number: int, text: str) -> Replayed:
    try:
        entry = bounded.load(text, f"line {number}", LINE_BYTES, values=LINE_VALUES, python=True)
    except bounded.Unbounded as error:
        raise LogError(f"{error}; was it cut off?") from None
    version = entry.get("v") if isinstance(entry, dict) else None
    if not readable(version):
        raise LogError(f"line {number}: version {version!r}, this evalstop reads {READABLE}{_cure(version)}")
    try:
        decide = _KINDS[entry["kind"]]
        subject, planned = decide(entry["input"], entry["now"])
        recorded, replayed = entry["decision"], encode(planned)
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"line {number}: {type(error).__name__}: {error}") from error
    return Replayed(number, entry["kind"], subject, entry["now"], dumps(recorded), dumps(replayed))


def readable(version: object) -> bool:
    """Return whether this evalstop reads lines of that version."""
    return type(version) is int and version == VERSION


def _cure(version: object) -> str:
    if type(version) is not int:
        return "; is it a decision log?"
    age = "a newer" if version > VERSION else "an older"
    return (
        f": it is of {age} evalstop; replay it with the one that wrote it"
        " (`evalstop version` tells which decision log an evalstop writes)"
    )


def _decide_job(given: Any, now: float) -> tuple[str, Plan]:
    desired = decode(Desired, given["desired"])
    observed, record = decode(Observed, given["observed"]), decode(JobRecord, given["record"])
    return desired.key, plan_job(desired, observed, record, now)


def _decide_pool(given: Any, now: float) -> tuple[str, PoolPlan]:
    snapshot = decode(PoolSnapshot, given)
    return snapshot.pool, plan_pool(snapshot, now)


def _decide_step(given: Any, now: float) -> tuple[str, RolloutPlan]:
    question = decode(StepQuestion, given)
    return f"{question.key} step {question.step}", as_logged(plan_step(question))


_KINDS: dict[str, Callable[[Any, float], tuple[str, Plan | PoolPlan | RolloutPlan]]] = {
    "job": _decide_job,
    "pool": _decide_pool,
    "step": _decide_step,
}
