"""The verbs for kube-scheduler over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.extender.metrics import VERBS, Metrics
from controller.extender.service import Service
from controller.extender.wire import BadRequest, parse

MOST_BYTES = 10_000_000  # of a body: 5,000 node names are 170 kB, 5,000 whole nodes some 40 MB too many
MOST_DROPPED = 10 * MOST_BYTES  # of a body that is too large, read only to be dropped
_JSON = "application/json"


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def verbs_app(service: Service, metrics: Metrics) -> Starlette:
    """``POST /filter``, ``/prioritize`` and ``/preempt``.

    Handlers take the request as it is: validating 5,000 names by a model would cost more than judging them.
    """
    answers: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
        "filter": service.filter,
        "prioritize": service.prioritize,
        "preempt": service.preempt,
    }

    def endpoint(verb: str) -> Callable[[Request], Any]:
        answer = answers[verb]

        async def handle(request: Request) -> Response:
            try:
                body = await _read(request)
                began = time.perf_counter()
                response = Response(to_json(answer(parse(body))), media_type=_JSON)
            except BadRequest as error:
                response = _error(400, str(error))
            except _Refused as error:
                response = _error(error.status, str(error))
            else:
                metrics.seconds.labels(verb).observe(time.perf_counter() - began)
            metrics.requests.labels(verb, str(response.status_code)).inc()
            return response

        return handle

    return Starlette(
        routes=[Route(f"/{verb}", endpoint(verb), methods=["POST"]) for verb in VERBS],
        exception_handlers={404: _no_such_path, 405: _wrong_method},
    )


async def _read(request: Request) -> bytes:
    """Return the body, if it is JSON and not too large. Of one that is, the rest is read and dropped, within
    reason: a client that is still writing does not hear the answer."""
    kind = request.headers.get("content-type", "")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_DROPPED:
            break
        if size <= MOST_BYTES:
            parts.append(part)
        else:
            parts.clear()
    if kind.split(";")[0].strip().lower() != _JSON:
        raise _Refused(415, f"Content-Type: {kind or 'none'}, expected {_JSON}")
    if size > MOST_BYTES:
        raise _Refused(413, f"body: more than {MOST_BYTES} bytes; {_ADVICE}")
    return b"".join(parts)


_ADVICE = "set nodeCacheCapable: true in the extender's entry, so that names travel and not whole nodes"


def _error(status: int, message: str) -> Response:
    # 413: of a very large body the rest is still on its way, and the connection cannot be used again.
    headers = {"Connection": "close"} if status == 413 else {}
    return Response(to_json({"Error": message}), status, media_type=_JSON, headers=headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    return _error(404, f"path {request.url.path}: expected one of {', '.join('/' + v for v in VERBS)}")


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = _error(405, f"method {request.method}: expected POST")
    response.headers["Allow"] = "POST"
    return response
