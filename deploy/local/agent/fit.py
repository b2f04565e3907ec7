"""Tell if a node can run a pod: what it asks for against what is free, and what this node never does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from controller.kube.client import Object
from controller.names import GPU_RESOURCE
from deploy.local.agent import affinity, quantity
from deploy.local.agent.probes import HANDLERS
from deploy.local.agent.projection import SOURCES
from deploy.local.agent.volumes import KINDS

__all__ = ["GPU_RESOURCE", "Refusal", "ignored_settings", "refusal", "requests_of"]

_ENFORCED = ("cpu", "memory", GPU_RESOURCE)


class Refusal(NamedTuple):
    """Reason and message in the status of a pod that is failed instead of run."""

    reason: str
    message: str


def requests_of(pod: Object) -> quantity.Amounts:
    """Return what a pod needs at its peak: main containers and sidecars together, or an init container beside
    the sidecars that were started before it; plus overhead. Pod-level requests count where given."""
    spec = pod["spec"]
    together: quantity.Amounts = {}
    peak: quantity.Amounts = {}
    for container in spec.get("initContainers") or []:
        needs = _requests(container)
        if container.get("restartPolicy") == "Always":
            together = quantity.add(together, needs)
            peak = quantity.largest(peak, together)
        else:
            peak = quantity.largest(peak, quantity.add(together, needs))
    for container in spec["containers"]:
        together = quantity.add(together, _requests(container))
    total = quantity.largest(peak, together)
    total.update(_requests(spec))
    return quantity.add(total, quantity.amounts(spec.get("overhead")))


def _requests(holder: Object) -> quantity.Amounts:
    resources = holder.get("resources") or {}
    return {**quantity.amounts(resources.get("limits")), **quantity.amounts(resources.get("requests"))}


def refusal(
    pod: Object,
    name: str,
    labels: Mapping[str, str],
    allocatable: Mapping[str, Fraction],
    others: Iterable[Object],
) -> Refusal | None:
    """Return why the node of this name must not run `pod` beside the active pods `others`; None when it
    may."""
    if problem := unsupported(pod):
        return Refusal(
            "UnsupportedPod",
            f"this development node cannot run the pod: {problem} (docs/understand/local-nodes.md)",
        )
    if problem := affinity.mismatch(pod, name, labels):
        return Refusal("NodeAffinity", f"Pod was rejected: {problem}")
    neighbours = list(others)
    if (most := allocatable.get("pods")) is not None and len(neighbours) + 1 > most:
        return Refusal("OutOfpods", _short("pods", Fraction(1), Fraction(len(neighbours)), most))
    used: quantity.Amounts = {}
    for other in neighbours:
        used = quantity.add(used, requests_of(other))
    for resource, wanted in requests_of(pod).items():
        taken, offered = used.get(resource, Fraction(0)), allocatable.get(resource, Fraction(0))
        if wanted > 0 and (resource in _ENFORCED or "/" in resource) and taken + wanted > offered:
            return Refusal(f"OutOf{resource}", _short(resource, wanted, taken, offered))
    clash = _host_ports(pod) & {port for other in neighbours for port in _host_ports(other)}
    if clash:
        return Refusal("NodePorts", f"Pod was rejected: host port {min(clash)[1]} is in use on this node")
    return None


def _short(name: str, wanted: Fraction, used: Fraction, capacity: Fraction) -> str:
    return (
        f"Pod was rejected: Node didn't have enough resource: {name}, requested: {quantity.show(wanted)}, "
        f"used: {quantity.show(used)}, capacity: {quantity.show(capacity)}"
    )


def _host_ports(pod: Object) -> set[tuple[str, int]]:
    return {
        (port.get("protocol") or "TCP", port["hostPort"])
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or []
        if port.get("hostPort")
    }


def unsupported(pod: Object) -> str | None:
    """Return the first thing in a pod's spec that a local process cannot have; None when there is nothing."""
    spec = pod["spec"]
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        return f"os {spec['os']['name']!r}"
    if spec.get("runtimeClassName"):
        return f"runtimeClassName {spec['runtimeClassName']!r}"
    if spec.get("resourceClaims"):
        return "resourceClaims (dynamic resource allocation)"
    if _host_ports(pod) and not spec.get("hostNetwork"):
        return "hostPort without hostNetwork: nothing forwards a node's ports to pods"
    for volume in spec.get("volumes") or []:
        kinds = {kind for kind in volume if kind != "name"} - KINDS
        if kinds:
            return f"volume {volume['name']!r} of kind {', '.join(sorted(kinds))}"
        for source in (volume.get("projected") or {}).get("sources") or []:
            if strange := {*source} - SOURCES:
                return f"volume {volume['name']!r} with projected source {', '.join(sorted(strange))}"
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        if container.get("volumeDevices"):
            return f"container {container['name']!r} with block devices"
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            if "grpc" in (container.get(kind) or {}):
                return f"container {container['name']!r} with a gRPC {kind}"
        for hook in ("postStart", "preStop"):
            handler = (container.get("lifecycle") or {}).get(hook) or {}
            if strange := {*handler} - HANDLERS:
                return (
                    f"container {container['name']!r} with a {hook} hook of kind {', '.join(sorted(strange))}"
                )
    return None


# Of securityContexts: as whom a container runs. (fsGroup: its processes are in the group, volumes stay.)
HONOURED = frozenset({"runAsUser", "runAsGroup", "supplementalGroups"})


def ignored_settings(pod: Object, changes_users: bool) -> list[str]:
    """Return what the pod asks for that is accepted and has no effect here, for one note on the pod.

    ``changes_users``: containers run as the users that they ask for.
    """
    honoured = HONOURED if changes_users else frozenset()
    spec = pod["spec"]
    found = [
        f"spec.{name}"
        for name in ("hostPID", "hostIPC", "shareProcessNamespace", "dnsConfig")
        if spec.get(name)
    ]
    found += [
        f"spec.securityContext.{key}" for key in sorted((spec.get("securityContext") or {}).keys() - honoured)
    ]
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        where = f"container {container['name']}"
        asked = (container.get("securityContext") or {}).keys() - honoured
        found += [f"{where}: securityContext.{key}" for key in sorted(asked)]
        found += [f"{where}: {key}" for key in ("stdin", "tty") if container.get(key)]
        limits = {*((container.get("resources") or {}).get("limits") or {})} & {
            "cpu",
            "memory",
            "ephemeral-storage",
        }
        found += [f"{where}: limits.{key}" for key in sorted(limits)]
    for volume in spec.get("volumes") or []:
        settings = (volume.get("emptyDir") or {}).keys() & {"medium", "sizeLimit"}
        found += [f"volume {volume['name']}: emptyDir.{key}" for key in sorted(settings)]
    found += [f"ephemeral container {c['name']}" for c in spec.get("ephemeralContainers") or []]
    return found
