"""NeMo-RL (``nemo_rl.algorithms.grpo.grpo_train`` and its neighbours), in the script that calls it:

    run = watch("validation/accuracy")   # before setup()
    grpo_train(…)
    run.finish()

Written against the repository NVIDIA-NeMo/RL: nemo_rl/algorithms/grpo.py at commit
002cdc27b8019eafc470f0aab22d4a7206d0de81, nemo_rl/utils/checkpoint.py at
01e9028b7fd77ef5aca3e970cac250dea0bb6f2c, nemo_rl/utils/timer.py at
05c502c0cc044ca6f6af30578b9055dfd277bf01. One driver process (grpo.py `grpo_train`, 2751) logs under
``train`` what was generated for a step (3091), logs its validation (3470), saves (3638-3689;
``begin_finalization`` renames tmp_step_N in a thread, checkpoint.py 433), logs the step under ``train``
(3826) and last of all its times under ``timing/train`` (3831). Followed are `Logger.log_metrics`,
`Logger.log_hyperparams` (549: the whole configuration), `Logger.log_batched_dict_as_jsonl` (in `validate`:
what each answer scored, before the validation is logged), `CheckpointManager` (checkpoint.py 229, 374, 637;
made at 554, asked at 555, in `setup`) and `TimeoutChecker.check_save` (timer.py 484, called at 3588).

A checkpoint that is asked for is written in the next step: for it ``checkpointing.save_period`` is 1, which
the loop reads of its configuration at each step (3580). A stop and SIGTERM end the run as its own time limit
does: with a checkpoint (3592), after the next step (3861). The trainer cannot be asked for an eval.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalstop_client.client import saved_names
from evalstop_client.logs import first, kl_per_response, numbers
from evalstop_client.nemo_rl_validation import FILES, answers_of, scores_of, settings_of
from evalstop_client.run import Run
from evalstop_client.settings import OneStep

# Prefixes of what is logged. Under TRAIN come first the rollouts of a step, once for each batch of them, and
# at its end all of its metrics; under STEP_ENDS its times, which end a step in every algorithm of NeMo-RL's.
VALIDATION, TRAIN, STEP_ENDS = "validation", "train", "timing/train"
PROXY, LOSS = ("reward",), ("loss",)
# nemo_rl/algorithms/loss/loss_functions.py at 3520fc0a92edfece955937619cf8f2bcae1845dc, `ClippedPGLossFn`:
# the mean per token, without its weight; 0 where the weight is 0 and it is not computed. The length is of
# the rollouts, all of which are in the metrics that end a step.
KL, LENGTH = ("kl_penalty",), "mean_gen_tokens_per_sample"


class EvalStop:
    """Hooks around the calls of NeMo-RL's loop."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()  # a checkpoint is finished in a thread of its own
        self._begun = False
        self._start: int | None = None  # step of the checkpoint that the run goes on from
        self._train: Mapping[str, float] = {}  # what was logged last of the training
        self._config: Any = None
        self._settings = OneStep()
        self._answers = 0  # of the validation to each prompt; 0: not known
        self._rows: int | None = None  # scored in the validation that is logged next

    def configured(self, config: Mapping[str, Any]) -> None:
        """Take the configuration, which is logged before the checkpoints are looked for."""
        self._answers = answers_of(config)
        self.run.evaluated_by(**settings_of(config))

    def validated(self, rows: Mapping[str, Any], file: str) -> None:
        """Take what each answer of a validation scored; other files are passed over."""
        if not file.startswith(FILES):
            return
        scores = scores_of(self.run.metric, rows, self._answers)
        if scores:
            self._rows = sum(map(len, scores.values()))
            self.run.scored(scores)

    def logged(self, metrics: Mapping[str, Any], step: int, prefix: str) -> None:
        """Take what is logged; the step's times are the last of it."""
        found = numbers(metrics)
        with self._lock:
            if not self._begun:
                self._begun = True
                if self._start is None:  # the checkpoints were looked for before `watch`
                    self._start = step if prefix == VALIDATION else max(0, step - 1)
                self.run.begin(self._start)
            if prefix == VALIDATION:
                # A validation before the first step is logged with the step of the epoch, which is 0 (2843).
                step = max(step, self._start or 0)
                rows, self._rows = self._rows, None
                logs = {f"{prefix}/{name}": value for name, value in found.items()}
                self.run.evaluated(step, logs, samples=rows)
            elif prefix == TRAIN:
                self._train = found
            elif prefix == STEP_ENDS:
                self._step_ended(step)

    def _step_ended(self, step: int) -> None:
        wanted = self.run.step(
            step,
            proxy=first(self._train, PROXY),
            kl=kl_per_response(self._train, KL, LENGTH) or None,
            loss=first(self._train, LOSS),
        )
        with self.run.guarded("asking NeMo-RL for a checkpoint"):
            self._settings.restore()
            if wanted.checkpoint and self._config is not None:
                self._settings.every_step(self._config, "save_period")
            if wanted.evaluate:
                raise ValueError("NeMo-RL cannot be asked for an eval")

    def finalized(self, temporary: Path) -> None:
        """Record a checkpoint that has got its name: tmp_step_N is step_N now."""
        step = int(temporary.name.rpartition("_")[2])
        with self._lock:
            self.run.saved(step, temporary.parent / f"step_{step}")

    def latest(self, folder: Path, own: str | None) -> str | None:
        """Return the newest whole checkpoint; without any save record what NeMo-RL itself would take."""
        found = self.run.resume_path(folder)
        taken = found if found is not None or saved_names(folder) else own
        if not self._begun:
            self._start = 0 if taken is None else int(Path(taken).name.rpartition("_")[2])
        return taken

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
    log, configure, write = logger.log_metrics, logger.log_hyperparams, logger.log_batched_dict_as_jsonl
    begin, rename = manager.__init__, manager._rename_checkpoint
    latest, check = manager.get_latest_checkpoint_path, timeout.check_save

    @functools.wraps(log)
    def log_metrics(self: Any, metrics: Any, step: int, prefix: Any = "", *args: Any, **more: Any) -> Any:
        done = log(self, metrics, step, prefix, *args, **more)
        with stop.run.guarded("reading what NeMo-RL logs"):
            stop.logged(metrics, int(step), str(prefix or ""))
        return done

    @functools.wraps(configure)
    def log_hyperparams(self: Any, params: Any, *args: Any, **more: Any) -> Any:
        with stop.run.guarded("reading the settings of NeMo-RL's validation"):
            stop.configured(params)
        return configure(self, params, *args, **more)

    @functools.wraps(write)
    def log_rows(self: Any, to_log: Any, filename: str, *args: Any, **more: Any) -> Any:
        with stop.run.guarded("reading what each prompt scored"):
            stop.validated(to_log, str(filename))
        return write(self, to_log, filename, *args, **more)

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

    logger.log_metrics, logger.log_hyperparams = log_metrics, log_hyperparams
    logger.log_batched_dict_as_jsonl = log_rows
    manager.__init__, manager._rename_checkpoint = init, rename_and_record
    manager.get_latest_checkpoint_path, timeout.check_save = newest_whole, check_save
