"""Nobody who decides can get at the truth: from no policy, rule or view is there a way to it."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from typing import Any

import pytest

from controller.policy.queueing import POLICIES, EvalStop, make_policy
from controller.policy.queueing.base import QueueDecision, Room
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.foresight import RuleSpec
from sim.workload import Evals, Workload
from sim.workloads import MixSettings, Population, Truth, generate

HIDDEN = (Truth, Population, Workload, Evals)
RULE = RuleSpec(PolicySpec("kDeclines", {"k": 2}))


def reachable(start: Any) -> Iterable[Any]:
    """Every object that can be reached from this one by attributes, items, methods and closures.

    Classes, modules and the globals of functions are not followed: they are the program, not this run.
    """
    seen, todo = {id(start)}, [start]
    while todo:
        found = todo.pop()
        yield found
        if isinstance(found, (type, types.ModuleType)):
            continue
        if isinstance(found, types.FunctionType):
            after: list[Any] = [cell.cell_contents for cell in found.__closure__ or ()]
        else:
            after = gc.get_referents(found)
        for other in after:
            if id(other) not in seen:
                seen.add(id(other))
                todo.append(other)


def leaks(start: Any) -> list[Any]:
    engine = "_Engine"
    return [o for o in reachable(start) if isinstance(o, HIDDEN) or type(o).__name__ == engine]


class Searched(EvalStop):
    """EvalStop that looks for the truth from within, at some of its decisions."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self.decisions = 0
        self.looked = 0

    def decide(self, now: float, room: Room) -> QueueDecision:
        self.decisions += 1
        if self.decisions % 25 == 1:
            self.looked += 1
            assert leaks(self) == []
            assert leaks(room) == []
        return super().decide(now, room)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("foresight", [True, False])
def test_no_policy_can_reach_labels_evals_or_the_engine(name: str, foresight: bool) -> None:
    population = generate(MixSettings(jobs=40), 1)
    policy = Searched(make_policy(PolicySpec(name)))
    result = simulate(population.workload, Cluster.slots(64), policy, rule=RULE, foresight=foresight)
    assert policy.looked >= 2
    assert result.stopped
    assert leaks(policy) == []
    assert leaks(RULE.make()) == []


def test_the_search_would_find_what_is_hidden() -> None:
    population = generate(MixSettings(jobs=3), 1)
    policy = make_policy(PolicySpec("fifo"))
    holder = types.SimpleNamespace(policy=policy, deep={"a": [lambda: population]})
    assert population in leaks(holder)
    assert population.truth in leaks(holder)
