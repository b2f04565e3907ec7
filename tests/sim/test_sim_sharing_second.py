"""Our simulator against one of 80 lines that shares no code with it."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from sim.sharing.run import GroupTrial, play
from sim.sharing.workload import TurnLaw, turns
from tests.sim import second_sharing


@pytest.mark.parametrize("seed", range(50))
def test_they_agree_within_one_point(seed: int) -> None:
    draw = random.Random(seed)
    count, steps, lag = draw.randint(1, 5), 120, draw.randint(0, 1)
    laws = []
    for _ in range(count):
        cycle, duty = draw.uniform(20.0, 900.0), draw.uniform(0.05, 0.6)
        laws.append(TurnLaw((1 - duty) * cycle, duty * cycle, draw.uniform(0.0, 0.5), draw.uniform(0.0, 0.2)))
    switch = round(draw.uniform(0.0, 0.1) * min(law.cycle for law in laws) * 1e6)
    times = [turns(law, steps, 100 * seed + i) for i, law in enumerate(laws)]
    ours = play(GroupTrial(tuple(laws), switch, steps, lag), times)
    load = switch // 2
    took, alone = second_sharing.second(
        [away for away, _ in times], [held for _, held in times], load, switch - load, lag
    )
    theirs = [a / b if b else 1.0 for a, b in zip(took, alone, strict=True)]
    assert ours.slowdowns() == pytest.approx(theirs, abs=0.01)


def test_it_is_short_and_imports_nothing() -> None:
    text = Path(second_sharing.__file__).read_text()
    assert len(text.splitlines()) <= 80
    modules = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [one.module for one in modules if isinstance(one, ast.ImportFrom)] == ["__future__"]
    assert len(modules) == 1
