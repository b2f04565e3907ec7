"""The Lightning adapter against a stand-in that calls it as lightning 2.6.6 does.

Numbers in the comments: lightning/pytorch/loops/training_epoch_loop.py, unless a file is named.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from evalstop_client.prompt_set import digest_of, hash_of
from evalstop_client.run import Run

METRIC = "val_reward"
AB = digest_of(map(hash_of, ("a", "b")))
PAGE = Path(__file__).parents[2] / "docs" / "use" / "trainers.md"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lightning.pytorch.callbacks"].Callback = object  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "evalstop_client.lightning", raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    yield World(tmp_path)
    signal.signal(signal.SIGTERM, handler)


def callback(world: World, **more: Any) -> Any:
    made = importlib.import_module("evalstop_client.lightning").EvalStop
    return made(METRIC, world.out, run=Run(METRIC, world.client, stop_grace=0.0), **more)


class Trainer:
    """`Trainer.fit`: a check of the validation, then steps, with a validation each fifth."""

    def __init__(self, world: World, watched: Any) -> None:
        self.world, self.callback = world, watched
        self.max_steps, self.global_step, self.should_stop, self.sanity_checking = 20, 0, False, False
        self.callback_metrics: dict[str, float] = {}
        self.asks: dict[int, dict[str, Any]] = {}
        self.callbacks: list[Any] = [watched]
        self.val_dataloaders: Any = None
        self.limit_val_batches: float = 1.0

    def save_checkpoint(self, filepath: Any) -> None:  # pytorch/trainer/trainer.py 1439
        Path(filepath).write_text(str(self.global_step))

    def validate(self) -> None:
        self.callback_metrics = {METRIC: self.global_step / 10, f"{METRIC}_stderr": 0.25, "val_loss": 1.0}
        self.callback.on_validation_end(self, None)  # pytorch/loops/evaluation_loop.py 334

    def fit(self, ckpt_path: str | None = None) -> None:
        self.global_step = int(Path(ckpt_path).read_text()) if ckpt_path else 0
        self.sanity_checking = True
        self.validate()
        self.sanity_checking = False
        self.callback.on_train_start(self, None)  # pytorch/loops/fit_loop.py 431
        while self.global_step < self.max_steps and not self.should_stop:
            self.global_step += 1
            if self.global_step in self.asks:
                self.world.ask(**self.asks[self.global_step])
            self.callback_metrics = {"train_loss": 0.5}
            self.callback.on_train_batch_end(self, None, None, None, self.global_step)  # 375
            if self.global_step % 5 == 0:
                self.validate()
        self.callback.on_train_end(self, None)  # pytorch/loops/fit_loop.py 510


def test_evals_and_saves_are_published_and_the_old_go(world: World) -> None:
    watched = callback(world, keep=3)
    Trainer(world, watched).fit(watched.resume_path())
    watched.finish()
    view = world.page(METRIC)
    assert [(p.step, p.score, p.stderr) for p in view.points] == [
        (5, 0.5, 0.25), (10, 1.0, 0.25), (15, 1.5, 0.25), (20, 2.0, 0.25),
    ]  # fmt: skip
    assert (view.loss, view.step, view.total_steps, view.checkpoint_step) == (0.5, 20, 20, 20)
    assert {p.name for p in world.out.glob("step-*")} == {"step-10", "step-15", "step-20"}


class _Dataset:
    column_names = ("prompt", "answer")

    def __init__(self, *prompts: str) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, column: str) -> tuple[str, ...]:
        assert column == "prompt"
        return self._prompts


@pytest.mark.parametrize(
    ("loaders", "limit", "version"),
    [
        (SimpleNamespace(dataset=_Dataset("a", "b")), 1.0, f"1;prompts={AB}"),
        (
            [SimpleNamespace(dataset=_Dataset("b")), SimpleNamespace(dataset=_Dataset("a"))],
            1.0,
            f"1;prompts={AB}",
        ),
        ({"x": SimpleNamespace(dataset=_Dataset("a", "b"))}, 4, f"1;batches=4;prompts={AB}"),
        (SimpleNamespace(dataset=[1, 2]), 1.0, "1"),
        (None, 1.0, "1"),
    ],
    ids=["one", "several", "by name, and a part of it", "rows of no columns", "none"],
)
def test_the_prompts_are_in_the_evaluators_version(
    world: World, loaders: Any, limit: float, version: str
) -> None:
    watched = callback(world)
    trainer = Trainer(world, watched)
    trainer.val_dataloaders, trainer.limit_val_batches = loaders, limit
    trainer.fit()
    view = world.page(METRIC)
    assert view.evaluator == version
    assert [p.step for p in view.points] == [5, 10, 15, 20]


def test_requests_are_carried_out_and_it_resumes(world: World, tmp_path: Path) -> None:
    watched = callback(world)
    trainer = Trainer(world, watched)
    trainer.asks = {7: {"id": 1, "checkpoint": True}, 12: {"id": 2, "stop": True}}
    trainer.fit(watched.resume_path())
    assert trainer.global_step == 12
    with pytest.raises(SystemExit) as left:
        watched.finish()
    assert left.value.code == 143
    assert world.records().keys() == {f"step-{step}" for step in (5, 7, 10, 12)}
    assert world.page(METRIC).request_served == 2
    again = callback(World(tmp_path))
    assert again.resume_path() == str(world.out / "step-12" / "lightning.ckpt")
    (world.out / "step-12" / "lightning.ckpt").write_text("")
    assert again.resume_path() == str(world.out / "step-10" / "lightning.ckpt")


def test_whatever_fails_the_training_goes_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    watched = callback(world)
    world.client.poll = world.client.checkpoint_saved = None  # type: ignore[assignment, method-assign]
    trainer = Trainer(world, watched)
    trainer.fit()
    assert trainer.global_step == 20
    assert caplog.text.count("recording a checkpoint failed") == 1


def test_the_block_of_the_page_makes_a_watched_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(from evalstop_client.lightning .*?)```", PAGE.read_text(), re.DOTALL)
    module = importlib.import_module("evalstop_client.lightning")
    made = callback(world)
    monkeypatch.setattr(module, "EvalStop", lambda metric, folder: made if metric == METRIC else None)
    trainer = Trainer(world, made)
    trainer.callbacks = []
    exec(block.replace("trainer.fit(model, ", "trainer.fit("), {"trainer": trainer})
    assert trainer.callbacks == [made]
    assert [step for step, _ in world.evals(METRIC)] == [5, 10, 15, 20]
