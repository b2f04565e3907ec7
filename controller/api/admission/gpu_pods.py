"""The policy that keeps a pool's GPUs for those who came through its queue.

A pool's nodes bear its taint. The operator puts the toleration into a workload when it admits it, and system
controllers make pods of workloads; a pod with GPUs that brings the toleration itself, or names its node, has
gone past queue and extender. Who may update GPUPools decides who gets their GPUs anyway, and is let through.
Pods without GPUs are nobody's concern here: DaemonSets tolerate what they like.
"""

from __future__ import annotations

from controller import names
from controller.api.admission.base import CHART, CHART_GROUPS, CHART_USERS, Check, Install, Policy, listed
from controller.policy.group_types import GROUPS_NAMESPACE

NAME = f"gpu-pods.{names.GROUP}"
_WRITES = ("CREATE", "UPDATE")
_UPDATED = "request.operation == 'UPDATE'"
_NEW, _OLD = "dyn(object).spec", "dyn(oldObject).spec"  # of a Job: the other kinds have no such fields


def policy(install: Install) -> Policy:
    chart = install == CHART
    users = CHART_USERS if chart else listed((install.operator, *install.users))
    groups = CHART_GROUPS if chart else listed(install.groups)
    had = f"({_UPDATED} && variables.gpusBefore"
    return Policy(
        NAME,
        (
            ("", "v1", _WRITES, ("pods", "replicationcontrollers")),
            ("batch", "v1", _WRITES, ("jobs", "cronjobs")),
            ("apps", "v1", _WRITES, ("deployments", "replicasets", "statefulsets", "daemonsets")),
        ),
        (
            ("not-a-user-who-may", f"!(request.userInfo.username in [{users}])"),
            (
                "not-a-group-that-may",
                f"!request.userInfo.?groups.orValue([]).exists(g, g in [{groups}])",
            ),
        ),
        (
            ("pod", _pod("object")),
            ("podBefore", _pod("oldObject")),
            ("gpus", _gpus("variables.pod")),
            ("gpusBefore", _gpus("variables.podBefore")),
            ("actor", _actor("object")),
            ("actorBefore", _actor("oldObject")),
            ("tolerations", _tolerations("variables.pod")),
            ("tolerationsBefore", _tolerations("variables.podBefore")),
            (
                "keeper",
                f"authorizer.group('{names.GROUP}').resource('gpupools').check('update').allowed()",
            ),
        ),
        (
            Check(
                f"request.namespace != '{GROUPS_NAMESPACE}' || variables.keeper",
                f"namespace {GROUPS_NAMESPACE} is the EvalStop operator's: ask for worker groups by "
                "spec.sharing of an RLHFJob",
            ),
            Check(
                "!variables.actor || variables.actorBefore",
                f"pods with label {names.LABEL_COMPONENT}: actor are rollout actors, which the EvalStop "
                "operator makes: leave the label out, and ask for actors by spec.rollout of an RLHFJob",
            ),
            Check(
                "!variables.gpus || variables.tolerations.size() == 0 || "
                f"{had} && variables.tolerations == variables.tolerationsBefore) || variables.keeper",
                f"pods with GPUs tolerate {names.POOL_TAINT} once the EvalStop operator has admitted them: "
                "leave the toleration out (and one without a key), and submit an RLHFJob",
            ),
            Check(
                "!variables.gpus || variables.pod.?nodeName.orValue('') == '' || "
                f"{had} && variables.podBefore.?nodeName == variables.pod.?nodeName) || variables.keeper",
                "pods with GPUs are placed by a scheduler: leave nodeName out",
            ),
            Check(
                "variables.tolerations.size() == 0 || !variables.gpus || "
                f"!{_OLD}.?suspend.orValue(false) || {_NEW}.?suspend.orValue(false) || "
                "variables.keeper",
                "the EvalStop operator starts the Jobs that may use a pool's GPUs: spec.suspend is not yours",
            ),
            Check(
                "variables.tolerations.size() == 0 || !variables.gpus || "
                f"{_NEW}.?parallelism.orValue(0) <= {_OLD}.?parallelism.orValue(0) || "
                "variables.keeper",
                "a Job on a pool's GPUs was admitted with so many pods: spec.parallelism cannot grow",
            ),
        ),
    )


def _pod(root: str) -> str:
    """Return the spec of the pods that an object is, or makes."""
    return (
        f"request.kind.kind == 'Pod' ? dyn({root}).spec : request.kind.kind == 'CronJob' ? "
        f"dyn({root}).spec.jobTemplate.spec.template.spec : dyn({root}).spec.template.spec"
    )


def _actor(root: str) -> str:
    """Return whether an object, or what it makes, says to be a rollout actor."""
    places = ("metadata", "spec.?template.?metadata", "spec.?jobTemplate.?metadata")
    nested = "spec.?jobTemplate.?spec.?template.?metadata"  # of a CronJob
    return " || ".join(
        f"dyn({root}).?{place}.?labels[?'{names.LABEL_COMPONENT}'].orValue('') == 'actor'"
        for place in (*places, nested)
    )


def _gpus(pod: str) -> str:
    """Return whether such a pod has GPUs: by count, or by a claim or a count of a device class, of which
    nobody can tell here. Counts of a class need no limit, as those of other devices do."""
    of_class = f"r.startsWith('{names.DEVICE_CLASS}')"

    def counted(of: str, which: str) -> str:
        return f"c.?resources.?{of}.orValue({{}}).exists(r, {which} && string(c.resources.{of}[r]) != '0')"

    limits = counted("limits", f"(r.startsWith('{names.DEVICES}') || {of_class})")
    return (
        f"{pod}.?resourceClaims.orValue([]).size() > 0 || "
        f"({pod}.containers + {pod}.?initContainers.orValue([])).exists(c, "
        f"{limits} || {counted('requests', of_class)})"
    )


def _tolerations(pod: str) -> str:
    """Its tolerations that a pool's taint counts: by name, or without a key, which is any taint."""
    return (
        f"{pod}.?tolerations.orValue([]).filter(t, t.?key.orValue('') in ['', '{names.POOL_TAINT}'] && "
        "t.?effect.orValue('') in ['', 'NoSchedule'])"
    )
