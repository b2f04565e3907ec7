"""Lightning's Trainer, as a callback that also writes the checkpoints:

    callback = EvalStop("val_reward", "/checkpoints/a")
    trainer = Trainer(callbacks=[callback], …)
    trainer.fit(model, ckpt_path=callback.resume_path())
    callback.finish()

Written against lightning 2.6.6. It saves at the end of each validation, before the score is reported, and
whenever the operator asks: ``<folder>/step-<N>/lightning.ckpt`` (layout ``Plain``), by
`Trainer.save_checkpoint`, which all ranks call (pytorch/trainer/trainer.py 1439-1465).
``trainer.should_stop`` ends the training (pytorch/loops/training_epoch_loop.py 540, 566).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from evalstop_client.client import Location
from evalstop_client.logs import first, numbers
from evalstop_client.prompt_set import of_datasets
from evalstop_client.run import Run

FILE = "lightning.ckpt"
LOSS = ("loss", "train_loss", "train/loss")


class EvalStop(Callback):
    """Reports evals, saves, carries out requests, in every rank at the same step.

    Args:
        metric: a name of `trainer.callback_metrics`.
        folder: the checkpoint location.
        keep: how many of its checkpoints stay; the older ones go.
        run: default: ``Run(metric)``.
    """

    def __init__(self, metric: str, folder: Location, *, keep: int = 5, run: Run | None = None) -> None:
        self.run = run if run is not None else Run(metric)
        self._folder, self._keep = Path(folder), keep
        self._kept: list[Path] = []
        self._saved = -1
        self._told_prompts = False

    def resume_path(self) -> str | None:
        """Return the file to go on from, for ``ckpt_path``; None: start afresh. See `Run.resume_path`."""
        found = self.run.resume_path(self._folder)
        return None if found is None else str(Path(found, FILE))

    def finish(self) -> None:
        """Stay until the last eval was read; 143 after a request to stop or SIGTERM. See `Run.finish`."""
        self.run.finish()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Say where the training starts (pytorch/loops/fit_loop.py 431).

        The validation's dataloaders may be made later, with the first validation.
        """
        with self.run.guarded("reading the settings of the validation"):
            self.run.evaluated_by(whole=False, batches=_part(trainer))
        with self.run.guarded("reading the first step"):
            self.run.begin(int(trainer.global_step), _steps(trainer), self._folder)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Carry out what the operator asks for (pytorch/loops/training_epoch_loop.py 375)."""
        step = int(trainer.global_step)
        loss = None
        with self.run.guarded("reading the training's log"):
            loss = first(trainer.callback_metrics, LOSS)
        wanted = self.run.step(step, _steps(trainer), loss=loss, folder=self._folder / f"step-{step}")
        if wanted.evaluate:
            with self.run.guarded("asking Lightning for an eval"):
                raise ValueError("a fresh eval was asked for, and a callback of Lightning cannot run one")
        if wanted.checkpoint:
            self._save(trainer, step)
        if wanted.stop:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save, then report (pytorch/loops/evaluation_loop.py 334); that before the training is none."""
        if getattr(trainer, "sanity_checking", False):
            return
        step = int(trainer.global_step)
        self._save(trainer, step)
        self._tell_prompts(trainer)
        with self.run.guarded("reading an eval"):
            self.run.evaluated(step, numbers(trainer.callback_metrics))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report an eval of the last step."""
        self.run.flush()

    def _tell_prompts(self, trainer: Any) -> None:
        """Add the set of prompts to the evaluator's version, at the first validation."""
        if not self._told_prompts:
            self._told_prompts = True
            with self.run.guarded("reading the prompts of the validation"):
                loaders = _leaves(trainer.val_dataloaders)
                self.run.evaluated_by(prompts=of_datasets(getattr(one, "dataset", None) for one in loaders))

    def _save(self, trainer: Any, step: int) -> None:
        """Save the step once; an error of the save itself is Lightning's, and is not hidden."""
        if step == self._saved:
            return
        folder = self._folder / f"step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(folder / FILE)
        self._saved = step
        self.run.saved(step, folder, self._folder)
        with self.run.guarded("removing an old checkpoint"):
            self._kept.append(folder)
            while len(self._kept) > self._keep:
                old = self._kept.pop(0)
                if self.run.client.speaks and old != folder:
                    shutil.rmtree(old)


def _steps(trainer: Any) -> int | None:
    """Return how many steps are planned; None where there is no end."""
    planned = getattr(trainer, "max_steps", -1)
    return int(planned) if planned and planned > 0 else None


def _part(trainer: Any) -> Any:
    """Return how much of its data a validation takes (pytorch/trainer/trainer.py, ``limit_val_batches``);
    None: all."""
    limit = getattr(trainer, "limit_val_batches", 1.0)
    return None if limit == 1.0 and isinstance(limit, float) else limit


def _leaves(loaders: Any) -> list[Any]:
    """Return the dataloaders of a validation: one, or several in lists and dictionaries."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, (list, tuple)):
        return [leaf for one in loaders for leaf in _leaves(one)]
    return [loaders]
