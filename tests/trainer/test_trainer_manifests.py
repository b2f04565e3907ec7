"""The sample manifests: valid by the API's own models, and such as this trainer really understands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainer_curves import (
    EVAL_EVERY,
    HEALTHY,
    MIN_DELTA,
    MIN_EVALS,
    OVER_OPTIMISING,
    K,
    curves,
    stops,
)

from controller import names
from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJob
from controller.workloads.child import build_child
from deploy.local.plane import Plane
from examples.trainer.settings import parse

FOLDER = Path(__file__).parents[2] / "examples" / "manifests"
DOCUMENTS = [
    document for file in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())
]
JOBS = {d["metadata"]["name"]: d for d in DOCUMENTS if d["kind"] == "RLHFJob"}
ROLES = {
    "overoptimising": "over-optimising",
    "healthy-a": "healthy",
    "healthy-b": "healthy",
    "waiting": "waiting",
}


def container(job: Mapping[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_there_are_the_jobs_of_the_story_in_their_order() -> None:
    assert {n: d["metadata"]["labels"]["example.evalstop.dev/role"] for n, d in JOBS.items()} == ROLES
    assert list(JOBS) == list(ROLES)


@pytest.mark.parametrize("name", ROLES)
def test_a_job_is_accepted_by_the_api_and_by_the_operator(name: str) -> None:
    model = RLHFJob.model_validate(JOBS[name])
    rule = model.spec.stop_rule.chosen()
    assert rule.name == "kDeclines"
    assert (rule.params["k"], rule.params["min_delta"]) == (K, MIN_DELTA)
    assert [m.chosen().params for m in model.spec.modifiers] == [{"min_evals": MIN_EVALS}]
    owner = {**JOBS[name]["metadata"], "uid": "u", "namespace": "n"}
    child = build_child({**JOBS[name], "metadata": owner})
    assert child["spec"]["suspend"] is True


@pytest.mark.parametrize("name", ROLES)
def test_the_trainer_understands_its_arguments(name: str) -> None:
    job, pod = JOBS[name], container(JOBS[name])
    assert pod["image"].partition(":")[0] == names.TRAINER_IMAGE
    assert pod["command"] == ["python", "-m", "examples.trainer"]
    assert {"name": names.METRICS_PORT_NAME, "containerPort": names.DEFAULT_METRICS_PORT} in pod["ports"]
    settings = parse(pod["args"], {"POD_IP": "127.1.2.3"})
    assert settings.metric == job["spec"]["metrics"][0]["name"]
    assert settings.recipe == (OVER_OPTIMISING if name == "overoptimising" else HEALTHY)
    assert settings.eval_every == settings.checkpoint_every == EVAL_EVERY
    location = job["spec"]["checkpoints"]["location"]["volumeClaim"]
    (mount,) = pod["volumeMounts"]
    assert str(settings.checkpoints) == mount["mountPath"] + location["path"]
    assert 30 <= settings.steps * settings.step_seconds <= 100
    # long enough for two scrapes: the last evals must not be lost with the pod
    assert settings.linger_seconds > 2 * job["spec"]["scrape"]["intervalSeconds"]
    # a best must outlive the time it takes to be seen and secured
    assert settings.keep * settings.eval_every * settings.step_seconds > 2 * 5


def test_pool_and_claims_are_those_the_jobs_name() -> None:
    by_kind: dict[str, list[str]] = {}
    for document in DOCUMENTS:
        by_kind.setdefault(document["kind"], []).append(document["metadata"]["name"])
        if document["kind"] == "GPUPool":
            GPUPool.model_validate(document)
    for job in JOBS.values():
        assert [job["spec"]["pool"]] == by_kind["GPUPool"]
        places = job["spec"]["checkpoints"]
        claims = {places[p]["volumeClaim"]["claimName"] for p in ("location", "retention")}
        assert claims == set(by_kind["PersistentVolumeClaim"])


def test_the_story_happens() -> None:
    """The very seeds of the manifests: one is stopped well before its end, the others never."""
    for name, job in JOBS.items():
        settings = parse(container(job)["args"], {})
        found = curves(settings.recipe, [settings.seed], settings.steps, settings.eval_every)
        (stop,) = stops(found)
        if name == "overoptimising":
            assert stop is not None
            assert found.peak[0] < stop < len(found.steps) / 2
        else:
            assert stop is None


def test_the_api_server_takes_them(plane: Plane, namespace: str) -> None:
    """Strictly validated by the real server, child Jobs included; nothing is kept."""
    plane.kubectl("apply", "-f", str(FOLDER.parents[1] / "crds"))
    for crd in ("rlhfjobs", "gpupools"):
        plane.established(f"{crd}.evalstop.dev")
    arguments = ("--dry-run=server", "--validate=strict", "-n", namespace)
    said = plane.kubectl("create", *arguments, "-f", str(FOLDER))
    assert said.count("created (server dry run)") == len(DOCUMENTS)
    for job in JOBS.values():
        child = build_child({**job, "metadata": {**job["metadata"], "uid": "u-1", "namespace": namespace}})
        said = plane.kubectl("create", *arguments, "-f", "-", stdin=yaml.safe_dump(child))
        assert said.strip() == f"job.batch/{job['metadata']['name']} created (server dry run)"
