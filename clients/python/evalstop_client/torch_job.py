"""A job's side of `torch_family`: a loss of its own, and whole tensors from what the members hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from evalstop_client.arrays import TORCH, as_torch
from evalstop_client.group import Answer, Group, Turn

_CALL = 128 << 20  # bytes of tensors in one call


def forward_backward_custom(
    turn: Turn, batch: Mapping[str, Any], loss: Callable[[Any], Any], **arguments: Any
) -> tuple[Any, Answer]:
    """Add the gradients of a loss that the job computes itself; no code of it travels.

    Args:
        turn: the present one.
        batch: as `forward` takes it.
        loss: called with the log-probabilities (N, L - 1), which have gradients; returns the loss, a number.
        arguments: further ones of `forward_backward`.

    Returns:
        The loss, and the group's answer to `forward_backward`.
    """
    logprobs = as_torch(turn.forward(batch).arrays["logprobs"]).requires_grad_()
    value = loss(logprobs)
    (gradients,) = torch.autograd.grad(value, logprobs)
    answer = turn.forward_backward({**batch, "gradients": gradients}, loss="gradients", **arguments)
    return value.detach(), answer


def full_state(group: Group, only: str = "") -> dict[str, Any]:
    """Return the state's tensors, whole, by name: ``model.NAME``, ``optimizer.NAME.KEY``. Without a turn.

    Args:
        group: where the state is.
        only: names that begin with this: "model." is what a rollout engine loads.
    """
    state = group.state()
    found: dict[str, Any] = {}
    for member in state.members:
        regions: dict[str, bytearray] = {}
        for one in json.loads(bytes(group.read("layout", member.number, state))):
            if not one["name"].startswith(only):
                continue
            region = one["region"]
            if region not in regions:
                regions[region] = group.read(region, member.number, state)
            dtype = getattr(torch, TORCH[one["dtype"]])
            if one["name"] not in found:
                found[one["name"]] = torch.zeros(one["whole"], dtype=dtype)
            if not one["bytes"]:
                continue
            content = regions[region][one["offset"] : one["offset"] + one["bytes"]]
            part = torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(one["shape"])
            whole = found[one["name"]]
            if whole.dim():
                whole[one["row"] : one["row"] + part.shape[0]] = part
            else:
                whole.copy_(part)
    return found


def put(turn: Turn, tensors: Mapping[str, Any], steps: int = 0) -> None:
    """Have the group go on from tensors, by their names in `full_state`, in calls of at most 128 MiB."""
    calls: list[tuple[dict[str, Any], dict[str, int]]] = [({}, {})]
    used = 0
    for name, first, part in _parts(tensors):
        if calls[-1][0] and (used + part.nbytes > _CALL or name in calls[-1][0]):
            calls.append(({}, {}))
            used = 0
        calls[-1][0][name] = part
        if first is not None:
            calls[-1][1][name] = first
        used += part.nbytes
    for arrays, rows in calls:
        turn.call("put", {"rows": rows, "steps": steps}, arrays)


def _parts(tensors: Mapping[str, Any]) -> Iterable[tuple[str, int | None, Any]]:
    """Return (name, first row, part); a tensor that is small enough has no first row."""
    for name, tensor in tensors.items():
        if tensor.nbytes <= _CALL or not tensor.dim():
            yield name, None, tensor
            continue
        rows = max(1, _CALL * tensor.shape[0] // tensor.nbytes)
        for first in range(0, tensor.shape[0], rows):
            yield name, first, tensor[first : first + rows]
