"""`shared`: two jobs on the same actor places, against each with three of its own.

The jobs are half a step apart. A job asks for its plan's actors as long before its generation as a start
takes, and every actor leaves when it has nothing more to do. Who gets a free place, and who gives a spare
actor back, is decided by the pool's plan, the operator's own (`plan_pool`); here it is carried out: starts,
recalls, and moved responses that are prefilled again. It reaches the cluster's clock by `sim.kernel` only.
Tests: tests/sim/test_sim_rollout_run.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.actor_types import Actor as Entry
from controller.policy.actor_types import ActorStart, ActorState, Lending, Recall, Rollout
from controller.policy.pool import plan_pool
from controller.policy.rollout import RolloutPlan, StepTime, Supply, measured_gain
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot
from controller.policy.wording import counted
from sim.experiments.estimate import Estimate
from sim.experiments.executor import Executor
from sim.experiments.findings import Column, Findings, Value
from sim.experiments.statistics import ratio
from sim.kernel import Kernel
from sim.rollout import schemes
from sim.rollout.engine.actor import Actor
from sim.rollout.engine.dispatch import OneQueue
from sim.rollout.engine.generation import Generation
from sim.rollout.engine.work import GenerationReport
from sim.rollout.rows import losses
from sim.rollout.run import Job
from sim.rollout.setting import RolloutSetting, Scheme
from sim.rollout.trial import Progress, RolloutTrial, perform, verdict

RECALL = 1.0  # s until the place of an actor that left is free
USEFUL = 2.0  # starts that the queue must last for one more actor to be worth its start
SHARED = Scheme("shared", {"dispatch": "LongestFirst", "when_idle": "Release", "within": 0.0}, cut=None)


class ActorPool:
    """A pool of places for one actor each, every place a node of its own, and the jobs that share them."""

    def __init__(self, kernel: Kernel, count: int, gpus: int = 1) -> None:
        self.kernel, self.gpus = kernel, gpus
        self.jobs: list[SharedJob] = []
        self.held = 0.0  # s of all places
        self._nodes = tuple(NodeView(f"n{number}", gpus) for number in range(count))
        self._lending = Lending(True, RECALL)
        self._known: tuple[Rollout, ...] = ()

    def settle(self, _: float = 0.0) -> None:
        """Plan, where anything has changed: give out what is free, recall what others have a right to."""
        rollouts = tuple(job.rollout() for job in self.jobs)
        if rollouts == self._known:
            return
        views = tuple(
            JobView(job.key, 0.0, number, 1, 0, state=JobState.ADMITTED, rollout=rollout)
            for number, (job, rollout) in enumerate(zip(self.jobs, rollouts, strict=True))
        )
        now = self.kernel.now
        snapshot = PoolSnapshot("sim", PolicySpec("fifo"), self._nodes, views, lending=self._lending)
        plan = plan_pool(snapshot, now).lending
        assert plan is not None
        by_key = {job.key: job for job in self.jobs}
        for recall in plan.recalls:
            by_key[recall.key].give_back(recall)
        for start in plan.starts:
            by_key[start.key].start_actor(start)
        self._lending = replace(self._lending, reserved=plan.reserved)
        self._known = tuple(job.rollout() for job in self.jobs)

    def left(self, job: SharedJob, number: int, bound: float) -> None:
        """Take a place back: an actor has left."""
        self.held += self.kernel.now + RECALL - bound
        self.kernel.at(self.kernel.now + RECALL, 0, self._freed, (job, number))

    def _freed(self, which: tuple[SharedJob, int]) -> bool:
        job, number = which
        del job.entries[number]
        return False


class SharedJob:
    """One job's steps on shared places.

    Attributes:
        entries: of its actors, by number, until their places are free again.
    """

    def __init__(self, name: str, job: Job, pool: ActorPool, base: int, first: float) -> None:
        self.key, self.job, self.pool, self.base = f"sim/{name}", job, pool, base
        self.wants = 0
        self.steps: list[tuple[float, float]] = []  # begin of each, its end with the learner's part
        self.entries: dict[int, Entry] = {}
        self._next = 0
        self._number = 0
        self._plan: RolloutPlan | None = None
        self._supply = Supply()
        self._predicted: tuple[float, ...] = ()
        self._starting: dict[int, tuple[float, float]] = {}  # bound, ready: before the generation begins
        self._actors: dict[int, Actor] = {}  # of the generation that runs, by number
        self._most = 0  # actors of this step at a time
        self._times: list[StepTime] = []
        self._generation: Generation | None = None
        self._began = 0.0
        start = job.setting.start
        pool.kernel.at(max(0.0, first - start), 0, self._announce, max(first, start))

    def rollout(self) -> Rollout:
        """Return what it has and wants now."""
        entries = tuple(self.entries.values())
        has = sum(1 for entry in entries if entry.stays)
        self._most = max(self._most, has)
        wants = self.wants
        if wants > has and not self._useful(has):
            wants = max(min(self.base, wants), has)
        gpus = self.pool.gpus
        return Rollout(self.base, gpus, entries, wants, measured_gain(self._times, gpus), self._next)

    def start_actor(self, start: ActorStart) -> None:
        """Start an actor that the plan grants; it joins the generation that runs, or waits for the next."""
        now, ready = self.pool.kernel.now, self.pool.kernel.now + self.job.setting.start
        self._next = start.number + 1
        self.entries[start.number] = Entry(start.number, start.node, start.gpus)
        if self._generation is None:
            self._starting[start.number] = now, ready
        else:
            self._actors[start.number] = self._generation.add(now, ready)

    def give_back(self, recall: Recall) -> None:
        """Let an actor that is recalled leave."""
        self._goes(recall.number, recall.for_whom, recall.until)
        if recall.number in self._starting:
            bound, _ = self._starting.pop(recall.number)
            self.pool.left(self, recall.number, bound)
            return
        assert self._generation is not None
        self._generation.recall(self._actors[recall.number])

    def _goes(self, number: int, for_whom: str = "", until: float | None = None) -> None:
        self.entries[number] = replace(
            self.entries[number], state=ActorState.RECALLED, for_whom=for_whom, until=until
        )

    def _useful(self, has: int) -> bool:
        """Return whether one more actor would be ready in time to be of use."""
        generation, law = self._generation, self.job.law
        if generation is None:
            return True
        left = generation.queued / (max(1, has) * law.slots)  # iterations until the queue is empty
        return left * (law.iteration + law.sequence * law.slots) >= USEFUL * self.job.setting.start

    def _announce(self, begin: float) -> bool:
        job = self.job
        self._predicted = job.predict(self._number)
        start = job.setting.start
        self._supply = Supply(start=start, recall=RECALL, lead=start, between=job.between)
        self._plan = job.plan(self._predicted, self._supply)
        assert self._plan is not None
        self.wants = self._plan.actors
        self.pool.kernel.at(begin, 0, self._begin, None)
        return False

    def _begin(self, _: object) -> bool:
        job, kernel = self.job, self.pool.kernel
        batch = job.steps[self._number]
        prompts = batch.prompts(self._predicted)
        self._began, self._most = kernel.now, 0
        self._generation = generation = Generation(
            kernel,
            job.setting.law,
            job.setting.slots,
            OneQueue(prompts),
            sum(len(prompt.lengths) for prompt in prompts),
            release=(),
            done=self._done,
            left=self._left,
        )
        starting, self._starting = self._starting, {}
        numbers = list(starting)

        def known() -> None:
            self._actors = dict(zip(numbers, generation.actors, strict=False))

        generation.begin(list(starting.values()), known)
        return False

    def _left(self, actor: Actor) -> None:
        number = next(number for number, known in self._actors.items() if known is actor)
        if not actor.recalled:
            # An actor that left because it had nothing more to do is not wanted again in this step.
            self._goes(number)
            self.wants = max(0, self.wants - 1)
        self.pool.left(self, number, actor.report.bound)

    def _done(self, report: GenerationReport) -> None:
        job, kernel = self.job, self.pool.kernel
        batch = job.steps[self._number]
        job.learn(batch, self._predicted, report, self._plan, self._supply, self._began)
        between = job.between = job.setting.rest(report.tokens)
        self.steps.append((self._began, kernel.now + between))
        self._times.append(StepTime(self._most, report.seconds + between, report.tokens))
        self._generation, self.wants = None, 0
        self._number += 1
        if self._number < len(job.steps):
            begin = kernel.now + between
            kernel.at(max(kernel.now, begin - job.setting.start), 0, self._announce, begin)


@dataclass(frozen=True, slots=True)
class SharedTrial:
    """One run of two jobs."""

    setting: RolloutSetting
    places: int
    seed: int


def run_shared(trial: SharedTrial) -> tuple[float, float]:
    """Return s of all steps of both jobs (from begin to begin), and GPU-seconds of their actors."""
    setting, kernel = trial.setting, Kernel()
    pool = ActorPool(kernel, trial.places, setting.gpus_per_actor)
    setting = replace(setting, most=trial.places, static=min(setting.static, trial.places))
    for number in range(2):
        job = Job(setting, SHARED, 1000 * number + trial.seed)
        half = 0.5 * (job.between + 25.0)
        pool.jobs.append(SharedJob("ab"[number], job, pool, trial.places // 2, number * half))
    kernel.run(iter(()), iter(()), lambda _s, _t: None, pool.settle)
    seconds = 0.0
    for shared in pool.jobs:
        if len(shared.steps) < len(shared.job.steps):
            raise RuntimeError(
                f"{shared.key}: {len(shared.steps)} of {counted(len(shared.job.steps), 'step')} ended"
            )
        seconds += shared.steps[-1][1] - shared.steps[0][0]
    return seconds, pool.held * setting.gpus_per_actor


COLUMNS = (
    Column("what", "two jobs", "text"),
    Column("even", "step, of 3 Even held", "number"),
    Column("longest", "step, of 3 LongestFirst held", "number"),
    Column("held", "GPU-seconds, of 3 + 3 held"),
    Column("goal", "goal", "text"),
    Column("met", "", "text"),
)


def shared(
    setting: RolloutSetting, seeds: int, executor: Executor, progress: Progress | None = None
) -> Findings:
    setting = replace(setting, per_epoch=4)
    kinds = [(start, places) for start in (3.0, 10.0) for places in (4, 3)]
    trials = [
        SharedTrial(replace(setting, start=start, recall=RECALL), places, seed)
        for start, places in kinds
        for seed in range(seeds)
    ]
    done: list[tuple[float, float]] = []
    for one in executor.map(run_shared, trials):
        done.append(one)
        if progress is not None:
            progress(len(done), len(trials))
    numbers = [1000 * job + seed for seed in range(seeds) for job in range(2)]
    held = [
        RolloutTrial(setting, scheme, n) for scheme in (schemes.EVEN, schemes.LONGEST_FIRST) for n in numbers
    ]
    alone = [(one.steps, one.held) for one in executor.map(perform, held)]
    pairs = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(alone[::2], alone[1::2], strict=True)]
    even, longest = pairs[:seeds], pairs[seeds:]
    rows: list[dict[str, Value]] = []
    for i, (start, places) in enumerate(kinds):
        mine = done[i * seeds : (i + 1) * seeds]
        against_even = _ratio(mine, even, 0)
        against_longest = _ratio(mine, longest, 0)
        most = ((0.95, 1.05) if places == 4 else (1.00, 1.15)) if start == 3.0 else None
        met = most and against_even.value <= most[0] and against_longest.value <= most[1]
        rows.append(
            {
                "what": f"{counted(places, 'shared actor')}, starts of {start:g} s",
                "even": against_even,
                "longest": against_longest,
                "held": Estimate(*(v - 1.0 for v in _ratio(mine, longest, 1))),
                "goal": None
                if most is None
                else f"step at most {most[0]:.2f} of Even, {most[1]:.2f} of LongestFirst",
                "met": None if met is None else verdict(bool(met)),
            }
        )
    return Findings(
        "shared",
        "Two jobs on shared actors, against 3 + 3 of their own",
        setting.as_dict(),
        COLUMNS,
        rows,
        {"seeds": seeds},
        [
            f"{counted(setting.per_epoch * setting.epochs, 'step')} of each job; the place of an actor that "
            f"left is free {RECALL:g} s later. Steps are whole ones, from begin to begin.",
            "Held actors need no starts, so both baselines are the same for all rows.",
            *losses(rows),
        ],
    )


def _ratio(ours: Sequence[tuple[float, float]], base: Sequence[tuple[float, float]], which: int) -> Estimate:
    return ratio([one[which] for one in ours], [one[which] for one in base])
