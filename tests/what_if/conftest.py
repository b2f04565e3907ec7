"""A past as an operator logged it, for the tests of what-if."""

from __future__ import annotations

import pytest
from logged_world import logged


@pytest.fixture(scope="session")
def whole_log() -> list[str]:
    """A pool's past as its operator logged it (`logged_world`), one line each, without newlines."""
    return logged()
