"""What a pool is told of each job: every field that some queue policy goes by, as of the moment of asking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.policy.job import progress
from controller.policy.job.context import PlanContext
from controller.policy.job.record import AdmissionRecord, JobRecord, Preempting, RunProgress
from controller.policy.job.types import Desired, Observed, Plan, ScrapeOutcome, ScrapeView
from controller.policy.job.view import job_view
from controller.policy.types import JobState, JobView, LossTrend, PolicySpec

DESIRED = Desired("ns/a", "u", 1, "gold", 2, 2, PolicySpec("kDeclines"), expected_seconds=500.0)
RUNNING = AdmissionRecord(1, ("n1", "n2"), 100.0, running_since=110.0)
BASE = JobRecord(attained=400.0, lost=100.0)


def view(record: JobRecord, queue: JobState | None, now: float = 200.0, **more: Any) -> JobView:
    planned = Plan(record, queue=queue)
    found = job_view(DESIRED, Observed(), record, planned, submitted=10.0, priority=3, now=now, **more)
    assert found is not None
    return found


def test_a_waiting_job() -> None:
    seen = view(BASE, JobState.QUEUED)
    assert (seen.state, seen.since, seen.attained, seen.waited) == (JobState.QUEUED, 10.0, 400.0, 0.0)
    assert seen.remaining == 425.0  # 300 of the 400 GPU-seconds on four GPUs count
    again = view(replace(BASE, queued_at=150.0), JobState.QUEUED)
    assert again.since == 150.0


def test_a_running_job_s_service_goes_on() -> None:
    record = replace(BASE, admission=RUNNING, queued_at=40.0)
    for now, attained in ((200.0, 760.0), (250.0, 960.0)):
        seen = view(record, JobState.ADMITTED, now)
        assert (seen.attained, seen.since, seen.waited) == (attained, 110.0, 60.0)
        assert seen.remaining == pytest.approx(500.0 - (attained - 100.0) / 4)
    starting = replace(record, admission=replace(RUNNING, running_since=None))
    seen = view(starting, JobState.ADMITTED)
    assert (seen.attained, seen.since) == (400.0, 100.0)


def test_what_is_left_of_a_run_that_outlives_its_user_s_word() -> None:
    assert view(replace(BASE, attained=2900.0), JobState.QUEUED).remaining == 0.0  # 700 s of 500
    assert view(replace(BASE, attained=9000.0), JobState.QUEUED).remaining is None  # nobody knows any more


def test_what_the_record_keeps_for_policies() -> None:
    trend = LossTrend(1.0, 10.0)
    record = replace(
        BASE, queue_policy_state=(1, 2, 3), loss_trend=trend, progress=RunProgress(25, 100, 300.0)
    )
    seen = view(record, JobState.QUEUED, weight=4.0)
    assert (seen.policy_state, seen.loss_trend, seen.progress, seen.weight) == ((1, 2, 3), trend, 0.25, 4.0)


def test_on_its_way_back_it_is_no_longer_admitted() -> None:
    record = replace(BASE, admission=RUNNING, preempting=Preempting("ShorterJobWaits", 190.0))
    seen = view(record, JobState.ADMITTED)
    assert (seen.state, seen.since) == (JobState.PREEMPTING, None)


# -- what is noted of progress and loss ---------------------------------------------------------------------

RUNS = JobRecord(admission=RUNNING)


def noted(record: JobRecord, news: bool, now: float = 160.0, **shown: Any) -> JobRecord:
    scrape = ScrapeView(shown.pop("outcome", ScrapeOutcome.OK), **shown)
    draft = PlanContext(DESIRED, Observed(scrape=scrape), record, now)
    progress.note(draft, news=news)
    return draft.record


def test_progress_is_noted_first_then_in_twentieths_and_with_every_eval() -> None:
    first = noted(RUNS, False, step=10, total_steps=100)
    since = (10, 50 * 4.0)  # its pace is measured from there on
    assert first.progress == RunProgress(10, 100, 50 * 4.0, *since)
    assert noted(first, False, 170.0, step=14, total_steps=100) == first  # a few steps are no write
    assert noted(first, False, 170.0, step=16, total_steps=100).progress == RunProgress(
        16, 100, 60 * 4.0, *since
    )
    assert noted(first, True, 170.0, step=11, total_steps=100).progress == RunProgress(
        11, 100, 60 * 4.0, *since
    )
    back = noted(first, False, 170.0, step=2, total_steps=100).progress
    assert back == RunProgress(2, 100, 60 * 4.0, 2, 60 * 4.0)


def test_loss_is_noted_with_evals() -> None:
    assert noted(RUNS, False, loss=2.0).loss_trend is None
    first = noted(RUNS, True, loss=2.0)
    assert first.loss_trend == LossTrend(2.0, 200.0)
    second = noted(first, True, 185.0, loss=1.0)
    assert second.loss_trend == LossTrend(1.0, 300.0, drop=0.01, before=0.0, largest=0.01)
    assert noted(first, True, 185.0, loss=float("nan")) == first


@pytest.mark.parametrize(
    "shown",
    [
        {"step": 10},
        {"total_steps": 100},
        {"step": 10, "total_steps": 0},
        {"step": 10, "total_steps": 100, "loss": 1.0, "outcome": ScrapeOutcome.TIMEOUT},
    ],
)
def test_what_is_not_told_is_not_noted(shown: dict[str, Any]) -> None:
    assert noted(RUNS, True, **shown) == RUNS


def test_nothing_is_noted_before_all_members_run() -> None:
    starting = JobRecord(admission=replace(RUNNING, running_since=None))
    assert noted(starting, True, step=10, total_steps=100, loss=1.0) == starting
    assert noted(JobRecord(), True, step=10, total_steps=100, loss=1.0) == JobRecord()
