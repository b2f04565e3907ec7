"""The last lines of a job's pods, with the caller's own right to logs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from controller import names
from controller.cli.job_view import Reading
from controller.cli.terminal import clean
from controller.kube.errors import ApiError
from controller.kube.resources import PODS
from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi

TAIL = 200  # lines of a pod
PODS_SHOWN = 4
MOST_BYTES = 200_000


async def last_lines(api: CallerApi, job: Reading) -> list[str]:
    """Return the last lines of the job's pods, or why there are none."""
    selector = f"{names.LABEL_JOB}={job.name},{names.LABEL_COMPONENT}=workload"
    try:
        pods, _ = await api.list(PODS, job.namespace, labels=selector)
    except ApiError as error:
        return [f"its pods may not be listed: {error.message}"]
    lines = []
    for pod in sorted(str(pod["metadata"]["name"]) for pod in pods)[:PODS_SHOWN]:
        path = f"/api/v1/namespaces/{quote(job.namespace)}/pods/{quote(pod)}/log"
        try:
            text = await api.raw("GET", f"{path}?tailLines={TAIL}&limitBytes={MOST_BYTES}")
        except ApiError as error:
            lines.append(f"{pod}: {error.message}")
            continue
        found = text.decode("utf-8", "replace").splitlines() or ["(nothing yet)"]
        lines += [f"{pod}: {clean(line)}" for line in found]
    if len(pods) > PODS_SHOWN:
        lines.append(f"and {counted(len(pods) - PODS_SHOWN, 'more pod')}")
    return lines or ["it has no pod now"]
