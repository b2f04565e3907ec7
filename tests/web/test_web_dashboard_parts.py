"""The dashboard's parts without a browser: lists, savings, charts, what-if, settings, queues."""

from __future__ import annotations

import asyncio
import math
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.environ import SettingsError
from controller.policy.job import Course, conditions, course
from controller.policy.job.record import Best, JobRecord, RunProgress
from controller.policy.types import Attempt, EvalPoint, EvalScale, Mode, PolicySpec
from controller.web.dashboard import charts, render, run_chart
from controller.web.dashboard.feed import Job, read_job
from controller.web.dashboard.jobs import ORDERS, PAGE, ListQuery, listing, row
from controller.web.dashboard.pages import awaits, curve_of, not_counted, warned_step
from controller.web.dashboard.queues import FixedAddress, Queues
from controller.web.dashboard.savings import saving, savings
from controller.web.dashboard.settings import Settings, describe
from controller.web.dashboard.states import GROUPS, STATES, state
from controller.web.dashboard.svg import VARIABLES
from controller.web.dashboard.svg_elements import COLOURS
from controller.web.dashboard.whatif import what_if
from tests.support.dashboard_scene import many, scene
from tests.support.dashboard_world import (
    healthy,
    job_object,
    judged,
    over_optimising,
    pool_object,
    stopped,
    until_stop,
    with_record,
)

POOL = pool_object()
NOW = 1_800_000_000.0


def of_evals(*points: EvalPoint) -> Course:
    return course(JobRecord(evals=points))


def as_job(obj: dict[str, Any]) -> Job:
    return read_job(obj, {"research": POOL})


def test_a_peak_above_the_best_is_said_to_be_none(halted: Job) -> None:
    """The star stood below the peak, and nothing told why."""
    best = halted.record.best
    assert best is not None
    gated = replace(halted, desired=replace(halted.desired, modifiers=(PolicySpec("gate"),)))
    assert (not_counted(gated), awaits(gated)) == ("", "")
    step, after = (p.step for p in gated.record.evals[2:4])
    points = tuple(p._replace(score=9.0) if p.step == step else p for p in gated.record.evals)
    peak = replace(gated, record=replace(gated.record, evals=points))
    assert not_counted(peak) == (
        f"not counted: 9 at step {step} is higher than the best: the eval after it lay below half of its "
        f"rise; its checkpoint: not kept; evalstop resume halted -n a --step {step} --yes goes on from it "
        "while the trainer's own is there"
    )
    assert not_counted(replace(peak, desired=halted.desired)) == ""
    waits = replace(peak, record=replace(peak.record, awaiting=Best(step, 9.0)))
    assert not_counted(waits) == ""
    assert awaits(waits).startswith(f"The better score at step {step} is not the best: no other eval bears")
    assert awaits(replace(peak, record=replace(peak.record, awaiting=Best(after, -9.0)))) == ""


@pytest.fixture(scope="module")
def halted() -> Job:
    """A run that its rule stopped."""
    obj = job_object("a", "halted", created=NOW - 9000)
    curve = until_stop(obj, over_optimising(104), POOL)
    return as_job(with_record(obj, stopped(judged(obj, curve, NOW, POOL), NOW), POOL))


ROWS = [row(as_job(obj), NOW) for obj in many(240, NOW) if obj["kind"] == "RLHFJob"]


@given(
    st.sampled_from(["", *GROUPS, "attention"]),
    st.sampled_from([sign + order for sign in ("", "-") for order in ORDERS]),
    st.sampled_from(["", "run-00", "team-03/", "stopped", "none of them"]),
)
def test_pages_hold_each_wanted_row_once_and_in_order(group: str, order: str, text: str) -> None:
    wanted = ListQuery(text=text, group=group, order=order)
    first = listing(ROWS, wanted)
    pages = [listing(ROWS, replace(wanted, page=n + 1)) for n in range(first.pages)]
    found = [r for page in pages for r in page.rows]
    assert len(found) == len({r.job.key for r in found}) == first.total
    assert all(len(page.rows) == PAGE for page in pages[:-1])
    for one in found:
        assert all(w in f"{one.job.key} {one.state.word}".lower() for w in text.split())
        assert not group or one.state.group == group or (group == "attention" and one.needs_attention)
    if order.lstrip("-") == "gpus":
        assert [r.job.gpus for r in found] == sorted((r.job.gpus for r in found), reverse=order[0] == "-")
    if order == "name":
        assert all(a.job.key < b.job.key for a, b in pairwise(found))
    assert listing(ROWS, replace(wanted, page=10**6)).page == first.pages


@given(st.dictionaries(st.sampled_from(["q", "state", "pool", "namespace", "sort", "page"]), st.text()))
def test_any_query_is_understood_or_left_out(query: dict[str, str]) -> None:
    wanted = ListQuery.of(query)
    assert wanted.page >= 0
    assert wanted.order.lstrip("-") in ORDERS
    assert ListQuery.of(wanted.query()) == replace(wanted, page=1)


def test_every_word_that_sums_up_a_jobs_conditions_has_a_shape_of_its_own() -> None:
    source = Path(conditions.__file__).read_text().split("def summary")[1]
    words = set(re.findall(r'"([A-Z][a-z]+)"', source)) - {"TooLarge"}
    assert {"Running", "Stopped", "Queued", "Unfit"} <= words
    assert words <= set(STATES)
    assert len({s.shape for s in STATES.values()}) == len(STATES)
    assert state("Novel").word == "Novel"


@pytest.mark.parametrize(
    ("change", "hours"),
    [
        ({}, (400 - 170) * 24.0 / 3600.0),
        ({"progress": RunProgress(200, 200, 4800.0)}, 0.0),
        ({"progress": RunProgress(250, 200, 4800.0)}, 0.0),
        ({"progress": None}, None),
        ({"progress": RunProgress(0, 200, 0.0)}, None),
    ],
)
def test_what_a_stop_saved(halted: Job, change: dict[str, Any], hours: float | None) -> None:
    found = saving(replace(halted, record=replace(halted.record, **change)))
    assert found is not None
    assert found.hours == (None if hours is None else pytest.approx(hours))


def test_what_no_rule_has_carried_out_saves_nothing(halted: Job) -> None:
    decision = halted.record.decision
    assert decision is not None
    for other in (
        None,
        replace(decision, mode=Mode.SHADOW),
        replace(decision, by="User"),
        replace(decision, pods_gone_at=None),
    ):
        assert saving(replace(halted, record=replace(halted.record, decision=other))) is None
    both = savings([halted, replace(halted, record=replace(halted.record, progress=None))])
    assert (len(both.stops), both.unknown) == (2, 1)
    assert both.hours == pytest.approx(230 * 24 / 3600)


def test_a_chart_is_clean_of_inline_style_and_fixed_colours(halted: Job) -> None:
    drawn = run_chart.curve_svg(curve_of(halted, other_stop=120), "p", False)
    root = ET.fromstring(drawn)
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    assert all(i is not None and i.startswith("p-") for i in ids)
    for element in root.iter():
        assert element.tag.rpartition("}")[2] not in ("style", "script", "metadata", "image")
        assert "style" not in element.attrib
        for name in ("fill", "stroke"):
            colour = element.get(name, "none")
            assert colour == "none" or colour.startswith(("var(--", "url(#p-")), colour
        for name in ("href", "clip-path"):
            target = element.get(name)
            assert target is None or re.fullmatch(r"url\(#(p-[^)]+)\)|#(p-.+)", target)
    css = (Path(charts.__file__).parent / "static" / "dashboard.css").read_text()
    assert all(f"{name}:" in css for name in (*VARIABLES.values(), *COLOURS))
    words = " ".join(root.itertext())
    for said in ("best 0.9", "stopped 170", "other rule stops 120", "gold_reward", "reward model"):
        assert said in words


@pytest.mark.parametrize("metric", ["$x$", "$\\frac{", "<b>&amp;", "a" * 200, "日本語", "\\alpha_{1}^2"])
def test_any_metrics_name_is_drawn_as_it_is(metric: str) -> None:
    points = (EvalPoint(1, 0.5, Attempt(1, "1")), EvalPoint(2, 0.6, Attempt(1, "1"), stderr=math.nan))
    drawn = run_chart.curve_svg(run_chart.RunChart(metric, of_evals(*points), (2, 0.6)), "p", True)
    assert metric[:60] in " ".join(ET.fromstring(drawn).itertext())


def test_one_eval_and_equal_evals_can_be_drawn() -> None:
    for scores in ([0.5], [0.5, 0.5, 0.5], [1e300, -1e300], [1e-300, 2e-300]):
        points = tuple(EvalPoint(n, s, Attempt(1, "1"), proxy=s) for n, s in enumerate(scores))
        drawn = run_chart.curve_svg(run_chart.RunChart("m", of_evals(*points)), "p", False)
        assert "nan" not in drawn
        assert "inf" not in drawn.replace("infor", "")
        ET.fromstring(drawn)


def test_a_pools_bar_says_its_numbers_and_tells_parts_by_hatch() -> None:
    drawn = charts.gpus_svg(5, 3, 2, 6, "p", False)
    assert "used 5, reserved 3, others 2, free 6" in drawn
    assert drawn.count("<pattern") == 2
    drawn = charts.gpus_svg(5, 3, 2, 6, "p", False, 4)
    assert "used 5, worker groups 4, reserved 3, others 2, free 6" in drawn
    assert drawn.count("<pattern") == 3
    assert "<svg" in charts.gpus_svg(0, 0, 0, 0, "p", True)


def test_a_runs_own_rule_on_its_own_curve_stops_it_where_it_was_stopped(halted: Job) -> None:
    shown = what_if(halted, {})
    assert (shown.rule, shown.asked, shown.outcome) == ("kDeclines", False, None)
    assert {c.name: c.value for c in shown.choices}["minDelta"] == "0.01"
    query = {"rule": "kDeclines", "run": "1", **{f"p.{c.name}": c.value for c in shown.choices}}
    answer = what_if(halted, query | {"warmUp": shown.warm_up})
    assert answer.problem == ""
    assert halted.record.decision is not None
    assert answer.outcome.stopped_step == halted.record.decision.proposal.step
    assert answer.text == "kDeclines(minDelta=0.01) + warmUp(minEvals=5)"
    never = what_if(halted, query | {"p.k": "9", "warmUp": ""})
    assert never.problem == ""
    assert never.outcome.stopped_step is None


def test_what_a_run_declares_of_its_evals_is_shown_to_another_rule(halted: Job) -> None:
    query = {"rule": "scan", "run": "1", "p.alpha": "0.04", "warmUp": ""}
    stopped_step = what_if(halted, query).outcome.stopped_step
    assert stopped_step is not None
    few = replace(halted.desired, scale=EvalScale(1, (-1000.0, 1000.0)))  # so its errors are not believed
    assert what_if(replace(halted, desired=few), query).outcome.stopped_step is None


def test_the_warning_stands_where_the_rule_first_warned_and_did_not_take_it_back() -> None:
    modifiers = [{"warmUp": {"minEvals": 5}}, {"graded": {}}]
    obj = job_object("a", "graded", created=NOW, modifiers=modifiers)
    curve = until_stop(obj, over_optimising(104), POOL)
    stop = len(curve) * 10

    def warned(end: int) -> int | None:
        return warned_step(as_job(with_record(obj, judged(obj, curve[:end], NOW, POOL), POOL)))

    assert warned(len(curve) - 2) is None
    assert warned(len(curve) - 1) == stop - 10  # two declines of three
    record = stopped(judged(obj, curve, NOW, POOL), NOW)
    assert warned_step(as_job(with_record(obj, record, POOL))) == stop - 10
    better = [*curve[:-1], (2.0, 2.0)]
    assert warned_step(as_job(with_record(obj, judged(obj, better, NOW, POOL), POOL))) is None
    plain = job_object("a", "plain", created=NOW)
    assert warned_step(as_job(with_record(plain, judged(plain, curve[:-1], NOW, POOL), POOL))) is None


def test_a_form_with_another_rule_has_that_rules_parameters(halted: Job) -> None:
    shown = what_if(halted, {"rule": "drawdown"})
    assert "maxDrop" in {c.name for c in shown.choices}
    assert not shown.asked


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, render.UNKNOWN),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (5025, "1 h 23 min"),
        (200000, "2 d 7 h"),
    ],
)
def test_spans_for_people(seconds: float | None, text: str) -> None:
    assert render.span(seconds) == text


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HOST": "0.0.0.0"}, "tokens would cross the network in the clear"),
        ({"HOST": "0.0.0.0", "TLS_CERT": __file__}, "expected both or none"),
        ({"PORT": "70000"}, "EVALSTOP_DASHBOARD_PORT='70000': expected a port"),
        ({"QUEUE_URL": "file:///etc/passwd"}, "expected an http or https address"),
        ({"TLS_CERT": "/not/there", "TLS_KEY": __file__}, "EVALSTOP_DASHBOARD_TLS_CERT='/not/there'"),
        ({"COLOUR": "red"}, "EVALSTOP_DASHBOARD_COLOUR: no such setting"),
    ],
)
def test_wrong_settings_are_refused_by_name(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        Settings.from_environ({f"EVALSTOP_DASHBOARD_{k}": v for k, v in environ.items()})


def test_settings_that_go_together() -> None:
    assert Settings.from_environ({}).host == "127.0.0.1"
    given = {"HOST": "0.0.0.0", "PLAIN_HTTP": "allow", "ALLOWED_HOSTS": " A.example, b:8082,"}
    found = Settings.from_environ({f"EVALSTOP_DASHBOARD_{k}": v for k, v in given.items()})
    assert found.hosts == ("a.example", "b:8082")
    assert Settings.from_environ({"EVALSTOP_DASHBOARD_HOST": "::1"}).host == "::1"
    page = (Path(__file__).parents[2] / "docs" / "use" / "dashboard.md").read_text()
    for name, default, _ in describe():
        assert f"| `{name}` |" in page, name
        assert default in page


def test_a_queue_that_cannot_be_asked_is_told_and_not_asked_in_a_loop() -> None:
    class Lost(FixedAddress):
        told = 0

        def broken(self) -> None:
            self.told += 1

    async def work() -> None:
        way = Lost("http://127.0.0.1:9")  # discard: nobody listens
        queues = Queues(way)
        for _ in range(3):
            found = await queues.of("research")
            assert found.queue is None
            assert "does not answer" in found.problem
        assert way.told == 1
        assert (await Queues(FixedAddress()).of("p")).problem == FixedAddress.why

    asyncio.run(work())


def test_a_jobs_score_below_its_best_follows_the_metrics_direction() -> None:
    spec = {"metrics": [{"name": "loss", "direction": "Minimize"}]}
    obj = job_object("a", "lower", created=NOW, **spec)
    record = judged(obj, [(3.0, 0.1), (2.0, 0.2), (2.5, 0.3)], NOW, POOL)
    found = row(as_job(with_record(obj, record, POOL)), NOW)
    assert (found.best, found.score) == (2.0, 2.5)
    assert found.below == pytest.approx(0.25)
    assert row(as_job(job_object("a", "new")), NOW).below is None


def test_a_job_seen_without_its_pool_is_read_all_the_same() -> None:
    obj = job_object("a", "alone", created=NOW)
    record = judged(obj, healthy(1), NOW, POOL)
    found = read_job(with_record(obj, record, POOL), {})
    assert found.problem == ""
    assert found.record.best == record.best
    assert found.rule_text == "kDeclines(k=3, minDelta=0.01) + warmUp(minEvals=5)"


def test_the_scene_is_what_an_operator_could_have_left() -> None:
    """The pictures in the docs are drawn from it."""
    jobs = [as_job(obj) for obj in scene(time.time()) if obj["kind"] == "RLHFJob"]
    assert all(job.problem == "" for job in jobs)
    assert {state(job.summary).group for job in jobs} >= {"running", "waiting", "stopped", "ended"}
    assert all(isinstance(job.record, JobRecord) for job in jobs)
