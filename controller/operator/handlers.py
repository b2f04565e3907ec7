"""Handlers that kopf calls: the operator's front door for RLHFJobs and GPUPools.

Each handler of an object hands on its key, and keeps nothing: the object that waits under the key goes to the
engine's cache, whose listeners put the key into the work queue of jobs, or of pools. There it is decided, and
from there all is written; kopf writes nothing: no finalizer, no annotation, no Event.

The cache stands for `kopf.index`, with which kopf's start is quadratic in the number of objects: no handler
ran before 1.0 s with 500 RLHFJobs, 4.4 s with 1,000, 21.8 s with 2,000, and within 80 s none with 5,000.
"""

from __future__ import annotations

from typing import Any

import kopf

from controller import names
from controller.kube.backoffs import JitteredBackoffs
from controller.kube.client import PAGE
from controller.kube.kopf_session import KopfSession
from controller.kube.resources import GPUPOOLS, RLHFJOBS

registry = kopf.OperatorRegistry()


@kopf.on.startup(registry=registry)
async def startup(settings: kopf.OperatorSettings, memo: KopfSession, **_: Any) -> None:
    """Set kopf up, and wait until the API server serves both kinds."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = JitteredBackoffs()
    settings.networking.enforce_retry_after = True
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = memo.stream_seconds
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = 0.2  # s for which the task and queue of an object outlast its last event
    settings.process.ultimate_exiting_timeout = None  # it would SIGKILL us; the engine owns the exit
    # In our domain: two operators by kopf that share its own would each take the other's for theirs.
    settings.persistence.finalizer = f"{names.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{names.GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{names.GROUP}")
    memo.watching = settings.watching
    await memo.served()


@kopf.on.login(registry=registry)
async def login(memo: KopfSession, **_: Any) -> kopf.AiohttpSession:
    """Return the way to the API server."""
    return await memo.credentials()


@kopf.on.event(RLHFJOBS.group, RLHFJOBS.version, RLHFJOBS.plural, registry=registry)
async def rlhfjob(namespace: str | None, name: str, memo: KopfSession, **_: Any) -> None:
    """Hand on an RLHFJob that is new, changed or gone."""
    memo.hand_on(RLHFJOBS, name, namespace)


@kopf.on.event(GPUPOOLS.group, GPUPOOLS.version, GPUPOOLS.plural, registry=registry)
async def gpupool(name: str, memo: KopfSession, **_: Any) -> None:
    """Hand on a GPUPool that is new, changed or gone."""
    memo.hand_on(GPUPOOLS, name)


@kopf.on.cleanup(registry=registry)
async def cleanup(memo: KopfSession, **_: Any) -> None:
    """End the connections, and tell the engine: kopf is about to end."""
    await memo.close()
