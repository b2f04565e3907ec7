"""A child workload and its access Jobs on a real control plane, made as the operator makes them."""

import time
from collections.abc import Callable
from typing import Any

from controller import names, workloads
from controller.checkpoints.access_jobs import AccessSettings, access_job, parse_result, unsuspend_patch
from controller.policy.job.types import AccessView, StartAccess
from deploy.local.plane import Plane

QUEUE = names.QUEUE_LABEL
KUEUE_API = "kueue.x-k8s.io/v1beta2"
API_VERSIONS = {  # of the kinds that tests ask for by name; of others: v1
    "Job": "batch/v1",
    "RLHFJob": names.API_VERSION,
    "LocalQueue": KUEUE_API,
    "ClusterQueue": KUEUE_API,
    "ResourceFlavor": KUEUE_API,
    "Workload": KUEUE_API,
}


class Cluster:
    """One namespace of a plane. Errors of all methods: `controller.kube.errors.ApiError`, with the status."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane, self.namespace, self.client = plane, namespace, plane.client()

    def path(self, kind: str, name: str = "", namespaced: bool = True) -> str:
        version = API_VERSIONS.get(kind, "v1")
        where = f"/namespaces/{self.namespace}" if namespaced else ""
        return f"/{'apis' if '/' in version else 'api'}/{version}{where}/{kind.lower()}s/{name}".rstrip("/")

    def create(self, obj: Any, dry_run: bool = False, namespaced: bool = True) -> Any:
        path = self.path(obj["kind"], namespaced=namespaced)
        return self.client.post(f"{path}?dryRun=All" if dry_run else path, obj)

    def get(self, kind: str, name: str) -> Any:
        return self.client.get(self.path(kind, name))

    def all(self, kind: str) -> list[Any]:
        found: list[Any] = self.client.get(self.path(kind))["items"]
        return found

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None:
        self.client.delete(f"{self.path(kind, name)}?propagationPolicy={propagation}")

    def patch(self, obj: Any, patch: Any, dry_run: bool = False) -> Any:
        path = self.path(obj["kind"], obj["metadata"]["name"])
        return self.client.patch(f"{path}?dryRun=All" if dry_run else path, patch)

    def label_namespace(self, key: str, value: str) -> None:
        self.client.patch(f"/api/v1/namespaces/{self.namespace}", {"metadata": {"labels": {key: value}}})

    def pods_of(self, job: Any) -> list[Any]:
        return [pod for pod in self.all("Pod") if workloads.owned(pod, job["metadata"]["uid"])]

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """What a condition gives once it is true; what stands in the namespace if it does not become so."""
        deadline = time.monotonic() + seconds
        while True:
            found = what()
            if found:
                return found
            assert time.monotonic() < deadline, self.plane.kubectl(
                "get", "jobs,pods,events", "-n", self.namespace
            )
            time.sleep(0.05)

    def claim(self, name: str) -> Any:
        return self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }
        )


def rlhfjob(namespace: str) -> dict[str, Any]:
    """One whose trainer writes a Plain checkpoint of step 100, is ready from then on, and sleeps."""
    program = (
        "import hashlib, json, os, time; d='/ckpt/runs/step-100'; os.makedirs(d, exist_ok=True); "
        "w=b'weights'; open(d+'/w','wb').write(w); "
        "f={'w': {'size': 7, 'sha256': hashlib.sha256(w).hexdigest()}}; "
        "open(d+'/manifest.json','w').write(json.dumps({'step': 100, 'files': f})); time.sleep(600)"
    )
    written = ["test", "-s", "/ckpt/runs/step-100/manifest.json"]
    trainer = {
        "name": "trainer",
        "image": f"{names.TRAINER_IMAGE}:0.1.0",
        "command": ["python", "-c", program],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {names.GPU_RESOURCE: 1}},
        "volumeMounts": [{"name": "ckpt", "mountPath": "/ckpt"}],
        "readinessProbe": {"exec": {"command": written}, "periodSeconds": 1, "timeoutSeconds": 10},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "work"}}],
        "containers": [trainer],
    }
    job_spec = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "template": {"spec": pod}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": "run", "namespace": namespace, "uid": "0f2a1bb7-3c52-4d5e-9d61-8d7b5a1c0001"},
        "spec": {
            "pool": "gpus",
            "metrics": [{"name": "gold_reward"}],
            "stopRule": {"kDeclines": {"k": 3}},
            "modifiers": [],
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


def create_child(cluster: Cluster, manifest: Any) -> Any:
    """Make a child from `workloads.build_child`, and the ConfigMap that its pods mount."""
    name = manifest["metadata"]["name"]
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-run"}}
    cluster.create({**config, "data": {"run.json": "{}"}})
    return cluster.create(manifest)


def orphan(manifest: Any) -> Any:
    """A child without its owner: one that is not in the cluster would have it collected."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "ownerReferences"}
    return {**manifest, "metadata": metadata}


def start_child(cluster: Cluster, wish: Any) -> Any:
    """Make, place and start the child, and wait for its pod to run and be ready."""
    child = create_child(cluster, orphan(workloads.build_child(wish)))
    assert workloads.view(child).suspended
    child = cluster.patch(child, workloads.start_patch(child, 1, {"kubernetes.io/os": "linux"}))
    return running(cluster, child)


def running(cluster: Cluster, child: Any) -> Any:
    """The child as it is once one of its pods is ready: a trainer has written its checkpoint by then."""
    cluster.wait(lambda: any(_ready(pod) for pod in cluster.pods_of(child)))
    return cluster.get("Job", child["metadata"]["name"])


def _ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def access_manifest(
    cluster: Cluster, wish: Any, child: Any, action: StartAccess, node: str | None, anchor: Any
) -> dict[str, Any]:
    """What the operator would send to have a piece of store work done."""
    claims = {name: cluster.get("PersistentVolumeClaim", name) for name in ("work", "kept")}
    template = child["spec"]["template"]
    return access_job(wish, template, action, AccessSettings(), claims=claims, node=node, anchor=anchor)


def begin_work(cluster: Cluster, wish: Any, child: Any, action: StartAccess, node: str | None) -> Any:
    """An access Job, made and set going in the operator's two steps."""
    job = cluster.create(access_manifest(cluster, wish, child, action, node, anchor=child))
    assert job["spec"]["suspend"] is True
    assert QUEUE not in job["metadata"]["labels"]
    job = cluster.patch(job, unsuspend_patch(job))
    assert "ownerReferences" not in job["metadata"]
    return job


def answer(cluster: Cluster, job: Any) -> AccessView:
    """What an access Job answers, once it has; it must be a success."""

    def answered() -> AccessView | None:
        view = parse_result(cluster.get("Job", job["metadata"]["name"]), cluster.pods_of(job))
        return view if view.finished else None

    view: AccessView = cluster.wait(answered)
    assert view.ok, view.message
    return view


def work(cluster: Cluster, wish: Any, child: Any, action: StartAccess, node: str | None) -> AccessView:
    """One access Job, from making to its answer."""
    return answer(cluster, begin_work(cluster, wish, child, action, node))


def settled(cluster: Cluster, child: Any) -> Any:
    """The child once it is suspended and its pods are gone by its own status; None before."""
    found = cluster.get("Job", child["metadata"]["name"])
    return found if workloads.view(found).settled else None
