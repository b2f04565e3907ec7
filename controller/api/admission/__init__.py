"""ValidatingAdmissionPolicies: what RBAC alone cannot say.

`author`: nobody has the operator do what they may not do themselves. `accounts`: the operator's own account
writes what the operator writes, and nothing beyond it, whoever holds its token. `gpu_pods`: a pool's GPUs are
had through its queue.

Each expression stands alone: its message names one thing, and tests/policies shows of each that something
turns without it.

May import: the modules of `controller.api`.
Tests: tests/policies.
"""

from controller.api.admission.base import CHART, PLAIN, Install, Json, manifests_of
from controller.api.admission.policies import manifests, policies

__all__ = ["CHART", "PLAIN", "Install", "Json", "manifests", "manifests_of", "policies"]
