"""A pod's status from its containers' records: phase and conditions as kubelet derives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.kube.client import Object
from deploy.local.agent.events import now_text
from deploy.local.agent.record import INIT, MAIN, SIDECAR, Record
from deploy.local.agent.restarts import wants_restart


def phase_of(pod: Object, specs: Mapping[str, Object], records: Sequence[Record], over: bool) -> str:
    """Pending, Running, Succeeded or Failed. `over`: nothing will be started any more."""

    def done(record: Record) -> bool:
        ended = record.terminated
        return ended is not None and (
            over or not wants_restart(pod, specs[record.name], record.kind, ended["exitCode"])
        )

    inits = [record for record in records if record.kind == INIT]
    mains = [record for record in records if record.kind == MAIN]
    if any(done(record) and not record.succeeded for record in inits):
        return "Failed"
    if mains and all(done(record) for record in mains):
        return "Succeeded" if all(record.succeeded for record in mains) else "Failed"
    if over:
        return "Failed"
    if not all(done(record) for record in inits):
        return "Pending"
    sidecars = [record for record in records if record.kind == SIDECAR]
    if any(not (record.started or record.restarts) for record in sidecars) and not _begun(mains):
        return "Pending"
    return "Running" if _begun(mains) and all(_past_waiting(record) for record in mains) else "Pending"


def _begun(records: Iterable[Record]) -> bool:
    return any(_past_waiting(record) for record in records)


def _past_waiting(record: Record) -> bool:
    """Return whether a container runs, has run, or waits only for its next run."""
    return "waiting" not in record.state or bool(record.last_state) or record.restarts > 0


def conditions(pod: Object, records: Sequence[Record], phase: str, ready_to_start: bool) -> list[Object]:
    """Return the conditions that a node owns; `since` is kept where the status did not change."""
    terminal = phase in ("Succeeded", "Failed")
    lasting = [record for record in records if record.kind != INIT]
    unready = [record.name for record in lasting if not record.ready]
    uninitialized = [
        record.name
        for record in records
        if (record.kind == INIT and not record.succeeded) or (record.kind == SIDECAR and not record.started)
    ]
    begun = _begun([record for record in records if record.kind == MAIN])
    present = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or []}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or []]
    closed = [gate for gate in gates if present.get(gate) != "True"]
    if phase == "Succeeded":
        not_ready = initial = ("PodCompleted", "")
    elif phase == "Failed":
        not_ready, initial = ("PodFailed", ""), ("ContainersNotInitialized", "")
    else:
        not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
        initial = (
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(uninitialized)}]",
        )
    containers_ready = not terminal and not unready
    gate_reason = ("ReadinessGatesNotReady", f"readiness gates not met: {', '.join(closed)}")
    initialized = begun or not uninitialized or phase == "Succeeded"
    return [
        _condition(pod, "PodReadyToStartContainers", ready_to_start and not terminal, ("", "")),
        _condition(pod, "Initialized", initialized, initial, completed=phase == "Succeeded"),
        _condition(pod, "ContainersReady", containers_ready, not_ready),
        _condition(
            pod, "Ready", containers_ready and not closed, gate_reason if containers_ready else not_ready
        ),
    ]


def _condition(
    pod: Object, kind: str, true: bool, why_not: tuple[str, str], completed: bool = False
) -> Object:
    status = "True" if true else "False"
    former: Object = next(
        (c for c in (pod.get("status") or {}).get("conditions") or [] if c["type"] == kind),
        {},
    )
    since = former.get("lastTransitionTime") if former.get("status") == status else None
    reason, message = why_not if not true or completed else ("", "")
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": since or now_text(),
        "reason": reason or None,
        "message": message or None,
        "observedGeneration": pod["metadata"].get("generation"),
    }


def pod_status(
    pod: Object,
    records: Sequence[Record],
    phase: str,
    ready_to_start: bool,
    addresses: tuple[str, str],
    started: str,
    reason: str = "",
    message: str = "",
) -> dict[str, Any]:
    """Return the status, as a strategic merge patch: an empty reason or message clears what was there.

    `addresses` are (pod IP or "", host IP).
    """
    pod_ip, host_ip = addresses
    inits = [record.status() for record in records if record.kind != MAIN]
    status: dict[str, Any] = {
        "observedGeneration": pod["metadata"].get("generation"),
        "phase": phase,
        "reason": reason or None,
        "message": message or None,
        "startTime": started,
        "hostIP": host_ip,
        "hostIPs": _only(host_ip),
        "conditions": conditions(pod, records, phase, ready_to_start),
        "containerStatuses": [record.status() for record in records if record.kind == MAIN],
        "qosClass": (pod.get("status") or {}).get("qosClass"),
    }
    if inits:
        status["initContainerStatuses"] = inits
    if pod_ip:
        status["podIP"] = pod_ip
        status["podIPs"] = _only(pod_ip)
    if status["qosClass"] is None:
        del status["qosClass"]
    return status


def _only(ip: str) -> list[Object]:
    """Return a list of addresses that replaces the former one: a patch would merge them, and two are
    refused."""
    return [{"$patch": "replace"}, {"ip": ip}]
