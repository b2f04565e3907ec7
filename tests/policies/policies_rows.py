"""For each expression of each policy a request that it alone refuses, and what is needed and admitted.

A row is a server-side dry run. ``by``: whose account asks. ``refused``: part of what the policy says of it;
"": it is admitted. ``without``: the condition of the policy without which an admitted row would be refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policies_access import any_shape
from policies_access import cases as access_cases
from policies_scene import (
    CLOSED,
    GPU,
    GROUP,
    LABEL,
    OPERATOR,
    POD,
    RLHFJOB,
    ROLLOUT,
    SYSTEM,
    TEAM,
    TOLERATION,
    TRAINER,
    WORKERS,
    Json,
    Scene,
    event,
    job,
    path,
    pod,
)

from controller import names

Body = Callable[[Scene], Any]
BOB, ALICE, CAROL, ADMIN = "bob", "alice", "carol", ""
DORA, EMIL, FRIDA = "dora", "emil", "frida"  # may create, may patch every kind of workload; may update pools
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"


@dataclass(frozen=True)
class Row:
    policy: str
    name: str
    method: str
    resource: str
    object: str  # its name, "" to create
    body: Body
    refused: str = ""
    by: str = OPERATOR
    namespace: str = TEAM
    without: str = ""

    @property
    def id(self) -> str:
        return f"{self.policy}: {self.name}"


def changed(obj: Json, **fields: Any) -> Json:
    """A copy with other values at paths written with two underscores; None takes a field away."""
    found = copy.deepcopy(obj)
    for where, value in fields.items():
        node: Any = found
        *parents, last = where.split("__")
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            node[int(last) :] = [value, *node[int(last) + 1 :]]
        elif value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return found


def fixed(value: Any) -> Body:
    return lambda scene: value


def create(policy: str, name: str, resource: str, body: Body, refused: str = "", **more: Any) -> Row:
    return Row(policy, name, "POST", resource, "", body, refused, **more)


def patch(policy: str, name: str, resource: str, obj: str, body: Any, refused: str = "", **more: Any) -> Row:
    made = body if callable(body) else fixed(body)
    return Row(policy, name, "PATCH", resource, obj, made, refused, **more)


def metadata_rows(policy: str, resource: str, obj: str, what: str, **extra: str) -> list[Row]:
    """Labels, annotations, owners, finalizers of an object: none is the operator's to change."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    cases: dict[str, Json] = {
        "labels": {"labels": {"z": "1"}},
        "annotations": {"annotations": {"z": "1"}},
        "owners": {"ownerReferences": [owner]},
        "finalizers": {"finalizers": ["evil.dev/z"]},
    }
    rows = []
    for field, metadata in cases.items():
        said = extra.get(field, {"owners": "ownerReferences"}.get(field, field))
        if said:
            body = {"metadata": metadata}
            rows.append(
                patch(policy, f"{field} of {what}", resource, obj, body, f"changes no {said} of {what}")
            )
    return rows


# -- the operator's Jobs -------------------------------------------------------------------------------------

JOBS, UPDATES = "operator-jobs", "operator-job-changes"
_ONE = "spec__template__spec__containers__0"
_SPEC = "spec__template__spec"


def workload(**fields: Any) -> Body:
    return lambda scene: changed(scene.workload("other"), **fields)


def owned_workload(namespace: str) -> Body:
    return lambda scene: changed(scene.workload("other"), metadata__namespace=namespace, **_owned(scene))


def _owned(scene: Scene) -> dict[str, Any]:
    return {"metadata__ownerReferences": [scene.owner(name="other")]}


def of_rlhfjob(**fields: Any) -> Body:
    """A workload under an RLHFJob of its name."""
    return lambda scene: changed(scene.workload("other"), **_owned(scene), **fields)


def access(**fields: Any) -> Body:
    return lambda scene: changed(scene.access(), **fields)


def under(owner: Json) -> Body:
    return lambda scene: changed(scene.access(), metadata__ownerReferences=[owner])


def workers(**fields: Any) -> Body:
    return lambda scene: changed(scene.group_job(), **fields)


def actor(**fields: Any) -> Body:
    return lambda scene: changed(scene.actor(), **fields)


def owned_otherwise(**fields: Any) -> Body:
    """A workload whose owner differs in something."""
    return lambda scene: changed(
        changed(scene.workload("other"), **_owned(scene)),
        **{f"{_FIRST}{key}": value for key, value in fields.items()},
    )


_FIRST = "metadata__ownerReferences__0__"
_NO_OWNERS: dict[str, Json] = {
    "one that does not control it": {"controller": False},
    "another kind": {"kind": "Other"},
    "another group": {"apiVersion": "x/v1"},
    "another job": {"name": "else"},
}
_NO_GROUPS: dict[str, Json] = {
    "nobody": {"metadata__ownerReferences": []},
    "one that does not control it": {f"{_FIRST}controller": False},
    "another kind": {f"{_FIRST}kind": "Other"},
    "another group of kinds": {f"{_FIRST}apiVersion": "x/v1"},
    "another group": {f"{_FIRST}name": "wg-9"},
}
_ROOT_CA = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "uid": "x"}
_NO_WORKLOADS: dict[str, Json] = {
    "nobody": {"metadata__ownerReferences": []},
    "two": {"metadata__ownerReferences__1": _ROOT_CA},
    "one that does not control it": {f"{_FIRST}controller": False},
    "another kind": {f"{_FIRST}kind": "Other"},
    "another group": {f"{_FIRST}apiVersion": "x/v1"},
}
_NODE_OF_ACTOR = (
    f"{_SPEC}__affinity__nodeAffinity__requiredDuringSchedulingIgnoredDuringExecution__nodeSelectorTerms"
)
_NO_NODES: dict[str, list[Json]] = {
    "of any node with a label": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
    "of any node but one": [
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}]}
    ],
}


def placed(scene: Scene) -> Json:
    tolerations = [*POD["tolerations"], TOLERATION]
    return {
        "metadata": {
            "annotations": {"evalstop.dev/placement": "{}", "evalstop.dev/attempt": "1"},
            "managedFields": [{}],
        },
        "spec": {
            "suspend": False,
            "template": {
                "metadata": {
                    "labels": {names.LABEL_POOL: "research"},
                    "annotations": {names.ANNOTATION_ADMISSION: "1"},
                },
                "spec": {"nodeSelector": {"gpu": "a100"}, "tolerations": tolerations},
            },
        },
    }


def _template(**fields: Any) -> Json:
    return {"spec": {"template": fields}}


PRIVILEGED = {
    "containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}],
    "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    "serviceAccountName": "clusterrole-aggregation-controller",
    "restartPolicy": "Never",
}
_NOT_OURS = "no Job but workloads"
_POD_UID = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x", "controller": True}

ROWS_JOBS = [
    create(JOBS, "a workload", "jobs", of_rlhfjob()),
    create(JOBS, "a workload of whatever shape", "jobs", of_rlhfjob(**any_shape())),
    *(
        create(JOBS, f"a workload under {name}", "jobs", owned_otherwise(**fields), _NOT_OURS)
        for name, fields in _NO_OWNERS.items()
    ),
    create(JOBS, "an access Job", "jobs", access()),
    create(JOBS, "somebody else's Job", "jobs", fixed(job("x", suspend=False)), by=ADMIN, without="operator"),
    create(JOBS, "in kube-system", "jobs", owned_workload("kube-system"), "kube-*", namespace="kube-system"),
    create(JOBS, "in its own namespace", "jobs", owned_workload(SYSTEM), "in its own", namespace=SYSTEM),
    create(JOBS, "without the label", "jobs", owned_workload(CLOSED), LABEL, namespace=CLOSED),
    create(JOBS, "a privileged pod on a node", "jobs", fixed(job("x", PRIVILEGED)), _NOT_OURS),
    create(JOBS, "under another kind", "jobs", under(_POD_UID), "under their workload"),
    create(JOBS, "running at once", "jobs", of_rlhfjob(spec__suspend=False), "makes every Job suspended"),
    *(
        create(JOBS, f"an access Job {case.name}", "jobs", access(**case.fields), case.refused)
        for case in access_cases()
    ),
    patch(
        UPDATES,
        "somebody else's Job",
        "jobs",
        "stranger",
        {"metadata": {"labels": {"z": "1"}}},
        by=ADMIN,
        without="operator",
    ),
    *(
        patch(UPDATES, name, "jobs", "labelled", {"spec": {"suspend": False}}, refused, namespace=namespace)
        for name, namespace, refused in (
            ("in kube-system", "kube-system", "kube-*"),
            ("in its own namespace", SYSTEM, "in its own"),
            ("without the label", CLOSED, LABEL),
        )
    ),
    patch(UPDATES, "start and place", "jobs", "run", placed),
    patch(UPDATES, "suspend", "jobs", "run", {"spec": {"suspend": True}}),
    patch(UPDATES, "out of its queue", "jobs", "run", {"metadata": {"labels": {names.QUEUE_LABEL: None}}}),
    patch(
        UPDATES,
        "set an access Job going",
        "jobs",
        "access",
        {"metadata": {"ownerReferences": []}, "spec": {"suspend": False}},
    ),
    patch(
        UPDATES,
        "a stranger's",
        "jobs",
        "stranger",
        {"spec": {"suspend": False}},
        "changes no Job without label",
    ),
    *metadata_rows(UPDATES, "jobs", "run", "Jobs", owners=""),
    patch(
        UPDATES,
        "into another queue",
        "jobs",
        "run",
        {"metadata": {"labels": {names.QUEUE_LABEL: "theirs"}}},
        "puts none into another",
    ),
    patch(
        UPDATES,
        "into a first queue",
        "jobs",
        "access",
        {"metadata": {"labels": {names.QUEUE_LABEL: "theirs"}}},
        "puts none into another",
    ),
    patch(
        UPDATES,
        "an access Job to another owner",
        "jobs",
        "access",
        lambda scene: {"metadata": {"ownerReferences": [scene.owner(False)]}},
        "no owners of Jobs",
    ),
    patch(
        UPDATES,
        "away from its owner",
        "jobs",
        "run",
        {"metadata": {"ownerReferences": []}},
        "no owners of Jobs",
    ),
    patch(
        UPDATES, "a deadline", "jobs", "run", {"spec": {"activeDeadlineSeconds": 9}}, "suspend and its pods'"
    ),
    patch(
        UPDATES,
        "a label of the pods",
        "jobs",
        "run",
        _template(metadata={"labels": {"z": "1"}}),
        "changes no labels of the pod template",
    ),
    patch(
        UPDATES,
        "an annotation of the pods",
        "jobs",
        "run",
        _template(metadata={"annotations": {"z": "1"}}),
        "changes no annotations of the pod template",
    ),
    patch(
        UPDATES,
        "the pods' affinity",
        "jobs",
        "run",
        _template(
            spec={
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                        }
                    }
                }
            }
        ),
        "nothing of the pod template",
    ),
    patch(
        UPDATES,
        "every node",
        "jobs",
        "run",
        _template(spec={"tolerations": [{"operator": "Exists"}]}),
        "no tolerations of the pod template",
    ),
    create(JOBS, "a rollout actor", "jobs", actor()),
    create(
        JOBS,
        "an actor of nobody's",
        "jobs",
        actor(metadata__name="x-actor-1-1"),
        "of rollout actors say whose they are",
    ),
    create(
        JOBS,
        "an actor under another's workload",
        "jobs",
        actor(metadata__ownerReferences__0__name="other"),
        "of rollout actors are made under their workload",
    ),
    create(
        JOBS,
        "an actor of no number",
        "jobs",
        actor(**{f"metadata__labels__{names.LABEL_ACTOR}": None}),
        "of rollout actors say whose",
    ),
    *(
        create(JOBS, f"an actor under {name}", "jobs", actor(**fields), "of rollout actors are made under")
        for name, fields in _NO_WORKLOADS.items()
    ),
    create(JOBS, "two actors", "jobs", actor(spec__completions=2), "of rollout actors have one pod"),
    create(JOBS, "no actor", "jobs", actor(spec__parallelism=0), "of rollout actors have one pod"),
    *(
        create(JOBS, f"an actor {name}", "jobs", actor(**{_NODE_OF_ACTOR: terms}), "name their node")
        for name, terms in _NO_NODES.items()
    ),
    create(
        JOBS, "actors again and again", "jobs", actor(spec__backoffLimit=9), "of rollout actors have one pod"
    ),
    create(
        JOBS,
        "an actor without our sidecar",
        "jobs",
        actor(**{f"{_SPEC}__initContainers__0__command": ["sh"]}),
        "have the sidecar before all else",
    ),
    create(
        JOBS,
        "an actor whose sidecar writes",
        "jobs",
        actor(**{f"{_SPEC}__initContainers__0__volumeMounts__1__readOnly": False}),
        "which writes to the engine's folder alone",
    ),
    create(JOBS, "an actor anywhere", "jobs", actor(**{f"{_SPEC}__affinity": None}), "name their node"),
    patch(
        UPDATES,
        "an actor later",
        "jobs",
        "run-actor-1-7",
        {"spec": {"suspend": False}},
        "no Job of a rollout actor",
    ),
    Row(JOBS, "delete an actor", "DELETE", "jobs", "run-actor-1-7", fixed(None)),
    create(JOBS, "a worker group", "jobs", workers(metadata__name="wg-1-3"), namespace=WORKERS),
    create(
        JOBS,
        "a worker group elsewhere",
        "jobs",
        workers(metadata__namespace=TEAM),
        "are in namespace evalstop-workers, and no others are",
    ),
    create(
        JOBS,
        "a group of nobody's",
        "jobs",
        workers(metadata__name="x-1"),
        "of worker groups say whose they are",
        namespace=WORKERS,
    ),
    create(
        JOBS,
        "a group under another's",
        "jobs",
        workers(metadata__name="wg-1-3", metadata__ownerReferences__0__name="wg-2"),
        "of worker groups are made under their WorkerGroup",
        namespace=WORKERS,
    ),
    *(
        create(
            JOBS,
            f"a group under {name}",
            "jobs",
            workers(metadata__name="wg-1-3", **fields),
            "of worker groups are made under",
            namespace=WORKERS,
        )
        for name, fields in _NO_GROUPS.items()
    ),
    create(
        JOBS,
        "a group with a token",
        "jobs",
        workers(metadata__name="wg-1-3", **{f"{_SPEC}__automountServiceAccountToken": True}),
        "of worker groups have no right to the API server",
        namespace=WORKERS,
    ),
    patch(
        UPDATES,
        "a group later",
        "jobs",
        "wg-1-2",
        {"spec": {"suspend": False}},
        "no Job of a worker group",
        namespace=WORKERS,
    ),
    Row(JOBS, "delete a group's", "DELETE", "jobs", "wg-1-2", fixed(None), namespace=WORKERS),
    Row(JOBS, "delete a workload", "DELETE", "jobs", "run", fixed(None)),
    Row(JOBS, "delete one with another owner", "DELETE", "jobs", "access-owned", fixed(None)),
    Row(JOBS, "delete an actor with another owner", "DELETE", "jobs", "run-actor-1-8", fixed(None)),
    Row(
        JOBS,
        "delete a group's with another owner",
        "DELETE",
        "jobs",
        "wg-1-9",
        fixed(None),
        namespace=WORKERS,
    ),
    Row(JOBS, "delete an access Job", "DELETE", "jobs", "access", fixed(None)),
    Row(JOBS, "delete a stranger's", "DELETE", "jobs", "stranger", fixed(None), _NOT_OURS),
    Row(JOBS, "delete a forged one", "DELETE", "jobs", "forged", fixed(None), "with its own label"),
]

# -- their status --------------------------------------------------------------------------------------------

STATUS = "operator-job-status"
ROWS_STATUS = [
    patch(STATUS, "nothing of one that has started", "jobs/status", "ran", {"status": {}}),
    patch(STATUS, "forget a start", "jobs/status", "run", {"status": {"startTime": None}}),
    patch(
        STATUS,
        "a stranger's",
        "jobs/status",
        "stranger",
        {"status": {"startTime": None}},
        "no status of a Job without",
    ),
    *metadata_rows(STATUS, "jobs/status", "run", "Jobs"),
    patch(
        STATUS,
        "a start",
        "jobs/status",
        "run",
        {"status": {"startTime": "2026-01-01T00:00:00Z"}},
        "sets no startTime",
    ),
    patch(STATUS, "other counts", "jobs/status", "run", {"status": {"failed": 3}}, "startTime alone"),
    patch(
        STATUS,
        "an administrator's label",
        "jobs/status",
        "run",
        {"metadata": {"labels": {"z": "1"}}},
        by=ADMIN,
        without="operator",
    ),
]

# -- ConfigMaps ----------------------------------------------------------------------------------------------

MAPS = "operator-configmaps"


def run_map(namespace: str = TEAM, **fields: Any) -> Body:
    return lambda scene: changed(scene.run_map("other"), metadata__namespace=namespace, **fields)


def of_owner(**fields: Any) -> Body:
    return lambda scene: changed(
        scene.run_map("other"),
        **{f"metadata__ownerReferences__0__{key}": value for key, value in fields.items()},
    )


def group_map(**fields: Any) -> Body:
    return lambda scene: changed(scene.group_map(), **fields)


AWS_AUTH = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "aws-auth", "namespace": "kube-system"},
    "data": {"mapUsers": "[]"},
}
_OTHERS = {names.LABEL_JOB: "other", names.LABEL_COMPONENT: "x", names.LABEL_MANAGED_BY: "evalstop"}
_LABELS = {names.LABEL_JOB: "other", names.LABEL_COMPONENT: "run", names.LABEL_MANAGED_BY: "evalstop"}


def adopt(scene: Scene) -> Json:
    labels = {**_LABELS, names.LABEL_JOB: "settings"}
    return {
        "metadata": {"labels": labels, "ownerReferences": [scene.owner(name="settings")]},
        "data": {"run.json": "{}"},
    }


def adopt_given(scene: Scene) -> Json:
    labels = {**_LABELS, names.LABEL_JOB: "given"}
    return {
        "metadata": {"labels": labels, "ownerReferences": [scene.owner(name="given")]},
        "data": {"run.json": "{}"},
    }


def let_go(scene: Scene) -> Json:
    """Of two owners the one that controls it is left."""
    return {"metadata": {"ownerReferences": scene.run_map()["metadata"]["ownerReferences"]}}


def take_over(scene: Scene) -> Json:
    return {"metadata": {"ownerReferences": [scene.owner(name="theirs")]}}


ROWS_MAPS = [
    create(MAPS, "a run file", "configmaps", run_map()),
    create(MAPS, "of a job with actors", "configmaps", run_map(**{"data__steps-ca.crt": "PEM"})),
    create(MAPS, "of a worker group", "configmaps", lambda scene: scene.group_map(), namespace=WORKERS),
    create(
        MAPS,
        "anybody's",
        "configmaps",
        fixed(changed(AWS_AUTH, metadata__namespace=TEAM)),
        by=ALICE,
        without="operator",
    ),
    create(MAPS, "in kube-system", "configmaps", run_map("kube-system"), "kube-*", namespace="kube-system"),
    create(MAPS, "in its own namespace", "configmaps", run_map(SYSTEM), "in its own", namespace=SYSTEM),
    create(MAPS, "without the label", "configmaps", run_map(CLOSED), LABEL, namespace=CLOSED),
    create(MAPS, "another name", "configmaps", run_map(metadata__name="coredns"), "<name>-run"),
    create(
        MAPS,
        "another's labels",
        "configmaps",
        run_map(metadata__labels={**_LABELS, names.LABEL_MANAGED_BY: "helm"}),
        "its own labels alone",
    ),
    create(MAPS, "of another's component", "configmaps", run_map(metadata__labels=_OTHERS), "its own labels"),
    create(MAPS, "under nobody", "configmaps", run_map(metadata__ownerReferences=[]), "RLHFJob controls"),
    *(
        create(MAPS, f"under {name}", "configmaps", of_owner(**fields), "RLHFJob controls")
        for name, fields in _NO_OWNERS.items()
    ),
    create(
        MAPS, "of a group elsewhere", "configmaps", group_map(metadata__namespace=TEAM), "RLHFJob controls"
    ),
    *(
        create(
            MAPS,
            f"of a group under {name}",
            "configmaps",
            group_map(**fields),
            "RLHFJob controls",
            namespace=WORKERS,
        )
        for name, fields in _NO_GROUPS.items()
    ),
    create(MAPS, "with bytes", "configmaps", run_map(binaryData={"x": "eA=="}), "makes ConfigMaps with keys"),
    create(
        MAPS,
        "another key",
        "configmaps",
        run_map(data__more="x"),
        "with keys run.json and steps-ca.crt alone",
    ),
    patch(MAPS, "the run file", "configmaps", "run-run", {"data": {"run.json": "{}"}}),
    patch(MAPS, "a user's", "configmaps", "settings-run", adopt, "takes over no ConfigMap"),
    patch(
        MAPS,
        "another key of it",
        "configmaps",
        "run-run",
        {"data": {"more": "2"}},
        "of a ConfigMap keys run.json and steps-ca.crt alone",
    ),
    patch(MAPS, "one that is labelled for it", "configmaps", "given-run", adopt_given),
    patch(MAPS, "no more authority", "configmaps", "run-run", {"data": {names.STEPS_CA_KEY: None}}),
    patch(MAPS, "one more key of it", "configmaps", "run-run", {"data": {"new": "2"}}, "of a ConfigMap keys"),
    patch(
        MAPS, "one key of it fewer", "configmaps", "run-run", {"data": {"more": None}}, "of a ConfigMap keys"
    ),
    patch(MAPS, "from who does not control it", "configmaps", "run-run", let_go),
    patch(MAPS, "bytes", "configmaps", "run-run", {"binaryData": {"x": "eA=="}}, "no binaryData of"),
    *metadata_rows(MAPS, "configmaps", "run-run", "ConfigMaps", owners=""),
    patch(MAPS, "from its controller", "configmaps", "theirs-run", take_over, "from who controls it"),
]

# -- nodes ---------------------------------------------------------------------------------------------------

NODES = "operator-nodes"
_OURS = {"key": names.POOL_TAINT, "value": "research", "effect": "NoSchedule"}


def taints(*ours: Json, less: str = "") -> Body:
    """Of the node as it is: its controller taints it, too, since no kubelet is there."""

    def body(scene: Scene) -> Json:
        spec = scene.admin.get(path("nodes", "gpu-1", dry=False))["spec"]
        return {"spec": {"taints": [t for t in spec["taints"] if t["key"] != less] + list(ours)}}

    return body


ROWS_NODES = [
    patch(NODES, "the pool's taint", "nodes", "gpu-1", taints(_OURS)),
    patch(
        NODES,
        "an administrator's label",
        "nodes",
        "gpu-1",
        {"metadata": {"labels": {"z": "1"}}},
        by=ADMIN,
        without="operator",
    ),
    *metadata_rows(NODES, "nodes", "gpu-1", "nodes"),
    patch(NODES, "closed to all", "nodes", "gpu-1", {"spec": {"unschedulable": True}}, "its taints alone"),
    patch(
        NODES, "opened to all", "nodes", "gpu-1", taints(_OURS, less="dedicated"), "no taints of nodes but"
    ),
    patch(
        NODES,
        "pods put out",
        "nodes",
        "gpu-1",
        taints({**_OURS, "effect": "NoExecute"}),
        "puts nobody out",
    ),
]

# -- RLHFJobs ------------------------------------------------------------------------------------------------

RLHFJOBS = "operator-rlhfjobs"
ROWS_RLHFJOBS = [
    patch(RLHFJOBS, "the finalizer", "rlhfjobs", "run", {"metadata": {"finalizers": [names.FINALIZER]}}),
    patch(
        RLHFJOBS,
        "an editor's label",
        "rlhfjobs",
        "run",
        {"metadata": {"labels": {"z": "1"}}},
        by=ALICE,
        without="operator",
    ),
    *metadata_rows(RLHFJOBS, "rlhfjobs", "run", "RLHFJobs", owners="owners"),
    patch(RLHFJOBS, "the spec", "rlhfjobs", "run", {"spec": {"mode": "Off"}}, "changes no spec of RLHFJobs"),
]

# -- Events --------------------------------------------------------------------------------------------------

EVENTS = "operator-events"
_ABOUT = {"apiVersion": names.API_VERSION, "kind": "RLHFJob", "namespace": TEAM, "name": "run", "uid": "x"}
_POD_ABOUT = {"apiVersion": "v1", "kind": "Pod", "namespace": TEAM, "name": "run", "uid": "x"}
ROWS_EVENTS = [
    create(EVENTS, "about an RLHFJob", "events", fixed(event("e", _ABOUT))),
    create(
        EVENTS, "anybody's", "events", fixed(event("e", _POD_ABOUT, "kubelet")), by=ADMIN, without="operator"
    ),
    create(EVENTS, "about a pod", "events", fixed(event("e", _POD_ABOUT)), "and of nothing else"),
    create(EVENTS, "as the kubelet", "events", fixed(event("e", _ABOUT, "kubelet")), "in its own name"),
    create(
        EVENTS,
        "from the kubelet",
        "events",
        fixed({**event("e", _ABOUT), "source": {"component": "kubelet"}}),
        "in its own name",
    ),
    create(
        EVENTS,
        "as reported by the kubelet",
        "events",
        fixed({**event("e", _ABOUT), "reportingComponent": "kubelet"}),
        "in its own name",
    ),
    patch(EVENTS, "once more", "events", "told", {"count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"}),
    patch(EVENTS, "another message", "events", "told", {"message": "all is well"}, "lastTimestamp alone"),
]

# -- Kueue ---------------------------------------------------------------------------------------------------

WORKLOADS, ANSWERS, CHECKS = (
    "operator-workloads",
    "operator-workload-status",
    "operator-admissioncheck-status",
)


def condition(kind: str) -> Json:
    return {"status": {"conditions": [{"type": kind, "status": "True"}]}}


ROWS_KUEUE = [
    patch(
        WORKLOADS,
        "switched off",
        "workloads",
        "w",
        {"metadata": {"annotations": {names.ANNOTATION_SWITCHED_OFF: "why"}}, "spec": {"active": False}},
    ),
    patch(
        WORKLOADS,
        "an administrator's queue",
        "workloads",
        "w",
        {"spec": {"queueName": "x"}},
        by=ADMIN,
        without="operator",
    ),
    *metadata_rows(WORKLOADS, "workloads", "w", "Workloads", owners="owners"),
    patch(WORKLOADS, "another queue", "workloads", "w", {"spec": {"queueName": "x"}}, "spec active alone"),
    patch(ANSWERS, "an answer", "workloads/status", "w", {"status": {"admissionChecks": [{"name": "ours"}]}}),
    patch(
        ANSWERS,
        "an administrator's admission",
        "workloads/status",
        "w",
        {"status": {"admission": {}}},
        by=ADMIN,
        without="operator",
    ),
    patch(
        ANSWERS, "an admission", "workloads/status", "w", {"status": {"admission": {}}}, "its answers alone"
    ),
    patch(CHECKS, "who answers", "admissionchecks/status", "ours", condition("Active")),
    patch(
        CHECKS,
        "an administrator's",
        "admissionchecks/status",
        "another",
        condition("Active"),
        by=ADMIN,
        without="operator",
    ),
    patch(CHECKS, "another's", "admissionchecks/status", "another", condition("Active"), "of controller"),
    patch(
        CHECKS, "another condition", "admissionchecks/status", "ours", condition("Other"), "condition Active"
    ),
]

# -- who makes and changes RLHFJobs --------------------------------------------------------------------------

AUTHOR = "rlhfjob-author"


def rlhfjob(workload: Json) -> Body:
    return fixed(changed(RLHFJOB, metadata__name="another", spec__workload=workload))


def _authored() -> list[Row]:
    from controller.api.kinds import KINDS

    rows = [
        create(
            AUTHOR,
            "one that may make Jobs",
            "rlhfjobs",
            fixed(changed(RLHFJOB, metadata__name="x")),
            by=ALICE,
        ),
        patch(
            AUTHOR,
            "a label alone",
            "rlhfjobs",
            "run",
            {"metadata": {"labels": {"z": "1"}}},
            by=BOB,
            without="spec-new-or-changed",
        ),
        patch(
            AUTHOR,
            "a colleague's run",
            "rlhfjobs",
            "run",
            {"spec": {"runState": "Stopped"}},
            "you may not create jobs.batch in",
            by=BOB,
        ),
        create(
            AUTHOR,
            "with actors, of one that may make Jobs",
            "rlhfjobs",
            fixed(changed(RLHFJOB, metadata__name="x", spec__rollout=ROLLOUT)),
            by=ALICE,
        ),
        create(
            AUTHOR,
            "a ref to a Job",
            "rlhfjobs",
            rlhfjob({"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "mine"}}),
            by=ALICE,
        ),
        create(
            AUTHOR,
            "an unknown kind",
            "rlhfjobs",
            rlhfjob({"template": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}}}),
            "spec.workload: kind apps/v1 Deployment",
            by=BOB,
        ),
    ]
    of_jobset = {"apiVersion": "jobset.x-k8s.io/v1", "kind": "JobSet"}
    jobset = {"template": {**of_jobset, "spec": {}}}
    for name, workload in (("template", jobset), ("ref", {"ref": {**of_jobset, "name": "mine"}})):
        rows.append(create(AUTHOR, f"carol's JobSet by {name}", "rlhfjobs", rlhfjob(workload), by=CAROL))
    rows.append(
        create(
            AUTHOR,
            "actors of one that may make no Jobs",
            "rlhfjobs",
            fixed(changed(RLHFJOB, metadata__name="another", spec__workload=jobset, spec__rollout=ROLLOUT)),
            "spec.rollout: you may not create jobs.batch in namespace",
            by=CAROL,
        )
    )
    rows.append(
        create(
            AUTHOR,
            "among worker groups",
            "rlhfjobs",
            fixed(changed(RLHFJOB, metadata__name="x", metadata__namespace=WORKERS)),
            "is for worker groups alone",
            by=ALICE,
            namespace=WORKERS,
        )
    )
    for kind in KINDS:
        full, version = f"{kind.resource}.{kind.group}", f"{kind.group}/v1"
        template = {"template": {"apiVersion": version, "kind": kind.kind, "spec": {}}}
        ref = {"ref": {"apiVersion": version, "kind": kind.kind, "name": "mine"}}
        rows += [
            create(
                AUTHOR, f"a template of {full}", "rlhfjobs", rlhfjob(template), f"not create {full}", by=BOB
            ),
            create(AUTHOR, f"a ref to {full}", "rlhfjobs", rlhfjob(ref), f"not patch {full}", by=BOB),
            create(AUTHOR, f"a template of {full} that she may make", "rlhfjobs", rlhfjob(template), by=DORA),
            create(AUTHOR, f"a ref to {full} that he may patch", "rlhfjobs", rlhfjob(ref), by=EMIL),
        ]
    return rows


ROWS_AUTHOR = _authored()

# -- worker groups -------------------------------------------------------------------------------------------

GROUPS = "operator-workergroups"
_NEXT = fixed(changed(GROUP, metadata__name="wg-2"))
ROWS_GROUPS = [
    create(GROUPS, "a group", "workergroups", _NEXT, namespace=WORKERS),
    create(
        GROUPS,
        "somebody's",
        "workergroups",
        _NEXT,
        "WorkerGroups are the EvalStop operator's",
        by=ALICE,
        namespace=WORKERS,
    ),
    patch(
        GROUPS,
        "its family",
        "workergroups",
        "wg-1",
        {"spec": {"family": "another"}},
        "WorkerGroups are the EvalStop operator's",
        by=ALICE,
        namespace=WORKERS,
    ),
    patch(
        GROUPS,
        "a label alone",
        "workergroups",
        "wg-1",
        {"metadata": {"labels": {"z": "1"}}},
        by=ALICE,
        without="spec-new-or-changed",
        namespace=WORKERS,
    ),
]

# -- pods with GPUs ------------------------------------------------------------------------------------------

GPU_PODS = "gpu-pods"
_ANY = {"operator": "Exists"}
_QUEUE, _NODE, _START, _GROW = (
    "once the EvalStop operator",
    "leave nodeName out",
    "is not yours",
    "cannot grow",
)


_ACTOR = "are rollout actors, which the EvalStop operator makes"
_ACTOR_LABEL = {"metadata__labels": {names.LABEL_COMPONENT: "actor"}}


def job_of_actors() -> Json:
    return changed(job("x"), spec__template__metadata={"labels": {names.LABEL_COMPONENT: "actor"}})


def admitted_job(name: str, **spec: Any) -> Json:
    """A Job as the operator leaves it: with the pool's toleration."""
    return job(name, {**POD, "tolerations": [TOLERATION]}, **spec)


def workload_kind(kind: str, pod_spec: Json) -> Json:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {**pod_spec, "restartPolicy": "Always"}}
    spec: Json = {"selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "x", "namespace": TEAM},
        "spec": spec,
    }


CRON = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "x", "namespace": TEAM},
    "spec": {
        "schedule": "* * * * *",
        "jobTemplate": {"spec": {"template": {"spec": {**POD, "tolerations": [_ANY]}}}},
    },
}
CONTROLLER = {
    "apiVersion": "v1",
    "kind": "ReplicationController",
    "metadata": {"name": "x", "namespace": TEAM},
    "spec": {
        "selector": {"app": "x"},
        "template": {
            "metadata": {"labels": {"app": "x"}},
            "spec": {**POD, "tolerations": [_ANY], "restartPolicy": "Always"},
        },
    },
}
_TOLERANT = {**POD, "tolerations": [_ANY]}
_AS_ACTOR = {"labels": {names.LABEL_COMPONENT: "actor"}}
_WITH_GPU = {
    "spec": {
        "template": {
            "spec": {"containers": [{"name": "x", "image": "x", "resources": {"limits": {GPU: "1"}}}]}
        }
    }
}
_PLAIN = {key: v for key, v in TRAINER.items() if key != "resources"}
_NO_GPU = {**_TOLERANT, "containers": [_PLAIN]}
_CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}], **_NO_GPU}
_BY_CLASS = f"{names.DEVICE_CLASS}gpu.example.com"
_KEYED = {"key": names.POOL_TAINT, "operator": "Exists", "effect": "NoSchedule"}
_EVICTED = {"operator": "Exists", "effect": "NoExecute"}


def _counted(resources: Json) -> Json:
    return {**_NO_GPU, "containers": [{**_PLAIN, "resources": resources}]}


_FIRST_GPU = {**_NO_GPU, "initContainers": [{**TRAINER, "name": "first"}]}
_CRON_PLAIN = changed(CRON, spec__jobTemplate__spec__template__spec__tolerations=[])
_SMALL = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "x", "namespace": TEAM},
    "spec": {"containers": [{"name": "x", "image": "x"}]},
}


def _mine(name: str, what: Json | str, body: Json, refused: str = "", **more: Any) -> Row:
    return create(GPU_PODS, name, str(what), fixed(body), refused, **{"by": ALICE, **more})


ROWS_GPU = [
    _mine("a pod of its own", "pods", pod("x")),
    _mine(
        "a pod on other nodes",
        "pods",
        pod("x", tolerations=[{"key": "dedicated", "operator": "Exists"}, _EVICTED]),
    ),
    _mine(
        "a pod among worker groups",
        "pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x", "namespace": WORKERS},
            "spec": {"containers": [{"name": "x", "image": "x"}]},
        },
        "evalstop-workers is the EvalStop operator's",
        namespace=WORKERS,
    ),
    _mine("a pod that says to be an actor", "pods", changed(pod("x"), **_ACTOR_LABEL), _ACTOR),
    _mine("a Job whose pods say so", "jobs", job_of_actors(), _ACTOR),
    _mine("a pod with our toleration", "pods", pod("x", tolerations=[_KEYED]), _QUEUE),
    _mine("a pod that tolerates everything", "pods", pod("x", tolerations=[_ANY]), _QUEUE),
    _mine("a pod with a claim", "pods", changed(pod("x"), spec=_CLAIM), _QUEUE),
    *(
        _mine(
            f"a pod with {of} of a device class",
            "pods",
            changed(
                pod("x"), spec={**_NO_GPU, "containers": [{**_PLAIN, "resources": {of: {_BY_CLASS: "1"}}}]}
            ),
            _QUEUE,
        )
        for of in ("requests", "limits")
    ),
    _mine("a pod with a node", "pods", pod("x", nodeName="gpu-1"), _NODE),
    _mine("a Job", "jobs", job("x", _TOLERANT), _QUEUE),
    _mine("a CronJob", "cronjobs", CRON, _QUEUE),
    _mine("a ReplicationController", "replicationcontrollers", CONTROLLER, _QUEUE),
    *(
        _mine(f"a {kind}", f"{kind.lower()}s", workload_kind(kind, _TOLERANT), _QUEUE)
        for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")
    ),
    _mine("a DaemonSet without GPUs", "daemonsets", workload_kind("DaemonSet", _NO_GPU), by=ADMIN),
    _mine("a DaemonSet without GPUs, of alice's", "daemonsets", workload_kind("DaemonSet", _NO_GPU)),
    _mine("who decides about pools", "pods", pod("x", tolerations=[_ANY], nodeName="gpu-1"), by=ADMIN),
    create(
        GPU_PODS,
        "the operator's own",
        "jobs",
        of_rlhfjob(**{f"{_SPEC}__tolerations": [_KEYED]}),
        without="not-a-user-who-may",
    ),
    _mine(
        "the Job controller's",
        "pods",
        pod("x", tolerations=[_KEYED]),
        by=JOB_CONTROLLER,
        without="not-a-group-that-may",
    ),
    _mine("a Job that says to be one itself", "jobs", changed(job("x"), **_ACTOR_LABEL), _ACTOR),
    _mine(
        "a CronJob of such", "cronjobs", changed(_CRON_PLAIN, spec__jobTemplate__metadata=_AS_ACTOR), _ACTOR
    ),
    _mine(
        "a CronJob of such pods",
        "cronjobs",
        changed(_CRON_PLAIN, spec__jobTemplate__spec__template__metadata=_AS_ACTOR),
        _ACTOR,
    ),
    patch(
        GPU_PODS, "an actor's label", "jobs", "run-actor-1-7", {"metadata": {"labels": {"z": "1"}}}, by=ALICE
    ),
    patch(GPU_PODS, "a Job to be an actor", "jobs", "stranger", {"metadata": _AS_ACTOR}, _ACTOR, by=ALICE),
    _mine(
        "a Deployment whose pods say so",
        "deployments",
        changed(
            workload_kind("Deployment", _NO_GPU),
            spec__template__metadata__labels={"app": "x", **_AS_ACTOR["labels"]},
        ),
        _ACTOR,
    ),
    _mine(
        "a Job by limits of a device class", "jobs", job("x", _counted({"limits": {_BY_CLASS: "1"}})), _QUEUE
    ),
    _mine("a pod with memory", "pods", changed(pod("x"), spec=_counted({"limits": {"memory": "1Mi"}}))),
    _mine("a pod without GPUs on a node", "pods", changed(pod("x"), spec={**_NO_GPU, "nodeName": "gpu-1"})),
    _mine("a pod with no GPU, counted", "pods", changed(pod("x"), spec=_counted({"limits": {GPU: "0"}}))),
    _mine(
        "a pod with none of a class", "pods", changed(pod("x"), spec=_counted({"requests": {_BY_CLASS: "0"}}))
    ),
    _mine("a pod with a GPU before all else", "pods", changed(pod("x"), spec=_FIRST_GPU), _QUEUE),
    patch(GPU_PODS, "GPUs where tolerated", "deployments", "tolerant", _WITH_GPU, _QUEUE, by=ALICE),
    patch(GPU_PODS, "GPUs on a node", "deployments", "fixed", _WITH_GPU, _NODE, by=ALICE),
    patch(
        GPU_PODS,
        "a node for GPUs",
        "deployments",
        "with-gpus",
        {"spec": {"template": {"spec": {"nodeName": "gpu-1"}}}},
        _NODE,
        by=ALICE,
    ),
    *(
        patch(GPU_PODS, f"a label of {what}", kind, name, {"metadata": {"labels": {"z": "1"}}}, by=ALICE)
        for what, kind, name in (("a placed pod", "pods", "placed"), ("a started Job", "jobs", "started"))
    ),
    *(
        patch(GPU_PODS, f"{name}, {what}", "jobs", name, {"spec": spec}, by=ALICE)
        for name in ("stranger", "without-gpus")
        for what, spec in (("started", {"suspend": False}), ("of more pods", {"parallelism": 2}))
    ),
    _mine("a pool's keeper's", "pods", pod("x", tolerations=[_ANY]), by=FRIDA),
    _mine("a pool's keeper's, on a node", "pods", pod("x", nodeName="gpu-1"), by=FRIDA),
    _mine(
        "a pool's keeper's, among groups",
        "pods",
        changed(_SMALL, metadata__namespace=WORKERS),
        by=FRIDA,
        namespace=WORKERS,
    ),
    patch(GPU_PODS, "a keeper starts it", "jobs", "admitted", {"spec": {"suspend": False}}, by=FRIDA),
    patch(GPU_PODS, "a keeper has it grow", "jobs", "admitted", {"spec": {"parallelism": 2}}, by=FRIDA),
    patch(GPU_PODS, "a pod later", "pods", "waiting", {"spec": {"tolerations": [_KEYED]}}, _QUEUE, by=ALICE),
    patch(
        GPU_PODS,
        "a label of an admitted Job",
        "jobs",
        "admitted",
        {"metadata": {"labels": {"z": "1"}}},
        by=ALICE,
    ),
    patch(GPU_PODS, "starting a Job", "jobs", "admitted", {"spec": {"suspend": False}}, _START, by=ALICE),
    patch(
        GPU_PODS,
        "more pods",
        "jobs",
        "admitted",
        {"spec": {"parallelism": 2, "completions": 2}},
        _GROW,
        by=ALICE,
    ),
    patch(GPU_PODS, "fewer pods", "jobs", "admitted", {"spec": {"parallelism": 0}}, by=ALICE),
]

ROWS = [
    *ROWS_JOBS,
    *ROWS_STATUS,
    *ROWS_MAPS,
    *ROWS_NODES,
    *ROWS_RLHFJOBS,
    *ROWS_EVENTS,
    *ROWS_KUEUE,
    *ROWS_AUTHOR,
    *ROWS_GROUPS,
    *ROWS_GPU,
]


def asked(row: Row) -> str:
    """Where its request goes."""
    return path(row.resource, row.object, row.namespace)
