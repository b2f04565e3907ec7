"""A virtual group against figures by hand, what it charges, and what must lose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.sharing import SECOND, UNITS, TurnQueue
from sim.experiments.executor import Serial
from sim.kernel import Kernel
from sim.sharing.arms import HALF, SHARED, arms
from sim.sharing.curve import curve
from sim.sharing.group import VirtualGroup, VirtualResident
from sim.sharing.orders import ORDERS
from sim.sharing.rows import gpu_hours
from sim.sharing.run import GroupTrial, play, run_group
from sim.sharing.saving import saving
from sim.sharing.setting import SharedModel, SharingSetting, changed
from sim.sharing.workload import TurnLaw, law, turns

SMALL = SharingSetting(steps=120)


def fixed(away: int, held: int, count: int = 20) -> tuple[list[int], list[int]]:
    return [away] * count, [held] * count


def trial(count: int = 2, switch: int = 0, lag: int = 0, **more: object) -> GroupTrial:
    return GroupTrial((TurnLaw(80.0, 20.0, 0.25, 0.05),) * count, switch, 200, lag, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "switch", "lag", "slow"),
    [
        ([fixed(80, 20)], 10, 0, (1.0,)),  # alone: it stays loaded
        ([fixed(80, 20)] * 2, 0, 0, (1.0, 1.0)),  # half a cycle apart: nobody waits
        ([fixed(80, 20)] * 2, 10, 0, (1.1, 1.1)),  # but for its own switch
        ([fixed(40, 60)] * 2, 0, 0, (1.2, 1.2)),  # 60 of one, 60 of the other
        ([fixed(40, 60)] * 2, 20, 0, (1.6, 1.6)),
        ([fixed(80, 20)] * 2, 20, 1, (1.0, 1.0)),  # waits are hidden by rollouts
        ([fixed(20, 80)] * 2, 0, 1, (2.0, 2.0)),  # not where turns are all
    ],
)
def test_steps_take_what_they_do_by_hand(
    times: list[tuple[list[int], list[int]]], switch: int, lag: int, slow: tuple[float, ...]
) -> None:
    laws = (TurnLaw(1.0, 1.0, 0.0, 0.0),) * len(times)
    found = play(GroupTrial(laws, switch, 20, lag), times)
    assert found.slowdowns() == pytest.approx(slow, abs=0.015)


def test_charges_are_exact_and_held_time_is_the_holders() -> None:
    kernel = Kernel()
    ended: list[tuple[str, int]] = []
    group = VirtualGroup(kernel, 16, TurnQueue(), lambda one: ended.append((one.key, int(kernel.now))))
    for row, key in enumerate("abc"):
        one = VirtualResident(key, row, turns(law(SMALL, 0.2), 30, row), load=SECOND, offload=SECOND)
        group.join(one, 10 * row * SECOND)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    now = int(kernel.now)
    assert [key for key, _ in sorted(ended)] == ["a", "b", "c"]
    assert group.turns == 90
    assert group.charges.total(now) + group.charges.vacant(now) == UNITS * 16 * now
    assert group.charges.vacant(now) == 0


def test_a_resident_that_is_sent_away_asks_no_more() -> None:
    kernel = Kernel()

    def stepped(one: VirtualResident, took: int, alone: int) -> bool:
        if one is rows[0] and one.place == 3:
            group.leave(rows[1])
        return False

    group = VirtualGroup(kernel, 1, TurnQueue(), None, stepped)
    rows = [VirtualResident(key, row, fixed(80, 20)) for row, key in enumerate("ab")]
    for one in rows:
        group.join(one, 10 * one.row)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    assert rows[0].place == 20
    assert rows[1].place in (2, 3)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_serves_everybody_and_three_residents_alike(order: str) -> None:
    fifo, other = run_group(trial(3, 2 * SECOND)), run_group(trial(3, 2 * SECOND, order=order))
    assert other.turns > 500
    assert other.slowdown == pytest.approx(fifo.slowdown, abs=0.01)


def test_turns_in_a_row_spare_switches_only_where_a_job_asks_at_once() -> None:
    eager = [fixed(0, 20, 60), fixed(0, 20, 60)]
    laws = (TurnLaw(1.0, 1.0, 0.0, 0.0),) * 2
    one = play(GroupTrial(laws, 10, 60), eager)
    three = play(GroupTrial(laws, 10, 60, consecutive=3), eager)
    assert three.switches < one.switches / 2
    assert three.slowdown < one.slowdown


def test_must_lose_switches_of_80_s_in_cycles_of_100_s() -> None:
    found = run_group(trial(switch=80 * SECOND))
    assert found.slowdown == pytest.approx(2.05, abs=0.08)


def test_must_lose_a_job_that_is_mostly_rollouts() -> None:
    """T / (T + R) = .3 cannot save 15 %."""
    found = [run_group(replace(trial(switch=SECOND), seed=seed)) for seed in range(3)]
    assert 0.10 < 1.0 - gpu_hours(found, 70 + 30 / 2, 100).value < 0.15


def test_goals_hold_on_a_small_run() -> None:
    """The whole runs are printed in docs/reports/sharing-simulated.md."""
    for findings in (saving(SMALL, 3, Serial()), curve(SMALL, 3, Serial()), arms(SMALL, 3, Serial())):
        goals = [row for row in findings.rows if row.get("goal")]
        assert goals
        assert [row["what"] for row in goals if row["met"] != "met"] == [], findings.name


def test_half_the_gpus_save_the_same_with_a_step_of_lag_and_not_without() -> None:
    rows = {str(row["what"]): row for row in arms(SMALL, 3, Serial()).rows}
    hours = {what: row["hours"].value for what, row in rows.items()}  # type: ignore[union-attr]
    lag = f"{SHARED}, one step of lag", f"{HALF}, one step of lag"
    assert hours[lag[0]] == pytest.approx(hours[lag[1]], abs=0.01)
    assert hours[f"{SHARED}, synchronous"] + 0.08 < hours[f"{HALF}, synchronous"]


def test_numbers_of_a_setting_can_be_changed_and_wrong_ones_are_named() -> None:
    assert changed(SMALL, {"switch": "0.02", "steps": "50"}) == replace(SMALL, switch=0.02, steps=50)
    with pytest.raises(ValueError, match="--set: 'step' is not allowed, expected one of cycle"):
        changed(SMALL, {"step": "1"})
    with pytest.raises(ValueError, match="--set steps: '0' is not allowed"):
        changed(SMALL, {"steps": "0"})
    with pytest.raises(ValueError, match="--set cycle: 'x' is not allowed"):
        changed(SMALL, {"cycle": "x"})


def test_times_are_what_their_law_says_and_the_same_again() -> None:
    away, held = turns(TurnLaw(80.0, 20.0, 0.4, 0.05), 20_000, 1)
    assert sum(away) / len(away) == pytest.approx(80 * SECOND, rel=0.02)
    assert sum(held) / len(held) == pytest.approx(20 * SECOND, rel=0.01)
    assert turns(TurnLaw(80.0, 20.0, 0.4, 0.05), 20_000, 1)[0] == away
    assert turns(TurnLaw(0.0, 20.0, 0.4, 0.0), 3, 1) == ([0] * 3, [20 * SECOND] * 3)
    assert SharedModel("x", 1, 1, 0.5).paper is None
