"""NeMo-RL (``nemo_rl.algorithms.grpo.grpo_train`` and its neighbours), in the script that calls it:

    run = watch("validation/accuracy")   # before setup()
    grpo_train(…)
    run.finish()

Written against nemo_rl/algorithms/grpo.py at commit 002cdc27 and nemo_rl/utils/checkpoint.py at commit
01e9028b. One driver process logs a validation, saves (``begin_finalization`` renames tmp_step_N in a
thread) and then logs the step. Followed are `Logger.log_metrics`, `CheckpointManager` and
`TimeoutChecker.check_save`.

A checkpoint that is asked for is written in the next step: for it ``checkpointing.save_period`` is 1. A
stop and SIGTERM end the run as its own time limit does: with a checkpoint, after the next step. The trainer
cannot be asked for an eval.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalstop_client.client import saved_names
from evalstop_client.logs import first, numbers
from evalstop_client.run import Run
from evalstop_client.settings import OneStep

VALIDATION, TRAIN = "validation", "train"  # prefixes of what is logged
PROXY, LOSS = ("reward",), ("loss",)


class EvalStop:
    """What is done around the calls of NeMo-RL's loop."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()  # a checkpoint is finished in a thread of its own
        self._begun = False
        self._config: Any = None
        self._settings = OneStep()

    def logged(self, metrics: Mapping[str, Any], step: int, prefix: str) -> None:
        """Take what is logged; the step's own log is the last of it."""
        found = numbers(metrics)
        if not self._begun:
            self._begun = True
            self.run.begin(step if prefix == VALIDATION else max(0, step - 1))
        if prefix == VALIDATION:
            self.run.evaluated(step, {f"{prefix}/{name}": value for name, value in found.items()})
        elif prefix == TRAIN:
            with self._lock:
                wanted = self.run.step(step, proxy=first(found, PROXY), loss=first(found, LOSS))
            with self.run.guarded("asking NeMo-RL for a checkpoint"):
                if wanted.evaluate and not wanted.checkpoint:
                    raise ValueError("NeMo-RL cannot be asked for an eval")
                self._settings.restore()
                if wanted.checkpoint and self._config is not None:
                    self._settings.every_step(self._config, "save_period")

    def finalized(self, temporary: Path) -> None:
        """Record a checkpoint that has got its name: tmp_step_N is step_N now."""
        step = int(temporary.name.rpartition("_")[2])
        with self._lock:
            self.run.saved(step, temporary.parent / f"step_{step}")

    def latest(self, folder: Path, own: str | None) -> str | None:
        """Return the newest whole checkpoint; without any save record what NeMo-RL itself would take."""
        found = self.run.resume_path(folder)
        return found if found is not None or saved_names(folder) else own

    def keep_config(self, config: Any) -> None:
        """Keep the configuration that the loop reads ``save_period`` of."""
        self._config = config


def watch(metric: str, run: Run | None = None) -> Run:
    """Follow NeMo-RL in this process; return the run, whose `finish` is called after the training.

    Args:
        metric: ``validation/`` and the name that the validation gives it, as in ``validation/accuracy``.
        run: default: ``Run(metric, driver=True)``.
    """
    made = run if run is not None else Run(metric, driver=True)
    with made.guarded("following NeMo-RL"):
        from nemo_rl.utils.checkpoint import CheckpointManager
        from nemo_rl.utils.logger import Logger
        from nemo_rl.utils.timer import TimeoutChecker

        follow(EvalStop(made), Logger, CheckpointManager, TimeoutChecker)
    return made


def follow(stop: EvalStop, logger: Any, manager: Any, timeout: Any) -> None:
    """Follow the three classes."""
    log, begin, rename = logger.log_metrics, manager.__init__, manager._rename_checkpoint
    latest, check = manager.get_latest_checkpoint_path, timeout.check_save

    @functools.wraps(log)
    def log_metrics(self: Any, metrics: Any, step: int, prefix: Any = "", *args: Any, **more: Any) -> Any:
        done = log(self, metrics, step, prefix, *args, **more)
        with stop.run.guarded("reading what NeMo-RL logs"):
            stop.logged(metrics, int(step), str(prefix or ""))
        return done

    @functools.wraps(begin)
    def init(self: Any, config: Any, *args: Any, **more: Any) -> None:
        stop.keep_config(config)
        begin(self, config, *args, **more)

    @functools.wraps(rename)
    def rename_and_record(self: Any, checkpoint_path: Any) -> Any:
        done = rename(self, checkpoint_path)
        with stop.run.guarded("recording a checkpoint"):
            stop.finalized(Path(checkpoint_path))
        return done

    @functools.wraps(latest)
    def newest_whole(self: Any) -> Any:
        own = latest(self)
        with stop.run.guarded("finding the checkpoint to resume from"):
            return stop.latest(Path(self.checkpoint_dir), own)
        return own

    @functools.wraps(check)
    def check_save(self: Any, *args: Any, **more: Any) -> Any:
        return check(self, *args, **more) or stop.run.ends

    logger.log_metrics, manager.__init__, manager._rename_checkpoint = log_metrics, init, rename_and_record
    manager.get_latest_checkpoint_path, timeout.check_save = newest_whole, check_save
