"""Check of a workload's pod before there is one: LimitRange, ResourceQuota, Pod Security, service account.

The API server looks at those when a pod is made, and of a Job's template at none of them: the Job would be
taken, and no pod of it ever made. So a pod of the template is made in a dry run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, note, ok, wrong
from controller.kube.errors import Refused
from controller.kube.resources import PODS

Object = dict[str, Any]

_QUOTA = "exceeded quota"  # in the API server's words


def pod_of(child: Object) -> Object:
    """Return a pod as the Job's controller would make it, by the Job's template."""
    template, metadata = child["spec"]["template"], child["metadata"]
    given = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": dict(given.get("labels") or {}),
            "annotations": dict(given.get("annotations") or {}),
        },
        "spec": template["spec"],
    }


async def pod(api: CallerApi, child: Object, *, without_class: bool = False) -> AsyncIterator[Finding]:
    """Yield whether the namespace lets in a pod of the workload.

    Args:
        api: of the caller.
        child: the Job that the API server would take.
        without_class: its PriorityClass is not there, which is told already.
    """
    namespace = child["metadata"]["namespace"]
    tried = pod_of(child)
    if without_class:
        tried["spec"] = {k: v for k, v in tried["spec"].items() if k != "priorityClassName"}
    try:
        await api.create(PODS, tried, dry_run=True)
    except Refused as error:
        if error.status == 403 and "cannot create" in error.message:
            yield note(
                "pod",
                "a pod of the template was not tried, for you may not create pods: LimitRange, ResourceQuota "
                f"and Pod Security of namespace {namespace} may refuse it",
            )
        elif _QUOTA in error.message:  # others' pods may be about to go
            text = f"the namespace has no room for a pod of the template now: {error.message}"
            yield note("pod", text, f"kubectl describe quota -n {namespace}")
        else:
            text = f"a pod of spec.workload.template would be refused: {error.message}"
            yield wrong("pod", text, f"kubectl describe quota,limits -n {namespace}")
        return
    yield ok("pod", "a pod of its template would be let in (dry run)")
