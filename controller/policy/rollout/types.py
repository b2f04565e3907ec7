"""Input and output of a step's plan: forecasts, laws, settings, points of the curve, plans."""

from __future__ import annotations

from enum import StrEnum

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, param

MOST_ACTORS = 64
MOST_BINS = 256  # of a forecast
MOST_COPIES = 1024
MOST_RESPONSES = 262_144  # of a step: 16,384 prompts of 16 copies
MOST_TOKENS = 10_000_000  # of one response


class Dispatch(StrEnum):
    """Dispatch of responses to actors.

    LONGEST_FIRST: one queue, the longest prompt first; a free actor takes a prompt with all its copies.
    RANKED: groups of equal counts by rank; an actor that is mostly done gives its last responses to others.
    EVEN: groups of equal counts in the order in which the trainer has the prompts.
    AUTO: of these, whichever the objective likes best.
    """

    LONGEST_FIRST = "LongestFirst"
    RANKED = "Ranked"
    EVEN = "Even"
    AUTO = "Auto"


class WhenIdle(StrEnum):
    """Fate of an actor that has nothing more to do in a step."""

    AUTO = "Auto"
    KEEP = "Keep"
    RELEASE = "Release"


class Objective(StrEnum):
    """CHEAPEST_WITHIN: the cheapest of those that are fast enough. WEIGHTED: RLHFless's weighted sum."""

    CHEAPEST_WITHIN = "cheapestWithin"
    WEIGHTED = "weighted"


class Reason(StrEnum):
    """Reason of a plan."""

    PLANNED = "Planned"
    KEPT_COUNT = "KeptCount"  # another count would gain too little
    PREDICTIONS_POOR = "PredictionsPoor"  # ranks say too little about lengths
    TIMES_POOR = "TimesPoor"  # steps took another time than planned
    NO_FORECAST = "NoForecast"  # nothing is known of the lengths


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of a job's actors: bounds on their count, and its objective.

    Raises:
        ParamError: a value is out of bounds, ``min`` exceeds ``max``, or ``static`` lies outside of both.
    """

    min: int = param(1, unit="actors", doc="that the job is admitted with", ge=1, le=MOST_ACTORS)
    max: int = param(8, unit="actors", doc="that a step has at most", ge=1, le=MOST_ACTORS)
    static: int = param(3, unit="actors", doc="when nothing can be planned", ge=1, le=MOST_ACTORS)
    gpus_per_actor: int = param(1, unit="GPUs", doc="of each actor", ge=1, le=1024)
    dispatch: str = param("Auto", unit="", doc="how responses reach actors", choices=tuple(Dispatch))
    objective: str = param("cheapestWithin", unit="", doc="how a count is chosen", choices=tuple(Objective))
    within: float = param(
        0.1,
        unit="share",
        doc="by which a step may take longer than the fastest (cheapestWithin)",
        ge=0.0,
        le=10.0,
    )
    time_weight: float = param(
        0.7, unit="share", doc="of time against cost, each min-max normalised (weighted)", ge=0.0, le=1.0
    )
    when_idle: str = param("Auto", unit="", doc="an actor with nothing more to do", choices=tuple(WhenIdle))
    cut: float = param(
        0.7, unit="share", doc="of an actor's responses done before the rest may move", gt=0.0, le=1.0
    )
    least_gain: float = param(
        0.03, unit="share", doc="that another count or dispatch must gain to be taken", ge=0.0, le=1.0
    )

    def __post_init__(self) -> None:
        check(self, "rollout")
        if self.min > self.max:
            raise ParamError("rollout.min", self.min, f"at most max, {self.max}")
        if not self.min <= self.static <= self.max:
            raise ParamError("rollout.static", self.static, f"from min, {self.min}, to max, {self.max}")


@dataclass(frozen=True, slots=True)
class ActorLaw:
    """Seconds of an actor's work: ``iteration + sequence b + growth g`` for an iteration of b responses.

    Args:
        iteration: s of an iteration, whatever is live (a).
        sequence: s on top of it for each live response (c).
        growth: s on top of it for each token that live responses have so far (g): long ones cost more to go
            on
            with. 0 where nobody measured it; c then stands for a response of usual length.
        prefill: s for a prompt.
        slots: responses that are live at a time.

    Raises:
        ParamError: a time is negative, not finite, or all of an iteration's are 0; or there is no slot.
    """

    iteration: float = param(0.01, unit="s", doc="of an iteration", ge=0.0, le=3600.0)
    sequence: float = param(0.0, unit="s", doc="for each live response", ge=0.0, le=3600.0)
    growth: float = param(0.0, unit="s", doc="for each token so far", ge=0.0, le=1.0)
    prefill: float = param(0.0, unit="s", doc="for each prompt", ge=0.0, le=3600.0)
    slots: int = param(64, unit="responses", doc="live at a time", ge=1, le=1_000_000)

    def __post_init__(self) -> None:
        check(self, "law")
        if not self.iteration + self.sequence > 0.0:
            raise ParamError("law.iteration", self.iteration, "a time above 0 for an iteration")

    def seconds(self, iterations: float, tokens: float, grown: float, prompts: float) -> float:
        """Return s of an actor's work.

        Args:
            iterations: how many.
            tokens: that they gave, one for each live response and iteration.
            grown: tokens that live responses had so far, summed over iterations; half the square of its
                length
                for a response from its first token to its last.
            prompts: that were prefilled.
        """
        return (
            self.iteration * iterations
            + self.sequence * tokens
            + self.growth * grown
            + self.prefill * prompts
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of the lengths of a step's responses: a histogram, no prompts.

    Args:
        bins: (tokens, prompts with about as many), longest first.
        copies: responses of each prompt.
        spread: log-sd between the copies of a prompt.
        cap: tokens that no response exceeds.

    Raises:
        ParamError: too many bins or responses, a bin without prompts or with impossible tokens, a spread that
            is no number.
    """

    bins: tuple[tuple[float, int], ...]
    copies: int
    spread: float
    cap: int

    def __post_init__(self) -> None:
        if len(self.bins) > MOST_BINS:
            raise ParamError("forecast.bins", len(self.bins), f"at most {MOST_BINS} bins")
        for tokens, prompts in self.bins:
            if not 0.0 < tokens <= MOST_TOKENS:  # NaN, too
                raise ParamError("forecast.bins", tokens, f"tokens above 0 and at most {MOST_TOKENS}")
            if prompts < 1:
                raise ParamError("forecast.bins", prompts, "at least one prompt in a bin")
        if not 1 <= self.copies <= MOST_COPIES:
            raise ParamError("forecast.copies", self.copies, f"1 to {MOST_COPIES}")
        if self.responses > MOST_RESPONSES:
            raise ParamError(
                "forecast.bins",
                self.prompts,
                f"at most {MOST_RESPONSES // self.copies} prompts in all bins together"
                f" ({MOST_RESPONSES} responses, {self.copies} of each prompt)",
            )
        if not 0.0 <= self.spread <= 3.0:
            raise ParamError("forecast.spread", self.spread, "a log-sd from 0 to 3")
        if not 1 <= self.cap <= MOST_TOKENS:
            raise ParamError("forecast.cap", self.cap, f"1 to {MOST_TOKENS} tokens")

    @property
    def prompts(self) -> int:
        return sum(prompts for _, prompts in self.bins)

    @property
    def responses(self) -> int:
        return self.prompts * self.copies


@dataclass(frozen=True, slots=True)
class Supply:
    """Actors available to a step, and the cost of another one.

    Args:
        held: actors that are ready when generation begins.
        start: s from the binding of a pod until it can take a prompt.
        recall: s from the decision to release an actor until its GPUs are somebody else's.
        lead: s before the begin at which actors can be started, because generation was announced.
        between: s from the end of one generation to the begin of the next.
        most: actors that there are GPUs for, those held among them; None: as many as the job may have.
    """

    held: int = 0
    start: float = 0.0
    recall: float = 0.0
    lead: float = 0.0
    between: float = 0.0
    most: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "recall", "lead", "between"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1e6:
                raise ParamError(f"supply.{name}", value, "0 to 1000000 s")
        if self.held < 0:
            raise ParamError("supply.held", self.held, "at least 0 actors")
        if self.most is not None and self.most < 0:
            raise ParamError("supply.most", self.most, "at least 0 actors")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Time and cost of a step with this count and dispatch. ``ends``: s of each actor's last response."""

    actors: int
    dispatch: Dispatch
    seconds: float
    gpu_seconds: float
    ends: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A step's plan.

    Args:
        actors: how many there are to be.
        dispatch: how responses reach them; never Auto.
        release: actors that leave when they have nothing more to do, by number; the others are kept.
        seconds, gpu_seconds: what the step will take; None: nothing is known.
        reason, message: why, with the numbers.
        curve: every point that was looked at.
        too_late: counts that were left out because their last actor would have come too late.
    """

    actors: int
    dispatch: Dispatch
    release: tuple[bool, ...]
    seconds: float | None
    gpu_seconds: float | None
    reason: Reason
    message: str
    curve: tuple[CurvePoint, ...] = ()
    too_late: tuple[int, ...] = ()
