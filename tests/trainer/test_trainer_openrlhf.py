"""The OpenRLHF adapter against a stand-in that calls it as OpenRLHF 0.11.2 does.

Numbers in the comments: openrlhf/trainer/ppo_trainer.py, unless another file is named.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from evalstop_client import openrlhf
from evalstop_client.run import Run, StoppedRun

PAGE = Path(__file__).parents[2] / "docs" / "use" / "trainers.md"
METRIC = "eval_gsm8k_pass1"
ANSWERS = 2
SOURCE = """
def prepare_datasets(strategy, tokenizer): pass
def compute_eval_metrics(dataloader, samples, answers): pass
class BasePPOTrainer:
    from_source = True
    init_checkpoint_states = save_logs_and_checkpoints = save_best_checkpoint = print
"""
PROMPTS = ("a", "b", "a", "c")  # of the eval: one comes twice
DATALOADER = [(["gsm8k"], [prompt], ["?"], [None]) for prompt in PROMPTS]


def prepare_datasets(strategy: Any, tokenizer: Any) -> Any:
    """31-79, called by the trainer as it is made (478): before the models are loaded (cli/train_ppo_ray.py
    151-171)."""
    return None


def compute_eval_metrics(dataloader: Any, samples: Any, answers: int) -> dict[str, Any]:  # 82
    scores = [sum(one.rewards for one in samples[i : i + answers]) for i in range(0, len(samples), answers)]
    mean = sum(scores) / answers / len(scores)
    return {METRIC: mean, f"eval_gsm8k_pass{answers}": 1.0, "eval_num_samples": float(len(samples))}


def module() -> Any:
    class BasePPOTrainer:
        """Its three methods, without Ray."""

        def init_checkpoint_states(self) -> Any:  # 433
            if self.args.ckpt.load_enable and (Path(self.args.ckpt.path) / "_actor").exists():
                return self.loaded()
            return {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}

        def loaded(self) -> dict[str, Any]:
            """utils/deepspeed/deepspeed.py 766: load_checkpoint without a tag, in each role's folder."""
            latest = Path(self.args.ckpt.path) / "_actor" / "latest"
            if not latest.exists():
                return {}
            (self.args.ckpt.path / Path("_actor") / latest.read_text()).stat()
            step = int(latest.read_text().rpartition("step")[2])
            return {"episode": step // 10, "global_step": step, "total_consumed_prompts": 8 * step}

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
            place = Path(self.args.ckpt.path)
            for role in () if self.args.ckpt.disable_ds else openrlhf.ROLES:
                (place / role / tag).mkdir(parents=True, exist_ok=True)
                (place / role / tag / "mp_rank_00_model_states.pt").write_bytes(b"x" * 9)
                (place / role / "latest").write_text(tag)
            if self.args.ckpt.disable_ds:
                (place / f"{tag}_hf").mkdir(parents=True)
                (place / f"{tag}_hf" / "model.safetensors").write_bytes(b"x" * 9)
            self.saved.append(tag)

    return SimpleNamespace(
        BasePPOTrainer=BasePPOTrainer,
        prepare_datasets=prepare_datasets,
        compute_eval_metrics=compute_eval_metrics,
    )


class Trainer:
    """`PPOTrainer`, or `TrainingActor` with the queue that another actor fills (ppo_trainer_async.py)."""

    EPISODES = 2
    STEPS = 20  # in all

    def __init__(
        self, world: World, save_steps: float = 10, eval_steps: float = 5, queue: bool = False, **ckpt: Any
    ) -> None:
        self.module, self.world = module(), world
        self.run = Run(METRIC, world.client, signals=False, stop_grace=0.0)
        self.stop = openrlhf.EvalStop(self.run)
        openrlhf.watch(self.module, self.stop)
        args = SimpleNamespace(
            ckpt=SimpleNamespace(
                path=str(world.out),
                save_steps=save_steps,
                disable_ds=False,
                load_enable=True,
            ),
            eval=SimpleNamespace(
                steps=eval_steps, temperature=0.6, n_samples_per_prompt=ANSWERS, dataset="gsm8k"
            ),
            rollout=SimpleNamespace(max_new_tokens=512),
            train=SimpleNamespace(num_episodes=self.EPISODES),
        )
        vars(args.ckpt).update(ckpt)
        self.module.prepare_datasets(SimpleNamespace(args=args), None)  # 478
        self.inner = self.module.BasePPOTrainer()
        self.inner.args, self.inner.eval_dataloader = args, DATALOADER
        self.inner.saved, self.inner.logged = [], []
        self.inner.best_eval_metric_value = float("-inf")
        self.drawn = self.waits = 0
        self.asks: dict[int, dict[str, Any]] = {}
        if queue:
            self.inner.rollout_queue = Queue(self.payloads())
            self.inner.rollout_slots = Queue([])
        else:
            self.inner.max_steps = self.STEPS  # 479
            self.inner.samples_generator = SimpleNamespace(generate_samples=self.generate)
        linger = self.run.linger

        def counted() -> None:
            self.waits += 1
            linger()

        self.run.linger = counted  # type: ignore[method-assign]

    def generate(self, **_: Any) -> tuple[list[int], float, int, bool]:
        """trainer/ppo_utils/samples_generator.py 138: the last samples of an episode say that it is over."""
        self.drawn += 1
        return [1], 1.0, 8, self.drawn % (self.STEPS // self.EPISODES) == 0

    def fit(self) -> None:
        states = self.inner.init_checkpoint_states()  # 505
        step = int(states["global_step"])
        self.drawn = step
        for _episode in range(states["episode"], self.EPISODES):  # 520
            while True:
                samples, _, _, exhausted = self.inner.samples_generator.generate_samples()  # 530
                if not samples:  # 535
                    if exhausted:
                        break
                    continue
                step += 1
                self._ask(step)
                self.inner.save_logs_and_checkpoints(step, self._logs(), {})  # 560
                if step % self.inner.args.eval.steps == 0 and self.inner.eval_dataloader:  # 563
                    self.inner.save_best_checkpoint(self.evaluate(step), step, {})  # 567, 568
                if exhausted:  # 572
                    break

    def fit_from_queue(self) -> None:
        """ppo_trainer_async.py 202-248."""
        step = int(self.inner.init_checkpoint_states()["global_step"])  # 328
        while True:
            payload = self.inner.rollout_queue.get(block=True)  # 206
            if payload == "done":
                break
            self.inner.rollout_slots.put(step, block=True)  # 213, 230
            if payload[0] == "eval":
                _, eval_step, eval_metrics = payload
                self.inner.save_best_checkpoint(eval_metrics, eval_step, {})  # 222
                continue
            step += 1
            self._ask(step)
            self.inner.save_logs_and_checkpoints(step, self._logs(), {})  # 248

    def payloads(self) -> list[Any]:
        """What the actor that draws puts into the queue (ppo_trainer_async.py 124, 149, 164)."""
        found: list[Any] = []
        for step in range(1, self.STEPS + 1):
            found.append(([1], {}, None, 0.1))
            if step % 5 == 0:
                found.append(("eval", step, self.evaluate(step)))
        return [*found, "done"]

    def evaluate(self, step: int) -> dict[str, Any]:  # 585
        level = 0.5 - abs(step - 10) / 100
        rewards = [level + 0.1 * prompt + d for prompt in range(len(PROMPTS)) for d in (-0.1, 0.1)]
        prompts = [prompt for prompt in PROMPTS for _ in range(ANSWERS)]
        samples = [SimpleNamespace(prompts=[p], rewards=r) for p, r in zip(prompts, rewards, strict=True)]
        return dict(self.module.compute_eval_metrics(DATALOADER, samples, ANSWERS))  # 591

    def _ask(self, step: int) -> None:
        if step in self.asks:
            self.world.ask(**self.asks[step])

    @staticmethod
    def _logs() -> dict[str, Any]:
        return {
            "policy_loss": 0.25,
            "kl": 0.01,
            "rollout/reward_mean": 0.5,
            "rollout/response_length_mean": 300.0,
            "generated_samples": ["x", 1],
        }


class Queue:
    def __init__(self, found: Sequence[Any]) -> None:
        self.found = deque(found)

    def get(self, block: bool) -> Any:
        return self.found.popleft()

    def put(self, token: int, block: bool) -> None:
        self.found.append(token)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(World(tmp_path))


def steps(trainer: Trainer) -> list[int]:
    return [step for step, _ in trainer.world.evals(METRIC)]


def test_evals_bests_and_regular_saves_are_recorded(trainer: Trainer) -> None:
    trainer.fit()
    world = trainer.world
    scores = dict(world.evals(METRIC))
    assert scores == {step: pytest.approx(0.65 - abs(step - 10) / 100) for step in (5, 10, 15, 20)}
    tags = {"best_global_step5", "global_step10", "best_global_step10", "global_step20"}
    assert world.records().keys() >= tags - {"global_step10"}
    one = world.records()["best_global_step10"]
    assert one["files"].keys() == {
        f"{r}/best_global_step10/mp_rank_00_model_states.pt" for r in openrlhf.ROLES
    }
    view = world.page(METRIC)
    assert (view.proxy, view.loss, view.step, view.total_steps) == (0.5, 0.25, 20, 20)
    assert view.kl == pytest.approx(3.0)
    point = view.points[0]
    assert (point.samples, point.prompts) == (8, 4)
    assert point.stderr == pytest.approx(0.129099 / 2, rel=1e-4), "of 4 prompts, not of 8 answers"
    assert "k=2;prompts=gsm8k;temperature=0.6;tokens=512" in world.client.evaluator


@pytest.mark.parametrize("queue", [False, True], ids=["sync", "async"])
def test_it_stays_until_the_last_eval_was_read_once(tmp_path: Path, queue: bool) -> None:
    trainer = Trainer(World(tmp_path), queue=queue)
    (trainer.fit_from_queue if queue else trainer.fit)()
    assert trainer.waits == 1
    assert steps(trainer)[-1] == 20


@pytest.mark.parametrize("eval_steps", [7, float("inf")])
def test_it_stays_after_a_last_step_without_an_eval_too(tmp_path: Path, eval_steps: float) -> None:
    trainer = Trainer(World(tmp_path), eval_steps=eval_steps)
    trainer.fit()
    assert (trainer.waits, trainer.inner.logged[-1]) == (1, 20)


def test_the_bests_alone_are_recorded_with_default_settings(tmp_path: Path) -> None:
    """save_steps -1 is infinity (470): then these are its only checkpoints."""
    trainer = Trainer(World(tmp_path), save_steps=float("inf"))
    trainer.fit()
    assert (
        trainer.inner.saved
        == ["best_global_step5", "best_global_step10"]
        == sorted(trainer.world.records(), key=len)
    )


def test_exports_alone_are_recorded(tmp_path: Path) -> None:
    """--ckpt.save_hf --ckpt.disable_ds: trainer/ray/ppo_actor.py 675."""
    trainer = Trainer(World(tmp_path), disable_ds=True)
    trainer.fit()
    assert trainer.world.records().keys() >= {"best_global_step10_hf", "global_step20_hf"}


def test_requests_are_carried_out_in_their_step(trainer: Trainer) -> None:
    trainer.asks = {
        3: {"id": 1, "checkpoint": True},
        7: {"id": 2, "evaluate": True},
        12: {"id": 3, "stop": True},
    }
    with pytest.raises(StoppedRun):
        trainer.fit()
    assert [tag for tag in trainer.inner.saved if not tag.startswith("best")] == [
        *("global_step3", "global_step10", "global_step12"),
    ]
    assert steps(trainer) == [5, 7, 10]
    assert trainer.inner.logged[-1] == 12
    assert trainer.world.page(METRIC).request_served == 3
    assert trainer.inner.args.eval.steps == 5


def test_a_stop_waits_once_for_sigterm_and_does_not_end_as_if_it_were_complete(trainer: Trainer) -> None:
    """The pod's own process ended with 0, and the Job counted a run that was only asked to stop as
    complete."""
    trainer.asks = {2: {"id": 1, "stop": True}}
    with pytest.raises(StoppedRun, match="asked to stop, and no SIGTERM has come within 0 s"):
        trainer.fit()
    assert (trainer.waits, trainer.inner.logged) == (1, [1, 2])


@pytest.mark.parametrize("eval_steps", [7, 5], ids=["no-eval-follows", "an-eval-follows"])
def test_a_stop_in_the_last_step_is_no_complete_run_either(tmp_path: Path, eval_steps: int) -> None:
    trainer = Trainer(World(tmp_path), eval_steps=eval_steps)
    trainer.asks = {Trainer.STEPS: {"id": 1, "stop": True}}
    with pytest.raises(StoppedRun):
        trainer.fit()
    assert (trainer.waits, trainer.inner.logged[-1]) == (1, 20)


def test_the_asynchronous_trainer_reports_saves_and_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(World(tmp_path), queue=True)
    trainer.asks = {
        3: {"id": 1, "checkpoint": True},
        7: {"id": 2, "evaluate": True},
        12: {"id": 3, "stop": True},
    }
    with pytest.raises(StoppedRun):
        trainer.fit_from_queue()
    assert steps(trainer) == [5, 10]
    assert trainer.world.page(METRIC).points[0].stderr, "it comes through the queue, with the scores"
    assert [tag for tag in trainer.inner.saved if not tag.startswith("best")] == [
        *("global_step3", "global_step10", "global_step12"),
    ]
    assert (trainer.waits, trainer.inner.logged[-1]) == (1, 12)
    assert "asynchronous trainer cannot be asked for an eval" in caplog.text


def test_it_resumes_from_the_newest_whole_one(trainer: Trainer, tmp_path: Path) -> None:
    trainer.fit()
    out = trainer.world.out
    (out / "_critic" / "global_step20" / "mp_rank_00_model_states.pt").write_bytes(b"half")
    assert (out / "_actor" / "latest").read_text() == "global_step20"
    again = Trainer(World(tmp_path))
    again.fit()
    assert again.inner.logged == list(range(11, 21)), "the best one of step 10"
    assert again.world.page(METRIC).resumed_step == 10
    for role in openrlhf.ROLES:
        for states in (out / role).glob("*/*"):
            states.unlink()
    afresh = Trainer(World(tmp_path))
    assert not (out / "_actor" / "latest").exists()
    afresh.fit()
    assert afresh.inner.logged[0] == 1, "DeepSpeed found none"


def test_where_nobody_has_recorded_a_save_openrlhf_has_its_own_way(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = world.out / "_actor" / "global_step15"
    folder.mkdir(parents=True)
    (folder.parent / "latest").write_text("global_step15")
    trainer = Trainer(world)
    trainer.fit()
    assert trainer.inner.logged[0] == 16


def test_it_goes_on_from_where_the_operator_says(trainer: Trainer, tmp_path: Path) -> None:
    """What was restored is put in place for DeepSpeed, as links; that of another life has the same sizes."""
    trainer.fit()
    named = ".evalstop/u-1/resume/global_step10"
    for role in openrlhf.ROLES:
        folder = trainer.world.out / named / role / "global_step10"
        folder.mkdir(parents=True)
        (folder / "mp_rank_00_model_states.pt").write_bytes(b"restored!")
    resume: Mapping[str, Any] = {"path": named, "step": 10}
    again = Trainer(World(tmp_path, attempt=2, resume=resume))
    again.fit()
    assert again.inner.logged[0] == 11
    for role in openrlhf.ROLES:
        states = trainer.world.out / role / "global_step10" / "mp_rank_00_model_states.pt"
        assert states.read_bytes() == b"restored!"
    assert states.stat().st_nlink == 2


def test_whatever_fails_the_training_goes_on(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    trainer.inner.args.eval = SimpleNamespace(steps=5)
    trainer.inner.args.ckpt.path = trainer.inner.eval_dataloader = None
    trainer.inner.save = trainer.inner.saved.append
    trainer.inner.args.ckpt.load_enable = False
    del trainer.inner.args.train
    trainer.world.client.set_progress = None  # type: ignore[assignment, method-assign]
    trainer.fit()
    assert (trainer.waits, trainer.inner.logged) == (0, list(range(1, 21)))
    assert caplog.text.count("reading the operator's requests failed") == 1
    assert caplog.text.count("reading where the training starts failed") == 1


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


def test_the_environment_of_the_page_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray imports the hook by its name in each process, after it has set the variables."""
    (block,) = re.findall(r"--runtime-env-json='(.*?)'", PAGE.read_text(), re.DOTALL)
    given = json.loads(block)
    module, _, name = given["worker_process_setup_hook"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is openrlhf.install
    for variable, value in given["env_vars"].items():
        monkeypatch.setenv(variable, value)
    assert openrlhf.EvalStop().run.metric == "eval_gsm8k_pass1"
