"""What a rule of a running job sees besides scores: progress, loss, peers; and that all of it is replayed."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.names import EVALS_KEPT
from controller.policy import decision_log
from controller.policy.job import peers
from controller.policy.job.evals import ingest, rewind
from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction, Observed, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint, FleetView, PeersAt, PolicySpec, Verb, Verdict
from tests.support.policy_world import PolicyWorld

FIXED = PolicySpec("fixedProgress", {"share": 0.5})
PLATEAU = PolicySpec("lossPlateau", {"window": 2, "min_improvement": 0.01})
MEDIAN = PolicySpec("medianOfPeers", {"min_peers": 2, "grace": 2})


def running(rule: PolicySpec, **spec: Any) -> PolicyWorld:
    world = PolicyWorld({"n1": 1})
    world.submit("ns/a", rule=rule, **spec)
    world.settle()
    return world


def verdict(world: PolicyWorld) -> Verdict:
    found = world.jobs["ns/a"].record.rule
    assert found is not None
    assert found.verdict is not None
    return found.verdict


def evals(world: PolicyWorld, *scores: float, **fields: Any) -> None:
    """The trainer's next evals, a scrape with these fields, and a pass over the job."""
    world.scores("ns/a", *scores)
    job = world.jobs["ns/a"]
    assert job.observed.scrape is not None
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, **fields))
    world.step("ns/a")


def stopped_at(world: PolicyWorld) -> int:
    world.settle()
    decision = world.jobs["ns/a"].record.decision
    assert decision is not None
    return decision.proposal.step


# -- progress ------------------------------------------------------------------------------------------------


def test_a_run_is_stopped_at_its_share_of_the_steps() -> None:
    w = running(FIXED)
    evals(w, 0.1, 0.2, 0.3, step=30, total_steps=100)
    assert (verdict(w).reason, verdict(w).statistic) == ("BeforeShare", 0.3)
    evals(w, 0.4, 0.5, step=50, total_steps=100)
    assert (verdict(w).verb, verdict(w).reason, verdict(w).statistic) == (Verb.STOP, "ProgressReached", 0.5)
    assert stopped_at(w) == 50


def test_the_number_of_steps_is_remembered_where_a_scrape_lacks_it() -> None:
    w = running(FIXED)
    evals(w, 0.1, step=10, total_steps=40)
    evals(w, 0.2, step=20)
    assert (verdict(w).verb, verdict(w).statistic) == (Verb.STOP, 0.5)


def test_without_a_number_of_steps_progress_is_not_known() -> None:
    w = running(FIXED)
    evals(w, 0.1, step=10)
    assert (verdict(w).verb, verdict(w).reason) == (Verb.CONTINUE, "ProgressUnknown")


# -- training loss -------------------------------------------------------------------------------------------


def test_a_loss_that_no_longer_falls_stops_the_run() -> None:
    w = running(PLATEAU)
    for loss in (2.0, 1.0, 0.5, 0.4):
        evals(w, 0.1, loss=loss)
    assert verdict(w).reason == "LossFalling"
    evals(w, 0.1, loss=0.4999)
    assert (verdict(w).verb, verdict(w).reason) == (Verb.STOP, "LossPlateau")
    assert stopped_at(w) == 50


def test_the_loss_is_of_the_newest_eval_of_a_scrape_and_counts_once() -> None:
    w = running(PLATEAU)
    evals(w, 0.1, 0.2, 0.3, loss=1.0)
    assert world_state(w) == ((1.0,),)
    w.step("ns/a")  # the same scrape again
    assert world_state(w) == ((1.0,),)
    evals(w, 0.4)  # a scrape without a loss is a gap
    assert (verdict(w).reason, world_state(w)) == ("LossUnknown", ((1.0,),))


def world_state(world: PolicyWorld) -> tuple[Any, ...]:
    found = world.jobs["ns/a"].record.rule
    assert found is not None
    return found.state


def test_after_a_rewind_the_losses_are_a_gap_and_stop_nothing() -> None:
    w = running(PLATEAU)
    for _ in range(2):
        evals(w, 0.1, loss=1.0)
    job = w.jobs["ns/a"]
    later = Attempt(1, "50")
    w.scrape("ns/a", points=(EvalPoint(20, 0.1, later),), checkpoint_step=20, loss=1.0, resumed_step=10)
    w.step("ns/a")
    assert [p.step for p in job.record.evals] == [10, 20]
    assert (verdict(w).reason, world_state(w)) == ("TooFewEvals", ((1.0,),))


# -- peers ---------------------------------------------------------------------------------------------------


def test_a_run_whose_best_is_below_its_peers_is_stopped() -> None:
    w = running(MEDIAN)
    w.peers = (PeersAt(10, 2, 0.5),)
    evals(w, 0.2)
    assert verdict(w).reason == "TooFewEvals"
    w.peers = (PeersAt(20, 1, 0.5),)
    evals(w, 0.3)
    assert verdict(w).reason == "TooFewPeers"
    w.peers = (PeersAt(10, 9, 0.9), PeersAt(30, 2, 0.5))
    evals(w, 0.4)
    assert (verdict(w).verb, verdict(w).reason, verdict(w).threshold) == (Verb.STOP, "BelowPeers", 0.5)
    w.peers = ()
    assert stopped_at(w) == 30


def test_other_rules_are_told_nothing_of_peers_and_guardrails_have_none() -> None:
    from controller.policy.job.types import Guardrail

    plain = Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("kDeclines"))
    assert not peers.wanted(plain)
    assert not peers.wanted(replace(plain, guardrails=(Guardrail("safety", MEDIAN),)))
    assert peers.wanted(replace(plain, rule=MEDIAN))
    assert not peers.wanted(replace(plain, rule=PolicySpec("nobody")))


def use(direction: Direction = Direction.MAXIMIZE) -> RuleInUse:
    return RuleInUse.of(Desired("ns/a", "u", 1, "gold", 1, 1, MEDIAN, direction=direction))


def scrape(*points: EvalPoint, resumed: int | None = None) -> ScrapeView:
    return ScrapeView(ScrapeOutcome.OK, at=1.0, metrics_seen=("gold",), points=points, resumed_step=resumed)


def record_of(scores: list[float]) -> JobRecord:
    record = JobRecord()
    for n, score in enumerate(scores, start=1):
        record = ingest(record, use(), scrape(EvalPoint(10 * n, score, Attempt(1, "1"))))
    return record


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.integers(0, 900))
def test_a_curve_is_the_mean_of_all_evals_up_to_a_step_or_not_known(scores: list[float], step: int) -> None:
    curve = peers.PeerCurve.of(record_of(scores))
    assert curve is not None
    mean, upto = curve.mean_at(step), scores[: step // 10]
    oldest = max(0, len(scores) - EVALS_KEPT) + 1
    if not 10 * oldest <= step <= 10 * len(scores):
        assert mean is None
    else:
        assert mean == pytest.approx(fmean(upto), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(("back", "earlier"), [(350, True), (90, True), (60, False)])
def test_a_rewind_keeps_the_sum_of_what_lies_before_the_window(back: int, earlier: bool) -> None:
    """40 evals, of which the first 8 are no longer kept."""
    scores = [float(n % 7) for n in range(40)]
    after = rewind(record_of(scores), use(), back)
    curve = peers.PeerCurve.of(after)
    if earlier:
        assert curve is not None
        assert curve.mean_at(back) == pytest.approx(fmean(scores[: back // 10]))
    else:
        assert curve is None
        assert (after.evals_seen, after.earlier_sum) == (0, None)


def test_a_sum_that_is_not_known_makes_no_peer() -> None:
    record = replace(record_of([0.5] * 40), earlier_sum=None)
    assert peers.PeerCurve.of(record) is None
    assert peers.PeerCurve.of(JobRecord()) is None


@given(
    st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=12), max_size=6), st.sampled_from(Direction)
)
def test_standings_are_the_median_of_those_who_came_so_far(runs: list[list[float]], way: Direction) -> None:
    curves = [c for r in runs if (c := peers.PeerCurve.of(record_of(r))) is not None]
    sign = 1.0 if way is Direction.MAXIMIZE else -1.0
    found = {p.step: p for p in peers.standings(curves, range(5, 135, 5), way)}
    for step in range(5, 135, 5):
        means = [sign * fmean(r[: step // 10]) for r in runs if 10 <= step <= 10 * len(r)]
        if not means:
            assert step not in found
        else:
            assert found[step].runs == len(means)
            assert found[step].median == pytest.approx(median(means), abs=1e-9)


def test_only_steps_that_are_new_to_the_record_are_asked_about() -> None:
    record = record_of([0.1, 0.2])
    same, later = Attempt(1, "1"), Attempt(1, "2")
    points = (EvalPoint(10, 0.1, same), EvalPoint(20, 0.2, same), EvalPoint(30, 0.3, same))
    assert peers.unseen_steps(record, scrape(*points)) == (30,)
    assert peers.unseen_steps(record, scrape(EvalPoint(20, 0.1, later))) == (20,)  # it resumed from 10
    assert peers.unseen_steps(JobRecord(), scrape(*points)) == (10, 20, 30)
    assert peers.unseen_steps(record, None) == ()


# -- the decision log ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "fields", "told"),
    [
        (FIXED, {"step": 30, "total_steps": 40}, ()),
        (PLATEAU, {"loss": 0.75}, ()),
        (MEDIAN, {}, (PeersAt(10, 3, 0.1), PeersAt(30, 3, 0.9))),
    ],
)
def test_what_was_seen_is_in_the_log_and_replays_byte_for_byte(
    rule: PolicySpec, fields: dict[str, Any], told: tuple[PeersAt, ...]
) -> None:
    w = running(rule)
    w.scores("ns/a", 0.1, 0.2, 0.3)
    job = w.jobs["ns/a"]
    assert job.observed.scrape is not None
    shown = replace(job.observed.scrape, **fields)
    observed: Observed = replace(job.observed, scrape=shown, fleet=FleetView(peers=told))
    planned = plan_job(job.desired, observed, job.record, w.now)
    assert planned.record.rule != job.record.rule
    (replayed,) = decision_log.replay(
        [decision_log.job_line(job.desired, observed, job.record, w.now, planned)]
    )
    assert replayed.same
