"""One reading of a job: `list`, `top`, `why`, `doctor`, dashboard, Events, metrics and whoever is told say
what `health` says.

Each surface that leaves a mark out is found (`test_a_surface_that_keeps_a_mark_to_itself_is_found`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from controller.api import record as stored
from controller.cli import explanation, job_view, jobs, remedies
from controller.cli.doctor import job as checks
from controller.cli.doctor.findings import Level
from controller.cli.screen.rows import ORDER
from controller.notify import happenings
from controller.operator.process import job_gauges
from controller.policy.job import Mark, attention, health, marks, summary
from controller.policy.job import conditions as c
from controller.policy.job.record import JobRecord
from controller.policy.job.types import Desired, Plan
from controller.policy.types import PolicySpec
from controller.web.dashboard import feed
from controller.web.dashboard import jobs as rows
from tests.policy.test_policy_marks import LATE, SOON, alone, any_three
from tests.support import cli_world as w

DESIRED = Desired("team/run", "uid", 1, "gold_reward", 1, 2, PolicySpec("kDeclines"))
LOST = " is kept to itself"


def written(record: JobRecord, now: float) -> tuple[dict[str, Any], list[str]]:
    """Return the RLHFJob as the operator leaves it at a moment, and the reasons of its Warnings."""
    plan = attention.with_attention(Plan(record), DESIRED, now)
    obj = w.whole("run", plan.record)
    obj["status"] |= stored.status(plan.record, DESIRED, now)
    obj["metadata"]["resourceVersion"] = "1"
    return obj, [event.reason for event in plan.events if event.warning]


def agree(record: JobRecord, now: float) -> None:
    """Check that all surfaces say what the record's health is."""
    found = health(record, now)
    warned = [one for one in found if one.warning]
    obj, events = written(record, now)
    job = job_view.read(obj)
    assert job.problem == ""
    # the condition and its Event
    told = job.condition(c.ATTENTION)
    assert (told is not None and told.status) == bool(warned), "condition" + LOST
    if warned:
        assert told is not None
        assert told.reason == warned[0].mark, "condition" + LOST
        assert events == ([] if warned[0].mark in attention.OWN_WARNINGS else [warned[0].mark]), (
            "Event" + LOST
        )
    # kubectl's columns, `list` and `top`
    (line,) = jobs.table([obj], jobs.fields(False, False), now, w_free(), header=False)
    state, reason = line.split()[1:3]
    assert state == job.state == summary(job.record.conditions)
    assert state in ORDER, "`top` has no place for it"
    if state in c.MARKED:
        assert state == warned[0].mark
    of_state = [one for one in found if state != "Stopped" or one.mark is not Mark.REFUSED]
    if of_state:
        assert reason == of_state[0].reason, "list" + LOST
    # why
    said = explanation.explain(job, now)
    troubles = [text for label, text in said.facts if label == "trouble"]
    assert len(troubles) == len(warned), "why" + LOST
    assert all(one.message in text for one, text in zip(warned, troubles, strict=True))
    document = explanation.document(job, said)
    assert [one["mark"] for one in document["marks"]] == [str(one.mark) for one in found], "why" + LOST
    assert all(one["cure"]["text"] for one in document["marks"])
    # doctor
    wrong = {x.about for x in checks.conditions(job, now) if x.level is Level.WRONG}
    assert wrong == {str(one.mark) for one in warned}, "doctor" + LOST
    # dashboard
    row = rows.row(feed.read_job(obj, {}), now)
    assert [one.mark for one in row.marks] == [one.mark for one in found], "dashboard" + LOST
    assert row.needs_attention == bool(warned)
    # metrics, from which alerts are made
    gauges = job_gauges.JobGauges(lambda: now)
    gauges.note("team/run", job.record)
    counted = {labels[0] for labels, value in gauges.marked() if value}
    assert counted == {str(one.mark) for one in warned}, "metrics" + LOST
    since = {labels[0]: now - value for labels, value in gauges.longest() if value}
    for one in warned:
        assert since[str(one.mark)] <= one.since + 1e-3
    # CloudEvents
    told_of = {
        x.more["mark"] for x in happenings.happenings("u", job.record, now) if x.kind == happenings.MARKED
    }
    assert told_of == {str(one.mark) for one in warned}, "notify" + LOST


def w_free() -> Any:
    from controller.cli.terminal import Terminal

    return Terminal()


def test_over_all_combinations_each_surface_says_the_same() -> None:
    for record, now in zip((*alone(), *any_three()), cycle((SOON, LATE))):
        agree(record, now)


SURFACES: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {
    "condition": lambda patch, health: patch.setattr(attention, "health", health),
    "why": lambda patch, health: patch.setattr(remedies, "health", health),
    "doctor": lambda patch, health: patch.setattr(checks, "marks", lambda job, now: health(job.record, now)),
    "dashboard": lambda patch, health: patch.setattr(rows, "health", health),
    "metrics": lambda patch, health: patch.setattr(job_gauges, "health", health),
    "notify": lambda patch, health: patch.setattr(happenings, "health", health),
    "list": lambda patch, health: patch.setattr(marks, "health", health),
}


@pytest.fixture(scope="module")
def bearers() -> dict[Mark, JobRecord]:
    """For each mark a record that bears it alone, as a warning."""
    found: dict[Mark, JobRecord] = {}
    for record in alone():
        borne = health(record, LATE)
        if len(borne) == 1 and borne[0].warning:
            found.setdefault(borne[0].mark, record)
    return found


# What `list` says of these without the mark is the same: their condition's reason.
ALIKE = {("list", Mark.REFUSED), ("list", Mark.FAILED)}


@pytest.mark.parametrize(
    ("surface", "mark"), [(s, m) for s in sorted(SURFACES) for m in Mark if (s, m) not in ALIKE]
)
def test_a_surface_that_keeps_a_mark_to_itself_is_found(
    mark: Mark, surface: str, bearers: dict[Mark, JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = bearers[mark]
    agree(record, LATE)
    SURFACES[surface](
        monkeypatch, lambda record, now: tuple(x for x in health(record, now) if x.mark is not mark)
    )
    with pytest.raises(AssertionError):
        agree(record, LATE)
