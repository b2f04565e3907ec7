"""Twelve of `python -m tests.bench faults`, all at once; and what its oracle says of runs that went wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.local.acquire import Found
from tests.bench.faults import oracle
from tests.bench.faults.command import bench
from tests.bench.faults.plan import KINDS, draw
from tests.bench.faults.stage import stage
from tests.bench.faults.truth import Eval, Truth, contents


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_twelve_real_runs_with_faults_lose_no_best_and_none_is_stopped_wrongly(
    tools: dict[str, Found], tmp_path: Path
) -> None:
    plans = [draw(seed, away=5.0, evals=(12, 16)) for seed in range(7000, 7012)]
    assert {fault.kind for plan in plans for fault in plan.faults} >= {"operator-kill", "trainer-kill", "lag"}
    assert {fault.kind for plan in plans for fault in plan.faults} <= {*KINDS}
    said: list[str] = []
    began = time.monotonic()
    with stage(tmp_path / "work", len(plans), (2,) * 8) as built:
        report = asyncio.run(bench(built, plans, tmp_path, said.append))
    print(f"\n{time.monotonic() - began:.0f} s", *said, *(f"{a}: {b}" for a, b in report.rows()), sep="\n")
    assert [(o.name, o.trouble, o.verdict) for o in report.failed] == []
    assert report.twice == []
    assert len(report.outcomes) == len(plans)
    assert sum(1 for o in report.outcomes if o.verdict.owed) >= 3, "or it saw nothing"
