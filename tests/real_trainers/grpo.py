"""A GRPO run of TRL's: `python grpo.py OUT STEPS`, alone or under torchrun."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

METRIC = "eval_rewards/gold/mean"


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    base = tiny.base_model(out)
    trainer = GRPOTrainer(
        model=base,
        reward_funcs=[tiny.proxy, tiny.gold],
        args=GRPOConfig(
            **tiny.arguments(out, steps),
            num_generations=4,
            num_generations_eval=4,
            max_completion_length=12,
            beta=0.01,
            reward_weights=[1.0, 0.0],
        ),
        train_dataset=Dataset.from_dict({"prompt": tiny.prompts(64, 3)}),
        eval_dataset=Dataset.from_dict({"prompt": tiny.prompts(int(os.environ.get("PROMPTS", "16")), 5)}),
    )
    tiny.train(trainer, METRIC)


main()
