"""The Job of a rollout actor, and how it is seen."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller import names
from controller.policy.actor_types import Actor
from controller.policy.job.actors import ActorSeen
from controller.workloads import ProblemError, Scheduling
from controller.workloads.actor_jobs import (
    Sidecar,
    actor_job_name,
    actor_seen,
    actor_template_problem,
    actors_seen,
    build_actor,
    weights_problem,
)
from controller.workloads.pods import gpus

CHILD = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "run", "namespace": "team", "uid": "child-uid"},
}
ENTRY = Actor(7, "node-3", 2)
SIDECAR = Sidecar("evalstop:1", "https://steps:8600", "run-steps")


def template(count: int | None = 2, **more: Any) -> dict[str, Any]:
    limits = {} if count is None else {"limits": {names.GPU_RESOURCE: str(count)}}
    engine = {"name": "engine", "image": "engine:1", "resources": limits}
    return {"metadata": {"labels": {"mine": "yes"}}, "spec": {"containers": [engine], **more}}


def built(given: dict[str, Any], sidecar: Sidecar = SIDECAR) -> dict[str, Any]:
    return build_actor(
        CHILD, "run", given, ENTRY, sidecar,
        attempt=4, pool="research", grace=10, scheduling=Scheduling("evalstop-scheduler", "evalstop"),
    )  # fmt: skip


def test_one_pod_without_retries_owned_by_the_child() -> None:
    given = template()
    before = copy.deepcopy(given)
    job = built(given)
    assert given == before
    assert job["metadata"]["name"] == actor_job_name("run", 4, 7) == "run-actor-4-7"
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "child-uid", True)
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 0)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert gpus(pod) == 2
    assert pod["schedulerName"] == "evalstop-scheduler"
    assert {"key": names.POOL_TAINT, "operator": "Equal", "value": "research", "effect": "NoSchedule"} in pod[
        "tolerations"
    ]
    labels = spec["template"]["metadata"]["labels"]
    assert labels["mine"] == "yes"
    assert (labels[names.LABEL_COMPONENT], labels[names.LABEL_ACTOR]) == ("actor", "7")


def test_name_fits_with_the_longest_name_of_a_job() -> None:
    assert len(actor_job_name("x" * 40, 99999, 9999999)) <= 63


@pytest.mark.parametrize(("asked", "gets"), [(None, 10), (3, 3), (600, 10)])
def test_grace_period_is_no_longer_than_a_recall(asked: int | None, gets: int) -> None:
    more = {} if asked is None else {"terminationGracePeriodSeconds": asked}
    assert built(template(**more))["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == gets


def test_every_term_of_its_affinity_names_the_node() -> None:
    mine = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [mine, {}]}}
    for affinity in ({}, {"nodeAffinity": required}):
        pod = built(template(affinity=affinity))["spec"]["template"]["spec"]
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for term in terms["nodeSelectorTerms"]:
            assert {"key": "metadata.name", "operator": "In", "values": ["node-3"]} in term["matchFields"]
        assert len(terms["nodeSelectorTerms"]) == (2 if affinity else 1)
    assert mine["matchExpressions"]


def test_only_the_sidecar_has_the_token_and_both_share_the_socket() -> None:
    pod = built(template())["spec"]["template"]["spec"]
    (sidecar,), (engine,) = pod["initContainers"], pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    asked = sidecar["readinessProbe"]["httpGet"]
    assert (asked["path"], asked["scheme"]) == ("/healthz", "HTTPS"), "ready is who takes prompts"
    assert "startupProbe" not in sidecar, "the engine would be started only after it"
    mounts = [{mount["name"] for mount in one["volumeMounts"]} for one in (sidecar, engine)]
    assert mounts == [{"evalstop-engine", "evalstop-steps"}, {"evalstop-engine"}]
    (token,) = [v for v in pod["volumes"] if v["name"] == "evalstop-steps"]
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "evalstop.dev/steps"


@pytest.mark.parametrize(
    ("given", "reason", "said"),
    [
        ({"spec": {}}, "NoContainers", "expected the engine's container"),
        (template(None), "ActorWithoutGPUs", "none, expected 2 as in spec.rollout.gpusPerActor"),
        (template(4), "ActorGPUsMismatch", "4 in all, expected 2 as in spec.rollout.gpusPerActor"),
        (template(nodeName="n1"), "ActorPlaced", "spec.rollout.template.spec.nodeName: leave it out"),
        (template(volumes=[{"name": "evalstop-engine"}]), "ReservedName", "volumes[0].name"),
        (template(initContainers=[{"name": "evalstop-actor"}]), "ReservedName", "initContainers[0].name"),
    ],
)
def test_what_is_wrong_is_said_by_field(given: dict[str, Any], reason: str, said: str) -> None:
    problem = actor_template_problem(given, 2)
    assert problem is not None
    assert problem.reason == reason
    assert said in problem.message
    with pytest.raises(ProblemError):
        built(given)


def test_sidecar_and_engine_read_weights_at_one_path_and_write_none() -> None:
    given = template(volumes=[{"name": "shared", "persistentVolumeClaim": {"claimName": "weights"}}])
    pod = built(given, SIDECAR._replace(weights="shared"))["spec"]["template"]["spec"]
    found = [
        mount
        for one in (*pod["initContainers"], *pod["containers"])
        for mount in one["volumeMounts"]
        if mount["name"] == "shared"
    ]
    assert found == [{"name": "shared", "mountPath": "/run/weights", "readOnly": True}] * 2
    environment = {one["name"]: one.get("value") for one in pod["initContainers"][0]["env"]}
    assert environment["EVALSTOP_ACTOR_WEIGHTS"] == "/run/weights"
    pod = built(given)["spec"]["template"]["spec"]
    assert "EVALSTOP_ACTOR_WEIGHTS" not in {one["name"] for one in pod["initContainers"][0]["env"]}


CLAIM = {"name": "shared", "persistentVolumeClaim": {"claimName": "weights"}}


@pytest.mark.parametrize(
    ("given", "reason", "said"),
    [
        ({}, None, ""),
        ({"weightsVolume": "shared"}, None, ""),
        ({"weightsVolume": "shared", "engine": "vLLM"}, None, ""),
        ({"engine": "vLLM"}, "WeightsNotShared", "spec.rollout.weightsVolume: missing, engine vLLM"),
        ({"weightsVolume": "other"}, "NoWeightsVolume", "'other', expected one of spec.rollout.template"),
        ({"weightsVolume": "own"}, "WeightsNotShared", "'own' is of kind emptyDir"),
    ],
)
def test_weights_come_by_a_shared_volume(given: dict[str, Any], reason: str | None, said: str) -> None:
    volumes = [CLAIM, {"name": "own", "emptyDir": {}}]
    problem = weights_problem({"template": template(volumes=volumes), **given})
    assert (problem.reason if problem is not None else None) == reason
    assert said in (problem.message if problem is not None else "")


def pod(phase: str, ready: bool = False, owner: str = "job-uid") -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "ownerReferences": [{"uid": owner, "controller": True}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


FAILED = {"conditions": [{"type": "Failed", "status": "True"}]}


@pytest.mark.parametrize(
    ("status", "pods", "seen"),
    [
        ({}, [], ActorSeen(7)),
        ({}, [pod("Pending")], ActorSeen(7)),
        ({}, [pod("Running", True)], ActorSeen(7, ready=True)),
        ({}, [pod("Running", True, "another")], ActorSeen(7)),
        ({}, [pod("Succeeded")], ActorSeen(7, over=True)),
        (FAILED, [], ActorSeen(7, over=True)),
        (FAILED, [pod("Running", True)], ActorSeen(7, ready=True)),  # gone is when its pod is
    ],
)
def test_how_its_job_is_seen(status: dict[str, Any], pods: list[dict[str, Any]], seen: ActorSeen) -> None:
    metadata = {"name": "j", "uid": "job-uid", "labels": {names.LABEL_ACTOR: "7"}}
    assert actor_seen({"metadata": metadata, "status": status}, pods) == seen
    going = {"metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": status}
    found = actor_seen(going, pods)
    assert found is not None
    assert found.deleting
    assert actor_seen({"metadata": {"name": "j", "uid": "job-uid"}}, pods) is None


def test_that_its_node_is_not_heard_of_is_seen() -> None:
    lost = pod("Running")
    lost["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})
    metadata = {"name": "j", "uid": "job-uid", "labels": {names.LABEL_ACTOR: "7"}}
    assert actor_seen({"metadata": metadata}, [lost]) == ActorSeen(7, away=True)


def test_how_its_pod_ended_is_seen() -> None:
    ended = pod("Failed")
    state = {"terminated": {"exitCode": 3, "message": "no such weights"}}
    ended["status"]["containerStatuses"] = [{"name": "engine", "state": state}]
    metadata = {"name": "j", "uid": "job-uid", "labels": {names.LABEL_ACTOR: "7"}}
    found = actor_seen({"metadata": metadata}, [ended])
    assert found is not None
    assert found.trouble is not None
    assert (found.over, found.trouble.exit_code, found.trouble.message) == (True, 3, "no such weights")


def pod_of(
    owner: str, number: int, attempt: int = 1, uid: str = "gone", phase: str = "Running"
) -> dict[str, Any]:
    made = pod(phase, True, uid)
    made["metadata"] |= {
        "labels": {names.LABEL_ACTOR: str(number)},
        "annotations": {names.ANNOTATION_ADMISSION: str(attempt)},
        "ownerReferences": [{"kind": "Job", "name": owner, "uid": uid, "controller": True}],
    }
    made["spec"] = {"nodeName": "n1"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    made["status"]["conditions"].append(scheduled)
    return made


def test_a_pod_whose_job_is_gone_is_still_there() -> None:
    """Somebody deleted the Job, and its pod takes its time: it has its GPUs so long."""
    job = {"metadata": {"name": "run-actor-1-7", "uid": "job-uid", "labels": {names.LABEL_ACTOR: "7"}}}
    mine, orphan = pod_of("run-actor-1-7", 7, uid="job-uid"), pod_of("run-actor-1-8", 8)
    orphan["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    strangers = [
        pod_of("another-actor-1-9", 9),  # of another RLHFJob
        pod_of("run-actor-2-9", 9),  # of an attempt that its annotation does not name
        pod_of("run-actor-1-9", 9, phase="Succeeded"),
    ]
    found = actors_seen("run", [job], [mine, orphan, *strangers])
    assert [one.seen for one in found] == [
        ActorSeen(7, ready=True, bound=60.0),
        ActorSeen(8, deleting=True, bound=60.0),
    ]
    assert [one.pods for one in found] == [(mine,), (orphan,)]


def test_a_pod_that_is_seen_before_its_job_does_not_go() -> None:
    """Else it would be replaced at once by another one."""
    early = pod_of("run-actor-1-7", 7)
    assert [one.seen for one in actors_seen("run", [], [early])] == [ActorSeen(7, bound=60.0)]
