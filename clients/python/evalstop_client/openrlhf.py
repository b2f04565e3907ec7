"""OpenRLHF's PPO trainer (``openrlhf.cli.train_ppo_ray``), by Ray's hook for processes that start:

    ray job submit --runtime-env-json='{"worker_process_setup_hook": "evalstop_client.openrlhf.install",
        "env_vars": {"EVALSTOP_METRIC": "eval_gsm8k_pass1"}}' -- python3 -m openrlhf.cli.train_ppo_ray …

Written against OpenRLHF 0.11.2, openrlhf/trainer/ppo_trainer.py. One actor runs the loop: it logs and saves
each step (560, `save_logs_and_checkpoints`), evaluates (567), and saves a new best (568,
`save_best_checkpoint`). These two methods of `BasePPOTrainer` are followed. A request is carried out in the
step that it is read in: for that step ``args.ckpt.save_steps`` or ``args.eval.steps`` is 1. After a request
to stop no more prompts are drawn.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from evalstop_client.logs import first, kl_per_response, numbers
from evalstop_client.run import Run
from evalstop_client.settings import OneStep

METRIC = "EVALSTOP_METRIC"  # environment: the name of the metric
MODULE = "openrlhf.trainer.ppo_trainer"
PROXY, LENGTH = ("rollout/reward_mean", "reward"), "rollout/response_length_mean"  # ppo_trainer.py 425
KL, LOSS = ("kl",), ("policy_loss",)
ROLES = ("_actor", "_critic")


class EvalStop:
    """What is done around the two methods of one trainer."""

    def __init__(self, run: Run | None = None) -> None:
        # Ray sends its workers no SIGTERM of the pod's: the pod's own process gets it.
        self.run = (
            run if run is not None else Run(os.environ.get(METRIC) or "unnamed", driver=True, signals=False)
        )
        self._begun = False
        self._settings = OneStep()

    def before_save(self, trainer: Any, step: int, logs: Mapping[str, Any]) -> None:
        """Take a step's log, and ask for what the operator asks for."""
        self._settings.restore()
        total = int(getattr(trainer, "max_steps", 0) or 0) or None
        if not self._begun:
            self._begun = True
            self.run.begin(max(0, step - 1), total)
        found = numbers(logs)
        wanted = self.run.step(
            step,
            total,
            proxy=first(found, PROXY),
            kl=kl_per_response(found, KL, LENGTH),
            loss=first(found, LOSS),
        )
        with self.run.guarded("asking OpenRLHF for what the operator asks for"):
            if wanted.checkpoint:
                self._settings.every_step(trainer.args.ckpt, "save_steps")
            if wanted.evaluate:
                self._settings.every_step(trainer.args.eval, "steps")
            if wanted.stop:
                self._draw_no_more(trainer)

    def after_save(self, trainer: Any, step: int) -> None:
        """Record the step's regular checkpoint, if one was written."""
        with self.run.guarded("recording a checkpoint"):
            if step % trainer.args.ckpt.save_steps == 0:
                self._record(trainer, step, f"global_step{step}")

    def after_best(self, trainer: Any, step: int, scores: Mapping[str, Any], best_before: float) -> None:
        """Record the checkpoint of a new best, and report the eval."""
        with self.run.guarded("recording the best checkpoint"):
            if trainer.best_eval_metric_value != best_before:
                self._record(trainer, step, f"best_global_step{step}")
        found = numbers(scores)
        samples = found.get("eval_num_samples")
        self.run.evaluated(step, found, samples=int(samples) if samples else None)
        self.run.flush()
        self._settings.restore()

    def _record(self, trainer: Any, step: int, tag: str) -> None:
        place = Path(trainer.args.ckpt.path)
        folders = [place / role / tag for role in ROLES if (place / role / tag).is_dir()]
        if not folders:
            raise ValueError(f"{place}: expected {ROLES[0]}/{tag} in it after the save")
        self.run.saved(step, folders, place)

    def _draw_no_more(self, trainer: Any) -> None:
        """Have `fit` end: it does when there are no samples left (535-537), which it asks for next."""

        def exhausted(*_: Any, **__: Any) -> tuple[list[Any], None, int, bool]:
            with self.run.guarded("waiting for the operator"):
                self.run.linger()
            return [], None, 0, True

        trainer.samples_generator.generate_samples = exhausted


def watch(base: Any, made: EvalStop | None = None) -> None:
    """Follow a `BasePPOTrainer`'s two methods."""
    save, save_best = base.save_logs_and_checkpoints, base.save_best_checkpoint
    stop = made if made is not None else EvalStop()

    @functools.wraps(save)
    def save_and_record(
        trainer: Any, global_step: int, logs_dict: Any = None, *args: Any, **more: Any
    ) -> Any:
        with stop.run.guarded("reading what OpenRLHF logs"):
            stop.before_save(trainer, global_step, logs_dict or {})
        done = save(trainer, global_step, logs_dict, *args, **more)
        stop.after_save(trainer, global_step)
        return done

    @functools.wraps(save_best)
    def save_best_and_report(
        trainer: Any, eval_metrics: Any, global_step: int, *args: Any, **more: Any
    ) -> Any:
        before = getattr(trainer, "best_eval_metric_value", 0.0)
        done = save_best(trainer, eval_metrics, global_step, *args, **more)
        with stop.run.guarded("reading an eval"):
            stop.after_best(trainer, global_step, eval_metrics or {}, before)
        return done

    base.save_logs_and_checkpoints, base.save_best_checkpoint = save_and_record, save_best_and_report


def install() -> None:
    """Follow the trainer in the process that imports it; each of a Ray job's calls this at its start."""
    if MODULE in sys.modules:
        watch(sys.modules[MODULE].BasePPOTrainer)
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the trainer's module to be imported; there is nothing to follow in other processes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads the module as its own loader does, and follows the trainer in it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        base = getattr(module, "BasePPOTrainer", None)
        if base is not None:
            watch(base)
