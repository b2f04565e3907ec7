"""A step API and actors of one job, as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rollouts_world import Pods, StepServer, pods, step_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StepServer]:
    with step_server(tmp_path) as found:
        yield found


@pytest.fixture
def world(server: StepServer, tmp_path: Path) -> Iterator[Pods]:
    with pods(server, tmp_path) as found:
        yield found
