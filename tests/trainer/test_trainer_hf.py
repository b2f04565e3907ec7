"""The Hugging Face adapter, and the blocks of docs/use/trainers.md.

The stand-in calls the callback in the order that transformers 5.23.0 and TRL 1.16.0 were seen to (a GRPO run
on a CPU, 23 Nov 2026). Numbers in the comments: lines of transformers/trainer.py, unless a file is named.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from controller.metrics.parse import parse
from evalstop_client.client import EvalStopClient
from evalstop_client.prompt_set import digest_of, hash_of
from evalstop_client.run import EXIT_STOPPED, Run

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "trainers.md").read_text()
TRL, NEMO, LIGHTNING, PLAIN, _, _, SCORED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
GOLD = "eval_rewards/gold/mean"
PROMPTS = 16


class Trainer:
    """GRPOTrainer's loop, without what it computes."""

    def __init__(self, out: Path, steps: int = 20, every: int = 5) -> None:
        self.args = SimpleNamespace(output_dir=str(out), eval_strategy="steps")
        self.state = SimpleNamespace(global_step=0, max_steps=steps, is_world_process_zero=True)
        self.control = SimpleNamespace(should_evaluate=False, should_save=False, should_training_stop=False)
        self.every, self.callbacks = every, list[Any]()
        self.saved: list[int] = []
        self.at: dict[int, Any] = {}  # step -> called in the middle of it
        self.while_saving: Any = lambda step: None
        self.dataloader = SimpleNamespace(dataset=range(PROMPTS))

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def call(self, event: str, **more: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(
                self.args, self.state, self.control, eval_dataloader=self.dataloader, **more
            )

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        state, control = self.state, self.control
        if resume_from_checkpoint is not None:
            told = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
            state.global_step = told["global_step"]
        self.call("on_train_begin")  # 1653
        while state.global_step < state.max_steps and not control.should_training_stop:
            control.should_evaluate = control.should_save = False
            self.call("on_step_begin")  # 1894
            state.global_step += 1
            self.at.get(state.global_step, lambda: None)()
            control.should_evaluate = control.should_save = state.global_step % self.every == 0  # DefaultFlow
            self.call("on_step_end")  # 1949
            # 2266; trl/trainer/grpo_trainer.py 3319 adds its own
            logs = {"loss": 0.5, "reward": 2.0, "kl": 0.01, "completions/mean_length": 200.0}
            self.call("on_log", logs=logs)  # 4203
            if control.should_evaluate:  # 2269
                self.evaluate()
            if control.should_save:  # 2276
                self._save_checkpoint()
                self.call("on_save")  # 2278
        self.call("on_train_end")  # 2030

    def evaluate(self) -> None:
        step = self.state.global_step
        metrics = {
            "eval_loss": 0.1,
            "eval_runtime": 2.0,
            "eval_samples_per_second": 8.0,
            "eval_rewards/gold/std": 2.0,
            "eval_rewards/proxy/mean": 3.0 + step,
            "eval_reward": 3.0 + step,
            "eval_kl": None,
            GOLD: 1.0 + step / 10,
        }
        self.call("on_log", logs=dict(metrics))  # 2884
        self.call("on_evaluate", metrics=metrics)  # 2890

    def _save_checkpoint(self) -> None:
        """In place, file by file, `trainer_state.json` last (3355)."""
        step = self.state.global_step
        folder = Path(self.args.output_dir, f"checkpoint-{step}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"w" * 64)
        self.while_saving(step)
        (folder / "optimizer.pt").write_bytes(b"o" * 128)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        self.saved.append(step)


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for transformers, and the handlers afterwards."""
    transformers = types.ModuleType("transformers")
    transformers.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.delitem(sys.modules, "evalstop_client.hf", raising=False)
    for name in ("JOB_COMPLETION_INDEX", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def watched(world: World, metric: str = GOLD, **run: Any) -> tuple[Trainer, Any]:
    trainer = Trainer(world.out)
    made = importlib.import_module("evalstop_client.hf").EvalStop(
        metric, Run(metric, world.client, **{"stop_grace": 0.0, **run})
    )
    trainer.add_callback(made)
    return trainer, made


# -- the page's blocks


def added(block: str) -> list[str]:
    """Return the lines of a block that are no import, comment, or line that the script had before."""
    had = ("step = trainer.train_one_step()",)
    lines = [line.strip() for line in block.splitlines()]
    return [
        line for line in lines if line and not line.startswith(("from ", "import ", "#")) and line not in had
    ]


def test_lines_to_add() -> None:
    assert (len(added(TRL)), TRL.count("import")) == (3, 1)
    assert (len(added(PLAIN)), PLAIN.count("import")) == (8, 1)
    assert (len(added(NEMO)), len(added(LIGHTNING))) == (3, 4)


def test_the_block_for_trl_makes_a_watched_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(world.folder))
    monkeypatch.setattr("evalstop_client.client.DEFAULT_PORT", 0)
    monkeypatch.setattr(EvalStopClient.__init__, "__defaults__", (None, 0, None))
    names: dict[str, Any] = {"trainer": Trainer(world.out)}
    exec(TRL, names)
    client = names["callback"].run.client
    page = parse(client.exposition(), GOLD)
    assert [(p.step, p.score) for p in page.points] == [(5, 1.5), (10, 2.0), (15, 2.5), (20, 3.0)]
    assert world.records().keys() == {f"checkpoint-{step}" for step in (5, 10, 15, 20)}
    again: dict[str, Any] = {"trainer": Trainer(world.out, steps=30)}
    exec(TRL, again)
    assert again["trainer"].saved == [25, 30]


class OwnLoop:
    """What the block for loops assumes of a trainer."""

    total_steps = 200

    def __init__(self, world: World) -> None:
        self.world, self.folder, self.step = world, world.out, 0
        self.asks: dict[int, dict[str, Any]] = {}

    def load(self, path: str | None) -> int:
        self.step = int(Path(path).name.partition("-")[2]) if path else 0
        return self.step

    def train_one_step(self) -> int:
        self.step += 1
        if self.step in self.asks:
            self.world.ask(**self.asks[self.step])
        return self.step

    def save_checkpoint(self) -> Path:
        folder = self.folder / f"step-{self.step}"
        folder.mkdir(parents=True)
        (folder / "weights").write_text("w")
        return folder

    def evaluate(self) -> tuple[float, float, int]:
        return self.step / 100, 0.01, 64


def test_the_block_for_loops_makes_a_watched_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    trainer = OwnLoop(world)
    trainer.asks = {120: {"id": 1, "evaluate": True}, 160: {"id": 2, "stop": True}}
    monkeypatch.setattr("evalstop_client.run.EvalStopClient", lambda speaks=None: world.client)
    monkeypatch.setattr("evalstop_client.run.STOP_GRACE", 0.0)
    monkeypatch.setattr(Run.__init__, "__kwdefaults__", {**Run.__init__.__kwdefaults__, "stop_grace": 0.0})
    with pytest.raises(SystemExit) as left:
        exec(PLAIN, {"trainer": trainer})
    assert left.value.code == EXIT_STOPPED == 143
    assert world.evals("win_rate") == [(50, 0.5), (100, 1.0), (120, 1.2), (150, 1.5)]
    view = world.page("win_rate")
    assert [(p.stderr, p.samples) for p in view.points] == [(0.01, 64)] * 4
    assert (view.request_served, view.checkpoint_step, view.total_steps) == (2, 160, 200)
    assert world.records().keys() == {f"step-{step}" for step in (50, 100, 120, 150, 160)}


# -- what comes by itself


# row 10
def test_errors_samples_proxies_and_guardrails_come_by_themselves(tmp_path: Path) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world)
    trainer.train()
    callback.finish()
    view = parse(world.client.exposition(), GOLD, others=["eval_rewards/proxy/mean"])
    first = view.points[0]
    assert (first.step, first.score, first.stderr, first.samples, first.proxy) == (5, 1.5, 0.5, PROMPTS, 8.0)
    assert (view.proxy, view.kl, view.loss, view.step, view.total_steps) == (2.0, 2.0, 0.5, 20, 20)
    (guard,) = view.others
    assert [(p.step, p.score) for p in guard.points] == [(5, 8.0), (10, 13.0), (15, 18.0), (20, 23.0)]
    assert not {"eval_runtime", "eval_samples_per_second", "eval_kl"} & set(view.metrics_seen)


class Dataset:
    """Columns by name, as of the package ``datasets``."""

    def __init__(self, **columns: list[Any]) -> None:
        self.column_names, self._columns = list(columns), columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, column: str) -> list[Any]:
        return self._columns[column]


def test_prompts_and_sampling_are_in_the_evaluators_version(tmp_path: Path) -> None:
    """The same digest as results of these prompts have on the page. It is known at the first eval."""
    asked = [[{"role": "user", "content": f"question {n}"}] for n in range(8)]
    world = World(tmp_path)
    trainer, _ = watched(world)
    trainer.args.temperature, trainer.args.num_generations = 0.6, 8
    trainer.dataloader.dataset = Dataset(prompt=asked, answer=[0] * 8)
    trainer.at = {step: lambda: seen.append(world.page(GOLD).evaluator) for step in (1, 6)}
    seen: list[str | None] = []
    trainer.train()
    digest = digest_of(map(hash_of, asked))
    assert seen == [None, f"1;k=8;prompts={digest};temperature=0.6"]
    view = world.page(GOLD)
    assert view.evals_labelled
    assert len(view.points) == 4


def test_a_set_of_prompts_that_changes_is_of_one_evaluator(tmp_path: Path) -> None:
    """Each eval may draw others; another order is the same set."""
    versions = []
    for prompts in (["a", "b"], ["b", "a"], ["a", "c"]):
        world = World(tmp_path)
        trainer, _ = watched(world)
        trainer.dataloader.dataset = Dataset(prompt=prompts)
        trainer.at = {8: lambda t=trainer: setattr(t.dataloader, "dataset", Dataset(prompt=["d"]))}
        trainer.train()
        view = world.page(GOLD)
        assert [(p.step, p.prompts) for p in view.points] == [(5, 2), (10, 1), (15, 1), (20, 1)]
        versions.append(view.evaluator)
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize(
    "dataset",
    [Dataset(text=["a"]), SimpleNamespace(column_names=["prompt"]), SimpleNamespace(), Dataset(prompt=[])],
    ids=["no prompts", "a stream", "no columns", "empty"],
)
def test_prompts_that_cannot_be_read_are_left_out(tmp_path: Path, dataset: Any) -> None:
    world = World(tmp_path)
    trainer, _ = watched(world)
    trainer.dataloader.dataset = dataset
    trainer.train()
    assert world.page(GOLD).evaluator == "1"
    assert len(world.evals(GOLD)) == 4


# row 9
def test_a_wrong_name_is_told_at_the_first_eval_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world, "rewards/gold/mean")
    trainer.train()
    callback.finish()
    (said,) = (r.getMessage() for r in caplog.records if "first eval" in r.getMessage())
    assert said.startswith(
        "no metric 'rewards/gold/mean' in the first eval; there are: eval_loss, eval_reward, "
    )
    assert GOLD in said
    seen = world.page("rewards/gold/mean").metrics_seen
    assert GOLD in seen, "MetricsAvailable names it: controller/policy/job/plan.py, MetricMissing"
    assert "rewards/gold/mean" not in seen


def test_an_eval_waits_for_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world)
    trainer.at = {7: lambda: world.ask(id=1, evaluate=True)}
    reported: dict[int, int | None] = {}
    report = world.client.report_eval

    def spy(metric: str, step: int, *rest: Any, **more: Any) -> bool:
        reported.setdefault(step, world.page(metric).checkpoint_step)
        return report(metric, step, *rest, **more)

    monkeypatch.setattr(world.client, "report_eval", spy)
    trainer.train()
    assert reported == {5: 5, 7: 5, 10: 10, 15: 15, 20: 20}, "7 was asked for between two saves"
    callback.finish()


# -- requests and the end


def test_requests_are_carried_out_and_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world)
    served: dict[int, int | None] = {}
    trainer.at = {
        7: lambda: world.ask(id=1, checkpoint=True),
        8: lambda: served.update({8: world.page(GOLD).request_served}),
        13: lambda: world.ask(id=2, stop=True),
    }
    trainer.train()
    assert trainer.saved == [5, 7, 10, 13]
    with pytest.raises(SystemExit) as left:
        callback.finish()
    assert left.value.code == 143
    assert (served, world.page(GOLD).request_served) == ({8: 0}, 2)


def test_an_eval_that_cannot_be_asked_for_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`Trainer.evaluate` raises without an eval dataset."""
    world = World(tmp_path)
    trainer, callback = watched(world)
    trainer.args.eval_strategy = "no"
    trainer.at = {3: lambda: world.ask(id=1, evaluate=True, checkpoint=True)}
    trainer.train()
    assert trainer.saved == [3, 5, 10, 15, 20]
    assert caplog.text.count("eval_strategy is 'no'") == 1
    callback.finish()


def test_finish_stays_until_the_last_eval_was_read(tmp_path: Path) -> None:
    world = World(tmp_path, scrapeIntervalSeconds=30)
    trainer, callback = watched(world)
    trainer.train()
    port = world.client.serve()
    scraped = threading_scrape(port, after=0.3)
    began = time.monotonic()
    callback.finish()
    scraped.join()
    assert 0.25 <= time.monotonic() - began < 25
    assert world.client.all_read


def test_finish_stays_for_two_intervals_at_most_and_for_nobody_else(tmp_path: Path) -> None:
    world = World(tmp_path, scrapeIntervalSeconds=0.3)
    trainer, callback = watched(world)
    trainer.train()
    scraped = threading_scrape(world.client.serve(), after=0.0, agent="Prometheus/3.0")
    began = time.monotonic()
    callback.finish()
    scraped.join()
    assert time.monotonic() - began >= 0.6
    assert not world.client.all_read


def threading_scrape(port: int, after: float, agent: str = "evalstop") -> Any:
    import threading
    import urllib.request

    def scrape() -> None:
        time.sleep(after)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"User-Agent": agent})
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    return thread


# row 3
def test_sigterm_in_a_save_leaves_it_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world)
    trainer.while_saving = lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 10 else None
    trainer.train()
    assert trainer.saved == [5, 10, 11], "the save is finished, the step too, and that is saved"
    with pytest.raises(SystemExit) as left:
        callback.finish()
    assert left.value.code == 143
    assert callback.resume_path(world.out) == str(world.out / "checkpoint-11")


def test_sigterm_after_the_last_step_changes_nothing(tmp_path: Path) -> None:
    """The run is complete: with 143 its Job would start it again."""
    world = World(tmp_path)
    trainer, callback = watched(world)
    trainer.while_saving = lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 20 else None
    trainer.train()
    callback.finish()
    assert trainer.saved[-1] == 20


def test_a_torn_newest_folder_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    torn = world.out / "checkpoint-3"
    torn.mkdir(parents=True)
    (torn / "model.safetensors").write_bytes(b"w")
    _, callback = watched(world)
    assert callback.resume_path(world.out) is None
    assert "checkpoint-3 has no save record" in caplog.text
    trainer, callback = watched(world)
    trainer.train()
    (world.out / "checkpoint-20" / "optimizer.pt").unlink()
    assert callback.resume_path(world.out) == str(world.out / "checkpoint-15")


def test_a_step_that_is_saved_again_in_place_loses_its_record_before(tmp_path: Path) -> None:
    """Half of the new files beside half of the old ones have the very same sizes."""
    world = World(tmp_path)
    trainer, callback = watched(world)
    trainer.train()
    callback.finish()
    again = World(tmp_path)
    trainer, callback = watched(again)

    def crash(step: int) -> None:
        if step == 10:
            raise KeyboardInterrupt

    trainer.while_saving = crash
    with pytest.raises(KeyboardInterrupt):
        trainer.train(resume_from_checkpoint=str(world.out / "checkpoint-5"))
    assert again.records().keys() == {"checkpoint-5", "checkpoint-15", "checkpoint-20"}


# -- an adapter never ends a run


@pytest.mark.parametrize(
    "method",
    ["poll", "set_progress", "report_eval", "checkpoint_saved", "serve", "resumed", "served", "close"],
)
def test_whatever_fails_is_logged_once_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(f"{method} is broken")

    monkeypatch.setattr(world.client, method, broken)
    trainer.train(resume_from_checkpoint=callback.resume_path(world.out))
    callback.finish()
    assert trainer.saved == [5, 10, 15, 20]
    assert 1 <= caplog.text.count(f"{method} is broken") <= 2, "once for each thing that was being done"


def test_a_port_that_is_taken_is_told_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    with EvalStopClient(port=0, host="127.0.0.1") as other:
        world.client = EvalStopClient(world.folder, port=other.serve(), host="127.0.0.1")
        trainer, callback = watched(world)
        trainer.train()
        callback.finish()
    assert "answering scrapes failed, the training goes on: OSError" in caplog.text
    assert trainer.saved == [5, 10, 15, 20]


def test_logs_of_another_version_end_no_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    trainer, callback = watched(world)
    callback.on_log(trainer.args, trainer.state, trainer.control, logs={"loss": "n/a", "reward": object()})
    callback.on_log(trainer.args, trainer.state, trainer.control)
    callback.on_evaluate(trainer.args, trainer.state, trainer.control, metrics=None)
    callback.on_evaluate(
        trainer.args, trainer.state, trainer.control, metrics={"x\n": 1.0, "y" * 300: 2.0, GOLD: 1}
    )
    callback.run.flush()
    assert world.evals(GOLD) == [(0, 1.0)]
