"""A Trainer that saves in one of the ways of KIND: `python sharded.py OUT STEPS`, alone or under torchrun.

FSDP and ZeRO run as on GPUs, but for the device: see `tests.torn.real.as_on_gpus`.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny
import torch
from accelerate.utils import load_fsdp_model, load_fsdp_optimizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from tests.torn.real import SHARDED, as_on_gpus, start_deepspeed, without_dcp

METRIC = "eval_loss"


def main() -> None:
    out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), os.environ["KIND"]
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    base = tiny.base_model(out, hidden=8)
    if kind in SHARDED:
        as_on_gpus()
        if "deepspeed" in SHARDED[kind]:
            start_deepspeed()
        if kind == "fsdp-ranks":
            without_dcp()
    model = AutoModelForCausalLM.from_pretrained(base)
    if kind == "peft":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    rows = [{"input_ids": [1, 2, 3, 4 + i % 8], "labels": [1, 2, 3, 4 + i % 8]} for i in range(16)]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **{
                **tiny.arguments(out, steps),
                "per_device_train_batch_size": 1,
                "per_device_eval_batch_size": 1,
                "save_total_limit": 2,
                "use_cpu": kind not in SHARDED,
                **SHARDED.get(kind, {}),
            }
        ),
        train_dataset=rows,
        eval_dataset=rows[:8],
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    tiny.train(trainer, METRIC)
    if kind == "fsdp-ranks":
        _load(trainer, out / f"checkpoint-{steps}")


def _load(trainer: Trainer, checkpoint: Path) -> None:
    """Load files of single ranks into as many ranks, as they are loaded; the Trainer itself knows none."""
    accelerator, model = trainer.accelerator, trainer.model_wrapped
    mine = {name: weight.to_local() for name, weight in model.named_parameters()}
    trained = {name: weight.detach().clone() for name, weight in mine.items()}
    with torch.no_grad():
        for weight in mine.values():
            weight.zero_()
    plugin, place = accelerator.state.fsdp_plugin, str(checkpoint)
    load_fsdp_model(plugin, accelerator, model, place, use_dcp=False)
    load_fsdp_optimizer(plugin, accelerator, trainer.optimizer, model, place, use_dcp=False)
    for name, weight in model.named_parameters():
        assert torch.equal(weight.to_local(), trained[name]), name
    tiny.say("LOADED")


main()
