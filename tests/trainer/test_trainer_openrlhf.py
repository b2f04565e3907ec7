"""The OpenRLHF adapter against a stand-in that calls it as OpenRLHF 0.11.2 does.

Numbers in the comments: openrlhf/trainer/ppo_trainer.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from evalstop_client import openrlhf
from evalstop_client.run import Run

METRIC = "eval_gsm8k_pass1"
SOURCE = """
class BasePPOTrainer:
    from_source = True
    save_logs_and_checkpoints = save_best_checkpoint = print
"""


def trainer_class() -> Any:
    class BasePPOTrainer:
        """The two methods, without Ray."""

        def save_best_checkpoint(
            self, eval_metrics: Any, global_step: int, client_states: Any = None
        ) -> None:  # 337
            current = eval_metrics[METRIC]
            if current > self.best_eval_metric_value:  # 354
                self.best_eval_metric_value = current
                self.save(f"best_global_step{global_step}")

        def save_logs_and_checkpoints(
            self, global_step: int, logs_dict: Any = None, states: Any = None
        ) -> None:  # 384
            self.logged.append(global_step)
            if global_step % self.args.ckpt.save_steps == 0:  # 394
                self.save(f"global_step{global_step}")

        def save(self, tag: str) -> None:
            for role in ("_actor", "_critic"):
                folder = Path(self.args.ckpt.path) / role / tag
                folder.mkdir(parents=True)
                (folder / "mp_rank_00_model_states.pt").write_bytes(b"x" * 9)
            self.saved.append(tag)

    return BasePPOTrainer


class Trainer:
    """`PPOTrainer.fit`."""

    def __init__(self, world: World, base: Any, save_steps: float = 10, eval_steps: float = 5) -> None:
        self.inner = base()
        self.inner.args = SimpleNamespace(
            ckpt=SimpleNamespace(path=str(world.out), save_steps=save_steps),
            eval=SimpleNamespace(steps=eval_steps),
        )
        self.inner.saved, self.inner.logged, self.inner.max_steps = [], [], 20
        self.inner.best_eval_metric_value = float("-inf")
        self.drawn = 0
        self.inner.samples_generator = SimpleNamespace(generate_samples=self.generate)
        self.asks: dict[int, dict[str, Any]] = {}
        self.world = world

    def generate(self, **_: Any) -> tuple[list[int], float, int, bool]:
        self.drawn += 1
        return [1], 1.0, 8, self.drawn == 20

    def fit(self) -> None:
        step = 0
        for _episode in range(2):  # 520
            while True:
                samples, _, _, exhausted = self.inner.samples_generator.generate_samples()  # 530
                if not samples:  # 535
                    if exhausted:
                        break
                    continue
                step += 1
                if step in self.asks:
                    self.world.ask(**self.asks[step])
                logs = {
                    "policy_loss": 0.25,
                    "kl": 0.01,
                    "rollout/reward_mean": 0.5,
                    "generated_samples": ["x", 1],
                }
                logs["rollout/response_length_mean"] = 300.0
                self.inner.save_logs_and_checkpoints(step, logs, {})  # 560
                if step % self.inner.args.eval.steps == 0:  # 563
                    scores = {METRIC: 0.5 - abs(step - 10) / 100, "eval_num_samples": 64.0}
                    self.inner.save_best_checkpoint(scores, step, {})  # 568
                if exhausted:  # 572
                    return


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return made(World(tmp_path))


def made(world: World, **settings: Any) -> Trainer:
    base = trainer_class()
    openrlhf.watch(base, openrlhf.EvalStop(Run(METRIC, world.client, signals=False, stop_grace=0.0)))
    return Trainer(world, base, **settings)


def test_evals_bests_and_regular_saves_are_recorded(trainer: Trainer) -> None:
    trainer.fit()
    world = trainer.world
    assert world.evals(METRIC) == [(5, 0.45), (10, 0.5), (15, 0.45), (20, 0.4)]
    tags = {"best_global_step5", "global_step10", "best_global_step10", "global_step20"}
    assert world.records().keys() >= tags - {"global_step10"}
    one = world.records()["best_global_step10"]
    assert one["files"].keys() == {
        f"{r}/best_global_step10/mp_rank_00_model_states.pt" for r in openrlhf.ROLES
    }
    view = world.page(METRIC)
    assert (view.proxy, view.kl, view.loss, view.step, view.total_steps) == (
        0.5,
        pytest.approx(3.0),
        0.25,
        20,
        20,
    )
    assert view.points[0].samples == 64


def test_the_bests_alone_are_recorded_with_default_settings(tmp_path: Path) -> None:
    """save_steps -1 is infinity: then these are its only checkpoints."""
    trainer = made(World(tmp_path), save_steps=float("inf"))
    trainer.fit()
    assert (
        trainer.inner.saved
        == ["best_global_step5", "best_global_step10"]
        == sorted(trainer.world.records(), key=len)
    )


def test_requests_are_carried_out_in_their_step(trainer: Trainer) -> None:
    trainer.asks = {
        3: {"id": 1, "checkpoint": True},
        7: {"id": 2, "evaluate": True},
        12: {"id": 3, "stop": True},
    }
    trainer.fit()
    assert [tag for tag in trainer.inner.saved if not tag.startswith("best")] == [
        *("global_step3", "global_step10", "global_step12"),
    ]
    assert [step for step, _ in trainer.world.evals(METRIC)] == [5, 7, 10]
    assert trainer.inner.logged[-1] == 12
    assert trainer.world.page(METRIC).request_served == 3
    assert trainer.inner.args.eval.steps == 5


def test_whatever_fails_the_training_goes_on(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    del trainer.inner.args.eval
    trainer.inner.args.eval = SimpleNamespace(steps=5)
    trainer.world.client.set_progress = None  # type: ignore[assignment, method-assign]
    trainer.fit()
    assert trainer.inner.logged == list(range(1, 21))
    assert caplog.text.count("reading the operator's requests failed") == 1


def test_the_trainer_is_followed_where_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "openrlhf" / "trainer"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "ppo_trainer.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(openrlhf.METRIC, METRIC)
    before = list(sys.meta_path)
    openrlhf.install()
    import openrlhf.trainer.ppo_trainer as found  # type: ignore[import-not-found]

    assert found.BasePPOTrainer.from_source
    assert found.BasePPOTrainer.save_best_checkpoint is not print
    assert sys.meta_path == before
    for name in [name for name in sys.modules if name.split(".")[0] == "openrlhf"]:
        monkeypatch.delitem(sys.modules, name)
