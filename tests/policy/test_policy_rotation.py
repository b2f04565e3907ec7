"""What closes the race for the best checkpoint, by the trainer: in the condition, in doctor and in why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.api.storage import Layout
from controller.cli import explanation, job_view, remedies
from controller.cli.doctor import job as checks
from controller.policy.job import FoundLayout
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.cures import cure_of, key_of
from controller.policy.job.lost_bests import lose, still_told
from controller.policy.job.record import Best, Claim, InFlight, Operation
from controller.policy.job.rotation import ANY_TRAINER, SETTINGS, remedy
from controller.policy.job.types import Desired, Observed
from controller.policy.types import Attempt, EvalPoint, PolicySpec, Problem
from tests.support import cli_world as w
from tests.support.policy_world import PolicyWorld

NAMED = {
    "HuggingFace": (
        "metric_for_best_model",
        "load_best_model_at_end",
        'save_strategy="best"',
        "save_total_limit",
    ),
    "Verl": ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"),
    "OpenRLHF": ("--ckpt.best_metric_key", "--ckpt.max_num", "--ckpt.save_steps"),
    "NeMoRL": ("checkpointing.metric_name", "val:accuracy", "checkpointing.keep_top_k"),
}


def test_each_entry_is_of_a_layout_and_names_the_settings() -> None:
    assert set(SETTINGS) == set(NAMED) <= set(Layout)
    for layout, settings in NAMED.items():
        assert all(setting in remedy(layout) for setting in settings)
    for other in ("", "Plain", "Slime", "TorchDCP"):
        assert ANY_TRAINER in remedy(other)


@pytest.mark.parametrize("layout", sorted(NAMED))
@pytest.mark.parametrize("reason", ["CheckpointMissing", "BestCheckpointLost"])
@pytest.mark.parametrize("auto", [False, True])
def test_doctor_and_why_name_the_setting(layout: str, reason: str, auto: bool) -> None:
    told = w.condition(c.SECURED, False, reason, "step 20 is gone")
    others = tuple(known for known in w.running().conditions if known.type != c.SECURED)
    found = FoundLayout(layout, "x") if auto else None
    whole = w.whole("run", replace(w.running(), conditions=(*others, told), layout=found))
    whole["spec"]["checkpoints"]["layout"] = "Auto" if auto else layout
    job = job_view.read(whole)
    (finding,) = checks.conditions(job, 1.9e9)
    assert NAMED[layout][0] in finding.cure.line
    assert any(NAMED[layout][0] in do for do, _ in explanation.explain(job, 1.9e9).next_steps)


def test_one_that_was_written_into_has_the_cure_for_that() -> None:
    best = Best(20, 1.0, Attempt(1, "9f2c41d0"))
    told = w.condition(c.SECURED, False, "BestCheckpointLost", "step 20 was changed after it had been pinned")
    record = replace(w.running(), conditions=(w.ACCEPTED, told), lost_bests=(best,), changed_bests=(best,))
    job = job_view.read(w.whole("run", record))
    assert remedies.cure(job, "BestCheckpointLost") == remedies.cure(job, "DigestMismatch")


@pytest.mark.parametrize("layout", sorted(NAMED))
@pytest.mark.parametrize("auto", [False, True])
def test_the_condition_names_the_setting_whole(layout: str, auto: bool) -> None:
    desired = Desired("ns/run", "uid", 1, "gold_reward", 1, 2, PolicySpec("kDeclines"))
    record = replace(w.running(), layout=FoundLayout(layout, "x") if auto else None)
    context = PlanContext(replace(desired, layout="" if auto else layout), Observed(), record, 1e9)
    lose(context, Best(20, 1.0, Attempt(1, "9f2c41d0")), Problem("CheckpointMissing", "nothing lies there"))
    told = context.conditions.get(c.SECURED)
    assert told is not None
    assert told.reason == "BestCheckpointLost"
    assert remedy(layout) in told.message


@pytest.mark.parametrize(
    ("step", "named"), [(20, "step 20 of process 2-50"), (30, "step 30")], ids=["same", "other"]
)
def test_two_evals_of_one_step_are_told_apart(step: int, named: str) -> None:
    """Of two branches: step 20 was lost, and the best that may still have one was at step 20."""
    first, second = Attempt(1, "9f"), Attempt(2, "50")
    desired = Desired("ns/run", "uid", 1, "gold_reward", 1, 2, PolicySpec("kDeclines"))
    lost = Best(20, 1.0, first)
    record = replace(
        w.running(),
        best=lost,
        lost_bests=(lost,),
        evals=(EvalPoint(20, 1.0, first), EvalPoint(step, 0.9, second)),
    )
    context = PlanContext(desired, Observed(), record, 1e9)
    lose(context, lost, Problem("CheckpointMissing", "nothing lies there"))
    told = context.conditions.get(c.SECURED)
    assert told is not None
    assert told.message.startswith("the checkpoint of the best eval, step 20 (1), is lost: ")
    assert f"the best eval that may still have one is at {named} (0.9)" in told.message
    waited = InFlight(Operation.SECURE, step, 1, attempt=second)
    reason, message = still_told(context, waited, "CheckpointMissing", "nothing lies there")
    assert reason == "BestCheckpointLost"
    assert f"is lost; of {named}, looked for in its place: nothing lies there" in message


@pytest.mark.parametrize(("saved", "told"), [(30, True), (40, False), (20, False), (None, False)])
def test_a_trainer_that_saves_after_its_eval_is_told_to_save_first(saved: int | None, told: bool) -> None:
    """20: it saves more rarely than it evaluates, as far as anybody sees."""
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2, rule=PolicySpec("kDeclines", {"k": 9}))
    world.settle()
    for score in (0.1, 0.5, 0.4, 0.3):
        world.scores("ns/a", score)
    assert job.observed.scrape is not None
    job.checkpoints = {30}
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, checkpoint_step=saved))
    world.step("ns/a")
    world.step("ns/a")
    found = job.record.condition(c.SECURED)
    assert found is not None
    assert found.reason == "CheckpointMissing"
    assert ("step 40 was reported before its checkpoint was saved" in found.message) is told
    cure = cure_of(key_of(found.reason, found.message)).filled("run", "team", "a100", "Plain")
    assert cure.text.startswith("save each checkpoint before its eval") is told
    assert remedy("Plain") in cure.text


def test_a_run_that_ended_unread_beside_older_checkpoints_may_have_gone_on_from_those() -> None:
    for step, words in ((90, "name an empty folder"), (0, "stay up until its last eval was read")):
        record = replace(w.running(), claim=Claim(1, w.START, newest_step=step))
        found = remedies.cure(job_view.read(w.whole("run", record)), "NeverRead")
        assert words in found.text
        assert ("empty folder" in found.text) is bool(step)
