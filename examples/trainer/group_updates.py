"""Updates by a shared worker group: each step is a turn, and the policy comes back without one.

The group runs `examples.softmax_family`. What it holds after a step is, to the last bit, what this process
would hold without a group: the same functions compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evalstop_client.group import Group, State, Turn
from examples.trainer.policy import Batch, Parameters
from examples.trainer.task import Floats
from examples.trainer.updates import Phase, zeros

WEIGHTS, MOMENTS = "weights", "moments"  # regions


class GroupUpdates:
    """The group computes them.

    Args:
        group: where this job is a resident.
        seconds: each turn's work takes at least so long (for demos).
    """

    def __init__(self, group: Group, seconds: float = 0.0) -> None:
        self._group, self._seconds = group, seconds
        self._like: Parameters
        self._moments: list[Floats] = []
        self._given: dict[str, Floats] | None = None  # what the group is to go on from, until it has it

    def begin(self, parameters: Parameters, moments: Sequence[Floats]) -> None:
        self._like, self._moments = parameters, list(moments)
        named = {"transition": parameters.transition, "topic": parameters.topic}
        self._given = named | {f"adam_{i}": moment for i, moment in enumerate(moments)}

    def update(self, batch: Batch, weight: Floats, lr: float, step: int, phase: Phase) -> Parameters:
        def work(turn: Turn) -> None:
            if self._given is not None:
                turn.call("put", {}, self._given)
            given: dict[str, Any] = {"prompts": batch.prompts, "responses": batch.responses, "weight": weight}
            turn.forward_backward(given, seconds=self._seconds)
            turn.optim_step(lr, step=step)

        self._group.run(work, step)  # its phases are counted by the group's client
        self._given = None
        with phase("weights", False):
            self._moments = []
            return self._parameters(self._group.state())

    def moments(self) -> list[Floats]:
        if not self._moments:
            content = np.frombuffer(self._group.read(MOMENTS), np.float64)
            self._moments = _cut(content, zeros(self._like))
        return self._moments

    def _parameters(self, state: State) -> Parameters:
        content = np.frombuffer(self._group.read(WEIGHTS, state=state), np.float64)
        transition, topic = _cut(content, [self._like.transition, self._like.topic])
        return Parameters(transition, topic)


def _cut(content: Floats, like: Sequence[Floats]) -> list[Floats]:
    """Return arrays of these shapes, as they lie one after the other in a region."""
    found, at = [], 0
    for one in like:
        found.append(content[at : at + one.size].reshape(one.shape).copy())
        at += one.size
    assert at == content.size, (at, content.size)
    return found
