"""A pool is planned again when its plan asks for it, and not without end."""

from __future__ import annotations

import pytest

from controller.operator.reconcile.pool import PAST, woken_in


@pytest.mark.parametrize(
    ("at", "found"),
    [
        (None, None),
        (1000.25, 0.25),
        (1000.0, PAST),  # this plan was made for it
        (999.0, PAST),
        (float("-inf"), PAST),
    ],
)
def test_a_plan_that_asks_again_for_a_time_that_is_over_waits(at: float | None, found: float | None) -> None:
    assert woken_in(at, 1000.0) == found
