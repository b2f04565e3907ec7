"""A Job of an earlier RLHFJob of the same name: nobody hears of its removal, unless that lasts."""

from __future__ import annotations

import pytest

from controller.cli.explanation import explain
from controller.cli.job_view import read
from controller.operator.state.ownership import earlier_job
from controller.policy.job import conditions as c
from controller.policy.job.cures import cure_of
from controller.policy.job.earlier_job import (
    EARLIER_JOB_REMAINS,
    FOREGROUND,
    REMOVED_WITHIN,
    EarlierJob,
    earlier_job_remains,
)
from controller.policy.job.marks import Mark, health, state_reason
from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord
from controller.policy.job.types import Desired, Observed
from controller.policy.types import PolicySpec
from tests.support import cli_world

T = 1_000_000.0
WHEN = "1970-01-12T13:46:40Z"  # T
AUDIT = "acme.io/audit"


@pytest.mark.parametrize(
    ("finalizers", "deleted", "said"),
    [
        (
            (AUDIT,),
            WHEN,
            f"its deletion was asked for at {WHEN}, and waits for metadata.finalizers, {AUDIT}, to be taken",
        ),
        ((FOREGROUND,), WHEN, f"asked for at {WHEN}, and waits for its pods to end first ({FOREGROUND})"),
        ((FOREGROUND, AUDIT), WHEN, f"finalizers, {AUDIT}, to be taken away and for its pods to end first"),
        (tuple(f"x.io/{i}" for i in range(5)), WHEN, "x.io/0, x.io/1, x.io/2 and 2 more, to be taken away"),
        ((), WHEN, f"its deletion was asked for at {WHEN}; until then"),
        (
            (),
            "",
            "the cluster's garbage collector has not deleted it yet: see whether kube-controller-manager",
        ),
    ],
)
def test_it_is_told_once_it_lasts_with_what_it_waits_for(
    finalizers: tuple[str, ...], deleted: str, said: str
) -> None:
    found = EarlierJob("z-1", T, deleted, finalizers)
    assert earlier_job_remains(found, T) is None
    assert earlier_job_remains(found, T + REMOVED_WITHIN - 0.1) is None
    problem = earlier_job_remains(found, T + REMOVED_WITHIN)
    assert problem is not None
    assert problem.reason == EARLIER_JOB_REMAINS
    assert problem.message.startswith("Job z-1: it is of an earlier RLHFJob of this name")
    assert said in problem.message
    assert problem.message.endswith("its pods may hold GPUs and write to the checkpoint folder")
    assert len(problem.message) <= c.MAX_MESSAGE
    assert earlier_job_remains(found, T + 3600.0) == problem, "what is written once is not written again"


@pytest.mark.parametrize(
    ("deleted", "made", "since"),
    [
        (WHEN, "1970-01-12T13:46:50Z", T),
        ("1970-01-12T13:46:50Z", WHEN, T),  # the new one has waited since
        ("", WHEN, T),
    ],
)
def test_it_is_in_the_way_from_its_deletion_or_the_new_one_on(deleted: str, made: str, since: float) -> None:
    job = {"metadata": {"name": "z-1", "finalizers": [AUDIT], "deletionTimestamp": deleted or None}}
    found = earlier_job(job, {"metadata": {"name": "z-1", "creationTimestamp": made}})
    assert found == EarlierJob("z-1", since, deleted, (AUDIT,))


def test_everything_says_so_of_the_new_run_with_the_command_that_shows_it() -> None:
    """It stayed New, and its cure sent to an operator that was well."""
    problem = earlier_job_remains(EarlierJob("a", T, WHEN, (AUDIT,)), T + 20.0)
    desired = Desired("ns/a", "uid", 1, "gold", 1, 1, PolicySpec("kDeclines", {"k": 3}), problem=problem)
    plan = plan_job(desired, Observed(), JobRecord(), T + 20.0)
    assert plan.actions == ()
    (told,) = [one for one in plan.events if one.warning]
    assert (told.reason, told.message) == problem
    (found,) = health(plan.record, T + 20.0)
    assert (found.mark, found.reason, found.warning) == (Mark.REFUSED, EARLIER_JOB_REMAINS, True)
    assert state_reason(plan.record) == EARLIER_JOB_REMAINS
    shown = explain(read(cli_world.whole("a", plan.record)), T + 45.0)
    assert ": Refused (EarlierJobRemains: Job a: " in shown.headline
    cure = cure_of(EARLIER_JOB_REMAINS).filled("a", "ns", "p", "", problem.message if problem else "")
    assert cure.command == (
        "kubectl get job a -n ns "
        "-o jsonpath='{.metadata.deletionTimestamp} {.metadata.finalizers} {.status.active}'"
    )
    assert any(command.startswith("kubectl get job a -n ") for command, _ in shown.next_steps)
    # Once that Job is gone nothing is said any more.
    after = plan_job(
        Desired("ns/a", "uid", 1, "gold", 1, 1, PolicySpec("kDeclines", {"k": 3})),
        Observed(),
        plan.record,
        T + 30.0,
    )
    assert health(after.record, T + 30.0) == ()
    assert after.record.condition(c.ACCEPTED).status
