"""Twelve of `python -m tests.bench faults`, all at once; and what its oracle says of runs that went wrong."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.local.acquire import Found
from tests.bench.faults.command import bench
from tests.bench.faults.plan import OWN, draw
from tests.bench.faults.stage import stage

RUNS, SEED = 12, 12974
# What all runs feel goes wrong in the first ones only: the start of an operator takes as long as a run.
SHARED = (("operator-kill",), ("lag",), ("lost",), ("409", "503"))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_twelve_real_runs_with_faults_lose_no_best_and_none_is_stopped_wrongly(
    tools: dict[str, Found], repository: Path, tmp_path: Path
) -> None:
    plans = [draw(SEED + i, kinds=SHARED[i] if i < len(SHARED) else OWN, evals=(14, 18)) for i in range(RUNS)]
    # A run that is over before its best was read is owed nothing: on a busy machine most of them would be.
    plans = [replace(plan, waits=True) for plan in plans]
    kinds = [fault.kind for plan in plans for fault in plan.faults]
    assert {"operator-kill", "lag", "lost", "trainer-kill", "access-kill", "disk-full"} <= {*kinds}
    said: list[str] = []
    began = time.monotonic()
    folder = repository / "build" / "faults" / "make-test"  # what failed stays there
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with stage(tmp_path / "work", len(plans), (2,) * 8) as built:
        report = asyncio.run(bench(built, plans, folder, said.append))
    print(f"\n{time.monotonic() - began:.0f} s", *said, *(f"{a}: {b}" for a, b in report.rows()), sep="\n")
    assert [(o.name, o.trouble, o.verdict) for o in report.failed] == []
    assert report.twice == []
    assert report.felt["lag"] > 0, "no read went to the past and no watch was late"
    assert len(report.outcomes) == len(plans)
    assert sum(1 for o in report.outcomes if o.verdict.owed) >= 3, "it saw nothing"
