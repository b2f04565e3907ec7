"""A pod template's demands on its node, as kube-scheduler has them: labels, name, taints.

Pure functions on Kubernetes objects. Of the affinity what is required counts; what is preferred rules out
nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from controller import bounded
from controller.frozen import dataclass
from controller.kube.nodes import closed_by, tolerated
from controller.objects import Object, mapping
from controller.policy.wording import STATE_TAINTS

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {"Gt": operator.gt, "Lt": operator.lt}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that every node of a pod must have.

    Attributes:
        text: as people write it: ``disk=nvme``, ``disk In (nvme, ssd)``.
        field: where the pod's spec asks for it.
        key: of the label; "": it is of no single one.
        met: whether a node has it.
    """

    text: str
    field: str
    key: str
    met: Callable[[Object], bool]


def requirements(pod: Object) -> list[Requirement]:
    """Return what a pod's spec asks of labels and name of its node; all of it must be met."""
    found = [_label(str(key), str(value)) for key, value in mapping(pod.get("nodeSelector")).items()]
    required = mapping(mapping(pod.get("affinity")).get("nodeAffinity")).get(REQUIRED)
    if not isinstance(required, dict):
        return found
    terms = [mapping(term) for term in required.get("nodeSelectorTerms") or ()]
    if len(terms) == 1 and (only := list(_of_term(terms[0], f"{TERMS}[0]"))):
        return found + only
    text = f"one of {len(terms)} terms" if len(terms) != 1 else "a term that asks for nothing"
    return [*found, Requirement(text, TERMS, "", lambda node: any(_meets(node, term) for term in terms))]


def labels(node: Object) -> Mapping[str, str]:
    """Return a node's labels."""
    return mapping(mapping(node.get("metadata")).get("labels"))


def refusing(node: Object, pod: Object) -> list[str]:
    """Return taints of a node that keep a pod off, for its template does not tolerate them.

    ``key=value:Effect``; those of the pool and of GPUs its pods tolerate in any case.
    """
    own: Sequence[Object] = [mapping(one) for one in pod.get("tolerations") or ()]
    return [
        f"{taint.get('key')}{'=' if taint.get('value') else ''}{taint.get('value') or ''}:{taint['effect']}"
        for taint in closed_by(node)
        if not str(taint.get("key")).startswith(STATE_TAINTS) and not tolerated(taint, own)
    ]


def _meets(node: Object, term: Object) -> bool:
    """Return whether a node meets a term; one that asks for nothing is met by none."""
    asked = list(_of_term(term, TERMS))
    return bool(asked) and all(one.met(node) for one in asked)


def _label(key: str, value: str) -> Requirement:
    return Requirement(f"{key}={value}", "nodeSelector", key, lambda node: labels(node).get(key) == value)


def _of_term(term: Object, field: str) -> Iterator[Requirement]:
    for name, of in (("matchExpressions", labels), ("matchFields", _fields)):
        for one in term.get(name) or ():
            yield _expression(mapping(one), f"{field}.{name}", of)


def _fields(node: Object) -> Mapping[str, str]:
    return {"metadata.name": str(mapping(node.get("metadata")).get("name", ""))}


def _expression(asked: Object, field: str, of: Callable[[Object], Mapping[str, str]]) -> Requirement:
    key, how = str(asked.get("key", "")), str(asked.get("operator", ""))
    values = [str(value) for value in asked.get("values") or ()]
    text = f"{key} {how} ({', '.join(values)})" if values else f"{key} {how}"
    return Requirement(text, field, key, lambda node: _holds(of(node).get(key), how, values))


def _holds(value: Any, how: str, values: Sequence[str]) -> bool:
    """Return whether a label's value is as asked; None: the node lacks the label."""
    if how in {"In", "NotIn"}:
        return (value in values) == (how == "In")
    if how in {"Exists", "DoesNotExist"}:
        return (value is not None) == (how == "Exists")
    if how not in _COMPARED or len(values) != 1:
        return False
    has, bound = bounded.whole(value), bounded.whole(values[0])
    return has is not None and bound is not None and _COMPARED[how](has, bound)
