"""What the chart renders: snapshots, and properties that no values may break."""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from rendering import (
    API_SERVER,
    MONITORING,
    NAMESPACE,
    SCHEDULER,
    Object,
    kinds,
    named,
    render,
    rules,
    values,
)

from controller import names
from controller.api import admission
from controller.extender import scheduler_config
from controller.operator.process.settings import Settings
from controller.workloads.kinds import KINDS
from deploy.local.helm.client import Helm

POOL = {
    "name": "research",
    "spec": {
        "nodeSelector": [{"key": "evalstop.dev/gpu-pool", "value": "research"}],
        "queuePolicy": {"fifo": {}},
        "allowedNamespaces": [{"name": "*", "maxPriority": 0}],
    },
}
# How docs/use/dashboard.md has the dashboard read the operator's queue API.
QUEUE_FROM: Object = {
    "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "evalstop-dashboard"}}}],
    "ports": [{"port": 8081}],
}
QUEUE_TO: Object = {
    "to": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "evalstop-operator"}}}],
    "ports": [{"port": 8081}],
}
MONITORS: Object = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
# Everything on, and everything off.
FULL: Object = {
    "delegates": {"kueue": True},
    "pools": [POOL],
    "scheduler": SCHEDULER | {"replicas": 2},
    "dashboard": {"enabled": True, "tlsSecret": "dashboard-tls", "settings": {"plainHttp": "refuse"}},
    "notify": {
        "enabled": True,
        "urlSecret": "evalstop-notify",
        "settings": {"link": "https://board.example.org"},
    },
    "operator": {"settings": {"workers": 16}},
    "rollouts": {"enabled": True, "url": "https://10.96.0.21:8446"},
    "metrics": {"readers": [{"name": "prometheus-k8s", "namespace": "monitoring"}]},
    "networkPolicy": {
        "metricsFrom": [MONITORS],
        "extenderFrom": [{"podSelector": {}}],
        "dashboardFrom": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
        "stepsFrom": [{"ipBlock": {"cidr": "10.0.0.0/16"}}],
        "operatorTo": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]}],
        "operatorFrom": [QUEUE_FROM],
        "dashboardTo": [QUEUE_TO],
        "notifyTo": [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": [{"port": 443}]}],
    },
}
LEAST: Object = {
    "crds": {"install": False},
    "workloads": {"job": False},
    "operator": {"replicas": 1, "decisionLog": {"enabled": False}},
    "extender": {"enabled": False},
    "rbac": {"aggregate": False},
    "networkPolicy": {"enabled": False},
    "monitoring": {name: {"enabled": False} for name in ("serviceMonitor", "prometheusRule", "dashboards")},
    "metrics": {"access": "open"},
}
CERT_MANAGER: Object = {
    "extender": {
        "url": "https://10.96.0.20:8443",
        "certificates": {"mode": "certManager", "issuerRef": {"name": "ours"}, "hosts": ["10.96.0.20"]},
    }
}
CASES = {
    "default": ({}, []),
    "full": (FULL, MONITORING),
    "least": (LEAST, []),
    "cert-manager": (CERT_MANAGER, []),
}
SNAPSHOTS = Path(__file__).parent / "snapshots"
# Long, and generated: their own tests look at them.
_NOT_KEPT = {"CustomResourceDefinition", "ValidatingAdmissionPolicy", "PrometheusRule"}


def _long(given: Object) -> bool:
    """Whether an object is one of those, or holds a Grafana dashboard."""
    grafana = given["kind"] == "ConfigMap" and given["metadata"]["name"].startswith("evalstop-dashboard")
    return given["kind"] in _NOT_KEPT or grafana


def masked(objects: list[Object]) -> str:
    """The objects as a snapshot holds them: keys and times that differ each time made equal."""
    kept = []
    for given in objects:
        if _long(given):
            given = {key: given[key] for key in ("apiVersion", "kind", "metadata")}
        if given["kind"] == "Secret":
            given["data"] = dict.fromkeys(given["data"], "…")
            given["metadata"].get("annotations", {}).pop("evalstop.dev/not-after", None)
        if given["kind"] == "Deployment":
            given["spec"]["template"]["metadata"].get("annotations", {}).pop("evalstop.dev/authority", None)
        kept.append(given)
    kept.sort(key=lambda o: (o["kind"], o["metadata"]["name"]))
    return yaml.safe_dump_all(kept, sort_keys=True, width=110, allow_unicode=True)


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest, helm: Helm, chart: Path) -> tuple[str, list[Object]]:
    given, apis = CASES[request.param]
    return request.param, render(helm, chart, given, apis)


def test_snapshot(case: tuple[str, list[Object]]) -> None:
    """EVALSTOP_SNAPSHOTS=write rewrites them: read the diff."""
    name, objects = case
    path, now = SNAPSHOTS / f"{name}.yaml", masked(objects)
    if os.environ.get("EVALSTOP_SNAPSHOTS") == "write":
        path.write_text(now)
    assert now == path.read_text(), f"the chart renders something else than {path.name}"


def templates(objects: list[Object]) -> list[tuple[str, Object]]:
    """(name, pod spec) of everything that makes pods."""
    found = [
        (o["metadata"]["name"], o["spec"]["template"]["spec"])
        for o in objects
        if o["kind"] in ("Deployment", "Job")
    ]
    return found + [(o["metadata"]["name"], o["spec"]) for o in kinds(objects, "Pod")]


def test_every_pod_keeps_to_restricted_pod_security_and_writes_nowhere_else(
    case: tuple[str, list[Object]],
) -> None:
    found = templates(case[1])
    assert found
    for name, spec in found:
        assert spec["enableServiceLinks"] is False, f"{name}: Services would set variables that are settings"
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"], name
        assert pod["runAsUser"] > 0, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            mine = container["securityContext"]
            assert not mine["allowPrivilegeEscalation"], name
            assert mine["readOnlyRootFilesystem"], name
            assert mine["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
        allowed = {"emptyDir", "configMap", "secret", "persistentVolumeClaim", "projected"}
        assert {key for v in spec["volumes"] for key in v if key != "name"} <= allowed, name


def test_no_wildcard_no_secret_no_right_over_rights(case: tuple[str, list[Object]]) -> None:
    for role in kinds(case[1], "ClusterRole") + kinds(case[1], "Role"):
        for group, resource, name, verb in rules(role):
            told = f"{role['metadata']['name']}: {verb} {resource}.{group} {name}"
            assert "*" not in (group, resource, verb), told
            assert resource.partition("/")[0] not in ("secrets", "serviceaccounts"), told
            assert group != "rbac.authorization.k8s.io", told
            assert resource not in ("pods/exec", "pods/attach", "pods/portforward", "nodes/proxy"), told
            assert verb not in ("escalate", "bind", "impersonate"), told


def test_definitions_stay_and_carry_the_version(helm: Helm, chart: Path, repository: Path) -> None:
    found = kinds(render(helm, chart), "CustomResourceDefinition")
    written = [yaml.safe_load(path.read_text()) for path in sorted((repository / "crds").glob("*.yaml"))]
    assert [crd["spec"] for crd in found] == [crd["spec"] for crd in written]
    for crd in found:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert crd["metadata"]["labels"]["app.kubernetes.io/version"] == "0.1.0"
    assert [crd["metadata"]["labels"]["app.kubernetes.io/version"] for crd in written] == ["0.1.0"] * 3


def test_a_charts_own_version_is_on_its_definitions(helm: Helm, chart: Path, tmp_path: Path) -> None:
    """Whatever the generated files say: the guard of the next chart goes by the release's version."""
    other = tmp_path / "evalstop"
    shutil.copytree(chart, other)
    description = (other / "Chart.yaml").read_text()
    (other / "Chart.yaml").write_text(description.replace('appVersion: "0.1.0"', 'appVersion: "0.1.1"'))
    for crd in kinds(render(helm, other), "CustomResourceDefinition"):
        assert crd["metadata"]["labels"]["app.kubernetes.io/version"] == "0.1.1"
        assert crd["metadata"]["labels"]["app.kubernetes.io/name"] == "evalstop"


def test_pods_of_workloads_that_run_on_can_be_replaced_after_an_uninstall(helm: Helm, chart: Path) -> None:
    """Workloads name the PriorityClass: without it the API server refuses every new pod of theirs."""
    (found,) = kinds(render(helm, chart), "PriorityClass")
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_network_policies_reach_every_trainer_and_take_more_rules(helm: Helm, chart: Path) -> None:
    def spec(name: str, given: Object) -> Object:
        found: Object = named(render(helm, chart, given), "NetworkPolicy", name)["spec"]
        return found

    plain = {"dashboard": {"enabled": True}}
    before = {name: spec(name, plain) for name in ("evalstop-operator", "evalstop-dashboard")}
    operator, dashboard = before["evalstop-operator"], before["evalstop-dashboard"]
    every = {"protocol": "TCP", "port": 1, "endPort": 65535}  # as RLHFJobs may name any of them
    assert operator["egress"][1:] == [{"to": [{"namespaceSelector": {}}], "ports": [every]}]
    assert len(operator["ingress"]) == len(dashboard["egress"]) == 1, (
        "more than helm test, and the API server"
    )
    host = {"to": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]}
    more = {"operatorTo": [host], "operatorFrom": [QUEUE_FROM], "dashboardTo": [QUEUE_TO]}
    after = {name: spec(name, plain | {"networkPolicy": more}) for name in before}
    assert after["evalstop-operator"]["egress"] == [*operator["egress"], host]
    assert after["evalstop-operator"]["ingress"] == [*operator["ingress"], QUEUE_FROM]
    assert after["evalstop-dashboard"]["egress"] == [*dashboard["egress"], QUEUE_TO]
    assert after["evalstop-dashboard"]["ingress"] == dashboard["ingress"]


def test_the_scheduler_reaches_an_extender_elsewhere_by_the_rules_given_alone(
    helm: Helm, chart: Path
) -> None:
    rule = {"to": [{"ipBlock": {"cidr": "10.96.0.20/32"}}], "ports": [{"protocol": "TCP", "port": 8443}]}
    given = {
        "scheduler": SCHEDULER,
        "extender": {"enabled": False, "url": "https://10.96.0.20:8443"},
        "networkPolicy": {"schedulerTo": [rule]},
    }
    egress = named(render(helm, chart, given), "NetworkPolicy", "evalstop-scheduler")["spec"]["egress"]
    assert egress[-1] == rule
    assert {} not in egress, "not everything is open"


def test_the_api_servers_addresses_are_named_or_asked_for(helm: Helm, chart: Path) -> None:
    """Nobody who holds a pod of ours sends what it reads to any address on port 443."""
    objects = render(helm, chart, {"dashboard": {"enabled": True}, "scheduler": SCHEDULER})
    for name in ("operator", "extender", "dashboard", "scheduler"):
        first = named(objects, "NetworkPolicy", f"evalstop-{name}")["spec"]["egress"][0]
        assert first["to"] == [{"ipBlock": {"cidr": cidr}} for cidr in API_SERVER]
    done = helm.run("template", "evalstop", str(chart), "-n", NAMESPACE)
    assert "networkPolicy.apiServerAddresses is empty, and there is no cluster to ask" in done.stderr


OPENED: Object = {
    "delegates": {"kueue": True},
    "image": {"access": {"repository": "mine/access"}, "tag": "2"},
    "policies": {"operator": {"namespaceLabel": "team"}, "gpuPods": {"users": ["argo"], "groups": ["a b"]}},
}


def test_policies_bear_the_names_of_the_release(helm: Helm, chart: Path) -> None:
    install = admission.Install(
        namespace="elsewhere",
        image="mine/access:2",
        label="team",
        users=(*admission.PLAIN.users, "argo"),
        groups=(*admission.PLAIN.groups, "a b"),
    )
    text = helm("template", "x", str(chart), "-n", "elsewhere", "-f", "-", stdin=values(OPENED))
    objects = [o for o in yaml.safe_load_all(text) if o]
    for theirs in admission.manifests(install):
        assert named(objects, theirs["kind"], theirs["metadata"]["name"])["spec"] == theirs["spec"]


def test_each_policy_has_a_value_that_takes_it_away(helm: Helm, chart: Path) -> None:
    def found(**given: Any) -> set[str]:
        objects = render(helm, chart, given)
        bound = {o["spec"]["policyName"] for o in kinds(objects, "ValidatingAdmissionPolicyBinding")}
        assert bound == {o["metadata"]["name"] for o in kinds(objects, "ValidatingAdmissionPolicy")}
        return bound

    every = {policy.name for policy in admission.policies(admission.PLAIN)}
    kueue = {name for name in every if "operator-workload" in name or "admissioncheck" in name}
    assert found(delegates={"kueue": True}) == every
    assert found() == every - kueue
    of_operator = {name for name in every if name.startswith("operator-")}
    assert found(policies={"operator": {"enabled": False}}) == every - of_operator
    assert found(policies={"author": {"enabled": False}}) == every - kueue - {"rlhfjob-author.evalstop.dev"}
    assert found(policies={"gpuPods": {"enabled": False}}) == every - kueue - {"gpu-pods.evalstop.dev"}


def everybody_let_in(objects: list[Object]) -> dict[str, list[Object]]:
    """Of each pod of ours: the peers that may connect to it, each with the ports."""
    return {
        policy["metadata"]["name"]: [
            {"from": peer, "ports": [port["port"] for port in rule.get("ports", ())]}
            for rule in policy["spec"]["ingress"]
            for peer in rule.get("from") or ["everybody"]
        ]
        for policy in kinds(objects, "NetworkPolicy")
    }


def test_nobody_is_let_in_but_who_is_named(helm: Helm, chart: Path) -> None:
    """A tenant's pod that opens hundreds of connections does not even reach us."""

    def pods(name: str) -> Object:
        return {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}

    on = {"dashboard": {"enabled": True, "tlsSecret": "dashboard-tls"}, "scheduler": SCHEDULER}
    test, scheduler = pods("evalstop-test"), pods("evalstop-scheduler")
    closed = {
        "evalstop-operator": [{"from": test, "ports": ["http"]}],
        "evalstop-extender": [{"from": scheduler, "ports": ["verbs"]}, {"from": test, "ports": ["http"]}],
        "evalstop-scheduler": [],
        "evalstop-dashboard": [],
    }
    assert everybody_let_in(render(helm, chart, on)) == closed
    node = {"ipBlock": {"cidr": "10.0.0.4/32"}}
    named_ones = {"metricsFrom": [MONITORS], "extenderFrom": [node], "dashboardFrom": [pods("ingress")]}
    opened = everybody_let_in(render(helm, chart, on | {"networkPolicy": named_ones}))
    more = {name: [rule for rule in opened[name] if rule not in closed[name]] for name in opened}
    assert more == {
        "evalstop-operator": [{"from": MONITORS, "ports": ["metrics"]}],
        "evalstop-extender": [
            {"from": node, "ports": ["verbs"]},
            {"from": MONITORS, "ports": ["metrics"]},
        ],
        "evalstop-scheduler": [{"from": MONITORS, "ports": ["https"]}],
        "evalstop-dashboard": [{"from": pods("ingress"), "ports": ["pages"]}],
    }


ROLLOUTS: Object = {"rollouts": {"enabled": True}}


def test_the_step_api_is_there_where_it_is_asked_for_alone(helm: Helm, chart: Path) -> None:
    """Trainers and actors of any namespace may connect, and nobody else."""
    ours = {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]},
    }
    node = {"ipBlock": {"cidr": "10.0.0.4/32"}}
    off, on = render(helm, chart), render(helm, chart, ROLLOUTS)
    before, after = (everybody_let_in(objects)["evalstop-operator"] for objects in (off, on))
    assert [rule for rule in after if rule not in before] == [{"from": ours, "ports": ["steps"]}]
    wider = everybody_let_in(render(helm, chart, ROLLOUTS | {"networkPolicy": {"stepsFrom": [node]}}))
    assert {"from": node, "ports": ["steps"]} in wider["evalstop-operator"]
    kept = {(o["kind"], o["metadata"]["name"]) for o in off}
    assert {(o["kind"], o["metadata"]["name"]) for o in on} - kept == {
        ("NetworkPolicy", "evalstop-groups"),
        ("Secret", "evalstop-steps-tls"),
        ("Service", "evalstop-steps"),
    }
    assert not any(
        "STEPS" in e["name"] for e in container_of(named(off, "Deployment", "evalstop-operator"))["env"]
    )


def test_the_step_apis_certificate_bears_the_name_by_which_it_is_called(helm: Helm, chart: Path) -> None:
    for given, host in (
        ({}, f"evalstop-steps.{NAMESPACE}.svc"),
        ({"url": "https://[fd00::15]:8446"}, "fd00::15"),
        ({"url": "https://steps.example.org"}, "steps.example.org"),
    ):
        objects = render(helm, chart, {"rollouts": {"enabled": True, **given}})
        environment = container_of(named(objects, "Deployment", "evalstop-operator"))["env"]
        url = next(e["value"] for e in environment if e["name"] == "EVALSTOP_STEPS_URLS")
        assert urlsplit(url).hostname == host
        pem = b64decode(named(objects, "Secret", "evalstop-steps-tls")["data"]["tls.crt"])
        extensions = x509.load_pem_x509_certificate(pem).extensions
        names_of = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {str(name.value) for name in names_of}
        assert {host, f"evalstop-steps.{NAMESPACE}.svc"} <= known


def test_the_operator_takes_the_variables_that_the_chart_sets(helm: Helm, chart: Path) -> None:
    """It refuses unknown ones, and wrong values."""
    environment = container_of(named(render(helm, chart, FULL), "Deployment", "evalstop-operator"))["env"]
    given = {e["name"]: e.get("value", "10.0.0.1") for e in environment}
    found = Settings.from_environ({k: v.replace("$(POD_IP)", "10.0.0.1") for k, v in given.items()})
    assert (found.steps_host, found.steps_port, found.steps_ca) == ("10.0.0.1", 8446, "/steps-tls/ca.crt")
    assert found.actor_image.startswith(f"{names.ACTOR_IMAGE}:")


def test_the_step_api_needs_token_reviews_and_no_other_right(helm: Helm, chart: Path) -> None:
    def found(**given: Any) -> set[Any]:
        objects = render(helm, chart, {"metrics": {"access": "open"}, **given})
        return rules(named(objects, "ClusterRole", "evalstop-operator"))

    assert found(**ROLLOUTS) - found() == {("authentication.k8s.io", "tokenreviews", "", "create")}
    assert found() < found(**ROLLOUTS)


def test_kustomize_brings_the_step_api_as_the_chart_does(helm: Helm, chart: Path, repository: Path) -> None:
    """deploy/rollouts is deploy/manifests and a patch: lists of names, mounts and ports are put together."""
    deploy = repository / "deploy"
    objects = render(helm, chart, ROLLOUTS)
    patch = yaml.safe_load((deploy / "rollouts" / "operator.yaml").read_text())
    plain = yaml.safe_load((deploy / "manifests" / "operator.yaml").read_text())
    of_patch, of_plain = (o["spec"]["template"]["spec"] for o in (patch, plain))
    ours = named(objects, "Deployment", "evalstop-operator")["spec"]["template"]["spec"]
    for part in ("env", "ports", "volumeMounts"):
        both = [*of_plain["containers"][0][part], *of_patch["containers"][0][part]]
        assert sorted(both, key=str) == sorted(ours["containers"][0][part], key=str), part
    assert all(volume in ours["volumes"] for volume in of_patch["volumes"])
    service = yaml.safe_load((deploy / "rollouts" / "steps.yaml").read_text())
    assert service["spec"] == named(objects, "Service", "evalstop-steps")["spec"]


def test_no_key_that_could_sign_another_certificate_is_in_the_release(helm: Helm, chart: Path) -> None:
    """Helm keeps what it renders, for every revision, and pods mount these Secrets."""
    objects = render(helm, chart, {"scheduler": SCHEDULER})
    found = kinds(objects, "Secret")
    assert {o["metadata"]["name"] for o in found} == {
        "evalstop-extender-tls",
        "evalstop-scheduler-tls",
        "evalstop-metrics-tls",
    }
    texts = {o["metadata"]["name"]: {k: b64decode(v).decode() for k, v in o["data"].items()} for o in found}
    authorities = {text["ca.crt"] for text in texts.values()}
    (authority,) = (x509.load_pem_x509_certificate(text.encode()) for text in authorities)
    everything = yaml.safe_dump_all(objects) + "".join(str(text) for text in texts.values())
    keys = re.findall(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", everything, re.S
    )
    assert len(keys) == 3, "one of each, and none besides"
    for text in texts.values():
        key = serialization.load_pem_private_key(text["tls.key"].encode(), None)
        assert key.public_key() != authority.public_key()
        leaf = x509.load_pem_x509_certificate(text["tls.crt"].encode())
        assert leaf.issuer == authority.subject
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_metrics_are_asked_for_with_a_token_over_tls_that_is_verified(helm: Helm, chart: Path) -> None:
    objects = render(helm, chart, FULL, MONITORING)
    for name in ("evalstop-operator", "evalstop-extender"):
        (endpoint,) = named(objects, "ServiceMonitor", name)["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert "insecureSkipVerify" not in endpoint["tlsConfig"]
        certificate = named(objects, "Secret", "evalstop-metrics-tls")["data"]["tls.crt"]
        leaf = x509.load_pem_x509_certificate(b64decode(certificate))
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert endpoint["tlsConfig"]["serverName"] in names.get_values_for_type(x509.DNSName)
        assert endpoint["bearerTokenFile"].startswith("/var/run/secrets/")
        (service,) = [o for o in kinds(objects, "Service") if o["metadata"]["name"] == name]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    reader = named(objects, "ClusterRole", "evalstop-metrics-reader")
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    binding = named(objects, "ClusterRoleBinding", "evalstop-metrics-reader")
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "monitoring"}
    ]
    token = {"monitoring": {"serviceMonitor": {"tokenSecret": {"name": "scrape-token"}}}}
    monitor = named(render(helm, chart, token, MONITORING), "ServiceMonitor", "evalstop-operator")
    assert monitor["spec"]["endpoints"][0]["authorization"] == {
        "credentials": {"name": "scrape-token", "key": "token"}
    }


def test_the_page_opens_the_queue_api_to_the_dashboard_alone(
    helm: Helm, chart: Path, repository: Path
) -> None:
    page = (repository / "docs" / "use" / "dashboard.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    given = yaml.safe_load(block)
    assert given["networkPolicy"] == {"operatorFrom": [QUEUE_FROM], "dashboardTo": [QUEUE_TO]}
    objects = render(helm, chart, given)
    environment: list[Object] = []
    for name in ("evalstop-operator", "evalstop-dashboard"):
        (container,) = named(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        environment += container["env"]
    assert {"name": "EVALSTOP_QUEUE_HOST", "value": "0.0.0.0"} in environment
    assert {"name": "EVALSTOP_DASHBOARD_QUEUE_URL", "value": "http://10.96.0.30:8081"} in environment


def test_monitoring_only_where_its_kinds_are_served(helm: Helm, chart: Path) -> None:
    monitors = {"ServiceMonitor", "PrometheusRule"}
    assert not monitors & {o["kind"] for o in render(helm, chart)}
    one = render(helm, chart, apis=["monitoring.coreos.com/v1/ServiceMonitor"])
    assert monitors & {o["kind"] for o in one} == {"ServiceMonitor"}
    every = render(helm, chart, apis=MONITORING)
    with_rules = monitors if (chart / "files" / "alerts.yaml").exists() else monitors - {"PrometheusRule"}
    assert monitors & {o["kind"] for o in every} == with_rules


def test_dashboards_bear_the_label_that_grafana_looks_for(helm: Helm, chart: Path) -> None:
    found = [o for o in kinds(render(helm, chart), "ConfigMap") if "dashboard" in o["metadata"]["name"]]
    assert len(found) == len(list((chart / "files" / "dashboards").glob("*.json")))
    assert all(o["metadata"]["labels"]["grafana_dashboard"] == "1" for o in found)


def test_disruption_budgets_above_one_replica_only(helm: Helm, chart: Path) -> None:
    names = {o["metadata"]["name"] for o in kinds(render(helm, chart, FULL), "PodDisruptionBudget")}
    assert names == {"evalstop-operator", "evalstop-extender", "evalstop-scheduler"}
    single = {"operator": {"replicas": 1}, "extender": {"replicas": 1}, "scheduler": SCHEDULER}
    assert kinds(render(helm, chart, single), "PodDisruptionBudget") == []


def test_the_schedulers_configuration_is_what_the_cli_writes(helm: Helm, chart: Path) -> None:
    given = {
        "scheduler": SCHEDULER | {"qps": 250},
        "extender": {"ignorable": True, "weight": 3, "timeoutMilliseconds": 400},
    }
    found = yaml.safe_load(
        named(render(helm, chart, given), "ConfigMap", "evalstop-scheduler")["data"]["config.yaml"]
    )
    options = scheduler_config.Options(
        f"https://evalstop-extender.{NAMESPACE}.svc:8443",
        *("/tls/ca.crt", "/tls/tls.crt", "/tls/tls.key"),
        files=True,
        ignorable=True,
        weight=3,
        timeout=0.4,
        qps=250,
    )
    assert found == scheduler_config.configuration(options)


def test_rights_follow_the_workload_kinds(helm: Helm, chart: Path) -> None:
    known = set(yaml.safe_load((chart / "values.yaml").read_text())["workloads"])
    assert known == {kind.kind[0].lower() + kind.kind[1:] for kind in KINDS}
    on = rules(named(render(helm, chart), "ClusterRole", "evalstop-operator"))
    off = rules(named(render(helm, chart, {"workloads": {"job": False}}), "ClusterRole", "evalstop-operator"))
    assert on - off == {("batch", "jobs", "", "patch")}
    assert off < on


OLDER = {("batch", "jobs/status", "", "patch")}


def test_a_right_for_older_servers_is_given_there_only(helm: Helm, chart: Path) -> None:
    def found(version: str) -> set[Any]:
        given = values({})
        asked = ("-n", NAMESPACE, f"--kube-version={version}", "-f", "-")
        text = helm("template", "e", str(chart), *asked, stdin=given)
        return rules(named([o for o in yaml.safe_load_all(text) if o], "ClusterRole", "evalstop-operator"))

    assert found("1.35.4") - found("1.36.0") == OLDER


def test_the_plain_manifests_say_the_same_as_the_chart(helm: Helm, chart: Path, repository: Path) -> None:
    """`kubectl apply -k` of deploy/manifests and deploy/extender installs what the chart would."""
    objects = render(
        helm, chart, {"scheduler": SCHEDULER, "delegates": {"kueue": True}, "dashboard": {"enabled": True}}
    )
    plain = []
    for folder in ("manifests", "extender", "dashboard"):
        for path in sorted((repository / "deploy" / folder).glob("*.yaml")):
            plain += [o for o in yaml.safe_load_all(path.read_text()) if o]
    assert plain
    for theirs in plain:
        if theirs["kind"] == "Namespace":
            continue  # Helm makes it: --create-namespace
        ours = named(objects, theirs["kind"], theirs["metadata"]["name"])
        if theirs["kind"] in ("ClusterRole", "Role"):
            assert rules(theirs) - OLDER == rules(ours) - OLDER, theirs["metadata"]["name"]
        elif theirs["kind"] == "Deployment":
            assert container_of(theirs) == container_of(ours), theirs["metadata"]["name"]
        elif theirs["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            assert (theirs["roleRef"], theirs["subjects"]) == (ours["roleRef"], ours["subjects"])
        elif theirs["kind"] in (
            "PriorityClass",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ):
            drop = ("metadata",)
            assert {k: v for k, v in theirs.items() if k not in drop} == {
                k: v for k, v in ours.items() if k not in drop
            }


def test_the_plain_manifests_let_in_whom_the_chart_lets_in(helm: Helm, chart: Path, repository: Path) -> None:
    """And where the chart's policies replace them, which have their names, egress is closed, too."""

    def let_in(objects: list[Object]) -> dict[str, list[Object]]:
        """By namespace and pods: policies add up."""
        found: dict[str, list[Object]] = {}
        for policy in kinds(objects, "NetworkPolicy"):
            pods = f"{policy['metadata']['namespace']} {policy['spec']['podSelector']['matchLabels']}"
            found.setdefault(pods, []).extend(policy["spec"]["ingress"])
        return found

    helm_test = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "evalstop-test"}}}
    on = {"scheduler": SCHEDULER, "dashboard": {"enabled": True}}
    for folders in (
        ("manifests", "extender", "dashboard"),
        ("manifests", "extender", "dashboard", "rollouts"),
    ):
        files = [path for folder in folders for path in (repository / "deploy" / folder).glob("*.yaml")]
        plain = [o for path in sorted(files) for o in yaml.safe_load_all(path.read_text()) if o]
        ours = render(helm, chart, on | (ROLLOUTS if "rollouts" in folders else {}))
        wanted = {
            pods: [rule for rule in rules if rule.get("from") != [helm_test]]
            for pods, rules in let_in(ours).items()
        }
        assert let_in(plain) == wanted
    listed = [
        (repository / "deploy" / f / "Kustomization").read_text()
        for f in ("manifests", "extender", "rollouts")
    ]
    assert all("networkpolicy.yaml" in text for text in listed)
    template = "templates/networkpolicy.yaml"
    addresses = "networkPolicy.apiServerAddresses={10.96.0.1/32,192.0.2.10/32}"
    text = helm(
        "template", "evalstop", str(chart), "-n", NAMESPACE, "--show-only", template, "--set", addresses
    )
    written = list(yaml.safe_load_all(text))
    assert {o["metadata"]["name"] for o in written} <= {
        o["metadata"]["name"] for o in kinds(plain, "NetworkPolicy")
    }
    assert all("Egress" in o["spec"]["policyTypes"] for o in written)


def container_of(deployment: Object) -> Object:
    """A Deployment's container, less what installations choose: image, resources, order of variables."""
    spec = deployment["spec"]["template"]["spec"]
    container = {
        k: v for k, v in spec["containers"][0].items() if k not in ("image", "imagePullPolicy", "resources")
    }
    container["env"] = sorted(container.get("env", ()), key=lambda e: e["name"])
    links, account = spec["enableServiceLinks"], spec["serviceAccountName"]
    return container | {"pod security": spec["securityContext"], "account": account, "links": links}


def test_lint_is_strict_about_every_case(helm: Helm, chart: Path) -> None:
    for given, _ in CASES.values():
        said = helm("lint", "--strict", str(chart), "--namespace", NAMESPACE, "-f", "-", stdin=values(given))
        assert "0 chart(s) failed" in said


def test_certificates_of_an_issuer_bring_no_secret(helm: Helm, chart: Path) -> None:
    objects = render(helm, chart, CERT_MANAGER)
    assert kinds(objects, "Secret") == []
    server, client = (named(objects, "Certificate", f"evalstop-{name}") for name in ("extender", "scheduler"))
    assert server["spec"]["ipAddresses"] == ["10.96.0.20"]
    assert "evalstop-extender.evalstop-system.svc" in server["spec"]["dnsNames"]
    assert server["spec"]["usages"] == ["digital signature", "server auth"]
    assert client["spec"]["usages"] == ["digital signature", "client auth"]
    assert server["spec"]["issuerRef"]["name"] == "ours"


def test_no_name_of_a_registry_or_host_is_in_the_chart(chart: Path) -> None:
    for path in chart.rglob("*"):
        if path.is_file() and "crds" not in path.parts:
            found = re.findall(r"\b(?:docker|gcr|ghcr|quay|registry\.k8s)\.io\b", path.read_text())
            assert not found, f"{path}: {found}"
