"""The NeMo-RL adapter against a stand-in that calls it as nemo_rl/algorithms/grpo.py does (commit 002cdc27).

The checkpoint's part is nemo_rl/utils/checkpoint.py at commit 01e9028b; each call is named by its line there.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from evalstop_client import nemo_rl
from evalstop_client.run import Run

METRIC = "validation/accuracy"
PAGE = Path(__file__).parents[2] / "docs" / "use" / "trainers.md"


def classes() -> tuple[Any, Any, Any]:
    class Logger:
        def log_metrics(
            self, metrics: Any, step: int, prefix: Any = "", step_metric: Any = None, **_: Any
        ) -> None:
            pass

    class CheckpointManager:
        def __init__(self, config: Any) -> None:
            self.checkpoint_dir, self.save_period = Path(config.checkpoint_dir), config.save_period
            self.thread = threading.Thread()

        def _rename_checkpoint(self, checkpoint_path: Any) -> None:
            path = Path(checkpoint_path)
            os.rename(path, path.parent / f"step_{path.name.split('_')[2]}")

        def begin_finalization(self, checkpoint_path: Any, wait_fn: Any = None) -> None:
            self.thread = threading.Thread(
                target=self._rename_checkpoint, args=(checkpoint_path,), daemon=True
            )
            self.thread.start()

        def shutdown(self) -> None:
            if self.thread.ident is not None:
                self.thread.join()

        def get_latest_checkpoint_path(self) -> str | None:
            found = sorted(self.checkpoint_dir.glob("step_*"), key=lambda p: int(p.name.split("_")[1]))
            return str(found[-1]) if found else None

    class TimeoutChecker:
        def check_save(self, extra_s: float = 0.0) -> bool:
            return False

    return Logger, CheckpointManager, TimeoutChecker


class Loop:
    """`grpo_train`, from the validation of a step to its end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = Run(METRIC, world.client, stop_grace=0.0)
        found = classes()
        nemo_rl.follow(nemo_rl.EvalStop(self.run), *found)
        self.config = SimpleNamespace(checkpoint_dir=str(world.out), save_period=10)
        self.logger, self.timeout = found[0](), found[2]()
        self.checkpointer = found[1](self.config)
        self.saved: list[int] = []
        self.asks: dict[int, Any] = {}

    def train(self, steps: int = 20) -> int:
        """Return how many steps were done."""
        total_steps = 0
        latest = self.checkpointer.get_latest_checkpoint_path()  # setup()
        if latest is not None:
            total_steps = int(Path(latest).name.split("_")[1])
        while total_steps < steps:
            step = total_steps + 1
            self.asks.get(step, lambda: None)()
            if step % 5 == 0:
                self.logger.log_metrics(
                    {"accuracy": step / 100, "avg_length": 9.0}, step, prefix="validation"
                )
            by_step = step == steps or step % self.config.save_period == 0  # should_save_by_step
            by_timeout = self.timeout.check_save()  # should_save_by_timeout
            if by_step or by_timeout:
                self.checkpointer.shutdown()  # finalize_pending()
                draft = self.world.out / f"tmp_step_{step}"  # init_tmp_checkpoint()
                (draft / "policy").mkdir(parents=True)
                (draft / "policy" / "weights").write_bytes(b"w" * 5)
                self.saved.append(step)
                self.checkpointer.begin_finalization(draft)
            metrics = {"loss": 0.5, "reward": 0.25, "histogram/x": [1, 2]}
            self.logger.log_metrics(metrics, step, prefix="train")
            self.logger.log_metrics({"total_step_time": 1.0}, step, prefix="timing/train", step_finished=True)
            total_steps += 1
            if by_timeout:
                self.checkpointer.shutdown()
                return total_steps
        self.checkpointer.shutdown()
        return total_steps


@pytest.fixture
def loop(tmp_path: Path) -> Any:
    handler = signal.getsignal(signal.SIGTERM)
    yield Loop(World(tmp_path))
    signal.signal(signal.SIGTERM, handler)


def test_evals_and_saves_are_published(loop: Loop) -> None:
    assert loop.train() == 20
    loop.run.finish()
    assert loop.world.evals(METRIC) == [(5, 0.05), (10, 0.1), (15, 0.15), (20, 0.2)]
    assert loop.world.records().keys() == {"step_10", "step_20"}
    view = loop.world.page(METRIC)
    assert (view.proxy, view.loss, view.step, view.checkpoint_step) == (0.25, 0.5, 20, 20)
    assert "validation/avg_length" in view.metrics_seen


def test_requests_are_carried_out_with_the_next_step(loop: Loop) -> None:
    loop.asks = {
        6: lambda: loop.world.ask(id=1, checkpoint=True),
        13: lambda: loop.world.ask(id=2, stop=True),
    }
    assert loop.train() == 14
    assert loop.saved == [7, 10, 14]
    with pytest.raises(SystemExit) as left:
        loop.run.finish()
    assert left.value.code == 143
    assert loop.world.page(METRIC).request_served == 2
    assert loop.world.records().keys() == {"step_7", "step_10", "step_14"}


def test_sigterm_ends_it_with_a_checkpoint(loop: Loop) -> None:
    loop.asks = {4: lambda: os.kill(os.getpid(), signal.SIGTERM)}
    assert loop.train() == 5
    assert loop.saved == [5]
    with pytest.raises(SystemExit):
        loop.run.finish()


def test_it_resumes_from_the_newest_whole_one(loop: Loop, tmp_path: Path) -> None:
    loop.train()
    (loop.world.out / "step_20" / "policy" / "weights").write_bytes(b"w")
    (loop.world.out / "step_99").mkdir()
    again = Loop(World(tmp_path))
    assert again.checkpointer.get_latest_checkpoint_path() == str(loop.world.out / "step_10")
    other = Loop(World(tmp_path / "out"))
    (other.world.out / "step_3").mkdir(parents=True)
    assert other.checkpointer.get_latest_checkpoint_path() == str(other.world.out / "step_3"), (
        "NeMo-RL's own way"
    )


def test_whatever_fails_the_training_goes_on(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.world.client.report_eval = None  # type: ignore[assignment, method-assign]
    loop.world.client.checkpoint_saved = None  # type: ignore[assignment, method-assign]
    assert loop.train() == 20
    assert caplog.text.count("recording a checkpoint failed") == 1
    assert nemo_rl.watch(METRIC, loop.run) is loop.run
    assert "following NeMo-RL failed, the training goes on: ModuleNotFoundError" in caplog.text


def test_the_block_of_the_page_makes_a_watched_run(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(from evalstop_client.nemo_rl .*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setattr(nemo_rl, "watch", lambda metric: loop.run if metric == METRIC else None)
    exec(block, {"grpo_train": loop.train, "setup_of_the_script": ()})
    assert [step for step, _ in loop.world.evals(METRIC)] == [5, 10, 15, 20]
