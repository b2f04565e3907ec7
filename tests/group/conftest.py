"""Groups of real processes, made once for tests that leave them as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.group.onlooker import Onlooker
from tests.group.plane import GroupPlane


@pytest.fixture(scope="module")
def loopback() -> Iterator[GroupPlane]:
    """Two members; whatever a test does, never are two workers on a device."""
    made = GroupPlane(TURN_SECONDS=20, IDLE_SECONDS=20)
    onlooker = Onlooker([pod.device for pod in made.pods])
    try:
        with made:
            yield made
    finally:
        wrong = onlooker.close()
    assert not wrong
    assert onlooker.opens
    assert onlooker.calls
