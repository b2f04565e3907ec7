"""The stories of elastic rollouts and of shared worker groups on kind: real images, kubelets and Services.

They are those of `make demo STORY=…` (deploy/local/demo); here the chart serves the step API, its scheduler
places the pods, and the cluster is left up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from controller import names
from controller.cli.connection import Connection
from controller.cli.forward import forwarded
from deploy.helm.cluster import NAMESPACE as RELEASE_NAMESPACE
from deploy.helm.cluster import ChartCluster
from deploy.images.build import tagged
from deploy.images.named import IMAGES
from deploy.kind import stage as staging
from deploy.kind.nodes import Kind
from deploy.local import kubeconfig
from deploy.local.api import LocalApi
from deploy.local.demo import jobs_story
from deploy.local.demo.elastic import __main__ as elastic
from deploy.local.demo.elastic.cast import ALL, pool
from deploy.local.demo.elastic.story import Story as ElasticStory
from deploy.local.demo.elastic.story import rows as elastic_rows
from deploy.local.demo.jobs_stage import NAMESPACE, Stage
from deploy.local.demo.shared import __main__ as shared
from deploy.local.demo.shared import cast as shared_cast
from deploy.local.demo.shared.findings import rows as shared_rows
from deploy.local.demo.shared.story import Story as SharedStory
from deploy.local.report import Report

Json = dict[str, Any]
ELASTIC, SHARED = STORIES = ("elastic", "shared")
CLAIM = "story"  # of what trainers write
DEVICE, CHECKPOINTS = Path("/run/device"), Path("/checkpoints")  # in pods
# Workers that are the pool's, and GPUs of each: as many in all as the story is about.
NODES: Mapping[str, tuple[int, int]] = {ELASTIC: (2, ALL // 2), SHARED: (1, shared_cast.GPUS)}


class KindStage(Stage):
    """A kind cluster with the chart. Pods run the images that were built for it."""

    family_volumes: Mapping[str, Json] = {
        str(DEVICE): {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    }
    trainer_volumes: Mapping[str, Json] = {str(CHECKPOINTS): {"persistentVolumeClaim": {"claimName": CLAIM}}}

    def __init__(self, scene: staging.KindStage, gpus: int, queue: str) -> None:
        client = LocalApi(*kubeconfig.embedded(scene.kubeconfig, scene.kind.work))
        super().__init__(client, gpus, scene.decision_log(), queue)
        self._scene = scene

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._scene.cluster.kubectl(*arguments, stdin=stdin)

    def words(self) -> str:
        return self._scene.operator_log()

    def problem(self) -> str | None:
        return self._scene.problem()

    def apply(self, *manifests: Json) -> None:
        super().apply(*(built(one) for one in manifests))


def built(manifest: Any) -> Any:
    """Return a manifest that names our images as they are on the nodes, with their tag."""
    if isinstance(manifest, list):
        return [built(one) for one in manifest]
    if not isinstance(manifest, dict):
        return manifest
    made = {key: built(value) for key, value in manifest.items()}
    if made.get("image") in IMAGES.values():
        made["image"] = tagged(made["image"])
    return made


def play(
    story: str, kind: Kind, cluster: ChartCluster, identity: str, report: Report, more: Sequence[str]
) -> int:
    """Play a story; return the exit status. Errors: PlaneError.

    Args:
        story: one of `STORIES`.
        kind: what the cluster was made by.
        cluster: with EvalStop's images on its nodes.
        identity: id of the operator's image.
        report: called with each line on the progress.
        more: the story's own options.
    """
    given = parsed(story, more)
    out = kind.work / f"story-{story}"
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with stage(story, kind, cluster, identity, report) as built_stage:
        played: jobs_story.Played[Any]
        if story == ELASTIC:
            elastic_story = ElasticStory(built_stage, report, given.runs, given.steps, given.train_seconds)
            acts = [getattr(elastic_story, act) for act in given.act or elastic.ACTS]
            played = _acted(built_stage, acts, elastic_story.result, out, kind)
            found, pictured = elastic_rows(elastic_story.result), list[str]()
        else:
            folder = kind.folder(cluster, NAMESPACE, CLAIM)
            folders = shared_cast.Folders(DEVICE, CHECKPOINTS, folder)
            shared_story = SharedStory(built_stage, report, folders, given.jobs, given.steps)
            acts = [partial(shared_story.play, arm) for arm in shared_cast.ARMS]
            played = _acted(built_stage, acts, shared_story.result, out, kind)
            found, pictured = shared_rows(shared_story.result), shared.pictured(shared_story.result)
        return jobs_story.report(played, found, pictured, out, time.monotonic() - began)


def parsed(story: str, more: Sequence[str]) -> argparse.Namespace:
    """Return a story's own options. Raises SystemExit where they are not right; that was printed."""
    module = elastic if story == ELASTIC else shared
    parser = argparse.ArgumentParser(prog=f"python -m deploy.kind {story} --", description=__doc__)
    module.options(parser)
    given = parser.parse_args(more)
    module.check(parser, given)
    return given


def _acted(
    stage: Stage, acts: Sequence[Any], result: jobs_story.Found, out: Path, kind: Kind
) -> jobs_story.Played[jobs_story.Found]:
    for act in acts:
        act()
        jobs_story.write(result, out)  # a later act may fail
    tour = f"The cluster is left up: export KUBECONFIG={kind.kubeconfig}; `make kind-down` deletes it."
    return jobs_story.Played(result, stage.decisions, tour)


@contextlib.contextmanager
def stage(
    story: str, kind: Kind, cluster: ChartCluster, identity: str, report: Report
) -> Iterator[KindStage]:
    """Install the chart with its step API, and yield the cluster with the story's nodes, empty of jobs."""
    scene = staging.KindStage(kind, cluster)
    count, gpus = NODES[story]
    label = pool()["metadata"]["name"] if story == ELASTIC else shared_cast.POOL
    if cluster.kubectl("get", "crd", "rlhfjobs.evalstop.dev", "--ignore-not-found", "-o", "name"):
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
    staging.remove_pools(cluster)
    for number, worker in enumerate(kind.workers()):
        given = f"pool={label}" if number < count else "pool-"
        cluster.kubectl("label", "node", worker, given, "--overwrite")
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.apply([home, staging.shared_claim(CLAIM, NAMESPACE)])
    # The queue API is the leader's: with one replica nobody else is asked.
    seconds = staging.install(scene, [], identity, {"rollouts": {"enabled": True}}, replicas=1)
    report(f"the chart is installed and all its pods are ready after {seconds:.1f} s")
    with _kubectl_on_path(cluster.binary.parent):
        target = f"deployment/{names.OPERATOR}"
        connection = Connection(kubeconfig=str(kind.kubeconfig))
        with forwarded(RELEASE_NAMESPACE, target, names.QUEUE_API_PORT, connection) as queue:
            made = KindStage(scene, gpus, queue)
            if story == ELASTIC:
                made.apply(pool())
            yield made


@contextlib.contextmanager
def _kubectl_on_path(folder: Path) -> Iterator[None]:
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
