"""The brain's own world (tests/policy/policy_world.py) makes real decision logs here too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "policy"))

from logged_world import logged


@pytest.fixture(scope="session")
def whole_log() -> list[str]:
    """A pool's past as its operator logged it (`logged_world`), one line each, without newlines."""
    return logged()
