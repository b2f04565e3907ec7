"""A pytest plugin: what a folder's tests share (a fixture of scope "package") ends with the last of them.

For pytest a package is a folder with an `__init__.py`, and ours have none; it would keep such a fixture until
the session's end. So a control plane that one folder uses would idle beside all tests that come after.
"""

from __future__ import annotations

from pathlib import Path

import pytest


class Folder(pytest.Package):
    """A folder of tests, without a module of its own that could be set up."""

    def setup(self) -> None:
        """Set nothing up."""


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return the folder; None: it is a package in Python's sense, pytest's own."""
    if (path / "__init__.py").is_file():
        return None
    found: Folder = Folder.from_parent(parent, path=path)
    return found
