"""Tell from a pod that its trainer's container has ended for good while another one keeps the pod going."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller import names
from controller.objects import Object, is_terminal
from controller.policy.job import TrainerEnd
from controller.workloads.pod_trouble import CODE_MAX
from controller.workloads.requests import requested

MOST = 5  # containers that are named


def trainer_end(pod: Object, resource: str = names.GPU_RESOURCE) -> TrainerEnd | None:
    """Return how the trainer's container ended, and which containers run on; None: it runs, or the pod ends.

    The trainer's container has the port named `metrics`, else the GPUs, else it is the first. A sidecar, an
    init container that is started again always, keeps no pod going.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    containers = list(spec.get("containers") or ())
    if len(containers) < 2 or is_terminal(pod):
        return None
    trainer = _trainer(containers, resource)
    code = _ended(status, trainer)
    if code is None or (code and spec.get("restartPolicy") != "Never"):
        return None
    others = [str(c.get("name", ""))[:63] for c in containers if c.get("name") != trainer]
    going = [name for name in others if _ended(status, name) is None]
    return TrainerEnd(trainer, min(max(code, 0), CODE_MAX), tuple(going[:MOST])) if going else None


def _trainer(containers: list[Mapping[str, Any]], resource: str) -> str:
    """Return the name of the trainer's container."""
    told = [c for c in containers if names.METRICS_PORT_NAME in _ports(c)]
    holders = [c for c in containers if requested(c, resource)]
    return str((told or holders or containers)[0].get("name", ""))[:63]


def _ports(container: Mapping[str, Any]) -> Iterator[object]:
    for port in container.get("ports") or ():
        yield port.get("name")


def _ended(status: Mapping[str, Any], name: str) -> int | None:
    """Return the exit code of a container that has ended; None: it has not."""
    for one in status.get("containerStatuses") or ():
        if one.get("name") == name:
            code = ((one.get("state") or {}).get("terminated") or {}).get("exitCode")
            return code if isinstance(code, int) else None
    return None
