"""Schema of a workload's template: as much of it as the API server compares with the gang.

So `kubectl apply --dry-run=server` tells of a template that is not the gang's. Whatever else it says is
checked by the API server when the operator has it make the Job, without making it.
"""

from __future__ import annotations

from typing import Any

from controller import names
from controller.api import markers

Json = dict[str, Any]

CONTAINERS_MAX = 24  # of a pod; more, and the API server does not let CEL look at all of them


def _some(meaning: str, /, **properties: Json) -> Json:
    """Return the schema of an object of which these are known, and all others are kept."""
    return {
        "description": meaning,
        "type": "object",
        "properties": properties,
        **markers.PRESERVE_UNKNOWN,
    }


def _count_of(meaning: str) -> Json:
    return {
        "description": meaning,
        "type": "integer",
        "minimum": 0,
        "maximum": 2**31 - 1,
        **markers.INT32,
    }


_GPUS: Json = {
    "description": "GPUs of the container, a whole number.",
    **markers.INT_OR_STRING,
    "pattern": "^[0-9]+$",
    "maxLength": 9,
}
_LIMITS = _some("What it may use at most.", **{names.GPU_RESOURCE: _GPUS})
_CONTAINERS: Json = {
    "description": "Its containers.",
    "type": "array",
    "maxItems": CONTAINERS_MAX,
    **markers.ATOMIC,
    "items": _some("A container.", resources=_some("What it uses.", limits=_LIMITS)),
}


def _list(meaning: str) -> Json:
    return {
        "description": meaning,
        "type": "array",
        "maxItems": CONTAINERS_MAX,
        **markers.ATOMIC,
        "items": _some(meaning),
    }


_POD = _some(
    "The pod's spec.",
    containers=_CONTAINERS,
    initContainers=_list("What runs before them, or beside them."),
    resourceClaims=_list("Devices that are claimed."),
)
SPEC = _some(
    "Its spec; completions and parallelism equal gang.replicas, the GPUs of a pod gang.gpusPerReplica.",
    completions=_count_of("Pods that are to end well."),
    parallelism=_count_of("Pods at once."),
    template=_some("What its pods are.", spec=_POD),
)

_AT = "self.workload.template.spec"
_POD_AT = f"{_AT}.template.spec"
_HAS_SPEC = f"has(self.workload.template) && has({_AT})"
_HAS_POD = f"{_HAS_SPEC} && has({_AT}.template) && has({_POD_AT}) && has({_POD_AT}.containers)"
# A pod without any limit of GPUs, too, is left to the operator.
# Of a pod with sidecars or resource claims the operator counts: that takes more than a sum.
_PLAIN = f"!has({_POD_AT}.initContainers) && !has({_POD_AT}.resourceClaims)"
_GPU = "c.resources.limits." + names.GPU_RESOURCE.replace(".", "__dot__").replace("/", "__slash__")
_HAS_GPU = f"has(c.resources) && has(c.resources.limits) && has({_GPU})"
_SUM = f"{_POD_AT}.containers.map(c, {_HAS_GPU} ? int(string({_GPU})) : 0).sum()"


def _count(field: str) -> markers.Extra:
    return markers.rule(
        f"!({_HAS_SPEC} && has({_AT}.{field})) || {_AT}.{field} == self.gang.replicas",
        f"workload.template.spec.{field} is %d, expected %d as in gang.replicas: all pods of a gang run at "
        "once",
        f"{_AT}.{field}",
        "self.gang.replicas",
        path=".workload.template",
    )


GANG_RULES = (
    _count("completions"),
    _count("parallelism"),
    markers.rule(
        f"!({_HAS_POD} && {_PLAIN}) || {_SUM} in [0, self.gang.gpusPerReplica]",
        f"the containers of workload.template have %d {names.GPU_RESOURCE} in their limits, expected %d "
        "as in gang.gpusPerReplica",
        _SUM,
        "self.gang.gpusPerReplica",
        path=".workload.template",
    ),
)
