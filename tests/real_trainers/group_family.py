"""A small Llama and AdamW as a family of a shared worker group: under DDP, or FSDP2 (`SharedPolicy`)."""

from __future__ import annotations

import os
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from evalstop_client.family import Call
from evalstop_client.torch_family import TorchFamily

torch.set_num_threads(1)
WORDS = 32


def build_model() -> Any:
    """Return the untrained model; the seed is set before."""
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        attention_dropout=float(os.environ.get("DROPOUT", "0")),  # then its state has random numbers in it
    )
    return LlamaForCausalLM(config)


def build_optimizer(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


class Policy(TorchFamily):
    """Under DDP."""

    def build_model(self) -> Any:
        return build_model()

    def build_optimizer(self, model: Any) -> Any:
        return build_optimizer(model)

    def shard(self, model: Any, mesh: Any) -> None:
        shard(model, mesh)

    @classmethod
    def examples(cls) -> list[list[Call]]:
        drawn = torch.Generator().manual_seed(3)
        tokens = torch.randint(WORDS, (4, 9), generator=drawn)
        ones = torch.ones(4, 8)
        learn = {"tokens": tokens, "weights": ones}
        ppo = {
            "tokens": tokens,
            "old_logprobs": -3.4 * ones,
            "advantages": torch.randn(4, 8, generator=drawn),
        }
        return [
            [Call("forward_backward", {}, learn), Call("optim_step", {"lr": 1e-3, "grad_clip_norm": 1.0})],
            [Call("forward", {}, {"tokens": tokens}), Call("progress")],
            [
                Call("forward_backward", {"loss": "ppo"}, ppo),
                Call("optim_step", {"lr": 1e-3, "beta1": 0.8, "beta2": 0.95}),
            ],
            [Call("put", {"steps": 7}, {"model.model.norm.weight": 2.0 * torch.ones(32)})],
        ]


class SharedPolicy(Policy):
    """Under FSDP2."""

    parallel = "fsdp2"
