"""A run file that somebody deleted is made again, where the operator had made one."""

from dataclasses import replace

from controller.policy.job.types import WriteRun
from tests.support.policy_world import PolicyWorld


def test_a_run_file_that_is_gone_is_written_again_as_it_was_and_told() -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    assert [a for a in world.step("ns/a").actions if isinstance(a, WriteRun)] == []
    said = job.record.run
    job.observed = replace(job.observed, run_written=None, run_gone=True)
    plan = world.step("ns/a")
    assert [a for a in plan.actions if isinstance(a, WriteRun)] == [WriteRun(said)]
    (event,) = [e for e in plan.events if e.reason == "RunFileGone"]
    assert event.warning
    assert "ConfigMap a-run" in event.message
    job.observed = replace(job.observed, run_gone=False)
    assert not [e for e in world.step("ns/a").events if e.reason == "RunFileGone"]


def test_a_run_that_the_operator_did_not_start_needs_none() -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    job.record = replace(job.record, run=replace(job.record.run, attempt=0))
    job.observed = replace(job.observed, run_written=None, run_gone=True)
    plan = world.step("ns/a")
    assert [a for a in plan.actions if isinstance(a, WriteRun)] == []
    assert not [e for e in plan.events if e.reason == "RunFileGone"]
