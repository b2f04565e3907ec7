"""What is said of a copy under way, and when one is given up: never because it is slow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job import access_pod
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.marks import Mark, health
from controller.policy.job.record import InFlight, JobRecord, Operation
from controller.policy.job.transfer import describe, due_in, duration, remaining, size, stalled
from controller.policy.job.types import AccessView, Desired, Observed, Progress
from controller.policy.types import PolicySpec

GB = 10**9


def view(progress: Progress | None = None, since: float | None = None, finished: bool = False) -> AccessView:
    return AccessView("retain-40-7", Operation.RETAIN, finished, progress=progress, since=since)


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (
            Progress(412 * GB, 1020 * GB, 240e6, 60.0, 60.0, "Copying"),
            "copying 412 GB of 1.02 TB, 240 MB/s, 42 min left",
        ),
        (Progress(412 * GB, 1020 * GB, 0.0, 60.0, 60.0), "412 GB of 1.02 TB"),
        (
            Progress(5 * GB, 10 * GB, 240e6, 700.0, 100.0, "Copying"),
            "copying 5 GB of 10 GB, no byte for 10 min",
        ),
        (Progress(10 * GB, 10 * GB, 1e6, 60.0, 60.0), "10 GB of 10 GB, 1 MB/s"),
        (Progress(0, 0, 0.0, 60.0, 60.0), "nothing read yet"),
        (Progress(1500, 0, 0.0, 60.0, 60.0), "1.5 kB so far"),
    ],
)
def test_bytes_rate_and_time_left_are_told(progress: Progress, words: str) -> None:
    assert describe(progress) == words


def test_a_slow_copy_that_moves_is_never_given_up() -> None:
    """Ninety minutes and more: it counts from the last byte, not from the start. Row 5."""  # row 5
    for minute in range(1, 600):
        now = 60.0 * minute
        moving = Progress(minute, 10**6, 0.02, now, now - 30.0)
        assert not stalled(view(moving, since=0.0), now, 600.0)


def test_what_does_not_move_is_given_up_after_the_limit() -> None:
    still = view(Progress(7, 10, 1.0, 900.0, 300.0), since=0.0)
    assert not stalled(still, 900.0, 600.0)
    assert due_in(still, 880.0, 600.0) == 20.0
    assert stalled(still, 900.1, 600.0)
    assert due_in(still, 2000.0, 600.0) == 0.0


def test_a_job_that_never_told_anything_counts_from_when_it_could_have() -> None:
    assert stalled(view(since=0.0), 601.0, 600.0)
    assert not stalled(view(since=500.0), 601.0, 600.0)
    assert not stalled(view(), 1e9, 600.0)  # seen by nobody yet: an operator that has just started
    assert due_in(view(), 1e9, 600.0) is None


def test_one_that_has_ended_does_not_stall() -> None:
    assert not stalled(view(since=0.0, finished=True), 1e9, 600.0)


@given(st.integers(0, 10**18))
def test_sizes_are_short_and_right(count: int) -> None:
    text = size(count)
    number, unit = text.split()
    assert len(number) <= 5
    value = float(number) * 1000.0 ** ("bytes", "kB", "MB", "GB", "TB", "PB").index(unit)
    assert math.isclose(value, count, rel_tol=0.005)


def test_durations() -> None:
    said = [duration(s) for s in (0, 99, 100, 3600, 7200, 12_000, 400_000)]
    assert said == ["0 s", "99 s", "2 min", "60 min", "2 h", "3 h 20 min", "5 d"]


def test_time_left_needs_total_and_rate() -> None:
    assert remaining(Progress(2, 10, 4.0, 0.0, 0.0)) == 2.0
    assert remaining(Progress(2, 10, 0.0, 0.0, 0.0)) is None
    assert remaining(Progress(2, 0, 4.0, 0.0, 0.0)) is None


def told(
    operation: Operation, tries: int = 0, before: bool | None = None, why: str = "Before"
) -> PlanContext:
    """The draft of a job whose access Job has copied 412 GB. ``before``, ``why``: status and reason that
    Secured had."""
    waited = InFlight(operation, 40, 7, tries)
    moving = Progress(412 * GB, 1020 * GB, 240e6, 60.0, 60.0, "Copying")
    asked = AccessView(waited.request_id, operation, False, progress=moving)
    desired = Desired("ns/a", "uid", 1, "reward", 1, 8, PolicySpec("scan"))
    draft = PlanContext(desired, Observed(access=(asked,)), JobRecord(access=waited), 60.0)
    if before is not None:
        draft.conditions.set(c.SECURED, before, why, "as before")
    access_pod.report_progress(draft)
    return draft


def test_a_condition_says_each_minute_how_far_a_copy_is() -> None:
    condition = told(Operation.RETAIN).conditions.get(c.RETAINED)
    assert condition is not None
    assert (condition.status, condition.reason) == (False, "InProgress")
    assert condition.message == "step 40: copying 412 GB of 1.02 TB, 240 MB/s, 42 min left"
    again = told(Operation.RESTORE, tries=2).conditions.get(c.RESUMED)
    assert again is not None
    assert again.message.endswith("42 min left (try 3)")


def test_what_is_in_safety_stays_so_while_another_is_on_its_way() -> None:
    kept = told(Operation.SECURE, before=True).conditions.get(c.SECURED)
    assert kept is not None
    assert (kept.status, kept.reason) == (True, "Before")
    first = told(Operation.SECURE, before=False).conditions.get(c.SECURED)
    assert first is not None
    assert first.reason == "InProgress"


@pytest.mark.parametrize("why", ["CheckpointMissing", "BestCheckpointLost", "StoreUnreachable"])
def test_a_job_whose_tries_fail_stays_marked_while_the_next_one_runs(why: str) -> None:
    """Else it would look healthy for as long as each try takes."""
    draft = told(Operation.SECURE, tries=1, before=False, why=why)
    for _ in range(2):  # said anew, the words do not grow
        said = draft.conditions.get(c.SECURED)
        assert said is not None
        assert (said.status, said.reason) == (False, why)
        copied = "copying 412 GB of 1.02 TB, 240 MB/s, 42 min left (try 2)"
        assert said.message == f"as before; under way: step 40: {copied}"
        assert [m.mark for m in health(JobRecord(conditions=(said,)), 60.0)] == [Mark.UNSAFE]
        access_pod.report_progress(draft)


def test_a_pod_that_runs_at_last_is_no_longer_hindered() -> None:
    said = told(Operation.SECURE, before=False, why="AccessPodUnschedulable").conditions.get(c.SECURED)
    assert said is not None
    assert said.reason == "InProgress"
