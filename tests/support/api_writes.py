"""Writes to a control plane, as its API server counts them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from deploy.local.plane import Plane

_VERBS = ("POST", "PUT", "PATCH", "DELETE")
_NONE = ("leases", "tokenreviews", "")  # who leads, and who asks: nothing that is kept


def api_writes(plane: Plane) -> dict[str, float]:
    """Return the write requests that the API server has answered, by resource; leases are left out."""
    text = plane.kubectl("get", "--raw", "/metrics", timeout_s=60.0)
    wanted = "\n".join(line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            resource = sample.labels.get("resource", "")
            if sample.labels.get("verb") in _VERBS and resource not in _NONE:
                found[resource] = found.get(resource, 0.0) + sample.value
    return found
