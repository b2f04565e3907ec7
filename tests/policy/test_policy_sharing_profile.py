"""What is known of a kind, when it is enough, and that it survives being written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.params import ParamError
from controller.policy.sharing import SECOND, Profile, RecordedTurn, profile_from
from tests.policy.sharing_world import profile

STEADY = RecordedTurn(80 * SECOND, 20 * SECOND)


def measured(*turns: RecordedTurn, per_step: int = 1) -> Profile:
    found = Profile("a", per_step=per_step)
    for i in range(0, len(turns), per_step):
        found = found.with_step(turns[i : i + per_step])
    return found


def test_steady_steps_are_enough_after_five() -> None:
    assert not measured(*[STEADY] * 4).known
    found = measured(*[STEADY] * 5)
    assert found.known
    assert (found.cycle, found.duty) == (100 * SECOND, 0.2)


def test_wild_steps_take_longer_and_never_more_than_twenty() -> None:
    wild = [RecordedTurn((20 + 60 * (n % 3)) * SECOND, 20 * SECOND) for n in range(20)]
    known = [measured(*wild[:count]).known for count in range(1, 21)]
    assert not any(known[:5])
    assert known[19]
    unsure = [RecordedTurn(1 + (n % 2) * 10**9, 1 + (n % 2) * 10**8) for n in range(20)]
    assert not measured(*unsure[:19]).known
    assert measured(*unsure).known


def test_the_newest_twenty_are_kept() -> None:
    found = measured(*[RecordedTurn(n, 1) for n in range(50)])
    assert [turn.away for turn in found.turns] == list(range(30, 50))


def test_a_step_of_two_turns() -> None:
    found = measured(*[RecordedTurn(60, 10), RecordedTurn(20, 10)] * 5, per_step=2)
    assert (found.steps, found.cycle, found.duty) == (5, 100.0, 0.2)
    with pytest.raises(ParamError, match=r"profile.step: 1 is not allowed, expected 2 turns"):
        found.with_step([STEADY])


def test_with_a_step_of_lag_the_turn_is_beside_the_rollouts() -> None:
    found = Profile("a", (RecordedTurn(80, 20), RecordedTurn(20, 50)), lag=1)
    assert found.cycle == (80 + 50) / 2


def test_switch_times_are_medians_or_by_bytes() -> None:
    bare = Profile("a")
    assert bare.load(25 * 10**9) == SECOND  # at 25 GB/s
    found = (
        bare.with_step([STEADY], load=3, offload=9).with_step([STEADY], load=5).with_step([STEADY], load=4)
    )
    assert (found.load(1), found.offload(1)) == (4, 9)


def test_nothing_measured_has_no_duty() -> None:
    assert (Profile("a").cycle, Profile("a").duty, Profile("a").known) == (0.0, 0.0, False)


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), max_size=20),
    st.integers(0, 1),
    st.lists(st.integers(0, 10**9), max_size=20),
)
def test_what_is_written_is_read(turns: list[tuple[int, int]], lag: int, loads: list[int]) -> None:
    made = Profile("a/b", tuple(RecordedTurn(*turn) for turn in turns), lag=lag, loads=tuple(loads))
    assert profile_from(json.loads(json.dumps(made.as_dict()))) == made


def test_a_whole_profile_is_small() -> None:
    """It stands in the pool's status, one for each kind."""
    assert len(json.dumps(profile(steps=20).as_dict(), separators=(",", ":"))) < 600


GOOD = profile().as_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lag": 2}, r"profile.lag: 2 is not allowed, expected 0 or 1 step"),
        ({"lag": True}, r"profile.lag: \[True\] is not allowed, expected whole numbers"),
        ({"kind": ""}, "profile.kind: '' is not allowed, expected 1 to 253 characters"),
        ({"kind": 3}, "profile.kind: 3 is not allowed, expected text"),
        ({"turns": [[1, 0]]}, "profile.turns: .* expected 0 to .* away, 1 to .* held"),
        ({"turns": [[1]]}, "profile.turns: .* expected pairs of microseconds"),
        ({"turns": "x"}, "profile.turns: .* expected pairs of microseconds"),
        ({"turns": [[1, 1.5]]}, "profile.turns: .* expected whole numbers"),
        ({"turns": [[1, 1]] * 21}, "profile.turns: 21 is not allowed, expected whole steps, at most 20"),
        ({"perStep": 3}, "profile.turns: 20 is not allowed, expected whole steps"),
        ({"perStep": 0}, "profile.perStep: 0 is not allowed, expected 1 to 8 turns"),
        ({"loads": [-1]}, "profile.loads: .* expected at most 20 times"),
        ({"loads": 1}, "profile.loads: 1 is not allowed, expected whole numbers"),
        ({"more": 1}, "profile: .* expected the fields kind, lag"),
    ],
)
def test_what_cannot_be_read_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(ParamError, match=words):
        profile_from({**GOOD, **change})
    with pytest.raises(ParamError, match="profile"):
        profile_from([])  # type: ignore[arg-type]
