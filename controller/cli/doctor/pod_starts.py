"""Checks of pods that have their node and do not start, by the Events that alone say why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, unknown, wrong
from controller.cli.job_view import Reading
from controller.kube.errors import ApiError
from controller.kube.resources import EVENTS
from controller.workloads.pod_starts import held_up, is_starting

STARTS_ASKED = 8  # pods: each is a request


async def starts(api: CallerApi, job: Reading, found: Sequence[Mapping[str, Any]]) -> AsyncIterator[Finding]:
    """Yield which pods have their node and cannot start, by what their Events say."""
    for pod in [pod for pod in found if is_starting(pod)][:STARTS_ASKED]:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        look = f"kubectl describe pod {name}{job.flags()}"
        try:
            events, _ = await api.list(EVENTS, job.namespace, fields=f"involvedObject.uid={uid}")
        except ApiError as error:
            yield unknown("pods", f"{name} has not started; its Events cannot be read: {error.message}", look)
            continue
        if (held := held_up(name, events)) is not None:
            yield wrong("pods", f"{name}: {held.waits}, {held.message}", look)
