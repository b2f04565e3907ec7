"""`python -m deploy.helm`: from `helm install` to the first admitted job, on a plane of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.acquire import Found

ROOT = Path(__file__).resolve().parents[2]
SAID = re.compile(
    r"^helm install --wait: (\d+\.\d) s\n"
    r"RLHFJob (\S+) was admitted to pool research\n"
    r"from helm install to the first admitted job: (\d+\.\d) s\n\Z",
    re.M,
)


@pytest.mark.timeout(240)
def test_the_time_to_the_first_admitted_job_is_printed(helm_tools: dict[str, Found], tmp_path: Path) -> None:
    """The plane is in the temporary folder, which is gone with it."""
    command = [sys.executable, "-m", "deploy.helm"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = SAID.search(done.stdout)
    assert found is not None, done.stdout
    installed, job, admitted = float(found[1]), found[2], float(found[3])
    assert 0.0 < installed <= admitted, "the job is submitted after Helm is done"
    assert "/" in job
    assert list(tmp_path.iterdir()) == []
