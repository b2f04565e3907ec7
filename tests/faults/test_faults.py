"""A world that tries to break it (README.md): what was found once, and a minute of new histories."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults import driver, mutants
from tests.faults.cures import MUTANTS, Mutant
from tests.faults.machine import Machine
from tests.faults.rows import ROWS

HISTORIES = 160  # from seeds, beside hypothesis' own
FIRST = 1_000_000  # seed


@pytest.mark.parametrize("trace", sorted(driver.TRACES.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_once_is_not_found_again(trace: Path) -> None:
    config, steps, _ = driver.load(trace)
    assert driver.play(config, steps).violation == ""


def test_histories_of_seeds_hold() -> None:
    """As many as take about 35 CPU-seconds, always the same ones."""
    for seed in range(FIRST, FIRST + HISTORIES):
        config, steps = driver.drawn(seed)
        outcome = driver.play(config, steps)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"


def test_the_stateful_machine_finds_nothing() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=15,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


LIVES = "controller/policy/lives.py"
KEPT = "LIVES_KEPT = 8 "


@pytest.mark.skipif("evalstop-mutant-" not in __file__, reason="there for the runner of mutants alone")
@pytest.mark.parametrize("broken", [False, True])
def test_of_the_runner(broken: bool) -> None:
    source = (mutants.ROOT / LIVES).read_text()
    assert not broken, "it fails with or without a mutant"
    assert KEPT in source


@pytest.mark.parametrize(
    ("old", "new", "test", "how"),
    [
        (KEPT, KEPT, "", "NOT found in"),
        ("no such text", "", "", "no longer applies: controller/policy/lives.py has 0 of"),
        (KEPT, "LIVES_KEPT = 9 ", "[False]", "found by"),
        (KEPT, KEPT, "[False]", "NOT found by"),
        (KEPT, "LIVES_KEPT = 9 ", "[True]", "NOT found: tests/faults/test_faults.py::test_of_the_runner"),
        (KEPT, "LIVES_KEPT = 9 ", "[no such]", "NOT found: tests/faults/test_faults.py::test_of_the_runner"),
    ],
)
def test_the_runner_of_mutants_is_not_blind(old: str, new: str, test: str, how: str) -> None:
    test = f"tests/faults/test_faults.py::test_of_the_runner{test}" if test else ""
    assert mutants.try_out(Mutant("of a test", "", LIVES, old, new, test), 1, limit=1.0).startswith(how)


def test_each_row_has_a_mutant_that_still_applies() -> None:
    assert {mutant.row for mutant in MUTANTS} == {str(row) for row in range(1, 20)}
    for mutant in MUTANTS:
        assert (mutants.ROOT / mutant.file).read_text().count(mutant.old) == 1, mutant.name
        assert mutant.test or mutant.row in ROWS, mutant.name
        for test in mutant.test.split():
            assert (mutants.ROOT / test.partition("::")[0]).exists(), mutant.name
