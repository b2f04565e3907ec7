"""The measured fall of step time for each GPU of the last added actors."""

from __future__ import annotations

import pytest

from controller.policy.rollout import StepTime, measured_gain


def steps(*found: tuple[int, float] | tuple[int, float, int]) -> list[StepTime]:
    return [StepTime(one[0], one[1], one[2] if len(one) == 3 else 100) for one in found]


@pytest.mark.parametrize(
    ("found", "gpus", "gain"),
    [
        ([], 1, None),
        ([(2, 60.0)], 1, None),
        ([(2, 60.0), (2, 50.0)], 1, None),  # one count alone
        ([(2, 60.0), (3, 50.0)], 1, 10.0),
        ([(2, 60.0), (4, 40.0)], 2, 5.0),  # for each of four GPUs
        ([(3, 50.0), (2, 60.0)], 1, 10.0),  # only a higher one is known
        ([(1, 90.0), (2, 60.0), (3, 55.0)], 1, 5.0),  # against the nearest
        ([(2, 60.0), (3, 70.0)], 1, -10.0),
        ([(2, 60.0), (3, 100.0, 200)], 1, 20.0),  # lengths doubled: 120 s, had it had two
        ([(2, 99.0), (2, 60.0), (2, 60.0), (2, 60.0), (3, 50.0)], 1, 10.0),  # the newest three
        ([(2, 60.0), (3, 50.0, 0)], 1, None),
    ],
)
def test_gain_is_what_was_measured(found, gpus, gain):
    measured = measured_gain(steps(*found), gpus)
    assert measured == (gain if gain is None else pytest.approx(gain))
