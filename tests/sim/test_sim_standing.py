"""Modifiers that act by what stands, and guardrails, in the simulator: the same words as in an RLHFJob."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pytest

from controller.policy.params import ParamError
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim import specs
from sim.cluster import Cluster
from sim.engine.event_log import EventLog
from sim.engine.result import Result
from sim.engine.run import simulate
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.traces.errors import Skipped, TraceError
from sim.traces.own import guardrails_entry, read_own, write_own
from sim.traces.trace import TraceJob
from sim.workload import Evals, Workload

TEN = tuple((i + 1) / 10 for i in range(10))


def run(
    jobs: list[tuple[float, float, list[float] | None]],
    rule: str,
    policy: str = "fifo",
    gpus: int = 1,
    **more,
) -> tuple[Result, list[str]]:
    """Jobs of one GPU: (submitted, work, scores of ten evals evenly over it); the decisions as text."""
    workload = Workload(
        submitted=[at for at, _, _ in jobs],
        gpus=[1] * len(jobs),
        work=[work for _, work, _ in jobs],
        evals=[None if scores is None else Evals(TEN, scores) for _, _, scores in jobs],
    )
    event_log = EventLog()
    found = simulate(
        workload,
        Cluster.slots(gpus),
        EvalStop(make_policy(PolicySpec(policy))),
        rule=specs.rule(rule),
        event_log=event_log,
        **more,
    )
    return found, event_log.lines


FALL = [1.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]  # k = 2 says STOP at the fourth eval, 40 % done


def test_a_run_past_its_best_goes_on_until_somebody_waits() -> None:
    alone, _ = run([(0.0, 100.0, FALL)], "kDeclines:k=2+onlyWhenContended")
    assert alone.stopped == set()
    assert alone.ended == [100.0]
    contended, _ = run([(0.0, 100.0, FALL), (65.0, 10.0, None)], "kDeclines:k=2+onlyWhenContended")
    assert contended.stopped == {0}
    assert contended.started == [0.0, 65.0]
    early, _ = run([(0.0, 100.0, FALL), (5.0, 10.0, None)], "kDeclines:k=2+onlyWhenContended")
    assert early.started == [0.0, 40.0]  # at the STOP, for somebody waits already
    roomy, _ = run([(0.0, 100.0, FALL), (65.0, 10.0, None)], "kDeclines:k=2+onlyWhenContended", gpus=2)
    assert roomy.stopped == set()


def test_a_stop_that_the_rule_takes_back_is_not_carried_out_later() -> None:
    recovers = [1.0, 9.0, 8.0, 7.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    found, lines = run([(0.0, 100.0, recovers), (65.0, 10.0, None)], "kDeclines:k=2+onlyWhenContended")
    assert any("propose" in line for line in lines)
    assert found.stopped == set()
    assert found.started == [0.0, 100.0]


def test_confirm_stops_one_eval_later_and_an_eval_costs_what_it_costs() -> None:
    plain, _ = run([(0.0, 100.0, FALL)], "kDeclines:k=2", latencies=Latencies(eval_cost=1.0))
    sure, _ = run([(0.0, 100.0, FALL)], "kDeclines:k=2+confirm:margin=0", latencies=Latencies(eval_cost=1.0))
    assert plain.ended == [44.0]
    assert sure.ended == [55.0]
    doubted = [1.0, 9.0, 8.0, 7.0, 8.0, 8.5, 8.6, 8.7, 8.8, 8.9]
    assert run([(0.0, 100.0, doubted)], "kDeclines:k=2")[0].stopped == {0}
    assert run([(0.0, 100.0, doubted)], "kDeclines:k=2+confirm")[0].stopped == set()


def test_a_demoted_run_gives_way_and_goes_on_when_nobody_waits() -> None:
    """At 15 s three of nine declines are seen. The other is longer: by srtf's own order it would wait."""
    jobs = [(0.0, 30.0, FALL), (1.0, 100.0, None)]
    usual, _ = run(jobs, "kDeclines:k=9", policy="srtf")
    assert usual.preemptions == 0
    found, lines = run(jobs, "kDeclines:k=9+graded:warn_at=0,demote_at=0.33", policy="srtf")
    assert any(line.startswith("15.0 preempt sim/0") for line in lines), lines
    assert found.ended == [130.0, 115.0]


@pytest.mark.parametrize("delay", [0.0, 2.0])
@pytest.mark.parametrize("nodes", [False, True])
def test_under_fifo_too_it_goes_for_whom_it_makes_room_and_for_nobody_else(nodes: bool, delay: float) -> None:
    """Two GPUs, two runs that are demoted at 15 s; somebody waits for one of them, and later for none."""
    workload = Workload(
        submitted=[0.0, 0.0, 1.0, 50.0],
        gpus=[1, 1, 1, 2],
        work=[30.0, 30.0, 10.0, 10.0],
        evals=[Evals(TEN, FALL), Evals(TEN, FALL), None, None],
    )
    event_log = EventLog()
    found = simulate(
        workload,
        Cluster.of_nodes([2]) if nodes else Cluster.slots(2),
        EvalStop(make_policy(PolicySpec("fifo"))),
        rule=specs.rule("kDeclines:k=9+graded:warn_at=0,demote_at=0.33"),
        latencies=Latencies(suspend_delay=delay),
        event_log=event_log,
    )
    preempted = [line for line in event_log.lines if " preempt " in line]
    # The last in the queue's order goes, and is back when the other is done.
    assert preempted == ["15.0 preempt sim/1 Demoted"]
    assert found.started[2] == 15.0 + delay
    assert found.ended[:3] == [30.0, 40.0 + delay, 25.0 + delay]
    assert found.started[3] == 50.0


def test_a_run_that_recovers_has_its_own_priority_again() -> None:
    """Demoted at 15 s when nobody waits, recovered at 18 s; who comes at 20 s finds it as it was."""
    recovers = [1.0, 9.0, 8.0, 7.0, 6.0, 10.0, 11.0, 12.0, 13.0, 14.0]
    found, _ = run(
        [(0.0, 30.0, recovers), (20.0, 100.0, None)],
        "kDeclines:k=9+graded:warn_at=0,demote_at=0.33",
        policy="srtf",
    )
    assert found.preemptions == 0


def test_a_guardrail_stops_a_run_whose_score_rises() -> None:
    rising = [float(i) for i in range(10)]
    workload = Workload(
        submitted=[0.0],
        gpus=[1],
        work=[100.0],
        evals=[Evals(TEN, rising, others={"safety": [5.0, 5.0, nan, 4.0, None, 3.0, 2.0, 2.0, 2.0, 2.0]})],
    )
    for foresight in (True, False):
        found = simulate(
            workload,
            Cluster.slots(1),
            EvalStop(make_policy(PolicySpec("fifo"))),
            rule=specs.rule("kDeclines:k=3|safety=kDeclines:k=2"),
            foresight=foresight,
        )
        assert found.stopped == {0}
        assert found.ended == [60.0]
        assert found.stops[0].best == 5


def test_guardrails_as_text() -> None:
    found = specs.rule("glr:alpha=0.06+warmUp:min_evals=8|safety=glr|toxicity=drawdown:maxDrop=0.1")
    assert found == RuleSpec(
        PolicySpec("glr", {"alpha": 0.06}),
        (PolicySpec("warmUp", {"min_evals": 8}),),
        guardrails=(("safety", PolicySpec("glr")), ("toxicity", PolicySpec("drawdown", {"max_drop": 0.1}))),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scan|safety", "guardrail: 'safety' .*metric=rule"),
        ("scan|scan:window=3", r"guardrail: 'scan:window=3' .*metric=rule"),
        ("scan|safety=nothing", "guardrail safety: 'nothing' .*one of kDeclines"),
        ("scan|safety=glr:alpha=7", r"glr\.alpha: 3\.5"),
        ("kDeclines:K=3", r"kDeclines: 'K' .*one of its parameters k, .*did you mean 'k'"),
        ("kDeclines:kk=3", r"kDeclines: 'kk' .*one of its parameters k, .*did you mean 'k'"),
        ("kDeclines:3", r"kDeclines: '3' .*parameter=value, of k"),
        ("kdeclines:k=3", r"stopRule: 'kdeclines' .*did you mean 'kDeclines'"),
    ],
)
def test_what_is_no_guardrail_is_told(text: str, said: str) -> None:
    with pytest.raises(ParamError, match=said):
        specs.rule(text)


def test_scores_of_a_guardrail_are_one_for_each_eval() -> None:
    with pytest.raises(ValueError, match=r"evals\.others\['safety'\]: 1 for 2 evals"):
        Evals((0.5, 1.0), (1.0, 2.0), others={"safety": [1.0]})


def test_guardrails_in_a_trace_come_back_as_they_were_written(tmp_path: Path) -> None:
    rule = specs.rule("glr:alpha=0.06|safety=kDeclines:k=2")
    others = {"safety": [5.0, None]}
    job = TraceJob("team/a", 0.0, 1, 10.0, evals=Evals((0.5, 1.0), (1.0, 2.0), others=others))
    header = {"rule": {"name": "glr", "alpha": 0.06}, **guardrails_entry(rule)}
    write_own(tmp_path / "t.jsonl", [job], header)
    with (tmp_path / "t.jsonl").open() as lines:
        found = read_own(tmp_path / "t.jsonl", lines, Skipped())
    assert found.rule == rule
    assert found.jobs[0].evals is not None
    assert found.jobs[0].evals.others == others


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"others": [1, 2]}, r"evals\.others: .*by metric"),
        ({"others": {"safety": 7}}, r"evals\.others\.safety: 7.*a list"),
        ({"others": {"safety": [1, "x"]}}, r"evals\.others\.safety\[1\]: 'x'.*finite number or null"),
        ({"others": {"safety": [1]}}, r"evals\.others\['safety'\].*1 for 2 evals"),
    ],
)
def test_what_is_wrong_with_a_guardrail_s_scores_is_told_by_its_place(
    tmp_path: Path, entry: dict, said: str
) -> None:
    head = '{"format": "evalstop-trace", "version": 1}'
    evals = {"at": [0.5, 1.0], "scores": [1, 2], **entry}
    body = json.dumps({"job": "a", "submitted": 0, "gpus": 1, "work": 9, "evals": evals})
    with pytest.raises(TraceError, match=said):
        read_own(tmp_path / "t.jsonl", [head, body], Skipped())
