"""A GRPO run of TRL's: `python grpo.py OUT STEPS`, alone or under torchrun."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from evalstop_client.hf import EvalStop

METRIC = "eval_rewards/gold/mean"


class Slow(TrainerCallback):
    """Has a step take as long as one of a model that is worth training."""

    def on_step_end(self, *_: object, **__: object) -> None:
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    every = int(os.environ.get("EVERY", "5"))
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    base = tiny.base_model(out)
    trainer = GRPOTrainer(
        model=base,
        reward_funcs=[tiny.proxy, tiny.gold],
        args=GRPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            num_generations=4,
            num_generations_eval=4,
            max_completion_length=12,
            max_steps=steps,
            eval_strategy="steps",
            eval_steps=every,
            save_strategy="steps",
            save_steps=every,
            save_total_limit=3,
            logging_steps=1,
            learning_rate=5e-3,
            beta=0.01,
            reward_weights=[1.0, 0.0],
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": tiny.prompts(64, 3)}),
        eval_dataset=Dataset.from_dict({"prompt": tiny.prompts(int(os.environ.get("PROMPTS", "16")), 5)}),
    )
    trainer.add_callback(Slow())
    trainer.add_callback(callback := EvalStop(METRIC))
    start = callback.resume_path(trainer.args.output_dir)
    print("RESUME", start, flush=True)
    trainer.train(resume_from_checkpoint=start)
    print("TRAINED", trainer.state.global_step, flush=True)
    callback.finish()


main()
