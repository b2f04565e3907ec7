"""The operator's tests: the rig, and logs as a person reads them."""

import sys

import pytest

from controller import log
from tests.support.rig_fixtures import installed, kubelet, rig

__all__ = ["installed", "kubelet", "rig"]


@pytest.fixture(autouse=True)
def plain_logs(logs_as_before: None) -> None:
    """The operator's log as a person reads it, in what pytest shows of a failed test."""
    log.configure("INFO", "console", sys.stderr)
