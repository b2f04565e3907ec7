"""docs/first-ten-minutes.md: its blocks, as they stand, in a terminal, up to one's own watched run.

On the stage of the stories, which stands where `make demo KEEP=1` would have left it; that command, the first
block, has a test of its own (tests/demo), and the last one ends what the other stories need.
`python -m tests.story.ten_minutes` pastes all of them.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import pytest
from ten_minutes import HEIGHT, WIDTH, Desk, blocks, follow, in_chromium

from deploy.local.demo import cast
from deploy.local.demo.facts import Role
from tests.browser.chromium import NoChromium, obtain
from tests.support.cluster_report import under_ci
from tests.support.stage_jobs import StageJobs, holds
from tests.support.tmux import tmux

pytestmark = pytest.mark.timeout(900)  # getting tmux or a Chromium may be part of it
DEMO = "demo"


@pytest.fixture
def demo(story: StageJobs, tmp_path: Path) -> Path:
    """A folder like that of the repository after `make demo KEEP=1`, with a run that was stopped and whose
    GPUs are free."""
    scenes = cast.load(namespace=DEMO)
    supplies = [one for one in scenes.supplies if one["kind"] != "GPUPool"]
    job = copy.deepcopy(dict(next(j for j, role in scenes.jobs if role is Role.OVER_OPTIMISING)))
    # A trainer that computes nothing, and does not come to its end before it is stopped, however busy the
    # machine is.
    container = job["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["python", "-m", "tests.story.small_trainer"]
    container["args"] = ["--checkpoints=/checkpoints/overoptimising", "--keep=1000", "--falls-after=6"]
    story.stage.apply([*supplies, job])
    plane = story.stage.plane.work
    (tmp_path / "build" / "demo").mkdir(parents=True)
    (tmp_path / "build" / "demo" / "plane").symlink_to(plane)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    StageJobs(story.stage, DEMO, story.patience).wait(
        "overoptimising", "stopped", lambda s: holds(s, "GPUsReleased") and holds(s, "TerminationTarget")
    )
    return tmp_path


def test_the_blocks_as_they_stand(story: StageJobs, demo: Path) -> None:
    try:
        chromium = obtain()
    except NoChromium as error:
        if under_ci():
            raise
        pytest.skip(str(error))
    first, *wanted, last = blocks()
    assert first == "make demo KEEP=1\n"
    assert "deploy.local down" in last
    with tmux(WIDTH, HEIGHT) as pane:
        said = follow(Desk(pane, demo), wanted, [150.0] * len(wanted), in_chromium(chromium))
        asked, own = said[0], said[-2]
        assert "overoptimising: Stopped by kDeclines" in asked
        assert "evalstop resume overoptimising" in asked
        assert "condition met" in own
        assert "demo/my-run: Running" in own
        assert re.search(r"step \d+ of 2000", own)
    assert not (demo / "train.py").exists()
    StageJobs(story.stage, DEMO, story.patience).delete("overoptimising")
