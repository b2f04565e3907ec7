"""A Trainer whose eval is best at step 4 and falls from there on: `python best.py OUT STEPS`.

It keeps two checkpoints; BEST is its metric_for_best_model, if it is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

METRIC, PEAK = "eval_score", 4


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 8
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(tiny.base_model(out, hidden=8)),
        args=TrainingArguments(
            **{
                **tiny.arguments(out, steps),
                "save_total_limit": 2,
                "metric_for_best_model": os.environ.get("BEST"),
            }
        ),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda _: {"score": -float(abs(trainer.state.global_step - PEAK))},
    )
    tiny.train(trainer, METRIC)


main()
