"""what-if against a hidden truth: what runs that were stopped would really have done is known here."""

from __future__ import annotations

from math import fsum, isfinite
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.types import PolicySpec
from sim import specs
from sim.cluster import Cluster
from sim.traces import TraceError
from sim.traces.past import End
from sim.what_if.arms import Alternative
from sim.what_if.compare import Comparison, Window, compare
from tests.support.hidden_history import Hidden, hidden

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module", params=SEEDS)
def past(request: pytest.FixtureRequest) -> Hidden:
    return hidden(request.param)


def value(made: Comparison, key: str) -> tuple[float, float]:
    found = [d.value for d in made.figure(key).difference]
    return min(found), max(found)


def true_values(past: Hidden, rule: str, policy: str = "fifo", gpus: int | None = None) -> dict[str, float]:
    after, before = past.truth(rule, policy, gpus), past.result
    return {
        "mean_jct": after.mean_jct - before.mean_jct,
        "gpu_hours": (fsum(after.service) - fsum(before.service)) / 3600.0,
        "stops": float(len(after.stopped) - len(before.stopped)),
    }


def test_the_record_replays_to_itself(past: Hidden) -> None:
    made = compare(past.trace, Alternative(enforce=True))
    assert made.base.result.ended == past.result.ended
    assert made.base.result.service == past.result.service
    assert made.base.result.stopped == past.result.stopped
    assert made.figure("mean_jct").baseline == pytest.approx(made.figure("mean_jct").recorded)
    for one in made.figures:
        assert one.interval == (0.0, 0.0)
        assert one.better is None


def test_a_stricter_rule_is_known_to_the_second(past: Hidden) -> None:
    """It stops every run before the recorded one did: nothing of what was not seen matters."""
    made = compare(past.trace, Alternative(rule=specs.rule("kDeclines:k=2")))
    assert [arm.name for arm in made.arms] == ["known"]
    for key, true in true_values(past, "kDeclines:k=2").items():
        assert value(made, key) == pytest.approx((true, true))


@pytest.mark.parametrize("rule", ["kDeclines:k=5", "scan", "drawdown", "none"])
def test_the_bounds_hold_the_truth(past: Hidden, rule: str) -> None:
    none = rule == "none"
    other = Alternative(stops=False) if none else Alternative(rule=specs.rule(rule))
    made = compare(past.trace, other)
    assert [arm.name for arm in made.arms] == ["least", "most"]
    for key, true in true_values(past, "" if none else rule).items():
        low, high = value(made, key)
        assert low - 1e-6 <= true <= high + 1e-6
        assert made.figure(key).interval[0] <= low
        assert high <= made.figure(key).interval[1]
    if none:  # that they would have run to their end is certain
        assert value(made, "mean_jct") == pytest.approx((true_values(past, "")["mean_jct"],) * 2)


def test_where_shadow_shows_what_comes_after_a_stop_nearest_is_near() -> None:
    for seed in SEEDS:
        past = hidden(seed, shadow=0.3)
        made = compare(past.trace, Alternative(rule=specs.rule("scan")), future="nearest", draws=10)
        assert any("that their rule would have stopped" in note for note in made.notes)
        for key, true in true_values(past, "scan").items():
            low, high = made.figure(key).interval
            assert low <= true <= high
            assert made.figure(key).difference[0].value == pytest.approx(true, rel=0.15)


def test_nearest_needs_runs_that_were_seen_whole(past: Hidden) -> None:
    jobs = [job for job in past.trace.jobs if job.past is not None and job.past.end is End.STOPPED]
    only_stopped = hidden(0).trace
    only_stopped.jobs = jobs
    with pytest.raises(ValueError, match="--future: nearest is not allowed here, for 0 runs with evals"):
        compare(only_stopped, Alternative(rule=specs.rule("kDeclines:k=9")), future="nearest")


@pytest.mark.parametrize(("policy", "gpus"), [("las", 64), ("fifo:backfill=true", 64), ("fifo", 80)])
def test_another_policy_or_cluster_is_known_to_the_second(past: Hidden, policy: str, gpus: int) -> None:
    """Stops hang on no queue: they are the recorded ones."""
    spec = specs.policy(policy)
    other = Alternative(
        policy=spec if spec != PolicySpec("fifo") else None,
        cluster=Cluster.slots(gpus) if gpus != 64 else None,
    )
    made = compare(past.trace, other)
    for key, true in true_values(past, "kDeclines:k=3", policy, gpus).items():
        assert value(made, key) == pytest.approx((true, true))


def test_enforcing_what_shadow_recorded_is_known() -> None:
    past = hidden(1, shadow=1.0)
    made = compare(past.trace, Alternative(enforce=True))
    assert made.figure("stops").baseline == 0
    for key, true in true_values(past, "kDeclines:k=3").items():
        assert value(made, key) == pytest.approx((true, true))
    assert made.figure("stops_unknown").alternative == (0.0,)


def test_a_stop_that_came_too_early_is_told_where_one_sees_what_came_after() -> None:
    """At a third of their training healthy runs are far from their best, hacking ones before their peak."""
    early, shadowed, enforced = specs.rule("fixedProgress:share=0.3"), hidden(1, shadow=1.0), hidden(1)
    seen = compare(shadowed.trace, Alternative(rule=early))
    stops = seen.figure("stops").alternative[0]
    assert seen.figure("stops_lost").alternative[0] > 0.8 * stops > 0
    assert seen.figure("stops_unknown").alternative == (0.0,)
    assert seen.figure("stops_lost").better is False
    cut = compare(enforced.trace, Alternative(rule=early))
    # Of runs that had been stopped one sees the rise to the peak, and that is enough.
    assert cut.figure("stops_lost").alternative[0] + cut.figure("stops_unknown").alternative[0] >= 0.8 * stops


def test_a_rule_that_looks_at_others_is_judged_while_they_run(past: Hidden) -> None:
    other = Alternative(rule=specs.rule("kDeclines:k=2+onlyWhenContended"))
    made = compare(past.trace, other)
    true = true_values(past, "kDeclines:k=2+onlyWhenContended")
    low, high = value(made, "gpu_hours")
    assert low - 1e-6 <= true["gpu_hours"] <= high + 1e-6
    assert any("judged while all of them run" in note for note in made.notes)
    graded = Alternative(rule=specs.rule("kDeclines:k=5+graded"))
    drawn = compare(past.trace, graded, future="nearest", draws=2)
    assert drawn.figure("stops").difference[0].value < 0


def test_a_window_measures_its_jobs_and_lets_all_run(past: Hidden) -> None:
    middle = sorted(past.workload.submitted)[40]
    window = compare(past.trace, Alternative(cluster=Cluster.slots(80)), window=Window(middle, None))
    whole = compare(past.trace, Alternative(cluster=Cluster.slots(80)))
    assert len(window.chosen) == sum(at >= middle for at in past.workload.submitted)
    assert window.base.result.ended == whole.base.result.ended
    assert window.figure("mean_jct").baseline != whole.figure("mean_jct").baseline
    assert any("were submitted in the window" in note for note in window.notes)


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_the_interval_of_a_difference_has_its_value(seed: int) -> None:
    past = _SMALL
    made = compare(past.trace, Alternative(cluster=Cluster.slots(72)), seed=seed)
    for one in made.figures:
        low, high = one.interval
        assert isfinite(low)
        if one.figure.key in ("mean_jct", "gpu_hours", "mean_wait"):
            assert low <= one.difference[0].value <= high


_SMALL = hidden(5, jobs=30)


def test_a_cluster_that_cannot_hold_a_job_is_refused(past: Hidden) -> None:
    with pytest.raises(ValueError, match=r"--nodes: 4 GPUs cannot hold .* expected room for each"):
        compare(past.trace, Alternative(cluster=Cluster.slots(4)))


def test_a_history_without_a_cluster_or_a_job_in_the_window_is_refused() -> None:
    past = hidden(0, jobs=5)
    with pytest.raises(ValueError, match="--from, --to: no job was submitted then"):
        compare(past.trace, Alternative(stops=False), window=Window(1e12, None))
    past.trace.cluster = None
    with pytest.raises(ValueError, match="--nodes: the history names none"):
        compare(past.trace, Alternative(stops=False))
    empty = hidden(0, jobs=5).trace
    empty.cluster = Cluster.slots(1)
    empty.skipped.__init__(skip=True)  # type: ignore[misc]
    empty.jobs = [job for job in empty.jobs if job.gpus > 1]
    with pytest.raises(TraceError, match="no job fits"):
        compare(empty, Alternative(stops=False))


def test_the_picture_is_drawn_as_its_name_says(tmp_path: Path) -> None:
    from sim.what_if.picture import draw

    made = compare(hidden(0, jobs=20).trace, Alternative(rule=specs.rule("scan")))
    draw(tmp_path / "w.svg", made)
    draw(tmp_path / "again.svg", made)
    drawn = (tmp_path / "w.svg").read_text()
    assert drawn == (tmp_path / "again.svg").read_text()
    for words in ("rule scan, against the record", "Jobs done within", "GPUs in use", "JCT, mean"):
        assert words in drawn
