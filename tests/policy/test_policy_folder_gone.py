"""EvalStop's own folder, removed by the trainer's rotation: told as that, its pins made anew."""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.access_requests import claim_made
from controller.policy.job.marks import Mark, health
from controller.policy.job.record import Operation
from controller.policy.job.remedies import of
from controller.policy.job.types import AccessView, StartAccess
from controller.policy.types import PolicySpec, Problem
from controller.policy.wording import FOLDER_GONE, NONE_OF_THIS_RUN
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
RULE = PolicySpec("kDeclines", {"k": 3})


class Wiped(PolicyWorld):
    """Whoever looks finds the pins gone, and the claim's file with them, as long as ``wiping``."""

    wiping = False

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        gone = self.wiping and ask.claimed is not None
        if gone:
            job.pins = set()
        view = super()._access(job, ask)
        if not gone:
            return view
        text = "" if view.ok else f"/c/.evalstop {FOLDER_GONE}: owner.json is not there; {view.message}"
        return replace(view, folder_gone=True, message=text)


def running() -> tuple[Wiped, Job]:
    world = Wiped({"n1": 2})
    job = world.submit(KEY, gpus=2, rule=RULE)
    world.settle()
    world.scores(KEY, 0.1)
    world.settle()
    assert job.record.secured is not None
    return world, job


def reasons(job: Job, now: float) -> list[tuple[str, bool]]:
    return [(one.code, one.warning) for one in health(job.record, now) if one.mark is Mark.UNSAFE]


def test_the_first_time_is_not_told_where_the_pin_was_made_and_the_second_is_a_warning() -> None:
    world, job = running()
    world.wiping = True  # a trainer may clear its folder at its start
    world.scores(KEY, 0.2)
    world.settle()
    assert job.record.claim is not None
    assert job.record.claim.gone == 1
    assert not health(job.record, world.now)
    world.scores(KEY, 0.3)
    world.settle()
    assert reasons(job, world.now) == [("EvalStopFolderGone", True)]
    (told,) = health(job.record, world.now)
    assert "leave the folder .evalstop alone" in told.cure().text
    world.wiping = False
    world.scores(KEY, 0.4)
    world.settle()
    assert not health(job.record, world.now)
    claimed = job.record.condition(c.CLAIMED)
    assert claimed is not None
    assert claimed.status


def test_a_pin_found_gone_at_the_stop_is_made_anew_from_what_lies_there_still() -> None:
    world, job = running()
    world.wiping = True
    for score in (0.3, 0.2, 0.19, 0.18):
        world.scores(KEY, score)
        world.settle()
    asked = [ask.operation for ask in world.asked.values()]
    assert Operation.RETAIN in asked or Operation.CHECK in asked
    assert ("EvalStopFolderGone", True) in reasons(job, world.now)
    assert all(code == "EvalStopFolderGone" for code, _ in reasons(job, world.now)), "no other cure is named"
    world.wiping = False
    world.scores(KEY, 0.17)  # the stop that rested on it was taken back
    world.go_on(120.0)
    assert job.record.secured is not None
    assert job.record.secured.best_step == 20
    assert [kept.best_step for kept in job.record.retained] == [20]


def test_what_a_user_pinned_is_pinned_again() -> None:
    world, job = running()
    job.wish(pins=(10,))
    world.settle()
    assert [kept.step for kept in job.record.pinned] == [10]
    world.wiping = True
    world.scores(KEY, 0.2)
    world.go_on(600.0)
    jobs = len(world.asked)
    assert jobs < 20, "a folder that is removed all the time is not pinned to all the time"
    world.wiping = False
    world.scores(KEY, 0.3)
    world.go_on(60.0)
    assert [kept.step for kept in job.record.pinned] == [10]
    pins = [ask for ask in world.asked.values() if ask.operation is Operation.PIN]
    assert len(pins) > 1


def test_no_claim_is_named_that_failed_or_wrote_nothing() -> None:
    _, job = running()
    assert claim_made(job.record) is not None
    assert claim_made(replace(job.record, empty_at="1")) is None
    assert claim_made(replace(job.record, claim=None)) is None
    assert job.record.claim is not None
    failed = replace(job.record.claim, problem="OutOfSpace")
    assert claim_made(replace(job.record, claim=failed)) is None


def test_the_message_of_a_try_says_what_helps_against_that_alone() -> None:
    text = f"/c/.evalstop {FOLDER_GONE}: owner.json is not there; none; {NONE_OF_THIS_RUN}"
    said = of(Problem("CheckpointIncomplete", text), "Plain")
    assert "leave the folder .evalstop alone" in said
    for wrong in ("spec.checkpoints.location", "maxStepLag", "save records"):
        assert wrong not in said
