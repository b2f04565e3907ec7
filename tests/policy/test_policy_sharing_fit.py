"""Whether a job fits beside others, what is predicted, and what must be refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.params import ParamError
from controller.policy.sharing import (
    SECOND,
    Family,
    Misfit,
    Player,
    Profile,
    RecordedTurn,
    SharingSettings,
    WorkerGroup,
    fit_into,
    player,
    slowdowns,
)
from tests.policy.sharing_world import FAMILY, GB, group, profile, resident

SETTINGS = SharingSettings()
LIGHT = profile("light", 90, 10)
HEAVY = profile("heavy", 40, 60)


def test_two_light_jobs_fit_and_their_slow_down_is_predicted() -> None:
    found = fit_into(resident("b", LIGHT), group(resident("a", LIGHT)), FAMILY, SETTINGS)
    assert found.fits
    assert [key for key, _ in found.slowdowns] == ["a", "b"]
    assert all(1.0 < slow < 1.1 for _, slow in found.slowdowns)


def test_two_jobs_of_duty_06_are_refused_with_the_numbers() -> None:
    found = fit_into(resident("b", HEAVY), group(resident("a", HEAVY)), FAMILY, SETTINGS)
    assert found.misfit is Misfit.DUTY
    assert found.message == "duty 0.60 + 0.60 > 0.80 in wg-3"


def constant(kind: str, away: float, held: float, switch: float = 0.0) -> Profile:
    turns = (RecordedTurn(round(away * SECOND), round(held * SECOND)),) * 20
    half = round(switch * SECOND / 2)
    return Profile(kind, turns, loads=(half,), offloads=(half,))


def test_short_jobs_beside_a_long_function_are_refused_though_duties_would_do() -> None:
    """One function lasts 1.5 cycles of the two others; duties sum to .5."""
    short = profile("short", 95, 5)
    long = profile("long", 225, 150)
    three = (resident("a", short), resident("b", short))
    assert sum(one.duty for one in (short, short, long)) == pytest.approx(0.5, abs=0.01)
    found = fit_into(resident("c", long), group(*three), FAMILY, SETTINGS)
    assert found.misfit is Misfit.SLOWDOWN
    predicted = dict(found.slowdowns)
    assert 1.2 < predicted["a"] < 1.4
    assert "a would be 1." in found.message
    assert "times as slow, 1.10 is allowed in wg-3" in found.message
    lenient = [replace(one, max_slowdown_percent=50) for one in three]
    assert fit_into(resident("c", long), group(*lenient), FAMILY, SETTINGS).fits


def test_switches_of_80_s_in_cycles_of_100_s_double_the_steps() -> None:
    slow = profile("switching", 80, 20, loads=(40 * SECOND,), offloads=(40 * SECOND,))
    predicted = slowdowns((player(slow, GB),) * 2)
    assert all(1.9 < one < 2.15 for one in predicted)
    found = fit_into(resident("b", slow), group(resident("a", slow)), FAMILY, SETTINGS)
    assert found.misfit is Misfit.SLOWDOWN


def test_a_replay_is_what_was_calculated_by_hand() -> None:
    """Two jobs in step, 60 away and 40 held, with switches of 10."""
    one = player(constant("x", 60, 40, switch=10), GB)
    # A step is 60 away, its own switch and 40 held; the other's 50 are over by then.
    assert slowdowns((one, one)) == pytest.approx((1.1, 1.1), abs=0.01)
    two = player(constant("y", 40, 60), GB)
    # Turns of 60 in turn, with 40 away: a step takes 120.
    assert slowdowns((two, two)) == pytest.approx((1.2, 1.2), abs=0.03)


def test_with_a_step_of_lag_waits_hide_behind_rollouts() -> None:
    sync = profile("sync", 80, 20)
    lagging = replace(sync, lag=1)
    waits = max(slowdowns((player(sync, GB),) * 3))
    hidden = max(slowdowns((player(lagging, GB),) * 3))
    assert hidden < 1.01 < waits


def test_alone_nobody_is_slower_and_an_empty_list_is_empty() -> None:
    assert slowdowns((player(LIGHT, GB),)) == (1.0,)
    assert slowdowns(()) == ()
    assert isinstance(player(LIGHT, GB), Player)


def test_an_unknown_kind_is_alone() -> None:
    new = profile("new", steps=4)
    into_empty = fit_into(resident("b", new), group(), FAMILY, SETTINGS)
    assert into_empty.fits
    beside = fit_into(resident("b", new), group(resident("a", LIGHT)), FAMILY, SETTINGS)
    assert beside.misfit is Misfit.UNMEASURED
    measuring = fit_into(resident("b", LIGHT), group(resident("a", new)), FAMILY, SETTINGS)
    assert measuring.message == "a is being measured alone in wg-3"
    nothing = fit_into(resident("b"), group(resident("a", LIGHT)), FAMILY, SETTINGS)
    assert nothing.misfit is Misfit.UNMEASURED


@pytest.mark.parametrize(
    ("job", "where", "misfit", "words"),
    [
        ({}, {"closed": "job-9 is overdue"}, Misfit.CLOSED, "no newcomers (job-9 is overdue) in wg-3"),
        ({"family": "30b"}, {}, Misfit.FAMILY, "family 30b, not 7b, in wg-3"),
        ({"namespace": "other"}, {}, Misfit.NAMESPACE, "another namespace than other in wg-3"),
        ({"not_in": frozenset({"wg-3"})}, {}, Misfit.LEFT_BEFORE, "too slow beside it in wg-3"),
        ({"state_bytes": 70 * GB}, {}, Misfit.HOST_MEMORY, "host memory 8.0 + 70.0 + 70.0 > 100.0 GB"),
    ],
)
def test_each_refusal_says_why(
    job: dict[str, object], where: dict[str, str], misfit: Misfit, words: str
) -> None:
    found = fit_into(resident("b", LIGHT, **job), group(resident("a", LIGHT), **where), FAMILY, SETTINGS)
    assert found.misfit is misfit
    assert words in found.message


def test_residencies_run_out() -> None:
    three = [resident(f"{n}", LIGHT) for n in range(3)]
    found = fit_into(resident("d", LIGHT), group(*three), FAMILY, SETTINGS)
    assert (found.misfit, found.message) == (Misfit.RESIDENTS, "3 of 3 residents in wg-3")


def test_device_memory_counts_what_sleepers_keep() -> None:
    tight = Family("7b", 16, device_bytes=10 * GB, residual_bytes=3 * GB, host_bytes=100 * GB)
    one = fit_into(resident("b", LIGHT), group(), tight, SETTINGS)
    assert one.fits
    found = fit_into(resident("b", LIGHT), group(resident("a", LIGHT)), tight, SETTINGS)
    assert (found.misfit, found.message) == (
        Misfit.DEVICE_MEMORY,
        "device memory 8.0 + 1 x 3.0 > 10.0 GB in wg-3",
    )


def test_bounds_are_checked() -> None:
    with pytest.raises(ParamError, match=r"sharing.max_residents: 9"):
        SharingSettings(max_residents=9)
    with pytest.raises(
        ParamError, match=r"sharing.placement: 'Best' is not allowed, expected one of Isolated"
    ):
        SharingSettings(placement="Best")
    with pytest.raises(ParamError, match=r"sharing.stateBytes: 0"):
        resident(state_bytes=0)
    with pytest.raises(ParamError, match=r"sharing.maxSlowdownPercent: -1"):
        resident(max_slowdown_percent=-1)
    with pytest.raises(ParamError, match=r"family.gpus: 0"):
        Family("x", 0, 1, 0, 1)
    with pytest.raises(ParamError, match=r"family.name"):
        Family("", 1, 1, 0, 1)
    assert WorkerGroup("wg-1", "7b", (resident("a"),)).left("a").residents == ()
