"""Metrics of worker groups: states at a scrape, and totals that never go back."""

from __future__ import annotations

from controller.gauges import ProcessMetrics
from controller.operator.process.group_gauges import GroupFigures, GroupGauges
from controller.operator.process.job_gauges import JobGauges
from controller.policy.job.record import Best, JobRecord, Outcome, ResidencyRecord, StopOutcome
from controller.policy.types import Mode


class Groups:
    def __init__(self) -> None:
        self.now, self.found = 100.0, list[GroupFigures]()
        self.metrics = ProcessMetrics()
        GroupGauges(lambda: self.found, lambda: self.now).register(self.metrics)

    def scraped(self) -> dict[str, float]:
        self.now += 15.0
        lines = self.metrics.text().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if x[0] != "#")}


def figures(name: str, **change: object) -> GroupFigures:
    return GroupFigures(name, "Ready", ("Joined",), 8, 1, 20.0, 110.0)._replace(**change)  # type: ignore[arg-type]


def test_states_and_ages() -> None:
    groups = Groups()
    assert groups.scraped()["evalstop_worker_group_unready_seconds"] == 0.0
    groups.found = [
        figures("wg-1"),
        figures("wg-2", residents=("Joined", "Leaving"), reported=60.0),
        figures("wg-3", state="Opening", residents=("Joining",), opened=50.0, reported=None),
    ]
    found = groups.scraped()
    assert found['evalstop_worker_groups{state="Ready"}'] == 2
    assert found['evalstop_worker_groups{state="Opening"}'] == 1
    assert found['evalstop_worker_group_residents{state="Joined"}'] == 2
    assert found["evalstop_worker_group_gpus"] == 24
    assert found["evalstop_worker_group_unready_seconds"] == groups.now - 50.0
    assert found["evalstop_worker_group_unheard_seconds"] == groups.now - 60.0


def test_a_group_that_does_not_answer_is_counted_from_its_newest_report() -> None:
    groups = Groups()
    groups.found = [figures("wg-1", state="NoAnswer", reported=105.0, unanswered=108.0)]
    found = groups.scraped()
    assert found['evalstop_worker_groups{state="NoAnswer"}'] == 1
    assert found["evalstop_worker_group_unheard_seconds"] == groups.now - 105.0
    # An operator that has just begun goes by what was written; without that it has not asked for long.
    groups.found = [figures("wg-1", state="NoAnswer", reported=None, unanswered=40.0)]
    assert groups.scraped()["evalstop_worker_group_unheard_seconds"] == groups.now - 40.0
    groups.found = [figures("wg-1", opened=20.0, reported=None)]
    assert groups.scraped()["evalstop_worker_group_unheard_seconds"] == groups.now - 100.0


def test_totals_never_go_back() -> None:
    groups = Groups()
    name = 'evalstop_worker_group_turns_total{end="Released"}'
    seen = []
    for one in (
        figures("wg-1", released=5),
        figures("wg-1", released=9),
        figures("wg-1", released=6),  # a resident left, with its turns
        figures("wg-1", released=8),
        figures("wg-1", released=3, start=2),
        figures("wg-2", released=1),
    ):
        groups.found = [one]
        seen.append(groups.scraped()[name])
    assert seen == [5, 9, 9, 11, 14, 15]


def test_residents_that_are_slower_than_they_allow_are_counted() -> None:
    gauges = JobGauges(lambda: 0.0)
    slow = JobRecord(residency=ResidencyRecord("wg-1", 1, 0.0, above=3))
    gauges.note("a/slow", slow)
    gauges.note("a/quick", JobRecord(residency=ResidencyRecord("wg-1", 1, 0.0)))
    assert list(gauges.slowed()) == [((), 1.0)]
    gauges.note("a/slow", JobRecord(residency=ResidencyRecord("wg-1", 1, 0.0)))
    assert list(gauges.slowed()) == [((), 0.0)]
    gauges.note("a/slow", slow)
    gauges.forget("a/slow")
    assert list(gauges.slowed()) == [((), 0.0)]


def test_stops_are_counted_by_whether_they_were_right() -> None:
    gauges = JobGauges(lambda: 0.0)
    for name, mode, verdict in (
        ("a/1", Mode.SHADOW, Outcome.BORNE_OUT),
        ("a/2", Mode.SHADOW, Outcome.BORNE_OUT),
        ("a/3", Mode.ENFORCE, Outcome.REFUTED),
        ("a/4", Mode.ENFORCE, Outcome.OPEN),
    ):
        stop = StopOutcome(1.0, mode, 50, Best(30, 0.6), verdict=verdict, later=Best(90, 0.7), evals=9)
        gauges.note(name, JobRecord(outcome=stop))
    gauges.note("a/4", JobRecord())  # resumed, and not stopped since
    counted = {labels: value for labels, value in gauges.outcomes() if value}
    assert counted == {("Shadow", "BorneOut"): 2.0, ("Enforce", "Refuted"): 1.0}
    gauges.forget("a/1")
    assert dict(gauges.outcomes())["Shadow", "BorneOut"] == 1.0
