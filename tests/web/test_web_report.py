"""Reports: one file that needs nothing, from statuses or a log, with what it could not see."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from controller.cli.report import _from_statuses
from controller.policy import decision_log
from controller.policy.job import TERMINATION, JobRecord, Observed, Plan
from controller.policy.job.record import Best, Condition, EvalBaseline, RunProgress
from controller.policy.types import Attempt, Mode
from controller.web.dashboard import report
from controller.web.dashboard.feed import Job, read_job
from controller.web.dashboard.savings import Saving, expected, savings, shares_run
from tests.support.dashboard_scene import STOPPED, scene
from tests.support.dashboard_world import (
    healthy,
    job_object,
    judged,
    over_optimising,
    stopped,
    until_stop,
    with_record,
)

NOW = 1_800_000_000.0
SCENE = scene(NOW)
POOLS = [obj for obj in SCENE if obj["kind"] == "GPUPool"]
JOBS = [obj for obj in SCENE if obj["kind"] == "RLHFJob"]


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def needs_nothing(text: str) -> str:
    """The report's words, once it is known to ask for nothing and to run nothing."""
    found = Elements(text)
    for tag, attributes in found.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "form", "base"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            if name in ("href", "src", "action", "xlink:href"):
                assert (value or "").startswith("#"), value
    assert re.findall(r"https?://(?!www\.w3\.org/)[^\s\"']*", text) == []
    assert "@import" not in text
    assert "url(h" not in text
    assert "@page { size: A4" in text
    words = " ".join(" ".join(found.words).split())
    assert not re.search(r"\b(nan|None|inf|Mode\.|Outcome\.)\b", words)
    return words


def of_pool() -> str:
    return needs_nothing(_from_statuses("research", None, POOLS, JOBS, NOW))


def test_a_pools_report_has_stops_savings_outcomes_waits_and_what_it_misses() -> None:
    words = of_pool()
    for said in (
        "Pool research",
        "5 stops shown, of 13 runs",
        "team-a/overoptimising",
        "3 evals in a row fell, limit 3",
        "kDeclines (Shadow: nothing was touched)",
        "3 runs wait now",
        "Who got the GPUs",
        "too few runs ended by themselves",
        "Times are UTC",
    ):
        assert said in words, said
    obj = next(obj for obj in JOBS if obj["metadata"]["name"] == "earlier-1")
    fewer = needs_nothing(_from_statuses("research", None, POOLS, [o for o in JOBS if o is not obj], NOW))
    assert "No stop that is known of is missing" in words
    assert "1 stop: the pool tells of it, and no run shows it any more" in fewer


def test_a_pools_report_for_one_namespace_agrees_with_itself() -> None:
    """It told of no stop that is missing beside handovers of runs that no table had."""
    obj = next(obj for obj in JOBS if obj["metadata"]["name"] == "earlier-1")
    mine = obj["metadata"]["namespace"]
    left = [o for o in JOBS if o["metadata"]["namespace"] == mine and o is not obj]
    words = needs_nothing(_from_statuses("research", None, POOLS, left, NOW, mine))
    assert "Runs of other namespaces were not asked for" in words
    assert "1 more, of runs that were deleted or resumed since, is known of by the pool" in words.replace(
        "1 stop more", "1 more"
    )
    assert "1 stop: the pool tells of it, and no run shows it any more" in words
    handed = words.partition("Who got the GPUs")[2]
    assert f"{mine}/earlier-1" in handed
    others = {o["metadata"]["namespace"] for o in JOBS} - {mine}
    assert not any(f"{other}/earlier" in handed.partition("Who waits")[0] for other in others)


def test_the_kept_step_is_that_of_the_checkpoint_that_was_kept() -> None:
    """Under a guardrail's stop the best rose on until the suspend: the step asked for was never kept."""
    job = read_job(next(obj for obj in JOBS if obj["metadata"]["name"] == STOPPED[1]), {})
    record, decision = job.record, job.record.decision
    assert decision is not None
    (copy,) = record.retained
    newer = replace(copy, step=copy.step + 50, best_step=copy.step + 50, at=copy.at + 9)
    older = replace(copy, step=3, at=decision.at - 100)
    shadow = replace(decision, mode=Mode.SHADOW)
    for changed, kept in (
        (record, copy.step),
        (replace(record, retained=(copy, newer)), newer.step),
        (replace(record, retained=(older, copy)), copy.step),
        (replace(record, retained=(older,), secured=newer), newer.step),
        (replace(record, retained=(), secured=None), None),
        (replace(record, decision=shadow), None),
    ):
        (stop,) = report._stops([replace(job, record=changed)])
        assert stop.kept == kept


def test_a_jobs_report_has_its_curve_decision_and_ways() -> None:
    obj = next(obj for obj in JOBS if obj["metadata"]["name"] == STOPPED[1])
    text = _from_statuses(STOPPED[1], obj, POOLS, JOBS, NOW)
    words = needs_nothing(text)
    assert text.count("<svg") == 1
    for said in (
        "stopped 170",
        "best 0.9",
        "planned to 400",
        "of flat runs of 17 evals",
        "Other rules:",
        "drawdown",
    ):
        assert said in words, said
    assert "suspended : 1.6 s later" in words or "suspended: 1.6 s later" in words


def test_names_and_last_words_are_text() -> None:
    evil = "<script>alert(1)</script>"
    obj = job_object("team-x", "evil", created=NOW - 500, metrics=[{"name": evil}])
    record = judged(obj, over_optimising(5)[:8], NOW, POOLS[0])
    text = _from_statuses("evil", with_record(obj, record, POOLS[0]), POOLS, [], NOW)
    assert evil not in text
    needs_nothing(text)


def line(job: Job, record: JobRecord, at: float) -> str:
    return decision_log.job_line(job.desired, Observed(), record, at, Plan(record, (), (), None, None, None))


def test_a_best_whose_checkpoint_is_lost_is_named() -> None:
    pool = POOLS[0]
    obj = job_object("team", "less", created=NOW - 9000)
    record = stopped(judged(obj, until_stop(obj, over_optimising(104), pool), NOW - 900, pool), NOW - 900)
    assert record.best is not None
    better = replace(record.best, step=1, score=99.0)
    lost = with_record(obj, replace(record, best=better, lost_bests=(better,)), pool)
    words = needs_nothing(_from_statuses("less", lost, POOLS, [], NOW))
    assert "Lost: the checkpoint of the best eval, step 1 (99): in safety is that of step" in words
    assert "Lost:" not in needs_nothing(
        _from_statuses("less", with_record(obj, record, pool), POOLS, [], NOW)
    )


def test_a_best_that_was_compared_with_nothing_is_told_as_that() -> None:
    pool = POOLS[0]
    obj = job_object("team", "one", created=NOW - 9000)
    record = replace(judged(obj, [(0.4, 0.5)], NOW, pool), evals_seen=1, best=Best(0, 0.4))
    told = "The best was compared with no other eval: all before were scored otherwise"
    for since, alone in ((EvalBaseline(0.0, "1-1", 0), True), (None, False)):
        words = needs_nothing(
            _from_statuses("one", with_record(obj, replace(record, baseline=since), pool), POOLS, [], NOW)
        )
        assert (told in words) is alone


def test_a_stop_that_was_asked_for_and_did_not_come_is_told() -> None:
    pool = POOLS[0]
    obj = job_object("team", "kept", created=NOW - 9000)
    record = replace(judged(obj, over_optimising(20), NOW, pool), decision=None)
    held = Condition(TERMINATION, False, "NoVerifiableCheckpoint", "no checkpoint is in safety", NOW - 9, 1)
    told = "Nothing has stopped it, though a stop was asked for. NoVerifiableCheckpoint: no checkpoint is in"
    for conditions, is_told in ((record.conditions, False), ((*record.conditions, held), True)):
        there = with_record(obj, replace(record, conditions=conditions), pool)
        words = needs_nothing(_from_statuses("kept", there, POOLS, [], NOW))
        assert (told in words) is is_told
        assert ("in Shadow nothing would have" in words) is not is_told


def test_a_higher_eval_that_does_not_count_is_named() -> None:
    pool = POOLS[0]
    obj = job_object("team", "peak", created=NOW - 9000, modifiers=[{"gate": {}}])
    curve = [(score, 0.5) for score in (0.40, 0.55, 0.70, 0.85, 0.72, 0.71, 0.70)]
    record = replace(judged(obj, curve, NOW, pool), best=Best(50, 0.72, Attempt(1, "1")))
    words = needs_nothing(_from_statuses("peak", with_record(obj, record, pool), POOLS, [], NOW))
    assert "Not counted: 0.85 at step 40 is higher than the best: the eval after it lay below" in words


def test_a_log_knows_what_was_deleted_and_says_where_it_begins() -> None:
    pool = POOLS[0]
    obj = job_object("team", "gone", created=NOW - 9000)
    first = stopped(judged(obj, until_stop(obj, over_optimising(104), pool), NOW - 900, pool), NOW - 900)
    job = read_job(obj, {"research": pool})
    resumed = replace(judged(obj, healthy(3), NOW - 500, pool), resume_id="a")
    again = stopped(judged(obj, until_stop(obj, over_optimising(5), pool), NOW - 100, pool), NOW - 100)
    lines = [line(job, first, NOW - 899), "torn {", line(job, resumed, NOW - 500), line(job, again, NOW - 99)]
    source = report.from_log(lines, "decisions.jsonl", lambda key, pool: True)
    assert [one.key for one in source.jobs] == ["team/gone"]
    assert len(source.stops) == 1
    words = needs_nothing(report.job_report(source.jobs[0], NOW, source))
    for said in (
        "from decisions.jsonl, which begins 2027-01-15 07:45:01 UTC",
        "1 line of the log could not be read",
        "What was stopped before the log begins is not in it",
    ):
        assert said in words, said
    assert words.count("limit 3") >= 2


def test_an_old_log_is_counted_and_not_misread() -> None:
    source = report.from_log(['{"v":1,"kind":"job"}', "[]"], "old", lambda key, pool: True)
    assert (source.jobs, source.since) == ((), None)
    assert source.notes[0].startswith("2 lines of the log could not be read")


# -- savings --------------------


def saved(job: Job, hours: float | None, done: float) -> Saving:
    return Saving(job, NOW, "kDeclines", 1, 2, 100, hours, done)


def test_savings_say_how_sure_they_are() -> None:
    job = read_job(JOBS[0], {})
    few = expected([saved(job, 10.0, 0.5)], [1.0] * 4)
    assert (few.most, few.about) == (10.0, None)
    assert few.sentence() == (
        "about 10 GPU-hours saved if the runs had gone on to their planned ends; too few runs ended by "
        "themselves (4, 5 are needed) to say how far they would have come"
    )
    sure = expected([saved(job, 10.0, 0.5)], [1.0] * 9)
    assert (sure.about, sure.low, sure.high) == (10.0, 10.0, 10.0)
    # Of those beyond one half, half ended at three quarters: they would have used half of what was left.
    mixed = expected([saved(job, 10.0, 0.5)] * 100, [0.2, 0.75, 0.75, 1.0, 1.0])
    assert mixed.about == pytest.approx(750.0)
    assert mixed.low is not None
    assert mixed.high is not None
    assert mixed.low < 750.0 < mixed.high <= 1000.0
    assert mixed.high - mixed.low == pytest.approx(2 * 1.2816 * 25.0, rel=1e-3)
    assert "of 2 stops it is not known" in expected([saved(job, None, 0.0)] * 2, []).sentence()
    assert expected([], []).sentence() == "no GPU-hours are known to be saved"


def test_only_runs_that_no_rule_stopped_say_how_far_runs_come() -> None:
    jobs = [read_job(obj, {"research": POOLS[0]}) for obj in JOBS]
    found = shares_run(jobs)
    assert found == [240 / 400]  # finished-fine, at its newest progress; the stopped ones do not count
    assert len(savings(jobs).stops) == 4
    done: Any = replace(jobs[0].record, progress=RunProgress(170, 340, 4800.0))
    (one,) = savings([replace(jobs[0], record=done)]).stops
    assert one.done == 0.5
