"""Tell from a pod and its Events why none of its containers has started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.objects import has_started, is_terminal
from controller.policy.job import PodTrouble
from controller.workloads.pod_trouble import clean, pod_trouble

# Reasons of Events by which the kubelet, or the controller of volumes, says what a start waits for.
HINDER = frozenset(
    {
        "FailedAttachVolume",
        "FailedCreatePodContainer",
        "FailedCreatePodSandBox",
        "FailedMapVolume",
        "FailedMount",
        "FailedPrepareDynamicResources",
        "NetworkNotReady",
    }
)
# Those that come once volumes and network are there.
PAST = frozenset({"Pulling", "Pulled", "Created", "Started"})
SECONDS = len("2026-11-24T00:00:00")  # of a time after RFC 3339, up to its seconds


def is_starting(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has its node, and nothing of it has started, for no reason that its status
    gives."""
    placed = bool((pod.get("spec") or {}).get("nodeName"))
    leaves = bool(pod["metadata"].get("deletionTimestamp")) or is_terminal(pod)
    return placed and not leaves and not has_started(pod) and pod_trouble(pod) is None


def held_up(pod: str, events: Sequence[Mapping[str, Any]]) -> PodTrouble | None:
    """Return what a pod of this name waits for by its Events; None: they name nothing, or it is over."""
    hinder = [event for event in events if event.get("reason") in HINDER]
    if not hinder:
        return None
    newest = max(hinder, key=_at)
    if any(_at(event)[:SECONDS] >= _at(newest)[:SECONDS] for event in events if event.get("reason") in PAST):
        return None
    return PodTrouble(pod[:253], waits=str(newest["reason"]), message=clean(newest.get("message")))


def _at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
