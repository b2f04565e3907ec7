"""The chart installed by a real Helm: what runs there runs under exactly the rights that the chart gives.

The tests build on each other, in their order: installed, run, looked at, changed, taken away.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed import SPACE, AuditLog, Right, meet_conflicts
from rendering import NAMESPACE, named, render, rules

from deploy.helm.cluster import RELEASE, Cluster, until
from deploy.helm.local import LOCAL, POOL, POOL_LABEL
from deploy.local.demo import cast as casting
from deploy.local.demo.facts import Role
from deploy.local.errors import PlaneError
from deploy.local.helm.client import Helm
from deploy.local.plane import Plane


def hurried(job: Any, gpus: int, **options: str) -> dict[str, Any]:
    """A sample job at many times its pace, its two pods with so many GPUs each."""
    changed: dict[str, Any] = copy.deepcopy(dict(job))
    changed["metadata"]["namespace"] = SPACE
    template = changed["spec"]["workload"]["template"]["spec"]
    container = template["template"]["spec"]["containers"][0]
    faster = {"--step-seconds": "0.05", "--linger-seconds": "6", **options}
    container["args"] = [
        f"{word.partition('=')[0]}={faster.get(word.partition('=')[0], word.partition('=')[2])}"
        for word in container["args"]
    ]
    changed["spec"]["gang"]["gpusPerReplica"] = gpus
    container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    return changed


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> dict[Role, dict[str, Any]]:
    """Sample jobs, each of which takes every GPU that there is."""
    nodes = cluster.get("nodes", "-l", f"{POOL_LABEL}={POOL['name']}")["items"]
    gpus = sum(int(node["status"]["allocatable"]["nvidia.com/gpu"]) for node in nodes)
    scenes = casting.load(namespace=SPACE)
    found = {role: hurried(job, gpus // 2) for job, role in scenes.jobs if role is not Role.WAITING}
    short = {"--steps": "60", "--linger-seconds": "3"}
    return found | {
        role: hurried(job, gpus // 2, **short) for job, role in scenes.jobs if role is Role.WAITING
    }


def test_installed_and_the_notes_say_what_comes_next(
    cluster: Cluster, notes: str, values: dict[str, Any]
) -> None:
    assert "STATUS: deployed" in notes
    assert f"helm -n {NAMESPACE} test {RELEASE} --logs" in notes
    assert "Pools of your values: research." in notes
    stanza = "urlPrefix: https://evalstop-extender.evalstop-system.svc:8443"
    assert (stanza in notes) != ("scheduler" in values), "it is printed for whoever has no second scheduler"
    secret = cluster.get("secret", "evalstop-scheduler-tls", "-n", NAMESPACE)
    assert {"ca.crt", "tls.crt", "tls.key"} == set(secret["data"])
    for deployment in cluster.get("deployments", "-n", NAMESPACE)["items"]:
        assert deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"]
    pool = cluster.get("gpupool", "research")
    assert pool["spec"]["nodeSelector"] == POOL["spec"]["nodeSelector"]
    assert pool["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


def test_helm_test_looks_at_it_from_inside(cluster: Cluster, notes: str, values: dict[str, Any]) -> None:
    said = cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--logs", "--timeout=90s", timeout_s=120)
    assert "Phase:          Succeeded" in said
    lines = [line.split() for line in said.splitlines() if line.startswith(("ok ", "FAIL "))]
    looked_at = ["definitions:", "leader:", "evalstop-operator:", "evalstop-extender:"]
    if "scheduler" in values:
        looked_at.append("evalstop-scheduler:")
    if "test" not in values:
        looked_at += [
            f"http://evalstop-{name}/readyz:"
            for name in ("operator.evalstop-system:8080", "extender.evalstop-system:8081")
        ]
    assert [line[:2] for line in lines] == [["ok", name] for name in looked_at], said


@pytest.mark.timeout(240)
def test_a_run_is_stopped_and_its_gpus_are_handed_over(
    cluster: Cluster, notes: str, jobs: dict[Role, dict[str, Any]]
) -> None:
    supplies = [d for d in casting.load(namespace=SPACE).supplies if d["kind"] != "GPUPool"]
    cluster.apply(supplies)
    over, waiting = jobs[Role.OVER_OPTIMISING], jobs[Role.WAITING]
    cluster.apply([over])
    until("the first run", lambda: is_true(cluster, over, "Running"), 90)
    cluster.apply([waiting])
    until("the stop", lambda: is_true(cluster, over, "GPUsReleased"), 120)
    until("the hand-over", lambda: is_true(cluster, waiting, "Running"), 60)

    def status() -> Any:
        return cluster.get("rlhfjob", over["metadata"]["name"], "-n", SPACE)["status"]

    # The pool notes it after it has admitted the other, and once more if it was disturbed.
    handed = until("the note of the hand-over", lambda: status()["decision"].get("handedTo"))
    assert handed == f"{SPACE}/{waiting['metadata']['name']}"
    assert status()["retained"], "no checkpoint was kept"


def is_true(cluster: Cluster, job: dict[str, Any], kind: str) -> bool:
    found = cluster.condition(SPACE, job["metadata"]["name"], kind)
    return found is not None and found["status"] == "True"


def test_every_right_that_is_given_is_used_and_every_one_that_is_used_is_given(
    own_plane: None,
    cluster: Cluster,
    chart_plane: Plane,
    audit: AuditLog,
    helm: Helm,
    chart: Path,
    jobs: dict[Role, dict[str, Any]],
) -> None:
    """After the story above: what the API server's audit log says, against what the chart renders."""
    wake_a_parked_pod(cluster)
    resume(cluster, audit, jobs[Role.OVER_OPTIMISING])
    find_a_name_taken(cluster, audit, jobs[Role.WAITING])
    pool, node = cluster.get("gpupool", "research"), cluster.get("node", "node-1")
    job = cluster.get("rlhfjobs", "-n", SPACE)["items"][0]
    identity = f"system:serviceaccount:{NAMESPACE}:evalstop-operator"
    kubeconfig = chart_plane.kubeconfig_for(identity, ["system:serviceaccounts", "system:authenticated"])
    asyncio.run(meet_conflicts(kubeconfig, pool, job, node))
    # A request is logged after it is answered.
    read_anew = {("evalstop.dev", "gpupools"), ("evalstop.dev", "rlhfjobs"), ("", "nodes")}
    wait_for_rights(audit, {(group, resource, "get") for group, resource in read_anew})
    objects = render(helm, chart, LOCAL)
    wanted = {
        "evalstop-operator": [("ClusterRole", "evalstop-operator"), ("Role", "evalstop-leader")],
        "evalstop-extender": [("ClusterRole", "evalstop-extender")],
        "evalstop-pools": [("ClusterRole", "evalstop-pools")],
        "evalstop-test": [("Role", "evalstop-test")],
    }
    for account, roles in wanted.items():
        given = {
            (group, resource, verb)
            for kind, name in roles
            for group, resource, _, verb in rules(named(objects, kind, name))
        }
        used = audit.used(account)
        assert audit.denied(account) == set(), f"{account} asked for what it has no right to"
        assert used - given == EVERYBODYS & used, f"{account} has rights from elsewhere"
        assert given - used == NEVER_ASKED_FOR.get(account, set()), f"{account} has rights that it never uses"


# Rights that every service account has by Kubernetes' own roles.
EVERYBODYS: set[tuple[str, str, str]] = set()
# Rights over finalizers are looked at when somebody makes an object whose owner's deletion waits for it; the
# request itself names another object (the next test shows what becomes of it without).
# Applying an object that is not there yet is audited as a patch; it needs the right to create as well.
NEVER_ASKED_FOR = {
    "evalstop-operator": {
        ("evalstop.dev", "rlhfjobs/finalizers", "update"),
        ("batch", "jobs/finalizers", "update"),
    },
    "evalstop-pools": {("evalstop.dev", "gpupools", "create")},
}


def find_a_name_taken(cluster: Cluster, audit: AuditLog, job: dict[str, Any]) -> None:
    """A ConfigMap of the name that the operator gives its own: it looks, does not touch it, and says so."""
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "clash-run", "namespace": SPACE}}
    cluster.apply([mine, job | {"metadata": {"name": "clash", "namespace": SPACE}}])
    wait_for_rights(audit, {("", "configmaps", "get")})

    def told() -> bool:
        found = cluster.get("events", "-n", SPACE, "--field-selector=involvedObject.name=clash")["items"]
        return any(event["reason"] == "ActionRefused" for event in found)

    until("the operator to say that the name is taken", told)
    # Its next life finds what the former one has said, and counts it there.
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=evalstop-operator")
    wait_for_rights(audit, {("", "events", "patch")})
    assert "data" not in cluster.get("configmap", "clash-run", "-n", SPACE)
    cluster.kubectl("delete", "rlhfjob", "clash", "-n", SPACE)


def resume(cluster: Cluster, audit: AuditLog, job: dict[str, Any]) -> None:
    """The stopped run goes on from its best checkpoint; where that is, its trainer reads in its ConfigMap."""
    wanted = json.dumps({"spec": {"resume": {"id": "once-more", "from": "Best"}}})
    cluster.kubectl("patch", "rlhfjob", job["metadata"]["name"], "-n", SPACE, "--type=merge", "-p", wanted)
    wait_for_rights(audit, {("", "configmaps", "patch")})


def wait_for_rights(audit: AuditLog, rights: set[Right]) -> None:
    until(f"the operator to use {rights}", lambda: rights <= audit.used("evalstop-operator"), 120)


def wake_a_parked_pod(cluster: Cluster) -> None:
    """A pod that was refused by an extender of former days, and would not be now: the extender touches it."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "parked", "namespace": SPACE},
        "spec": {
            "schedulerName": "evalstop-scheduler",
            "containers": [
                {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
            ],
        },
    }
    cluster.apply([pod])
    words = "0/2 nodes are available: 2 evalstop: GPUs of a/b promised to c/d until 2026-01-01T00:00:00Z."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    patch = json.dumps({"status": {"conditions": [condition]}})
    cluster.kubectl(
        "patch", "pod", "parked", "-n", SPACE, "--subresource=status", "--type=merge", "-p", patch
    )

    def touched() -> bool:
        notes = cluster.get("pod", "parked", "-n", SPACE)["metadata"].get("annotations") or {}
        return "evalstop.dev/retry" in notes

    until("the extender to touch the pod", touched, 60)
    cluster.kubectl("delete", "pod", "parked", "-n", SPACE, "--wait=false")


def may(cluster: Cluster, user: str, verb: str, resource: str) -> bool:
    """Whether the API server lets a user do that now; kubectl's exit status is 1 where it does not."""
    try:
        return "yes" in cluster.kubectl("auth", "can-i", verb, resource, f"--as={user}")
    except PlaneError:
        return False


def test_a_pool_cannot_be_applied_anew_without_the_right_to_create(cluster: Cluster, notes: str) -> None:
    rule = {"apiGroups": ["evalstop.dev"], "resources": ["gpupools"], "verbs": ["get", "patch"]}
    rbac = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "patcher"},
        "rules": [rule],
    }
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "patcher"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "patcher"},
        "subjects": [{"kind": "User", "name": "patcher", "apiGroup": rbac}],
    }
    cluster.apply([role, binding])
    until("the role", lambda: may(cluster, "patcher", "patch", "gpupools.evalstop.dev"))
    pool = {"apiVersion": "evalstop.dev/v1alpha1", "kind": "GPUPool", "metadata": {"name": "new"}}
    text = json.dumps(pool | {"spec": POOL["spec"]})
    apply = ("apply", "--server-side", "--dry-run=server", "--as=patcher", "-f", "-")
    with pytest.raises(PlaneError, match="cannot create resource"):
        cluster.kubectl(*apply, stdin=text)


def test_without_its_rights_over_finalizers_the_operator_could_own_nothing(
    own_plane: None, cluster: Cluster, helm: Helm, chart: Path
) -> None:
    role = named(render(helm, chart, LOCAL), "ClusterRole", "evalstop-operator")
    role["metadata"] = {"name": "less"}
    role["rules"] = [rule for rule in role["rules"] if not rule["resources"][0].endswith("/finalizers")]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "less"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "less"},
        "subjects": [{"kind": "User", "name": "less", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    cluster.apply([role, binding])
    owner = cluster.get("rlhfjobs", "-n", SPACE)["items"][0]
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "owned",
            "namespace": SPACE,
            "ownerReferences": [
                {
                    **{key: owner[key] for key in ("apiVersion", "kind")},
                    **{key: owner["metadata"][key] for key in ("name", "uid")},
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }
    operator = f"--as=system:serviceaccount:{NAMESPACE}:evalstop-operator"
    ask = ("create", "--dry-run=server", "-f", "-")
    cluster.kubectl(*ask, operator, stdin=json.dumps(child))
    until("the lesser role", lambda: may(cluster, "less", "create", "configmaps"))
    with pytest.raises(PlaneError, match="cannot set blockOwnerDeletion"):
        cluster.kubectl(*ask, "--as=less", stdin=json.dumps(child))


def test_an_upgrade_keeps_certificates_renews_them_in_time_and_takes_new_pools(
    cluster: Cluster, notes: str, values: dict[str, Any]
) -> None:
    before = secrets(cluster)
    changed = copy.deepcopy(values)
    changed["pools"][0]["labels"] = {"team": "a"}
    cluster.kubectl("label", "gpupool", "research", "a=b")
    cluster.install(changed)
    assert secrets(cluster) == before
    assert cluster.get("gpupool", "research")["metadata"]["labels"]["team"] == "a"
    assert cluster.get("gpupool", "research")["metadata"]["labels"]["a"] == "b"  # somebody else's stays
    # Nearly over: as an upgrade eight months later finds it.
    soon = str(int(time.time()) + 100 * 86400)
    cluster.kubectl(
        *("annotate", "secret", "evalstop-extender-tls", "-n", NAMESPACE, "--overwrite"),
        f"evalstop.dev/not-after={soon}",
    )
    cluster.install(changed)
    after = secrets(cluster)
    assert after["evalstop-extender-ca"] == before["evalstop-extender-ca"]
    for name in ("evalstop-extender-tls", "evalstop-scheduler-tls"):
        assert after[name]["tls.crt"] != before[name]["tls.crt"]
        assert after[name]["ca.crt"] == before[name]["ca.crt"]


def secrets(cluster: Cluster) -> dict[str, dict[str, str]]:
    found = cluster.get("secrets", "-n", NAMESPACE, "-l", "app.kubernetes.io/part-of=evalstop")["items"]
    return {o["metadata"]["name"]: o["data"] for o in found}


def test_a_second_release_is_refused_and_says_where_the_first_is(
    cluster: Cluster, notes: str, chart: Path
) -> None:
    done = cluster.helm.run("install", "mine", str(chart), "-n", "elsewhere", "--create-namespace")
    assert done.returncode != 0
    assert f"EvalStop is in this cluster already, as release {NAMESPACE}/{RELEASE}" in done.stderr
    assert f"helm upgrade {RELEASE} -n {NAMESPACE}" in done.stderr
    assert cluster.get("deployments", "-n", NAMESPACE)["items"]


@pytest.mark.parametrize(
    ("version", "given", "words"),
    [
        ("9.0.0", {}, "is of EvalStop 9.0.0, and this chart is of 0.1.0: going back would drop"),
        ("0.0.9", {"crds": {"install": False}}, "is of EvalStop 0.0.9, older than this chart's 0.1.0"),
    ],
)
def test_definitions_of_another_version(
    cluster: Cluster, notes: str, values: dict[str, Any], version: str, given: dict[str, Any], words: str
) -> None:
    """A downgrade is refused; so is a chart that shall not touch definitions that are too old for it."""
    label = ("label", "crd", "gpupools.evalstop.dev", "--overwrite")
    cluster.kubectl(*label, f"app.kubernetes.io/version={version}")
    try:
        with pytest.raises(PlaneError) as caught:
            cluster.install(values | given)
        assert words in str(caught.value)
        assert "gpupools.evalstop.dev" in str(caught.value)
    finally:
        cluster.kubectl(*label, "app.kubernetes.io/version=0.1.0")


def test_older_definitions_are_brought_up_to_date(
    cluster: Cluster, notes: str, values: dict[str, Any]
) -> None:
    """A field that an older definition lacks is there after an upgrade; Helm's crds/ folder has no such."""
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/gangTimeoutSeconds"
    patch = json.dumps([{"op": "remove", "path": path}])
    cluster.kubectl("patch", "crd", "gpupools.evalstop.dev", "--type=json", "-p", patch)
    cluster.install(values, "--force")
    crd = cluster.get("crd", "gpupools.evalstop.dev")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "gangTimeoutSeconds" in schema["properties"]["spec"]["properties"]


@pytest.mark.timeout(420)
def test_uninstalling_leaves_jobs_definitions_pools_and_checkpoints(
    cluster: Cluster, notes: str, values: dict[str, Any], jobs: dict[Role, dict[str, Any]]
) -> None:
    runs = long_run(jobs[Role.WAITING])
    cluster.apply([runs])
    until("the long run", lambda: is_true(cluster, runs, "Running"), 150)
    training, kept = pods_of(cluster, runs), retained_files(cluster, runs)
    before = {kind: names_of(cluster, kind) for kind in ("rlhfjobs", "jobs", "pvc")}
    assert all(before.values())
    assert [phase for phase, _ in training.values()] == ["Running", "Running"]
    stopped = cluster.get("rlhfjob", jobs[Role.OVER_OPTIMISING]["metadata"]["name"], "-n", SPACE)["status"]
    copies = [copy["path"] for copy in stopped["retained"]]
    assert copies
    assert [c for c in copies if not any(file.startswith(f"{c}/") for file in kept)] == []
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=60s")
    of_operator = ("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=evalstop-operator")
    until("the operator to be gone", lambda: not cluster.get(*of_operator)["items"])
    assert {kind: names_of(cluster, kind) for kind in ("rlhfjobs", "jobs", "pvc")} == before
    assert pods_of(cluster, runs) == training
    assert retained_files(cluster, runs) == kept
    assert names_of(cluster, "gpupools") == {"research"}
    assert {"rlhfjobs.evalstop.dev", "gpupools.evalstop.dev"} <= names_of(cluster, "crd")
    left = yaml.safe_load(
        cluster.kubectl(
            "get",
            "clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies",
            "-o",
            "yaml",
        )
    )
    ours = [
        o
        for o in left["items"]
        if o["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == RELEASE
    ]
    assert ours == []
    again = cluster.install(values)  # the same release takes up what it left
    assert "STATUS: deployed" in again
    assert pods_of(cluster, runs) == training
    cluster.kubectl("delete", "rlhfjob", runs["metadata"]["name"], "-n", SPACE)


def long_run(job: dict[str, Any]) -> dict[str, Any]:
    """A job that trains for longer than a test, whatever its evals say."""
    found: dict[str, Any] = json.loads(json.dumps(job).replace("waiting", "long-run"))
    found["metadata"]["name"] = "long-run"
    found["spec"]["mode"] = "Off"
    container = found["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"][0]
    longer = ("--steps=5000", "--step-seconds=0.2")
    container["args"] = [a for a in container["args"] if not a.startswith(("--steps=", "--step-seconds="))]
    container["args"] += longer
    return found


def pods_of(cluster: Cluster, job: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    """A job's training pods by uid: phase, and how often each container was restarted."""
    label = f"evalstop.dev/job={job['metadata']['name']},evalstop.dev/component=workload"
    return {
        pod["metadata"]["uid"]: (
            pod["status"]["phase"],
            [c["restartCount"] for c in pod["status"].get("containerStatuses", ())],
        )
        for pod in cluster.get("pods", "-n", SPACE, "-l", label)["items"]
    }


LIST_FILES = """
import hashlib, json, pathlib
root = pathlib.Path("/retained")
files = (path for path in root.rglob("*") if path.is_file())
found = {f"/retained/{p.relative_to(root)}": hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
print(json.dumps(found))
"""


def retained_files(cluster: Cluster, job: dict[str, Any]) -> dict[str, str]:
    """Digests of all files on the claim of retained checkpoints, read by a pod that mounts it where an access
    pod does: statuses name paths so."""
    template = job["spec"]["workload"]["template"]["spec"]["template"]["spec"]
    keep = ("image", "securityContext")
    container = {key: value for key, value in template["containers"][0].items() if key in keep}
    container |= {"name": "list", "command": ["python", "-c", LIST_FILES]}
    container["volumeMounts"] = [{"name": "kept", "mountPath": "/retained", "readOnly": True}]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "list-retained", "namespace": SPACE},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": template["securityContext"],
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "volumes": [{"name": "kept", "persistentVolumeClaim": {"claimName": "retained"}}],
        },
    }
    cluster.apply([pod])

    def phase() -> str:
        found = str(cluster.get("pod", "list-retained", "-n", SPACE)["status"].get("phase"))
        return found if found in ("Succeeded", "Failed") else ""

    ended = until("the pod that lists what is retained", phase, 90)
    said = cluster.kubectl("logs", "list-retained", "-n", SPACE)
    assert ended == "Succeeded", said
    cluster.kubectl("delete", "pod", "list-retained", "-n", SPACE, "--wait")
    files: dict[str, str] = json.loads(said)
    return files


def names_of(cluster: Cluster, kind: str) -> set[str]:
    return {o["metadata"]["name"] for o in cluster.get(kind, "-n", SPACE)["items"]}
