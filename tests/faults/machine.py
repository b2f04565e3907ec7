"""The same world as a stateful hypothesis machine: each act is a rule, the oracle looks after each."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.faults.acts import ACTS, Act
from tests.faults.disk import watched
from tests.faults.driver import BEGINNING, drawn_config
from tests.faults.world import World

SEEDS = st.integers(0, 2**32 - 1)


class Machine(RuleBasedStateMachine):
    world: World | None = None

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.world = World(drawn_config(Random(seed)))
        self._play(BEGINNING["start"], seed)

    def _play(self, act: Act, seed: int) -> None:
        assert self.world is not None
        with watched(self.world.disk):
            act(self.world, Random(seed))

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            with watched(self.world.disk):
                self.world.oracle.settle()
        finally:
            self.world.close()


def _rule_for(act: Act) -> Any:
    def step(self: Machine, seed: int) -> None:
        self._play(act, seed)

    step.__name__ = act.__name__
    return rule(seed=SEEDS)(step)


for _name, _entry in ACTS.items():
    setattr(Machine, f"act_{_name}", _rule_for(_entry.act))
