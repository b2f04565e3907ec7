"""Access Jobs as manifests: whose identity, which mounts, which node; and what their answers mean."""

import copy
import json
from typing import Any

import pytest

from controller.checkpoints import access_jobs
from controller.checkpoints.access_jobs import (
    AccessRefused,
    AccessSettings,
    access_job,
    access_problem,
    parse_result,
    retention_problem,
)
from controller.checkpoints.request import Request
from controller.policy.job.cures import cure_of, key_of
from controller.policy.job.record import Operation, ProtectedCheckpoint
from controller.policy.job.types import StartAccess

UID = "0f2a1bb7-3c52-4d5e-9d61-8d7b5a1c0001"
DIGEST = "sha256:" + "ab" * 32
SETTINGS = AccessSettings()
RLHFJOB: dict[str, Any] = {
    "metadata": {"name": "run", "namespace": "team", "uid": UID},
    "spec": {
        "checkpoints": {
            "layout": "Plain",
            "location": {"volumeClaim": {"claimName": "work", "path": "/runs/a"}},
            "retention": {"volumeClaim": {"claimName": "kept", "path": "/best"}},
            "keep": "Best",
        }
    },
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "trainer"}},
    "spec": {
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {
            "runAsUser": 1000,
            "runAsGroup": 2000,
            "fsGroup": 3000,
            "sysctls": [{"name": "x"}],
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h200"},
        "schedulerName": "evalstop",
        "priorityClassName": "high",
        "volumes": [
            {"name": "ckpt", "persistentVolumeClaim": {"claimName": "work"}},
            {"name": "key", "secret": {"secretName": "cloud"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "containers": [
            {
                "name": "trainer",
                "image": "t",
                "env": [
                    {"name": "AWS_REGION", "value": "eu"},
                    {"name": "AWS_KEY", "valueFrom": {"secretKeyRef": {"name": "cloud", "key": "k"}}},
                    {"name": "PYTHONPATH", "value": "/x"},
                    {"name": "EVALSTOP_RUN_DIR", "value": "/etc/evalstop/run"},
                ],
                "envFrom": [{"secretRef": {"name": "cloud"}}],
                "resources": {"limits": {"nvidia.com/gpu": 8}},
                "volumeMounts": [
                    {"name": "ckpt", "mountPath": "/data"},
                    {"name": "key", "mountPath": "/key"},
                    {"name": "scratch", "mountPath": "/scratch"},
                ],
            }
        ],
    },
}
CLAIMS: dict[str, Any] = {
    "work": {"spec": {"accessModes": ["ReadWriteOnce"]}},
    "kept": {"spec": {"accessModes": ["ReadWriteMany"]}},
}
CHILD = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run", "uid": "child-uid"}}
PINNED = ProtectedCheckpoint(400, 400, f"/data/runs/a/.evalstop/{UID}/400", DIGEST, 0.0)
SECURE = StartAccess("secure-400-3", Operation.SECURE, 400, max_step_lag=50)
RETAIN = StartAccess("retain-400-4", Operation.RETAIN, 400, source=PINNED)
RESTORE = StartAccess("restore-400-5", Operation.RESTORE, 400, source=PINNED)


def build(
    action: StartAccess, rlhfjob: Any = RLHFJOB, template: Any = TEMPLATE, **more: Any
) -> dict[str, Any]:
    return access_job(rlhfjob, template, action, SETTINGS, **{"claims": CLAIMS, **more})


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def request_of(job: dict[str, Any]) -> Request:
    environment = {e["name"]: e.get("value") for e in pod_of(job)["containers"][0]["env"]}
    return Request.parse(environment["EVALSTOP_REQUEST"])


def test_it_runs_as_the_tenant_and_wants_no_gpu() -> None:
    job = build(SECURE, node="n1", anchor=CHILD)
    pod = pod_of(job)
    assert pod["serviceAccountName"] == "trainer"
    assert pod["automountServiceAccountToken"] is False
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["securityContext"] == {
        "runAsUser": 1000,
        "runAsGroup": 2000,
        "fsGroup": 3000,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "gpu" not in json.dumps(container["resources"])
    assert {"key": "evalstop.dev/pool", "operator": "Exists"} in pod["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]
    assert not {"schedulerName", "nodeSelector"} & pod.keys()
    assert "nodeName" not in pod


def test_names_labels_and_life_are_as_agreed() -> None:
    job = build(SECURE, anchor=CHILD)
    assert job["metadata"]["name"] == "run-secure-400-3-0f2a1"
    assert job["metadata"]["labels"]["evalstop.dev/operation"] == "secure"
    assert job["metadata"]["labels"]["evalstop.dev/component"] == "access"
    assert job["metadata"]["annotations"]["evalstop.dev/job-uid"] == UID
    assert access_jobs.request_id(job) == "secure-400-3"
    assert job["spec"]["suspend"] is True
    assert job["spec"]["backoffLimit"] == 0
    # What moves is not killed: a copy of ninety minutes would begin anew for ever.
    assert "activeDeadlineSeconds" not in job["spec"]  # row 5
    (container,) = pod_of(job)["containers"]
    assert container["ports"] == [{"name": "progress", "containerPort": 9401}]
    told = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"] if "valueFrom" in e}
    assert told == {"POD_IP": "status.podIP"}
    assert job == build(SECURE, anchor=CHILD)
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "child-uid", True)
    assert "ownerReferences" not in build(SECURE)["metadata"]


def test_release_takes_owner_and_queue_away() -> None:
    job = build(SECURE, anchor=CHILD)
    job["metadata"]["uid"] = "u"
    assert access_jobs.unsuspend_patch(job) == {
        "metadata": {"uid": "u", "ownerReferences": []},
        "spec": {"suspend": False},
    }
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "default"
    assert access_jobs.unsuspend_patch(job)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": None}
    assert not access_jobs.is_unsuspended(job)
    assert access_jobs.is_unsuspended({"spec": {"suspend": False}})


@pytest.mark.parametrize("name", ["a" * 40, "a" * 39 + "-", "run.with.dots"])
def test_names_fit_a_label(name: str) -> None:
    made = access_jobs.access_job_name(name, "restore-1234567890-123456", UID)
    assert len(made) <= 63
    assert made.endswith("-restore-1234567890-123456-0f2a1")
    assert made != access_jobs.access_job_name(name, "restore-1234567890-123457", UID)


def test_secure_mounts_the_location_where_the_trainer_has_it() -> None:
    job = build(SECURE)
    assert pod_of(job)["containers"][0]["volumeMounts"] == [{"name": "location", "mountPath": "/data"}]
    request = request_of(job)
    assert request.location == "/data/runs/a"
    assert (request.operation, request.step, request.max_step_lag) == ("secure", 400, 50)
    assert (request.id, request.job) == ("secure-400-3", "team/run")
    assert request.owner == UID
    assert request.destination == ""


def test_retain_and_restore_mount_both() -> None:
    for action in (RETAIN, RESTORE):
        job = build(action)
        mounts = {m["name"]: m["mountPath"] for m in pod_of(job)["containers"][0]["volumeMounts"]}
        assert mounts == {"location": "/data", "retention": "/retained"}
        claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod_of(job)["volumes"]}
        assert claims == {"location": "work", "retention": "kept"}
        request = request_of(job)
        assert request.destination == "/retained/best/team/run-0f2a1"
        assert request.source is not None
        assert request.source.digest == DIGEST


@pytest.mark.parametrize(
    ("action", "read_only"),
    [
        (SECURE, {"location": False}),
        (StartAccess("check-400-6", Operation.CHECK, 400, source=PINNED), {"location": True}),
        (RETAIN, {"location": True, "retention": False}),
        (RESTORE, {"location": False, "retention": True}),
        (StartAccess("restore-400-7", Operation.RESTORE, 400), {"location": False}),
    ],
)
def test_what_is_only_read_is_mounted_so(action: StartAccess, read_only: dict[str, bool]) -> None:
    """In `restore` a trainer's link led into others' copies; on a node, the mount refuses what is written."""
    job = build(action)
    mounts = pod_of(job)["containers"][0]["volumeMounts"]
    assert {m["name"]: m.get("readOnly", False) for m in mounts} == read_only
    request = request_of(job)
    assert request.location_within == "/data"
    assert request.destination_within == ("/retained" if "retention" in read_only else "")


def test_a_sandboxed_trainer_has_sandboxed_access_jobs() -> None:
    template = copy.deepcopy(TEMPLATE)
    assert "runtimeClassName" not in pod_of(build(SECURE))
    template["spec"]["runtimeClassName"] = "gvisor"
    assert pod_of(build(SECURE, template=template))["runtimeClassName"] == "gvisor"


def test_restore_without_a_source_stays_on_the_location() -> None:
    job = build(StartAccess("restore-400-5", Operation.RESTORE, 400))
    assert [v["name"] for v in pod_of(job)["volumes"]] == ["location"]
    assert request_of(job).source is None


@pytest.mark.parametrize(
    ("modes", "pinned"),
    [(["ReadWriteOnce"], True), (["ReadWriteMany"], False), (["ReadWriteOnce", "ReadWriteMany"], False)],
)
def test_only_one_node_claims_are_followed_to_the_trainers_node(modes: list[str], pinned: bool) -> None:
    claims = {**CLAIMS, "work": {"spec": {"accessModes": modes}}}
    pod = pod_of(build(SECURE, claims=claims, node="n1"))
    assert ("affinity" in pod) == pinned
    if pinned:
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms["nodeSelectorTerms"][0]["matchFields"] == [
            {"key": "metadata.name", "operator": "In", "values": ["n1"]}
        ]
    assert "affinity" not in pod_of(build(SECURE, claims=claims))


def test_keep_best_and_latest_is_passed_on_to_retain_alone() -> None:
    rlhfjob = copy.deepcopy(RLHFJOB)
    rlhfjob["spec"]["checkpoints"]["keep"] = "BestAndLatest"
    assert request_of(build(RETAIN, rlhfjob)).keep_latest
    assert not request_of(build(SECURE, rlhfjob)).keep_latest
    assert not request_of(build(RETAIN)).keep_latest


@pytest.mark.parametrize(
    ("mount", "path", "location"),
    [
        ({"mountPath": "/ckpt", "subPath": "runs"}, "/runs/a", "/ckpt/a"),
        ({"mountPath": "/ckpt/", "subPath": "runs/a"}, "/runs/a/", "/ckpt"),
        ({"mountPath": "/ckpt"}, "/", "/ckpt"),
        ({"mountPath": "/"}, "/a", "/a"),
    ],
)
def test_paths_are_the_trainers_own(mount: dict[str, str], path: str, location: str) -> None:
    rlhfjob, template = copy.deepcopy(RLHFJOB), copy.deepcopy(TEMPLATE)
    rlhfjob["spec"]["checkpoints"]["location"]["volumeClaim"]["path"] = path
    template["spec"]["containers"][0]["volumeMounts"][0] = {"name": "ckpt", **mount}
    job = build(SECURE, rlhfjob, template)
    assert request_of(job).location == location
    seen = pod_of(job)["containers"][0]["volumeMounts"][0]
    assert {k: seen[k] for k in mount} == mount


def test_what_cannot_be_done_is_said_with_field_and_value() -> None:
    one_pod = {**CLAIMS, "work": {"spec": {"accessModes": ["ReadWriteOncePod"]}}}
    with pytest.raises(AccessRefused, match=r"'work' has access mode ReadWriteOncePod") as caught:
        build(SECURE, claims=one_pod)
    assert caught.value.reason == "ClaimForOnePod"
    assert access_problem(RLHFJOB, TEMPLATE, one_pod) == ("ClaimForOnePod", caught.value.message)
    assert access_problem(RLHFJOB, TEMPLATE, CLAIMS) is None


def test_a_claim_that_is_being_deleted_is_mounted_by_no_new_pod_and_named_with_its_volume() -> None:
    going = {"metadata": {"deletionTimestamp": "2026-11-27T20:00:00Z"}, "spec": {"volumeName": "pv-7"}}
    for name, action in (("work", SECURE), ("kept", RETAIN)):
        claims = {**CLAIMS, name: {**going, "spec": {**CLAIMS[name]["spec"], **going["spec"]}}}
        with pytest.raises(AccessRefused) as caught:
            build(action, claims=claims)
        assert caught.value.reason == "ClaimTerminating"
        told = caught.value.message
        assert told.startswith(f"claim {name} (volume pv-7) is being deleted: ")
        assert access_problem(RLHFJOB, TEMPLATE, claims) is None, "a run that has it mounted stays accepted"
        cure = cure_of(key_of("ClaimTerminating", told)).filled("run", "team", "a100", "", told)
        assert cure.command == (
            """kubectl patch pv pv-7 -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'"""
        )
    build(SECURE, claims={**CLAIMS, "kept": {**CLAIMS["kept"], **going}})  # the copies' claim is not mounted


DONE_WITHOUT_A_PLACE = [
    SECURE,
    StartAccess("pin-400-6", Operation.PIN, 400),
    StartAccess("claim-1-7", Operation.CLAIM, 1),
    StartAccess("detach-400-8", Operation.DETACH, 400, source=PINNED),
    StartAccess("restore-400-9", Operation.RESTORE, 400),
]


@pytest.mark.parametrize("action", DONE_WITHOUT_A_PLACE, ids=lambda action: str(action.operation))
def test_what_is_done_at_the_location_alone_asks_nothing_of_the_copies_claim(action: StartAccess) -> None:
    claims = {"work": CLAIMS["work"]}
    job = build(action, claims=claims)
    assert (access_problem(RLHFJOB, TEMPLATE, claims) or ("", ""))[0] == "ClaimMissing"
    assert [v["name"] for v in pod_of(job)["volumes"]] == ["location"]
    assert (request_of(job).destination, request_of(job).destination_within) == ("", "")
    assert job == build(action), "it is the Job that it would be with the claim"


@pytest.mark.parametrize(
    "action", [RETAIN, RESTORE, StartAccess("check-4-9", Operation.CHECK, 4, source=PINNED)]
)
def test_a_copy_and_the_check_that_a_stop_rests_on_need_the_copies_claim(action: StartAccess) -> None:
    with pytest.raises(AccessRefused, match=r"retention\.volumeClaim\.claimName: 'kept'") as caught:
        build(action, claims={"work": CLAIMS["work"]})
    assert caught.value.reason == "ClaimMissing"


@pytest.mark.parametrize(("place", "said"), [({}, "empty"), ({"nfs": {"server": "s"}}, "nfs")])
def test_a_place_of_another_kind_is_named(place: dict, said: str) -> None:
    rlhfjob = copy.deepcopy(RLHFJOB)
    rlhfjob["spec"]["checkpoints"]["location"] = place
    expected = f"spec.checkpoints.location: {said}, expected volumeClaim or objectStore"
    assert access_problem(rlhfjob, TEMPLATE, CLAIMS) == ("PlaceMissing", expected)

    reason, message = access_problem(RLHFJOB, TEMPLATE, {"work": CLAIMS["work"]}) or ("", "")
    assert reason == "ClaimMissing"
    assert "spec.checkpoints.retention.volumeClaim.claimName: 'kept'" in message

    # Of the copies' place nothing is said that is the location's.
    assert (access_problem(RLHFJOB, TEMPLATE, {"kept": CLAIMS["kept"]}) or ("", ""))[0] == "ClaimMissing"
    assert retention_problem(RLHFJOB, TEMPLATE, {"kept": CLAIMS["kept"]}) is None
    assert (retention_problem(RLHFJOB, TEMPLATE, {}) or ("", ""))[1] == message

    bare = copy.deepcopy(TEMPLATE)
    bare["spec"]["containers"][0]["volumeMounts"] = []
    assert (access_problem(RLHFJOB, bare, CLAIMS) or ("", ""))[0] == "LocationNotMounted"

    # The claim that the copies are kept on is never what was meant by the trainer's own.
    swapped = json.loads(json.dumps(TEMPLATE).replace('"claimName": "work"', '"claimName": "kept"'))
    reason, message = access_problem(RLHFJOB, swapped, CLAIMS) or ("", "")
    assert (reason, "did you mean" in message) == ("LocationNotMounted", False)

    narrow = copy.deepcopy(TEMPLATE)
    narrow["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = "other"
    reason, message = access_problem(RLHFJOB, narrow, CLAIMS) or ("", "")
    assert reason == "LocationNotMounted"
    assert "'/runs/a' is not inside" in message


def test_object_stores_get_the_trainers_credentials_and_no_claim() -> None:
    rlhfjob = copy.deepcopy(RLHFJOB)
    rlhfjob["spec"]["checkpoints"]["location"] = {"objectStore": {"uri": "s3://bucket/runs/a/"}}
    rlhfjob["spec"]["checkpoints"]["retention"] = {"objectStore": {"uri": "s3://bucket/best"}}
    job = build(RETAIN, rlhfjob, claims={}, node="n1")
    pod = pod_of(job)
    container = pod["containers"][0]
    names = [variable["name"] for variable in container["env"]]
    assert names == [
        "AWS_REGION",
        "AWS_KEY",
        "EVALSTOP_REQUEST",
        "PYTHONDONTWRITEBYTECODE",
        "EVALSTOP_STORE_ENDPOINTS",
        "POD_IP",
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "cloud"}}]
    assert pod["volumes"] == [{"name": "key", "secret": {"secretName": "cloud"}}]
    assert container["volumeMounts"] == [{"name": "key", "mountPath": "/key", "readOnly": True}]
    assert "affinity" not in pod
    request = request_of(job)
    assert request.location == "s3://bucket/runs/a"
    assert request.destination == "s3://bucket/best/team/run-0f2a1"
    assert "AWS" not in json.dumps(pod_of(build(RETAIN)))


@pytest.mark.parametrize(
    ("token", "lent"),
    [
        ({"path": "t"}, False),
        ({"path": "t", "audience": "https://kubernetes.default.svc.cluster.local"}, False),
        ({"path": "t", "audience": "sts.amazonaws.com"}, True),
    ],
)
def test_a_token_of_the_api_server_is_not_lent(token: dict[str, str], lent: bool) -> None:
    trainer: dict[str, Any] = {"spec": {"containers": [{"name": "t", "image": "t"}]}}
    trainer["spec"]["volumes"] = [
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    ]
    trainer["spec"]["containers"][0]["volumeMounts"] = [{"name": "token", "mountPath": "/token"}]
    container: dict[str, Any] = {"env": [], "volumeMounts": []}
    volumes: list[dict[str, Any]] = []
    first = trainer["spec"]["containers"][0]
    access_jobs._lend_credentials(trainer["spec"], first, container, volumes)
    assert [v["name"] for v in volumes] == [m["name"] for m in container["volumeMounts"]] == ["token"] * lent


def test_a_root_trainer_is_followed_but_never_privileged() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["securityContext"] = {}
    template["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0, "privileged": True}
    pod = pod_of(build(SECURE, template=template))
    assert "runAsNonRoot" not in pod["securityContext"]
    assert pod["containers"][0]["securityContext"]["runAsUser"] == 0
    assert "privileged" not in pod["containers"][0]["securityContext"]


def pod_with(message: str | None, **status: Any) -> dict[str, Any]:
    state = {} if message is None else {"terminated": {"exitCode": 0, "message": message}}
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": [{"state": state}], **status}}


def job_with(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {**build(SECURE), "status": {"conditions": list(conditions)}}


GOOD = {
    "ok": True,
    "step": 400,
    "path": "/p",
    "digest": DIGEST,
    "sourceDigest": DIGEST,
    "bytes": 7,
    "files": 1,
}


def test_an_answer_counts_as_soon_as_the_pod_has_ended() -> None:
    view = parse_result(job_with(), [pod_with(json.dumps(GOOD))])
    assert (view.request_id, view.operation, view.finished, view.ok) == (
        "secure-400-3",
        Operation.SECURE,
        True,
        True,
    )
    assert (view.step, view.path, view.digest, view.source_digest, view.bytes) == (
        400,
        "/p",
        DIGEST,
        DIGEST,
        7,
    )


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\r\u202eevil\ud800"


def test_what_a_terminal_would_obey_is_taken_out_of_answers() -> None:
    """The status is shown in terminals, logs and pages; the answer is written in a tenant's namespace."""
    no = parse_result(
        job_with(),
        [
            pod_with(
                json.dumps(
                    {
                        "ok": False,
                        "reason": "LocationTaken",
                        "message": HOSTILE,
                        "holder": {"uid": HOSTILE, "job": HOSTILE},
                    }
                )
            )
        ],
    )
    yes = parse_result(job_with(), [pod_with(json.dumps({**GOOD, "note": HOSTILE}))])
    assert no.holder is not None
    for text in (no.message, yes.message, *no.holder):
        assert text.isprintable()
        assert "red" in text
    path = parse_result(job_with(), [pod_with(json.dumps({**GOOD, "path": f"/a/{HOSTILE}"}))])
    assert (path.ok, path.reason, path.message.isprintable()) == (False, "AccessFailed", True)


def test_no_is_an_answer_too() -> None:
    message = json.dumps({"ok": False, "reason": "CheckpointMissing", "message": "none there"})
    view = parse_result(job_with(), [pod_with(message)])
    assert (view.finished, view.ok, view.reason, view.message) == (
        True,
        False,
        "CheckpointMissing",
        "none there",
    )


@pytest.mark.parametrize(
    "message",
    [
        "Traceback (most recent call last): …",
        "[]",
        "{}",
        json.dumps({**GOOD, "digest": "md5:1"}),
        json.dumps({**GOOD, "step": -1}),
        json.dumps({**GOOD, "step": True}),
        json.dumps({**GOOD, "path": ""}),
        json.dumps({**GOOD, "bytes": None}),
        json.dumps({**GOOD, "note": "x" * 5000}),
        json.dumps({"ok": False, "reason": "Invented"}),
    ],
)
def test_answers_that_make_no_sense_are_failures(message: str) -> None:
    view = parse_result(job_with(), [pod_with(message)])
    assert view.finished
    assert not view.ok
    assert view.reason == "AccessFailed"
    assert view.message


def test_while_it_waits_the_reason_is_told() -> None:
    assert not parse_result(job_with(), []).finished
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes",
    }
    view = parse_result(job_with(), [pod_with(None, conditions=[unschedulable])])
    assert not view.finished
    assert view.message == "its access Job's pod finds no node: 0/4 nodes"
    waiting = pod_with(None)
    waiting["status"]["containerStatuses"] = [
        {"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no image"}}}
    ]
    assert parse_result(job_with(), [waiting]).message == "ErrImageNeverPull no image"


def test_a_job_that_ended_without_an_answer_failed() -> None:
    late = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    view = parse_result(job_with(late), [])
    assert (view.finished, view.ok, view.reason) == (True, False, "AccessFailed")
    assert "DeadlineExceeded: too long" in view.message
    assert not parse_result(job_with({**late, "status": "False"}), []).finished


CROWDED = (
    "0/9 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 8 node(s) didn't match Pod's node "
    "affinity/selector. preemption: 0/9 nodes are available: 9 Preemption is not helpful for scheduling."
)


def test_on_the_trainers_node_it_asks_for_what_is_always_there() -> None:
    # row 19
    secure = StartAccess("secure-400-1", Operation.SECURE, 400)
    pod = pod_of(build(secure, node="gpu-1"))
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "10m", "memory": "32Mi"}
    assert pod["priorityClassName"] == "high"
    anywhere = pod_of(build(secure))["containers"][0]["resources"]["requests"]
    assert anywhere == {"cpu": SETTINGS.cpu, "memory": SETTINGS.memory}
    assert "priorityClassName" not in pod_of(build(secure))


def test_a_full_node_is_named_with_what_is_missing_and_the_cure() -> None:
    # row 19
    job = build(StartAccess("secure-400-1", Operation.SECURE, 400), node="gpu-1")
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": CROWDED}
    pod = pod_with(None, conditions=[waits])
    pod["status"].pop("containerStatuses", None)
    view = parse_result(job, [pod])
    assert (view.finished, view.hindered) == (False, "AccessPodUnschedulable")
    for part in (
        "node gpu-1",
        "ReadWriteOnce",
        "Insufficient cpu, Insufficient memory;",
        "cpu 10m",
        "free that",
    ):
        assert part in view.message
    anywhere = parse_result(build(StartAccess("secure-400-1", Operation.SECURE, 400)), [pod])
    assert anywhere.hindered == "AccessPodUnschedulable"
    assert CROWDED in anywhere.message
