"""The child workload: the template with what the operator needs; each mistake has its words."""

import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names, workloads
from controller.policy.types import Problem

UID = "0f2a1bb7-3c52-4d5e-9d61-8d7b5a1c0001"
TEMPLATE: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"labels": {"team": "red"}, "annotations": {"note": "x"}},
    "spec": {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "backoffLimit": 3,
        "suspend": False,
        "template": {
            "metadata": {"labels": {"app": "trainer"}},
            "spec": {
                "restartPolicy": "Never",
                "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "work"}}],
                "initContainers": [{"name": "fetch", "image": "i"}],
                "containers": [
                    {
                        "name": "trainer",
                        "image": "t",
                        "ports": [{"name": "metrics", "containerPort": 9400}],
                        "env": [{"name": "SEED", "value": "1"}],
                        "resources": {"limits": {"nvidia.com/gpu": "4", "memory": "1Gi"}},
                        "volumeMounts": [{"name": "ckpt", "mountPath": "/data"}],
                    },
                    {"name": "logger", "image": "l"},
                ],
            },
        },
    },
}


def rlhfjob(template: Any = TEMPLATE, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "run", "namespace": "team", "uid": UID},
        "spec": {
            "gang": {"replicas": 2, "gpusPerReplica": 4},
            "workload": {"template": template},
            "scrape": {},
            **spec,
        },
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The template with one value replaced ("spec.template.spec.containers.0.ports"); None: removed."""
    template = copy.deepcopy(TEMPLATE)
    *way, last = path.split(".")
    at: Any = template
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if value is None:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return template


def pod_spec(child: Any) -> Any:
    return child["spec"]["template"]["spec"]


def test_the_child_is_owned_labelled_suspended_and_told_where_to_look() -> None:
    child = workloads.build_child(rlhfjob())
    metadata = child["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("run", "team")
    assert metadata["labels"] == {
        "team": "red",
        names.LABEL_JOB: "run",
        names.LABEL_COMPONENT: "workload",
        names.LABEL_MANAGED_BY: "evalstop",
    }
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("RLHFJob", UID, True)
    assert child["spec"]["suspend"] is True
    assert child["spec"]["template"]["metadata"]["labels"][names.LABEL_JOB] == "run"
    spec = pod_spec(child)
    assert {"name": "evalstop-run", "configMap": {"name": "run-run"}} in spec["volumes"]
    for container in (*spec["initContainers"], *spec["containers"]):
        mount = next(m for m in container["volumeMounts"] if m["name"] == "evalstop-run")
        assert mount == {"name": "evalstop-run", "mountPath": "/etc/evalstop/run", "readOnly": True}
        assert {"name": "EVALSTOP_RUN_DIR", "value": "/etc/evalstop/run"} in container["env"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
UNKNOWN = st.dictionaries(st.sampled_from(["x", "futureField", "zz"]), JSON, max_size=3)


def contains(whole: Any, part: Any) -> bool:
    """Every value of ``part`` is in ``whole``: same keys, lists only grown at their end."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(k in whole and contains(whole[k], v) for k, v in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) >= len(part) and all(map(contains, whole, part))
    return bool(whole == part)


@given(top=UNKNOWN, spec=UNKNOWN, pod=UNKNOWN, container=UNKNOWN)
def test_no_field_of_the_template_is_lost_or_shared(top: Any, spec: Any, pod: Any, container: Any) -> None:
    template = copy.deepcopy(TEMPLATE)
    del template["spec"]["suspend"]  # the one thing that is the operator's
    template.update(top)
    template["spec"].update(spec)
    pod_spec(template).update(pod)
    pod_spec(template)["containers"][0].update(container)
    before = copy.deepcopy(template)
    child = workloads.build_child(rlhfjob(template))
    assert contains(child, before)
    assert template == before
    pod_spec(child)["containers"][0]["env"].append("mine")
    assert template == before


MISTAKES = [
    ("kind", "CronJob", "UnsupportedKind", "kind batch/v1 CronJob, expected one of batch/v1 Job"),
    ("spec.completions", 3, "GangMismatch", "spec.completions: 3, expected 2 as in spec.gang.replicas"),
    ("spec.parallelism", None, "GangMismatch", "spec.parallelism: not set, expected 2"),
    ("spec.completionMode", "NonIndexed", "GangMismatch", "completionMode: 'NonIndexed', expected 'Indexed'"),
    (
        "spec.template.spec.containers.0.resources",
        {"limits": {"nvidia.com/gpu": 2}},
        "GangGPUsMismatch",
        "limits[nvidia.com/gpu]: 2 in all, expected 4 as in spec.gang.gpusPerReplica",
    ),
    (
        "spec.template.spec.containers.0.ports",
        None,
        "NoMetricsPort",
        "ports: none, expected one named 'metrics'",
    ),
    (
        "spec.template.spec.containers.0.ports",
        [{"name": "http", "containerPort": 80}, {"containerPort": 81}],
        "NoMetricsPort",
        "ports: 81, http, expected one named 'metrics', or its number in spec.scrape.port",
    ),
    ("spec.template.spec.containers", [], "GangGPUsMismatch", "0 in all, expected 4"),
    (
        "spec.template.spec.containers.0.resources",
        {"limits": {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 1}},
        "GangGPUsMismatch",
        "containers[0].resources.limits['nvidia.com/mig-1g.10gb']: counted by nobody here",
    ),
    (
        "spec.template.spec.containers.0.resources",
        {"limits": {"nvidia.com/gpu": 4}, "requests": {"deviceclass.resource.kubernetes.io/gpu": "2"}},
        "GangGPUsMismatch",
        "requests['deviceclass.resource.kubernetes.io/gpu']: counted by nobody here",
    ),
    (
        "spec.template.spec.volumes.0",
        {"name": "evalstop-run", "emptyDir": {}},
        "ReservedName",
        "volumes[0].name: 'evalstop-run' is the operator's",
    ),
    (
        "spec.template.spec.containers.0.volumeMounts.0",
        {"name": "ckpt", "mountPath": "/etc/evalstop/run/"},
        "ReservedName",
        "containers[0].volumeMounts[0].mountPath: /etc/evalstop/run is where the operator",
    ),
    (
        "spec.template.spec.containers.0.env.0",
        {"name": "EVALSTOP_RUN_DIR", "value": "/elsewhere"},
        "ReservedName",
        "containers[0].env[0]: EVALSTOP_RUN_DIR is set by the operator",
    ),
]


@pytest.mark.parametrize(("path", "value", "reason", "message"), MISTAKES)
def test_each_mistake_names_field_value_and_remedy(path: str, value: Any, reason: str, message: str) -> None:
    problem = workloads.template_problem(rlhfjob(changed(path, value)))
    assert problem is not None
    assert problem.reason == reason
    assert message in problem.message
    assert problem.message.startswith("spec.workload.template")
    with pytest.raises(workloads.ProblemError) as caught:
        workloads.build_child(rlhfjob(changed(path, value)))
    assert caught.value.problem == problem


def test_a_port_by_number_needs_no_name() -> None:
    job = rlhfjob(changed("spec.template.spec.containers.0.ports", None), scrape={"port": 8000})
    assert workloads.template_problem(job) is None


def test_a_sidecar_may_publish_the_metrics() -> None:
    template = changed("spec.template.spec.containers.0.ports", None)
    exporter = {"name": "m", "restartPolicy": "Always", "ports": [{"name": "metrics", "containerPort": 1}]}
    pod_spec(template)["initContainers"].append(exporter)
    assert workloads.template_problem(rlhfjob(template)) is None


def container(gpus: Any, sidecar: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


@pytest.mark.parametrize(
    ("containers", "inits", "expected"),
    [
        ([container(4)], [], 4),
        ([container("4"), container(1)], [], 5),
        ([container(4)], [container(6)], 6),
        ([container(4)], [container(2)], 4),
        ([container(4)], [container(1, True)], 5),
        ([container(1)], [container(1, True), container(4)], 5),
        ([container(1)], [container(4), container(1, True)], 4),
        ([{"resources": {"requests": {"nvidia.com/gpu": "2"}}}], [], 2),
        ([container("1k")], [], 1000),
        ([{}], [], 0),
    ],
)
def test_gpus_are_counted_as_the_scheduler_counts(containers: Any, inits: Any, expected: int) -> None:
    assert workloads.gpus({"containers": containers, "initContainers": inits}) == expected


class ApiError(Exception):
    def __init__(self, status: int, body: str = "") -> None:
        super().__init__("no")
        self.status, self.body = status, body


def ask(error: Exception | None, answer: Any = None) -> Problem | None:
    async def create(manifest: dict[str, Any]) -> Any:
        if error is not None:
            raise error
        return answer

    return asyncio.run(workloads.server_problem(create, {}))


def test_the_servers_no_is_told_and_its_troubles_are_not_taken_for_one() -> None:
    assert ask(None) is None
    assert ask(ApiError(409)) is None
    problem = ask(ApiError(422, json.dumps({"message": "spec.template.spec.restartPolicy: Required"})))
    assert problem is not None
    assert problem.reason == "TemplateRefused"
    assert "restartPolicy: Required" in problem.message
    for trouble in (ApiError(500), ApiError(429), TimeoutError()):
        with pytest.raises(type(trouble)):
            ask(trouble)


def test_a_queue_that_would_take_the_workload_is_told_before_there_is_one() -> None:
    assert ask(None, {"metadata": {"labels": {"team": "x"}}}) is None
    problem = ask(None, {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "default"}}})
    assert problem is not None
    assert problem.reason == "QueueTakesWorkload"
    assert "RLHFJob.v1alpha1.evalstop.dev" in problem.message


def test_a_child_does_not_remove_itself_after_its_end() -> None:
    # row 14
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["ttlSecondsAfterFinished"] = 60
    assert "ttlSecondsAfterFinished" not in workloads.build_child(rlhfjob(template))["spec"]
    assert template["spec"]["ttlSecondsAfterFinished"] == 60
    assert "spec.workload.template.spec.ttlSecondsAfterFinished" in workloads.expiry_note(template)
    assert workloads.expiry_note(TEMPLATE) == ""


def test_members_that_ended_well_are_read_from_the_status() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"uid": "u"}, "spec": {"suspend": True}}
    status = {"completedIndexes": "0,3-5", "active": 1, "terminating": 2}
    seen = workloads.view(job | {"status": status})
    assert (seen.completed, seen.active, seen.settled) == ((0, 3, 4, 5), 3, False)
    assert workloads.view(job).completed == ()
    assert workloads.view(job | {"status": {"completedIndexes": "0-99999999"}}).completed[-1] == 1023
    assert workloads.view(job | {"status": {"completedIndexes": "nonsense"}}).completed == ()
    assert workloads.view(job | {"spec": {"ttlSecondsAfterFinished": 0}}).expires


def test_a_trainers_last_words_are_kept_where_its_template_does_not_say_how() -> None:
    job = rlhfjob()
    container = job["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"][0]
    container.pop("terminationMessagePolicy", None)
    child = workloads.build_child(job)
    assert pod_spec(child)["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
    container["terminationMessagePolicy"] = "File"
    assert pod_spec(workloads.build_child(job))["containers"][0]["terminationMessagePolicy"] == "File"


def test_pods_of_a_job_that_shares_get_the_token_for_their_group() -> None:
    assert "evalstop-steps" not in str(workloads.build_child(rlhfjob()))
    shares = workloads.build_child(rlhfjob(sharing={"family": "dense", "stateBytes": 1}))
    assert {"name": "evalstop-steps", "mountPath": "/var/run/secrets/evalstop.dev", "readOnly": True} in (
        pod_spec(shares)["containers"][0]["volumeMounts"]
    )


OURS = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [names.EXIT_STARVED]}}
LEFT = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}
FAILS = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [143]}}
THEIRS = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [names.EXIT_STARVED, 3]}}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (None, [OURS]),
        ([LEFT, FAILS], [OURS, LEFT, FAILS]),  # the first rule that fits decides
        ([LEFT, THEIRS], [LEFT, THEIRS]),  # its user has said what that exit code means
        ([LEFT] * 20, [LEFT] * 20),  # as many as the API server takes
    ],
)
def test_a_trainer_that_starved_is_no_failure_of_its_job(rules: Any, expected: Any) -> None:
    template = copy.deepcopy(TEMPLATE)
    if rules is not None:
        template["spec"]["podFailurePolicy"] = {"rules": rules}
    child = workloads.build_child(rlhfjob(template, rollout={"actors": {}}))
    assert child["spec"]["podFailurePolicy"]["rules"] == expected
    without = workloads.build_child(rlhfjob(template))
    assert without["spec"].get("podFailurePolicy") == template["spec"].get("podFailurePolicy")
    template["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"  # with which no rules are allowed
    kept = workloads.build_child(rlhfjob(template, rollout={"actors": {}}))
    assert kept["spec"].get("podFailurePolicy") == template["spec"].get("podFailurePolicy")
