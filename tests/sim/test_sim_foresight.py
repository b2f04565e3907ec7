"""The vectorised rule is the streaming one, and truth stays out of a policy's sight."""

from __future__ import annotations

import gc
import math
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.queueing import EvalStop, QueueDecision, make_policy
from controller.policy.types import PolicySpec
from sim import vectorised
from sim.cluster import Cluster
from sim.engine import simulate
from sim.first_stops import foresee
from sim.foresight import RuleSpec, first_stop
from sim.latencies import Latencies
from sim.workload import Evals, Workload

scores = st.lists(
    st.one_of(st.integers(0, 4).map(float), st.floats(-1, 1), st.just(math.nan)), min_size=0, max_size=14
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(scores, min_size=1, max_size=6),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.none() | st.integers(5, 9),
)
def test_vectorised_equals_streaming(
    rows: list[list[float]], k: int, min_delta: float, warm_up: int | None
) -> None:
    modifiers = () if warm_up is None else (PolicySpec("warmUp", {"min_evals": warm_up}),)
    spec = RuleSpec(PolicySpec("kDeclines", {"k": k, "min_delta": min_delta}), modifiers)
    evals = [Evals([(i + 1) / len(row) for i in range(len(row))], row) for row in rows]
    assert vectorised.covers(spec)
    streamed = [first_stop(spec.make(), e) for e in evals]
    assert vectorised.foresee(spec, [*evals, None]) == [*streamed, None]
    packed = [Evals(e.at, array("d", e.scores)) for e in evals]
    assert vectorised.foresee(spec, [None, *packed]) == [None, *streamed]


def test_the_vectorised_form_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    evals = [Evals([(i + 1) / 20 for i in range(20)], row) for row in rng.normal(size=(300, 20)).tolist()]
    spec = RuleSpec(PolicySpec("kDeclines", {"k": 3}))
    vector = foresee(spec, evals)
    monkeypatch.setattr("sim.first_stops.VECTOR_FROM", 10**9)
    assert foresee(spec, evals) == vector
    assert sum(found is not None for found in vector) > 50
    assert not vectorised.covers(RuleSpec(PolicySpec("drawdown")))


def test_missing_evals_leave_the_streak_as_it_is() -> None:
    evals = Evals([0.2, 0.4, 0.6, 0.8], [3.0, 2.0, math.nan, 1.0])
    found = first_stop(RuleSpec(PolicySpec("kDeclines", {"k": 2})).make(), evals)
    assert found is not None
    assert (found.eval, found.best) == (3, 0)


def test_median_of_peers_stops_the_one_that_is_behind() -> None:
    at = [(i + 1) / 6 for i in range(6)]
    rows = [Evals(at, [level + i for i in range(6)]) for level in (5.0, 6.0, 7.0, 8.0, -5.0)]
    workload = Workload([0, 0, 0, 0, 1], [1] * 5, [60] * 5, evals=rows)
    result = simulate(
        workload,
        Cluster.slots(8),
        EvalStop(make_policy(PolicySpec("fifo"))),
        rule=RuleSpec(PolicySpec("medianOfPeers", {"min_peers": 3, "grace": 4})),
    )
    assert result.stopped == {4}
    assert result.ended[4] == 41.0


class Spy:
    """A queue policy that looks as far as it can from every view it is shown."""

    def __init__(self) -> None:
        self.base = EvalStop(make_policy(PolicySpec("srtfEst")))
        self.reached: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def submitted(self, job: Any, now: float) -> None:
        self._look(job)
        self.base.submitted(job, now)

    def updated(self, job: Any, now: float) -> None:
        self._look(job)
        self.base.updated(job, now)

    def decide(self, now: float, room: Any) -> QueueDecision:
        self._look(room)
        return self.base.decide(now, room)

    def _look(self, start: Any) -> None:
        """Everything that can be reached by references, types and modules aside."""
        todo = [start]
        seen = set()
        while todo:
            thing = todo.pop()
            if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ == "module":
                continue
            seen.add(id(thing))
            todo += gc.get_referents(thing)
        self.reached |= seen


def test_no_policy_can_reach_the_truth() -> None:
    at = [0.25, 0.5, 0.75, 1.0]
    evals = [Evals(at, [1.0, 4.0, 3.5, 3.0], [4.0, 3.0, 2.0, 1.0]) for _ in range(12)]
    work = [40.5 + n for n in range(12)]
    workload = Workload(list(range(12)), [2] * 12, work, estimate=[50.0] * 12, evals=evals)
    spy = Spy()
    result = simulate(
        workload,
        Cluster.slots(4),
        spy,
        rule=RuleSpec(PolicySpec("kDeclines", {"k": 1})),
        latencies=Latencies(restart_cost=2),
    )
    assert result.stopped
    hidden = [
        workload,
        workload.work,
        workload.evals,
        *evals,
        *(e.scores for e in evals),
        result,
        result.stops,
    ]
    assert not spy.reached & {id(thing) for thing in hidden}
