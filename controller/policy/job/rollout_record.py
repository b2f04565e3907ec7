"""A job's memory of its rollout steps: the newest plan, what the last step took, and the account."""

from __future__ import annotations

from typing import Annotated

from controller.frozen import dataclass
from controller.policy.stored import AtMost, Count, Message, Name, Step, Time, Within, Word

STEPS_KEPT = 8  # of those that have ended
Tokens = Annotated[int, Within(0, None, "int64")]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A plan of a step's generation (`policy.rollout`)."""

    step: Annotated[Step, "Number of the step."]
    actors: Annotated[Count, "Actors that it is to have."]
    dispatch: Annotated[Word, "How responses reach them: LongestFirst, Ranked or Even."]
    reason: Annotated[Word, "Why so many, as a CamelCase code."]
    message: Annotated[Message, "Why, for people, with the numbers."] = ""
    seconds: Annotated[float | None, "Seconds that its generation is to take; absent: not known."] = None
    gpu_seconds: Annotated[
        float | None, Name("gpuSeconds"), "GPU-seconds of its actors, as planned; absent: not known."
    ] = None


@dataclass(frozen=True, slots=True)
class StepMeasured:
    """A step that has ended, as measured."""

    step: Annotated[Step, "Number of the step."]
    seconds: Annotated[float, "Seconds of its generation."]
    whole_seconds: Annotated[
        float | None, "Seconds from the end of the step before to its own end; absent: it was the first."
    ] = None
    tokens: Annotated[Tokens, "Tokens that were generated in it."] = 0
    actors: Annotated[Count, "Actors that it had, the most at a time."] = 0
    gpu_seconds: Annotated[
        float | None,
        Name("gpuSeconds"),
        "GPU-seconds that actors held from the end of the step before to its own end; absent: not known.",
    ] = None
    would_take: Annotated[
        float | None,
        Name("wouldTakeGPUSeconds"),
        "With rollout mode Shadow: GPU-seconds that the plan which was not carried out would have taken.",
    ] = None
    at: Annotated[Time | None, Name("endTime"), "When it ended; absent: not known."] = None
    moved: Annotated[Count, "Responses that another actor went on with."] = 0
    failed: Annotated[Count, "Actors that its trainer lost or put aside in it."] = 0
    failures: Annotated[Message, "Which these were, and why; absent: none, or it did not say so."] = ""


@dataclass(frozen=True, slots=True)
class StepAside:
    """Actors that a step's trainer lost or put aside, told before the step's end: it may never end."""

    step: Annotated[Step, "Number of the step."]
    at: Annotated[Time, "When the first of them was told of."]
    count: Annotated[Count, "How many."]
    failures: Annotated[Message, "Which these were, and why."] = ""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that has ended: its plan, and what it took."""

    step: Annotated[Step, "Number of the step."]
    at: Annotated[Time, Name("endTime"), "When its end was seen."]
    seconds: Annotated[float, "Seconds of its generation."]
    planned_seconds: Annotated[float | None, "The same as planned; absent: not known."] = None
    whole_seconds: Annotated[
        float | None, "Seconds from the end of the step before to its own end; absent: it was the first."
    ] = None
    actors: Annotated[Count, "Actors that it had, the most at a time."] = 0
    planned_actors: Annotated[Count | None, "The same as planned; absent: it had no plan."] = None
    gpu_seconds: Annotated[
        float | None, Name("gpuSeconds"), "GPU-seconds of its actors; absent: not known."
    ] = None
    planned_gpu_seconds: Annotated[
        float | None, Name("plannedGPUSeconds"), "The same as planned; absent: not known."
    ] = None
    moved: Annotated[Count, "Responses that another actor went on with."] = 0
    failed: Annotated[Count, "Actors that its trainer lost or put aside in it."] = 0
    lent: Annotated[
        float | None,
        Name("lentGPUSeconds"),
        "GPU-seconds for which base actors were let go since the step before; absent: not known.",
    ] = None
    dispatch: Annotated[Word, "How responses reached its actors; absent: it had no plan."] = ""
    reason: Annotated[Word, "Why it was planned so, as a CamelCase code; absent: it had no plan."] = ""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A job's rollout steps, and the account of its actors."""

    plan: Annotated[StepPlan | None, "The newest step's plan; absent: no step was announced yet."] = None
    measured: Annotated[StepMeasured | None, "What the last step took; absent: none has ended yet."] = None
    held: Annotated[
        float,
        Name("heldGPUSeconds"),
        "GPU-seconds of actors that have ended, each from the binding of its pod to its end.",
    ] = 0.0
    lent: Annotated[
        float,
        Name("lentGPUSeconds"),
        "GPU-seconds for which base actors were let go, so that others could have their GPUs.",
    ] = 0.0
    lent_until: Annotated[Time | None, "Up to when lentGPUSeconds is counted."] = None
    saved: Annotated[
        float,
        Name("savedGPUSeconds"),
        "With rollout mode Shadow: GPU-seconds that carrying the plans out would have saved.",
    ] = 0.0
    failed: Annotated[Count, "Actors that ended, or were put aside, without having been asked to leave."] = 0
    starved: Annotated[
        Count,
        "How often in a row, without a step that ended in between, its trainer had no actor left, so that "
        "the job queued again.",
    ] = 0
    recent: Annotated[
        tuple[StepRow, ...],
        AtMost(STEPS_KEPT),
        "The last steps that have ended, as planned and as they were, oldest first.",
    ] = ()
    lent_seen: Annotated[
        float, Name("lentGPUSecondsSeen"), "lentGPUSeconds when the last of recent ended."
    ] = 0.0
    aside: Annotated[
        StepAside | None,
        "Actors that a step lost or put aside and that has not ended since; absent: none.",
    ] = None
