"""What the requests are about: an RLHFJob with everything that the operator writes for it, and strangers."""

from __future__ import annotations

import copy
import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controller import names, workloads
from controller.api import admission
from controller.api.kinds import KINDS
from controller.api.workergroup import manifest
from controller.checkpoints.access_jobs import AccessSettings, access_job
from controller.operator.state import run_configmap
from controller.operator.state.steps import StepAddress
from controller.policy.actor_types import Actor
from controller.policy.group_types import GroupOpening
from controller.policy.job.record import Operation, ProtectedCheckpoint, RunFile
from controller.policy.job.types import StartAccess
from controller.workloads.actor_jobs import Sidecar, build_actor
from controller.workloads.group_jobs import GroupSettings, build_group
from deploy.local.plane import Plane
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

TEAM, CLOSED, SYSTEM, WORKERS = "team", "unlabelled", "evalstop-system", "evalstop-workers"
LABEL = "evalstop.dev/open"
INSTALL = admission.Install(label=LABEL)
OPERATOR = INSTALL.operator
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
MERGE = "application/merge-patch+json"
GPU = names.GPU_RESOURCE
VARIANTS = "variants"  # group of users for whom a policy lacks an expression
TOLERATION = {"key": names.POOL_TAINT, "operator": "Equal", "value": "research", "effect": "NoSchedule"}

TRAINER: Json = {
    "name": "trainer",
    "image": "evalstop/example-trainer:0.1.0",
    "ports": [{"name": "metrics", "containerPort": 9400}],
    "resources": {"limits": {GPU: "1"}},
    "volumeMounts": [{"name": "work", "mountPath": "/work"}],
}
POD: Json = {
    "restartPolicy": "Never",
    "containers": [TRAINER],
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "work"}}],
}
RLHFJOB: Json = {
    "apiVersion": names.API_VERSION,
    "kind": "RLHFJob",
    "metadata": {"name": "run", "namespace": TEAM, "labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {
        "pool": "research",
        "gang": {"replicas": 1, "gpusPerReplica": 1},
        "workload": {
            "template": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "spec": {
                    "completions": 1,
                    "parallelism": 1,
                    "completionMode": "Indexed",
                    "template": {"spec": POD},
                },
            }
        },
        "metrics": [{"name": "gold_reward"}],
        "stopRule": {"kDeclines": {"k": 3, "minDelta": "0.01"}},
        "checkpoints": {
            "location": {"volumeClaim": {"claimName": "work", "path": "/checkpoints"}},
            "layout": "Plain",
            "retention": {"volumeClaim": {"claimName": "kept"}},
        },
    },
}


ENGINE: Json = {"name": "engine", "image": "engine:1", "resources": {"limits": {GPU: "1"}}}
ROLLOUT: Json = {
    "template": {"spec": {"containers": [ENGINE]}},
    "gpusPerActor": 1,
    "actors": {"min": 1, "max": 2, "static": 1},
}


GROUP: Json = manifest(GroupOpening("wg-1", "dense", ("gpu-1",), "team/run"), "research", 1, 1)


def job(name: str, pod: Json = POD, **spec: Any) -> Json:
    """A Job of nobody's."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"suspend": True, "template": {"spec": pod}, **spec},
    }


def deployment(name: str, pod: Json) -> Json:
    """Of no pods."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def pod(name: str, **spec: Any) -> Json:
    """A pod with a GPU, of nobody's."""
    plain = {key: value for key, value in POD.items() if key != "tolerations"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {**copy.deepcopy(plain), **spec},
    }


def custom(plural: str, kind: str, scope: str) -> Json:
    """A kind of Kueue's, as far as the requests need it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue"},
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": "v1beta2",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


_ROOTS = {
    "pods": "/api/v1",
    "configmaps": "/api/v1",
    "nodes": "/api/v1",
    "events": "/api/v1",
    "namespaces": "/api/v1",
    "replicationcontrollers": "/api/v1",
    "jobs": "/apis/batch/v1",
    "cronjobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "rlhfjobs": "/apis/evalstop.dev/v1alpha1",
    "gpupools": "/apis/evalstop.dev/v1alpha1",
    "workergroups": "/apis/evalstop.dev/v1alpha1",
    "workloads": "/apis/kueue.x-k8s.io/v1beta2",
    "admissionchecks": "/apis/kueue.x-k8s.io/v1beta2",
    "csistoragecapacities": "/apis/storage.k8s.io/v1",
}
_CLUSTER = {"nodes", "namespaces", "gpupools", "admissionchecks"}


def path(resource: str, name: str = "", namespace: str = TEAM, dry: bool = True) -> str:
    """``jobs``, ``jobs/status`` with a name: where a request goes, dry by default."""
    plural, _, subresource = resource.partition("/")
    root = _ROOTS.get(plural, "/apis/apps/v1")
    found = f"{root}/{plural}" if plural in _CLUSTER else f"{root}/namespaces/{namespace}/{plural}"
    found += f"/{name}" if name else ""
    found += f"/{subresource}" if subresource else ""
    return found + ("?dryRun=All" if dry else "")


@dataclass
class Scene:
    """A plane on which everything is there."""

    plane: Plane
    uid: str = ""  # of RLHFJob team/run

    @staticmethod
    def made(plane: Plane) -> Scene:
        scene = Scene(plane)
        for folder in ("crds", "deploy/manifests/namespace.yaml", "deploy/manifests/rbac.yaml"):
            plane.kubectl("apply", "-f", str(ROOT / folder))
        for file in ("deploy/manifests/users.yaml", "deploy/extender/rbac.yaml"):
            plane.kubectl("apply", "-f", str(ROOT / file))
        dashboard = yaml.safe_load_all((ROOT / "deploy/dashboard/dashboard.yaml").read_text())
        scene.apply(*(o for o in dashboard if o["kind"] != "Deployment"))
        scene.apply(custom("workloads", "Workload", "Namespaced"))
        scene.apply(custom("admissionchecks", "AdmissionCheck", "Cluster"))
        plane.established()
        scene._fill()
        scene.apply(*admission.manifests(INSTALL))
        scene.eventually_refused()
        return scene

    def apply(self, *objects: Json) -> None:
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def __post_init__(self) -> None:
        self.admin = self.plane.client()
        self._line = http.client.HTTPSConnection(
            self.admin.host, self.admin.port, timeout=10.0, context=self.admin.context
        )

    def refusal(self, user: str, method: str, where: str, body: Any, *groups: str) -> str:
        """What the server says against a user's request (the administrator's own for ""); "" if nothing.

        The user is impersonated: to authorization and admission it is the same, and no certificate is made.
        """
        headers = [("Content-Type", MERGE if method == "PATCH" else "application/json")]
        if user:
            known = ["system:authenticated", *groups]
            if user.startswith("system:serviceaccount:"):
                known += ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
            headers += [("Impersonate-User", user), *(("Impersonate-Group", group) for group in known)]
        payload = b"" if body is None else json.dumps(body).encode()
        self._line.putrequest(method, where)
        for name, value in [*headers, ("Content-Length", str(len(payload)))]:
            self._line.putheader(name, value)
        self._line.endheaders(payload)
        answer = self._line.getresponse()
        text = answer.read().decode()
        return "" if answer.status < 300 else f"{answer.status} {json.loads(text).get('message', text)}"

    # -- what there is -------------------------------------------------------------------------------------

    def owner(self, controller: bool = True, **more: Any) -> Json:
        made = workloads.owner_reference({"name": "run", "uid": self.uid})
        return {**made, "controller": controller, **more}

    def workload(self, name: str = "run") -> Json:
        """The child workload, as the operator makes it."""
        made = workloads.build_child({**RLHFJOB, "metadata": {**RLHFJOB["metadata"], "uid": self.uid}})
        made["metadata"]["name"] = name
        return made

    def access(self, operation: Operation = Operation.RETAIN, anchor: Json | None = None) -> Json:
        """An access Job, as the operator makes it."""
        kept = ProtectedCheckpoint(10, 10, "/work/checkpoints/step-10", "sha256:" + "ab" * 32, 0.0)
        action = StartAccess("abcdef", operation, 10, source=kept)
        return access_job(
            {**RLHFJOB, "metadata": {**RLHFJOB["metadata"], "uid": self.uid}},
            {"spec": POD},
            action,
            AccessSettings(),
            claims={name: {"spec": {"accessModes": ["ReadWriteMany"]}} for name in ("work", "kept")},
            anchor=anchor,
        )

    def actor(self) -> Json:
        """The Job of a rollout actor, as the operator makes it."""
        child = {**self.workload(), "metadata": {"name": "run", "namespace": TEAM, "uid": "child"}}
        sidecar = Sidecar(names.OPERATOR_IMAGE, "https://steps:8446", "run-run")
        return build_actor(
            child,
            "run",
            ROLLOUT["template"],
            Actor(7, "gpu-1", 1),
            sidecar,
            attempt=2,
            pool="research",
            grace=10,
            scheduling=workloads.Scheduling(),
        )

    def group_job(self) -> Json:
        """The Job of a worker group, as the operator makes it."""
        container = {**TRAINER, "resources": {"limits": {GPU: "1", "memory": "1Gi"}}}
        container = {key: value for key, value in container.items() if key != "volumeMounts"}
        owner = {**GROUP, "metadata": {**GROUP["metadata"], "uid": "g"}}
        return build_group(
            owner,
            {"spec": {"containers": [container]}},
            2,
            ("gpu-1",),
            GroupSettings("https://steps:8446", "wg-1-run", 1, 0, 1, 1),
            pool="research",
            selector={},
            scheduling=workloads.Scheduling(),
        )

    def group_map(self) -> Json:
        """The ConfigMap of a worker group, as the operator makes it."""
        owner = {**GROUP, "metadata": {**GROUP["metadata"], "uid": "g"}}
        return run_configmap.group_manifest(owner, StepAddress(("https://steps:8446",), "PEM"))

    def run_map(self, name: str = "run") -> Json:
        """The run ConfigMap, as the operator makes it."""
        return run_configmap.manifest(
            {"metadata": {"name": name, "namespace": TEAM, "uid": self.uid}}, RunFile(attempt=1, uid=self.uid)
        )

    def _fill(self) -> None:
        for name, labels in ((TEAM, {LABEL: ""}), (CLOSED, {})):
            self.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            )
        for space in ("kube-system", SYSTEM, WORKERS):
            self.plane.kubectl("label", "namespace", space, f"{LABEL}=", "--overwrite")
        self.apply(RLHFJOB)
        found = self.admin.get(path("rlhfjobs", "run", dry=False))
        self.uid = found["metadata"]["uid"]
        made = self.workload()
        made["metadata"]["labels"][names.QUEUE_LABEL] = "default"
        made["spec"]["activeDeadlineSeconds"] = 3600
        self.apply(made)
        standing = self.access()
        standing["metadata"]["name"] = "access"
        anchor = self.admin.get(path("jobs", "run", dry=False))
        standing["metadata"]["ownerReferences"] = self.access(anchor=anchor)["metadata"]["ownerReferences"]
        forged = copy.deepcopy(standing)
        forged["metadata"]["name"] = "forged"
        del forged["metadata"]["labels"][names.LABEL_MANAGED_BY]
        spare = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt"}
        owned = copy.deepcopy(standing)  # to which its tenant has given an owner more
        owned["metadata"]["name"] = "access-owned"
        owned["metadata"]["ownerReferences"].append({**spare, "uid": self._uid("configmaps", spare["name"])})
        self.apply(owned)
        standing_actor = self.actor()
        standing_actor["metadata"]["name"] = "run-actor-1-7"
        standing_actor["metadata"]["ownerReferences"][0]["uid"] = anchor["metadata"]["uid"]
        standing_actor["spec"]["suspend"] = True
        self.apply(standing_actor)
        standing_actor["metadata"]["name"] = "run-actor-1-8"
        standing_actor["metadata"]["ownerReferences"].append(owned["metadata"]["ownerReferences"][-1])
        self.apply(standing_actor)
        standing_group = self.group_job()
        standing_group["spec"]["suspend"] = True
        self.apply(GROUP)
        group = self.admin.get(path("workergroups", "wg-1", WORKERS, dry=False))
        standing_group["metadata"]["ownerReferences"][0]["uid"] = group["metadata"]["uid"]
        self.apply(standing_group)
        standing_group["metadata"]["name"] = "wg-1-9"
        more = {**spare, "uid": self._uid("configmaps", spare["name"], WORKERS)}
        standing_group["metadata"]["ownerReferences"].append(more)
        self.apply(standing_group)
        tolerant = {**POD, "tolerations": [TOLERATION]}
        placed = job("admitted", tolerant, completions=1, parallelism=1, completionMode="Indexed")
        self.apply(standing, forged, job("stranger"), placed, pod("waiting", nodeSelector={"no": "node"}))
        self._tenants()
        for space in ("kube-system", SYSTEM, CLOSED):  # where the operator may change none, labelled or not
            labelled = {"name": "labelled", "namespace": space, "labels": {names.LABEL_JOB: "labelled"}}
            self.apply({**job("labelled"), "metadata": labelled})
        theirs = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"run.json": "{}"}}
        taken = self.run_map()
        taken["metadata"]["name"] = "theirs-run"
        taken["metadata"]["labels"][names.LABEL_JOB] = "theirs"
        taken["metadata"]["ownerReferences"] = [self.owner(kind="Other", apiVersion="x/v1", uid="0")]
        given = {
            **theirs,
            "metadata": {"name": "given-run", "namespace": TEAM, "labels": {names.LABEL_JOB: "given"}},
        }
        self.apply(given)
        more = self.run_map()
        more["data"] |= {"more": "1", names.STEPS_CA_KEY: "PEM"}
        more["metadata"]["ownerReferences"].append(
            self.owner(False, kind="Other", apiVersion="x/v1", uid="1")
        )
        self.apply(more, taken, {**theirs, "metadata": {"name": "settings-run", "namespace": TEAM}})
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "gpu-1", "labels": {"gpu": "a100"}},
                "spec": {
                    "taints": [
                        {"key": "dedicated", "value": "x", "effect": "NoSchedule"},
                        {"key": "draining", "effect": "NoExecute"},
                    ]
                },
            }
        )
        about = {"apiVersion": names.API_VERSION, "kind": "RLHFJob", "namespace": TEAM, "name": "run"}
        self.apply(event("told", {**about, "uid": self.uid}))
        self.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {"name": "w", "namespace": TEAM, "labels": {"a": "b"}},
                "spec": {"active": True, "queueName": "q"},
            },
            *(
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "AdmissionCheck",
                    "metadata": {"name": name},
                    "spec": {"controllerName": by},
                }
                for name, by in (("ours", names.CHECK_CONTROLLER), ("another", "x.dev/y"))
            ),
        )
        rights = "rbac.authorization.k8s.io"
        everything = {"apiGroups": [names.GROUP], "resources": ["rlhfjobs"], "verbs": ["*"]}
        self.apply(
            binding("alice", "ClusterRole", "edit", VARIANTS),
            binding("alice", "ClusterRole", "edit", VARIANTS, WORKERS),
            {
                "apiVersion": f"{rights}/v1",
                "kind": "Role",
                "metadata": {"name": "groups", "namespace": WORKERS},
                "rules": [{**everything, "resources": ["workergroups", "rlhfjobs"]}],
            },
            binding("alice", "Role", "groups", VARIANTS, WORKERS),
            {
                "apiVersion": f"{rights}/v1",
                "kind": "Role",
                "metadata": {"name": "rlhfjobs", "namespace": TEAM},
                "rules": [everything],
            },
            binding("bob", "Role", "rlhfjobs", f"{VARIANTS}-bob"),
            {
                "apiVersion": f"{rights}/v1",
                "kind": "Role",
                "metadata": {"name": "jobsets", "namespace": TEAM},
                "rules": [
                    everything,
                    {
                        "apiGroups": ["jobset.x-k8s.io"],
                        "resources": ["jobsets"],
                        "verbs": ["create", "patch"],
                    },
                ],
            },
            binding("carol", "Role", "jobsets", f"{VARIANTS}-carol"),
            *(
                made
                for user, verb in (("dora", "create"), ("emil", "patch"))
                for made in (
                    {
                        "apiVersion": f"{rights}/v1",
                        "kind": "Role",
                        "metadata": {"name": verb, "namespace": TEAM},
                        "rules": [everything, *_each_kind(verb)],
                    },
                    binding(user, "Role", verb, f"{VARIANTS}-{user}"),
                )
            ),
            binding("frida", "ClusterRole", "edit", f"{VARIANTS}-frida"),
            binding("frida", "ClusterRole", "edit", f"{VARIANTS}-frida", WORKERS),
            *_keeper(),
            _operators(),
        )

    def _uid(self, resource: str, name: str, namespace: str = TEAM) -> str:
        """Of an object that comes by itself."""
        where = path(resource, name, namespace, dry=False)
        wait_until(lambda: self.admin.succeeds(where), name)
        return str(self.admin.get(where)["metadata"]["uid"])

    def _tenants(self) -> None:
        """What a tenant has had made, with and without GPUs, tolerations, a node."""
        tolerant = {**POD, "tolerations": [TOLERATION]}
        none = {"containers": [{"name": "x", "image": "x"}], "restartPolicy": "Always"}
        self.apply(
            job("started", tolerant, suspend=False),
            {
                **job("ran", suspend=False),
                "metadata": {"name": "ran", "namespace": TEAM, "labels": {names.LABEL_JOB: "ran"}},
            },
            job("without-gpus", {**none, "restartPolicy": "Never", "tolerations": [TOLERATION]}),
            pod("placed", nodeName="gpu-1"),
            deployment("tolerant", {**none, "tolerations": [TOLERATION]}),
            deployment("fixed", {**none, "nodeName": "gpu-1"}),
            deployment("with-gpus", {**pod("x")["spec"], "restartPolicy": "Always"}),
        )
        ran = path("jobs", "ran", dry=False)
        wait_until(lambda: "startTime" in self.admin.get(ran).get("status", {}), "a Job to start")

    def eventually_refused(self) -> None:
        """The last policy of the list is in force, and so are those before it."""
        deadline = time.monotonic() + 30
        body = pod("probe", nodeName="gpu-1")
        while "nodeName" not in self.refusal("alice", "POST", path("pods"), body):
            assert time.monotonic() < deadline, "the policies are not in force"
            time.sleep(0.1)


def binding(user: str, kind: str, role: str, users: str, namespace: str = TEAM) -> Json:
    """A role in the namespace for a user and a group."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{user}-{role}", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [
            {"apiGroup": group, "kind": "User", "name": user},
            {"apiGroup": group, "kind": "Group", "name": users},
        ],
    }


def _each_kind(verb: str) -> list[Json]:
    """A verb on every kind of workload."""
    return [{"apiGroups": [k.group], "resources": [k.resource], "verbs": [verb]} for k in KINDS]


def _keeper() -> tuple[Json, Json]:
    """Who decides about pools."""
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [names.GROUP], "resources": ["gpupools"], "verbs": ["update"]}
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "keeper"},
        "rules": [rule],
    }
    bound = binding("frida", "ClusterRole", "keeper", f"{VARIANTS}-frida")
    del bound["metadata"]["namespace"]
    return role, {**bound, "kind": "ClusterRoleBinding"}


def _operators() -> Json:
    """The operator's rights for a group."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": VARIANTS},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "evalstop-operator"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": f"{VARIANTS}-operator"}],
    }


def event(name: str, about: Json, component: str = "evalstop") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": TEAM},
        "involvedObject": about,
        "type": "Normal",
        "reason": "Stopped",
        "message": "m",
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "test",
        "count": 1,
    }
