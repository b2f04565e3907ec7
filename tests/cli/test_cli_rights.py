"""The rights that doctor asks after: all that the roles grant, each named when it is not there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cli.doctor import installation, rights
from controller.cli.doctor.findings import Finding, Level, gather
from controller.cli.doctor.rights import BESIDE, DASHBOARD, EXTENDER, OPERATOR, Right
from controller.kube.resources import ACCESS_REVIEWS, DEPLOYMENTS, GPUPOOLS
from deploy.local.helm.client import Helm

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
MOST = {*rights.ALWAYS, *rights.WORKLOADS, *rights.BEFORE_1_36, *rights.DELEGATED}
IN_NAMESPACES = {right.resource for right in MOST if right.in_namespaces}


def granted(objects: Iterable[Json], account: str) -> set[Right]:
    """What the roles that are bound to a service account grant it."""
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in objects if o}
    bound = [
        (o["roleRef"], o["metadata"].get("namespace", ""), o["subjects"][0].get("namespace", ""))
        for (kind, _), o in by_name.items()
        if kind.endswith("RoleBinding") and account in [s["name"] for s in o["subjects"]]
    ]
    assert bound, f"no role is bound to {account}"
    return {
        Right(
            verb, group, resource, name,
            own=ref["kind"] == "Role" and place == home,
            where=place if ref["kind"] == "Role" and place != home else "",
        )
        for ref, place, home in bound
        for rule in by_name[ref["kind"], ref["name"]]["rules"]
        for group, resource, name, verb in itertools.product(
            rule["apiGroups"], rule["resources"], rule.get("resourceNames") or [""], rule["verbs"]
        )
    }  # fmt: skip


@pytest.mark.parametrize(
    ("part", "wanted"), [(OPERATOR, MOST), *((part, {*needed}) for part, needed in BESIDE.items())]
)
def test_doctor_asks_after_every_right_of_the_manifests(part: str, wanted: set[Right]) -> None:
    """And after no other. The file is the one that its cure names."""
    objects = yaml.safe_load_all((ROOT / rights.MANIFESTS[part]).read_text())
    assert granted(objects, part) == wanted


@pytest.mark.parametrize("kueue", [False, True])
@pytest.mark.parametrize("job", [False, True])
@pytest.mark.parametrize("version", ["1.35.0", "1.36.0"])
def test_doctor_asks_after_every_right_of_the_chart(
    helm: Helm, chart: Path, version: str, job: bool, kueue: bool
) -> None:
    values = {"delegates.kueue": kueue, "workloads.job": job, "dashboard.enabled": True}
    given = [f"--set={name}={str(value).lower()}" for name, value in values.items()]
    given.append("--set=networkPolicy.enabled=false")  # no cluster is asked where its API server is
    objects = list(yaml.safe_load_all(helm("template", "e", str(chart), f"--kube-version={version}", *given)))
    wanted = {*rights.ALWAYS, *(rights.WORKLOADS if job else ()), *(rights.DELEGATED if kueue else ())}
    wanted |= {*rights.BEFORE_1_36} if job and version < "1.36" else set()
    assert granted(objects, OPERATOR) == wanted
    for part, needed in BESIDE.items():
        assert granted(objects, part) == {*needed}
    operator = next(
        o for o in objects if o and (o["kind"], o["metadata"]["name"]) == ("Deployment", OPERATOR)
    )
    said = rights.cure(operator, OPERATOR, [*(MOST - wanted - {*rights.BEFORE_1_36})])
    expected = "helm upgrade evalstop deploy/helm/evalstop -n default --reset-then-reuse-values"
    expected += "" if job else " --set workloads.job=true"
    assert said == expected + ("" if kueue else " --set delegates.kueue=true")


class Answers:
    """An API server whose ServiceAccounts have all rights but some, and who asks how many at once."""

    def __init__(self, *lacking: Right, version: str = "v1.36.3", delegate: str = "Builtin") -> None:
        self.lacking, self.version, self.delegate = lacking, version, delegate
        self.asked: list[Json] = []
        self.now = self.most = 0

    def deployment(self, part: str) -> Json:
        return {
            "metadata": {"name": part, "namespace": "sys", "labels": {"app.kubernetes.io/name": part}},
            "spec": {
                "replicas": 0, "selector": {}, "template": {"spec": {"serviceAccountName": f"{part}-sa"}}
            },
        }  # fmt: skip

    async def may(self, *_: Any) -> bool:
        return True

    async def raw(self, *_: Any) -> bytes:
        return f'{{"gitVersion": "{self.version}"}}'.encode()

    async def list(self, resource: Any, *_: Any, **__: Any) -> tuple[list[Json], str]:
        if resource is DEPLOYMENTS:
            return [self.deployment(part) for part in BESIDE], "1"
        return ([{"spec": {"delegate": self.delegate}}] if resource is GPUPOOLS else []), "1"

    async def create(self, resource: Any, body: Json) -> Json:
        assert resource is ACCESS_REVIEWS
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        self.asked.append(body["spec"])
        attributes = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": attributes not in [r.attributes("sys") for r in self.lacking]}}


def examined(api: Answers, part: str = OPERATOR) -> list[Finding]:
    deployment = api.deployment(part)
    check = rights.operators if part == OPERATOR else lambda a, d: rights.beside(a, d, part)
    return asyncio.run(gather(part, check(api, deployment)))  # type: ignore[arg-type]


def test_an_operator_that_has_all_its_rights_and_how_it_is_asked() -> None:
    api = Answers()
    (found,) = examined(api)
    assert found.level is Level.OK
    assert {spec["user"] for spec in api.asked} == {f"system:serviceaccount:sys:{OPERATOR}-sa"}
    assert len(api.asked) == len({*rights.ALWAYS, *rights.WORKLOADS})
    assert 1 < api.most <= rights.AT_ONCE, "side by side, and not all at once"
    leases = [s["resourceAttributes"] for s in api.asked if s["resourceAttributes"]["resource"] == "leases"]
    assert {a["namespace"] for a in leases} == {"sys"}
    assert sorted((a["verb"], a.get("name")) for a in leases if a["verb"] != "create") == [
        ("get", OPERATOR), ("patch", OPERATOR)
    ]  # fmt: skip


@pytest.mark.parametrize("right", sorted(MOST, key=str), ids=lambda r: f"{r.verb} {r.what}")
def test_each_right_of_the_operator_that_is_not_there_is_named(right: Right) -> None:
    """On a cluster where all of them are needed."""
    (found,) = examined(Answers(right, version="v1.35.0", delegate="Kueue"))
    assert found.level is Level.WRONG
    assert found.text.startswith(f"ServiceAccount sys/{OPERATOR}-sa lacks {right.verb} {right.what}")
    assert found.cure.line == "kubectl apply -f deploy/manifests/rbac.yaml"


@pytest.mark.parametrize("part", BESIDE)
def test_each_right_of_extender_and_dashboard_that_is_not_there_is_named(part: str) -> None:
    assert examined(Answers(), part)[0].level is Level.OK
    for right in BESIDE[part]:
        (found,) = examined(Answers(right), part)
        where = " (in its own namespace)" if right.own else ""
        assert found.text == f"ServiceAccount sys/{part}-sa lacks {right.verb} {right.what}{where}"
        assert found.cure.line == f"kubectl apply -f {rights.MANIFESTS[part]}"
        assert (ROOT / rights.MANIFESTS[part]).is_file()


@pytest.mark.parametrize(
    ("api", "level"),
    [
        (Answers(*rights.BEFORE_1_36), Level.OK),
        (Answers(*rights.BEFORE_1_36, version="v1.35.9"), Level.WRONG),
        (Answers(*rights.BEFORE_1_36, version="dev"), Level.WRONG),
        (Answers(*rights.DELEGATED), Level.OK),
        (Answers(*rights.DELEGATED, delegate="Kueue"), Level.WRONG),
    ],
)
def test_what_this_cluster_does_not_need_is_not_missed(api: Answers, level: Level) -> None:
    assert [finding.level for finding in examined(api)] == [level]


def test_what_is_lacking_is_told_whole_and_by_what_it_is_over() -> None:
    """Twenty of them are not cut to the first few."""
    (found,) = examined(Answers(*rights.ALWAYS, *rights.WORKLOADS))
    assert "get/list/watch/create/delete/patch jobs.batch," in found.text
    assert all(right.what in found.text for right in rights.ALWAYS)
    assert "get/patch leases.coordination.k8s.io evalstop-operator (in its own namespace)" in found.text


def test_parts_that_are_installed_are_looked_at() -> None:
    found = asyncio.run(gather("beside", installation.beside(Answers(), "sys")))  # type: ignore[arg-type]
    assert {f.about for f in found} >= {"extender's rights", "dashboard's rights"}
    assert {EXTENDER, DASHBOARD} == {*BESIDE}


def with_settings(api: Answers, **settings: str) -> None:
    """The parts' containers have these."""
    made = api.deployment

    def deployment(part: str) -> Json:
        found = made(part)
        env = [{"name": name, "value": value} for name, value in settings.items()]
        found["spec"]["template"]["spec"]["containers"] = [{"name": part, "env": env}]
        return found

    api.deployment = deployment  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("part", "setting"),
    [(OPERATOR, "EVALSTOP_METRICS_ACCESS"), (EXTENDER, "EVALSTOP_EXTENDER_METRICS_ACCESS")],
)
def test_who_lets_everybody_read_metrics_needs_no_reviews(part: str, setting: str) -> None:
    api = Answers(*rights._REVIEWS)
    assert examined(api, part)[0].level is Level.WRONG
    with_settings(api, **{setting: "review"})
    assert examined(api, part)[0].level is Level.WRONG
    with_settings(api, **{setting: "open"})
    api.asked.clear()
    assert examined(api, part)[0].level is Level.OK
    asked = [spec["resourceAttributes"]["resource"] for spec in api.asked]
    assert not {"tokenreviews", "subjectaccessreviews"} & {*asked}


def test_the_dashboard_asks_who_its_viewers_are_whoever_may_read_metrics() -> None:
    api = Answers(*rights._REVIEWS)
    with_settings(api, EVALSTOP_METRICS_ACCESS="open", EVALSTOP_DASHBOARD_METRICS_ACCESS="open")
    assert examined(api, DASHBOARD)[0].level is Level.WRONG


class OfNamespaces(Answers):
    """Rights in these namespaces alone, as the chart grants them with `operator.watchNamespaces`."""

    def __init__(self, *granted: str, lacking: tuple[str, str] = ("", "")) -> None:
        super().__init__()
        self.granted, self.without = granted, lacking

    async def create(self, resource: Any, body: Json) -> Json:
        await super().create(resource, body)
        attributes = body["spec"]["resourceAttributes"]
        name = attributes["resource"] + (f"/{sub}" if (sub := attributes.get("subresource")) else "")
        where = attributes.get("namespace", "")
        if where == "default" and name == "events":
            return {"status": {"allowed": True}}
        inside = name in IN_NAMESPACES
        allowed = (where in self.granted or where == "sys") if inside else True
        return {"status": {"allowed": allowed and (where, name) != self.without}}


def test_an_operator_of_a_few_namespaces_is_asked_for_its_rights_there() -> None:
    api = OfNamespaces("team-a", "team-b")
    assert examined(api)[0].level is Level.WRONG, "it watches all"
    with_settings(api, EVALSTOP_WATCH_NAMESPACES="team-a, team-b")
    assert examined(api)[0].level is Level.OK
    lacks = OfNamespaces("team-a", "team-b", lacking=("team-b", "pods"))
    with_settings(lacks, EVALSTOP_WATCH_NAMESPACES="team-a,team-b")
    (found,) = examined(lacks)
    assert found.level is Level.WRONG
    assert found.text.endswith("lacks list/watch pods (in namespace team-b)")


def test_what_is_in_namespaces_is_what_the_charts_roles_grant(helm: Helm, chart: Path) -> None:
    """And what is in none, reviews among it, the ClusterRole."""
    given = ["--set=operator.watchNamespaces={team-a,team-b}", "--set=networkPolicy.enabled=false"]
    given += ["--set=workloads.job=true", "--set=delegates.kueue=true", "--kube-version=1.35.0"]
    objects = [o for o in yaml.safe_load_all(helm("template", "e", str(chart), *given)) if o]

    def resources(kind: str, namespace: str | None) -> set[str]:
        found = [
            o
            for o in objects
            if o["kind"] == kind
            and o["metadata"]["name"] == OPERATOR
            and o["metadata"].get("namespace") == namespace
        ]
        return {resource for o in found for rule in o["rules"] for resource in rule["resources"]}

    assert resources("Role", "team-a") == resources("Role", "team-b") == IN_NAMESPACES
    everywhere = resources("ClusterRole", None)
    assert not everywhere & IN_NAMESPACES
    assert {"tokenreviews", "subjectaccessreviews"} <= everywhere
