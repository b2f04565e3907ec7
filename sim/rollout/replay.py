"""`replay`: recorded steps of real actors, played again by the engine; how far its times are from the
clock's.

A record (one JSON line for each step, as the example trainer writes it with ``--rollouts-record``) has each
response's length, what was predicted, the plan, and of each actor when it was ready, when it left, and what
it counted. The engine gets lengths, predictions, dispatch, slots and times of coming and going; its law is
fitted to all actors' counters over the whole record, and tokens come in frames, as the sidecar sends them.
What it does not get is how long the step took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controller import bounded
from controller.frozen import dataclass
from controller.policy.wording import counted
from sim.experiments.findings import Column, Findings, Value
from sim.kernel import Kernel
from sim.rollout.engine.dispatch import Dispatch, Groups, OneQueue
from sim.rollout.engine.generation import Generation
from sim.rollout.engine.work import Prompt
from sim.rollout.laws import Law

MOST_LINE = 16 << 20  # bytes of a step
MOST_STEPS = 10_000
SHOWN = 30  # steps that get a row
FRAME = 0.1  # s between frames of the sidecar (controller/actor/frames.py: a test holds the two equal)
COLUMNS = (
    Column("step", "step", "count"),
    Column("dispatch", "dispatch", "text"),
    Column("actors", "actors", "count"),
    Column("measured", "measured", "seconds"),
    Column("simulated", "simulated", "seconds"),
    Column("error", "error"),
)


@dataclass(frozen=True, slots=True)
class RecordedActor:
    """``ready``, ``left``: s after the begin. ``lost``: it was taken away before its work was done."""

    slots: int
    ready: float
    left: float
    lost: bool
    iterations: float
    tokens: float
    decode_seconds: float
    prefill_tokens: float
    prefill_seconds: float
    asked: float = 0.0  # requests for responses, and s until they were in the engine's queue, in all
    asking_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One line of a record."""

    step: int
    seconds: float
    dispatch: str
    cut: float
    prompts: tuple[Prompt, ...]
    actors: tuple[RecordedActor, ...]


def replay(path: Path) -> Findings:
    """Return measured and simulated seconds of each step of a record.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no recorded step; the message names line, field and what would be right.
    """
    steps = read(path)
    law = fitted([actor for step in steps for actor in step.actors])
    rows: list[dict[str, Value]] = []
    way = way_there(steps)
    played = [play(step, law, way=way) for step in steps]
    for step, took in zip(steps, played, strict=True):
        rows.append(
            {
                "step": step.step, "dispatch": step.dispatch, "actors": len(step.actors),
                "measured": step.seconds, "simulated": took, "error": took / step.seconds - 1.0,
            }
        )  # fmt: skip
    measured, simulated = sum(step.seconds for step in steps), math.fsum(played)
    errors = [abs(took / step.seconds - 1.0) for step, took in zip(steps, played, strict=True)]
    headline: dict[str, Value] = {
        "steps": len(rows), "measured_seconds": measured, "simulated_seconds": simulated,
        "error": simulated / measured - 1.0, "mean_absolute_error": sum(errors) / len(errors),
    }  # fmt: skip
    return Findings(
        "replay",
        "Recorded steps, played again by the simulator's engine",
        {
            "file": str(path),
            "law": {"iteration": law.iteration, "sequence": law.sequence, "prefill": law.prefill},
            "frame": FRAME,
            "way": way,
        },
        COLUMNS,
        rows[:SHOWN],
        headline,
        [
            f"{counted(len(rows), 'step')}: {measured:.1f} s measured, {simulated:.1f} s simulated, "
            f"{100 * (simulated / measured - 1):+.1f} %; mean of each step's error "
            f"{100 * sum(errors) / len(errors):.1f} %.",
            f"Fitted to the actors' counters: {1000 * law.iteration:.1f} ms of an iteration,"
            f" {1000 * law.sequence:.2f} ms for each live response,"
            f" {1000 * law.prefill:.2f} ms for each token of a prefill; {1000 * way:.1f} ms from the client's"
            f" decision to the engine's queue, as the client measured it, and {1000 * FRAME:.0f} ms between"
            " frames.",
            *([f"The first {SHOWN} steps are shown."] if len(rows) > SHOWN else []),
        ],
    )


def read(path: Path) -> list[RecordedStep]:
    """Return the steps of a record.

    Raises:
        OSError, ValueError: see `replay`.
    """
    found: list[RecordedStep] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            document = bounded.load(line, where, MOST_LINE, values=4_000_000)
            try:
                found.append(_step(document))
            except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
                raise ValueError(f"{where}: no recorded step ({type(error).__name__}: {error})") from None
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if len(found) > MOST_STEPS:
                raise ValueError(f"{path}: more than {MOST_STEPS} steps")
    if not found:
        raise ValueError(f"{path}: expected at least one recorded step, got none")
    return found


def fitted(actors: Sequence[RecordedActor]) -> Law:
    """Return the law that all actors' counters fit best: decode seconds by iterations and tokens.

    Raises:
        ValueError: no actor counted anything.
    """
    used = [a for a in actors if a.iterations > 0 and a.tokens > 0 and a.decode_seconds > 0]
    if not used:
        raise ValueError("no actor in the record counted iterations, tokens and seconds")
    batch = np.array([a.tokens / a.iterations for a in used])
    each = np.array([a.decode_seconds / a.iterations for a in used])
    weight = np.array([a.iterations for a in used])
    middle, mean = np.average(batch, weights=weight), np.average(each, weights=weight)
    below = float(np.average((batch - middle) ** 2, weights=weight))
    above = float(np.average((batch - middle) * (each - mean), weights=weight))
    sequence = max(0.0, above / below) if below > 1e-9 else 0.0
    if sequence * middle > mean:
        sequence = 0.0
    prefilled = sum(a.prefill_tokens for a in used)
    prefill = sum(a.prefill_seconds for a in used) / prefilled if prefilled > 0 else 0.0
    return Law(float(mean - sequence * middle), float(sequence), 0.0, float(prefill))


def way_there(steps: Sequence[RecordedStep]) -> float:
    """Return s from the client's decision to the engine's queue, the mean of all; 0: not recorded."""
    actors = [actor for step in steps for actor in step.actors]
    asked = sum(actor.asked for actor in actors)
    return sum(actor.asking_seconds for actor in actors) / asked if asked else 0.0


def play(step: RecordedStep, law: Law, *, frames: float = FRAME, way: float = 0.0) -> float:
    """Return s that the engine takes for a step.

    Args:
        step: as recorded.
        law: of the actors.
        frames: s between an actor's frames of tokens.
        way: s of a request: of each one for responses, and of the last, which asks for the report.
    """
    kernel = Kernel()
    responses = sum(len(prompt.lengths) for prompt in step.prompts)
    generation = Generation(
        kernel, law, max(actor.slots for actor in step.actors), _dealing(step), responses,
        release=(False,) * len(step.actors), frames=frames, way=way,
    )  # fmt: skip

    def begin(_: object) -> bool:
        generation.begin([(0.0, actor.ready + way) for actor in step.actors])
        return True

    def leave(place: object) -> bool:
        assert isinstance(place, int)
        actor = generation.actors[place]
        if generation.report is None and not actor.released:
            generation.recall(actor)
        return True

    kernel.at(0.0, 0, begin, None)
    for place, actor in enumerate(step.actors):
        if actor.lost:
            kernel.at(max(actor.ready, actor.left), 1000 + place, leave, place)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    if generation.report is None:
        raise ValueError(
            f"step {step.step}: {counted(generation.missing, 'response')} never end with the recorded actors"
        )
    return generation.report.seconds + way


def _dealing(step: RecordedStep) -> Dispatch:
    if step.dispatch == "Ranked":
        return Groups(step.prompts, ranked=True, cut=step.cut)
    if step.dispatch == "Even":
        return Groups(step.prompts, ranked=False)
    return OneQueue(step.prompts)


def _step(given: dict[str, Any]) -> RecordedStep:
    lengths, predicted, tokens = given["lengths"], given["predicted"], given["promptTokens"]
    if not 0 < len(lengths) == len(predicted) == len(tokens):
        raise ValueError("lengths, predicted, promptTokens: expected as many of each, at least one")
    prompts = tuple(
        Prompt(
            i,
            int(_number(size, "promptTokens")),
            tuple(int(_number(n, "lengths")) for n in row),
            _number(guess, "predicted"),
        )
        for i, (row, guess, size) in enumerate(zip(lengths, predicted, tokens, strict=True))
    )
    if any(min(prompt.lengths, default=0) < 1 for prompt in prompts):
        raise ValueError("lengths: expected at least one token of each response")
    actors = tuple(_actor(one) for one in given["actors"] if one.get("ready") is not None)
    if not actors:
        raise ValueError("actors: expected at least one that was ready")
    seconds = _number(given["seconds"], "seconds")
    if seconds <= 0.0:
        raise ValueError(f"seconds: {seconds!r} is not allowed, expected a time above 0")
    plan = given["plan"]
    return RecordedStep(
        int(given["step"]), seconds, str(plan["dispatch"]), _number(plan["cut"], "plan.cut"), prompts, actors
    )


def _actor(given: dict[str, Any]) -> RecordedActor:
    lost = given["state"] in ("lost", "faulty") or bool(given.get("recalled"))
    left = given.get("left")
    counted = [
        _number(given.get(name, 0.0), name)
        for name in (
            *("iterations", "tokens", "decodeSeconds", "prefillTokens", "prefillSeconds"),
            *("asked", "askingSeconds"),
        )
    ]
    return RecordedActor(
        max(1, int(given["slots"])), _number(given["ready"], "ready"),
        math.inf if left is None else _number(left, "left"), lost and left is not None, *counted,
    )  # fmt: skip


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"{name}: {bounded.shown(value)} is not allowed, expected a number from 0")
    return float(value)
