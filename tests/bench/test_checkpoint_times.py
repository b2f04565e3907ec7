"""The table of sizes and rates in the docs is what its command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import checkpoint_times

DOCS = Path(__file__).resolve().parents[2] / "docs" / "use" / "checkpoints.md"


def test_the_docs_have_the_table_that_the_command_prints() -> None:
    assert checkpoint_times.table() in DOCS.read_text()


def test_a_checkpoint_has_14_bytes_per_parameter() -> None:
    assert checkpoint_times.size(7e9) == pytest.approx(98e9)
