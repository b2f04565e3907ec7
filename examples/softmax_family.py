"""The example trainer's policy as a family of a shared worker group: NumPy, on one device or several.

All members compute the same, as the pods of the example's gang do: it has no data to split.
`evalstop doctor --family examples/softmax_family.py` checks it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

# A worker has its core to itself for its turn; the matrices are tiny.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from evalstop_client.arrays import as_numpy
from evalstop_client.family import Array, BadCall, Call, Family, Place, array, function, number
from examples.trainer.policy import Parameters, Policy, score_gradient
from examples.trainer.task import LENGTH, PROMPTS, VOCABULARY, Floats, Ints
from examples.trainer.updates import adam, zeros

CALLS, STEPS, PENDING = range(3)  # of the region "counters": calls that count, steps, gradients not used yet
_MOST_SECONDS = 3600.0

Arrays = Mapping[str, Array]
Answer = tuple[Any, Mapping[str, Array]]


class SoftmaxFamily(Family):
    """One run's logits, Adam's moments, the gradient between two calls, and counters of calls and steps."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._buffers: dict[str, memoryview] = {}

    def load(self, place: Place, fresh: bool) -> None:
        self.place = place
        initial = Parameters.initial(1)
        logits = initial.transition.nbytes + initial.topic.nbytes
        sizes = {"weights": logits, "moments": 2 * logits, "gradient": logits, "counters": 3 * 8}
        device = place.device
        self._buffers = {
            name: memoryview(bytearray(size)) if device is None else device.buffer(size)
            for name, size in sizes.items()
        }
        if fresh:
            self._set("weights", [initial.transition, initial.topic])
            self._set("moments", zeros(initial))
            self._set("gradient", [np.zeros_like(initial.transition), np.zeros_like(initial.topic)])
            self._counters()[:] = 0

    def regions(self) -> Mapping[str, memoryview]:
        return self._buffers

    def offload(self) -> None:
        self._buffers = {}

    # functions

    @function
    def put(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Go on from a checkpoint: arrays ``transition``, ``topic``, ``adam_0`` to ``adam_3``."""
        like = Parameters.initial(1)
        moments = zeros(like)
        given = [
            as_numpy(array(arrays, name, ["<f8"], one.shape)).copy()
            for name, one in (
                ("transition", like.transition),
                ("topic", like.topic),
                *((f"adam_{i}", moment) for i, moment in enumerate(moments)),
            )
        ]
        self._set("weights", given[:2])
        self._set("moments", given[2:])
        self._counted()
        self._counters()[PENDING] = 0
        return None, {}

    @function(changes=())
    def forward(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Return ``logprobs`` (1, N), nats, of ``responses`` (1, N, L) to ``prompts`` (1, N)."""
        prompts, responses = _batch(arrays)
        found = Policy(self._parameters()).replay(prompts, responses).log_probability
        return None, {"logprobs": Array("<f8", found.shape, np.ascontiguousarray(found))}

    @function(changes=["gradient", "counters"])
    def forward_backward(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Keep the gradient of the log-probabilities, each times its ``weight`` (1, N)."""
        began, seconds = time.monotonic(), number(arguments, "seconds", 0.0, least=0.0, most=_MOST_SECONDS)
        prompts, responses = _batch(arrays)
        weight = as_numpy(array(arrays, "weight", ["<f8"], prompts.shape))
        if self._counters()[PENDING]:
            raise BadCall(
                "forward_backward: there is a gradient already, expected optim_step before the next"
            )
        batch = Policy(self._parameters()).replay(prompts, responses)
        gradient = score_gradient(batch, weight)
        self._set("gradient", [gradient.transition, gradient.topic])
        self._counted()
        self._counters()[PENDING] = 1
        time.sleep(
            max(0.0, began + seconds - time.monotonic())
        )  # a model that is worth training takes longer
        return {"responses": int(prompts.size)}, {}

    @function(changes=["weights", "moments", "gradient", "counters"])
    def optim_step(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Make a step of Adam with learning rate ``lr``. ``step``: its number, for the bias of the
        moments."""
        lr = number(arguments, "lr", least=0.0)
        step = number(arguments, "step", float(self._counters()[STEPS]) + 1.0, least=1.0, most=1e12)
        if not self._counters()[PENDING]:
            raise BadCall("optim_step: there is no gradient, expected forward_backward before it")
        like = Parameters.initial(1)
        shapes = [like.transition.shape, like.topic.shape]
        gradient = Parameters(*self._get("gradient", shapes))
        moments = self._get("moments", [shapes[0], shapes[0], shapes[1], shapes[1]])
        parameters, moments = adam(self._parameters(), moments, gradient, lr, int(step))
        self._set("weights", [parameters.transition, parameters.topic])
        self._set("moments", moments)
        self._counted()
        self._counters()[PENDING] = 0
        self._counters()[STEPS] = int(step)
        return {"step": int(step)}, {}

    @function(changes=())
    def progress(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Return how many calls have changed the state, and the number of the newest step."""
        calls, steps, _ = self._counters().tolist()
        return {"calls": calls, "steps": steps}, {}

    @classmethod
    def examples(cls) -> list[list[Call]]:
        drawn = np.random.default_rng(7)
        responses = drawn.integers(0, VOCABULARY, (1, 16, LENGTH))
        batch = {"prompts": drawn.integers(0, PROMPTS, (1, 16)), "responses": responses}
        weight = drawn.normal(size=(1, 16))
        like = Parameters.initial(1)
        checkpoint = {"transition": 2.0 * like.transition, "topic": like.topic}
        checkpoint |= {f"adam_{i}": moment + 0.5 for i, moment in enumerate(zeros(like))}
        step = [Call("forward_backward", {}, {**batch, "weight": weight}), Call("optim_step", {"lr": 0.1})]
        return [step, [Call("forward", {}, batch), Call("progress")], [Call("put", {}, checkpoint), *step]]

    # the state

    def _parameters(self) -> Parameters:
        like = Parameters.initial(1)
        return Parameters(*self._get("weights", [like.transition.shape, like.topic.shape]))

    def _counters(self) -> Ints:
        return np.frombuffer(self._buffers["counters"], np.int64)

    def _counted(self) -> None:
        self._counters()[CALLS] += 1

    def _get(self, region: str, shapes: list[tuple[int, ...]]) -> list[Floats]:
        """Return copies of a region's arrays: nothing may refer to the device's memory once it is given
        back."""
        flat, found, at = np.frombuffer(self._buffers[region], np.float64), [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            found.append(flat[at : at + size].reshape(shape).copy())
            at += size
        return found

    def _set(self, region: str, arrays: list[Floats]) -> None:
        flat, at = np.frombuffer(self._buffers[region], np.float64), 0
        for one in arrays:
            flat[at : at + one.size] = one.ravel()
            at += one.size


def _batch(arrays: Arrays) -> tuple[Ints, Ints]:
    prompts: Ints = as_numpy(array(arrays, "prompts", ["<i8"], (1, None)))
    responses: Ints = as_numpy(array(arrays, "responses", ["<i8"], (1, prompts.shape[1], LENGTH)))
    for name, given, most in (("prompts", prompts, PROMPTS), ("responses", responses, VOCABULARY)):
        if given.size == 0 or given.min() < 0 or given.max() >= most:
            raise BadCall(f"arrays: {name!r}: expected at least one number, each from 0 to {most - 1}")
    return prompts, responses
