"""Check that a template has the shape that is read of it, before anything is: no schema has looked at its
fields.

The API server says what is wrong with the rest (a dry run). It is asked with what is made of the template
here, and a list that is a text, or a number that no int holds, would end that with an error that tells the
user nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller import names
from controller.bounded import DIGITS, quoted
from controller.objects import amount
from controller.policy.types import Problem
from controller.workloads.kinds import Kind, Object, Path

# What a value must be: what is expected in words where it is not that; None: it is that.
Leaf = Callable[[Any], str | None]
# Of an object its known fields, of a list what each entry is. What is not named here may be anything.
Shape = Leaf | Mapping[str, Any] | list[Any]


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "a text"


def _texts(value: Any) -> str | None:
    right = isinstance(value, Mapping) and all(isinstance(v, str) for v in value.values())
    return None if right else "an object of texts"


def _port(value: Any) -> str | None:
    right = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 16
    return None if right else "a number from 1 to 65535"


def _gpus(value: Any) -> str | None:
    small = len(str(value)) <= DIGITS if isinstance(value, str) else isinstance(value, int)
    return None if small and amount(value) is not None else "a whole number of GPUs"


def _list(value: Any) -> str | None:
    return None if isinstance(value, list) else "a list"


_AMOUNTS = {names.GPU_RESOURCE: _gpus}
_CONTAINER = {
    "name": _text,
    "ports": [{"name": _text, "containerPort": _port}],
    "resources": {"limits": _AMOUNTS, "requests": _AMOUNTS},
    "env": [{"name": _text}],
    "volumeMounts": [{"name": _text, "mountPath": _text, "subPath": _text}],
    "restartPolicy": _text,
}
_POD: Mapping[str, Shape] = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"name": _text, "configMap": {}, "persistentVolumeClaim": {"claimName": _text}}],
    "nodeSelector": _texts,
    "tolerations": [{}],
    "resourceClaims": _list,
    "schedulerName": _text,
    "priorityClassName": _text,
    "serviceAccountName": _text,
    "securityContext": {},
}
_METADATA: Mapping[str, Shape] = {"name": _text, "labels": _texts, "annotations": _texts}


def shape_problem(kind: Kind, template: Object, where: str) -> Problem | None:
    """Return the first field of a template that is not what it must be to be read."""
    pod = _nested(kind.pod_template, {"metadata": _METADATA, "spec": _POD})
    found = _wrong(template, {"metadata": _METADATA, **pod}, where)
    return None if found is None else Problem("InvalidTemplate", found)


def _wrong(value: Any, shape: Shape, where: str) -> str | None:
    if callable(shape):
        expected = shape(value)
        return None if expected is None else f"{where}: {quoted(value)}, expected {expected}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where}: {quoted(value)}, expected a list"
        entries = (_wrong(entry, shape[0], f"{where}[{i}]") for i, entry in enumerate(value))
        return next((found for found in entries if found is not None), None)
    if not isinstance(value, Mapping):
        return f"{where}: {quoted(value)}, expected an object"
    for name, inner in shape.items():
        # The API server takes null for not set.
        if value.get(name) is not None:
            path = f"{where}.{name}" if name.isalpha() else f"{where}[{name}]"
            if (found := _wrong(value[name], inner, path)) is not None:
                return found
    return None


def _nested(path: Path, shape: Mapping[str, Shape]) -> dict[str, Any]:
    found: Mapping[str, Any] = shape
    for name in reversed(path):
        found = {name: found}
    return dict(found)
