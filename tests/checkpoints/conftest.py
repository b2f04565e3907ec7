"""Stores that only tests have: in memory, in a folder, on this machine."""

import os

import pytest

from controller.checkpoints import endpoints, object_store, volume

object_store.LOCAL = ("file", "memory")
os.environ[endpoints.ALLOWED_ENV] = ",".join(endpoints.KINDS)


@pytest.fixture(autouse=True)
def no_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be cloned, whatever the file system here can: pins are links, as where it cannot."""
    monkeypatch.setattr(volume, "FICLONE", 0)
