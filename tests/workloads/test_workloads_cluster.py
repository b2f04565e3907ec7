"""On a real control plane with real pods: a child through its life, and store work where Kueue lies in wait.

The fast form of tests/kueue, which ask the real Kueue. Here its Job webhook is imitated by policies of
the same rules (0.15.2, pkg/controller/jobframework: ApplyDefaultLocalQueue, ApplyDefaultForSuspend,
validateUpdateForQueueName): a Job without queue label gets `default` on CREATE and is suspended, unless its
controller is itself a Job; afterwards the label may not be taken off, nor changed together with starting.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from controller import names, workloads
from controller.checkpoints.access_jobs import AccessSettings, access_job
from controller.checkpoints.pod_security import LABEL, refusal
from controller.checkpoints.run_as import run_as
from controller.kube.errors import ApiError
from controller.policy.job.record import Operation, ProtectedCheckpoint
from controller.policy.job.types import StartAccess
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from tests.support.store_work import QUEUE, Cluster, rlhfjob, settled, start_child, work


@pytest.fixture
def cluster(plane: Plane, namespace: str) -> Cluster:
    return Cluster(plane, namespace)


POLICIES = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: kueue-default-queue}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [batch], apiVersions: [v1], resources: [jobs], operations: [CREATE]}
  matchConditions:
  - name: no-queue
    expression: >-
      !has(object.metadata.labels) || !('kueue.x-k8s.io/queue-name' in object.metadata.labels)
  - name: controller-is-no-job
    expression: >-
      !has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o,
      has(o.controller) && o.controller && o.kind == 'Job' && o.apiVersion == 'batch/v1')
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{metadata: Object.metadata{labels: {'kueue.x-k8s.io/queue-name': 'default'}},
        spec: Object.spec{suspend: true}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: kueue-default-queue}
spec:
  policyName: kueue-default-queue
  matchResources: {namespaceSelector: {matchLabels: {has-default-queue: "yes"}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: kueue-keep-queue}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [batch], apiVersions: [v1], resources: [jobs], operations: [UPDATE]}
  variables:
  - name: before
    expression: >-
      has(oldObject.metadata.labels)
      ? oldObject.metadata.labels[?'kueue.x-k8s.io/queue-name'].orValue('') : ''
  - name: after
    expression: >-
      has(object.metadata.labels) ? object.metadata.labels[?'kueue.x-k8s.io/queue-name'].orValue('') : ''
  validations:
  - expression: "variables.before == '' || variables.after != ''"
    message: queue-name must not be empty in namespace with default queue
  - expression: "object.spec.suspend || variables.before == variables.after"
    message: field is immutable
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: kueue-keep-queue}
spec:
  policyName: kueue-keep-queue
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {has-default-queue: "yes"}}}
"""

BARE_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "bare"},
    "spec": {
        "suspend": True,
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": names.TRAINER_IMAGE}]}
        },
    },
}


@pytest.fixture
def default_queue(cluster: Cluster) -> Iterator[None]:
    """The test's namespace as if it had a LocalQueue named `default`."""
    cluster.label_namespace("has-default-queue", "yes")
    cluster.plane.kubectl("apply", "-f", "-", stdin=POLICIES)
    try:
        # Policies take effect a moment after they are made.
        cluster.wait(lambda: QUEUE in str(cluster.create(BARE_JOB, dry_run=True)["metadata"].get("labels")))
        job = cluster.create({**BARE_JOB, "metadata": {"name": "probe"}})
        cluster.wait(lambda: not _may_drop_queue(cluster, job))
        cluster.delete("Job", "probe")
        yield
    finally:
        cluster.plane.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=POLICIES)


def _may_drop_queue(cluster: Cluster, job: Any) -> bool:
    try:
        cluster.patch(job, {"metadata": {"labels": {QUEUE: None}}}, dry_run=True)
    except ApiError as error:
        if "queue-name must not be empty" not in str(error):
            raise
        return False
    return True


def _refused(cluster: Cluster, pod: Any) -> bool:
    try:
        cluster.create(pod, dry_run=True)
    except ApiError as error:
        if "violates PodSecurity" not in str(error):
            raise
        return True
    return False


def test_store_work_where_a_default_queue_captures_unlabelled_jobs(
    plane: Plane, nodes: Nodes, cluster: Cluster, default_queue: None
) -> None:
    bare = cluster.create(BARE_JOB)
    assert bare["metadata"]["labels"][QUEUE] == "default"
    assert not _may_drop_queue(cluster, bare)

    for name in ("work", "kept"):
        cluster.claim(name)
    wish = rlhfjob(cluster.namespace)
    # The child asks for its queue itself here, as with a delegated queue: what is shown is the access Jobs'.
    wish["spec"]["workload"]["template"]["metadata"] = {"labels": {QUEUE: "default"}}
    child = start_child(cluster, wish)
    (pod,) = cluster.pods_of(child)
    node = pod["spec"]["nodeName"]

    secured = work(cluster, wish, child, StartAccess("secure-100-1", Operation.SECURE, 100), node)
    assert secured.path == f"/ckpt/runs/.evalstop/{wish['metadata']['uid']}/0-100"
    source = ProtectedCheckpoint(100, 100, secured.path, secured.digest, 0.0)
    retained = work(
        cluster, wish, child, StartAccess("retain-100-2", Operation.RETAIN, 100, source=source), node
    )
    assert retained.path == f"/retained/{cluster.namespace}/run-0f2a1/0-100"
    assert retained.digest == secured.digest

    cluster.patch(child, workloads.suspend_patch(child))
    child = cluster.wait(lambda: settled(cluster, child))
    cluster.wait(lambda: not cluster.pods_of(child))
    assert workloads.start_problem(child) is None
    source = ProtectedCheckpoint(100, 100, retained.path, retained.digest, 0.0)
    restored = work(
        cluster, wish, child, StartAccess("restore-100-3", Operation.RESTORE, 100, source=source), None
    )
    assert restored.path.endswith("/resume/step-100")
    assert restored.digest == secured.digest

    child = cluster.patch(child, workloads.start_patch(child, 2, {"kubernetes.io/arch": "amd64"}))
    assert child["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert len(child["spec"]["template"]["spec"]["tolerations"]) == 1


def test_access_jobs_satisfy_restricted_pod_security(cluster: Cluster) -> None:
    cluster.label_namespace("pod-security.kubernetes.io/enforce", "restricted")
    wish = rlhfjob(cluster.namespace)
    pod = wish["spec"]["workload"]["template"]["spec"]["template"]
    pod["spec"]["securityContext"] = {"runAsUser": 1000}
    claims = {name: {"spec": {"accessModes": ["ReadWriteMany"]}} for name in ("work", "kept")}
    action = StartAccess("secure-100-1", Operation.SECURE, 100)
    made = access_job(wish, pod, action, AccessSettings(), claims=claims)["spec"]["template"]
    good = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "access"}, "spec": made["spec"]}
    pod = {**good, "metadata": {"name": "bad"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    cluster.wait(lambda: _refused(cluster, pod))  # a namespace's labels take effect a moment later
    cluster.create(good)
    with pytest.raises(ApiError, match="violates PodSecurity"):
        cluster.create(pod)


SPC = {"seLinuxOptions": {"type": "spc_t"}}
LEVEL_ROWS: list[tuple[dict[str, Any], dict[str, int] | None, set[str]]] = [
    ({}, None, set()),
    ({"runAsUser": 1000}, None, set()),
    ({"runAsUser": 0}, None, {"restricted"}),
    ({}, {"user": 0}, {"restricted"}),
    ({}, {"user": 1000}, set()),
    ({"seLinuxOptions": {"type": "container_t", "level": "s0:c1"}}, {"user": 1000}, set()),
    (SPC, {"user": 1000}, {"baseline", "restricted"}),
    ({"seLinuxOptions": {"role": "r"}}, {"user": 1000}, {"baseline", "restricted"}),
]


@pytest.mark.parametrize("level", ["privileged", "baseline", "restricted"])
def test_what_is_told_of_a_namespaces_level_is_what_the_server_does(cluster: Cluster, level: str) -> None:
    cluster.label_namespace(LABEL, level)
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"securityContext": SPC, "containers": [{"name": "c", "image": "x"}]},
    }
    if level != "privileged":
        cluster.wait(lambda: _refused(cluster, probe))  # a namespace's labels take effect a moment later
    claims = {name: {"spec": {"accessModes": ["ReadWriteMany"]}} for name in ("work", "kept")}
    action = StartAccess("secure-100-1", Operation.SECURE, 100)
    for number, (context, named, refusing) in enumerate(LEVEL_ROWS):
        wish = rlhfjob(cluster.namespace)
        template = wish["spec"]["workload"]["template"]["spec"]["template"]
        template["spec"]["securityContext"] = context
        if named is not None:
            wish["spec"]["checkpoints"]["runAs"] = named
        made = access_job(wish, template, action, AccessSettings(), claims=claims)["spec"]["template"]
        pod = {**probe, "metadata": {"name": f"access-{number}"}, "spec": made["spec"]}
        told = refusal(cluster.namespace, level, run_as(wish, template["spec"]), template["spec"])
        assert (told is not None) == (level in refusing), (context, named, told)
        assert _refused(cluster, pod) == (level in refusing), (context, named)


def test_the_servers_dry_run_tells_what_we_cannot(plane: Plane, namespace: str) -> None:
    jobs, server = f"/apis/batch/v1/namespaces/{namespace}/jobs", plane.client()

    async def create(manifest: dict[str, Any]) -> Any:
        return server.post(f"{jobs}?dryRun=All", manifest)

    def ask(wish: Any) -> Any:
        return asyncio.run(workloads.server_problem(create, workloads.build_child(wish)))

    wish = rlhfjob(namespace)
    assert ask(wish) is None
    del wish["spec"]["workload"]["template"]["spec"]["template"]["spec"]["restartPolicy"]
    problem = ask(wish)
    assert problem.reason == "TemplateRefused"
    assert "spec.template.spec.restartPolicy" in problem.message
    assert server.get(jobs)["items"] == []
