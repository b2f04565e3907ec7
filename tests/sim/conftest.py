"""Says at the end how many golden answers were compared, so that none is left out unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "data" / "golden"
_compared: list[str] = []


@pytest.fixture
def golden() -> Iterator[Path]:
    """The folder of the golden answers; the test is skipped, and that is reported, where there is none."""
    if not (GOLDEN / "golden.json").is_file():
        pytest.skip(f"no golden answers at {GOLDEN}")
    yield GOLDEN
    _compared.append("")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", ()) if "no golden answers" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(f"golden answers: {len(skipped)} tests not run, there is no {GOLDEN}")
    elif _compared:
        terminalreporter.write_line(f"golden answers: {len(_compared)} compared")
