"""The chart installed by a real Helm: what runs there runs under exactly the rights that the chart gives.

The tests build on each other, in their order: installed, run, looked at, changed, taken away.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import gzip
import json
import re
import shlex
import shutil
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from installed import SPACE, Dashboard, may, meet_conflicts
from rendering import NAMESPACE, Object, named, render, rules

from controller.operator.state import run_configmap
from controller.policy.job.record import RunFile
from deploy.helm.cluster import RELEASE, ChartCluster, until
from deploy.helm.local import LOCAL, POOL, POOL_LABEL
from deploy.local.demo import cast as casting
from deploy.local.demo.facts import Role
from deploy.local.errors import PlaneError
from deploy.local.helm.client import Helm
from deploy.local.plane import Plane
from tests.support.audit_log import AuditLog, Right


def hurried(job: Any, gpus: int, **options: str) -> dict[str, Any]:
    """A sample job at many times its pace, its two pods with so many GPUs each.

    It keeps as many checkpoints as it makes: of eight the best one would be gone four seconds after it was
    written, which between two scrapes is a matter of luck.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(job))
    changed["metadata"]["namespace"] = SPACE
    template = changed["spec"]["workload"]["template"]["spec"]
    container = template["template"]["spec"]["containers"][0]
    faster = {"--step-seconds": "0.05", "--linger-seconds": "6", "--keep": "41", **options}
    container["args"] = [
        f"{word.partition('=')[0]}={faster.get(word.partition('=')[0], word.partition('=')[2])}"
        for word in container["args"]
    ]
    changed["spec"]["gang"]["gpusPerReplica"] = gpus
    container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    return changed


@pytest.fixture(scope="module")
def jobs(cluster: ChartCluster) -> dict[Role, dict[str, Any]]:
    """Sample jobs, each of which takes every GPU that there is."""
    nodes = cluster.get("nodes", "-l", f"{POOL_LABEL}={POOL['name']}")["items"]
    gpus = sum(int(node["status"]["allocatable"]["nvidia.com/gpu"]) for node in nodes)
    scenes = casting.load(namespace=SPACE)
    # None of them ends by itself before a busy cluster has stopped it.
    long = {"--steps": "4000"}
    found = {role: hurried(job, gpus // 2, **long) for job, role in scenes.jobs if role is not Role.WAITING}
    # Far below its best the score goes up and down by much. On a busy machine the copy takes many evals, and
    # consecutive declines would be over by its end: the stop is taken back then, and again.
    found[Role.OVER_OPTIMISING]["spec"]["stopRule"] = {"drawdown": {"maxDrop": "1"}}
    short = {"--steps": "60", "--linger-seconds": "3"}
    return found | {
        role: hurried(job, gpus // 2, **short) for job, role in scenes.jobs if role is Role.WAITING
    }


def test_installed_and_the_notes_say_what_comes_next(
    cluster: ChartCluster, notes: str, values: dict[str, Any]
) -> None:
    assert "STATUS: deployed" in notes
    assert f"helm -n {NAMESPACE} test {RELEASE} --logs" in notes
    assert "Pools of your values: research." in notes
    stanza = "urlPrefix: https://evalstop-extender.evalstop-system.svc:8443"
    assert (stanza in notes) != ("scheduler" in values), "it is printed for whoever has no second scheduler"
    renewal = "Alert EvalStopCertificateExpires (certificate: client) says so fourteen days before."
    assert (renewal in notes) == (stanza in notes), "with its certificate, which nobody renews"
    secret = cluster.get("secret", "evalstop-scheduler-tls", "-n", NAMESPACE)
    assert {"ca.crt", "tls.crt", "tls.key"} == set(secret["data"])
    for deployment in cluster.get("deployments", "-n", NAMESPACE)["items"]:
        assert deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"]
    pool = cluster.get("gpupool", "research")
    assert pool["spec"]["nodeSelector"] == POOL["spec"]["nodeSelector"]
    assert pool["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


def test_helm_test_looks_at_it_from_inside(cluster: ChartCluster, notes: str, values: dict[str, Any]) -> None:
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
    cluster: ChartCluster, notes: str, jobs: dict[Role, dict[str, Any]]
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


def is_true(cluster: ChartCluster, job: dict[str, Any], kind: str) -> bool:
    found = cluster.condition(SPACE, job["metadata"]["name"], kind)
    return found is not None and found["status"] == "True"


def test_every_right_that_is_given_is_used_and_every_one_that_is_used_is_given(
    own_plane: None,
    cluster: ChartCluster,
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
    say_it_again(cluster, audit, jobs[Role.WAITING])
    train_as_root(cluster, audit, jobs[Role.WAITING])
    pool, node = cluster.get("gpupool", "research"), cluster.get("node", "node-1")
    job = cluster.get("rlhfjobs", "-n", SPACE)["items"][0]
    identity = f"system:serviceaccount:{NAMESPACE}:evalstop-operator"
    kubeconfig = chart_plane.kubeconfig_for(identity, ["system:serviceaccounts", "system:authenticated"])
    asyncio.run(meet_conflicts(kubeconfig, pool, job, node))
    read_metrics(cluster)
    # A request is logged after it is answered.
    read_anew = {("evalstop.dev", "gpupools"), ("evalstop.dev", "rlhfjobs"), ("batch", "jobs"), ("", "nodes")}
    wait_for_rights(audit, {(group, resource, "get") for group, resource in read_anew})
    objects = render(helm, chart, LOCAL)
    wanted = {
        "evalstop-operator": [
            *(("ClusterRole", "evalstop-operator"), ("Role", "evalstop-leader")),
            ("Role", "evalstop-operator-groups"),
        ],
        "evalstop-extender": [("ClusterRole", "evalstop-extender"), ("Role", "evalstop-extender")],
        "evalstop-pools": [("ClusterRole", "evalstop-pools")],
        "evalstop-test": [("Role", "evalstop-test")],
    }
    for account, roles in wanted.items():
        compare(audit, account, [named(objects, kind, name) for kind, name in roles])


def read_metrics(cluster: ChartCluster) -> None:
    """Of operator and extender: for who may, with a token, and for nobody else."""
    tokens = {}
    for name in ("prometheus", "passer-by"):
        cluster.kubectl("create", "serviceaccount", name, "-n", SPACE)
        tokens[name] = cluster.kubectl("create", "token", name, "-n", SPACE).strip()
    cluster.kubectl(
        *("create", "clusterrolebinding", "prometheus-metrics", "--clusterrole=evalstop-metrics-reader"),
        f"--serviceaccount={SPACE}:prometheus",
    )
    user = f"system:serviceaccount:{SPACE}:prometheus"
    until("the binding", lambda: "yes" in cluster.kubectl("auth", "can-i", "get", "/metrics", f"--as={user}"))
    authority = base64.b64decode(secrets(cluster)["evalstop-metrics-tls"]["ca.crt"]).decode()
    for component in ("evalstop-operator", "evalstop-extender"):
        pods = cluster.get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={component}")["items"]
        at = [pod["status"]["podIP"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        for address in at:
            name = f"{component}.{NAMESPACE}.svc"
            assert scrape(address, name, authority, "")[0] == 401
            assert scrape(address, name, authority, "random")[0] == 401
            status, said = scrape(address, name, authority, tokens["passer-by"])
            assert status == 403
            assert "evalstop-metrics-reader" in said
            status, said = scrape(address, name, authority, tokens["prometheus"])
            assert status == 200
            assert "_api_calls_total" in said


def scrape(address: str, name: str, authority: str, token: str) -> tuple[int, str]:
    """Metrics of a pod, as Prometheus asks for them by the chart's ServiceMonitor."""
    context = ssl.create_default_context(cadata=authority)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    with (
        socket.create_connection((address, 8444), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=name) as wire,
    ):
        wire.sendall(f"GET /metrics HTTP/1.1\r\nHost: {name}\r\n{bearer}Connection: close\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: wire.recv(65536), b"")).decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def compare(audit: AuditLog, account: str, roles: list[Object]) -> None:
    """Hold what an account has used against its roles: each right, each name, and no further than needed."""
    given = {(group, resource, verb) for role in roles for group, resource, _, verb in rules(role)}
    used, never = audit.used(account, NAMESPACE), NEVER_ASKED_FOR.get(account, set())
    assert audit.denied(account, NAMESPACE) == set(), f"{account} asked for what it has no right to"
    assert used - given == EVERYBODYS & used, f"{account} has rights from elsewhere"
    assert given - used == never, f"{account} has rights that it never uses"
    uses = audit.uses(account, NAMESPACE)
    by_name, abroad = {(u.right, u.name) for u in uses}, {u.right for u in uses if u.namespace != NAMESPACE}
    for role in roles:
        for group, resource, name, verb in rules(role):
            right = (group, resource, verb)
            told = f"{account}: {verb} {resource}.{group} {name}"
            assert not name or (right, name) in by_name, f"{told}: never used under this name"
            wide = role["kind"] == "ClusterRole" and right not in never
            assert not wide or right in abroad, f"{told}: a Role in {NAMESPACE} would do"


# Rights that every service account has by Kubernetes' own roles.
EVERYBODYS: set[tuple[str, str, str]] = set()
# Rights over finalizers are looked at when somebody makes an object whose owner's deletion waits for it; the
# request itself names another object (the next test shows what becomes of it without).
# Applying an object that is not there yet is audited as a patch; it needs the right to create as well.
NEVER_ASKED_FOR = {
    "evalstop-operator": {
        ("evalstop.dev", "rlhfjobs/finalizers", "update"),
        ("batch", "jobs/finalizers", "update"),
        # No job of this story shares a worker group (tests/rollouts/test_rollouts_groups.py).
        *(("evalstop.dev", "workergroups", verb) for verb in ("get", "create", "delete")),
        ("evalstop.dev", "workergroups/status", "patch"),
        ("evalstop.dev", "workergroups/finalizers", "update"),
    },
    "evalstop-pools": {("evalstop.dev", "gpupools", "create")},
}


def find_a_name_taken(cluster: ChartCluster, audit: AuditLog, job: dict[str, Any]) -> None:
    """A ConfigMap of the name that the operator gives its own: it looks, does not touch it, and says so."""
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "clash-run", "namespace": SPACE}}
    clash = copy.deepcopy(job) | {"metadata": {"name": "clash", "namespace": SPACE}}
    clash["spec"]["checkpoints"]["location"]["volumeClaim"]["path"] = "/clash"  # no two jobs share a folder
    cluster.apply([mine, clash])
    wait_for_rights(audit, {("", "configmaps", "get")})

    def told() -> bool:
        found = cluster.get("events", "-n", SPACE, "--field-selector=involvedObject.name=clash")["items"]
        return any(event["reason"] == "ActionRefused" for event in found)

    until("the operator to say that the name is taken", told)
    assert "data" not in cluster.get("configmap", "clash-run", "-n", SPACE)
    cluster.kubectl("delete", "rlhfjob", "clash", "-n", SPACE)


def say_it_again(cluster: ChartCluster, audit: AuditLog, job: dict[str, Any]) -> None:
    """The operator's next life finds what the former one has said, and counts it there."""
    closed = copy.deepcopy(cluster.get("gpupool", POOL["name"]))
    nowhere = [{"key": "no", "value": "node"}]
    spec = closed["spec"] | {"nodeSelector": nowhere, "allowedNamespaces": [{"name": "elsewhere"}]}
    closed = {key: closed[key] for key in ("apiVersion", "kind")} | {
        "metadata": {"name": "closed"},
        "spec": spec,
    }
    astray = copy.deepcopy(job) | {"metadata": {"name": "astray", "namespace": SPACE}}
    astray["spec"]["checkpoints"]["location"]["volumeClaim"]["path"] = "/astray"

    def put(pool: str, reason: str) -> None:
        astray["spec"]["pool"] = pool
        cluster.apply([astray])
        until(f"the operator to say {reason}", lambda: _accepted(cluster, "astray") == reason)

    cluster.apply([closed])
    put("nowhere", "PoolNotFound")
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=evalstop-operator")
    put("closed", "NamespaceNotAllowed")
    put("nowhere", "PoolNotFound")
    wait_for_rights(audit, {("", "events", "patch")})
    cluster.kubectl("delete", "rlhfjob", "astray", "-n", SPACE)
    cluster.kubectl("delete", "gpupool", "closed")


def _accepted(cluster: ChartCluster, name: str) -> str:
    """Return the reason of a job's condition Accepted."""
    conditions = cluster.get("rlhfjob", name, "-n", SPACE).get("status", {}).get("conditions", ())
    return next((str(one["reason"]) for one in conditions if one["type"] == "Accepted"), "")


def train_as_root(cluster: ChartCluster, audit: AuditLog, job: dict[str, Any]) -> None:
    """Access pods as root pass only where the namespace lets them: the operator looks at its label."""
    rooted = copy.deepcopy(job) | {"metadata": {"name": "rooted", "namespace": SPACE}}
    rooted["spec"]["checkpoints"]["location"]["volumeClaim"]["path"] = "/rooted"
    pod = rooted["spec"]["workload"]["template"]["spec"]["template"]["spec"]
    pod["securityContext"] = {"runAsUser": 0}
    cluster.apply([rooted])
    wait_for_rights(audit, {("", "namespaces", "get")})
    cluster.kubectl("delete", "rlhfjob", "rooted", "-n", SPACE)


def resume(cluster: ChartCluster, audit: AuditLog, job: dict[str, Any]) -> None:
    """The stopped run goes on from its best checkpoint; where that is, its trainer reads in its ConfigMap.

    At first a quota refuses the pod of the access Job that brings it back, and the operator says why.
    """
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": SPACE}}
    cluster.apply([{**quota, "spec": {"hard": {"pods": "0"}}}])
    wanted = json.dumps({"spec": {"resume": {"id": "once-more", "from": "Best"}}})
    cluster.kubectl("patch", "rlhfjob", job["metadata"]["name"], "-n", SPACE, "--type=merge", "-p", wanted)
    wait_for_rights(audit, {("", "events", "list")})

    def told() -> bool:
        found = cluster.condition(SPACE, job["metadata"]["name"], "Resumed")
        return found is not None and found["reason"] == "AccessJobRefused" and "quota" in found["message"]

    until("the refusal of the access Job's pod to be told", told)
    cluster.kubectl("delete", "resourcequota", "none", "-n", SPACE)
    wait_for_rights(audit, {("", "configmaps", "patch")})


def wait_for_rights(audit: AuditLog, rights: set[Right], account: str = "evalstop-operator") -> None:
    until(f"{account} to use {rights}", lambda: rights <= audit.used(account, NAMESPACE), 120)


def wake_a_parked_pod(cluster: ChartCluster) -> None:
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
    words = "0/2 nodes are available: 2 evalstop: GPUs of a/b reserved for c/d until 2026-01-01T00:00:00Z."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    patch = json.dumps({"status": {"conditions": [condition]}})

    def touched() -> bool:
        # Again and again: the scheduler may have its own say of the pod after the first.
        cluster.kubectl(
            "patch", "pod", "parked", "-n", SPACE, "--subresource=status", "--type=merge", "-p", patch
        )
        mine = cluster.get("csistoragecapacities", "evalstop-wake", "-n", NAMESPACE)["metadata"]
        return "evalstop.dev/retry" in (mine.get("annotations") or {})

    until("the extender to touch its own object, so that kube-scheduler tries the pod again", touched, 60)
    cluster.kubectl("delete", "pod", "parked", "-n", SPACE, "--wait=false")


def test_the_dashboard_shows_viewers_what_they_may_see_by_rights_that_it_uses(
    own_plane: None,
    cluster: ChartCluster,
    audit: AuditLog,
    helm: Helm,
    chart: Path,
    jobs: dict[Role, dict[str, Any]],
) -> None:
    """A viewer and one without rights, each with a real token; then the log of it against its roles."""
    dashboard, given = Dashboard(cluster), {**LOCAL, **Dashboard.VALUES, "pools": []}
    cluster.install(given)
    assert dashboard.ask("/view/jobs")[0] == 401
    status, text = dashboard.ask("/view/jobs", dashboard.token("stranger"))
    assert status == 403
    assert f"system:serviceaccount:{SPACE}:stranger" in text
    token = dashboard.token("viewer", "view")
    status, text = dashboard.ask("/view/jobs", token)
    assert status == 200
    kubectl = cluster.kubectl
    assert dashboard.ask("/view/jobs", kubectl("create", "token", "viewer", "-n", SPACE).strip())[0] == 401, (
        "a token for the API server itself was taken"
    )
    assert f"{SPACE}/{jobs[Role.OVER_OPTIMISING]['metadata']['name']}" in text
    rendered = render(helm, chart, given)
    roles = [named(rendered, kind, "evalstop-dashboard") for kind in ("ClusterRole", "Role")]
    rights = {(group, resource, verb) for role in roles for group, resource, _, verb in rules(role)}
    wait_for_rights(audit, rights, "evalstop-dashboard")
    compare(audit, "evalstop-dashboard", roles)
    # The next upgrade is without it, and takes it away.


def test_a_pool_cannot_be_applied_anew_without_the_right_to_create(cluster: ChartCluster, notes: str) -> None:
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
    own_plane: None, cluster: ChartCluster, helm: Helm, chart: Path
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
    child = run_configmap.manifest({"metadata": {**owner["metadata"], "name": "owned"}}, RunFile())
    operator = f"--as=system:serviceaccount:{NAMESPACE}:evalstop-operator"
    ask = ("create", "--dry-run=server", "-f", "-")
    cluster.kubectl(*ask, operator, stdin=json.dumps(child))
    until("the lesser role", lambda: may(cluster, "less", "create", "configmaps"))
    with pytest.raises(PlaneError, match="cannot set blockOwnerDeletion"):
        cluster.kubectl(*ask, "--as=less", stdin=json.dumps(child))


def test_an_upgrade_keeps_certificates_renews_them_in_time_and_takes_new_pools(
    cluster: ChartCluster, notes: str, values: dict[str, Any]
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
    assert (
        set(after) == set(before) == {f"evalstop-{name}-tls" for name in ("extender", "scheduler", "metrics")}
    )
    for name, now in after.items():
        assert now["tls.crt"] != before[name]["tls.crt"]
        # Signed by an authority whose key nobody has any more, and pods restart one after the other: for so
        # long the one before counts, too, and no third one.
        old, both = (base64.b64decode(found["ca.crt"]) for found in (before[name], now))
        assert both.endswith(old)
        assert both.count(b"BEGIN CERTIFICATE") == 2
        assert now["ca.crt"] == after["evalstop-metrics-tls"]["ca.crt"]
    again = copy.deepcopy(changed)
    again["extender"] = {**again.get("extender", {}), "certificates": {"hosts": ["elsewhere.example"]}}
    cluster.install(again)
    third = base64.b64decode(secrets(cluster)["evalstop-extender-tls"]["ca.crt"])
    assert third.count(b"BEGIN CERTIFICATE") == 2


def test_helms_record_of_the_release_can_sign_nothing(cluster: ChartCluster, notes: str) -> None:
    """Whoever reads it has the keys of these pods, and no more: not one of the extender's authority."""
    found = cluster.get("secrets", "-n", NAMESPACE, "-l", "owner=helm")["items"]
    assert found
    authorities = [
        authority.public_key()
        for data in secrets(cluster).values()
        for authority in x509.load_pem_x509_certificates(base64.b64decode(data["ca.crt"]))
    ]
    for release in found:
        packed = base64.b64decode(base64.b64decode(release["data"]["release"]))
        manifest = json.loads(gzip.decompress(packed))["manifest"]
        keys = [base64.b64decode(key) for key in re.findall(r"tls\.key: (\S+)", manifest)]
        assert keys
        assert "evalstop-extender-ca" not in manifest
        for key in keys:
            assert serialization.load_pem_private_key(key, None).public_key() not in authorities


def secrets(cluster: ChartCluster) -> dict[str, dict[str, str]]:
    found = cluster.get("secrets", "-n", NAMESPACE, "-l", "app.kubernetes.io/part-of=evalstop")["items"]
    return {o["metadata"]["name"]: o["data"] for o in found}


def test_a_second_release_is_refused_and_says_where_the_first_is(
    cluster: ChartCluster, notes: str, chart: Path
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
    cluster: ChartCluster, notes: str, values: dict[str, Any], version: str, given: dict[str, Any], words: str
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


def test_definitions_applied_by_hand_tell_the_chart_their_version(
    cluster: ChartCluster, notes: str, values: dict[str, Any], repository: Path
) -> None:
    """As the refusal advises: with `crds.install=false` the chart is let over them from then on."""
    label = ("label", "crd", "gpupools.evalstop.dev", "--overwrite", "app.kubernetes.io/version=0.0.9")
    cluster.kubectl(*label)
    given = values | {"crds": {"install": False}}
    with pytest.raises(PlaneError, match=r"apply --server-side --force-conflicts -f crds`"):
        cluster.install(given, "--dry-run=server")
    advice = ("apply", "--server-side", "--force-conflicts", "-f", str(repository / "crds"))
    cluster.kubectl(*advice)
    cluster.install(given, "--dry-run=server")


def test_a_decision_log_of_two_replicas_needs_a_claim_for_several_nodes(
    cluster: ChartCluster, notes: str, values: dict[str, Any]
) -> None:
    claim: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }
    several, single = ["ReadWriteOnce", "ReadWriteMany"], ["ReadWriteOnce"]
    for name, modes in (("decisions-several", several), ("decisions-single", single)):
        metadata = {"name": name, "namespace": NAMESPACE}
        cluster.apply([claim | {"metadata": metadata, "spec": claim["spec"] | {"accessModes": modes}}])

    def ask(name: str, replicas: int) -> str:
        log = {"decisionLog": {"existingClaim": name}, "replicas": replicas}
        return cluster.install(values | {"operator": values["operator"] | log}, "--dry-run=server")

    with pytest.raises(PlaneError) as caught:
        ask("decisions-single", 2)
    told = "operator.replicas is 2, and operator.decisionLog.existingClaim names claim"
    assert f"{told} {NAMESPACE}/decisions-single" in str(caught.value)
    assert "(accessModes: ReadWriteOnce)" in str(caught.value)
    assert "Set operator.replicas to 1, or name a claim with accessMode ReadWriteMany." in str(caught.value)
    for name, replicas in (("decisions-single", 1), ("decisions-several", 2)):
        assert "STATUS: pending-upgrade" in ask(name, replicas)
    cluster.kubectl("delete", "pvc", "decisions-single", "decisions-several", "-n", NAMESPACE)


def test_older_definitions_are_brought_up_to_date(
    cluster: ChartCluster, notes: str, values: dict[str, Any]
) -> None:
    """A field that an older definition lacks is there after an upgrade; Helm's crds/ folder has no such."""
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/gangTimeoutSeconds"
    patch = json.dumps([{"op": "remove", "path": path}])
    cluster.kubectl("patch", "crd", "gpupools.evalstop.dev", "--type=json", "-p", patch)
    cluster.install(values, "--force")
    crd = cluster.get("crd", "gpupools.evalstop.dev")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "gangTimeoutSeconds" in schema["properties"]["spec"]["properties"]


@pytest.fixture(scope="module")
def long_running(cluster: ChartCluster, jobs: dict[Role, dict[str, Any]]) -> dict[str, Any]:
    """A job that trains while the chart is upgraded, and when it is taken away."""
    runs = long_run(jobs[Role.WAITING])
    cluster.apply([runs])
    until("the long run", lambda: is_true(cluster, runs, "Running"), 150)
    until("its pods to run", lambda: set(pods_of(cluster, runs).values()) == {("Running", (0,))})
    return runs


@pytest.mark.timeout(420)
def test_the_documented_upgrade_keeps_what_was_set_and_the_pods_of_running_jobs(
    cluster: ChartCluster,
    notes: str,
    long_running: dict[str, Any],
    chart: Path,
    repository: Path,
    tmp_path: Path,
) -> None:
    """The command of docs/operate/install.md, to a chart of another version and with another default."""
    newer = tmp_path / "evalstop"
    shutil.copytree(chart, newer)
    for name, old, new in (
        ("Chart.yaml", "\nversion: 0.1.0\n", "\nversion: 0.1.1\n"),
        ("values.yaml", "  weight: 10\n", "  weight: 11\n"),
    ):
        text = (newer / name).read_text()
        assert text.count(old) == 1
        (newer / name).write_text(text.replace(old, new))
    page = (repository / "docs" / "operate" / "install.md").read_text()
    told = re.findall(r"^    (helm upgrade evalstop .* --wait)$", page, re.MULTILINE)
    (command,) = told
    before, training = helm_values(cluster), pods_of(cluster, long_running)
    assert before["operator"]["settings"]["foreignSeconds"] == 1, "nothing was set at install"
    old = uids(cluster, "evalstop-operator")
    words = [str(newer) if word == "deploy/helm/evalstop" else word for word in shlex.split(command)[1:]]
    cluster.helm(*words, "--timeout=180s", timeout_s=240)
    assert helm_values(cluster) == before
    deployment = cluster.get("deployment", "evalstop-operator", "-n", NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "EVALSTOP_FOREIGN_SECONDS", "value": "1"} in container["env"]
    assert deployment["metadata"]["labels"]["helm.sh/chart"] == "evalstop-0.1.1"
    asks = cluster.get("configmap", "evalstop-scheduler", "-n", NAMESPACE)["data"]["config.yaml"]
    assert yaml.safe_load(asks)["extenders"][0]["weight"] == 11, "a new default did not arrive"
    until("the new operator alone", lambda: not uids(cluster, "evalstop-operator") & old)
    assert pods_of(cluster, long_running) == training
    assert is_true(cluster, long_running, "Running")


def helm_values(cluster: ChartCluster) -> Any:
    """What was set, as Helm keeps it."""
    told = cluster.helm("get", "values", RELEASE, "--namespace", NAMESPACE, "--output=json")
    return json.loads(told)


def uids(cluster: ChartCluster, component: str) -> set[str]:
    """The pods of a component of the chart."""
    found = cluster.get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={component}")["items"]
    return {pod["metadata"]["uid"] for pod in found}


@pytest.mark.timeout(420)
def test_uninstalling_leaves_jobs_definitions_pools_and_checkpoints(
    cluster: ChartCluster,
    notes: str,
    values: dict[str, Any],
    jobs: dict[Role, dict[str, Any]],
    long_running: dict[str, Any],
) -> None:
    training, kept = pods_of(cluster, long_running), retained_files(cluster, long_running)
    before = {kind: names_of(cluster, kind) for kind in ("rlhfjobs", "jobs", "pvc")}
    assert all(before.values())
    stopped = cluster.get("rlhfjob", jobs[Role.OVER_OPTIMISING]["metadata"]["name"], "-n", SPACE)["status"]
    copies = [copy["path"] for copy in stopped["retained"]]
    assert copies
    assert [c for c in copies if not any(file.startswith(f"{c}/") for file in kept)] == []
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=60s")
    until("the operator to be gone", lambda: not uids(cluster, "evalstop-operator"))
    assert {kind: names_of(cluster, kind) for kind in ("rlhfjobs", "jobs", "pvc")} == before
    assert pods_of(cluster, long_running) == training
    assert retained_files(cluster, long_running) == kept
    assert names_of(cluster, "gpupools") == {"research"}
    assert {"rlhfjobs.evalstop.dev", "gpupools.evalstop.dev"} <= names_of(cluster, "crd")
    with contextlib.suppress(PlaneError):
        until("the rest of the release to be gone", lambda: left(cluster) == LEFT)
    assert left(cluster) == LEFT
    lose_a_pod(cluster, long_running, replaced="scheduler" not in values)
    training = pods_of(cluster, long_running)
    again = cluster.install(values)  # the same release takes up what it left
    assert "STATUS: deployed" in again
    assert pods_of(cluster, long_running).keys() == training.keys()
    cluster.kubectl("delete", "rlhfjob", long_running["metadata"]["name"], "-n", SPACE)


# What is left beside definitions, pools and jobs (docs/operate/install.md); running workloads name the class.
LEFT = {"PriorityClass evalstop-rlhf", "Pod evalstop-test", "Lease evalstop-operator"}


def left(cluster: ChartCluster) -> set[str]:
    """The release's objects that are there beside definitions, and its Leases but kube-scheduler's own."""
    of_cluster = (
        "clusterroles,clusterrolebindings,priorityclasses,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    of_release = "all,secrets,serviceaccounts,roles,rolebindings,configmaps,leases,networkpolicies,pdb"
    listed = cluster.get(of_cluster)["items"] + cluster.get(of_release, "-n", NAMESPACE)["items"]
    ours = [
        o
        for o in listed
        if o["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == RELEASE
        or o["kind"] == "Lease"
    ]
    return {f"{o['kind']} {o['metadata']['name']}" for o in ours} - {"Lease evalstop-scheduler"}


def lose_a_pod(cluster: ChartCluster, job: dict[str, Any], replaced: bool) -> None:
    """A pod of a workload goes, as with its node: the Job controller's new one is let in, and runs where its
    kube-scheduler is still there (``replaced``)."""
    label = f"evalstop.dev/job={job['metadata']['name']},evalstop.dev/component=workload"
    before = cluster.get("pods", "-n", SPACE, "-l", label)["items"]
    cluster.kubectl("delete", "pod", before[0]["metadata"]["name"], "-n", SPACE, "--wait")
    known = {pod["metadata"]["uid"] for pod in before}

    def new() -> Any:
        pods = cluster.get("pods", "-n", SPACE, "-l", label)["items"]
        return next((pod for pod in pods if pod["metadata"]["uid"] not in known), None)

    pod = until("the pod in its place", new)
    assert pod["spec"]["priorityClassName"] == "evalstop-rlhf"
    if replaced:
        until("the pod in its place to run", lambda: new()["status"]["phase"] == "Running")


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


def pods_of(cluster: ChartCluster, job: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A job's training pods by uid: phase, and how often each container was restarted."""
    label = f"evalstop.dev/job={job['metadata']['name']},evalstop.dev/component=workload"
    return {
        pod["metadata"]["uid"]: (
            pod["status"]["phase"],
            tuple(c["restartCount"] for c in pod["status"].get("containerStatuses", ())),
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


def retained_files(cluster: ChartCluster, job: dict[str, Any]) -> dict[str, str]:
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


def names_of(cluster: ChartCluster, kind: str) -> set[str]:
    return {o["metadata"]["name"] for o in cluster.get(kind, "-n", SPACE)["items"]}
