"""The golden table of rights: what each needs at most, and the nearest thing beyond, asked of the server.

`kubectl auth can-i` sees no admission, so writes are dry runs under the account itself. Admission sees no
reads, so of reads the authorizer's word is all there is. Every right that a role of ours gives has a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from policies_rows import ROWS, Row, asked, changed
from policies_scene import GROUP, OPERATOR, SYSTEM, TEAM, WORKERS, Scene, path

from controller import names

ROOT = Path(__file__).resolve().parents[2]
Right = tuple[str, str, str]  # group, resource with subresource, verb
EXTENDER, DASHBOARD = (
    f"system:serviceaccount:{SYSTEM}:evalstop-{part}" for part in ("extender", "dashboard")
)
ROLES = {
    OPERATOR: (
        "deploy/manifests/rbac.yaml",
        {"evalstop-operator", "evalstop-operator-groups", "evalstop-leader"},
    ),
    EXTENDER: ("deploy/extender/rbac.yaml", {"evalstop-extender"}),
    DASHBOARD: ("deploy/dashboard/dashboard.yaml", {"evalstop-dashboard"}),
}


def granted(account: str) -> set[Right]:
    file, roles = ROLES[account]
    return {
        (group, resource, verb)
        for role in yaml.safe_load_all((ROOT / file).read_text())
        if role["kind"] in ("Role", "ClusterRole") and role["metadata"]["name"] in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def row(policy: str, name: str) -> Row:
    (found,) = [r for r in ROWS if (r.policy, r.name) == (policy, name)]
    return found


class Dry(NamedTuple):
    """A request that is made, dry."""

    method: str
    where: str
    body: Any


def lease(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"leaseDurationSeconds": 15},
    }


def leases(name: str = "", namespace: str = SYSTEM) -> str:
    return path("leases", name, namespace)


def wake(name: str) -> Dry:
    body = {"metadata": {"annotations": {"evalstop.dev/retry": "1"}}}
    return Dry("PATCH", path("csistoragecapacities", name, SYSTEM), body)


_REVIEWS = "/apis/authorization.k8s.io/v1"
_TOKENS = "/apis/authentication.k8s.io/v1"
_ACCESS = {"user": "alice", "resourceAttributes": {"verb": "get", "resource": "pods"}}
_STATUS = {"status": {"summary": "Queued"}}
# What is written: (right of account) -> the widest that is needed, the nearest beyond.
WRITES: dict[tuple[str, Right], tuple[Row | Dry, Row | Dry]] = {
    (OPERATOR, (names.GROUP, "rlhfjobs", "patch")): (
        row("operator-rlhfjobs", "the finalizer"),
        row("operator-rlhfjobs", "the spec"),
    ),
    (OPERATOR, (names.GROUP, "rlhfjobs/status", "patch")): (
        Dry("PATCH", path("rlhfjobs/status", "run"), _STATUS),
        Dry("DELETE", path("rlhfjobs", "run"), None),
    ),
    (OPERATOR, (names.GROUP, "gpupools/status", "patch")): (
        Dry("PATCH", path("gpupools/status", "research"), {"status": {}}),
        Dry("PATCH", path("gpupools", "research"), {"spec": {"modeCap": "Off"}}),
    ),
    (OPERATOR, (names.GROUP, "workergroups", "create")): (
        row("operator-workergroups", "a group"),
        Dry("POST", path("workergroups"), changed(GROUP, metadata__namespace=TEAM)),
    ),
    (OPERATOR, (names.GROUP, "workergroups", "delete")): (
        Dry("DELETE", path("workergroups", "wg-1", WORKERS), None),
        Dry("DELETE", path("workergroups", "wg-1"), None),
    ),
    (OPERATOR, (names.GROUP, "workergroups/status", "patch")): (
        Dry("PATCH", path("workergroups/status", "wg-1", WORKERS), {"status": {}}),
        Dry("PATCH", path("workergroups", "wg-1", WORKERS), {"spec": {"replicas": 2}}),
    ),
    (OPERATOR, ("batch", "jobs", "create")): (
        row("operator-jobs", "a workload"),
        row("operator-jobs", "a privileged pod on a node"),
    ),
    (OPERATOR, ("batch", "jobs", "patch")): (
        row("operator-job-changes", "start and place"),
        row("operator-job-changes", "a deadline"),
    ),
    (OPERATOR, ("batch", "jobs", "delete")): (
        row("operator-jobs", "delete an access Job"),
        row("operator-jobs", "delete a stranger's"),
    ),
    (OPERATOR, ("batch", "jobs/status", "patch")): (
        row("operator-job-status", "forget a start"),
        row("operator-job-status", "a start"),
    ),
    (OPERATOR, ("", "nodes", "patch")): (
        row("operator-nodes", "the pool's taint"),
        row("operator-nodes", "labels of nodes"),
    ),
    (OPERATOR, ("", "configmaps", "create")): (
        row("operator-configmaps", "a run file"),
        row("operator-configmaps", "another name"),
    ),
    (OPERATOR, ("", "configmaps", "patch")): (
        row("operator-configmaps", "the run file"),
        row("operator-configmaps", "another key of it"),
    ),
    (OPERATOR, ("", "events", "create")): (
        row("operator-events", "about an RLHFJob"),
        row("operator-events", "about a pod"),
    ),
    (OPERATOR, ("", "events", "patch")): (
        row("operator-events", "once more"),
        row("operator-events", "another message"),
    ),
    (OPERATOR, ("coordination.k8s.io", "leases", "create")): (
        Dry("POST", leases(), lease("another", SYSTEM)),
        Dry("POST", leases(namespace="kube-system"), lease("evalstop-operator", "kube-system")),
    ),
    (OPERATOR, ("coordination.k8s.io", "leases", "patch")): (
        Dry("PATCH", leases("evalstop-operator"), {"spec": {"holderIdentity": "x"}}),
        Dry("PATCH", leases("evalstop-scheduler"), {"spec": {"holderIdentity": "x"}}),
    ),
    (OPERATOR, ("kueue.x-k8s.io", "workloads", "patch")): (
        row("operator-workloads", "switched off"),
        row("operator-workloads", "another queue"),
    ),
    (OPERATOR, ("kueue.x-k8s.io", "workloads/status", "patch")): (
        row("operator-workload-status", "an answer"),
        row("operator-workload-status", "an admission"),
    ),
    (OPERATOR, ("kueue.x-k8s.io", "admissionchecks/status", "patch")): (
        row("operator-admissioncheck-status", "who answers"),
        row("operator-admissioncheck-status", "another's"),
    ),
    (EXTENDER, ("storage.k8s.io", "csistoragecapacities", "patch")): (
        wake("evalstop-wake"),
        wake("theirs"),
    ),
    **{
        (account, ("authentication.k8s.io", "tokenreviews", "create")): (
            Dry("POST", f"{_TOKENS}/tokenreviews?dryRun=All", {"spec": {"token": "x"}}),
            Dry(
                "POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/default/token?dryRun=All", {"spec": {}}
            ),
        )
        for account in ROLES
    },
    **{
        (account, ("authorization.k8s.io", "subjectaccessreviews", "create")): (
            Dry("POST", f"{_REVIEWS}/subjectaccessreviews?dryRun=All", {"spec": _ACCESS}),
            Dry(
                "POST",
                f"{_REVIEWS}/namespaces/{TEAM}/localsubjectaccessreviews?dryRun=All",
                changed({"spec": _ACCESS}, metadata__namespace=TEAM),
            ),
        )
        for account in ROLES
    },
}
# What is read, or asked of the authorizer alone (who may block whose deletion): the nearest beyond.
READS: dict[Right, Right] = {
    (names.GROUP, "rlhfjobs", "get"): (names.GROUP, "rlhfjobs", "create"),
    (names.GROUP, "rlhfjobs", "list"): (names.GROUP, "rlhfjobs", "deletecollection"),
    (names.GROUP, "rlhfjobs", "watch"): (names.GROUP, "rlhfjobs", "delete"),
    (names.GROUP, "gpupools", "get"): (names.GROUP, "gpupools", "create"),
    (names.GROUP, "gpupools", "list"): (names.GROUP, "gpupools", "patch"),
    (names.GROUP, "gpupools", "watch"): (names.GROUP, "gpupools", "delete"),
    (names.GROUP, "rlhfjobs/finalizers", "update"): (names.GROUP, "gpupools/finalizers", "update"),
    (names.GROUP, "workergroups", "get"): (names.GROUP, "workergroups", "patch"),
    (names.GROUP, "workergroups", "list"): (names.GROUP, "workergroups", "deletecollection"),
    (names.GROUP, "workergroups", "watch"): (names.GROUP, "workergroups", "update"),
    (names.GROUP, "workergroups/finalizers", "update"): (names.GROUP, "gpupools/finalizers", "update"),
    ("batch", "jobs/finalizers", "update"): ("batch", "cronjobs/finalizers", "update"),
    ("batch", "jobs", "get"): ("batch", "cronjobs", "get"),
    ("batch", "jobs", "list"): ("batch", "jobs", "deletecollection"),
    ("batch", "jobs", "watch"): ("batch", "jobs", "update"),
    ("scheduling.k8s.io", "priorityclasses", "get"): ("scheduling.k8s.io", "priorityclasses", "list"),
    ("", "pods", "list"): ("", "pods/exec", "create"),
    ("", "pods", "watch"): ("", "pods/log", "get"),
    ("", "nodes", "get"): ("", "nodes/proxy", "get"),
    ("", "nodes", "list"): ("", "nodes", "deletecollection"),
    ("", "nodes", "watch"): ("", "nodes", "delete"),
    ("", "configmaps", "get"): ("", "secrets", "get"),
    ("", "configmaps", "list"): ("", "secrets", "list"),
    ("", "configmaps", "watch"): ("", "configmaps", "delete"),
    ("", "persistentvolumeclaims", "get"): ("", "persistentvolumes", "get"),
    ("", "namespaces", "get"): ("", "namespaces", "list"),
    ("", "events", "list"): ("", "events", "watch"),
    ("resource.k8s.io", "resourceclaims", "list"): ("resource.k8s.io", "resourceclaims", "get"),
    ("resource.k8s.io", "resourceclaims", "watch"): ("resource.k8s.io", "resourceclaims", "patch"),
    ("resource.k8s.io", "resourceslices", "list"): ("resource.k8s.io", "deviceclasses", "list"),
    ("resource.k8s.io", "resourceslices", "watch"): ("resource.k8s.io", "resourceslices", "delete"),
    ("coordination.k8s.io", "leases", "get"): ("coordination.k8s.io", "leases", "list"),
    **{
        ("kueue.x-k8s.io", kind, verb): ("kueue.x-k8s.io", kind, beyond)
        for kind in ("admissionchecks", "resourceflavors", "clusterqueues", "localqueues", "workloads")
        for verb, beyond in (("get", "create"), ("list", "deletecollection"), ("watch", "delete"))
    },
}


def lines() -> Iterator[tuple[str, Right]]:
    for account in ROLES:
        for right in sorted(granted(account)):
            yield account, right


def called(value: object) -> str:
    if isinstance(value, str):
        return value.rpartition("-")[2]
    group, resource, verb = value  # type: ignore[misc]
    return f"{verb} {resource}.{group}"


@pytest.fixture(scope="module", autouse=True)
def objects(guarded: Scene) -> None:
    spec = {"nodeSelector": [{"key": "gpu", "value": "a100"}], "allowedNamespaces": [{"name": "*"}]}
    pool = {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": "research"},
        "spec": spec,
    }
    guarded.apply(pool, lease("evalstop-operator", SYSTEM), lease("evalstop-scheduler", SYSTEM))


@pytest.mark.parametrize(("account", "right"), list(lines()), ids=called)
def test_each_right_reaches_as_far_as_it_is_needed_and_no_further(
    guarded: Scene, account: str, right: Right
) -> None:
    if right in READS and (account, right) not in WRITES:
        assert allowed(guarded, account, right)
        assert not allowed(guarded, account, READS[right])
        return
    assert (account, right) in WRITES, "this right has no line: what needs it at most, what is just beyond?"
    needed, beyond = WRITES[account, right]
    assert said(guarded, account, needed) == ""
    refused = said(guarded, account, beyond)
    assert refused.startswith(("403", "422")), refused
    assert "forbidden" in refused.lower() or "denied" in refused, refused


def said(scene: Scene, account: str, what: Row | Dry) -> str:
    if isinstance(what, Row):
        return scene.refusal(account, what.method, asked(what), what.body(scene))
    return scene.refusal(account, what.method, what.where, what.body)


def allowed(scene: Scene, account: str, right: Right) -> bool:
    group, resource, verb = right
    plural, _, subresource = resource.partition("/")
    about = {"group": group, "resource": plural, "subresource": subresource, "verb": verb}
    if plural == "workergroups":
        about["namespace"] = WORKERS
    if plural == "leases":
        about |= {"namespace": SYSTEM} | ({"name": "evalstop-operator"} if verb == "get" else {})
    answer = scene.admin.post(
        f"{_REVIEWS}/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": about,
            },
        },
    )
    return bool(answer["status"]["allowed"])
