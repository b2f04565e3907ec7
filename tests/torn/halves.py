"""A Hugging Face checkpoint half deleted: rmtree takes files away in any order, and may be killed in between.

300 random orders of a checkpoint of ten files: 2,700 states with one to nine of them left. The whole ones
beside it are what rotation would have left. The same of what the libraries have written with PEFT, FSDP and
ZeRO (`recorded`).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.torn import content
from tests.torn.crash import Crash, files_below, recording
from tests.torn.recorded import STEPS, unpack

ORDERS = 300
ORDERS_OF_RECORDED = 42  # of each kind, which has 8 to 16 files: 2,772 states in all
STEP = 30  # the one that is deleted
STEP_OF_RECORDED = STEPS - 2  # the older one of two


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
    yield from _deleted(model, f"checkpoint-{STEP}", truth, root, orders, dice)


def recorded_states(kind: str, root: Path, orders: int, seed: int, recorded: bool) -> Iterator[Crash]:
    """The same of the older checkpoint of two that the libraries have written."""
    model = unpack(kind, root)
    if not recorded:
        shutil.rmtree(model / ".evalstop")
    truth = {
        int(folder.name.rpartition("-")[2]): {f"{folder.name}/{n}": b for n, b in files_below(folder).items()}
        for folder in model.glob("checkpoint-*")
    }
    gone = f"checkpoint-{STEP_OF_RECORDED}"
    yield from _deleted(model, gone, truth, root, orders, random.Random(seed))


def _deleted(
    model: Path,
    gone: str,
    truth: Mapping[int, Mapping[str, int]],
    root: Path,
    orders: int,
    dice: random.Random,
) -> Iterator[Crash]:
    names = sorted(files_below(model / gone))
    for order in range(orders):
        left = list(names)
        dice.shuffle(left)
        while len(left) > 1:
            left.pop()
            state = root / f"{order}-{len(left)}"
            shutil.copytree(model, state, copy_function=os.link)
            for name in set(names) - set(left):
                (state / gone / name).unlink()
            yield Crash(state, truth)
            shutil.rmtree(state)
