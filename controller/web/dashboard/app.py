"""The dashboard's web application: pages without data for everybody, data for those who carry a token.

    GET /, /jobs, /jobs/{ns}/{name}, /pools, /pools/{name}, /groups, /groups/{name}, /savings, /compare
                  the frame, the same for all
    GET /view…    the same paths with the data in them
    GET /static/{file}, /healthz, /readyz

Nothing else is answered but 405 or 404: there is nothing here that writes. Tokens come in the header
``Authorization: Bearer``, never in cookies or addresses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from controller import log
from controller.web.bare_app import bare_app
from controller.web.dashboard.access import CannotReview, Gate, Viewer
from controller.web.dashboard.charts import narrow_for
from controller.web.dashboard.feed import Feed
from controller.web.dashboard.pages import NotThere, Page, Pages
from controller.web.dashboard.queues import Queues
from controller.web.dashboard.render import render, static
from controller.web.health import Health
from controller.web.hosts import Hosts
from controller.web.reviews import TooMany, Unauthenticated, bearer
from controller.web.status import health_app

_logger = log.get("evalstop.dashboard")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# A year, for this name alone: what a page of the same name, found over plain HTTP, would ask a token for.
HSTS = "max-age=31536000"
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
Make = Callable[[Viewer, Mapping[str, str], bool], Awaitable[Page]]


class Dashboard:
    """One feed, one gate, and the pages between them.

    Args:
        hosts: by which it may be asked: names of other sites that are made to resolve to it are refused.
        secure: browsers are to come back over HTTPS only.
    """

    def __init__(
        self, feed: Feed, queues: Queues, gate: Gate, hosts: Hosts | None = None, *, secure: bool = False
    ) -> None:
        self._feed, self._gate, self.hosts = feed, gate, hosts or Hosts()
        self._headers = HEADERS | ({"Strict-Transport-Security": HSTS} if secure else {})
        self._pages = Pages(feed, queues)
        self.health = Health()
        # Whoever probes has no token, and hears no more of the cluster.
        self.health.require("jobs", lambda: None if feed.ready else "not listed yet; the log says why")
        self.app = bare_app()
        self._routes()

    def _routes(self) -> None:
        get, pages = self.app.add_api_route, self._pages
        frames = (
            *("/", "/compare", "/jobs", "/jobs/{namespace}/{name}", "/pools", "/pools/{pool}", "/savings"),
            *("/groups", "/groups/{group}"),
        )
        for path in frames:
            get(path, self._frame, methods=["GET", "HEAD"])
        get("/static/{name}", self._static, methods=["GET", "HEAD"])
        for route in health_app(self.health).routes:
            self.app.router.routes.append(route)

        def view(path: str, make: Make) -> None:
            async def answer(request: Request) -> Response:
                return await self._view(request, make)

            get(f"/view{path}", answer, methods=["GET"])

        view("/", pages.overview)
        view("/jobs", pages.jobs)
        view("/compare", pages.compare)
        view("/pools", pages.all_pools)
        view("/groups", pages.all_groups)
        view("/savings", pages.saved)

        async def job(request: Request, namespace: str, name: str) -> Response:
            async def make(viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
                return await pages.job(viewer, f"{namespace}/{name}", query, narrow)

            return await self._view(request, make)

        async def pool(request: Request, pool: str) -> Response:
            async def make(viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
                return await pages.pool(viewer, pool, query, narrow)

            return await self._view(request, make)

        async def group(request: Request, group: str) -> Response:
            async def make(viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
                return await pages.group(viewer, group, query, narrow)

            return await self._view(request, make)

        get("/view/groups/{group}", group, methods=["GET"])
        get("/view/jobs/{namespace}/{name}", job, methods=["GET"])
        get("/view/pools/{pool}", pool, methods=["GET"])
        self.app.add_exception_handler(HTTPException, self._refused)
        self.app.middleware("http")(self._guard)

    # -- what every answer goes through ---------------------------------------------------------------------

    async def _guard(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        host = request.headers.get("host", "").lower()
        if not self.hosts.allow(host) and request.url.path not in ("/healthz", "/readyz"):
            message = f"this is not {host[:100]!r}: open {self.hosts.advice()}\n"
            response: Response = PlainTextResponse(message, 421)
        else:
            response = await answer(request)
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            text = "only GET is answered: the dashboard changes nothing; use kubectl or evalstop\n"
            return PlainTextResponse(text, 405, dict(error.headers or {}))
        path = request.url.path
        if error.status_code == 404 and path.startswith("/view/"):
            return self._problem(404, message=f"there is no page {path.removeprefix('/view')[:200]}")
        if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
            framed = await self._frame(request)  # its script asks for the page, and shows what that says
            framed.status_code = 404
            return framed
        return PlainTextResponse(f"{error.detail}: {path}\n", error.status_code)

    # -- answers ---------------------------------------------------------------------------------------------

    async def _frame(self, request: Request) -> Response:
        # A proxy that signs people in adds the token to every request: then nobody is asked for one.
        signed_in = "authorization" in request.headers
        values = {"hint": self._gate.hint, "signed_in": signed_in}
        return Response(render("frame.html", values), media_type="text/html")

    async def _static(self, request: Request, name: str) -> Response:
        try:
            content, known_by = static(name)
        except FileNotFoundError:
            raise HTTPException(404, "no such file") from None
        kept = "public, max-age=31536000, immutable" if request.url.query == known_by else "no-cache"
        headers = {"Cache-Control": kept, "ETag": f'"{known_by}"'}
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    async def _view(self, request: Request, make: Make) -> Response:
        token = ""
        try:
            token, peer = bearer(request)
            namespaces = {job.namespace for job in self._feed.jobs()}
            viewer = await self._gate.viewer(token, namespaces, peer)
        except Unauthenticated:
            return self._problem(401, token=bool(token))
        except TooMany as error:
            answer = self._problem(429, message=str(error))
            answer.headers["Retry-After"] = f"{error.seconds + 1:.0f}"
            return answer
        except CannotReview as error:
            # Whoever asks is not known yet: what the API server said of this process is not for them.
            _logger.warning("cannot ask who a viewer is", error=str(error))
            message = "the API server cannot be asked who you are; the dashboard's log says why"
            return self._problem(503, message=message)
        if self._feed.not_installed:
            message = "RLHFJobs and GPUPools are not installed in this cluster: kubectl apply -f crds/"
            return self._problem(503, message=message)
        if not self._feed.ready:  # else it would look as if there were no jobs, or none to be seen
            old = self._feed.stale(time.time())
            message = f"the cluster's jobs are not listed yet: {old.why if old is not None else 'under way'}"
            return self._problem(503, message=message)
        if viewer.namespaces is not None and not viewer.namespaces:
            return self._problem(403, viewer=viewer)
        if not viewer.pools and request.url.path.startswith("/view/pools"):
            return self._problem(403, viewer=viewer, kind="GPUPools")
        narrow = narrow_for(request.query_params.get("width", ""))
        query = {k: v for k, v in request.query_params.items() if k != "width"}
        if "runs" in query:
            query["runs"] = ",".join(request.query_params.getlist("runs"))
        try:
            page = await make(viewer, query, narrow)
        except NotThere as error:
            return self._problem(404, message=str(error))
        stale = self._feed.stale(time.time(), viewer.namespaces)
        body = render(page.template, {**page.values, "page": page, "stale": stale}).encode()
        known_by = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        headers = {"ETag": known_by, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
        if request.headers.get("if-none-match") == known_by:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="text/html", headers=headers)

    def _problem(self, status: int, **values: Any) -> Response:
        shown = {"status": status, "hint": self._gate.hint, "viewer": None, "kind": "RLHFJobs", "message": ""}
        headers = {"WWW-Authenticate": 'Bearer realm="evalstop"'} if status == 401 else {}
        text = render("problem.html", {**shown, "token": False, **values})
        return Response(text, status, media_type="text/html", headers=headers)
