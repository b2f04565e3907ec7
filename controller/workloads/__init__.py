"""Workloads that train: built from templates, started, suspended, and read into the brain's words.

What differs between kinds is one row of `kinds.KINDS`; everything else here is pure functions on plain
dicts as the API server sends them.

May import: `controller.api`, `controller.policy`; nothing of kube, metrics or checkpoints (contract "Arrows
run one way").
Tests: tests/workloads.
"""

from controller.objects import controller_of
from controller.workloads.child import (
    build_child,
    child_problem,
    expiry_note,
    owner_reference,
    run_configmap,
    template_problem,
    template_shape_problem,
)
from controller.workloads.dryrun import server_problem
from controller.workloads.hints import address_hint, folder_hint
from controller.workloads.kinds import JOB, KINDS, Kind, find, kind_of, supported
from controller.workloads.pods import gpus, owned, pod_view
from controller.workloads.problems import ProblemError
from controller.workloads.referred import ref_problem
from controller.workloads.running import (
    node_selector,
    pod_annotations,
    pool_toleration,
    queue_of,
    queue_problem,
    restart_patch,
    scaled_down,
    start_patch,
    start_problem,
    strip_queue_patch,
    suspend_patch,
    tolerations,
    view,
)
from controller.workloads.scheduling import Scheduling, priority_class_of

__all__ = [
    "JOB",
    "KINDS",
    "Kind",
    "ProblemError",
    "Scheduling",
    "address_hint",
    "build_child",
    "child_problem",
    "controller_of",
    "expiry_note",
    "find",
    "folder_hint",
    "gpus",
    "kind_of",
    "node_selector",
    "owned",
    "owner_reference",
    "pod_annotations",
    "pod_view",
    "pool_toleration",
    "priority_class_of",
    "queue_of",
    "queue_problem",
    "ref_problem",
    "restart_patch",
    "run_configmap",
    "scaled_down",
    "server_problem",
    "start_patch",
    "start_problem",
    "strip_queue_patch",
    "supported",
    "suspend_patch",
    "template_problem",
    "template_shape_problem",
    "tolerations",
    "view",
]
