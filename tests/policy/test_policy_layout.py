"""The layout that an access Job found is kept in the record, and later requests name it."""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import FoundLayout, Operation, StartAccess
from controller.policy.job.types import AccessView
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
FOUND = FoundLayout("Verl", "global_step_10/actor/fsdp_config.json")


class Finding(PolicyWorld):
    """A world whose access Jobs find a layout, as where the spec says Auto, unless they are told one."""

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        view = super()._access(job, ask)
        return replace(view, layout=None if ask.layout or not view.step else FOUND)


def test_what_was_found_first_is_kept_and_named_from_then_on() -> None:
    world = Finding({"n1": 2})
    job = world.submit(KEY, gpus=2)
    world.settle()
    assert job.record.layout is None, "a claim asks for none"
    for score in (0.1, 0.2, 0.3):
        world.scores(KEY, score)
        world.settle()
    assert job.record.layout == FOUND
    named = [ask.layout for ask in world.asked.values() if ask.operation is Operation.SECURE]
    assert named[0] == ""
    assert set(named[1:]) == {"Verl"}


def test_a_failed_request_finds_nothing() -> None:
    world = Finding({"n1": 2})
    job = world.submit(KEY, gpus=2)
    world.settle()
    world.scores(KEY, 0.1)
    job.checkpoints = set()
    for _ in range(6):
        world.step(KEY, seconds=1.0)
    assert any(ask.operation is Operation.SECURE for ask in world.asked.values())
    assert job.record.layout is None
