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
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from tests.torn.real import SHARDED, as_on_gpus, start_deepspeed

METRIC = "eval_loss"


def main() -> None:
    out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), os.environ["KIND"]
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    base = tiny.base_model(out, hidden=8)
    if kind in SHARDED:
        as_on_gpus()
        if "deepspeed" in SHARDED[kind]:
            start_deepspeed()
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


main()
