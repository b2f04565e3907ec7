"""Values by which the chart runs on a plane of `deploy.local`."""

from __future__ import annotations

from typing import Any

POOL_LABEL = "evalstop.dev/gpu-pool"
POOL: dict[str, Any] = {
    "name": "research",
    "spec": {
        "nodeSelector": [{"key": POOL_LABEL, "value": "research"}],
        "queuePolicy": {"fifo": {}},
        "allowedNamespaces": [{"name": "*", "maxPriority": 0}],
        "modeCap": "Enforce",
    },
}
_TOLERANT = [{"key": "evalstop.dev/pool", "operator": "Exists", "effect": "NoSchedule"}]
# Every node there is a GPU node; pods have loopback addresses, reach no Service, and share one 127.0.0.1.
LOCAL: dict[str, Any] = {
    "pools": [POOL],
    "operator": {
        "replicas": 2,
        "tolerations": _TOLERANT,
        "settings": {"scrapeAddresses": "Loopback", "queuePort": 0, "foreignSeconds": 1},
    },
    "extender": {"replicas": 1, "tolerations": _TOLERANT, "settings": {"lookSeconds": 1}},
    "test": {"services": False},
}
