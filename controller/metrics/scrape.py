"""One guarded HTTP GET of a trainer's metrics: whatever comes back, a ScrapeView comes out.

A trainer is a stranger: it may be slow, endless, hostile or not there. So: only allowed addresses, no name
resolution, no redirects, no proxy variables, no cookies, no decompression, a cap on bytes while they stream,
and on time from the first SYN to the last byte.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

import aiohttp
from yarl import URL

from controller.metrics.address import AddressPolicy
from controller.metrics.atrest import AtRest
from controller.metrics.parse import DEFAULT_LIMITS, Evals, Limits, MetricsError, printable, read
from controller.policy.jobs import ScrapeOutcome, ScrapeView

_REMEMBERED = 20_000  # targets whose evals are remembered, to parse only what is new
_HEADERS = {
    "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": "evalstop",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What to scrape, and how often: the pod's ``status.podIP``, every ``interval`` s, one Primary metric.

    ``others`` are the spec's further metrics whose evals are wanted. ``path`` may carry a query.

    Raises:
        ValueError: port or path cannot be part of an address.
    """

    ip: str
    port: int
    metric: str
    path: str = "/metrics"
    interval: float = 15.0
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"scrape port {self.port}: expected 1 to 65535")
        if not self.path.startswith("/"):
            raise ValueError(f"scrape path {self.path!r}: expected a path that begins with '/'")

    @property
    def url(self) -> URL:
        path, _, query = self.path.partition("?")
        return URL.build(scheme="http", host=self.ip, port=self.port, path=path, query_string=query)


class Scraper:
    """Scrapes targets over one shared aiohttp session; use as an async context manager.

    Args:
        addresses: which pod IPs may be scraped.
        timeout: s, from connecting to the last byte. ``connect_timeout``: s, for the connection alone.
        wall: the time stamped on a view, s since the epoch.
    """

    def __init__(
        self,
        addresses: AddressPolicy | None = None,
        *,
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        limits: Limits = DEFAULT_LIMITS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._addresses = addresses or AddressPolicy()
        self._timeout = timeout
        self._connect_timeout = min(connect_timeout, timeout)
        self._limits = limits
        self._wall = wall
        self._session: aiohttp.ClientSession | None = None
        self._known: OrderedDict[Target, tuple[bytes, AtRest[Evals]]] = OrderedDict()  # by their digest

    async def __aenter__(self) -> Scraper:
        self._session = aiohttp.ClientSession(
            # A kept connection could meet the next owner of a pod's IP: one connection per scrape.
            connector=aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=self._connect_timeout),
            headers=_HEADERS,
            auto_decompress=False,
            trust_env=False,
            read_bufsize=64 << 10,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def scrape(self, target: Target) -> ScrapeView:
        """Read a target once. Never raises for anything the target or the network does."""
        outcome, message = ScrapeOutcome.REFUSED_ADDRESS, self._addresses.problem(target.ip)
        if message is None:
            try:
                view = self._read(target, await self._body(target))
                return dataclasses.replace(view, at=self._wall())
            except MetricsError as error:
                outcome, message = error.outcome, f"{target.url}: {error.message}"
            except TimeoutError as error:
                outcome, message = ScrapeOutcome.TIMEOUT, f"{target.url}: {self._late(error)}"
            except (
                aiohttp.ClientConnectorError,
                aiohttp.ServerDisconnectedError,
                aiohttp.ClientOSError,
            ) as error:
                outcome, message = ScrapeOutcome.UNREACHABLE, f"{target.url}: {_unreachable(error)}"
            except (aiohttp.ClientError, ValueError) as error:
                # No HTTP, or an answer that ended before its announced length.
                outcome = ScrapeOutcome.NOT_PROMETHEUS
                message = (
                    f"{target.url}: the answer is not whole, valid HTTP ({printable(str(error), 160)}); "
                    "expected status 200 and Prometheus text"
                )
        return ScrapeView(outcome, printable(message, 400), at=self._wall())

    def _read(self, target: Target, body: bytes) -> ScrapeView:
        """What the page says; its evals are parsed again only if their lines are not those of last time."""
        known = self._known.get(target)
        before = known[1].open() if known is not None else None
        view, evals = read(body, target.metric, self._limits, target.others, before)
        if known is None or known[0] != evals.digest:
            self._known[target] = evals.digest, AtRest(evals)
        self._known.move_to_end(target)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return view

    def _late(self, error: BaseException) -> str:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return (
                f"no connection within {self._connect_timeout:g} s; expected a trainer that listens on its "
                "pod IP, and no NetworkPolicy between the operator and it"
            )
        return f"no complete answer within {self._timeout:g} s; expected a page that is ready when asked for"

    async def _body(self, target: Target) -> bytes:
        if self._session is None:
            raise RuntimeError("Scraper is not open: use 'async with Scraper(...) as scraper'")
        async with self._session.get(target.url, allow_redirects=False) as response:
            _check_answer(response, self._limits)
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > self._limits.body_bytes:
                    response.close()
                    raise MetricsError(
                        ScrapeOutcome.TOO_LARGE,
                        f"metrics page too large: reading stopped after {size} bytes, "
                        f"at most {self._limits.body_bytes} bytes are read",
                    )
                chunks.append(chunk)
            return b"".join(chunks)


def _check_answer(response: aiohttp.ClientResponse, limits: Limits) -> None:
    """Refuse by status and headers, before the body is read."""

    def refuse(message: str, outcome: ScrapeOutcome = ScrapeOutcome.NOT_PROMETHEUS) -> MetricsError:
        response.close()
        return MetricsError(outcome, message)

    expected = "expected status 200 and Prometheus text"
    if 300 <= response.status < 400:
        location = printable(response.headers.get("Location", "nowhere"))
        raise refuse(
            f"answered with a redirect ({response.status}) to {location}, never followed; {expected}"
        )
    if response.status != 200:
        raise refuse(f"answered {response.status} {printable(response.reason or '')}; {expected}")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise refuse(
            f"answered compressed ({printable(encoding)}) though only plain text was asked for; {expected}"
        )
    if response.content_type in ("text/html", "application/xhtml+xml"):
        raise refuse(f"answered {response.content_type}, a page for people; {expected}: is the path right?")
    length = response.content_length
    if length is not None and length > limits.body_bytes:
        raise refuse(
            f"metrics page too large: {length} bytes announced, at most {limits.body_bytes} bytes are read",
            ScrapeOutcome.TOO_LARGE,
        )


def _unreachable(error: OSError | aiohttp.ClientError) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "connection closed without an answer; expected an HTTP server on that port"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    number = getattr(cause, "errno", None)
    reason = os.strerror(number) if number else str(cause)
    return f"not reachable ({printable(reason)}); expected the trainer to listen on its pod IP at that port"
