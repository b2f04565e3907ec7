"""GRPO with a loop of its own: `python group_grpo.py OUT STEPS`.

Alone under torchrun, where each rank computes its part of a batch by DDP or FSDP2 (PARALLEL); or as one
process whose updates a worker group makes (GROUP_TICKET). Rollouts, rewards and advantages are the same
code. The final
checkpoint is safetensors: of the model, and of the optimizer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import group_family
import torch
from group_family import WORDS
from safetensors.torch import save_file
from torch import distributed

PROMPTS, COPIES, LENGTH, UPDATES = 4, 4, 10, 2
LR, CLIP, NORM = 3e-3, 0.2, 1.0
WANTED = 3  # the word that is rewarded

Batch = dict[str, Any]


def logprobs(model: Any, tokens: Any) -> Any:
    """Return log-probabilities of all tokens but the first, (N, L - 1)."""
    logits = model(input_ids=tokens[:, :-1]).logits.float()
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


def rollouts(model: Any, seed: int, step: int) -> Any:
    """Return (N, L) tokens: two of a prompt and a response, each prompt's copies after one another."""
    drawn = torch.Generator().manual_seed(1000 * seed + step)
    prompts = torch.randint(WORDS, (PROMPTS, 2), generator=drawn).repeat_interleave(COPIES, 0)
    tokens = prompts
    with torch.no_grad():
        while tokens.shape[1] < 2 + LENGTH:
            chances = torch.softmax(model(input_ids=tokens).logits[:, -1].float(), dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=drawn)], dim=1)
    return tokens


def batches(model: Any, seed: int, step: int) -> list[Batch]:
    """Return the batches of a step, for one update each. Rewards: how often the word comes; GRPO's
    advantages."""
    tokens = rollouts(model, seed, step)
    reward = (tokens[:, 2:] == WANTED).sum(dim=1).float().reshape(PROMPTS, COPIES)
    advantage = (reward - reward.mean(dim=1, keepdim=True)) / (reward.std(dim=1, keepdim=True) + 1e-4)
    weight = advantage.reshape(-1, 1).repeat(1, tokens.shape[1] - 1) / tokens.shape[0]
    weight[:, 0] = 0.0  # the prompt's second token
    with torch.no_grad():
        old = logprobs(model, tokens)
    part = tokens.shape[0] // UPDATES
    print(f"STEP {step} reward {float(reward.mean()):.3f}", flush=True)
    return [
        {name: whole[i * part : (i + 1) * part] for name, whole in
         (("tokens", tokens), ("old_logprobs", old), ("advantages", weight))}
        for i in range(UPDATES)
    ]  # fmt: skip


def ppo(found: Any, batch: Batch) -> Any:
    ratio, advantages = torch.exp(found - batch["old_logprobs"]), batch["advantages"]
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * advantages).sum()


def alone(out: Path, steps: int, seed: int) -> None:
    """Train on this process's rank."""
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = group_family.build_model()
    if os.environ["PARALLEL"] == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh

        group_family.shard(model, init_device_mesh("cpu", (world,)))
        wrapped = model
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = group_family.build_optimizer(model)
    for step in range(1, steps + 1):
        found = batches(model, seed, step)
        if wrapped is model:
            model.reshard()
        for batch in found:
            count = len(batch["tokens"]) // world
            mine = {name: one[rank * count : (rank + 1) * count] for name, one in batch.items()}
            (ppo(logprobs(wrapped, mine["tokens"]), mine) * world).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            for settings in optimizer.param_groups:
                settings["lr"] = LR
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    whole = {f"model.{name}": one for name, one in [*model.named_parameters(), *model.named_buffers()]}
    for name, parameter in model.named_parameters():
        whole |= {f"optimizer.{name}.{key}": one for key, one in optimizer.state[parameter].items()}
    tensors = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in whole.items()}
    if rank == 0:
        save(out, {name: one.detach() for name, one in tensors.items()})
    distributed.barrier()
    distributed.destroy_process_group()


def shared(out: Path, steps: int, seed: int) -> None:
    """Train by a worker group."""
    from evalstop_client import torch_job
    from evalstop_client.group import Group, Turn

    group = Group.of_file(os.environ["GROUP_TICKET"])
    torch.manual_seed(0)
    model = group_family.build_model()
    custom = bool(os.environ.get("CUSTOM"))
    for step in range(1, steps + 1):
        found = batches(model, seed, step)

        def work(turn: Turn, found: list[Batch] = found) -> None:
            for batch in found:
                if custom:
                    torch_job.forward_backward_custom(
                        turn, {"tokens": batch["tokens"]}, lambda logps, batch=batch: ppo(logps, batch)
                    )
                else:
                    turn.forward_backward(batch, loss="ppo", clip=CLIP)
                turn.optim_step(LR, grad_clip_norm=NORM)

        group.run(work, step)
        tensors = torch_job.full_state(group, "model.")
        model.load_state_dict(
            {name.removeprefix("model."): one for name, one in tensors.items()}, strict=False
        )
        if os.environ.get("RESTART") == str(step):  # as a new process that goes on from a checkpoint
            kept = torch_job.full_state(group)
            group.run(lambda turn, kept=kept, step=step: torch_job.put(turn, kept, step))
    save(out, torch_job.full_state(group))


def save(out: Path, tensors: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for part in ("model", "optimizer"):
        own = {name: one.contiguous() for name, one in sorted(tensors.items()) if name.startswith(part)}
        save_file(own, out / f"{part}.safetensors")


def main() -> None:
    out, steps, seed = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ.get("SEED", "1"))
    (shared if os.environ.get("GROUP_TICKET") else alone)(out, steps, seed)
    print("DONE", flush=True)


main()
