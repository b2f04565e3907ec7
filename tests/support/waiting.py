"""Waiting for what a cluster or a process does, without a fixed pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(check: Callable[[], T], what: str, seconds: float = 60.0, every: float = 0.05) -> T:
    """Return the first true answer of ``check``, which is asked ``every`` so many seconds.

    Raises:
        AssertionError: none came within ``seconds``; it says ``what`` was waited for.
    """
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return answer
