"""Checks of what the API server does not do for a job, by the operator's newest Events on it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, wrong
from controller.cli.history import last_seen
from controller.cli.job_view import Reading
from controller.kube.resources import EVENTS

RECENT = 600.0  # s: the operator tries again at least every five minutes
CURES = {
    "WebhookFails": (
        "see whether what serves that webhook runs (Kueue's controller, say): "
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
    ),
    "ActionRefused": "change what the message names: in the spec, the quota or the admission policy",
}


async def refusals(api: CallerApi, job: Reading) -> AsyncIterator[Finding]:
    """Yield what the operator was refused for a job within the last ten minutes, the newest of each kind."""
    uid, now = job.obj["metadata"].get("uid"), time.time()
    events, _ = await api.list(EVENTS, job.namespace, fields=f"involvedObject.uid={uid}")
    for reason, cure in CURES.items():
        found = [one for one in events if one.get("reason") == reason and now - last_seen(one) < RECENT]
        if found:
            newest = max(found, key=last_seen)
            yield wrong("API server", f"{reason}: {newest.get('message', '')}", cure)
