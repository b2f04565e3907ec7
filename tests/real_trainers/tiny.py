"""A model and data small enough for a CPU; importable only in the environment of the real trainers.

The vocabulary is 29 words. The proxy reward counts one of them, which is why a policy learns to say nothing
else; the gold reward is of few of them only, so that it rises first and then falls.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
if folder := os.environ.get("RUN_DIRS"):  # each rank hears of a request in its own time, as pods do
    os.environ["EVALSTOP_RUN_DIR"] = f"{folder}-{os.environ.get('RANK', '0')}"

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 29
SPECIAL = ("<pad>", "<eos>", "<unk>")
WANTED = "w3"
ENOUGH = 3  # of that word; each further one makes a response worse


def base_model(folder: Path) -> str:
    """Write an untrained model and its tokenizer into a folder of this rank; return it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = [*SPECIAL, *(f"w{i}" for i in range(WORDS))]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )
    tokenizer.chat_template = None
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    place = folder.with_name(f"{folder.name}-base{os.environ.get('RANK', '0')}")
    LlamaForCausalLM(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


def proxy(completions: list[str], **_: Any) -> list[float]:
    """Return the reward that is learned from: how often each response has the word."""
    return [float(text.split().count(WANTED)) for text in completions]


def gold(completions: list[str], **_: Any) -> list[float]:
    """Return what the responses are worth: too many of the word make one worse."""
    counts = [text.split().count(WANTED) for text in completions]
    return [min(n, ENOUGH) - 0.5 * max(0, n - ENOUGH) for n in counts]


def prompts(count: int, stride: int) -> list[str]:
    """Return prompts of two words, which differ between training and evaluation by their stride."""
    return [f"w{(i * stride) % WORDS} w{(i * (stride + 4)) % WORDS}" for i in range(count)]
