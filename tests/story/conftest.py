"""The stage of the stories: one plane with four nodes, the operator's pod, the sample pool and its claims."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local.acquire import Found
from deploy.local.demo import cast
from deploy.local.demo.report import replay
from deploy.local.demo.stage import stage
from deploy.local.report import silent
from tests.support.stage_jobs import StageJobs

NAMESPACE = "story"


@pytest.fixture(scope="package")
def story(tools: dict[str, Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageJobs]:
    """RLHFJobs of one namespace. At the end everything that was decided is decided again, equally.

    It ends with this folder's tests: idle, it would take its part of a core from all that come after.
    """
    scenes = cast.load(namespace=NAMESPACE)
    with stage(tmp_path_factory.mktemp("story") / "plane", scenes.node_labels, silent) as built:
        built.apply(
            [s for s in scenes.supplies if s["kind"] != "Namespace" or s["metadata"]["name"] == NAMESPACE]
        )
        yield StageJobs(built, NAMESPACE, 120.0)
        same, words = replay(built.decision_log(), built.plane.work / "decisions.jsonl")
        assert same, words
