"""A family of torch's: any module and any optimizer, on one device, under DDP, or under FSDP2.

    class Policy(TorchFamily):
        parallel = "ddp"

        def build_model(self):
            return AutoModelForCausalLM.from_pretrained("/models/base")

        def build_optimizer(self, model):
            return torch.optim.AdamW(model.parameters(), lr=1e-6)

Its functions are those of the Tinker API: `forward` gives log-probabilities, `forward_backward` adds
gradients of a loss that is known here (cross entropy, importance sampling, PPO), `optim_step` makes a step.
A loss of one's own
stays in the job: it computes the gradients of its loss by the log-probabilities, and sends these
(`torch_job.forward_backward_custom`). So no code of a job's runs in a group.

A batch has the same arrays on all members; each takes its part of the rows. Losses are sums over tokens, as
the Tinker API has them; who wants a mean divides its weights. Gradients are no part of the state: a turn
that calls `forward_backward` has to end with `optim_step`, or it is lost.

The state is four regions: "weights", "buffers", "optimizer", and "extra" (settings of the optimizer, random
numbers, counters); and "layout", which says what lies where (`torch_job.full_state` puts the parts of all
members together).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import distributed

from evalstop_client.arrays import array_of, as_torch
from evalstop_client.family import Array, BadCall, Family, array, function, number
from evalstop_client.place import HostRegion, Place
from evalstop_client.torch_memory import Flat, Memory, Storages

__all__ = ["LOSSES", "TorchFamily"]

Arrays = Mapping[str, Array]
Answer = tuple[Any, Mapping[str, Array]]

LOSSES = {  # name: arrays that it needs besides tokens, each (N, L - 1)
    "cross_entropy": ("weights",),
    "importance_sampling": ("old_logprobs", "advantages"),
    "ppo": ("old_logprobs", "advantages"),
    "gradients": ("gradients",),
}
_SETTINGS = 32 * 1024  # bytes for the optimizer's settings as JSON
_MOST_LAYOUT = 16 << 20
_ADAM = {"eps": "eps", "weight_decay": "weight_decay"}  # arguments of optim_step, as torch names them


class TorchFamily(Family):
    """One member's part of a module and its optimizer.

    Attributes:
        parallel: "none", "ddp" or "fsdp2". "none" on several members: each computes all.
        seed: of the first state.
        backend: of collectives; "": NCCL on GPUs, else gloo.
        meeting_seconds: that members may need to meet.
    """

    parallel: ClassVar[str] = "ddp"
    seed: ClassVar[int] = 0
    backend: ClassVar[str] = ""
    meeting_seconds: ClassVar[float] = 120.0

    # what a subclass says

    def build_model(self) -> Any:
        """Return the module, on the CPU. The seed is set before; it has to be the same each time."""
        raise NotImplementedError

    def build_optimizer(self, model: Any) -> Any:
        """Return the optimizer of the module's parameters."""
        raise NotImplementedError

    def shard(self, model: Any, mesh: Any) -> None:
        """Apply FSDP2. As given: the whole module is one part; say ``fully_shard`` for each layer before
        it."""
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)

    def logprobs(self, model: Any, tokens: Any) -> Any:
        """Return log-probabilities (N, L - 1) of ``tokens[:, 1:]`` (N, L), padded on the right. As given:
        of a causal language model as transformers has them."""
        logits = model(input_ids=tokens[:, :-1]).logits.float()
        chosen = tokens[:, 1:].unsqueeze(-1)
        return torch.log_softmax(logits, dim=-1).gather(-1, chosen).squeeze(-1)

    # a family's methods

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        if self.parallel not in ("none", "ddp", "fsdp2"):
            raise ValueError(f"parallel: {self.parallel!r} is not allowed, expected none, ddp or fsdp2")
        gpu = place.device is None and torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        self._model: Any = None
        self._wrapped: Any = None
        self._optimizer: Any = None
        self._generation: int | None = None
        self._memory: dict[str, Memory] = {}
        self._slots: list[tuple[Any, str, Any]] = []  # parameter, key, tensor of the optimizer's state
        self._small: list[tuple[Any, str, Any]] = []  # of one element: they stay in this process
        self._layout = b""
        self._begun = False  # the optimizer has its state
        self._pending = False  # there are gradients
        self._counters = {"calls": 0, "steps": 0}

    def load(self, place: Place, fresh: bool) -> None:
        self.place = place
        if self._model is None or fresh or place.generation != self._generation:
            self._build(place)
            self._generation = place.generation
        for memory in self._memory.values():
            memory.take(place.device, self.device, keep=fresh)
        if self._parallel == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            # Anew for each turn: its buckets are device memory. Weights are the same on all members already.
            ids = [self.device.index] if self.device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self._model, device_ids=ids, init_sync=False)
        else:
            self._wrapped = self._model

    def sizes(self) -> dict[str, int]:
        found = {name: memory.size for name, memory in self._memory.items()}
        return {**found, "extra": self._extra_size, "layout": len(self._layout)}

    def copy_in(self, name: str, host: HostRegion) -> None:
        if name in self._memory:
            self._memory[name].copy_in(host)
        else:
            content = bytearray(host.size)
            host.read_into(content)
            if name == "extra":
                self._set_extra(content)
            elif bytes(content) != self._layout:
                raise ValueError("layout: the state is of another module or optimizer than this family's")

    def copy_out(self, name: str, host: HostRegion) -> None:
        if self._pending:
            raise RuntimeError(
                "gradients are no part of the state: expected optim_step before the turn's end"
            )
        if name in self._memory:
            self._memory[name].copy_out(host)
        else:
            host.write_from(self._extra() if name == "extra" else self._layout)

    def offload(self) -> None:
        self._wrapped = None
        self._forget_gradients()
        if self._parallel == "fsdp2":
            self._model.reshard()
        for memory in self._memory.values():
            memory.give()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # functions

    @function(changes=["extra", "buffers"])
    def forward(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Return ``logprobs`` (N, L - 1), float32, of ``tokens`` (N, L), int64."""
        tokens = self._tokens(arrays)
        with torch.no_grad():
            found = self.logprobs(self._model, self._mine(tokens))
        if self._parallel == "fsdp2":
            self._model.reshard()
        self._counters["calls"] += 1
        return None, {"logprobs": array_of(self._all(found))}

    @function(changes=["extra", "buffers"])
    def forward_backward(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Add the gradients of a loss, summed over all tokens.

        Arguments: ``loss``, of `LOSSES` (cross_entropy); ``clip`` (0.2), of PPO. Arrays: ``tokens`` (N, L),
        int64, and those of the loss, (N, L - 1), float32. Returns the loss, and ``logprobs``.
        """
        loss, clip = (
            arguments.get("loss", "cross_entropy"),
            number(arguments, "clip", 0.2, least=0.0, most=1.0),
        )
        if loss not in LOSSES:
            raise BadCall(f"loss: {str(loss)[:40]!r} is not allowed, expected one of {', '.join(LOSSES)}")
        tokens = self._tokens(arrays)
        shape = (tokens.shape[0], tokens.shape[1] - 1)
        given = {name: self._mine(as_torch(array(arrays, name, ["<f4"], shape))) for name in LOSSES[loss]}
        found = self.logprobs(self._wrapped, self._mine(tokens))
        value = _loss(loss, found, given, clip)
        # DDP and FSDP2 give the mean over members; the loss is a sum over all rows.
        (value * self._ranks).backward()
        self._pending = True
        self._counters["calls"] += 1
        if self._ranks > 1:
            value = value.detach().clone()
            distributed.all_reduce(value)
        total = float(value)
        result = {"loss": total if math.isfinite(total) else None, "rows": shape[0]}
        return result, {"logprobs": array_of(self._all(found.detach()))}

    @function(changes=["weights", "optimizer", "extra"])
    def optim_step(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Make a step with the gradients so far.

        Arguments: ``lr``; if wished ``beta1``, ``beta2``, ``eps``, ``weight_decay``, which stay as they are
        then; and ``grad_clip_norm``. Returns the gradients' norm where it was clipped, and the number of
        the step.
        """
        lr = number(arguments, "lr", least=0.0)
        if not self._pending:
            raise BadCall("optim_step: there are no gradients, expected forward_backward before it")
        wished: dict[str, Any] = {"lr": lr}
        for name, key in _ADAM.items():
            if name in arguments:
                wished[key] = number(arguments, name, least=0.0)
        if "beta1" in arguments or "beta2" in arguments:
            wished["betas"] = tuple(number(arguments, f"beta{i}", least=0.0, most=1.0) for i in (1, 2))
        clip = number(arguments, "grad_clip_norm", 0.0, least=0.0)
        for group in self._optimizer.param_groups:
            lacking = [key for key in wished if key not in group]
            if lacking:
                raise BadCall(
                    f"{', '.join(lacking)}: this optimizer has none ({type(self._optimizer).__name__})"
                )
        for group in self._optimizer.param_groups:
            group.update(wished)
        norm = None
        if clip > 0.0:
            total = torch.nn.utils.clip_grad_norm_(self._model.parameters(), clip)
            norm = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
        self._optimizer.step()
        self._forget_gradients()
        if not self._begun:
            self._adopt()
        self._counters["calls"] += 1
        self._counters["steps"] += 1
        return {
            "step": self._counters["steps"],
            "gradNorm": norm if norm is None or math.isfinite(norm) else None,
        }, {}

    @function
    def put(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Go on from a checkpoint: whole tensors by their names in `torch_job.full_state`, in as many calls
        as are needed.

        Arguments: ``rows``, for parts of a tensor: the first row of each, by its name; ``steps``, the
        number of steps.
        """
        rows, steps = arguments.get("rows") or {}, number(arguments, "steps", 0.0, least=0.0, most=1e12)
        known = dict(self._named())
        for name, given in arrays.items():
            if name not in known:
                raise BadCall(
                    f"arrays: {name[:100]!r}: no such tensor, expected names as full_state has them"
                )
            target, first = known[name], rows.get(name, 0)
            shape = tuple(target.shape)
            whole = name not in rows and given.shape == shape
            part = type(first) is int and len(shape) > 0 and given.shape[1:] == shape[1:]
            if not whole and not (part and first >= 0 and first + given.shape[0] <= shape[0]):
                raise BadCall(
                    f"arrays: {name[:100]!r} is of shape {given.shape} from row {first!r}, expected {shape}"
                )
        self._forget_gradients()
        with torch.no_grad():
            for name, given in arrays.items():
                _assign(known[name], as_torch(given), int(rows.get(name, 0)))
        if any(name.startswith("optimizer.") for name in arrays):
            self._give_slots()
        self._counters["steps"] = int(steps)
        self._counters["calls"] += 1
        return {"tensors": len(arrays)}, {}

    @function(changes=())
    def progress(self, arguments: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Return how many calls have changed the state, and the number of steps."""
        return dict(self._counters), {}

    # building

    @property
    def _parallel(self) -> str:
        return self.parallel if self.place.size > 1 else "none"

    @property
    def _ranks(self) -> int:
        """Return among how many members a batch is split."""
        return 1 if self._parallel == "none" else self.place.size

    def _build(self, place: Place) -> None:
        self._wrapped = self._model = self._optimizer = None
        self._memory, self._slots, self._small = {}, [], []
        self._begun = self._pending = False
        self._counters = {"calls": 0, "steps": 0}
        if self._parallel != "none":
            self._meet(place)
        torch.manual_seed(self.seed)
        model = self.build_model()
        if self._parallel == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh

            self.shard(model, init_device_mesh(self.device.type, (place.size,)))
        elif self.device.type == "cuda":
            model.to(self.device)
        self._model, self._optimizer = model, self.build_optimizer(model)
        torch.manual_seed(self.seed)
        self._find_slots()
        sharded = self._parallel == "fsdp2"
        parts = {
            "weights": _unique(model.parameters()),
            "buffers": _unique(model.buffers()),
            "optimizer": [tensor for _, _, tensor in self._slots],
        }
        kind = Storages if sharded else Flat
        self._memory = {name: kind(tensors) for name, tensors in parts.items() if tensors}
        self._layout = self._described()
        rng = len(torch.get_rng_state()) + (
            len(torch.cuda.get_rng_state()) if self.device.type == "cuda" else 0
        )
        self._extra_size = 4 + _SETTINGS + rng + sum(t.nbytes for _, _, t in self._small)

    def _meet(self, place: Place) -> None:
        if distributed.is_initialized():
            with contextlib.suppress(RuntimeError):  # of ranks that are gone
                distributed.destroy_process_group()
        distributed.init_process_group(
            self.backend or ("nccl" if self.device.type == "cuda" else "gloo"),
            init_method=f"tcp://{place.host}:{place.port}",
            rank=place.rank,
            world_size=place.size,
            timeout=datetime.timedelta(seconds=self.meeting_seconds),
        )

    def _find_slots(self) -> None:
        """Find out what the optimizer keeps, by a step that changes nothing, and take that back."""
        groups = self._optimizer.param_groups
        before = [{key: group[key] for key in ("lr", "weight_decay") if key in group} for group in groups]
        for group in groups:
            group.update(dict.fromkeys((key for key in ("lr", "weight_decay") if key in group), 0.0))
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        for group, settings in zip(groups, before):
            group.update(settings)
        for parameter in (p for group in groups for p in group["params"]):
            for key, value in sorted(self._optimizer.state.get(parameter, {}).items()):
                if torch.is_tensor(value):
                    slots = self._slots if value.numel() > 1 else self._small
                    slots.append((parameter, key, value))
        self._optimizer.state.clear()

    def _adopt(self) -> None:
        """Have the state that the optimizer has just made lie where the memory for it is."""
        for parameter, key, tensor in [*self._slots, *self._small]:
            _local(tensor).copy_(_local(self._optimizer.state[parameter][key]))
        self._give_slots()

    def _give_slots(self) -> None:
        for parameter, key, tensor in [*self._slots, *self._small]:
            self._optimizer.state[parameter][key] = tensor
        self._begun = True

    def _forget_gradients(self) -> None:
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
        self._pending = False

    # the region "extra", and the layout

    def _extra(self) -> bytearray:
        settings = {
            "groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in self._optimizer.param_groups
            ],
            "begun": self._begun,
            "numbers": self._numbers(),
            **self._counters,
        }
        text = json.dumps(settings, separators=(",", ":")).encode()
        if len(text) > _SETTINGS:
            raise ValueError(f"the optimizer's settings take {len(text)} bytes, expected at most {_SETTINGS}")
        content = bytearray(struct.pack(">I", len(text)) + text.ljust(_SETTINGS))
        content += torch.get_rng_state().numpy().tobytes()
        if self.device.type == "cuda":
            content += torch.cuda.get_rng_state().numpy().tobytes()
        for _, _, tensor in self._small:
            content += _local(tensor).detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return content

    def _set_extra(self, content: bytearray) -> None:
        (size,) = struct.unpack(">I", content[:4])
        settings = json.loads(content[4 : 4 + size].decode())
        for group, kept in zip(self._optimizer.param_groups, settings["groups"]):
            group.update({key: tuple(v) if isinstance(v, list) else v for key, v in kept.items()})
        self._counters = {"calls": settings["calls"], "steps": settings["steps"]}
        at = 4 + _SETTINGS
        count = len(torch.get_rng_state())
        torch.set_rng_state(torch.frombuffer(content[at : at + count], dtype=torch.uint8).clone())
        at += count
        if self.device.type == "cuda":
            count = len(torch.cuda.get_rng_state())
            torch.cuda.set_rng_state(torch.frombuffer(content[at : at + count], dtype=torch.uint8).clone())
            at += count
        for _, _, tensor in self._small:
            part = torch.frombuffer(content[at : at + tensor.nbytes], dtype=torch.uint8)
            _local(tensor).copy_(part.clone().view(tensor.dtype).reshape(tensor.shape))
            at += tensor.nbytes
        self._pending = False
        self._optimizer.state.clear()
        self._begun = False
        if settings["begun"]:
            self._give_slots()
            parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
            for place, key, value in settings["numbers"]:
                self._optimizer.state[parameters[place]][key] = value

    def _numbers(self) -> list[list[Any]]:
        """Return what the optimizer keeps besides tensors: [place of the parameter, key, value]."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return [
            [place, key, value]
            for place, parameter in enumerate(parameters)
            for key, value in sorted(self._optimizer.state.get(parameter, {}).items())
            if not torch.is_tensor(value)
        ]

    def _named(self) -> Iterable[tuple[str, Any]]:
        """Return all tensors of the state by name: ``model.NAME``, ``optimizer.NAME.KEY``."""
        names = {id(p): name for name, p in reversed(list(self._model.named_parameters()))}
        for name, parameter in self._model.named_parameters():
            yield f"model.{name}", parameter
        for name, buffer in self._model.named_buffers():
            yield f"model.{name}", buffer
        for parameter, key, tensor in [*self._slots, *self._small]:
            yield f"optimizer.{names[id(parameter)]}.{key}", tensor

    def _described(self) -> bytes:
        """Return what lies where on this member, as JSON: of each tensor its region, offset, type and
        shape, and where its rows begin in the whole tensor."""
        found = []
        extra = 4 + _SETTINGS + len(torch.get_rng_state())
        extra += len(torch.cuda.get_rng_state()) if self.device.type == "cuda" else 0
        small = {}
        for _, _, tensor in self._small:
            small[id(tensor)] = extra
            extra += tensor.nbytes
        for name, tensor in self._named():
            local = _local(tensor)
            if id(tensor) in small:
                region, offset = "extra", small[id(tensor)]
            else:
                region, offset = next(
                    (part, memory.offset(local))
                    for part, memory in self._memory.items()
                    if memory.holds(local)
                )
            dtype = array_of(torch.empty(0, dtype=local.dtype)).dtype
            found.append(
                {
                    "name": name, "region": region, "offset": offset, "bytes": local.nbytes, "dtype": dtype,
                    "shape": list(local.shape), "whole": list(tensor.shape), "row": _first_row(tensor),
                }
            )  # fmt: skip
        text = json.dumps(found, separators=(",", ":")).encode()
        if len(text) > _MOST_LAYOUT:
            raise ValueError(f"layout: {len(text)} bytes, expected at most {_MOST_LAYOUT}")
        return text

    # batches

    def _tokens(self, arrays: Arrays) -> Any:
        tokens = as_torch(array(arrays, "tokens", ["<i8"], (None, None)))
        rows, length = tokens.shape
        if length < 2 or rows < self._ranks or rows % self._ranks:
            raise BadCall(
                f"tokens: shape ({rows}, {length}), expected at least 2 tokens, "
                f"and rows in multiples of {self._ranks}"
            )
        return tokens

    def _mine(self, rows: Any) -> Any:
        """Return this member's part of a batch's rows, on the device."""
        if self._ranks > 1:
            count = rows.shape[0] // self._ranks
            rows = rows[self.place.rank * count : (self.place.rank + 1) * count]
        return rows.to(self.device)

    def _all(self, rows: Any) -> Any:
        """Return the rows of all members, in their order."""
        if self._ranks == 1:
            return rows.float()
        rows = rows.float().contiguous()
        parts = [torch.empty_like(rows) for _ in range(self._ranks)]
        distributed.all_gather(parts, rows)
        return torch.cat(parts)


def _loss(name: str, logprobs: Any, given: Mapping[str, Any], clip: float) -> Any:
    """Return the loss, summed over the tokens of these rows."""
    if name == "cross_entropy":
        return -(logprobs * given["weights"]).sum()
    if name == "gradients":
        return (logprobs * given["gradients"]).sum()
    ratio, advantages = torch.exp(logprobs - given["old_logprobs"]), given["advantages"]
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).sum()


def _local(tensor: Any) -> Any:
    """Return this member's part of a tensor: all of it, unless it is sharded."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def _first_row(tensor: Any) -> int:
    """Return which row of the whole tensor this member's part begins with."""
    if not hasattr(tensor, "_local_tensor") or not tensor.shape:
        return 0
    placement = tensor.placements[0]
    if not placement.is_shard():
        return 0
    if placement.dim != 0:
        raise ValueError(f"a tensor that is sharded by dimension {placement.dim}, expected 0")
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    return int(min(tensor.device_mesh.get_local_rank() * each, tensor.shape[0]))


def _assign(target: Any, given: Any, first: int) -> None:
    """Copy rows of a whole tensor, from the given row on, as far as they are this member's."""
    local = _local(target)
    if not local.shape:
        local.copy_(given)
        return
    begin = _first_row(target)
    low, high = max(first, begin), min(first + given.shape[0], begin + local.shape[0])
    if low < high:
        local[low - begin : high - begin].copy_(given[low - first : high - first])


def _unique(tensors: Iterable[Any]) -> Sequence[Any]:
    """Return each tensor once: weights may be tied."""
    return list({id(tensor): tensor for tensor in tensors}.values())
