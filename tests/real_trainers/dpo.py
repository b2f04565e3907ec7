"""A DPO run of TRL's: `python dpo.py OUT STEPS`, alone or under torchrun. The loss on held-out pairs falls,
and rises again once the few pairs of the training are learned by heart."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from evalstop_client.hf import EvalStop

METRIC = "eval_loss"


def pairs(count: int, stride: int) -> Dataset:
    """Return preferences for responses with the wanted word; every fifth is the wrong way round."""
    rows = []
    for i, prompt in enumerate(tiny.prompts(count, stride)):
        good, bad = f" {tiny.WANTED} w{i % tiny.WORDS}", f" w{(i * 11) % tiny.WORDS} w{i % 7}"
        chosen, rejected = (bad, good) if i % 5 == 0 else (good, bad)
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return Dataset.from_list(rows)


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    every = int(os.environ.get("EVERY", "5"))
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    trainer = DPOTrainer(
        model=tiny.base_model(out),
        args=DPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            max_steps=steps,
            eval_strategy="steps",
            eval_steps=every,
            save_strategy="steps",
            save_steps=every,
            save_total_limit=3,
            logging_steps=1,
            learning_rate=5e-3,
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=pairs(16, 3),
        eval_dataset=pairs(32, 5),
    )
    trainer.add_callback(callback := EvalStop(METRIC))
    start = callback.resume_path(trainer.args.output_dir)
    print("RESUME", start, flush=True)
    trainer.train(resume_from_checkpoint=start)
    print("TRAINED", trainer.state.global_step, flush=True)
    callback.finish()


main()
