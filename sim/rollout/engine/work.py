"""Work of a generation: prompts with their copies, and the responses that an engine holds."""

from __future__ import annotations

import dataclasses

from controller.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a step.

    Args:
        number: of the prompt in its step, from 0.
        tokens: of the prompt itself.
        lengths: true tokens of each copy's response, at least 1 each; the engine alone knows them.
        predicted: tokens that a response was expected to have.
    """

    number: int
    tokens: int
    lengths: tuple[int, ...]
    predicted: float


@dataclasses.dataclass(slots=True)
class Response:
    """One copy's response while it is generated. ``generated``: tokens that the client has and keeps."""

    prompt: Prompt
    length: int
    generated: int = 0
    moves: int = 0
    home: int = -1  # actor that it was dealt to first

    @property
    def left(self) -> int:
        return self.length - self.generated

    @property
    def context(self) -> int:
        return self.prompt.tokens + self.generated


@dataclasses.dataclass(slots=True)
class ActorReport:
    """One actor's report of one generation, as its sidecar would make it. Times are s of virtual time."""

    number: int
    bound: float
    ready: float
    ended: float = 0.0
    iterations: int = 0
    tokens: int = 0
    context: int = 0  # tokens of context of all live responses, summed over iterations
    prefilled: int = 0  # tokens of prompts and prefixes
    decoding: float = 0.0  # s of iterations without prefill
    responses: int = 0

    @property
    def held(self) -> float:
        """Seconds from the pod's binding to its end."""
        return self.ended - self.bound


@dataclasses.dataclass(slots=True)
class GenerationReport:
    """Report of one step's generation. ``seconds``: from its begin to the last response."""

    began: float
    seconds: float
    actors: list[ActorReport]
    moved: int = 0  # responses that another actor went on with
    prefill_actor: float = 0.0  # s that an actor for prefills alone was busy

    @property
    def held(self) -> float:
        """Seconds of all actors, one after the other; times GPUs of one it is GPU-seconds."""
        return sum(actor.held for actor in self.actors) + self.prefill_actor

    @property
    def tokens(self) -> int:
        return sum(actor.tokens for actor in self.actors)
