"""The operator's tests: the rig, and logs as a person reads them."""

import logging
import sys
from collections.abc import Iterator

import pytest
from rig_fixtures import installed, kubelet, rig

from controller import log

__all__ = ["installed", "kubelet", "rig"]


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """The operator's log as a person reads it, in what pytest shows of a failed test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log.configure("INFO", "console", sys.stderr)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
