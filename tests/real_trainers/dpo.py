"""A DPO run of TRL's: `python dpo.py OUT STEPS`, alone or under torchrun. The loss on held-out pairs falls,
and rises again once the few pairs of the training are learned by heart."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

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
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    trainer = DPOTrainer(
        model=tiny.base_model(out),
        args=DPOConfig(**tiny.arguments(out, steps)),
        train_dataset=pairs(16, 3),
        eval_dataset=pairs(32, 5),
    )
    tiny.train(trainer, METRIC)


main()
