"""As whom access Jobs run, where the spec does not say it: found with the first one, then remembered."""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.record import FileOwner, Operation
from controller.policy.job.types import AccessView, StartAccess
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
ROOT = FileOwner(0, 0, "checkpoint-10/model.safetensors")
OTHER = FileOwner(1000, 1000, "checkpoint-10/model.safetensors")


class Owned(PolicyWorld):
    """A store whose files are one user's; what is asked as another is answered with that owner."""

    def __init__(self, owner: FileOwner = ROOT) -> None:
        super().__init__({"n1": 8})
        self.owner = owner
        self.log: list[StartAccess] = []

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        self.log.append(ask)
        if ask.operation is Operation.CLAIM and ask.file_owner is None and not job.checkpoints:
            return AccessView(ask.request_id, ask.operation, True, True, deferred=True)
        if ask.file_owner is None:
            told = AccessView(ask.request_id, ask.operation, True, False, "OtherOwner", "root's")
            return replace(told, file_owner=self.owner)
        if ask.file_owner.user != self.owner.user:
            return AccessView(ask.request_id, ask.operation, True, False, "PermissionDenied", "denied")
        return super()._access(job, ask)


def running(owner: FileOwner = ROOT) -> tuple[Owned, Job]:
    world = Owned(owner)
    job = world.submit(KEY)
    world.go_on(80.0)
    assert job.started == [1], "a claim that has nothing to write keeps no run from starting"
    return world, job


def test_the_job_is_made_anew_as_the_owner_at_once_and_the_owner_is_remembered() -> None:
    world, job = running()
    assert job.record.file_owner is None
    assert job.record.empty_at.startswith("1")
    world.scores(KEY, 0.5)
    world.go_on(10.0, every=1.0)
    assert job.record.file_owner == ROOT
    assert job.record.secured is not None, "within seconds: no pause as after a failure"
    assert job.record.secured.best_step == 10
    assert job.record.empty_at == "", "what lay there before the attempt is written down by now"
    told = job.record.condition(c.SECURED)
    assert told is not None
    assert told.status
    operations = [(ask.operation, ask.file_owner, ask.empty_at) for ask in world.log if ask.file_owner]
    assert operations[0] == (Operation.SECURE, ROOT, "1")
    asked = len([ask for ask in world.log if ask.file_owner is None])
    world.scores(KEY, 0.6)
    world.go_on(30.0)
    assert len([ask for ask in world.log if ask.file_owner is None]) == asked, "it is found once"


def test_an_owner_that_is_none_any_more_is_found_again() -> None:
    world, job = running()
    world.scores(KEY, 0.5)
    world.go_on(10.0, every=1.0)
    world.owner = OTHER  # the trainer's image was changed
    world.scores(KEY, 0.6)
    world.go_on(30.0, every=1.0)
    assert job.record.file_owner == OTHER
    assert job.record.secured.best_step == 20


def test_a_user_that_is_denied_is_told_with_what_to_set() -> None:
    world, job = running()
    world.scores(KEY, 0.5)
    world.go_on(10.0, every=1.0)
    world.slow, world.failing = frozenset({Operation.SECURE}), "PermissionDenied"
    world.scores(KEY, 0.6)
    world.go_on(3.0, every=1.0)
    told = job.record.condition(c.SECURED)
    assert told is not None
    assert (told.status, told.reason) == (False, "PermissionDenied")
    assert "spec.checkpoints.runAs.user" in told.message


def test_who_answers_the_same_again_and_again_is_not_asked_for_ever() -> None:
    """A webhook may give the pod another user than it was made with: then it is a failure like any other."""
    world, job = running()
    world.scores(KEY, 0.5)
    world.go_on(10.0, every=1.0)
    before = len(world.log)
    real = world._access
    world._access = lambda job, ask: replace(  # type: ignore[method-assign]
        real(job, replace(ask, file_owner=None)), request_id=ask.request_id
    )
    world.scores(KEY, 0.6)
    world.go_on(60.0, every=1.0)
    assert len(world.log) - before < 8
    told = job.record.condition(c.SECURED)
    assert told is not None
    assert told.reason == "OtherOwner"
