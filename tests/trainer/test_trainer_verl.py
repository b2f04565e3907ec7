"""The verl adapter against a stand-in that calls it as verl 0.9.1 does, line by line.

Numbers in the comments: verl/trainer/ppo/v1/trainer_base.py, unless another file is named.
"""

from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from evalstop_client import verl
from evalstop_client.run import Run, StoppedRun
from evalstop_client.verl_validation import scores_of

PAGE = Path(__file__).parents[2] / "docs" / "use" / "trainers.md"
METRIC = "val-core/gsm8k/acc/mean@8"


class Tracking:
    """verl/utils/tracking.py 173-202."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, Any]]] = []
        self._finished = False

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
        self.lines.append((step, dict(data)))

    def finish(self, exit_code: int = 0) -> None:
        if self._finished:
            return
        self._finished = True


class PPOTrainer:
    """The two methods that a validation hands its results to."""

    def _maybe_log_val_generations(self, inputs: Any, outputs: Any, scores: Any) -> None:  # 1205
        pass

    def _val_metrics_update(
        self, sources: Any, ids: Any, results: Any, turns: Any, expected_acc_counts: Any = None
    ) -> dict[str, float]:  # 1342
        of = [acc for acc, source in zip(results["acc"], sources, strict=True) if source == "gsm8k"]
        return {
            METRIC: sum(of) / len(of),
            "val-core/gsm8k/acc/std@8": 0.3,
            "val-aux/len/mean@8": 9.0,
        }


class Settings(dict):
    """As OmegaConf's DictConfig is: by name and by key."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Trainer:
    """PPOTrainer's loop, without what it computes."""

    def __init__(self, config: Any, callback: verl.EvalStop, world: World) -> None:
        self.config, self.checkpoint_callback, self.world = config, callback, world  # 121, 122
        self.total_training_steps = 20
        self.saved: list[int] = []
        self.asks: dict[int, dict[str, Any]] = {}
        self.async_save = False
        self.ends_with: Exception | None = None  # what the trainer fails with, at its end

    def run(self) -> None:
        """What the actor of Ray's does, for which the pod's own process waits: verl/trainer/main_ppo.py
        150-163."""
        succeeded = False
        try:
            self.fit()  # 155
            succeeded = True
        finally:
            self.logger.finish(exit_code=0 if succeeded else 1)  # 161

    def fit(self) -> None:
        self.logger = sys.modules["verl.utils.tracking"].Tracking()  # 423
        self.global_steps = 0
        if self.config.trainer.resume_mode == "resume_path":  # 867
            self.global_steps = int(self.config.trainer.resume_from_path.split("global_step_")[-1])  # 877
        self.logger.log(data=self._validate(), step=self.global_steps)  # 439-445
        self.global_steps += 1  # 454
        while self.global_steps <= self.total_training_steps:  # 467
            if self.global_steps in self.asks:
                self.world.ask(**self.asks[self.global_steps])
            is_last_step = self.global_steps >= self.total_training_steps  # 468
            metrics: dict[str, Any] = {"actor/pg_loss": -0.5, "kl_loss": 0.01}
            save, test = self.config.trainer.save_freq, self.config.trainer.test_freq
            if save > 0 and (is_last_step or self.global_steps % save == 0):  # 481
                self._save_checkpoint()
            if test > 0 and (is_last_step or self.global_steps % test == 0):  # 491
                metrics.update(self._validate())
            metrics["training/global_step"] = self.global_steps  # 1935
            metrics |= {"critic/score/mean": 0.75, "response_length/mean": 200.0}
            self.logger.log(data=metrics, step=self.global_steps)  # 514
            self.global_steps += 1  # 520
            if is_last_step:  # 523
                if self.ends_with:
                    raise self.ends_with
                return

    def _validate(self) -> dict[str, float]:
        """1031: two prompts with eight answers each, and one of another source."""
        level = 0.5 + self.global_steps / 100
        base = sys.modules["verl.trainer.ppo.v1.trainer_base"].PPOTrainer()
        of = [("1+1?", "gsm8k", level - 0.1), ("2+2?", "gsm8k", level + 0.1), ("x?", "math", 0.0)]
        answers = [one for one in of for _ in range(8)]
        ids = [f"{self.global_steps}-{text}" for text, _, _ in answers]  # 1051: new ones each time
        texts, scores = [a[0] for a in answers], [a[2] for a in answers]
        base._maybe_log_val_generations(inputs=texts, outputs=texts, scores=scores)  # 1162
        return base._val_metrics_update(  # 1197
            [a[1] for a in answers], ids, {"reward": scores, "acc": scores}, [], expected_acc_counts={}
        )

    def _save_checkpoint(self) -> None:  # 948
        self.saved.append(self.global_steps)
        folder = self.world.out / f"global_step_{self.global_steps}"
        (folder / "actor").mkdir(parents=True)
        (folder / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"x" * 7)
        (folder / "data.pt").write_bytes(b"d")  # 998
        if not self.async_save:  # 1012
            (self.world.out / verl.LATEST).write_text(str(self.global_steps))  # 1025
        self.checkpoint_callback.on_save(  # 1014, 1027
            trainer=self,
            global_step=self.global_steps,
            checkpoint_dir=str(folder),
            async_save=self.async_save,
        )


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    module = types.ModuleType("verl.utils.tracking")
    module.Tracking = type("Tracking", (Tracking,), dict(vars(Tracking)))  # type: ignore[attr-defined]
    base = types.ModuleType("verl.trainer.ppo.v1.trainer_base")
    base.PPOTrainer = type("PPOTrainer", (PPOTrainer,), dict(vars(PPOTrainer)))  # type: ignore[attr-defined]
    for name in ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.v1"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.setitem(sys.modules, "verl.utils.tracking", module)
    return made(World(tmp_path))


def made(world: World, **settings: Any) -> Trainer:
    chosen = {"save_freq": 5, "test_freq": 5, "resume_mode": "auto", "resume_from_path": None}
    chosen |= {"default_local_dir": str(world.out), "evalstop_metric": METRIC, **settings}
    config = SimpleNamespace(trainer=Settings(chosen))
    run = Run(METRIC, world.client, signals=False, stop_grace=0.0)
    return Trainer(config, verl.EvalStop(config=config, run=run), world)


def test_evals_saves_and_progress_are_published(trainer: Trainer) -> None:
    trainer.run()
    world = trainer.world
    scores = {0: 0.5, 5: 0.55, 10: 0.6, 15: 0.65, 20: 0.7}
    assert dict(world.evals(METRIC)) == {step: pytest.approx(score) for step, score in scores.items()}
    assert world.records().keys() == {f"global_step_{step}" for step in (5, 10, 15, 20)}
    view = world.page(METRIC)
    assert (view.step, view.checkpoint_step, view.resumed_step) == (20, 20, 0)
    assert (view.proxy, view.kl, view.loss) == (0.75, pytest.approx(2.0), -0.5)
    point = view.points[-1]
    assert (point.prompts, point.samples) == (2, 16), "of the metric's own source"
    assert point.stderr == pytest.approx(0.1), "of two prompts, not of 16 answers"
    assert 15 in [pair.step for pair in point.prompt_pairs], "the same prompts, by their text"
    assert "val-aux/len/mean@8" in view.metrics_seen, "a guardrail finds its evals"
    assert len(trainer.logger.lines) == 21, "verl's own log has lost nothing"


EXPECTED = {("s", "a"): 2, ("s", "b"): 2, ("t", "c"): 2}


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        ("val-core/s/acc/mean@2", {("p", 1): [1.0, 0.0], ("q", 1): [1.0, 0.0]}),  # one of b's has failed
        ("val-aux/s/reward/mean@2", {("p", 1): [3.0, 1.0]}),  # b has one answer
        ("val-core/s/acc/best@2/mean", {}),
        ("val-core/s/other/mean@2", {}),
        ("loss", {}),
    ],
)
def test_what_each_prompt_scored_is_what_the_metric_is_the_mean_of(metric: str, found: Any) -> None:
    results = {"acc": [1.0, 0.0, 1.0, 5.0], "reward": [3.0, 1.0, 2.0, 5.0]}
    given = (["p", "p", "q", "r"], ["s", "s", "s", "t"], ["a", "a", "b", "c"], results, EXPECTED)
    assert scores_of(metric, *given) == found


def test_requests_are_carried_out_with_the_next_step(trainer: Trainer) -> None:
    trainer.asks = {
        6: {"id": 1, "checkpoint": True},
        8: {"id": 2, "evaluate": True},
        11: {"id": 3, "stop": True},
    }
    with pytest.raises(StoppedRun, match="asked to stop, and no SIGTERM has come within 0 s"):
        trainer.run()
    assert trainer.saved == [5, 7, 10, 12]
    assert [step for step, _ in trainer.world.evals(METRIC)] == [0, 5, 9, 10, 12]
    assert trainer.logger.lines[-1][0] == 12
    assert trainer.world.page(METRIC).request_served == 3
    assert (trainer.config.trainer.save_freq, trainer.config.trainer.test_freq) == (5, 5)


def test_a_stop_before_the_first_save_makes_one(trainer: Trainer) -> None:
    trainer.config.trainer.save_freq = -1
    trainer.asks = {2: {"id": 1, "stop": True}}
    with pytest.raises(StoppedRun):
        trainer.run()
    assert (trainer.saved, trainer.logger.lines[-1][0]) == ([3, 4], 4)


def test_a_stop_that_no_sigterm_follows_does_not_end_as_if_it_were_complete(trainer: Trainer) -> None:
    """The pod's own process ended with 0, and the Job counted a run that was only asked to stop as
    complete."""
    trainer.asks = {3: {"id": 1, "stop": True}}
    with pytest.raises(StoppedRun):
        trainer.run()
    assert trainer.logger._finished, "verl's own loggers are closed before"
    trainer.logger.finish()  # a second call does nothing


def test_an_error_of_the_trainers_own_is_the_one_that_is_told(trainer: Trainer) -> None:
    trainer.asks = {3: {"id": 1, "stop": True}}
    trainer.ends_with = OSError("no space left")
    with pytest.raises(OSError, match="no space left"):
        trainer.run()


def test_it_resumes_from_the_newest_whole_one(trainer: Trainer, tmp_path: Path) -> None:
    trainer.run()
    torn = tmp_path / "out" / "global_step_20" / "actor" / "model_world_size_1_rank_0.pt"
    torn.write_bytes(b"half")
    again = made(trainer.world)
    assert again.config.trainer.resume_from_path == str(tmp_path / "out" / "global_step_15")
    (tmp_path / "out" / "global_step_99").mkdir()  # no record tells that it is whole
    for step in (5, 10, 15):
        (tmp_path / "out" / f"global_step_{step}" / "data.pt").unlink()
    assert made(trainer.world).config.trainer.resume_mode == "disable"
    assert made(World(tmp_path / "out")).config.trainer.resume_mode == "auto", "no record: verl's own way"


def test_an_asynchronous_save_is_recorded_when_it_is_through(trainer: Trainer) -> None:
    """verl/utils/checkpoint/megatron_checkpoint_manager.py 1138-1146: the file is written when all are."""
    trainer.async_save = True
    trainer.run()
    assert trainer.world.records() == {}
    (trainer.world.out / verl.LATEST).write_text("10")
    trainer.checkpoint_callback.ended()
    assert trainer.world.records().keys() == {"global_step_5", "global_step_10"}


def test_whatever_fails_the_training_goes_on(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    trainer.config.trainer.clear()
    trainer.config.trainer.update(save_freq=5, test_freq=-1, resume_mode="auto")
    broken = verl.EvalStop(config=trainer.config, run=trainer.checkpoint_callback.run)
    assert "trainer.evalstop_metric: expected the name of the metric, got nothing" in caplog.text
    trainer.checkpoint_callback = broken
    trainer.world.client.set_progress = None  # type: ignore[assignment, method-assign]
    trainer.run()
    assert trainer.saved == [5, 10, 15, 20]
    assert caplog.text.count("reading the operator's requests failed") == 1


def test_the_settings_of_the_page_are_those_that_are_read(trainer: Trainer) -> None:
    """By name: `load_class_from_fqn` (verl/trainer/ppo/checkpoint_callback.py 81) imports the class, and is
    given the config."""
    (block,) = re.findall(r"```sh\npython3 -m verl.trainer.main_ppo (.*?)```", PAGE.read_text(), re.DOTALL)
    given = dict(re.findall(r"\+?trainer\.(\w+)=(\S+)", block))
    module, _, name = given.pop("checkpoint_callback_class").rpartition(".")
    made_by_verl = getattr(importlib.import_module(module), name)
    assert made_by_verl is verl.EvalStop
    trainer.config.trainer.update(given)
    assert made_by_verl(config=trainer.config).run.metric == "val-core/openai/gsm8k/acc/mean@8"
