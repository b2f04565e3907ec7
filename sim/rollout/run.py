"""One job by itself: plan, generate, train, step after step, by the production planner.

The engine carries a plan out and reports; from reports the planner's law, lengths and trust are learned, by
the same code as in production. Nothing here estimates.
"""

from __future__ import annotations

from controller.frozen import dataclass
from controller.policy.rollout import (
    ActorLaw,
    Dispatch,
    Learned,
    LengthHistory,
    RolloutPlan,
    RolloutSettings,
    StepSeen,
    Supply,
    WorkReport,
    bound_times,
    expected_seconds,
    forecast,
    learned,
    plan_rollout,
    rank_correlation,
    ready_times,
)
from controller.policy.wording import counted
from sim.kernel import Kernel
from sim.rollout.engine.dispatch import Dispatch as Dealing
from sim.rollout.engine.dispatch import Groups, OneQueue
from sim.rollout.engine.generation import Generation
from sim.rollout.engine.work import ActorReport, GenerationReport, Prompt
from sim.rollout.predictions import predict
from sim.rollout.setting import RolloutSetting, Scheme
from sim.rollout.workload import StepBatch, batches


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of a step: its times and GPU-seconds.

    GPU-seconds of rollout actors, starts included: ``held`` over the whole step, ``generating`` up to the
    last response.
    """

    seconds: float  # of generation
    between: float
    generating: float
    held: float
    actors: int
    moved: int
    planned: float | None
    reason: str
    kept: int

    @property
    def step(self) -> float:
        return self.seconds + self.between


def run(setting: RolloutSetting, scheme: Scheme, seed: int) -> list[StepOutcome]:
    """Return the steps of a run."""
    return Job(setting, scheme, seed).play()


class Job:
    """A simulated job: what it carries from step to step."""

    def __init__(self, setting: RolloutSetting, scheme: Scheme, seed: int) -> None:
        self.setting, self.scheme, self.seed = setting, scheme, seed
        self.steps = batches(
            setting.profile,
            setting.prompts,
            setting.copies,
            per_epoch=setting.per_epoch,
            epochs=setting.epochs,
            seed=seed,
            growth=setting.growth,
        )
        self.learned = Learned(setting.first_law())
        self.history = LengthHistory()
        self.kept = 0
        self.between = setting.rest(int(setting.prompts * setting.copies * setting.profile.mean))

    @property
    def law(self) -> ActorLaw:
        """That of an actor, as far as it is known."""
        return self.learned.law

    def play(self) -> list[StepOutcome]:
        return [self._step(number, batch) for number, batch in enumerate(self.steps)]

    def predict(self, number: int) -> tuple[float, ...]:
        """Return what is predicted for a step."""
        return predict(self.scheme.predictor, self.steps[number], self.history, self.seed * 1000 + number)

    def plan(self, predicted: tuple[float, ...], supply: Supply) -> RolloutPlan | None:
        """Return the planner's plan; None for a scheme with a fixed count."""
        if self.scheme.settings is None:
            return None
        setting, scheme = self.setting, self.scheme
        spread = self.history.spread if scheme.spread and setting.copies > 1 else 0.0
        return plan_rollout(
            forecast(predicted, setting.copies, spread, setting.profile.cap),
            self.law,
            planner_settings(setting, scheme),
            supply,
            trust=self.learned.trust if scheme.trust else None,
            before=self.learned.before,
        )

    def _step(self, number: int, batch: StepBatch) -> StepOutcome:
        setting, scheme = self.setting, self.scheme
        predicted = self.predict(number)
        supply = Supply(
            held=self.kept,
            start=setting.start,
            recall=setting.recall,
            lead=self.between,
            between=self.between,
        )
        plan = self.plan(predicted, supply)
        count = scheme.count if plan is None else plan.actors
        release = (scheme.release,) * count if plan is None else plan.release
        report = generate(
            setting, scheme, batch.prompts(predicted), plan, supply, count=count, release=release
        )
        # The engine begins a step at its lead: starts ahead lie before.
        self.learn(batch, predicted, report, plan, supply, supply.lead)
        between = setting.rest(report.tokens)
        kept = sum(1 for leaves in release if not leaves)
        generating = held = report.prefill_actor
        for actor, leaves in zip(report.actors, release, strict=True):
            generating += actor.held
            held += actor.held + setting.recall if leaves else actor.held + between
        # What was kept and is not needed was held until this begin; that is in the step before.
        self.kept, self.between = kept, between
        return StepOutcome(
            report.seconds,
            between,
            generating * setting.gpus_per_actor,
            held * setting.gpus_per_actor,
            count,
            report.moved,
            None if plan is None else plan.seconds,
            "Fixed" if plan is None else plan.reason.value,
            kept,
        )

    def learn(
        self,
        batch: StepBatch,
        predicted: tuple[float, ...],
        report: GenerationReport,
        plan: RolloutPlan | None,
        supply: Supply,
        begun: float,
    ) -> None:
        """Take in what a step showed that was planned with this supply and begun at this time (s)."""
        means = [sum(lengths) / len(lengths) for lengths in batch.lengths]
        self.history = self.history.seen(zip(batch.keys, predicted, batch.lengths, strict=True))
        if plan is None:
            return
        ready = [max(0.0, actor.ready - begun) for actor in report.actors]
        seen = StepSeen(
            report.seconds,
            rank_correlation(predicted, means),
            tuple(self._work(actor) for actor in report.actors),
            plan,
            expected_seconds(plan, ready_times(supply, plan.actors), ready),
        )
        self.learned = learned(self.learned, self.law, seen)

    def _work(self, actor: ActorReport) -> WorkReport:
        prompt = self.setting.profile.prompt
        seconds = actor.prefilled * self.setting.law.prefill
        grown = actor.context - prompt * actor.tokens
        return WorkReport(
            actor.iterations, actor.tokens, actor.decoding, float(grown), actor.prefilled / prompt, seconds
        )


def planner_settings(setting: RolloutSetting, scheme: Scheme) -> RolloutSettings:
    """Return the planner's settings of a job."""
    base = {"max": setting.most, "static": setting.static, "gpus_per_actor": setting.gpus_per_actor}
    return RolloutSettings(**(base | dict(scheme.settings or {})))


def dealing(scheme: Scheme, prompts: list[Prompt], plan: RolloutPlan | None) -> Dealing:
    """Return the engine's dispatch for a plan, or for a scheme's fixed one."""
    name = scheme.dispatch if plan is None else plan.dispatch.value
    if name == Dispatch.LONGEST_FIRST.value:
        return OneQueue(prompts)
    if name == "Global":
        return Groups(prompts, ranked=False, cut=scheme.cut, local=False)
    ranked = name == Dispatch.RANKED.value
    return Groups(prompts, ranked=ranked, cut=scheme.cut if ranked else None)


def generate(
    setting: RolloutSetting,
    scheme: Scheme,
    prompts: list[Prompt],
    plan: RolloutPlan | None,
    supply: Supply,
    *,
    count: int,
    release: tuple[bool, ...],
) -> GenerationReport:
    """Return what the engine makes of a step, on a kernel of its own, with the begin at 0."""
    kernel = Kernel()
    # Starts ahead lie before the begin, and virtual time does not begin below 0.
    shift = supply.lead
    responses = sum(len(prompt.lengths) for prompt in prompts)
    generations: list[Generation] = []

    def begin(_: object) -> bool:
        generation = Generation(
            kernel,
            setting.law,
            setting.slots,
            dealing(scheme, prompts, plan),
            responses,
            release=release,
            shared_prefill=scheme.shared_prefill,
        )
        generations.append(generation)
        if scheme.prefill_actor:
            ranked = sorted(prompts, key=lambda p: (-p.predicted, p.number))
            generation.prefill_elsewhere(ranked, count)
        times = zip(bound_times(supply, count), ready_times(supply, count), strict=True)
        generation.begin([(shift + bound, shift + ready) for bound, ready in times])
        return True

    kernel.at(shift, 0, begin, None)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    report = generations[0].report
    if report is None:
        raise RuntimeError(f"{scheme.name}: {counted(generations[0].missing, 'response')} never ended")
    return report
