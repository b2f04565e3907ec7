"""OpenRLHF's PPO trainer (``openrlhf.cli.train_ppo_ray``), by Ray's hook for processes that start:

    ray job submit --runtime-env-json='{"worker_process_setup_hook": "evalstop_client.openrlhf.install",
        "env_vars": {"EVALSTOP_METRIC": "eval_gsm8k_pass1"}}' -- python3 -m openrlhf.cli.train_ppo_ray …

Written against OpenRLHF 0.11.2, openrlhf/trainer/ppo_trainer.py. One actor runs the loop (`PPOTrainer.fit`,
504-582): it draws samples (530), logs and saves each step (560, `save_logs_and_checkpoints`), evaluates
(567), and saves a new best (568, `save_best_checkpoint`). Followed are three methods of `BasePPOTrainer`
(these two, and `init_checkpoint_states`, 433, with which `fit` begins) and two functions of the module:
`prepare_datasets` (called at 478, before the models are made: cli/train_ppo_ray.py 151-171) and
`compute_eval_metrics` (591).

A request is carried out in the step that it is read in: for that step ``args.ckpt.save_steps`` or
``args.eval.steps`` is 1. After a request to stop no more samples are drawn: where they would be, the trainer
stays until the pod is taken down. If it is not, within 300 s, `StoppedRun` is raised there: the pod's own
process, which waits for `fit` with `ray.get` (cli/train_ppo_ray.py 188), ends with 1 then, and not with 0.

``--train.async_enable`` (ppo_trainer_async.py): `TrainingActor` (168) is a `BasePPOTrainer` too, and takes
what another actor has drawn or evaluated from a queue (206). That other actor has settings of its own, so an
eval cannot be asked for.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from evalstop_client.client import saved_names
from evalstop_client.logs import first, kl_per_response, numbers
from evalstop_client.openrlhf_files import hide_latest, make_latest
from evalstop_client.prompts import standard_error
from evalstop_client.run import Run
from evalstop_client.settings import OneStep

METRIC = "EVALSTOP_METRIC"  # environment: the name of the metric
MODULE = "openrlhf.trainer.ppo_trainer"
PROXY, LENGTH = ("rollout/reward_mean", "reward"), "rollout/response_length_mean"  # ppo_trainer.py 425, 427
KL, LOSS = ("kl",), ("policy_loss",)  # trainer/ray/ppo_actor.py 333, 370
ROLES = ("_actor", "_critic")
DONE = "done"  # ppo_trainer_async.py 164: the last that comes through the queue
AFRESH = {
    "episode": 0,
    "global_step": 0,
    "total_consumed_prompts": 0,
    "data_loader_state_dict": {},
}  # 441-446

log = logging.getLogger("evalstop")


class EvalStop:
    """Hooks around the calls of one trainer."""

    def __init__(self, run: Run | None = None) -> None:
        # Ray sends its workers no SIGTERM of the pod's: the pod's own process gets it.
        self.run = (
            run if run is not None else Run(os.environ.get(METRIC) or "unnamed", driver=True, signals=False)
        )
        self._begun = False
        self._waited = False  # for the operator, at the end
        self._left = math.inf  # episodes that are not drawn to their end; not known yet
        self._settings = OneStep()

    def resume(self, args: Any) -> None:
        """Have OpenRLHF load the newest whole checkpoint, where it would take the one that ``latest`` names
        (``--ckpt.load_enable``; utils/deepspeed/deepspeed.py 766-787, without a tag)."""
        if not args.ckpt.load_enable:
            return
        place = Path(args.ckpt.path)
        found = self.run.resume_path(place)
        if found is not None:
            make_latest(place, Path(found), ROLES)
        elif saved_names(place):
            hide_latest(place, ROLES)  # what is there is torn, or another run's

    def begins(self, trainer: Any, states: Mapping[str, Any]) -> None:
        """Say where the training starts, under which settings is evaluated, and follow what is drawn."""
        args = trainer.args
        with self.run.guarded("reading the settings of the evals"):
            self.run.evaluated_by(
                temperature=args.eval.temperature,
                k=args.eval.n_samples_per_prompt,
                tokens=args.rollout.max_new_tokens,
                prompts=args.eval.dataset,
            )
        self._begin(trainer, int(states["global_step"]))
        self._left = int(args.train.num_episodes) - int(states["episode"])
        if hasattr(trainer, "rollout_queue"):
            trainer.rollout_queue = _Queue(trainer.rollout_queue, self)
        else:
            trainer.samples_generator.generate_samples = self._followed(
                trainer.samples_generator.generate_samples
            )

    def before_save(self, trainer: Any, step: int, logs: Mapping[str, Any]) -> None:
        """Take a step's log, and ask for what the operator asks for."""
        self._settings.restore()
        self._begin(trainer, max(0, step - 1))
        found = numbers(logs)
        wanted = self.run.step(
            step,
            _steps(trainer),
            proxy=first(found, PROXY),
            kl=kl_per_response(found, KL, LENGTH),
            loss=first(found, LOSS),
        )
        with self.run.guarded("asking OpenRLHF for what the operator asks for"):
            if wanted.checkpoint:
                self._settings.every_step(trainer.args.ckpt, "save_steps")
            if wanted.evaluate and hasattr(trainer, "rollout_queue"):
                raise ValueError("OpenRLHF's asynchronous trainer cannot be asked for an eval")
            if wanted.evaluate:
                self._settings.every_step(trainer.args.eval, "steps")

    def after_save(self, trainer: Any, step: int) -> None:
        """Record the step's regular checkpoint, if one was written."""
        with self.run.guarded("recording a checkpoint"):
            if step % trainer.args.ckpt.save_steps == 0:
                self._record(trainer, step, f"global_step{step}")
        with self.run.guarded("looking whether an eval follows"):
            last = self._left < 1 and not hasattr(trainer, "rollout_queue")
            if last and (step % trainer.args.eval.steps or not trainer.eval_dataloader):  # 563
                self.wait()

    def evaluated(self, per_prompt: Mapping[str, Mapping[Any, float]], logs: dict[str, Any]) -> None:
        """Take what each prompt scored, and add the standard errors to the eval's log."""
        for name, scores in per_prompt.items():
            if (error := standard_error(scores.values())) is not None:
                logs.setdefault(f"{name}_stderr", error)
        if (mine := per_prompt.get(self.run.metric)) is not None:
            self.run.scored(mine)

    def after_best(self, trainer: Any, step: int, scores: Mapping[str, Any], best_before: float) -> None:
        """Record the checkpoint of a new best, and report the eval."""
        with self.run.guarded("recording the best checkpoint"):
            if trainer.best_eval_metric_value != best_before:
                self._record(trainer, step, f"best_global_step{step}")
        found = numbers(scores)
        samples = found.pop("eval_num_samples", None)
        self.run.evaluated(step, found, samples=int(samples) if samples else None)
        self.run.flush()
        self._settings.restore()
        if self._left < 1 and not hasattr(trainer, "rollout_queue"):
            self.wait()

    def wait(self) -> None:
        """At the end, once: stay until the last eval was read; after a request to stop until SIGTERM."""
        if not self._waited:
            self._waited = True
            self.run.flush()
            with self.run.guarded("waiting for the operator"):
                self.run.linger()

    def leave(self) -> None:
        """Raise `StoppedRun` where the training is over and was asked to stop."""
        if self._waited:
            self.run.not_complete()

    def _begin(self, trainer: Any, step: int) -> None:
        if not self._begun:
            self._begun = True
            self.run.begin(step, _steps(trainer))

    def _record(self, trainer: Any, step: int, tag: str) -> None:
        place = Path(trainer.args.ckpt.path)
        folders = [place / role / tag for role in ROLES if (place / role / tag).is_dir()]
        if not folders and (place / f"{tag}_hf").is_dir():  # --ckpt.save_hf --ckpt.disable_ds
            folders = [place / f"{tag}_hf"]
        if not folders:
            raise ValueError(f"{place}: expected {ROLES[0]}/{tag} or {tag}_hf in it after the save")
        self.run.saved(step, folders, place)

    def _followed(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Return `generate_samples` (530), which says when the last samples come, and draws none after a
        request to stop."""

        @functools.wraps(generate)
        def drawn(*args: Any, **more: Any) -> Any:
            if self.run.ends:
                self.wait()
                self.leave()
            found = generate(*args, **more)
            with self.run.guarded("following what OpenRLHF draws"):
                self._left -= bool(found[3])
                if self._left < 1 and not found[0]:
                    self.wait()
            return found

        return drawn


class _Queue:
    """The queue that the asynchronous trainer trains from. After a request to stop nothing more is taken from
    it: the driver ends with the first of its two actors that fails (Ray 2.60), and with it the other one."""

    def __init__(self, inner: Any, stop: EvalStop) -> None:
        self._inner, self._stop = inner, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, *args: Any, **more: Any) -> Any:
        found = self._inner.get(*args, **more)
        if self._stop.run.ends or (isinstance(found, str) and found == DONE):
            self._stop.wait()
            self._stop.leave()
        return found


def _steps(trainer: Any) -> int | None:
    """Return how many steps are planned; None: the asynchronous trainer does not know."""
    return int(getattr(trainer, "max_steps", 0) or 0) or None


def scores_of(dataloader: Any, samples: Sequence[Any], answers: int) -> dict[str, dict[Any, float]]:
    """Return what each prompt scored, by the name of the metric, as `compute_eval_metrics` (82-145) has it.

    One sample for each answer, and the answers of a prompt one after the other. A prompt that comes twice is
    two prompts.
    """
    source = {prompt: name for names, prompts, *_ in dataloader for prompt, name in zip(prompts, names)}
    rows = [(prompt, float(sample.rewards)) for sample in samples for prompt in sample.prompts]
    found: dict[str, dict[Any, float]] = {}
    seen: Counter[str] = Counter()
    for start in range(0, len(rows), answers):
        prompt = rows[start][0]
        scores = [score for _, score in rows[start : start + answers]]
        seen[prompt] += 1
        of = {f"pass{answers}": max(scores), "pass1": sum(scores) / len(scores)}
        for metric, value in of.items():
            name = f"eval_{source.get(prompt, 'unknown')}_{metric}"
            found.setdefault(name, {})[prompt, seen[prompt]] = value
    return found


def watch(module: Any, made: EvalStop | None = None) -> None:
    """Follow the trainer of a module like ``openrlhf.trainer.ppo_trainer``."""
    stop = made if made is not None else EvalStop()
    base = module.BasePPOTrainer
    prepare, compute = module.prepare_datasets, module.compute_eval_metrics
    init, save, save_best = (
        base.init_checkpoint_states,
        base.save_logs_and_checkpoints,
        base.save_best_checkpoint,
    )

    @functools.wraps(prepare)
    def prepare_and_resume(strategy: Any, *args: Any, **more: Any) -> Any:
        with stop.run.guarded("finding the checkpoint to resume from"):
            stop.resume(strategy.args)
        return prepare(strategy, *args, **more)

    @functools.wraps(init)
    def init_and_begin(trainer: Any, *args: Any, **more: Any) -> Any:
        states = init(trainer, *args, **more)
        if isinstance(states, dict) and not states:  # the folder is there, and no checkpoint in it was loaded
            states = dict(AFRESH)
        with stop.run.guarded("reading where the training starts"):
            stop.begins(trainer, states)
        return states

    @functools.wraps(save)
    def save_and_record(
        trainer: Any, global_step: int, logs_dict: Any = None, *args: Any, **more: Any
    ) -> Any:
        with stop.run.guarded("reading what OpenRLHF logs"):
            stop.before_save(trainer, global_step, logs_dict or {})
        done = save(trainer, global_step, logs_dict, *args, **more)
        stop.after_save(trainer, global_step)
        stop.leave()
        return done

    @functools.wraps(compute)
    def compute_and_compare(dataloader: Any, samples: Any, answers: int, *args: Any, **more: Any) -> Any:
        logs = compute(dataloader, samples, answers, *args, **more)
        with stop.run.guarded("reading what each prompt scored"):
            stop.evaluated(scores_of(dataloader, samples, int(answers)), logs)
        return logs

    @functools.wraps(save_best)
    def save_best_and_report(
        trainer: Any, eval_metrics: Any, global_step: int, *args: Any, **more: Any
    ) -> Any:
        before = getattr(trainer, "best_eval_metric_value", 0.0)
        done = save_best(trainer, eval_metrics, global_step, *args, **more)
        with stop.run.guarded("reading an eval"):
            stop.after_best(trainer, global_step, eval_metrics or {}, before)
        stop.leave()
        return done

    module.prepare_datasets, module.compute_eval_metrics = prepare_and_resume, compute_and_compare
    base.init_checkpoint_states = init_and_begin
    base.save_logs_and_checkpoints, base.save_best_checkpoint = save_and_record, save_best_and_report


def install() -> None:
    """Follow the trainer in the process that imports it; each of a Ray job's calls this at its start."""
    if MODULE in sys.modules:
        watch(sys.modules[MODULE])
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
        try:
            watch(module)
        except Exception as fault:  # another version, whatever is otherwise in it
            log.warning("EvalStop: following OpenRLHF failed, the training goes on: %s", fault)
