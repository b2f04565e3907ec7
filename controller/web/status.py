"""Health for probes, metrics for Prometheus: two small apps that every process of ours serves.

Health is plain and for everybody who reaches its port: the kubelet brings no certificate and no token, and
what it reads is ``ok`` or what is lacking. Metrics tell how much is run, stopped and saved, so they are asked
for with a token, over TLS, by whoever may ``get`` the path ``/metrics``, as with every component of
Kubernetes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from controller import log
from controller.kube.errors import ApiError
from controller.web.connections import Connections
from controller.web.health import Health
from controller.web.metrics_settings import REVIEW, MetricsSettings
from controller.web.reviews import Reviews, TooMany, Unauthenticated, bearer
from controller.web.server import WebServer
from controller.web.tls import Tls, self_signed

_logger = log.get("evalstop.web")

PATH = "/metrics"


def health_app(health: Health) -> Starlette:
    """``GET /healthz`` and ``/readyz``."""

    async def healthz(_: Request) -> Response:
        return _answer(health.stalled())

    async def readyz(_: Request) -> Response:
        return _answer(health.unready(), health.notes())

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])


def metrics_app(text: Callable[[], bytes], reviews: Reviews | None) -> Starlette:
    """``GET /metrics``; with ``reviews`` for those who may."""

    async def metrics(request: Request) -> Response:
        refusal = await _refusal(request, reviews) if reviews is not None else None
        return refusal or Response(text(), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route(PATH, metrics)])


async def _refusal(request: Request, reviews: Reviews) -> Response | None:
    may = {"nonResourceAttributes": {"path": PATH, "verb": "get"}}
    try:
        user = await reviews.user(*bearer(request))
        if await reviews.may(user, may):
            return None
    except Unauthenticated:
        message = "expected the header Authorization: Bearer, with a token of the API server's"
        return PlainTextResponse(message + "\n", 401, {"WWW-Authenticate": 'Bearer realm="evalstop"'})
    except TooMany as error:
        return PlainTextResponse(f"{error}\n", 429, {"Retry-After": f"{error.seconds + 1:.0f}"})
    except ApiError as error:  # whoever asks is not known: what was said is not for them
        _logger.warning("cannot ask who may read metrics", error=str(error))
        return PlainTextResponse("the API server cannot be asked who you are; the log says why\n", 503)
    name = str(user.get("username") or "")
    message = f"{name!r} may not get the path {PATH}: bind it to ClusterRole evalstop-metrics-reader"
    return PlainTextResponse(message + "\n", 403)


def health_server(health: Health, host: str, port: int, connections: Connections) -> WebServer:
    """Return the server of a process's health, over plain HTTP."""
    return WebServer(health_app(health), host, port, connections=connections, name="health")


def metrics_server(
    settings: MetricsSettings,
    host: str,
    text: Callable[[], bytes],
    reviews: Reviews,
    connections: Connections,
) -> WebServer:
    """Return the server of a process's metrics; ``host``: that of the probes, where the settings name
    none."""
    tls: Tls | ssl.SSLContext | None = None
    certificate, key = settings.metrics_certificate, settings.metrics_key
    if settings.metrics_access == REVIEW:
        there = certificate and Path(certificate).exists()
        if certificate and not there:
            _logger.warning("metrics under a certificate of nobody's", missing=certificate)
        tls = Tls(certificate, key) if there else self_signed(["localhost"])
    app = metrics_app(text, reviews if settings.metrics_access == REVIEW else None)
    where = settings.metrics_host or host
    return WebServer(app, where, settings.metrics_port, tls=tls, connections=connections, name="metrics")


def _answer(problems: Sequence[str], notes: Sequence[str] = ()) -> Response:
    return PlainTextResponse("\n".join([*(problems or ["ok"]), *notes]) + "\n", 503 if problems else 200)
