"""The API: read-only, no secrets in it, and every error a sentence with a reason code.

    GET /apis/evalstop.dev/v1alpha1/gpupools                               pools there are
    GET /apis/evalstop.dev/v1alpha1/gpupools/{pool}/queue                  who waits, next one first
    GET /apis/evalstop.dev/v1alpha1/gpupools/{pool}/queue/{ns}/{name}      one job
    GET /apis/evalstop.dev/v1alpha1/workergroups                           worker groups: who has the turn
    GET /apis/evalstop.dev/v1alpha1/workergroups/{name}                    one of them

It asks nobody who they are: it is served on the pod's loopback address unless told otherwise, so that it is
reached by ``kubectl port-forward``, which the API server authenticates and authorizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from controller import names
from controller.web.groups import Group, Groups, GroupSource
from controller.web.hosts import HostGuard, Hosts
from controller.web.positions import PlannedPool, Pools, Queue, QueuePosition, place, queue
from controller.web.queue_api import GROUPS, MOST_ITEMS, ROOT


class Source(Protocol):
    """Source of the answers; the operator is one."""

    def pools(self) -> list[str]:
        """Return names of all GPUPools there are, in order."""
        ...

    def problem(self, pool: str) -> str | None:
        """Return why a GPUPool that is there cannot be used; None: it can."""
        ...

    def planned(self, pool: str) -> PlannedPool | None:
        """Return the pool's newest plan; None: none was made yet."""
        ...


class Refusal(HTTPException):
    """An error with a reason code."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(status, message)
        self.reason = reason


def create(
    source: Source, clock: Callable[[], float], hosts: Hosts | None = None, groups: GroupSource | None = None
) -> FastAPI:
    """Return the app over a source. ``clock``: seconds since the epoch. ``hosts``: by which it may be asked;
    it asks nobody who they are, so it must not answer a page that made its own name resolve to this address.
    ``groups``: of worker groups; None: there are none.
    """
    app = FastAPI(title="EvalStop queues", version=names.VERSION, docs_url=None, redoc_url=None)

    async def pools() -> Pools:
        return Pools(items=tuple(source.pools()))

    async def the_queue(pool: str, limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 500) -> Queue:
        return queue(_planned(source, pool), clock(), limit)

    async def one_job(pool: str, namespace: str, name: str) -> QueuePosition:
        found = place(_planned(source, pool), f"{namespace}/{name}", clock())
        if found is None:
            message = f"RLHFJob {namespace}/{name} does not stand before GPUPool {pool!r}: there is no such "
            message += "job, its spec.pool is another, it is stopped, or it has ended"
            raise Refusal(404, "JobNotFound", message)
        return found

    async def all_groups() -> Groups:
        found = [groups.group(name) for name in groups.names()] if groups is not None else []
        return Groups(items=tuple(one for one in found if isinstance(one, Group)))

    async def one_group(name: str) -> Group:
        there = groups.names() if groups is not None else []
        if groups is None or name not in there:
            known = ", ".join(there[:20]) or "none"
            raise Refusal(404, "GroupNotFound", f"there is no WorkerGroup {name!r}; there are: {known}")
        found = groups.group(name)
        if isinstance(found, str):
            raise Refusal(409, "GroupNotReadable", f"WorkerGroup {name!r}: {found}")
        return found

    app.add_api_route(ROOT, pools, methods=["GET"])
    app.add_api_route(GROUPS, all_groups, methods=["GET"])
    app.add_api_route(f"{GROUPS}/{{name}}", one_group, methods=["GET"])
    app.add_api_route(f"{ROOT}/{{pool}}/queue", the_queue, methods=["GET"])
    app.add_api_route(f"{ROOT}/{{pool}}/queue/{{namespace}}/{{name}}", one_job, methods=["GET"])
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(HostGuard, hosts=hosts or Hosts())
    return app


def _planned(source: Source, pool: str) -> PlannedPool:
    there = source.pools()
    if pool not in there:
        known = ", ".join(there[:20]) or "none"
        raise Refusal(404, "PoolNotFound", f"there is no GPUPool {pool!r}; there are: {known}")
    if (problem := source.problem(pool)) is not None:
        raise Refusal(409, "PoolNotUsable", f"GPUPool {pool!r}: {problem}")
    found = source.planned(pool)
    if found is None:
        raise Refusal(503, "NotPlannedYet", f"GPUPool {pool!r} has not been planned yet; ask again shortly")
    return found


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reason = error.reason if isinstance(error, Refusal) else str(error.detail).title().replace(" ", "")
    headers = dict(error.headers or {})
    if error.status_code == 503:
        headers["Retry-After"] = "1"
    message = (
        error.detail if isinstance(error, Refusal) else f"{error.detail}: {request.method} {request.url.path}"
    )
    return JSONResponse({"reason": reason, "message": message}, error.status_code, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    why = str(first["msg"]).removeprefix("Value error, ")
    message = f"{field}: {str(first.get('input'))[:60]!r} is not allowed: {why}"
    return JSONResponse({"reason": "BadRequest", "message": message}, 400)
