"""`advise`: shared groups, and half of the GPUs, for your own jobs by their measured steps.

A file has one JSON line for each job that runs alone today:

    {"job": "a", "trainingGpus": 16, "rolloutGpus": 8, "stateBytes": 8600000000,
     "lag": 0, "switchSeconds": 3.2, "steps": [[61.2, 14.8], [58.0, 15.1]]}

`steps`: seconds away from the training GPUs (rollouts, rewards, tools) and seconds on them, of at least 5
steps, the newest last. `lag` (0 or 1) and `switchSeconds` (off-load and load; else by bytes at 25 GB/s) may
be left out. Instead of `steps`, `page` names a file with the trainer's metrics page, beside this one
(docs/use/trainer-contract.md): its newest steps are taken, or, where it has phases only, their means.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

from controller import bounded
from controller.frozen import dataclass
from controller.policy.group_types import times_allowed
from controller.policy.sharing import (
    LEAST_STEPS,
    MOST_RESIDENTS,
    MOST_STEPS,
    SECOND,
    Player,
    Profile,
    RecordedTurn,
    player,
    slowdowns,
)
from controller.policy.wording import counted
from sim.experiments.findings import Column, Findings
from sim.sharing.page import MOST_PAGE, PageSteps, steps_of
from sim.sharing.rows import Row

MOST_JOBS = 16
MOST_LINE = 1 << 20  # bytes of a job
MOST_TOGETHER = 3  # residents that are tried: the knee of the curve
SHOWN = 12
LONGEST = 86_400.0  # s of a phase
FIELDS = ("job", "trainingGpus", "rolloutGpus", "stateBytes", "lag", "switchSeconds", "steps")
OPTIONAL = {"lag": 0, "switchSeconds": None}
PAGE = "page"  # a field instead of "steps"

COLUMNS = (
    Column("what", "jobs", "text"),
    Column("how", "on", "text"),
    Column("saving", "GPU-hours of a step saved"),
    Column("slowdown", "slowest job, times as slow", "number"),
    Column("duty", "duty, summed", "number"),
    Column("allowed", "", "text"),
)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """One job as it runs alone."""

    name: str
    training: int
    rollout: int
    profile: Profile
    state_bytes: int
    only_means: bool = False  # how much its steps differ is not known

    @property
    def gpus(self) -> int:
        return self.training + self.rollout

    def player(self) -> Player:
        return player(self.profile, self.state_bytes)


def advise(path: Path, max_slowdown: int = 10, max_duty: int = 80) -> Findings:
    """Return what groups of two and three of a file's jobs, and half of their GPUs, would save.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no measured job; the message names line, field and what would be right.
    """
    jobs = read(path)
    rows = [_half(job, max_slowdown) for job in jobs]
    shared = [
        _together(some, max_slowdown, max_duty)
        for count in range(2, MOST_TOGETHER + 1)
        for some in combinations(jobs, count)
        if len({job.training for job in some}) == 1
    ]
    shared.sort(key=lambda row: (row["allowed"] != "yes", -_number(row["saving"])))
    best = next((row for row in shared if row["allowed"] == "yes"), None)
    halves = [row for row in rows if row["allowed"] == "yes"]
    notes = [
        f"Best of what is allowed (duty at most {max_duty} %, nobody over {max_slowdown} % slower):"
        f" {best['what']} on one group, {100 * _number(best['saving']):.0f} % of their GPU-hours."
        if best
        else "No two of these jobs may share a group."
        if len(jobs) > 1
        else "One job alone has nobody to share with: name at least two.",
        f"On half of its training GPUs, without sharing: {', '.join(str(row['what']) for row in halves)}."
        if halves
        else "No job would do with half of its training GPUs within that limit.",
        "A turn on half of the GPUs is taken to last twice as long. Memory is not looked at: whether a"
        " model fits on half, and whether host memory holds all states and a spare, is yours to check.",
    ]
    if means := [job.name for job in jobs if job.only_means]:
        notes.append(
            f"Of {', '.join(means)} only the means of phases are known: with steps that "
            "differ, jobs wait longer."
        )
    if len({job.training for job in jobs}) > 1:
        notes.append("Only jobs with the same number of training GPUs are tried together.")
    if len(shared) > SHOWN:
        notes.append(f"The best {SHOWN} of {counted(len(shared), 'group')} are shown.")
    return Findings(
        "advise",
        f"What sharing would bring to {counted(len(jobs), 'measured job')}",
        {"file": str(path), "max_slowdown": max_slowdown, "max_duty": max_duty},
        COLUMNS,
        [*rows, *shared[:SHOWN]],
        {"jobs": len(jobs)},
        notes,
    )


def _together(jobs: tuple[MeasuredJob, ...], max_slowdown: int, max_duty: int) -> Row:
    slow = slowdowns(tuple(job.player() for job in jobs))
    each = jobs[0].training / len(jobs)
    alone = sum(job.gpus * 1.0 for job in jobs)
    shared = sum((job.rollout + each) * times for job, times in zip(jobs, slow, strict=True))
    duty = sum(job.profile.duty for job in jobs)
    return _row(
        " + ".join(job.name for job in jobs),
        "one group",
        1.0 - shared / alone,
        max(slow),
        duty,
        _verdict(max(slow), max_slowdown, duty, max_duty),
    )


def _half(job: MeasuredJob, max_slowdown: int) -> Row:
    turns = tuple(RecordedTurn(away, 2 * held) for away, held in job.profile.turns)
    half = Profile(job.profile.kind, turns, lag=job.profile.lag)
    slow = half.cycle / job.profile.cycle
    gpus = job.rollout + job.training / 2
    verdict = _verdict(slow, max_slowdown, 0.0, 100)
    return _row(job.name, "half the training GPUs", 1.0 - gpus * slow / job.gpus, slow, half.duty, verdict)


def _row(what: str, how: str, saving: float, slow: float, duty: float, allowed: str) -> Row:
    return {
        "what": what, "how": how, "saving": saving, "slowdown": slow, "duty": duty, "allowed": allowed,
    }  # fmt: skip


def _verdict(slow: float, max_slowdown: int, duty: float, max_duty: int) -> str:
    if duty > max_duty / 100.0:
        return f"no: duty {duty:.2f} > {max_duty / 100.0:.2f}"
    if slow > times_allowed(max_slowdown):
        return f"no: {slow:.2f} times as slow"
    return "yes"


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def read(path: Path) -> list[MeasuredJob]:
    """Return the jobs of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: as in `advise`.
    """
    jobs: list[MeasuredJob] = []
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MOST_LINE + 1), b""), 1):
            where = f"{path}:{number}"
            if line.strip():
                jobs.append(_job(bounded.load(line, where, MOST_LINE), where, path.parent))
            if len(jobs) > MOST_JOBS:
                raise ValueError(f"{where}: more than {MOST_JOBS} jobs")
    names = [job.name for job in jobs]
    if not jobs:
        raise ValueError(f"{path}: no job in it, expected a JSON line for each")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: a job is there twice: {', '.join(names)}")
    return jobs


def _page(name: Any, folder: Path, where: str) -> PageSteps:
    """Return the steps of a metrics page that lies beside the file of jobs."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: {PAGE}: {str(name)[:60]}, expected the name of a file")
    path = folder / name
    try:
        with path.open("rb") as file:
            content = file.read(MOST_PAGE + 1)
    except OSError as error:
        raise ValueError(
            f"{where}: {PAGE}: cannot read {path}: {error.strerror}, expected a file beside the jobs'"
        ) from None
    if len(content) > MOST_PAGE:
        raise ValueError(f"{where}: {PAGE}: {path} has more than {MOST_PAGE} bytes")
    return steps_of(content.decode("utf-8", "replace"), f"{where}: {PAGE}: {path}")


def _job(value: Any, where: str, folder: Path) -> MeasuredJob:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {str(value)[:60]!r}, expected an object")
    value = {**OPTIONAL, **value}
    only_means = False
    if PAGE in value and "steps" not in value:
        steps_of_page = _page(value.pop(PAGE), folder, where)
        value["steps"], only_means = steps_of_page.steps, steps_of_page.means
    if set(value) != set(FIELDS):
        missing, more = [name for name in FIELDS if name not in value], sorted(value.keys() - set(FIELDS))
        problems = [f"{', '.join(missing)} missing"] if missing else []
        problems += [f"{', '.join(more)[:120]} not known"] if more else []
        raise ValueError(
            f"{where}: {'; '.join(problems)}: expected the fields {', '.join(FIELDS)} (or {PAGE} for steps)"
        )
    if not isinstance(value["job"], str) or not 0 < len(value["job"]) <= 63:
        raise ValueError(f"{where}: job: {str(value['job'])[:60]!r}, expected a name of 1 to 63 characters")
    steps = value["steps"]
    if not isinstance(steps, list) or len(steps) < LEAST_STEPS:
        count = len(steps) if isinstance(steps, list) else steps
        raise ValueError(f"{where}: steps: {count}, expected at least {LEAST_STEPS} pairs of seconds")
    turns = [_turn(step, f"{where}: steps[{i}]") for i, step in enumerate(steps)]
    state = _whole(value, "stateBytes", 1, 1 << 50, where)
    switch = value["switchSeconds"]
    times: tuple[int, ...] = ()
    if switch is not None:
        times = (round(_seconds(switch, f"{where}: switchSeconds") * SECOND / 2),)
    profile = Profile(
        value["job"],
        tuple(turns[-MOST_STEPS:]),
        lag=_whole(value, "lag", 0, 1, where),
        loads=times,
        offloads=times,
    )
    return MeasuredJob(
        value["job"],
        _whole(value, "trainingGpus", 1, 1 << 20, where),
        _whole(value, "rolloutGpus", 0, 1 << 20, where),
        profile,
        state,
        only_means,
    )


def _turn(step: Any, where: str) -> RecordedTurn:
    if not isinstance(step, list) or len(step) != 2:
        raise ValueError(f"{where}: {str(step)[:60]}, expected [seconds away, seconds on the training GPUs]")
    away, held = (_seconds(one, where) for one in step)
    if not held > 0.0:
        raise ValueError(f"{where}: {held}, expected more than 0 s on the training GPUs")
    return RecordedTurn(round(away * SECOND), max(1, round(held * SECOND)))


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0.0 <= value <= LONGEST:
        raise ValueError(f"{where}: {value!r}, expected 0 to {LONGEST:g} s")
    return float(value)


def _whole(value: dict[str, Any], name: str, least: int, most: int, where: str) -> int:
    found = value[name]
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{where}: {name}: {found!r}, expected a whole number from {least} to {most}")
    return found


assert MOST_TOGETHER <= MOST_RESIDENTS
