"""The operator is no way around RBAC: admission asks what the author of an RLHFJob may do himself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from api_cluster import ROOT, Json, allow, as_user, install, jobs, refusal, rule
from api_examples import JOB, TEMPLATE, changed

from controller.api.kinds import KINDS, RUN, Kind
from controller.workloads import supported
from deploy.local.api import LocalApi
from deploy.local.plane import Plane
from tests.support.waiting import wait_until

EDIT = rule("evalstop.dev", "rlhfjobs", "get", "create", "update", "patch")
OPERATOR = "system:serviceaccount:evalstop-system:evalstop-operator"


@pytest.fixture(scope="module")
def guarded(plane: Plane) -> Plane:
    """A plane on which the admission policy is seen to be in force."""
    install(plane)
    odd = changed(changed(JOB, "metadata.namespace", "default"), "spec.workload.template.kind", "Teapot")
    path = jobs("default", query="dryRun=All")
    wait_until(lambda: "batch/v1 Teapot" in refusal(plane.client(), "POST", path, odd), "the policy refuses")
    return plane


def job(namespace: str, workload: Json, name: str = "run") -> Json:
    obj = changed(changed(JOB, "metadata.namespace", namespace), "spec.workload", workload)
    return changed(obj, "metadata.name", name)


def reference(kind: Kind = KINDS[0], name: str = "mine") -> Json:
    return {"ref": {"apiVersion": f"{kind.group}/v1", "kind": kind.kind, "name": name}}


def template(kind: Kind = KINDS[0]) -> Json:
    return {"template": {**TEMPLATE, "apiVersion": f"{kind.group}/v1", "kind": kind.kind}}


def author(plane: Plane, namespace: str, name: str, *rules: Json) -> LocalApi:
    """A user who may edit RLHFJobs in the namespace, and what the rules say."""
    user = f"{name}-{namespace}"
    allow(plane, namespace, user, EDIT, *rules)
    client = as_user(plane, user)
    # The authorizer learns of a Role from a watch. What the policy says comes after its consent.
    path, any_job = jobs(namespace, query="dryRun=All"), job(namespace, template())
    wait_until(
        lambda: "cannot create resource" not in refusal(client, "POST", path, any_job), "the rights count"
    )
    return client


def may(client: LocalApi, namespace: str, workload: Json) -> str:
    """What the server says against creating such a job; "" if nothing."""
    return refusal(client, "POST", jobs(namespace, query="dryRun=All"), job(namespace, workload))


def test_a_template_needs_the_right_to_create_its_kind(guarded: Plane, namespace: str) -> None:
    without = author(guarded, namespace, "reader", rule("batch", "jobs", "get", "list", "patch", "update"))
    words = may(without, namespace, template())
    assert f"you may not create jobs.batch in namespace {namespace}" in words
    assert "403" in words
    with_right = author(guarded, namespace, "maker", rule("batch", "jobs", "create"))
    assert may(with_right, namespace, template()) == ""


def test_a_reference_needs_the_right_to_patch_that_object(guarded: Plane, namespace: str) -> None:
    one = author(guarded, namespace, "one", rule("batch", "jobs", "patch", names=["mine"]))
    assert may(one, namespace, reference()) == ""
    words = may(one, namespace, reference(name="yours"))
    assert f"you may not patch jobs.batch yours in namespace {namespace}" in words
    maker = author(guarded, namespace, "maker", rule("batch", "jobs", "create"))
    assert "you may not patch jobs.batch mine" in may(maker, namespace, reference())


def test_rights_in_another_namespace_do_not_count(guarded: Plane, namespace: str) -> None:
    user = f"neighbour-{namespace}"
    allow(guarded, namespace, user, EDIT)
    allow(guarded, "default", user, rule("batch", "jobs", "*"))
    assert "you may not create jobs.batch" in may(as_user(guarded, user), namespace, template())


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda k: f"{k.kind}.{k.group}")
def test_each_kind_asks_for_its_own_right(guarded: Plane, namespace: str, kind: Kind) -> None:
    full = f"{kind.resource}.{kind.group}"
    wrong = author(guarded, namespace, "wrong", rule("batch", "jobs", "create", "patch"))
    assert f"you may not create {full}" in may(wrong, namespace, template(kind))
    assert f"you may not patch {full}" in may(wrong, namespace, reference(kind))
    right = author(guarded, namespace, "right", rule(kind.group, kind.resource, "create", "patch"))
    assert may(right, namespace, template(kind)) == ""
    assert may(right, namespace, reference(kind)) == ""


@pytest.mark.parametrize(
    ("api_version", "kind", "said"),
    [
        ("batch/v1", "CronJob", "spec.workload: kind batch/v1 CronJob, expected one of batch/v1 Job"),
        ("v1", "Pod", "spec.workload: kind v1 Pod, expected one of batch/v1 Job"),
        ("apps/v1", "Deployment", "kind apps/v1 Deployment, expected one of"),
    ],
)
def test_an_unknown_kind_is_refused_even_to_administrators(
    guarded: Plane, namespace: str, api_version: str, kind: str, said: str
) -> None:
    odd = {"template": {**TEMPLATE, "apiVersion": api_version, "kind": kind}}
    assert said in may(guarded.client(), namespace, odd)


def test_what_runs_is_told_as_the_operator_tells_it() -> None:
    assert ", ".join(RUN) == supported()


STOPPED = ("spec.runState", "Stopped")
ELSEWHERE = ("spec.checkpoints.retention", {"volumeClaim": {"claimName": "bobs"}})
RESUMED = ("spec.resume", {"id": "bobs", "from": "Best"})
LET_RUN = ("spec.mode", "Off")
POWERFUL = ("spec.workload.template.spec.template.spec.serviceAccountName", "powerful")


@pytest.mark.parametrize("change", [STOPPED, ELSEWHERE, RESUMED, LET_RUN, POWERFUL], ids=lambda c: c[0])
def test_who_may_not_run_the_workload_changes_nothing_of_a_colleagues_job(
    guarded: Plane, namespace: str, change: tuple[str, Any]
) -> None:
    """bob has rights on RLHFJobs alone: to stop or resume a run, or send its weights elsewhere, he would have
    the operator do what he may not do."""
    guarded.client().post(jobs(namespace), job(namespace, template()))
    bob = author(guarded, namespace, "bob")
    now = bob.get(jobs(namespace, "run"))
    dry = jobs(namespace, "run", "dryRun=All")
    assert "you may not create jobs.batch" in refusal(bob, "PUT", dry, changed(now, *change))
    colleague = author(guarded, namespace, "colleague", rule("batch", "jobs", "create"))
    assert refusal(colleague, "PUT", dry, changed(now, *change)) == ""


def test_a_change_of_metadata_asks_nobody_and_one_of_a_ref_asks_for_it(
    guarded: Plane, namespace: str
) -> None:
    guarded.client().post(jobs(namespace), job(namespace, template()))
    bob = author(guarded, namespace, "bob")
    now = bob.get(jobs(namespace, "run"))
    dry = jobs(namespace, "run", "dryRun=All")
    assert refusal(bob, "PUT", dry, changed(now, "metadata.labels", {"team": "x"})) == ""
    assert "you may not patch jobs.batch mine" in refusal(
        bob, "PUT", dry, changed(now, "spec.workload", reference())
    )


def operator(plane: Plane) -> LocalApi:
    return as_user(plane, OPERATOR, ["system:serviceaccounts", "system:authenticated"])


def test_the_operator_writes_status_and_finalizer_unhindered(guarded: Plane, namespace: str) -> None:
    """Its own writes never touch the spec, so the policy passes them over."""
    guarded.client().post(jobs(namespace), job(namespace, reference()))
    client = operator(guarded)
    client.patch(jobs(namespace, "run") + "/status", {"status": {"summary": "Queued"}})
    assert client.get(jobs(namespace, "run"))["status"] == {"summary": "Queued"}


CAN: list[tuple[str, str]] = [
    ("list", "rlhfjobs.evalstop.dev"),
    ("patch", "rlhfjobs.evalstop.dev"),
    ("patch", "rlhfjobs.evalstop.dev/status"),
    ("patch", "gpupools.evalstop.dev/status"),
    ("create", "jobs.batch"),
    ("patch", "jobs.batch"),
    ("delete", "jobs.batch"),
    ("watch", "pods"),
    ("patch", "nodes"),
    ("create", "configmaps"),
    ("patch", "configmaps"),
    ("get", "persistentvolumeclaims"),
    ("get", "namespaces"),
    ("list", "resourceclaims.resource.k8s.io"),
    ("watch", "resourceslices.resource.k8s.io"),
    ("create", "events"),
    ("list", "workloads.kueue.x-k8s.io"),
    ("patch", "workloads.kueue.x-k8s.io"),
    ("patch", "workloads.kueue.x-k8s.io/status"),
    ("patch", "admissionchecks.kueue.x-k8s.io/status"),
    ("watch", "clusterqueues.kueue.x-k8s.io"),
]
CANNOT: list[tuple[str, str]] = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("create", "pods"),
    ("create", "pods/exec"),
    ("delete", "pods"),
    ("delete", "nodes"),
    ("create", "nodes"),
    ("delete", "configmaps"),
    ("create", "serviceaccounts/token"),
    ("delete", "persistentvolumeclaims"),
    ("create", "rlhfjobs.evalstop.dev"),
    ("delete", "rlhfjobs.evalstop.dev"),
    ("patch", "gpupools.evalstop.dev"),
    ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ("escalate", "clusterroles.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
    ("update", "leases.coordination.k8s.io"),
    ("delete", "workloads.kueue.x-k8s.io"),
    ("create", "workloads.kueue.x-k8s.io"),
    ("patch", "clusterqueues.kueue.x-k8s.io"),
    ("patch", "admissionchecks.kueue.x-k8s.io"),
]


def test_the_operator_has_the_rights_it_needs_and_no_others(guarded: Plane, namespace: str) -> None:
    client = operator(guarded)

    def allowed(verb: str, what: str, where: str = namespace) -> bool:
        resource, _, subresource = what.partition("/")
        name, _, group = resource.partition(".")
        asked = {
            "namespace": where,
            "verb": verb,
            "group": group,
            "resource": name,
            "subresource": subresource,
        }
        review: Any = client.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            },
        )
        return bool(review["status"]["allowed"])

    assert [c for c in CAN if not allowed(*c)] == []
    assert [c for c in CANNOT if allowed(*c)] == []
    assert allowed("create", "leases.coordination.k8s.io", "evalstop-system")
    assert not allowed("patch", "leases.coordination.k8s.io", "evalstop-system"), "its own only, by name"


def test_no_role_of_ours_has_a_wildcard() -> None:
    for path in (ROOT / "deploy" / "manifests").glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            for entry in document.get("rules", ()) if document["kind"].endswith("Role") else ():
                resources, paths = entry.get("resources", []), entry.get("nonResourceURLs", [])
                assert "*" not in [*entry.get("apiGroups", []), *resources, *entry["verbs"]], path
                assert not any("*" in one for one in paths), path
                assert "secrets" not in resources, path


def test_editors_and_viewers_of_a_namespace_get_the_matching_rights(
    guarded: Plane, kubectl: Callable[..., str]
) -> None:
    for role, verb, granted in (("edit", "create", True), ("view", "list", True), ("view", "create", False)):

        def has(role: str = role, verb: str = verb) -> bool:
            rules = guarded.client().get(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")["rules"]
            return any("rlhfjobs" in r["resources"] and verb in r["verbs"] for r in rules)

        if granted:
            wait_until(has, f"{role} is aggregated")
        assert has() is granted


def test_who_views_the_whole_cluster_reads_pools_and_who_views_a_namespace_does_not(
    guarded: Plane, kubectl: Callable[..., str], namespace: str
) -> None:
    here, everywhere = f"{namespace}-here", f"{namespace}-everywhere"
    kubectl("create", "rolebinding", here, "--clusterrole=view", f"--user={here}", "-n", namespace)
    kubectl("create", "clusterrolebinding", everywhere, "--clusterrole=view", f"--user={everywhere}")

    def may(user: str, verb: str, what: str, subresource: str = "") -> bool:
        asked = {"verb": verb, "resource": what, "group": "evalstop.dev", "subresource": subresource}
        place = {"namespace": namespace} if what == "rlhfjobs" else {}
        review: Any = guarded.client().post(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": {**asked, **place}},
            },
        )
        return bool(review["status"]["allowed"])

    try:
        wait_until(lambda: may(everywhere, "list", "gpupools"), "view has pools")
        wait_until(lambda: may(here, "list", "rlhfjobs"), "view has jobs")
        for verb in ("get", "watch"):
            assert may(everywhere, verb, "gpupools")
        assert may(everywhere, "get", "gpupools", "status")
        for verb in ("create", "update", "patch", "delete"):
            assert not may(everywhere, verb, "gpupools")
            assert not may(everywhere, verb, "gpupools", "status")
        assert not may(here, "list", "gpupools")
    finally:
        kubectl("delete", "clusterrolebinding", everywhere)


def test_the_policy_has_no_type_errors(guarded: Plane) -> None:
    """The controller checks the expressions against the CRD's schema; one warned of cannot fire."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/rlhfjob-author.evalstop.dev"
    client = guarded.client()
    generation = client.get(path)["metadata"]["generation"]
    wait_until(lambda: client.get(path).get("status", {}).get("observedGeneration") == generation, "checked")
    assert client.get(path)["status"]["typeChecking"].get("expressionWarnings", []) == []


@pytest.mark.parametrize("folder", ["manifests", "overlays/local"])
def test_the_manifests_are_accepted(guarded: Plane, kubectl: Callable[..., str], folder: str) -> None:
    """`-k` on the folder, and for the base also `-f`, under strict validation."""
    where = str(ROOT / "deploy" / folder)
    assert "deployment.apps/evalstop-operator" in kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-k", where
    )
    if folder == "manifests":
        assert "evalstop-operator" in kubectl("apply", "--dry-run=server", "--validate=strict", "-f", where)
