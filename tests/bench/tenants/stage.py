"""The place: a pool of fake nodes, namespaces of honest and hostile tenants, the operator as a process."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller import names
from deploy.local.plane import Plane
from deploy.local.ports import free_port
from tests.bench.faults.operators import Operator
from tests.bench.tenants.plan import METRIC, Honest, Object, Scale
from tests.bench.tenants.services import services
from tests.support.fake_kubelet import FakeKubelet, FakeStore
from tests.support.operator_rig import install
from tests.support.tenant_users import Tenant

ROOT = Path(__file__).resolve().parents[3]

RLHFJOBS = "/apis/evalstop.dev/v1alpha1"
LABEL = "evalstop.dev/bench"


class Store(FakeStore):
    """A digest for each step of each run, the same in every cluster; of hostile runs nothing that reads."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        run = str(request.get("job", "")).rpartition("/")[2]
        if run.startswith("pill"):  # what its access pod says, in the place of an answer
            return {"ok": [[]], "message": "\x1b[2J" + "[" * 3000}
        said = super().answer(request)
        if "digest" in said:
            digest = "sha256:" + hashlib.sha256(f"{run} at {said['step']}".encode()).hexdigest()
            said |= {"digest": digest, "sourceDigest": digest}
        return said


# As installed: a flood that makes the API server slow must not end a leader sooner than it would there.
LEASE = {
    "EVALSTOP_LEASE_SECONDS": "15",
    "EVALSTOP_LEASE_RENEW_SECONDS": "10",
    "EVALSTOP_LEASE_RETRY_SECONDS": "2",
}


@dataclass(slots=True)
class Place:
    """``ports``: of the operator's health, metrics and queue API; ``ends``: exit codes of its processes that
    ended, and were started anew as by a Deployment."""

    plane: Plane
    operator: Operator
    ports: tuple[int, int, int]
    services: Object
    ends: list[int] = field(default_factory=list)

    def keep(self) -> None:
        """Start the operator anew if it has ended."""
        if (code := self.operator.exit_code) is not None:
            self.ends.append(code)
            self.operator.start()


@dataclass(frozen=True, slots=True)
class Stage:
    """``tenants``: each with role `edit` in a namespace of its own; ``bobs``: with rights on the RLHFJobs
    alone of each honest namespace."""

    place: Place
    prefix: str  # of the namespaces; and the pool's name
    tenants: tuple[Tenant, ...]
    bobs: tuple[Tenant, ...]

    @property
    def plane(self) -> Plane:
        return self.place.plane


@contextlib.contextmanager
def operated(plane: Plane, scale: Scale, folder: Path) -> Iterator[Place]:
    """A plane with everything installed, and the operator at work until the end."""
    kubeconfig = install(plane)
    health, metrics, queue = ports = (free_port(), free_port(), free_port())
    settings = {
        "EVALSTOP_PORT": str(health),
        "EVALSTOP_METRICS_PORT": str(metrics),
        "EVALSTOP_QUEUE_PORT": str(queue),
        "EVALSTOP_SCRAPE_TIMEOUT": "5",
        "EVALSTOP_API_TIMEOUT": "30",
        **LEASE,
    }
    operator = Operator("operator", kubeconfig, folder, scale.hurry, settings)
    try:
        operator.start()
        _until(operator.ready, 120.0, f"the operator to work; see {operator.log}")
        with services(plane) as others:
            yield Place(plane, operator, ports, others)
    finally:
        operator.end()


@contextlib.contextmanager
def stage(place: Place, prefix: str, jobs: list[Honest], scale: Scale) -> Iterator[Stage]:
    """Namespaces, nodes, a pool and its users; all of it deleted on the way out."""
    plane = place.plane
    spaces = list(dict.fromkeys(job.namespace for job in jobs))
    hostile = [f"{prefix}-hostile-{i}" for i in range(scale.tenants)]
    admin = plane.client()
    with contextlib.ExitStack() as stack:
        for name in (*spaces, *hostile):
            admin.post("/api/v1/namespaces", {"metadata": {"name": name}})
            stack.callback(admin.delete, f"/api/v1/namespaces/{name}")
        for name in (*spaces, *hostile):
            _until(lambda name=name: admin.succeeds(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        members = [f"{prefix}-{i}" for i in range(scale.nodes)]
        kubelet = FakeKubelet(admin, members, {"pool": prefix}, scale.gpus)
        kubelet.store = Store()
        stack.enter_context(kubelet)
        admin.post(f"{RLHFJOBS}/gpupools", _pool(prefix, jobs, scale))
        stack.callback(admin.delete, f"{RLHFJOBS}/gpupools/{prefix}")
        tenants = tuple(Tenant.editor(plane, f"alice-{prefix}-{i}", name) for i, name in enumerate(hostile))
        bobs = tuple(Tenant.of_rlhfjobs(plane, f"bob-{name}", name) for name in spaces)
        stack.callback(_clear, plane, [*spaces, *hostile])
        yield Stage(place, prefix, tenants, bobs)


def _pool(name: str, jobs: list[Honest], scale: Scale) -> Object:
    spaces = dict.fromkeys(job.namespace for job in jobs)
    guaranteed = {space: sum(job.namespace == space for job in jobs) for space in spaces}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": [{"key": "pool", "value": name}],
            "queuePolicy": {"slaq": {}},
            "allowedNamespaces": [{"name": "*", "maxPriority": 10}],
            "quotas": [{"namespaces": [space], "guaranteed": n} for space, n in guaranteed.items()],
            "preemption": {"graceSeconds": scale.grace},
            "fleet": {"scope": scale.scope},
            # Not `precision`: with it only rules with e-values stop, and RLHFJobs with others are refused.
            "stopLimits": {
                "sharedFallWaitSeconds": int(scale.shared_fall_wait),
                "perHour": scale.honest + scale.hostile,
            },
        },
    }


def template(port: int, gpus: int = 1) -> Object:
    """A Job whose trainer serves its page at this port."""
    container = {
        "name": "trainer",
        "image": "evalstop/example-trainer",
        "ports": [{"name": "metrics", "containerPort": port}],
        "resources": {"limits": {names.GPU_RESOURCE: str(gpus)}},
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    sizes = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": 6}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {**sizes, "template": {"spec": pod}}}


def rlhfjob(name: str, pool: str, port: int, rule: Object, **spec: Any) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "labels": {}},
        "spec": {
            "pool": pool,
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "workload": {"template": template(port)},
            "metrics": [{"name": METRIC}],
            "stopRule": rule,
            "modifiers": [],
            "scrape": {"intervalSeconds": 5},
            "checkpoints": {
                "location": {"objectStore": {"uri": f"s3://work/{name}"}},
                "layout": "Plain",
                "retention": {"objectStore": {"uri": "s3://kept"}},
            },
            **spec,
        },
    }


def _clear(plane: Plane, spaces: list[str]) -> None:
    """Take away what would keep a namespace from going once nobody operates."""
    admin = plane.client()
    for space in spaces:
        where = f"{RLHFJOBS}/namespaces/{space}/rlhfjobs"
        with contextlib.suppress(Exception):
            for obj in admin.get(where)["items"]:
                if obj["metadata"].get("finalizers"):
                    admin.patch(f"{where}/{obj['metadata']['name']}", {"metadata": {"finalizers": None}})


def _until(done: Any, seconds: float = 60.0, what: str = "the namespaces") -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.1)


__all__ = ["LABEL", "RLHFJOBS", "Place", "Stage", "operated", "rlhfjob", "stage", "template"]
