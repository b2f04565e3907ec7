"""Hints: where a template names another port, folder or address than the rest of its spec.

A run that nobody reads looks like one that loads. Where the template names the very value that is wanted, the
message of the condition says so, and the cure that is printed needs nobody to fill it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from controller import names
from controller.policy.wording import did_you_mean
from controller.workloads.kinds import find, get

Object = Mapping[str, Any]

_LOOPBACK = re.compile(r"(?<![\w.])(127\.0\.0\.1|localhost|\[?::1\]?)(?![\w.])")
_HOST = re.compile(r"host|addr|bind|listen", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.])(/[\w./-]+)")


def address_hint(rlhfjob: Object) -> str:
    """Return what the template says against the address that is read, a clause for a message; "": nothing."""
    containers = list(_containers(rlhfjob))
    wanted = get(rlhfjob, ("spec", "scrape", "port"))
    ports = [port for _, container in containers for port in container.get("ports") or ()]
    named = [p.get("containerPort") for p in ports if p.get("name") == names.METRICS_PORT_NAME]
    if wanted is not None and len(named) == 1 and named[0] != wanted:
        return f"the template has port {named[0]} by the name metrics: {did_you_mean(str(named[0]))}"
    for index, container in containers:
        for field, place, text in _words(container):
            if _LOOPBACK.search(text) and _HOST.search(f"{place} {text}"):
                better = _LOOPBACK.sub(_own_address(container), text)
                where = f"containers[{index}].{field}"
                return f"{where} is {text!r}, which only the pod itself reaches: {did_you_mean(better)}"
    return ""


def folder_hint(rlhfjob: Object) -> str:
    """Return the folder of the checkpoints' claim that the template names, if it is one, and another one than
    the spec; "": nothing. Where it names a checkpoint, as step-latest, that is the folder above it."""
    claim = get(rlhfjob, ("spec", "checkpoints", "location", "volumeClaim"))
    if not isinstance(claim, Mapping):
        return ""
    pod = _pod(rlhfjob)
    volumes = {
        volume.get("name")
        for volume in pod.get("volumes") or ()
        if get(volume, ("persistentVolumeClaim", "claimName")) == claim.get("claimName")
    }
    spec = _normal(str(claim.get("path") or "/"))
    found = set()
    for _, container in _containers(rlhfjob):
        for mount in container.get("volumeMounts") or ():
            if mount.get("name") not in volumes or mount.get("subPathExpr"):
                continue
            at, below = _normal(str(mount.get("mountPath") or "/")), _normal(str(mount.get("subPath") or ""))
            for _, place, text in _words(container):
                for path in _PATH.findall(text):
                    inside = _inside(_normal(path), at)
                    if inside and _CHECKPOINTS.search(f"{place} {text.replace(path, '')}"):
                        found.add(_OF_ONE.sub("", _normal(f"{below}/{inside}")) or "/")
    return found.pop() if len(found) == 1 and spec not in found else ""


_OF_ONE = re.compile(r"/((best_)?(global_)?step[-_]|global_step|checkpoint-|iter_)[\w-]*$")
_CHECKPOINTS = re.compile(r"checkpoint|ckpt|output|save", re.IGNORECASE)


def _inside(path: str, folder: str) -> str:
    return path[len(folder) :].strip("/") if path.startswith(f"{folder.rstrip('/')}/") else ""


def _normal(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _own_address(container: Object) -> str:
    """Return what a server is to bind to: the pod's address, where the container has it as a variable."""
    for variable in container.get("env") or ():
        if get(variable, ("valueFrom", "fieldRef", "fieldPath")) == "status.podIP":
            return f"$({variable.get('name')})"
    return "0.0.0.0"


def _words(container: Object) -> Iterator[tuple[str, str, str]]:
    """Yield the words of a container's command line and its variables: (field, what it is for, text)."""
    for field in ("command", "args"):
        before = ""
        for index, word in enumerate(container.get(field) or ()):
            yield f"{field}[{index}]", before, str(word)
            before = str(word) if str(word).startswith("-") else ""
    for index, variable in enumerate(container.get("env") or ()):
        if variable.get("value") is not None:
            yield f"env[{index}].value", str(variable.get("name")), str(variable["value"])


def _containers(rlhfjob: Object) -> Iterator[tuple[int, Object]]:
    containers = _pod(rlhfjob).get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, Mapping):
            yield index, container


def _pod(rlhfjob: Object) -> Object:
    template = get(rlhfjob, ("spec", "workload", "template"))
    if not isinstance(template, Mapping):
        return {}
    kind = find(template.get("apiVersion", "batch/v1"), template.get("kind", "Job"))
    found = get(template, (*kind.pod_template, "spec")) if kind is not None else None
    return found if isinstance(found, Mapping) else {}
