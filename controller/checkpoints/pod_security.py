"""Check that a namespace's Pod Security level lets an access Job's pod in.

A dry run of a Job is not judged by that level; its pods are, once the Job controller makes them. The checks
are those of the Pod Security Standards (kubernetes.io/docs/concepts/security/pod-security-standards) that
depend on the trainer's template or on the files. What access Jobs always set passes every level: no
privileges, no capabilities, seccomp RuntimeDefault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.checkpoints.run_as import ROOT, RunAs

Object = Mapping[str, Any]

LABEL = "pod-security.kubernetes.io/enforce"
BASELINE, RESTRICTED = "baseline", "restricted"
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def refusal(namespace: str, level: str, user: RunAs, trainer: Object) -> str | None:
    """Return why the namespace does not let an access Job's pod in, with what to set; None: it does.

    Args:
        namespace: its name, for the message.
        level: that it enforces; "": none.
        user: as whom the pod is to run.
        trainer: the pod spec of the workload's template.
    """
    if level not in (BASELINE, RESTRICTED):
        return None
    where = f"namespace {namespace} enforces Pod Security level {level}"
    if level == RESTRICTED and user.user == ROOT:
        return (
            f"{where}, where no pod may run as user {ROOT}, and checkpoints are to be reached as user {ROOT} "
            f"(from {user.source}); {_cure(user)}, or label the namespace {LABEL}: {BASELINE}"
        )
    odd = _odd_selinux(user.pod_security(trainer)) or _odd_selinux(user.container_security(trainer))
    if odd:
        return (
            f"{where}, which does not let in seLinuxOptions {', '.join(odd)} of the template, that access "
            "Jobs have too; take that line out of its securityContext, or label the namespace "
            f"{LABEL}: privileged"
        )
    return None


def _odd_selinux(context: Object) -> list[str]:
    options = context.get("seLinuxOptions") or {}
    odd = [f"{key}: {options[key]}" for key in ("user", "role") if options.get(key)]
    return odd + [f"type: {kind}" for kind in (options.get("type") or "",) if kind not in SELINUX_TYPES]


def _cure(user: RunAs) -> str:
    if user.from_template:
        return f"have the trainer write as another user: {user.source}: 1000, say"
    return (
        "have the trainer write as another user, set spec.checkpoints.runAs: {user: <that user>}, and "
        "give it the files that are there (chown -R)"
    )
