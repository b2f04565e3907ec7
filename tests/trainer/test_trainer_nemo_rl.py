"""The NeMo-RL adapter against a stand-in that calls it as the source does, line by line.

Repository NVIDIA-NeMo/RL: nemo_rl/algorithms/grpo.py at commit 002cdc27b8019eafc470f0aab22d4a7206d0de81,
nemo_rl/utils/checkpoint.py at 01e9028b7fd77ef5aca3e970cac250dea0bb6f2c, nemo_rl/utils/timer.py at
05c502c0cc044ca6f6af30578b9055dfd277bf01. Numbers in the comments: lines of grpo.py, unless another file is
named.
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
from evalstop_client.nemo_rl_validation import scores_of, settings_of
from evalstop_client.prompts import standard_error
from evalstop_client.run import Run

METRIC = "validation/accuracy"
PAGE = Path(__file__).parents[2] / "docs" / "use" / "trainers.md"


def classes() -> tuple[Any, Any, Any]:
    class Logger:
        def log_metrics(
            self,
            metrics: Any,
            step: int,
            prefix: Any = "",
            step_metric: Any = None,
            step_finished: bool = False,
        ) -> None:
            pass

        def log_hyperparams(self, params: Any) -> None:
            pass

        def log_batched_dict_as_jsonl(self, to_log: Any, filename: str) -> None:
            self.written = [*getattr(self, "written", []), filename]

    class CheckpointManager:
        """checkpoint.py 208."""

        def __init__(self, config: Any) -> None:  # checkpoint.py 229; save_period 255
            self.checkpoint_dir, self.save_period = Path(config.checkpoint_dir), config.save_period
            self._finalize_thread: threading.Thread | None = None

        def _rename_checkpoint(self, checkpoint_path: Any) -> None:  # checkpoint.py 374-391
            path = Path(checkpoint_path)
            os.rename(path, path.parent / f"step_{path.name.split('_')[2]}")

        def begin_finalization(self, checkpoint_path: Any, wait_fn: Any = None) -> None:  # checkpoint.py 406
            self.finalize_pending()  # checkpoint.py 425

            def _finalize() -> None:  # checkpoint.py 429
                wait_fn()  # checkpoint.py 432
                self._rename_checkpoint(checkpoint_path)  # checkpoint.py 433

            self._finalize_thread = threading.Thread(target=_finalize, daemon=True)  # checkpoint.py 446
            self._finalize_thread.start()  # checkpoint.py 447

        def finalize_pending(self) -> None:  # checkpoint.py 449
            if self._finalize_thread is not None:  # checkpoint.py 455
                self._finalize_thread.join()
                self._finalize_thread = None

        def shutdown(self) -> None:  # checkpoint.py 463
            self.finalize_pending()

        def get_latest_checkpoint_path(self) -> str | None:  # checkpoint.py 637
            found = sorted(self.checkpoint_dir.glob("step_*"), key=lambda p: int(p.name.split("_")[1]))
            return str(found[-1]) if found else None

    class TimeoutChecker:
        """timer.py 437: without ``checkpoint_must_save_by`` no time is ever up."""

        def check_save(self, extra_s: float = 0.0) -> bool:  # timer.py 484
            return False

    return Logger, CheckpointManager, TimeoutChecker


# `MasterConfig.model_dump()`, what of it says how is validated.
MASTER: dict[str, Any] = {
    "grpo": {"val_num_generations_per_prompt": 2, "max_val_samples": 256},
    "policy": {"generation": {"temperature": 1.0, "val_temperature": 0.6, "max_new_tokens": 512}},
    "data": {"train": {"dataset_name": "OpenMathInstruct-2"}, "validation": {"dataset_name": "AIME2024"}},
}
SETTINGS = "k=2;most=256;prompts=AIME2024;temperature=0.6;tokens=512"


def messages(prompt: str, step: int) -> list[dict[str, str]]:
    """As `get_keys_from_message_log` leaves them."""
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": f"at step {step}"}]


class Loop:
    """`setup` (452) and `grpo_train` (2751), without what they compute."""

    EPOCH = 10  # steps

    def __init__(self, world: World, **config: Any) -> None:
        self.world = world
        self.run = Run(METRIC, world.client, stop_grace=0.0)
        found = classes()
        nemo_rl.follow(nemo_rl.EvalStop(self.run), *found)
        self.config = SimpleNamespace(checkpoint_dir=str(world.out), save_period=10)
        self.at_start = config.get("val_at_start", False)
        self.batches = config.get("batches", 1)  # that are generated for a step (dynamic sampling)
        self.logger, self.timeout = found[0](), found[2]()  # 548; 2768
        self.master = config.get("master", MASTER)
        self.logger.log_hyperparams(self.master)  # 549: master_config.model_dump()
        self.checkpointer = found[1](self.config)  # 554
        self.latest = self.checkpointer.get_latest_checkpoint_path()  # 555
        self.logger.log_metrics({"total_setup_time_s": 9.0}, step=0, prefix="timing/setup")  # 1642
        self.saved: list[int] = []
        self.prompts = [f"question {n % 49}" for n in range(50)]  # one comes twice
        self.kl = config.get("kl", 0.01)
        self.asks: dict[int, Any] = {}

    def train(self, steps: int = 20) -> int:
        """Return how many steps were done."""
        log, total_steps = self.logger.log_metrics, 0
        if self.latest is not None:  # 556, 557, 2789: what its training_info.json says
            total_steps = int(Path(self.latest).name.split("_")[1])
        current_step = total_steps % self.EPOCH  # 2788
        if self.at_start and current_step == 0:  # 2818
            log(self.validate(total_steps), current_step, prefix="validation")  # 2843
            log({"total_validation_time": 1.0}, current_step, prefix="timing/validation")  # 2844
        while total_steps < steps:  # 2874, 2883
            step = total_steps + 1
            self.asks.get(step, lambda: None)()
            for _ in range(self.batches):  # 2998; 3173: "continue" until the batch is complete
                log({"mean_gen_tokens_per_sample": 9.0, "reward": 9.0}, step, prefix="train")  # 3091
            if step % 5 == 0:  # 3441
                log({"total_validation_time": 1.0}, step, prefix="timing/validation")  # 3467
                log(self.validate(step), step, prefix="validation")  # 3470
                log({"validation_bytes": 8}, step, prefix="validation")  # 3476
            by_step = step == steps or step % self.config.save_period == 0  # 3576-3581
            by_timeout = self.timeout.check_save()  # 3588
            if by_step or by_timeout:  # 3592
                self.save(step)
            metrics = {"loss": 0.5, "reward": 0.25, "histogram/x": [1, 2], "generation_logger_metrics": {}}
            metrics |= {"kl_penalty": self.kl, "mean_gen_tokens_per_sample": 200.0}  # 3535, 3564
            log({"payload_bytes": 8}, step, prefix="")  # 3822
            log({"sync_s": 1.0}, step, prefix="refit")  # 3825
            log(metrics, step, prefix="train")  # 3826
            log({"tokens_per_sec": 1.0}, step, prefix="performance")  # 3827
            log({"total_step_time": 1.0}, step, prefix="timing/train", step_finished=True)  # 3831
            current_step, total_steps = (current_step + 1) % self.EPOCH, step  # 3855, 3856, 3876
            if by_timeout:  # 3861
                self.checkpointer.shutdown()  # 3862
                return total_steps  # 3865
        self.checkpointer.shutdown()  # 3867
        return total_steps  # 3873

    def validate(self, step: int) -> dict[str, float]:
        """`validate`: each prompt ``val_num_generations_per_prompt`` times, one answer after the other."""
        answers = self.master.get("grpo", {}).get("val_num_generations_per_prompt", 1)
        prompts = [prompt for prompt in self.prompts for _ in range(answers)]
        rewards = [float(n < step * len(prompts) / 100) for n, _ in enumerate(prompts)]
        rows = {"content": [messages(prompt, step) for prompt in prompts], "rewards": rewards}
        self.logger.log_batched_dict_as_jsonl(rows, f"val_data_step{step}.jsonl")
        return {"accuracy": sum(rewards) / len(rewards), "avg_length": 9.0}

    def save(self, step: int) -> None:
        """3638-3689."""
        self.checkpointer.finalize_pending()  # 3641
        draft = self.world.out / f"tmp_step_{step}"  # 3647; checkpoint.py 346
        (draft / "policy").mkdir(parents=True)
        (draft / "policy" / "weights").write_bytes(b"w" * 5)  # 3650
        self.saved.append(step)
        self.checkpointer.begin_finalization(draft, wait_fn=lambda: None)  # 3686


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
    assert view.kl == pytest.approx(2.0), "per response"
    assert "validation/avg_length" in view.metrics_seen


def test_evals_are_compared_prompt_by_prompt(loop: Loop) -> None:
    loop.train()
    loop.run.finish()
    points = loop.world.page(METRIC).points
    assert [(p.prompts, p.samples) for p in points] == [(50, 100)] * 4
    assert [[pair.step for pair in p.prompt_pairs] for p in points] == [[], [5], [10], [15]]
    assert points[0].stderr == pytest.approx(standard_error([1, 1, 0.5] + [0] * 47))
    assert loop.world.page(METRIC).evaluator == f"1;{SETTINGS}"
    assert loop.logger.written == [f"val_data_step{step}.jsonl" for step in (5, 10, 15, 20)]


@pytest.mark.parametrize(
    ("data", "prompts"),
    [
        (
            {"validation": [{"data_path": "/a.jsonl"}, {"dataset_name": "b", "split": "test"}]},
            "/a.jsonl+b:test",
        ),
        (
            {"default": {"dataset_name": "c"}, "train": {"split_validation_size": 0.05, "seed": 1}},
            "c:0.05:1",
        ),
        ({"validation": {}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_prompts_have_the_names_of_their_data_sets(data: Any, prompts: str | None) -> None:
    assert settings_of({"data": data})["prompts"] == prompts


def test_a_temperature_without_one_of_the_validation_is_the_trainings() -> None:
    settings = settings_of({"policy": {"generation": {"temperature": 0.9, "val_temperature": None}}})
    assert (settings["temperature"], settings["k"]) == (0.9, None)


ROWS = {"content": [messages(prompt, 5) for prompt in "aabb"], "rewards": [1.0, 0.0, -1.0, 0.0]}


@pytest.mark.parametrize(
    ("metric", "rows", "answers", "scores"),
    [
        (METRIC, ROWS, 2, [[1.0, 0.0], [-1.0, 0.0]]),
        ("validation/pass_k", ROWS, 2, [[1.0], [0.0]]),
        ("validation/avg_length", ROWS, 2, []),
        (METRIC, ROWS, 4, []),  # answers to two prompts
        (METRIC, ROWS, 3, []),
        (METRIC, ROWS, 0, []),  # the configuration was not seen
        (METRIC, {**ROWS, "rewards": [1.0]}, 1, []),
        (METRIC, {**ROWS, "content": [[{"role": "user"}]] * 4}, 2, []),  # NeMo-Gym: tokens alone
    ],
)
def test_results_are_taken_where_each_is_of_a_known_prompt(
    metric: str, rows: Any, answers: int, scores: list[list[float]]
) -> None:
    assert list(scores_of(metric, rows, answers).values()) == scores


def test_other_files_are_no_validation(loop: Loop) -> None:
    loop.logger.log_batched_dict_as_jsonl(ROWS, "train_data_step5.jsonl")
    loop.prompts = []
    loop.logger.log_metrics({"accuracy": 0.0}, 5, prefix="validation")
    loop.run.flush()
    assert loop.world.page(METRIC).points[0].prompts is None


@pytest.mark.parametrize("batches", [1, 3])
def test_requests_are_carried_out_with_the_next_step(loop: Loop, batches: int) -> None:
    """What a step generates is logged as ``train`` before its save, too: it took the request back."""
    loop.batches = batches
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


def test_a_kl_that_is_not_computed_is_none(tmp_path: Path) -> None:
    """Without a weight for it, NeMo-RL logs 0."""
    loop = Loop(World(tmp_path), kl=0)
    loop.train(5)
    assert loop.world.page(METRIC).kl is None


def test_what_is_generated_for_a_step_does_not_end_it(loop: Loop) -> None:
    """It is logged under ``train`` as well, with the step that has only begun."""
    seen: dict[int, int | None] = {}
    save = loop.save

    def spy(step: int) -> None:
        seen[step] = loop.world.page(METRIC).step
        save(step)

    loop.save = spy  # type: ignore[method-assign]
    loop.train()
    assert seen == {10: 9, 20: 19}, "step 10 is not done when it is saved"
    assert loop.world.page(METRIC).proxy == 0.25, "of the whole step"


def test_a_validation_before_the_first_step_is_of_the_checkpoint_that_was_loaded(tmp_path: Path) -> None:
    """At the begin of an epoch it is logged with step 0, whatever was trained before."""
    first = Loop(World(tmp_path), val_at_start=True)
    first.train(10)
    assert first.world.evals(METRIC)[0] == (0, 0.0)
    again = Loop(World(tmp_path), val_at_start=True)
    assert again.train(15) == 15
    assert again.world.evals(METRIC) == [(10, 0.1), (15, 0.15)]
    assert again.world.page(METRIC).resumed_step == 10


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
    assert again.latest == str(loop.world.out / "step_10")
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
