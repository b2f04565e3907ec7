"""The suite's hypothesis profile (tests/conftest.py) is the one in force."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=1)
@given(st.none())
def test_a_slow_example_is_no_failure(nothing: None) -> None:
    assert nothing is None
    time.sleep(0.25)  # hypothesis' own limit is 0.2 s
