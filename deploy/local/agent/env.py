"""A container's environment, command and arguments: references resolved, `$(VAR)` expanded."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from controller.kube.client import Object
from deploy.local.agent import quantity

#: Reads a ConfigMap or Secret of the pod's namespace: (resource, name) -> object, or None when there is none.
Read = Callable[[str, str], Awaitable[Object | None]]

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """The container cannot be created as its spec and the cluster stand; worth trying again."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; ``$$`` stands for ``$``; a reference to an unknown name stays as it is."""

    def value(found: re.Match[str]) -> str:
        if found.group(1) == "$":
            return "$"
        return variables.get(found.group(2), found.group(0))

    return _REFERENCE.sub(value, text)


def field_value(pod: Object, path: str) -> str:
    """Return a downward API field of a pod as text. Raises ConfigError for a field that has none."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if found := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(found.group(1)) or {}).get(found.group(2), ""))
    match path:
        case "metadata.labels" | "metadata.annotations":
            entries = metadata.get(path.partition(".")[2]) or {}
            return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(entries.items()))
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.partition(".")[2]])
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.partition(".")[2], ""))
        case "status.podIP" | "status.hostIP":
            return str(status.get(path.partition(".")[2], ""))
        case "status.podIPs" | "status.hostIPs":
            return ",".join(entry["ip"] for entry in status.get(path.partition(".")[2]) or [])
    raise ConfigError(f"fieldRef {path!r} is not a field of the downward API")


def resource_value(pod: Object, container: str, reference: Object, allocatable: quantity.Amounts) -> str:
    """Return a container's request or limit, in units of the divisor, rounded up; unset limits are the
    node's."""
    name = reference.get("containerName") or container
    spec = pod["spec"]
    found = [c for c in [*spec["containers"], *(spec.get("initContainers") or [])] if c["name"] == name]
    if not found:
        raise ConfigError(f"resourceFieldRef: the pod has no container {name!r}")
    kind, _, resource = reference["resource"].partition(".")
    resources = found[0].get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if kind == "limits":
        raw = limits.get(resource)
        value = quantity.parse(raw) if raw is not None else allocatable.get(resource, Fraction(0))
    else:
        value = quantity.parse(requests.get(resource, limits.get(resource, 0)))
    divisor = quantity.parse(reference.get("divisor") or 1)
    return str(math.ceil(value / (divisor or 1)))


async def environment(
    pod: Object,
    container: Object,
    base: Mapping[str, str],
    read: Read,
    allocatable: quantity.Amounts,
) -> dict[str, str]:
    """Return the whole environment of a container: `base` (the lowest), then envFrom, then env in its order.

    Raises:
        ConfigError: a ConfigMap, Secret or key that is not optional is missing.
    """
    found = dict(base)
    for source in container.get("envFrom") or []:
        found.update(await _env_from(source, read))
    for entry in container.get("env") or []:
        name = entry["name"]
        if "valueFrom" not in entry:
            found[name] = expand(entry.get("value") or "", found)
            continue
        value = await _value_from(pod, container["name"], entry["valueFrom"], read, allocatable)
        if value is not None:
            found[name] = value
    return found


async def _env_from(source: Object, read: Read) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for kind, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
        if reference := source.get(kind):
            values = await _texts(resource, reference, read)
            return {prefix + key: value for key, value in values.items()}
    return {}


async def _value_from(
    pod: Object, container: str, source: Object, read: Read, allocatable: quantity.Amounts
) -> str | None:
    if reference := source.get("fieldRef"):
        return field_value(pod, reference["fieldPath"])
    if reference := source.get("resourceFieldRef"):
        return resource_value(pod, container, reference, allocatable)
    for kind, resource in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference := source.get(kind):
            values = await _texts(resource, reference, read)
            if reference["key"] not in values and not reference.get("optional"):
                raise ConfigError(
                    f"couldn't find key {reference['key']!r} in {resource[:-1]} {reference['name']!r}"
                )
            return values.get(reference["key"])
    raise ConfigError(f"valueFrom {', '.join(source)} is not supported by this node")


async def _texts(resource: str, reference: Object, read: Read) -> dict[str, str]:
    """Return the keys of a ConfigMap or Secret as text; nothing when it is missing and optional."""
    item = await read(resource, reference["name"])
    if item is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f"{resource[:-1]} {reference['name']!r} not found")
    data: dict[str, Any] = item.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
    return dict(data)


def command_line(
    container: Object, entrypoint: Sequence[str], cmd: Sequence[str], variables: Mapping[str, str]
) -> list[str]:
    """Return the container's command and args over the image's, expanded. Raises ConfigError if there is
    none."""
    command = [expand(part, variables) for part in container.get("command") or []]
    args = [expand(part, variables) for part in container.get("args") or []]
    line = [*command, *args] if command else [*entrypoint, *(args or cmd)]
    if not line:
        raise ConfigError(f"no command specified: image {container['image']!r} has none either")
    return line


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
