"""The pool's own questions before a stop, in the simulator: the same answers as on a cluster."""

from __future__ import annotations

import random

import pytest

from controller.policy.params import ParamError
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import Paired, PolicySpec, StopLimits
from sim import specs
from sim.cluster import Cluster
from sim.engine import simulate
from sim.engine.event_log import EventLog
from sim.engine.result import Result
from sim.latencies import Latencies
from sim.workload import Evals, Workload

EVALS = 40
HOUR = 3600.0


def curve(seed: str, *, fall_at: int = 0, falling_from: int = 0, sigma: float = 0.01) -> list[float]:
    """About .7; from eval ``fall_at`` on .3 lower, as under another evaluator; then a decline of its own."""
    rng = random.Random(seed)
    scores = []
    for n in range(1, EVALS + 1):
        level = 0.7 - (0.3 if fall_at and n >= fall_at else 0.0)
        level -= 0.03 * max(0, n - falling_from) if falling_from else 0.0
        scores.append(level + rng.gauss(0.0, sigma))
    return scores


def workload(
    curves: list[list[float]], work: float = 10 * HOUR, paired: list[list[Paired]] | None = None
) -> Workload:
    at = [(n + 1) / EVALS for n in range(EVALS)]
    evals = [
        Evals(at[: len(c)], c, paired=paired[i] if paired is not None else ()) for i, c in enumerate(curves)
    ]
    rows = len(curves)
    return Workload([float(i) for i in range(rows)], [1] * rows, [work] * rows, evals=evals)


def run(
    curves: list[list[float]],
    rule: str,
    limits: StopLimits | None,
    event_log: EventLog | None = None,
    paired: list[list[Paired]] | None = None,
    latencies: Latencies | None = None,
) -> Result:
    return simulate(
        workload(curves, paired=paired),
        Cluster(gpus=64),
        EvalStop(make_policy(PolicySpec("fifo"))),
        rule=specs.rule(rule),
        limits=limits,
        event_log=event_log,
        latencies=latencies or Latencies(),
    )


@pytest.mark.parametrize("rule", ["scan", "drawdown:max_drop=0.1", "cusum"])
def test_another_evaluator_stops_none_and_a_decline_after_it_is_found(rule: str) -> None:
    curves = [curve(f"run {i}", fall_at=15, falling_from=24 if i == 7 else 0) for i in range(20)]
    event_log = EventLog()
    assert run(curves, rule, StopLimits(), event_log).stopped == {7}
    assert "FellTogether" in event_log.text()
    assert run(curves, rule, None).stopped == set(range(20))
    assert len(run(curves, rule, StopLimits(shared_fall_percent=None)).stopped) == 20


def test_runs_that_decline_by_themselves_are_stopped_with_and_without_limits() -> None:
    curves = [curve(f"own {i}", falling_from=8 + i if i % 2 else 0) for i in range(20)]
    declining = {i for i in range(20) if i % 2}
    with_limits = run(curves, "drawdown:max_drop=0.1", StopLimits())
    without = run(curves, "drawdown:max_drop=0.1", None)
    assert with_limits.stopped == without.stopped == declining
    # Waiting for the others costs less than one eval's time.
    later = [with_limits.ended[i] - without.ended[i] for i in declining]
    assert min(later) >= 0.0
    assert max(later) <= 10 * HOUR / EVALS


def test_the_budget_of_an_hour_is_kept() -> None:
    curves = [curve(f"budget {i}", falling_from=10) for i in range(12)]
    limits = StopLimits(per_hour=2, shared_fall_percent=None)
    found = run(curves, "drawdown:max_drop=0.1", limits)
    times = sorted(found.ended[i] for i in found.stopped)
    assert len(times) == 12
    assert all(b - a >= HOUR for a, b in zip(times, times[2:], strict=False))
    assert times[2] == times[0] + HOUR  # and not later than it must be


def test_the_breaker_stops_none_while_many_ask() -> None:
    curves = [curve(f"crowd {i}", falling_from=10) for i in range(6)]
    limits = StopLimits(breaker_percent=50, shared_fall_percent=None)
    event_log = EventLog()
    found = run(curves, "drawdown:max_drop=0.1", limits, event_log)
    assert len(found.stopped) < 6
    assert "ManyAtOnce" in event_log.text()


def pairs(mean: float, prompts: int = 100) -> list[Paired]:
    """Flat for ten evals, then ``mean`` below the reference."""
    return [Paired(5, prompts, mean if n > 10 else 0.0, 0.04) for n in range(1, EVALS + 1)]


def test_promised_precision_weighs_evidence_and_refuses_other_rules() -> None:
    flat = [curve(f"e {i}") for i in range(3)]
    evidence = [pairs(-0.1), pairs(-0.1), pairs(0.0)]
    loose = run(flat, "eProcess", StopLimits(), paired=evidence)
    tight = run(flat, "eProcess", StopLimits(precision=0.99, precision_jobs=10_000), paired=evidence)
    assert loose.stopped == tight.stopped == {0, 1}
    assert all(tight.ended[i] > loose.ended[i] for i in (0, 1))
    with pytest.raises(ParamError, match="stopRule: 'scan' is not allowed, expected eProcess, where a prec"):
        run(flat, "scan", StopLimits(precision=0.95))


def test_what_the_pool_learned_of_the_noise_is_used() -> None:
    """A rule that waits for nine evals of its own to know its noise is told it by the runs before."""
    quick = "scan:window=3,threshold=3"
    old = [curve(f"old {i}") for i in range(5)]
    young = [0.7, 0.705, 0.69, 0.7, 0.6, 0.55, 0.5]
    jobs = workload([*old, young], work=10 * HOUR)
    jobs.submitted = [0.0] * 5 + [6 * HOUR]
    found = {}
    for name, limits in (("with", StopLimits(shared_fall_percent=None)), ("without", None)):
        policy = EvalStop(make_policy(PolicySpec("fifo")))
        found[name] = simulate(jobs, Cluster(gpus=64), policy, rule=specs.rule(quick), limits=limits)
    assert 5 in found["with"].stopped
    assert 5 not in found["without"].stopped


def test_the_same_run_twice_gives_the_same_journal_also_with_latencies() -> None:
    curves = [curve(f"twice {i}", fall_at=15, falling_from=12 + i) for i in range(10)]
    texts = set()
    for _ in range(2):
        event_log = EventLog()
        slow = Latencies(eval_delay=30.0, suspend_delay=5.0, retain_time=20.0)
        run(curves, "scan", StopLimits(per_hour=3), event_log, latencies=slow)
        texts.add(event_log.text())
    assert len(texts) == 1
    assert "hold" in texts.pop()


def test_a_guardrails_fall_stands_out_by_the_noise_that_the_others_show() -> None:
    """A new run of seven evals knows nothing of its own noise; five others have shown theirs."""
    rising = [0.1 + 0.01 * n for n in range(EVALS)]
    steady = [curve(f"safety {i}") for i in range(5)]
    late = [0.7, 0.705, 0.7, 0.695, 0.6, 0.58, 0.55]
    at = [(n + 1) / EVALS for n in range(EVALS)]
    evals = [Evals(at, rising, others={"safety": one}) for one in steady]
    evals.append(Evals(at[:7], rising[:7], others={"safety": late}))
    jobs = Workload([0.0] * 5 + [9 * HOUR], [1] * 6, [10 * HOUR] * 6, evals=evals)
    rule = specs.rule("kDeclines:k=30|safety=scan:window=3,threshold=3")
    found = {
        limits is not None: simulate(
            jobs, Cluster(gpus=64), EvalStop(make_policy(PolicySpec("fifo"))), rule=rule, limits=limits
        ).stopped
        for limits in (None, StopLimits(shared_fall_percent=None))
    }
    assert found == {False: set(), True: {5}}
