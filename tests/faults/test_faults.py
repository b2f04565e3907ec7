"""A world that tries to break it (README.md): what was found once, and a minute of new histories."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults import driver
from tests.faults.machine import Machine

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
