"""Who pays for a group: exactly, whatever happens in whatever order."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.sharing import MOST_RESIDENTS, SECOND, UNITS, Charges, gpu_seconds


def test_held_time_is_the_holders_and_idle_time_everybodys() -> None:
    charges: Charges[str] = Charges(16, 0)
    for who in "abc":
        charges.join(who, 10 * SECOND)  # 10 s for nobody
    charges.hold("a", 10 * SECOND)
    charges.release(16 * SECOND)  # 6 s of a's
    charges.hold("b", 17 * SECOND)  # 1 s by thirds
    assert "c" in charges
    left = charges.leave("c", 18 * SECOND)
    assert "c" not in charges
    charges.release(20 * SECOND)
    now = 22 * SECOND  # 2 s by halves
    third = Fraction(16, 3)
    assert gpu_seconds(left) == third
    assert gpu_seconds(charges.charge("a", now)) == 16 * 6 + third + 16
    assert gpu_seconds(charges.charge("b", now)) == 16 * 3 + third + 16
    assert gpu_seconds(charges.charge("c", now)) == third
    assert gpu_seconds(charges.vacant(now)) == 160
    assert charges.total(now) + charges.vacant(now) == UNITS * 16 * now


@given(
    st.integers(1, 4096), st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 3), st.integers(0, 9)))
)
def test_sums_are_exact(gpus: int, acts: list[tuple[int, int, int]]) -> None:
    charges: Charges[int] = Charges(gpus, 5)
    now, present, ever, holder = 5, set[int](), set[int](), None
    for passed, act, who in acts:
        now += passed
        if act == 0 and who not in present and len(present) < MOST_RESIDENTS:
            charges.join(who, now)
            present.add(who)
            ever.add(who)
        elif act == 1 and who in present and holder is None:
            charges.hold(who, now)
            holder = who
        elif act == 2 and holder is not None:
            charges.release(now)
            holder = None
        elif act == 3 and who in present:
            charges.leave(who, now)
            present.remove(who)
            holder = None if holder == who else holder
        assert charges.holder == holder
    every = [charges.charge(who, now) for who in ever]
    assert all(charge >= 0 for charge in every)
    assert sum(every) == charges.total(now)
    assert charges.total(now) + charges.vacant(now) == UNITS * gpus * (now - 5)


def test_what_cannot_be_is_refused() -> None:
    charges: Charges[str] = Charges(1, 10)
    with pytest.raises(ValueError, match="time does not go back"):
        charges.join("a", 9)
    charges.join("a", 10)
    with pytest.raises(ValueError, match="a is a resident already"):
        charges.join("a", 10)
    with pytest.raises(ValueError, match="b is no resident"):
        charges.hold("b", 10)
    charges.join("b", 10)
    charges.hold("a", 10)
    with pytest.raises(ValueError, match="b: a holds the group"):
        charges.hold("b", 11)
    for i in range(MOST_RESIDENTS - 2):
        charges.join(str(i), 12)
    with pytest.raises(ValueError, match="9 residents: at most 8 are allowed"):
        charges.join("z", 12)
