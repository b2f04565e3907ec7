"""A retained copy that a resume finds gone or changed: the intact pin is taken, the copy claimed no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.cures import cure_of
from controller.policy.job.gone_copies import found_gone
from controller.policy.job.marks import Mark, health
from controller.policy.job.record import Operation
from controller.policy.job.types import AccessView, ResumeFrom, ResumeRequest, StartAccess
from controller.policy.job.verdict_words import ways_on
from controller.policy.types import PolicySpec
from tests.support.policy_world import Job, PolicyWorld

REASONS = ("CheckpointMissing", "DigestMismatch")


class Emptied(PolicyWorld):
    """A world whose copies are gone or changed, and whose pins may be."""

    reason = ""
    copies_too, pins_too = True, False

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        gone = self.pins_too if ask.source is None else self.copies_too
        if ask.operation is Operation.RESTORE and self.reason and gone:
            text = f"checkpoint of step {ask.step} is not as it was"
            return AccessView(ask.request_id, ask.operation, True, False, self.reason, text)
        return super()._access(job, ask)


def stopped(reason: str) -> tuple[Emptied, Job]:
    world = Emptied({"n1": 2})
    job = world.submit("ns/a", gpus=2, rule=PolicySpec("kDeclines", {"k": 3}))
    world.settle()
    for score in (0.1, 0.3, 0.5, 0.4, 0.35, 0.3):
        world.scores("ns/a", score)
        world.settle()
    assert job.record.retained
    world.reason = reason
    return world, job


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(("source", "step"), [(ResumeFrom.BEST, None), (ResumeFrom.STEP, 30)])
def test_the_pin_of_the_same_eval_is_taken(reason: str, source: ResumeFrom, step: int | None) -> None:
    world, job = stopped(reason)
    job.wish(resume=ResumeRequest("again", source, step))
    job.observed = replace(job.observed, scrape=None)
    world.settle()
    world.go_on(120.0)
    assert job.started == [1, 2]
    assert job.record.run.resume_path == "/restored/30"
    assert job.record.condition(c.RESUMED).status
    restores = [ask for ask in world.asked.values() if ask.operation is Operation.RESTORE]
    assert [ask.source is None for ask in restores] == [False, True], "the copy first, then the pin"
    world.scores("ns/a", 0.55)
    world.settle()
    assert found_gone(job.record) == job.record.retained, "the run goes on, and the copy is gone all the same"
    world.reason = ""
    for score in (0.5, 0.4, 0.3):
        world.scores("ns/a", score)
        world.settle()
    assert len(job.record.retained) == 2, "stopped again: another copy"
    assert found_gone(job.record) == job.record.retained[:1]


@pytest.mark.parametrize("reason", REASONS)
def test_what_helps_is_another_checkpoint_and_the_copy_is_no_fact_any_more(reason: str) -> None:
    world, job = stopped(reason)
    world.pins_too = True
    before = [do for do, _ in ways_on(job.record, "a -n ns")]
    assert before[0] == "evalstop resume a -n ns --from best"
    job.wish(resume=ResumeRequest("again", ResumeFrom.BEST))
    world.go_on(300.0)
    assert job.started == [1]
    assert found_gone(job.record) == job.record.retained[-1:]
    latest = "evalstop resume a -n ns --from latest --for-evals 8"
    assert [do for do, _ in ways_on(job.record, "a -n ns")] == [latest]
    (mark,) = [one for one in health(job.record, 1e9) if one.mark is Mark.HELD_UP]
    assert mark.reason == reason
    cure = cure_of(mark.code).filled("a", "ns", "p", "", mark.message)
    assert cure.command == "evalstop resume a -n ns --from latest"
    for words in ("rotation", "maxStepLag", "never write"):
        assert words not in cure.text + mark.message
    restores = [ask for ask in world.asked.values() if ask.operation is Operation.RESTORE]
    assert len({ask.source is None for ask in restores}) == 2, "both are tried, for either may come back"
    # The copy was brought back from a backup: the same request goes through.
    world.copies_too = False
    world.go_on(700.0)
    assert job.started == [1, 2]
    assert found_gone(job.record) == ()
