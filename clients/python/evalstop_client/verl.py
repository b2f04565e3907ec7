"""verl's PPO trainer (GRPO and the others of ``verl.trainer.main_ppo``), by two settings and without code:

    trainer.checkpoint_callback_class=evalstop_client.verl.EvalStop
    +trainer.evalstop_metric=val-core/openai/gsm8k/acc/mean@8

Written against verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py: one driver process saves (485), validates
(496) and then logs (514) each step, so a checkpoint is there before its score. The trainer makes the callback
from its config (122; verl/trainer/ppo/checkpoint_callback.py 78-82) and calls it after each save (1014,
1027). What is logged passes through `Tracking.log` (verl/utils/tracking.py 191). The trainer before it
(``trainer.use_v1=false``, verl/trainer/ppo/ray_trainer.py, deprecated) makes no callback.

A request is carried out with the next step, by the trainer itself: ``save_freq`` and ``test_freq`` of its
config are 1 for that step (481, 491). A stop makes that step the last (468: ``global_steps >=
total_training_steps``). The trainer is an actor of Ray's (verl/trainer/main_ppo.py 102), which is not told of
SIGTERM, and the pod's own process waits for it with `ray.get` (93) and ends with 0 when it returns. So after
a stop `Tracking.finish` (161, the last that the actor calls) stays until the pod is taken down, and raises
`StoppedRun` if it is not, within 300 s: then that process ends with 1.

Names of settings, as verl/trainer/config/ppo_trainer.yaml has them: ``total_training_steps`` 147,
``save_freq`` 174, ``resume_mode`` 187, ``resume_from_path`` 190, ``checkpoint_callback_class`` 196,
``test_freq`` 205, ``default_local_dir`` 217; others where they are used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalstop_client.client import Requests, saved_names
from evalstop_client.logs import first, kl_per_response, numbers
from evalstop_client.run import Run
from evalstop_client.settings import OneStep
from evalstop_client.verl_validation import scores_of

SETTING = "evalstop_metric"  # of config.trainer: the name of the metric
# verl/trainer/ppo/metric_utils.py 556, 573; verl/workers/utils/losses.py 119, 141.
PROXY = ("critic/score/mean", "critic/rewards/mean")
KL, LENGTH = ("actor/kl_loss", "kl_loss"), "response_length/mean"
LOSS = ("actor/pg_loss",)
LATEST = "latest_checkpointed_iteration.txt"  # trainer_base.py 1022
_HOOKED = "_evalstop"


class EvalStop:
    """verl's `CheckpointCallback`, and what is logged beside it."""

    def __init__(self, config: Any = None, run: Run | None = None) -> None:
        self._config = config
        metric = _setting(config, SETTING)
        # Ray sends its workers no SIGTERM of the pod's: the pod's own process gets it.
        self.run = run if run is not None else Run(metric or "unnamed", driver=True, signals=False)
        self._trainer: Any = None
        self._begun = False
        self._settings = OneStep()
        self._writing: dict[int, str] = {}  # asynchronous saves under way: step, folder
        self._texts: Sequence[str] = ()  # of the validation under way: the prompt of each answer
        self._answers: int | None = None  # of the validation that is logged next
        with self.run.guarded("following what verl logs"):
            if not metric:
                raise ValueError(f"trainer.{SETTING}: expected the name of the metric, got nothing")
            self._hook()
        with self.run.guarded("following verl's validation"):
            self._hook_validation()
        with self.run.guarded("resuming"):
            self._resume()
        with self.run.guarded("reading the settings of the validation"):
            self.run.evaluated_by(**_validation(config))

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any
    ) -> None:
        """Record a checkpoint; an asynchronous one when it is through."""
        self._trainer = trainer
        if async_save:
            self._writing[int(global_step)] = str(checkpoint_dir)
        else:
            self.run.saved(int(global_step), str(checkpoint_dir))

    def logged(self, data: Mapping[str, Any], step: int) -> None:
        """Take what verl logs after a step, and ask for what the operator asks for."""
        self._settings.restore()
        with self.run.guarded("recording an asynchronous checkpoint"):
            self._record_written()
        found = numbers(data)
        last = self._last_step()
        if not self._begun:
            self._begun = True
            self.run.begin(step if _is_validation(found) else max(0, step - 1), last)
        if not _is_validation(found):
            wanted = self.run.step(
                step,
                last,
                proxy=first(found, PROXY),
                kl=kl_per_response(found, KL, LENGTH),
                loss=first(found, LOSS),
            )
            with self.run.guarded("asking verl for what the operator asks for"):
                self._ask(wanted, step)
        scores = {name: value for name, value in found.items() if name.startswith("val-")}
        if scores:
            self.run.evaluated(step, scores, samples=self._answers)
            self._answers = None
            self.run.flush()

    def validated(self, sources: Any, ids: Any, results: Any, expected: Any = None) -> None:
        """Take what each prompt scored in the validation that is logged next."""
        texts, self._texts = self._texts, ()
        scores = scores_of(self.run.metric, texts, sources, ids, results, expected or {})
        if scores:
            self._answers = sum(map(len, scores.values()))
            self.run.scored(scores)

    def asked(self, texts: Sequence[str]) -> None:
        """Take the prompt of each answer of the validation under way."""
        self._texts = list(texts)

    def ended(self) -> None:
        """Stay until the last eval was read; after a request to stop until the pod is taken down."""
        self._settings.restore()
        self.run.flush()
        with self.run.guarded("recording an asynchronous checkpoint"):
            self._record_written()
        with self.run.guarded("waiting for the operator"):
            self.run.linger()
            self.run.client.close()

    def _hook(self) -> None:
        """Follow `Tracking.log` and `Tracking.finish`."""
        from verl.utils.tracking import Tracking

        if not _followed_first(Tracking, self):
            return
        log, finish = Tracking.log, Tracking.finish

        @functools.wraps(log)
        def log_and_report(tracking: Any, data: Any, step: Any, *args: Any, **more: Any) -> Any:
            done = log(tracking, data, step, *args, **more)
            watcher = getattr(Tracking, _HOOKED)
            with watcher.run.guarded("reading what verl logs"):
                watcher.logged(data, int(step))
            return done

        @functools.wraps(finish)
        def finish_and_wait(tracking: Any, exit_code: int = 0, *args: Any, **more: Any) -> Any:
            if getattr(tracking, "_finished", False):
                return finish(tracking, exit_code, *args, **more)
            watcher = getattr(Tracking, _HOOKED)
            watcher.ended()
            done = finish(tracking, exit_code, *args, **more)
            if exit_code == 0:  # else an error is on its way already (main_ppo.py 161)
                watcher.run.not_complete()
            return done

        Tracking.log, Tracking.finish = log_and_report, finish_and_wait

    def _hook_validation(self) -> None:
        """Follow what `_validate` hands on: the texts (1205), then what each answer scored (1342)."""
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer

        if not _followed_first(PPOTrainer, self):
            return
        texts, update = PPOTrainer._maybe_log_val_generations, PPOTrainer._val_metrics_update

        @functools.wraps(texts)
        def log_and_keep(trainer: Any, *args: Any, **more: Any) -> Any:
            watcher = getattr(PPOTrainer, _HOOKED)
            with watcher.run.guarded("reading the prompts of verl's validation"):
                watcher.asked(more["inputs"] if "inputs" in more else args[0])
            return texts(trainer, *args, **more)

        @functools.wraps(update)
        def update_and_compare(trainer: Any, *args: Any, **more: Any) -> Any:
            watcher = getattr(PPOTrainer, _HOOKED)
            with watcher.run.guarded("reading what each prompt scored"):
                watcher.validated(*args[:3], expected=more.get("expected_acc_counts"))
            return update(trainer, *args, **more)

        PPOTrainer._maybe_log_val_generations = log_and_keep
        PPOTrainer._val_metrics_update = update_and_compare

    def _resume(self) -> None:
        """Have verl load the newest whole checkpoint, where it would take the newest folder (858, auto)."""
        trainer = self._config.trainer
        if trainer.resume_mode != "auto":
            return
        folder = Path(os.path.abspath(trainer.default_local_dir))
        found = self.run.resume_path(folder)
        if found is not None:
            trainer.resume_mode, trainer.resume_from_path = "resume_path", found
        elif saved_names(folder):
            trainer.resume_mode = "disable"  # what is there is torn, or another run's

    def _ask(self, wanted: Requests, step: int) -> None:
        if wanted.checkpoint:
            self._settings.every_step(self._config.trainer, "save_freq")
        if wanted.evaluate:
            self._settings.every_step(self._config.trainer, "test_freq")
        if wanted.stop and self._trainer is not None:
            self._trainer.total_training_steps = step + 1
        # Before the first save there is no trainer to tell: the next step saves, which brings it.

    def _record_written(self) -> None:
        """Record asynchronous saves that are through: verl writes their step into a file when they are."""
        for step, folder in sorted(self._writing.items()):
            latest = Path(folder).parent / LATEST
            if latest.is_file() and int(latest.read_text().strip() or -1) >= step:
                self.run.saved(step, folder)
                del self._writing[step]

    def _last_step(self) -> int | None:
        if self._trainer is not None:
            return int(self._trainer.total_training_steps)
        planned = _setting(self._config, "total_training_steps")
        return int(planned) if planned else None


def _followed_first(kind: Any, watcher: EvalStop) -> bool:
    """Have a class's calls go to this callback; return whether nothing follows them yet. A second callback
    takes the first's place."""
    first = not hasattr(kind, _HOOKED)
    setattr(kind, _HOOKED, watcher)
    return first


def _setting(config: Any, name: str) -> Any:
    trainer = getattr(config, "trainer", None)
    return trainer.get(name, None) if trainer is not None else None


def _validation(config: Any) -> dict[str, Any]:
    """Return the settings of verl's validation: how it samples (verl/trainer/config/rollout/rollout.yaml
    151-170), how long, on which files (config/data/legacy_data.yaml 39, 14)."""
    sampling = _at(config, "actor_rollout_ref", "rollout", "val_kwargs")
    data = _at(config, "data")
    return {
        "temperature": _at(sampling, "temperature"),
        "k": _at(sampling, "n"),
        "tokens": _at(data, "max_response_length"),
        "prompts": _at(data, "val_files"),
    }


def _at(found: Any, *names: str) -> Any:
    """Return what a configuration has below these names; None: nothing."""
    for name in names:
        found = getattr(found, name, None)
    return found


def _is_validation(found: Mapping[str, float]) -> bool:
    """Return whether a log is that of the validation before the training: nothing of a step is in it."""
    return "training/global_step" not in found and all(name.startswith("val-") for name in found)
