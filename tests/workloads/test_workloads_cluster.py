"""On a real control plane with real pods: a child through its life, and store work where Kueue lies in wait.

Kueue's Job webhook is imitated by admission policies of the same rules (0.15.2, pkg/controller/jobframework:
ApplyDefaultLocalQueue, ApplyDefaultForSuspend, validateUpdateForQueueName): a Job without queue label gets
`default` on CREATE and is suspended, unless its controller is itself a Job; afterwards the label may not
be taken off, nor changed together with starting.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller import names, workloads
from controller.checkpoints.jobs import AccessSettings, access_job, parse_result, release_patch
from controller.policy.jobs import AccessView, Kept, Operation, StartAccess
from deploy.local.errors import PlaneError
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane

QUEUE = "kueue.x-k8s.io/queue-name"
Kubectl = Callable[..., str]


class Cluster:
    """One namespace, seen through kubectl."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace

    def create(self, obj: Any, *flags: str) -> Any:
        text = self.kubectl(
            "create", "-n", self.namespace, "-o", "json", "-f", "-", *flags, stdin=json.dumps(obj)
        )
        return json.loads(text)

    def get(self, kind: str, name: str) -> Any:
        return json.loads(self.kubectl("get", kind, name, "-n", self.namespace, "-o", "json"))

    def pods_of(self, job: Any) -> list[Any]:
        found = json.loads(self.kubectl("get", "pods", "-n", self.namespace, "-o", "json"))["items"]
        return [pod for pod in found if workloads.owned(pod, job["metadata"]["uid"])]

    def patch(self, job: Any, patch: Any) -> Any:
        name = job["metadata"]["name"]
        arguments = ("patch", "job", name, "-n", self.namespace, "--type=merge", "-o", "json", "-p")
        return json.loads(self.kubectl(*arguments, json.dumps(patch)))

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            found = what()
            if found:
                return found
            assert time.monotonic() < deadline, self.kubectl("get", "jobs,pods,events", "-n", self.namespace)
            time.sleep(0.2)

    def claim(self, name: str) -> Any:
        return self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }
        )


@pytest.fixture
def cluster(kubectl: Kubectl, namespace: str) -> Cluster:
    return Cluster(kubectl, namespace)


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
    cluster.kubectl("label", "namespace", cluster.namespace, "has-default-queue=yes")
    cluster.kubectl("apply", "-f", "-", stdin=POLICIES)
    try:
        # Policies take effect a moment after they are made.
        cluster.wait(
            lambda: QUEUE in str(cluster.create(BARE_JOB, "--dry-run=server")["metadata"].get("labels"))
        )
        job = cluster.create({**BARE_JOB, "metadata": {"name": "probe"}})
        cluster.wait(lambda: not _may_drop_queue(cluster, job))
        cluster.kubectl("delete", "job", "probe", "-n", cluster.namespace)
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=POLICIES)


def _may_drop_queue(cluster: Cluster, job: Any) -> bool:
    patch = json.dumps({"metadata": {"labels": {QUEUE: None}}})
    where = ("patch", "job", job["metadata"]["name"], "-n", cluster.namespace)
    try:
        cluster.kubectl(*where, "--dry-run=server", "--type=merge", "-p", patch)
    except PlaneError as error:
        if "queue-name must not be empty" not in str(error):
            raise
        return False
    return True


def rlhfjob(namespace: str) -> dict[str, Any]:
    """One whose trainer writes a Plain checkpoint of step 100 and sleeps."""
    program = (
        "import hashlib, json, os, time; d='/ckpt/runs/step-100'; os.makedirs(d, exist_ok=True); "
        "w=b'weights'; open(d+'/w','wb').write(w); "
        "f={'w': {'size': 7, 'sha256': hashlib.sha256(w).hexdigest()}}; "
        "open(d+'/manifest.json','w').write(json.dumps({'step': 100, 'files': f})); time.sleep(600)"
    )
    trainer = {
        "name": "trainer",
        "image": f"{names.TRAINER_IMAGE}:0.1.0",
        "command": ["python", "-c", program],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {names.GPU_RESOURCE: 1}},
        "volumeMounts": [{"name": "ckpt", "mountPath": "/ckpt"}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "work"}}],
        "containers": [trainer],
    }
    job_spec = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "template": {"spec": pod}}
    return {
        "metadata": {"name": "run", "namespace": namespace, "uid": "0f2a1bb7-3c52-4d5e-9d61-8d7b5a1c0001"},
        "spec": {
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": job_spec}},
            "checkpoints": {
                "layout": "Plain",
                "location": {"volumeClaim": {"claimName": "work", "path": "/runs"}},
                "retention": {"volumeClaim": {"claimName": "kept"}},
                "keep": "Best",
            },
        },
    }


def start_child(cluster: Cluster, wish: Any) -> Any:
    """Make, place and start the child, and wait for its pod to run."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "run-run"},
        "data": {"run.json": "{}"},
    }
    cluster.create(config)
    manifest = workloads.build_child(wish)
    # The RLHFJob itself is not in this cluster: an owner that is not there would have the child collected.
    del manifest["metadata"]["ownerReferences"]
    child = cluster.create(manifest)
    assert workloads.view(child).suspended
    child = cluster.patch(child, workloads.start_patch(child, 1, {"kubernetes.io/os": "linux"}))
    cluster.wait(lambda: any(p["status"].get("phase") == "Running" for p in cluster.pods_of(child)))
    return child


def work(cluster: Cluster, wish: Any, child: Any, action: StartAccess, node: str | None) -> AccessView:
    """One access Job, from making to its answer."""
    claims = {name: cluster.get("pvc", name) for name in ("work", "kept")}
    template = child["spec"]["template"]
    made = access_job(wish, template, action, AccessSettings(), claims=claims, node=node, anchor=child)
    job = cluster.create(made)
    assert job["spec"]["suspend"] is True
    assert QUEUE not in job["metadata"]["labels"]
    job = cluster.patch(job, release_patch(job))
    assert "ownerReferences" not in job["metadata"]

    def answered() -> AccessView | None:
        view = parse_result(cluster.get("job", job["metadata"]["name"]), cluster.pods_of(job))
        return view if view.finished else None

    view: AccessView = cluster.wait(answered)
    assert view.ok, view.message
    return view


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
    assert secured.path == f"/ckpt/runs/.evalstop/{wish['metadata']['uid']}/100"
    source = Kept(100, 100, secured.path, secured.digest, 0.0)
    retained = work(
        cluster, wish, child, StartAccess("retain-100-2", Operation.RETAIN, 100, source=source), node
    )
    assert retained.path == f"/retained/{cluster.namespace}/run-0f2a1/100"
    assert retained.digest == secured.digest

    cluster.patch(child, workloads.suspend_patch(child))
    child = cluster.wait(lambda: _settled(cluster, child))
    cluster.wait(lambda: not cluster.pods_of(child))
    assert workloads.start_problem(child) is None
    source = Kept(100, 100, retained.path, retained.digest, 0.0)
    restored = work(
        cluster, wish, child, StartAccess("restore-100-3", Operation.RESTORE, 100, source=source), None
    )
    assert restored.path.endswith("/resume/step-100")
    assert restored.digest == secured.digest

    child = cluster.patch(child, workloads.start_patch(child, 2, {"kubernetes.io/arch": "amd64"}))
    assert child["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert len(child["spec"]["template"]["spec"]["tolerations"]) == 1


def _settled(cluster: Cluster, child: Any) -> Any:
    found = cluster.get("job", child["metadata"]["name"])
    return found if workloads.view(found).settled else None


def test_access_jobs_satisfy_restricted_pod_security(cluster: Cluster, kubectl: Kubectl) -> None:
    kubectl("label", "namespace", cluster.namespace, "pod-security.kubernetes.io/enforce=restricted")
    wish = rlhfjob(cluster.namespace)
    pod = wish["spec"]["workload"]["template"]["spec"]["template"]
    pod["spec"]["securityContext"] = {"runAsUser": 1000}
    claims = {name: {"spec": {"accessModes": ["ReadWriteMany"]}} for name in ("work", "kept")}
    action = StartAccess("secure-100-1", Operation.SECURE, 100)
    made = access_job(wish, pod, action, AccessSettings(), claims=claims)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "access"}, "spec": made["spec"]}
    cluster.create(pod)
    pod = {**pod, "metadata": {"name": "bad"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    with pytest.raises(PlaneError, match="violates PodSecurity"):
        cluster.create(pod)


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
