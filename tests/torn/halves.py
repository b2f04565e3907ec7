"""A Hugging Face checkpoint half deleted: rmtree takes files away in any order, and may be killed in between.

300 random orders of a checkpoint of ten files: 2,700 states with one to nine of them left. The whole ones
beside it are what rotation would have left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.torn import content
from tests.torn.crash import Crash, files_below, recording

ORDERS = 300
STEP = 30  # the one that is deleted


def files(step: int) -> dict[str, bytes]:
    """The ten files of a checkpoint by transformers 5.23.0 (`Trainer._save_checkpoint`), one weights file."""
    return {
        "config.json": content.text({"model_type": "llama"}),
        "generation_config.json": content.text({"eos_token_id": 2}),
        "model.safetensors": content.safetensors(seed=step),
        "optimizer.pt": content.archive(6000),
        "rng_state.pth": content.archive(1200),
        "scheduler.pt": content.archive(800),
        "tokenizer.json": content.text({"version": "1.0"}),
        "tokenizer_config.json": content.text({"tokenizer_class": "PreTrainedTokenizerFast"}),
        "trainer_state.json": content.text({"global_step": step}),
        "training_args.bin": content.archive(5000),
    }


def states(root: Path, orders: int, seed: int, recorded: bool, siblings: int = 2) -> Iterator[Crash]:
    """Every state of every order, the folder made anew for each; the caller judges it while it is there."""
    dice = random.Random(seed)
    model = root / "model"
    client = recording(root / "run") if recorded else None
    truth: dict[int, dict[str, int]] = {}
    for step in [STEP, *(STEP + 10 * n for n in range(1, siblings + 1))]:
        folder = model / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for name, data in files(step).items():
            (folder / name).write_bytes(data)
        truth[step] = {f"{folder.name}/{name}": size for name, size in files_below(folder).items()}
        if client is not None:
            client.checkpoint_saved(step, folder)
    names = sorted(files(STEP))
    for order in range(orders):
        left = list(names)
        dice.shuffle(left)
        while len(left) > 1:
            left.pop()
            state = root / f"{order}-{len(left)}"
            shutil.copytree(model, state)
            for name in set(names) - set(left):
                (state / f"checkpoint-{STEP}" / name).unlink()
            yield Crash(state, truth)
            shutil.rmtree(state)
