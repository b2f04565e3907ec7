"""Stand-ins of a group's members report as real ones do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller.group.report import report
from controller.policy.sharing import Pace, ReportedTurn, look
from controller.web.group_report import checked
from tests.bench.scale_members import AWAY, CYCLE, HELD, Group, Played


def group(at: list[float], residents: int = 2) -> Group:
    made = Group("wg-1", 1, ("p0", "p1"), Played(lambda: at[0]))
    for number in range(residents):
        made.join({"name": f"u{number}-1", "job": f"u{number}", "kind": "k"})
    return made


def test_it_is_what_the_operator_reads_and_has_every_field_of_a_real_one() -> None:
    at = [0.0]
    made = group(at)
    for seconds in (0.0, 1.0, 2000.0):
        at[0] = seconds
        assert checked(made.report()).ready
    state: Any = SimpleNamespace(
        turn=None, admission=1, start=1, members=(), waiting=(), loaded=None, versions=()
    )
    kept: Any = SimpleNamespace(leaving=(), gone=(), lost=(), residents={})
    account: Any = SimpleNamespace(
        charges=SimpleNamespace(vacant=lambda now: 0), calls=0, switches=0, expired=0, recent=()
    )
    real: Any = SimpleNamespace(
        state=state, kept=kept, account=account, links={}, clock=SimpleNamespace(now=lambda: 0),
        rules=SimpleNamespace(group="wg-1"),
    )  # fmt: skip
    assert made.report().keys() == report(real).keys()


def test_turns_are_taken_by_time_and_none_while_none_are_taken() -> None:
    at = [0.0]
    made = group(at)
    at[0] = 10.5 * CYCLE / 1e6
    assert made.turns() == 20
    made.played.take(False)
    at[0] *= 2
    assert (made.turns(), made.report()["turn"]) == (20, None)
    made.played.take(True)
    at[0] += CYCLE / 1e6
    assert made.turns() == 22


def test_its_kind_is_known_after_seven_steps_and_nobody_is_slow() -> None:
    at = [0.0]
    made = group(at, 1)
    at[0] = 7.0 * CYCLE / 1e6
    (one,) = checked(made.report()).residents
    found = look("k", None, [ReportedTurn(*turn) for turn in one.turns])
    assert found.profile is not None
    assert round(found.profile.duty, 3) == round(HELD / (AWAY + HELD), 3)
    pace = Pace()
    for turn in one.turns:
        pace = pace.after(ReportedTurn(*turn), 10)
    assert pace.slowness.above == 0


def test_one_that_left_is_gone_and_comes_no_more() -> None:
    made = group([0.0])
    made.leave("u0-1")
    made.join({"name": "u0-1", "job": "u0", "kind": "k"})
    found = checked(made.report())
    assert ([one.name for one in found.residents], found.gone) == (["u1-1"], ("u0-1",))
