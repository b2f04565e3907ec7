"""Setting of a simulated run: model, GPUs, lengths, prompts, times of starts and of the rest of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from controller.frozen import dataclass
from controller.policy.rollout import ActorLaw
from sim.rollout import laws
from sim.rollout.workload import GSM8K, Profile


@dataclass(frozen=True, slots=True)
class RolloutSetting:
    """One job's setting: the paper's where it says; slots and spread of lengths are fitted.

    Attributes:
        prompts, copies: of a step, and the responses to each prompt.
        growth: factor of the lengths from the first step to the last.
        slots: responses that an actor generates at a time.
        most, static: actors at most, and actors of a run whose number never changes.
    """

    model: laws.Model = laws.QWEN_3B
    gpu: laws.Gpu = laws.L40S
    gpus_per_actor: int = 2
    learner_gpus: int = 8
    profile: Profile = GSM8K
    prompts: int = 256
    copies: int = 4
    per_epoch: int = 2  # steps of an epoch
    epochs: int = 3
    growth: float = 1.0
    slots: int = 80
    most: int = 8
    static: int = 3
    start: float = 0.0  # s from binding to ready
    recall: float = 0.0  # s from the decision to release an actor until its GPUs are free
    between: float | None = None  # s between generations; None: by the learner's law

    @property
    def law(self) -> laws.Law:
        return laws.actor_law(self.model, self.gpu, self.gpus_per_actor)

    def first_law(self) -> ActorLaw:
        """Return what the planner begins with: measured once, and 15 % off, so that it has to be refitted."""
        law, prompt = self.law, self.profile.prompt
        return ActorLaw(
            iteration=1.15 * law.iteration,
            sequence=1.15 * (law.sequence + law.context * prompt),
            growth=law.context,
            prefill=law.prefill * prompt,
            slots=self.slots,
        )

    def rest(self, tokens: int) -> float:
        """Return s from the end of a generation with so many tokens to the begin of the next."""
        if self.between is not None:
            return self.between
        prompts = self.prompts * self.copies * self.profile.prompt
        learner = laws.learner_seconds(self.model, self.gpu, self.learner_gpus, tokens + prompts)
        return learner + laws.sync_seconds(self.model)

    def as_dict(self) -> Mapping[str, Any]:
        return asdict(self)


PPO: Mapping[str, Any] = {"prompts": 1024, "copies": 1}  # as many responses


@dataclass(frozen=True, slots=True)
class Predictor:
    """Source of predictions.

    kind: ``history`` (the planner's own), ``noisy`` (true means times log-normal noise), ``random`` (those
    of other prompts) or ``perfect`` (true means).
    """

    kind: str = "history"
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Scheme:
    """Scheme by which a run is planned and carried out.

    Args:
        name: for reports.
        settings: for the planner, as fields of `RolloutSettings`; None: a fixed count and dispatch.
        count, dispatch: the fixed ones; dispatch "Global" is unranked with RLHFuse's cut by the share of all.
        release: of a fixed count, whether actors leave when they have nothing more to do.
        cut: share after which responses may move when ranked or global; None: never.
        shared_prefill: whether copies on one actor share a prefill.
        prefill_actor: whether an actor of its own prefills each prompt once (the paper's).
        trust: whether poor predictions are noticed.
        spread: whether the planner knows that copies differ.
        predictor: of lengths.
    """

    name: str
    settings: Mapping[str, Any] | None = None
    count: int = 3
    dispatch: str = "Even"
    release: bool = False
    cut: float | None = None
    shared_prefill: bool = True
    prefill_actor: bool = False
    trust: bool = True
    spread: bool = True
    predictor: Predictor = field(default_factory=Predictor)
