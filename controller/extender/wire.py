"""kube-scheduler's extender messages (k8s.io/kube-scheduler/extender/v1), read and written as they travel.

The Go types carry no JSON tags: field names are the Go names, capitalised. Pods and nodes inside are plain
Kubernetes objects and grow with every release, so they are left as they come. A null list means as much as
an absent one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from controller.frozen import dataclass
from controller.policy.node import Judgement


class BadRequest(Exception):
    """The message is not what kube-scheduler sends; the text names field, value and what would be right."""


@dataclass(frozen=True, slots=True)
class Args:
    """``ExtenderArgs``. ``items``: the nodes themselves, by name, when the scheduler sent them whole."""

    pod: Mapping[str, Any]
    nodes: list[str]
    items: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """``ExtenderPreemptionArgs``: uids of the victims of each candidate node, and its broken budgets."""

    pod: Mapping[str, Any]
    victims: dict[str, list[str]]
    violations: dict[str, int]


def parse(body: bytes) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        BadRequest: it is none.
    """
    try:
        # Node names differ in every byte of interest: remembering them would cost more than it saves.
        value = from_json(body, cache_strings="keys")
    except ValueError as error:
        raise BadRequest(f"body: no JSON ({error}); expected the JSON that kube-scheduler sends") from None
    if not isinstance(value, Mapping):
        raise BadRequest(f"body: {type(value).__name__}, expected an object with Pod and NodeNames")
    return value


def args(message: Mapping[str, Any]) -> Args:
    """``ExtenderArgs``, with names (nodeCacheCapable) or with whole nodes.

    Raises:
        BadRequest: a field has the wrong type.
    """
    pod, given = _pod(message), message.get("NodeNames")
    if given is not None:
        if not isinstance(given, list) or not all(map(str.__instancecheck__, given)):
            raise BadRequest("NodeNames: expected a list of names or null")
        return Args(pod, given)
    whole = message.get("Nodes")
    if whole is None:
        return Args(pod, [])
    items = whole.get("items") if isinstance(whole, Mapping) else whole
    try:
        nodes = {str(node["metadata"]["name"]): node for node in items or ()}
    except (KeyError, TypeError):
        raise BadRequest("Nodes: expected a NodeList whose items have metadata.name, or null") from None
    return Args(pod, list(nodes), nodes)


def preemption_args(message: Mapping[str, Any]) -> PreemptionArgs:
    """``ExtenderPreemptionArgs``, with uids (nodeCacheCapable) or with whole pods.

    Raises:
        BadRequest: a field has the wrong type.
    """
    pod = _pod(message)
    meta, whole = message.get("NodeNameToMetaVictims"), message.get("NodeNameToVictims")
    field = "NodeNameToMetaVictims" if meta is not None else "NodeNameToVictims"
    candidates = meta if meta is not None else whole if whole is not None else {}
    if not isinstance(candidates, Mapping):
        raise BadRequest(f"{field}: {type(candidates).__name__}, expected an object or null")
    victims: dict[str, list[str]] = {}
    violations: dict[str, int] = {}
    for node, found in candidates.items():
        try:
            pods = (found or {}).get("Pods") or ()
            victims[node] = [str(p["UID"] if meta is not None else p["metadata"]["uid"]) for p in pods]
            violations[node] = int((found or {}).get("NumPDBViolations") or 0)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise BadRequest(
                f"{field}[{node}]: expected Pods, each with its uid, and NumPDBViolations"
            ) from None
    return PreemptionArgs(pod, victims, violations)


def filter_result(asked: Args, judgement: Judgement) -> dict[str, Any]:
    """``ExtenderFilterResult``. The list of nodes is always sent, be it empty: null would mean the same as
    "no node fits", but only by accident."""
    refused, final = judgement.refused, judgement.final
    result: dict[str, Any] = {
        "Nodes": None,
        "NodeNames": judgement.passed,
        "FailedNodes": None if final else refused,
        "FailedAndUnresolvableNodes": refused if final else None,
        "Error": "",
    }
    if asked.items is not None:
        result["Nodes"] = {"metadata": {}, "items": [asked.items[name] for name in judgement.passed]}
        result["NodeNames"] = None
    return result


def priorities(nodes: Sequence[str], scores: Sequence[int]) -> list[dict[str, Any]]:
    """``HostPriorityList``: a bare array."""
    return [{"Host": node, "Score": score} for node, score in zip(nodes, scores, strict=True)]


def preemption_result(asked: PreemptionArgs, left: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """``ExtenderPreemptionResult``: always uids; a node left out is no candidate."""
    return {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": asked.violations[node]}
            for node, uids in left.items()
        }
    }


def _pod(message: Mapping[str, Any]) -> Mapping[str, Any]:
    pod = message.get("Pod")
    if not isinstance(pod, Mapping):
        raise BadRequest(f"Pod: {type(pod).__name__}, expected the pod that is to be placed")
    return pod
