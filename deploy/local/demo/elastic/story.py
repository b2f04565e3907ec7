"""The three acts, and what each brought, from statuses and from the observer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from controller import names
from controller.policy.wording import counted
from deploy.local.demo.elastic.cast import ARMS, GANG, RECALL_SECONDS, job, trainer
from deploy.local.demo.elastic.observer import Observer
from deploy.local.demo.jobs_stage import Stage
from deploy.local.demo.told import Row
from deploy.local.report import Report

Json = dict[str, Any]
FIRST = 2  # step from which on times count: in the first one actors still start
KEPT, KEPT_STEPS = "run", 10_000  # the run that is left behind where the cluster is left up
SHARED = 4  # actors that two elastic jobs have room for
GANG_GOAL = RECALL_SECONDS + 10.0  # s until a gang is bound whose GPUs were lent


@dataclass
class Arm:
    """One arm: means over its runs and their steps, s and GPU-seconds."""

    name: str
    generation: list[float] = field(default_factory=list)  # of each step
    step: list[float] = field(default_factory=list)  # the whole of it
    held: list[float] = field(default_factory=list)  # of each run, GPU-seconds that its actors held


@dataclass
class Result:
    """Findings of the story. ``problems``: things that must not be; goals that were missed are none."""

    alone: dict[str, Arm] = field(default_factory=dict)
    shared: dict[str, Arm] = field(default_factory=dict)
    gang_seconds: float | None = None
    lent: list[str] = field(default_factory=list)  # pods of another job on GPUs that actors had left
    problems: list[str] = field(default_factory=list)


class Story:
    """Plays the acts on a stage.

    Args:
        stage: a running one.
        report: says what happens.
        runs, steps, seconds: how many runs of an arm, steps of a run, and s that a step trains.
    """

    def __init__(self, stage: Stage, report: Report, runs: int, steps: int, seconds: float) -> None:
        self._stage, self._report = stage, report
        self._runs, self._steps, self._seconds = runs, steps, seconds
        self.result = Result()

    def alone(self) -> None:
        """Act one: one job, its arms alternating."""
        for run in range(1, self._runs + 1):
            for name in ARMS:
                self._report(f"one job, {name}, run {run} of {self._runs} …", progress=True)
                self._play(self.result.alone.setdefault(name, Arm(name)), name, ("alone",))

    def shared(self) -> None:
        """Act two: two jobs at once; elastic ones share four GPUs, the others hold three each."""
        for name in ARMS:
            self._report(f"two jobs, {name} …", progress=True)
            blocker = name == "elastic"
            if blocker:  # of eight GPUs two train and two are somebody else's: four are left for actors
                self._stage.apply(job("other", ["sleep", "3600"], None, gpus=GANG))
                self._stage.until(lambda: self._stage.has("other", "Running"), "another job's pod runs")
            self._play(self.result.shared.setdefault(name, Arm(name)), name, ("first", "second"))
            if blocker:
                self._stage.delete("other")

    def gang(self) -> None:
        """Act three: spare actors hold all free GPUs when a gang comes."""
        self._report("a gang comes while spare actors hold all free GPUs …", progress=True)
        elastic = {
            "actors": {"min": 1, "max": 7, "static": 7},
            "objective": {"weighted": {"timePercent": 100}},  # as many as make it any faster
            "whenIdle": "Keep",
        }
        observer = Observer(self._stage.pods)
        observer.start()
        self._stage.apply(job("borrower", trainer(self._steps + 4, self._seconds), elastic))
        self._stage.until(lambda: self._actors("borrower") == 7, "spare actors hold all free GPUs", 180.0)
        self._stage.apply(job("gang", ["sleep", "3600"], None, gpus=GANG))
        began = time.monotonic()
        self._stage.until(lambda: self._bound("gang"), "the gang is bound", 120.0)
        self.result.gang_seconds = time.monotonic() - began
        if self._stage.status("borrower").get("preemptions"):
            self.result.problems.append("the borrower was preempted, where a recall would do")
        for name in ("gang", "borrower"):
            self._stage.delete(name)
        self._removed()
        observer.stop()
        self._no_gpu_twice(observer)

    def leave_a_run(self) -> None:
        """Leave an elastic run behind that goes on."""
        self._stage.apply(job(KEPT, trainer(KEPT_STEPS, self._seconds), ARMS["elastic"]))
        self._stage.until(lambda: self._stage.has(KEPT, "Running"), "the run that is left behind runs")

    def _play(self, arm: Arm, name: str, jobs: Sequence[str]) -> None:
        observer = Observer(self._stage.pods, self._stage.gpus)
        observer.start()
        for one in jobs:
            self._stage.apply(job(one, trainer(self._steps, self._seconds), ARMS[name]))
        patience = 120.0 + 4.0 * self._steps * (self._seconds + 10.0)
        for one in jobs:
            self._stage.until(lambda one=one: self._stage.has(one, "Completed"), f"{one} has ended", patience)  # type: ignore[misc]
            rows = (self._stage.status(one).get("rollout") or {}).get("recent") or []
            counted = [row for row in rows if row["step"] >= FIRST]
            if not counted:
                self.result.problems.append(f"{name}, {one}: no step is in its status")
            arm.generation += [float(row["seconds"]) for row in counted]
            arm.step += [float(row["wholeSeconds"]) for row in counted if row.get("wholeSeconds")]
        self._removed()
        observer.stop()
        arm.held.append(sum(observer.held.values()))
        if len(jobs) > 1 and name == "elastic":
            self.result.lent += observer.lent
        if (problem := too_few(name, len(jobs), observer.actors)) is not None:
            self.result.problems.append(problem)
        self._no_gpu_twice(observer)
        for one in jobs:
            self._stage.delete(one)

    def _no_gpu_twice(self, observer: Observer) -> None:
        for node, gpus in observer.most.items():
            if gpus > self._stage.gpus:
                self.result.problems.append(
                    f"{node}: pods requested {counted(gpus, 'GPU')} at a time, it has {self._stage.gpus}"
                )

    def _actors(self, name: str) -> int:
        return sum(
            1
            for pod in self._stage.pods()
            if (pod["metadata"].get("labels") or {}).get(names.LABEL_JOB) == name
            and pod["metadata"]["labels"].get(names.LABEL_COMPONENT) == "actor"
            and pod["spec"].get("nodeName")
        )

    def _bound(self, name: str) -> bool:
        """Return whether a job's trainer has its node."""
        return any(
            pod["spec"].get("nodeName")
            for pod in self._stage.pods()
            if (pod["metadata"].get("labels") or {}).get(names.LABEL_JOB) == name
        )

    def _removed(self) -> None:
        def none() -> bool:
            return not any(
                (pod["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) == "actor"
                for pod in self._stage.pods()
            )

        self._stage.until(none, "no actor is left", 60.0)


def too_few(arm: str, jobs: int, actors: int) -> str | None:
    """Return what is wrong where an arm had fewer actors at a time than it is about; None: nothing.

    Args:
        arm: one of `ARMS`.
        jobs: that ran at once.
        actors: pods of theirs that had a node at a time.
    """
    wanted = SHARED if arm == "elastic" and jobs > 1 else jobs * ARMS[arm]["actors"]["static"]
    if actors >= wanted:
        return None
    return (
        f"{arm}, {counted(jobs, 'job')}: at most {counted(actors, 'actor')} had a node at a time, the arm is "
        f"about {wanted}"
    )


def rows(result: Result) -> list[Row]:
    """Return what was found beside the goals of the issue."""
    found = []
    for title, arms in (("one job", result.alone), ("two jobs", result.shared)):
        for arm in arms.values():
            if arm.generation and arm.step:
                found.append(
                    Row(
                        f"{title}, {arm.name}",
                        f"generation {mean(arm.generation):.2f} s, step {mean(arm.step):.2f} s, "
                        f"{mean(arm.held):.0f} GPU-seconds of actors",
                    )
                )
    if (alone := _arms(result.alone)) is not None:
        even, longest, elastic = alone
        faster = mean(even.generation) / mean(elastic.generation)
        found.append(_row("one job: generation, times as fast as Even", faster, ">= 1.2", faster >= 1.2))
        slower = mean(elastic.step) / mean(longest.step)
        found.append(_row("one job: step, of LongestFirst", slower, "<= 1.05", slower <= 1.05))
        cheaper = mean(elastic.held) / mean(longest.held)
        found.append(_row("one job: GPU-seconds, of LongestFirst", cheaper, "<= .7", cheaper <= 0.7))
    if (shared := _arms(result.shared)) is not None:
        even, longest, elastic = shared
        ratio = mean(elastic.step) / mean(even.step)
        found.append(_row("two jobs: step on 4 shared actors, of Even on 6", ratio, "<= 1.0", ratio <= 1.0))
        ratio = mean(elastic.step) / mean(longest.step)
        found.append(_row("two jobs: the same, of LongestFirst on 6", ratio, "<= 1.2", ratio <= 1.2))
        found.append(
            Row(
                "two jobs: pods of one on GPUs that the other's actors had left for a while",
                f"{len(result.lent)}" + (f" ({result.lent[0]})" if result.lent else ""),
                "at least one, named by the observer",
                bool(result.lent),
            )
        )
    if result.gang_seconds is not None:
        took = result.gang_seconds
        found.append(
            Row(
                "a gang comes while spare actors hold all free GPUs: bound after",
                f"{took:.1f} s",
                f"<= {GANG_GOAL:.0f} s, nobody preempted",
                took <= GANG_GOAL and not any("preempted" in p for p in result.problems),
            )
        )
    return found


def _arms(arms: dict[str, Arm]) -> tuple[Arm, Arm, Arm] | None:
    wanted = [arms.get(name) for name in ("Even", "LongestFirst", "elastic")]
    known = [arm for arm in wanted if arm is not None and arm.generation and arm.step and arm.held]
    return (known[0], known[1], known[2]) if len(known) == 3 else None


def _row(what: str, value: float, goal: str, met: bool) -> Row:
    return Row(what, f"{value:.2f}", goal, met)
