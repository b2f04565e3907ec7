"""Match a pod's nodeSelector and required node affinity with a node, as kubelet does."""

from __future__ import annotations

from collections.abc import Mapping

from controller.kube.client import Object


def required(pod: Object) -> list[Object] | None:
    """Return the terms of the required node affinity, of which one must hold; None: it has none."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    wanted = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if wanted is None else list(wanted.get("nodeSelectorTerms") or [])


def asks(pod: Object) -> bool:
    """Return whether the pod minds which node it runs on."""
    return bool(pod["spec"].get("nodeSelector")) or required(pod) is not None


def mismatch(pod: Object, name: str, labels: Mapping[str, str]) -> str | None:
    """Return what the node of this name and these labels lacks; None: it suits the pod."""
    missing = {k: v for k, v in (pod["spec"].get("nodeSelector") or {}).items() if labels.get(k) != v}
    if missing:
        return f"the node has no labels {missing}"
    terms = required(pod)
    if terms is not None and not any(_holds(term, name, labels) for term in terms):
        return f"no term of its required node affinity holds for the node and its labels {dict(labels)}"
    return None


def _holds(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False  # an empty term matches nothing
    return all(_expression(e, labels) for e in expressions) and all(
        _expression(e, {"metadata.name": name}) for e in fields
    )


def _expression(expression: Object, values: Mapping[str, str]) -> bool:
    given, listed = values.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return given in listed
        case "NotIn":  # a node without the label is not in any set of values
            return given not in listed
        case "Exists":
            return given is not None
        case "DoesNotExist":
            return given is None
        case "Gt" | "Lt" as operator:
            try:
                have, limit = int(given or ""), int(listed[0])
            except (ValueError, IndexError):
                return False
            return have > limit if operator == "Gt" else have < limit
    return False  # an operator of a later version
