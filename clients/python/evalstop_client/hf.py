"""Hugging Face's Trainer, and TRL's trainers, which are made of it.

    trainer.add_callback(callback := EvalStop("eval_rewards/gold/mean"))
    trainer.train(resume_from_checkpoint=callback.resume_path(trainer.args.output_dir))
    callback.finish()

Written against transformers 5.23.0 and TRL 1.16.0. The Trainer evaluates before it saves
(transformers/trainer.py 2268-2278), so a score waits for the checkpoint of its step; with equal
``eval_steps`` and ``save_steps`` each has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from evalstop_client.client import Location
from evalstop_client.logs import first, kl_per_response, numbers
from evalstop_client.prompt_set import of_datasets
from evalstop_client.run import Run

# What TRL calls things (trl/trainer/grpo_trainer.py 2296, 2828, 3268; the same in rloo_trainer.py).
REWARD, KL, LENGTH = "reward", ("kl",), "completions/mean_length"


class EvalStop(TrainerCallback):
    """Reports evals and saves, carries out requests, in every rank at the same step.

    Args:
        metric: key of the eval's metrics, with their prefix: ``eval_rewards/gold/mean``.
        run: default: ``Run(metric)``.
        proxy: key of the eval's metrics that is the reward model's score of the policy that was evaluated;
            default: TRL's total reward, if ``metric`` is another one.
    """

    def __init__(self, metric: str, run: Run | None = None, *, proxy: str = f"eval_{REWARD}") -> None:
        self.run = run if run is not None else Run(metric)
        self._proxy = proxy if proxy != metric else ""
        self._progress: dict[str, float | None] = {}
        self._told_prompts = False

    def resume_path(self, output_dir: Location) -> str | None:
        """Return the checkpoint to go on from; None: start afresh. See `Run.resume_path`."""
        return self.run.resume_path(output_dir)

    def finish(self) -> None:
        """Stay until the last eval was read; 143 after a request to stop or SIGTERM. See `Run.finish`."""
        self.run.finish()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say where the training starts, and under which settings is evaluated.

        The prompts of the evals are known at the first one only (transformers/trainer.py, `evaluation_loop`).
        """
        with self.run.guarded("reading the settings of the evals"):
            self.run.evaluated_by(
                whole=False,
                temperature=getattr(args, "temperature", None),
                k=getattr(args, "num_generations_eval", None) or getattr(args, "num_generations", None),
                tokens=getattr(args, "max_completion_length", None),
            )
        self.run.begin(state.global_step, state.max_steps, args.output_dir)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report an eval of a step that was not saved."""
        self.run.flush()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask for what the operator asks for: the Trainer logs, evaluates, saves after this."""
        folder = _folder(args, state)
        wanted = self.run.step(state.global_step, state.max_steps, folder=folder, **self._progress)
        with self.run.guarded("asking the Trainer for what the operator asks for"):
            if wanted.evaluate and _word(args, "eval_strategy") == "no":
                raise ValueError("a fresh eval was asked for, and eval_strategy is 'no'")
            control.should_evaluate = control.should_evaluate or wanted.evaluate
        control.should_save = control.should_save or wanted.checkpoint
        control.should_training_stop = control.should_training_stop or wanted.stop
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Take reward, KL and loss of the training."""
        with self.run.guarded("reading the training's log"):
            if logs and "loss" in logs:
                self._progress = {
                    "proxy": first(logs, (REWARD,)),
                    "kl": kl_per_response(logs, KL, LENGTH),
                    "loss": first(logs, ("loss",)),
                }

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Take an eval; it is reported once its checkpoint is saved."""
        with self.run.guarded("reading an eval"):
            found = numbers(metrics or {})
            # Several eval datasets come one after the other: only that of the metric tells its prompts.
            samples = None
            if self.run.metric in found:
                samples = _samples(more.get("eval_dataloader"))
                self._tell_prompts(more.get("eval_dataloader"))
            proxy = first(found, (self._proxy,))
            self.run.evaluated(state.global_step, found, samples=samples, proxy=proxy, prompts=samples)

    def _tell_prompts(self, dataloader: Any) -> None:
        """Add the set of prompts to the evaluator's version, at the first eval: where each eval draws others,
        all of them are of one evaluator."""
        if not self._told_prompts:
            self._told_prompts = True
            with self.run.guarded("reading the prompts of the evals"):
                self.run.evaluated_by(prompts=of_datasets([getattr(dataloader, "dataset", None)]))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the checkpoint, once every rank has written its files."""
        self.run.saved(state.global_step, _folder(args, state), args.output_dir)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report an eval of the last step."""
        self.run.flush()


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}")


def _word(args: Any, name: str) -> str:
    """Return an argument's value; of an enumeration's member its own."""
    value = getattr(args, name, "")
    return str(getattr(value, "value", value))


def _samples(dataloader: Any) -> int | None:
    """Return how many prompts an eval had. TRL's several generations for one are not independent."""
    try:
        return len(dataloader.dataset) or None
    except (AttributeError, TypeError):  # a stream has no length
        return None
