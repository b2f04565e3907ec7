"""values.schema.json: what each value of the chart may be. Closed: any other name is refused by its path.

Settings of operator and extender are read from the code that reads them, pools from the CRD's own schema: a
new setting or field is a value of the chart without a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from controller.api.crd import RESOURCES, crd
from controller.extender import settings as extender
from controller.notify import settings as notify
from controller.operator.process import settings as operator
from controller.web.dashboard import settings as dashboard

Json = dict[str, Any]

# What the chart sets itself, since other objects of it depend on these.
_METRICS = {"metricsHost", "metricsPort", "metricsAccess", "metricsCertificate", "metricsKey"}
OPERATOR_OWN = {"host", "port", "accessImage", "decisionLog", "leaseName", "leaseNamespace", "instance"}
OPERATOR_OWN |= {"watchNamespaces", *_METRICS, "stepsHost", "stepsPort", "stepsCertificate", "stepsKey"}
OPERATOR_OWN |= {"stepsCa", "stepsUrls", "actorImage"}
EXTENDER_OWN = {
    *("host", "port", "certificate", "key", "clientCa", "statusHost", "statusPort"),
    *("schedulerName", "schedulerConfig", "namespace"),
    *_METRICS,
}
DASHBOARD_OWN = {
    "host",
    "port",
    "statusHost",
    "statusPort",
    "tlsCert",
    "tlsKey",
    "allowedHosts",
    "operatorNamespace",
}
NOTIFY_OWN = {"host", "port", "urlFile"}
_RANGE = re.compile(r"\b(?:from|seconds, from) ([\d.e+-]+) to ([\d.e+]+)")
_SEVERAL = re.compile(r"; some of (.+), separated by commas$")
_ADDRESSES = re.compile(r"; address classes \((.+)\) and networks, separated by commas$")
# Keywords of OpenAPI v3 in a CRD that draft 7 understands in the same sense.
_KEPT = (
    *("type", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)


def obj(properties: Json, *required: str) -> Json:
    """Return an object with these properties and no others."""
    found: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


def whole(low: int, high: int) -> Json:
    return {"type": "integer", "minimum": low, "maximum": high}


def mapping(value: Json) -> Json:
    return {"type": "object", "additionalProperties": value}


def array(items: Json) -> Json:
    return {"type": "array", "items": items}


def ref(name: str) -> Json:
    return {"$ref": f"#/definitions/{name}"}


STRING: Json = {"type": "string"}
BOOL: Json = {"type": "boolean"}
SEVERAL: Json = {"type": "array", "items": STRING}
NAME: Json = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"}
IMAGE: Json = {"type": "string", "pattern": r"^\S*$"}
PULL: Json = {"enum": ["Always", "IfNotPresent", "Never"]}
PORT: Json = whole(1, 65535)
CIDR: Json = {"type": "string", "pattern": r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"}
LABEL: Json = {"type": "string", "pattern": r"^([a-zA-Z0-9][-_./a-zA-Z0-9]{0,315})?$"}
WHO: Json = {"type": "string", "pattern": "^[^'\"\\\\]+$"}  # user or group: goes into an expression


def camel(name: str) -> str:
    """``relist_seconds`` -> ``relistSeconds``: how settings are called in values."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def setting(default: str, meaning: str) -> Json:
    """Return the schema of a setting, by what its description says it may be."""
    found: Json = {"description": meaning}
    bounds = _RANGE.search(meaning)
    choice = re.search(r"; one of (.+)$", meaning)
    if choice:
        return found | {"enum": choice.group(1).split(", ")}
    if meaning.endswith("; true or false"):
        return found | {"type": "boolean"}
    if several := _SEVERAL.search(meaning):
        items = re.split(", | and ", several.group(1))
        return found | {"type": "string", "pattern": _by_commas("|".join(items))}
    if classes := _ADDRESSES.search(meaning):
        network = r"[0-9a-fA-F:.]*[0-9:][0-9a-fA-F:.]*(/([0-9]{1,3}|[0-9.]{7,15}))?"
        pattern = _by_commas("|".join((*map(_any_case, classes.group(1).split(", ")), network)))
        return found | {"type": "string", "pattern": pattern}
    if bounds:
        kind = "integer" if re.fullmatch(r"-?\d+", default) else "number"
        low, high = (float(bound) for bound in bounds.groups())
        return found | {"type": kind, "minimum": _plain(low), "maximum": _plain(high)}
    return found | {"type": "string"}


def _by_commas(item: str) -> str:
    """Return the pattern of several of an item, separated by commas, as `controller.environ.listed` reads
    them."""
    return rf"^[\s,]*({item})(\s*,[\s,]*({item}))*[\s,]*$"


def _any_case(word: str) -> str:
    return "".join(f"[{letter.upper()}{letter.lower()}]" for letter in word)


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def settings(rows: list[tuple[str, str, str]], prefix: str, own: set[str]) -> Json:
    found = {camel(variable.removeprefix(prefix).lower()): (default, doc) for variable, default, doc in rows}
    return obj({name: setting(*row) for name, row in sorted(found.items()) if name not in own})


def of_openapi(schema: Mapping[str, Any]) -> Json:
    """Return a structural schema of a CRD in the words of JSON Schema draft 7: closed, unless it is open."""
    found: Json = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {**found, "type": ["integer", "string"]}
    if "properties" in schema:
        found["properties"] = {name: of_openapi(part) for name, part in schema["properties"].items()}
        found["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(schema.get("additionalProperties"), Mapping):
        found["additionalProperties"] = of_openapi(schema["additionalProperties"])
    if "items" in schema:
        found["items"] = of_openapi(schema["items"])
    return found


def pool_spec() -> Json:
    """Return the spec of a GPUPool."""
    resource = next(r for r in RESOURCES if r.plural == "gpupools")
    version = crd(resource)["spec"]["versions"][0]
    return of_openapi(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def definitions() -> Json:
    """Kubernetes' own types, as far as values hold them."""
    expression = {"key": STRING, "operator": STRING, "values": SEVERAL}
    selector = obj(
        {"matchLabels": mapping(STRING), "matchExpressions": array(obj(expression, "key", "operator"))}
    )
    node_term = obj(
        {key: array(obj(expression, "key", "operator")) for key in ("matchExpressions", "matchFields")}
    )
    pod_term = obj(
        {
            "labelSelector": ref("labelSelector"),
            "namespaceSelector": ref("labelSelector"),
            "namespaces": SEVERAL,
            "topologyKey": STRING,
            "matchLabelKeys": SEVERAL,
            "mismatchLabelKeys": SEVERAL,
        },
        "topologyKey",
    )
    required, preferred = (
        f"{way}DuringSchedulingIgnoredDuringExecution" for way in ("required", "preferred")
    )
    weighted = {"weight": whole(1, 100)}
    pods = obj(
        {
            required: array(ref("podAffinityTerm")),
            preferred: array(obj(weighted | {"podAffinityTerm": ref("podAffinityTerm")}, "weight")),
        }
    )
    nodes = obj(
        {
            required: obj({"nodeSelectorTerms": array(ref("nodeSelectorTerm"))}, "nodeSelectorTerms"),
            preferred: array(obj(weighted | {"preference": ref("nodeSelectorTerm")}, "weight", "preference")),
        }
    )
    port = obj(
        {"protocol": {"enum": ["TCP", "UDP", "SCTP"]}, "port": {"anyOf": [PORT, NAME]}, "endPort": PORT}
    )
    peers = array(ref("peer"))
    quantity = {"type": ["string", "number"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
    return {
        "labelSelector": selector,
        "nodeSelectorTerm": node_term,
        "podAffinityTerm": pod_term,
        "affinity": obj({"nodeAffinity": nodes, "podAffinity": pods, "podAntiAffinity": pods}),
        "toleration": obj(
            {
                "key": STRING,
                "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
                "value": STRING,
                "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "tolerationSeconds": {"type": "integer"},
            }
        ),
        "resources": obj({"requests": mapping(quantity), "limits": mapping(quantity)}),
        "peer": obj(
            {
                "podSelector": ref("labelSelector"),
                "namespaceSelector": ref("labelSelector"),
                "ipBlock": obj({"cidr": STRING, "except": SEVERAL}, "cidr"),
            }
        ),
        "egress": obj({"to": peers, "ports": array(port)}),
        "ingress": obj({"from": peers, "ports": array(port)}),
    }


def component(more: Json, *, replicas: bool = True) -> Json:
    """Return what operator, extender and scheduler have in common, and more."""
    return obj(
        {
            **({"replicas": whole(1, 9)} if replicas else {}),
            "resources": ref("resources"),
            "priorityClassName": STRING,
            "nodeSelector": mapping(STRING),
            "tolerations": array(ref("toleration")),
            "affinity": ref("affinity"),
            "podLabels": mapping(STRING),
            "podAnnotations": mapping(STRING),
            "serviceAccountAnnotations": mapping(STRING),
            **more,
        }
    )


def monitor(*more: str) -> Json:
    words = {
        "interval": {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"},
        "annotations": mapping(STRING),
        "tokenSecret": obj({"name": NAME, "key": STRING}),
    }
    return obj({"enabled": BOOL, "labels": mapping(STRING), **{name: words[name] for name in more}})


def schema() -> Json:
    """Return the whole of values.schema.json."""
    certificates = {
        "mode": {"enum": ["generate", "certManager", "existing"]},
        "days": whole(1, 3650),
        "hosts": SEVERAL,
        "issuerRef": obj({"name": STRING, "kind": {"enum": ["Issuer", "ClusterIssuer"]}, "group": STRING}),
    }
    decision_log = {
        "enabled": BOOL,
        "existingClaim": STRING,
        "sizeLimit": {"type": "string", "pattern": r"^[0-9]+(Ki|Mi|Gi|Ti)$"},
    }
    image = obj(
        {
            "repository": {"type": "string", "pattern": r"^\S+$"},
            "digest": {"type": "string", "pattern": r"^(sha256:[0-9a-f]{64})?$"},
        }
    )
    pool = {"name": NAME, "labels": mapping(STRING), "spec": pool_spec()}
    properties = {
        "global": mapping({}),  # Helm's own: a parent chart hands its globals down
        "image": obj(
            {
                **dict.fromkeys(("operator", "access", "dashboard", "actor"), image),
                "tag": {"type": "string", "pattern": r"^[\w.-]{0,128}$"},
                "pullPolicy": PULL,
                "pullSecrets": array(NAME),
            }
        ),
        "crds": obj({"install": BOOL}),
        "workloads": obj({"job": BOOL}),
        "delegates": obj({"kueue": BOOL}),
        "pools": array(obj(pool, "name", "spec")),
        "operator": component(
            {
                "settings": settings(operator.describe(), operator.PREFIX, OPERATOR_OWN),
                "decisionLog": obj(decision_log),
                "watchNamespaces": array(NAME),
            }
        ),
        "extender": component(
            {
                "enabled": BOOL,
                "settings": settings(extender.describe(), extender.PREFIX, EXTENDER_OWN),
                "url": {"type": "string", "pattern": r"^(https://\S+)?$"},
                "ignorable": BOOL,
                "timeoutMilliseconds": whole(50, 60000),
                "weight": whole(1, 1000),
                "certificates": obj(certificates),
            }
        ),
        "rollouts": obj({"enabled": BOOL, "url": {"type": "string", "pattern": r"^(https://\S+)?$"}}),
        "dashboard": component(
            {
                "enabled": BOOL,
                "settings": settings(dashboard.describe(), dashboard.PREFIX, DASHBOARD_OWN),
                "tlsSecret": STRING,
                "hosts": SEVERAL,
            }
        ),
        "notify": component(
            {
                "enabled": BOOL,
                "settings": settings(notify.describe(), notify.PREFIX, NOTIFY_OWN),
                "urlSecret": STRING,
            },
            replicas=False,
        ),
        "scheduler": component(
            {
                "enabled": BOOL,
                "image": IMAGE,
                "imagePullPolicy": PULL,
                "qps": {"type": "number", "minimum": 1, "maximum": 100000},
            }
        ),
        "policies": obj(
            {
                "author": obj({"enabled": BOOL}),
                "operator": obj({"enabled": BOOL, "namespaceLabel": LABEL}),
                "gpuPods": obj(
                    {"enabled": BOOL, "users": array(WHO), "groups": array(WHO), "kueue": WHO},
                ),
            }
        ),
        "rbac": obj({"aggregate": BOOL}),
        "networkPolicy": obj(
            {
                "enabled": BOOL,
                "apiServerPorts": {"type": "array", "items": PORT, "minItems": 1},
                "apiServerAddresses": array(CIDR),
                "metricsFrom": array(ref("peer")),
                "extenderFrom": array(ref("peer")),
                "dashboardFrom": array(ref("peer")),
                "stepsFrom": array(ref("peer")),
                "operatorTo": array(ref("egress")),
                "operatorFrom": array(ref("ingress")),
                "dashboardTo": array(ref("egress")),
                "notifyTo": array(ref("egress")),
                "schedulerTo": array(ref("egress")),
            }
        ),
        "metrics": obj(
            {
                "access": {"enum": ["review", "open"]},
                "readers": array(obj({"name": NAME, "namespace": NAME}, "name", "namespace")),
            }
        ),
        "monitoring": obj(
            {
                "serviceMonitor": monitor("interval", "tokenSecret"),
                "prometheusRule": monitor(),
                "dashboards": monitor("annotations"),
            }
        ),
        "test": obj({"services": BOOL}),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the EvalStop chart",
        **obj(properties),
        "definitions": definitions(),
    }
