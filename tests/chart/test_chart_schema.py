"""values.schema.json refuses what cannot be right, by its path, and takes what the documentation shows."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import NAMESPACE, render, values

from controller.extender.settings import Settings as ExtenderSettings
from controller.operator.process.settings import PREFIX, describe
from controller.operator.process.settings import Settings as OperatorSettings
from deploy.helm import generate, schema
from deploy.local.errors import PlaneError
from deploy.local.helm.client import Helm

POOL = {
    "name": "research",
    "spec": {
        "nodeSelector": [{"key": "evalstop.dev/gpu-pool", "value": "research"}],
        "queuePolicy": {"fifo": {}},
        "allowedNamespaces": [{"name": "*", "maxPriority": 0}],
    },
}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"operatr": {}}, "additional properties 'operatr' not allowed"),
    ({"operator": {"replica": 2}}, "at '/operator': additional properties 'replica' not allowed"),
    ({"operator": {"replicas": 0}}, "at '/operator/replicas': minimum: got 0, want 1"),
    ({"operator": {"replicas": "2"}}, "at '/operator/replicas': got string, want integer"),
    ({"operator": {"settings": {"worker": 4}}}, "at '/operator/settings': additional properties 'worker'"),
    ({"operator": {"settings": {"workers": 0}}}, "at '/operator/settings/workers': minimum: got 0, want 1"),
    ({"operator": {"settings": {"apiTimeout": 1e9}}}, "at '/operator/settings/apiTimeout': maximum"),
    ({"operator": {"settings": {"logLevel": "LOUD"}}}, "at '/operator/settings/logLevel': value must be one"),
    ({"operator": {"settings": {"scrapeAddresses": "Privat"}}}, "at '/operator/settings/scrapeAddresses'"),
    ({"operator": {"settings": {"scrapeAddresses": "Private;Public"}}}, "/operator/settings/scrapeAddresses"),
    ({"operator": {"settings": {"storeEndpoints": "Htps"}}}, "at '/operator/settings/storeEndpoints'"),
    ({"operator": {"settings": {"leaderElect": "yes"}}}, "at '/operator/settings/leaderElect': got string"),
    ({"operator": {"settings": {"port": 9}}}, "at '/operator/settings': additional properties 'port'"),
    ({"operator": {"resources": {"limits": {"memory": "lots"}}}}, "at '/operator/resources/limits/memory'"),
    ({"operator": {"resources": {"limit": {}}}}, "at '/operator/resources': additional properties 'limit'"),
    ({"operator": {"tolerations": [{"keys": "a"}]}}, "at '/operator/tolerations/0': additional properties"),
    ({"operator": {"tolerations": [{"effect": "Never"}]}}, "at '/operator/tolerations/0/effect': value must"),
    ({"operator": {"affinity": {"node": {}}}}, "at '/operator/affinity': additional properties 'node'"),
    ({"operator": {"nodeSelector": {"gpu": True}}}, "at '/operator/nodeSelector/gpu': got boolean"),
    ({"operator": {"decisionLog": {"sizeLimit": "1GB"}}}, "at '/operator/decisionLog/sizeLimit'"),
    ({"extender": {"url": "http://x"}}, "at '/extender/url': 'http://x' does not match pattern"),
    ({"extender": {"weight": 0}}, "at '/extender/weight': minimum"),
    ({"extender": {"timeoutMilliseconds": 5}}, "at '/extender/timeoutMilliseconds': minimum"),
    ({"extender": {"settings": {"lookSeconds": 0}}}, "at '/extender/settings/lookSeconds': minimum"),
    (
        {"extender": {"certificates": {"mode": "magic"}}},
        "at '/extender/certificates/mode': value must be one",
    ),
    ({"extender": {"certificates": {"days": 0}}}, "at '/extender/certificates/days': minimum"),
    ({"rollouts": {"url": "http://steps"}}, "at '/rollouts/url': 'http://steps' does not match pattern"),
    ({"rollouts": {"port": 8446}}, "at '/rollouts': additional properties 'port' not allowed"),
    ({"networkPolicy": {"stepsFrom": [{"pods": {}}]}}, "at '/networkPolicy/stepsFrom/0': additional"),
    ({"scheduler": {"image": "a b"}}, "at '/scheduler/image'"),
    ({"scheduler": {"qps": 0}}, "at '/scheduler/qps': minimum"),
    ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of"),
    ({"image": {"operator": {"digest": "sha256:12"}}}, "at '/image/operator/digest'"),
    ({"image": {"access": {"repository": ""}}}, "at '/image/access/repository'"),
    ({"image": {"repository": "a"}}, "at '/image': additional properties 'repository' not allowed"),
    ({"workloads": {"rayJob": True}}, "at '/workloads': additional properties 'rayJob' not allowed"),
    ({"pools": [{"name": "a"}]}, "at '/pools/0': missing property 'spec'"),
    ({"pools": [POOL | {"name": "A_b"}]}, "at '/pools/0/name': 'A_b' does not match pattern"),
    ({"pools": [POOL | {"spec": POOL["spec"] | {"queue": {}}}]}, "at '/pools/0/spec': additional properties"),  # type: ignore[operator]
    (
        {"pools": [POOL | {"spec": POOL["spec"] | {"queuePolicy": {"fofi": {}}}}]},  # type: ignore[operator]
        "at '/pools/0/spec/queuePolicy': additional properties 'fofi' not allowed",
    ),
    ({"networkPolicy": {"apiServerPorts": []}}, "at '/networkPolicy/apiServerPorts': minItems"),
    ({"networkPolicy": {"apiServerPorts": [70000]}}, "at '/networkPolicy/apiServerPorts/0': maximum"),
    ({"networkPolicy": {"metricsFrom": [{"pods": {}}]}}, "at '/networkPolicy/metricsFrom/0': additional"),
    ({"networkPolicy": {"operatorTo": [{"from": []}]}}, "at '/networkPolicy/operatorTo/0': additional"),
    ({"networkPolicy": {"operatorFrom": [{"to": []}]}}, "at '/networkPolicy/operatorFrom/0': additional"),
    (
        {"networkPolicy": {"dashboardTo": [{"ports": [{"port": 0}]}]}},
        "at '/networkPolicy/dashboardTo/0/ports/0/port'",
    ),
    ({"monitoring": {"serviceMonitor": {"interval": "soon"}}}, "at '/monitoring/serviceMonitor/interval'"),
    ({"metrics": {"access": "everybody"}}, "at '/metrics/access': value must be one"),
    (
        {"metrics": {"readers": [{"name": "prometheus"}]}},
        "at '/metrics/readers/0': missing property 'namespace'",
    ),
    ({"networkPolicy": {"dashboardFrom": [{"pods": {}}]}}, "at '/networkPolicy/dashboardFrom/0': additional"),
    ({"crds": {"install": "yes"}}, "at '/crds/install': got string, want boolean"),
    ({"rbac": None} | {"rbac": {"clusterAdmin": True}}, "at '/rbac': additional properties 'clusterAdmin'"),
]


@pytest.mark.parametrize(("given", "path"), REFUSED, ids=[path for _, path in REFUSED])
def test_wrong_values_are_refused_by_their_path(
    helm: Helm, chart: Path, given: dict[str, Any], path: str
) -> None:
    done = helm.run("template", "evalstop", str(chart), "-n", NAMESPACE, "-f", "-", stdin=values(given))
    assert done.returncode != 0, f"accepted: {given}"
    assert path in done.stderr, done.stderr


GUARDED = [
    (
        {"scheduler": {"enabled": True}},
        "scheduler.image is empty: set it to the kube-scheduler of this cluster",
    ),
    (
        {"scheduler": {"enabled": True, "image": "a:b"}, "extender": {"enabled": False}},
        "extender.enabled is false: give extender.url",
    ),
    (
        {
            "scheduler": {"enabled": True, "image": "a:b"},
            "extender": {"enabled": False, "url": "https://10.96.0.20:8443"},
        },
        "extender.enabled is false: give networkPolicy.schedulerTo",
    ),
    ({"extender": {"certificates": {"mode": "certManager"}}}, "give extender.certificates.issuerRef.name"),
    (
        {"operator": {"replicas": 2, "settings": {"leaderElect": False}}},
        "without a Lease each of them would act",
    ),
    (
        {"operator": {"settings": {"leaseSeconds": 5}}},
        "leaseRetrySeconds (2) < leaseRenewSeconds (10) < leaseSeconds (5) is needed",
    ),
    ({"operator": {"settings": {"leaseRenewSeconds": 1.5}}}, "leaseRenewSeconds (1.5) < leaseSeconds (15)"),
    (
        {"operator": {"decisionLog": {"sizeLimit": "10Mi"}}},
        "operator.decisionLog.sizeLimit is 10Mi, and the log may take 4 files of 67108864 bytes",
    ),
    ({"operator": {"settings": {"decisionLogFiles": 17}}}, "1Gi, and the log may take 17 files of 67108864"),
    ({"pools": [POOL, POOL]}, f"pools[1].name: {POOL['name']} is there twice"),
    (
        {"pools": [POOL | {"spec": POOL["spec"] | {"schedulerName": "evalstop-scheduler"}}]},  # type: ignore[operator]
        "pools[0].spec.schedulerName is evalstop-scheduler, and scheduler.enabled is false",
    ),
    (
        {"pools": [POOL | {"spec": POOL["spec"] | {"delegate": "Kueue", "kueue": {"localQueue": "q"}}}]},  # type: ignore[operator]
        "pools[0].spec.delegate is Kueue, and delegates.kueue is false",
    ),
]


@pytest.mark.parametrize(("given", "words"), GUARDED)
def test_values_that_contradict_each_other_are_refused_in_a_sentence(
    helm: Helm, chart: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlaneError) as caught:
        render(helm, chart, given)
    assert words in str(caught.value)


def test_templates_that_count_with_a_setting_have_its_default(chart: Path) -> None:
    known = {schema.camel(name.removeprefix(PREFIX).lower()): default for name, default, _ in describe()}
    templates = "".join(file.read_text() for file in sorted((chart / "templates").glob("*.yaml")))
    taken = dict(re.findall(r'dig "(\w+)" (\d+) ', templates))
    assert taken, "none counts with one"
    assert {name: float(value) for name, value in taken.items()} == {n: float(known[n]) for n in taken}


def test_everything_that_may_be_set_is_taken(helm: Helm, chart: Path) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}},
                }
            ]
        },
    }
    workers = {"name": "workers", "image": "dense-7b:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    family = {
        "name": "dense-7b",
        "replicas": 2,
        "gpusPerReplica": 8,
        "deviceBytes": 640,
        "hostBytes": 900,
        "template": {"spec": {"containers": [workers]}},  # of a pod: open to all that pods may have
    }
    shared = POOL["spec"] | {"sharing": {"families": [family]}}  # type: ignore[operator]
    given = {
        "image": {"operator": {"digest": "sha256:" + "0" * 64}, "pullSecrets": ["pull"]},
        "pools": [POOL | {"labels": {"team": "a"}, "spec": shared}],
        "operator": {
            "settings": {
                "workers": 16,
                "decisionLogBytes": 1099511627776,
                "apiTimeout": 2.5,
                "drainSeconds": 95.5,
                "scrapeAddresses": "private, 100.64.0.0/10,,10.0.0.0/255.0.0.0, fd00::/8,",
                "storeEndpoints": "Https,ClusterHttp",
            },
            "decisionLog": {"sizeLimit": "4Ti"},
            "affinity": affinity,
            "tolerations": [{"key": "evalstop.dev/pool", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    }
    objects = render(helm, chart, given)
    operator = next(o for o in objects if o["kind"] == "Deployment" and "operator" in o["metadata"]["name"])
    spec = operator["spec"]["template"]["spec"]
    environment = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    assert environment["EVALSTOP_DECISION_LOG_BYTES"] == "1099511627776"
    assert environment["EVALSTOP_API_TIMEOUT"] == "2.5"
    assert spec["terminationGracePeriodSeconds"] == 116, "what it takes for its passes, and 20 s to end"
    assert spec["containers"][0]["image"] == "evalstop/operator@sha256:" + "0" * 64
    assert environment["EVALSTOP_ACCESS_IMAGE"] == "evalstop/access:0.1.0"
    assert spec["affinity"] == affinity
    assert OperatorSettings.from_environ(
        {k: v or "x" for k, v in environment.items() if k.startswith("EVALSTOP_")}
    )


def open_objects(part: Any, path: str = "") -> list[str]:
    """Paths of object schemas that say nothing of other properties."""
    if isinstance(part, list):
        return [found for i, item in enumerate(part) for found in open_objects(item, f"{path}/{i}")]
    if not isinstance(part, dict):
        return []
    own = [path] if part.get("type") == "object" and "additionalProperties" not in part else []
    return own + [found for key, item in part.items() for found in open_objects(item, f"{path}/{key}")]


def test_the_schema_is_closed_everywhere(chart: Path) -> None:
    found = json.loads((chart / "values.schema.json").read_text())
    assert open_objects(found) == []
    anything = [p for p in found["properties"] if found["properties"][p].get("additionalProperties") == {}]
    assert anything == ["global"]  # Helm's own


def test_generated_files_are_up_to_date() -> None:
    assert not generate.stale(), "run `make generate`"


def test_every_setting_is_a_value_or_the_charts_own() -> None:
    for cls, own, part in (
        (OperatorSettings, schema.OPERATOR_OWN, "operator"),
        (ExtenderSettings, schema.EXTENDER_OWN, "extender"),
    ):
        fields = {schema.camel(f.name) for f in dataclasses.fields(cls)}
        known = schema.schema()["properties"][part]["properties"]["settings"]["properties"]
        assert own <= fields, "a setting that the chart sets is gone"
        assert set(known) == fields - own
        assert all({"type", "enum"} & set(one) for one in known.values())


def test_the_charts_readme_names_every_part_of_its_values(repository: Path) -> None:
    chart = repository / "deploy" / "helm" / "evalstop"
    told = (chart / "README.md").read_text()
    parts = yaml.safe_load((chart / "values.yaml").read_text())
    assert [name for name in parts if f"`{name}`" not in told] == []
