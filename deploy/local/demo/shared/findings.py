"""Findings of the two arms: times, GPU-seconds, the simulator's word, checkpoints; and turns as lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median

from controller.policy.wording import counted
from deploy.local.demo.shared.cast import ALONE, GPUS, SHARED, job_name
from deploy.local.demo.shared.watch import Turn
from deploy.local.demo.told import Row
from sim.sharing.run import GroupTrial, play

SECOND = 1e6  # microseconds, the simulator's unit
POINTS = 3.0  # that the simulator may be away from what was measured
TITLES = {ALONE: "each alone in a group, one after the other", SHARED: "all in one group, by turns"}
LANE_SECONDS, LANE = 40.0, 100  # that lanes show, in so many characters


@dataclass
class Arm:
    """One arm. Seconds are since its jobs were submitted.

    Attributes:
        ended: when each job had ended.
        freed: when the job after them had the GPU.
        gpu_seconds: of groups' pods, by the onlooker.
        turns: as far as they were reported; those of the last seconds before a group's end are missing.
        idle: share of the cores' time that nobody used.
        digests: SHA-256 of the parameters of each job's final checkpoint.
    """

    ended: dict[str, float] = field(default_factory=dict)
    freed: float = 0.0
    gpu_seconds: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    idle: float = 0.0
    digests: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """Findings of the story. ``problems``: things that must not be; goals that were missed are none."""

    jobs: int
    steps: int
    arms: dict[str, Arm] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Saving:
    """GPU-seconds of a step, alone and shared, and by how much each job's steps became longer."""

    alone: float
    shared: float
    slower: tuple[float, ...]

    @property
    def saved(self) -> float:
        return 1.0 - self.shared / self.alone


def steps_of(turns: Sequence[Turn], job: str) -> list[tuple[float, float]]:
    """Return (seconds away, seconds held) of each of a job's turns that counted, but the first, whose time
    away is not known."""
    mine = [turn for turn in turns if turn.job == job and turn.counted]
    return [
        (max(0.0, turn.began - before.ended), turn.ended - turn.granted) for before, turn in pairwise(mine)
    ]


def together(turns: Sequence[Turn], jobs: Sequence[str]) -> list[Turn]:
    """Return the turns from the one with which each job has had one, to the last one of the first job that
    ends."""
    firsts = [next((one.ended for one in turns if one.job == job), float("inf")) for job in jobs]
    lasts = [max((one.ended for one in turns if one.job == job), default=0.0) for job in jobs]
    return [one for one in turns if max(firsts) <= one.ended <= min(lasts)]


def switch_seconds(turns: Sequence[Turn]) -> float:
    """Return the median seconds from the beginning of a turn that another job's came before, to its grant."""
    changes = [turn.granted - turn.began for old, turn in pairwise(turns) if old.job != turn.job]
    return median(changes) if changes else 0.0


def measured(result: Result) -> Saving | None:
    """Return the saving by the turns of both arms, while all residents were there; None: too few turns."""
    alone, shared = result.arms[ALONE].turns, result.arms[SHARED].turns
    numbers = range(1, result.jobs + 1)
    cycles = [[away + held for away, held in steps_of(alone, job_name(ALONE, i))] for i in numbers]
    window = together(shared, [job_name(SHARED, i) for i in numbers])
    took = [_cycle(window, job_name(SHARED, i)) for i in numbers]
    if not all(cycles) or not all(took):
        return None
    return _saving([mean(one) for one in cycles], took)


def simulated(result: Result) -> Saving | None:
    """Return what the simulator says, from the phases of the jobs *alone* and the median switch."""
    alone = result.arms[ALONE].turns
    steps = [steps_of(alone, job_name(ALONE, i)) for i in range(1, result.jobs + 1)]
    if any(len(one) < 2 for one in steps):
        return None
    times = [
        ([round(away * SECOND) for away, _ in one], [max(1, round(held * SECOND)) for _, held in one])
        for one in steps
    ]
    switch = round(switch_seconds(result.arms[SHARED].turns) * SECOND)
    outcome = play(GroupTrial((), switch, min(map(len, steps))), times)
    cycles = [mean(away + held for away, held in one) for one in steps]
    return _saving(cycles, [c * slow for c, slow in zip(cycles, outcome.slowdowns(), strict=True)])


def _saving(alone: Sequence[float], shared: Sequence[float]) -> Saving:
    """Return the saving by the seconds of each job's step, alone and shared."""
    slower = tuple(there / here for here, there in zip(alone, shared, strict=True))
    return Saving(GPUS * mean(alone), GPUS / sum(1.0 / one for one in shared), slower)


def _cycle(turns: Sequence[Turn], job: str) -> float:
    ends = [turn.ended for turn in turns if turn.job == job and turn.counted]
    return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 2 else 0.0


def rows(result: Result) -> list[Row]:
    """Return what was found beside the goals of the issue."""
    found = [Row(TITLES[name], _told(arm)) for name, arm in result.arms.items()]
    if len(result.arms) < 2:
        return found
    alone, shared = result.arms[ALONE], result.arms[SHARED]
    if alone.gpu_seconds:
        saved = 100 * (1 - shared.gpu_seconds / alone.gpu_seconds)
        found.append(Row("GPU-seconds saved, starts and ends with them", f"{saved:.0f} %"))
    real, virtual = measured(result), simulated(result)
    if real is None or virtual is None:
        result.problems.append("too few turns were reported to compare a step with")
        return found
    for what, one in (("measured", real), ("simulated from phases alone", virtual)):
        slower = ", ".join(f"{times:.2f}" for times in one.slower)
        found.append(
            Row(
                f"a step while all were there, {what}",
                f"{one.shared:.2f} GPU-seconds, {one.alone:.2f} alone: "
                f"{100 * one.saved:.1f} % saved; steps {slower} times as long",
            )
        )
    away = 100 * abs(real.saved - virtual.saved)
    found.append(
        Row("measured and simulated differ by", f"{away:.1f} points", f"<= {POINTS:g}", away <= POINTS)
    )
    switch = switch_seconds(shared.turns)
    found.append(Row("switch, median", f"{1000 * switch:.0f} ms"))
    equal = list(alone.digests.values()) == list(shared.digests.values())
    found.append(
        Row(
            "final checkpoints, alone and shared",
            ", ".join(digest[:12] for digest in shared.digests.values()),
            "equal by SHA-256",
            equal,
        )
    )
    if not equal:
        result.problems.append(f"final checkpoints differ: {alone.digests}, {shared.digests}")
    return found


def _told(arm: Arm) -> str:
    ended = " and ".join(f"{one:.0f}" for one in arm.ended.values())
    return (
        f"ended after {ended} s; the next one had the GPU after {arm.freed:.0f} s; "
        f"{arm.gpu_seconds:.0f} GPU-seconds held by groups' pods; {counted(len(arm.turns), 'turn')} seen, "
        f"{sum(not one.counted for one in arm.turns)} lost; cores idle {100 * arm.idle:.0f} %"
    )


def lanes(turns: Sequence[Turn], jobs: Sequence[str]) -> list[str]:
    """Return the first `LANE_SECONDS` in which all were there, a line a job: ``#`` it holds the group, ``~``
    a switch to it."""
    shown = together(turns, jobs)
    if not shown:
        return []
    start, width = shown[0].ended, LANE_SECONDS / LANE
    found = []
    for job in jobs:
        lane = ["."] * LANE
        for turn in (one for one in turns if one.job == job):
            for sign, since, until in (("~", turn.began, turn.granted), ("#", turn.granted, turn.ended)):
                first, last = int((since - start) / width), int((until - start) / width)
                for at in range(max(0, first), min(LANE, last + 1)):
                    if lane[at] != "#":
                        lane[at] = sign
        found.append(f"{job:>10} {''.join(lane)}")
    return found
