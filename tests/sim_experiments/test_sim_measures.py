"""What is counted, on runs small enough to count by hand; and trials, their oracle and their executors."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from controller.policy.queueing import POLICIES, EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.experiments.executor import Processes, Serial
from sim.experiments.figures import FIGURES, figures
from sim.experiments.measures import Tally, best_at, compare
from sim.experiments.setting import EVALSTOP, Setting
from sim.experiments.trial import ORACLE, Arm, oracle_workload, run
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload
from sim.workloads import MixSettings, Population, Truth, generate
from sim.workloads.kinds import Kind

AT = (0.25, 0.5, 0.75, 1.0)
FALLS = Evals(AT, (0.5, 0.6, 0.5, 0.4))  # k = 2: STOP at the last eval; k = 1: at the third
RISES = Evals(AT, (0.1, 0.2, 0.3, 0.4))
EARLY = Evals(AT, (0.9, 0.8, 0.7, 0.6))  # k = 1: STOP at the second
K1, K2 = (RuleSpec(PolicySpec("kDeclines", {"k": k})) for k in (1, 2))
# Row 0 hacks (peak .6), row 1 is healthy RLHF, row 2 a LoRA that looks ill, row 3 hacks and is accused early.
POPULATION = Population(
    Workload([0, 0, 0, 0], [4, 2, 1, 1], [1000, 1000, 400, 800], evals=[FALLS, RISES, EARLY, EARLY]),
    Truth((Kind.RLHF, Kind.RLHF, Kind.LORA, Kind.RLHF), (True, False, False, True), (0.6, 1.0, 1.0, 0.7)),
)


def tally(rule: RuleSpec, gpus: int = 8, population: Population = POPULATION) -> Tally:
    cluster = Cluster.slots(gpus)
    base = simulate(population.workload, cluster, make_policy(PolicySpec("fifo")))
    arm = simulate(population.workload, cluster, EvalStop(make_policy(PolicySpec("fifo"))), rule=rule)
    return compare(population, base, arm)


def test_detection_is_counted_by_the_labels() -> None:
    found = tally(K1)
    assert (found.jobs, found.hacking, found.healthy, found.healthy_rlhf) == (4, 2, 2, 1)
    assert (found.caught, found.caught_before_end, found.premature) == (2, 2, 1)
    assert (found.false_alarms, found.false_alarms_rlhf) == (1, 0)
    once = {key: FIGURES[key].once(found) for key in ("precision", "recall", "fpr", "precision_strict")}
    assert once == pytest.approx({"precision": 2 / 3, "recall": 1.0, "fpr": 0.5, "precision_strict": 1 / 3})


def test_a_stop_at_the_last_eval_is_a_detection_that_saves_nothing() -> None:
    only = Population(Workload([0], [4], [1000], evals=[FALLS]), Truth((Kind.RLHF,), (True,), (0.6,)))
    found = tally(K2, population=only)
    assert (found.caught, found.caught_before_end) == (1, 0)
    assert found.after_peak == found.after_peak_base == pytest.approx(0.4 * 1000 * 4)
    assert (found.jct, found.kept_jobs) == (1000, 1)


def test_gpu_time_after_the_peak_and_after_the_best() -> None:
    found = tally(K1)
    # Without stops: row 0 trains 400 s past its peak on 4 GPUs, row 3 240 s on one.
    assert found.after_peak_base == pytest.approx(400 * 4 + 240)
    # With them: row 0 ends at .75, 150 s past its peak; row 3 ends before its own.
    assert found.after_peak == pytest.approx(150 * 4)
    # After the best eval: rows 0, 2 and 3 have theirs at .5, .25 and .25, row 1 at its end.
    assert found.after_best_base == pytest.approx(500 * 4 + 300 + 600)
    assert found.after_best == pytest.approx(250 * 4 + 100 + 200)
    assert found.gpu_time_base == pytest.approx(4000 + 2000 + 400 + 800)
    assert found.gpu_time == pytest.approx(3000 + 2000 + 200 + 400)


def test_never_stopped_jobs_and_the_mechanical_part() -> None:
    found = tally(K1)
    assert (found.kept_jobs, found.kept_jct, found.kept_jct_base) == (1, 1000, 1000)
    assert found.cut == pytest.approx(
        250 + 200 + 400
    )  # nobody waits on 8 GPUs: all of the gain is mechanical
    assert found.jct_base - found.jct == pytest.approx(found.cut)
    crowded = tally(K1, gpus=4)
    assert crowded.jct_base - crowded.jct > crowded.cut
    assert crowded.kept_jct < crowded.kept_jct_base


def test_overheads_count_as_waste_in_the_wide_sense() -> None:
    workload = Workload([0, 10], [1, 1], [100, 20], evals=[None, None])
    population = Population(workload, Truth((Kind.DPO, Kind.DPO), (False, False), (1.0, 1.0)))
    policy = PolicySpec("srtf")
    slow = Latencies(restart_cost=30.0)
    base = simulate(workload, Cluster.slots(1), make_policy(policy), latencies=slow)
    assert base.preemptions == 1
    assert compare(population, base, base).after_best_base == pytest.approx(30.0)


def test_the_best_eval_is_the_first_of_equals_and_never_a_missing_one() -> None:
    evals = Evals(AT, (float("nan"), 0.5, 0.5, 0.4))
    assert best_at(evals, 4) == 0.5
    assert best_at(evals, 1) == 0.0


def test_tallies_add_up() -> None:
    one, two = tally(K1), tally(K2)
    assert (one + two).caught == one.caught + two.caught
    assert (one + two).jct_base == one.jct_base + two.jct_base


SMALL = Setting(mix=MixSettings(jobs=60), seeds=3)


@pytest.mark.parametrize("base", POLICIES)
def test_a_rule_that_never_fires_changes_nothing(base: str) -> None:
    never = Arm(EVALSTOP, RuleSpec(PolicySpec("kDeclines", {"k": 100})))
    for trial in replace(SMALL, base=PolicySpec(base)).trials((never,)):
        outcome = run(trial)
        assert outcome.arms[EVALSTOP] == outcome.base


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_stops_hacking_jobs_at_the_first_eval_after_their_peak(seed: int) -> None:
    population = generate(MixSettings(jobs=80), seed)
    policy = EvalStop(make_policy(PolicySpec("fifo")))
    result = simulate(oracle_workload(population), Cluster.slots(64), policy, rule=ORACLE.rule)
    hacking = {row for row, hacks in enumerate(population.truth.hacks) if hacks}
    assert set(result.stops) == result.stopped == hacking
    for row in hacking:
        evals = population.workload.evals[row]
        assert evals is not None
        after = [number for number, at in enumerate(evals.at) if at > population.truth.peak[row]]
        assert result.stops[row].eval == after[0]


def test_a_rule_for_rlhf_leaves_other_jobs_alone() -> None:
    population = generate(MixSettings(jobs=80), 1)
    rule = RuleSpec(PolicySpec("fixedProgress", {"share": 0.65}), groups=("RLHF",))
    for base in ("fifo", "srtfEst"):  # by foresight, and eval by eval
        policy = EvalStop(make_policy(PolicySpec(base)))
        result = simulate(population.workload, Cluster.slots(64), policy, rule=rule)
        stopped = {row for row, kind in enumerate(population.truth.kind) if kind is Kind.RLHF}
        assert set(result.stops) == stopped


def test_trials_give_the_same_on_any_executor_and_in_order() -> None:
    trials = SMALL.trials((Arm(EVALSTOP, SMALL.rule), ORACLE))
    alone = list(Serial().map(run, trials))
    assert [outcome.seed for outcome in alone] == [0, 1, 2]
    assert list(Processes(2).map(run, trials)) == alone
    assert figures([outcome.arms[EVALSTOP] for outcome in alone])["recall"].value > 0.9


def test_processes_are_as_many_as_asked_for() -> None:
    assert len(set(Processes(2).map(process_of, range(40)))) <= 2
    assert set(Processes(1).map(process_of, range(3))) == {os.getpid()}
    with pytest.raises(ValueError, match="workers: 0 is not allowed"):
        Processes(0)


def process_of(_: int) -> int:
    return os.getpid()
