"""A model and data small enough for a CPU; importable only in the environment of the real trainers.

The vocabulary is 29 words. The proxy reward counts one of them, which is why a policy learns to say nothing
else; the gold reward is of few of them only, so that it rises first and then falls.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
if folder := os.environ.get("RUN_DIRS"):  # each rank hears of a request in its own time, as pods do
    os.environ["EVALSTOP_RUN_DIR"] = f"{folder}-{os.environ.get('RANK', '0')}"

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainerCallback

from evalstop_client.hf import EvalStop

WORDS = 29
SPECIAL = ("<pad>", "<eos>", "<unk>")
WANTED = "w3"
ENOUGH = 3  # of that word; each further one makes a response worse


def base_model(folder: Path, hidden: int = 32) -> str:
    """Write an untrained model of this width and its tokenizer into a folder of this rank; return it."""
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
        hidden_size=hidden,
        intermediate_size=2 * hidden,
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


def arguments(out: Path, steps: int) -> dict[str, Any]:
    """Return the training arguments that the runs have in common: small batches, on a CPU."""
    every = int(os.environ.get("EVERY", "5"))
    return {
        "output_dir": str(out),
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "max_steps": steps,
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
        "save_total_limit": 3,
        "logging_steps": 1,
        "learning_rate": 5e-3,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
    }


class Slow(TrainerCallback):
    """Has a step take as long as one of a model that is worth training."""

    def on_step_end(self, *_: object, **__: object) -> None:
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))


def train(trainer: Trainer, metric: str) -> None:
    """Train with EvalStop's callback, from where it says that the run goes on, and say both to the log."""
    trainer.add_callback(Slow())
    trainer.add_callback(callback := EvalStop(metric))
    start = callback.resume_path(trainer.args.output_dir)
    say(f"RESUME {start}")
    trainer.train(resume_from_checkpoint=start)
    say(f"TRAINED {trainer.state.global_step}")
    callback.finish()


def say(line: str) -> None:
    """Print a line by one write: `print` makes several, and those of two ranks run into each other."""
    sys.stdout.flush()
    os.write(1, f"{line}\n".encode())


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
