"""Scrapes a trainer's metrics: whatever comes back, a ScrapeView comes out.

A trainer is a stranger: it may be slow, endless, hostile or not there. So only allowed addresses are asked,
and by ``fetch``'s guarded GET.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from yarl import URL

from controller.frozen import dataclass
from controller.metrics.address import AddressPolicy
from controller.metrics.fetch import Caps, fetch
from controller.metrics.parse import DEFAULT_LIMITS, Evals, Limits, MetricsError, read
from controller.policy.job import Gang, ScrapeOutcome, ScrapeView
from controller.policy.types import JobKey
from controller.untrusted_text import printable

_REMEMBERED = 20_000  # targets whose evals are known by their digest, to parse only what is new


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to scrape: its ``status.podIP``, every ``interval`` s, one Primary metric.

    ``others`` are the spec's further metrics whose evals are wanted. ``path`` may carry a query.
    ``pod`` is the pod's uid, ``pod_created`` (s) when it was made, ``member`` its completion index: a page is
    known by the pod that was asked. ``job`` is the job that the pod speaks for. ``gang``: the pod is only
    whom to ask first, and others of its gang may speak (`gang.GangScraper`).

    Raises:
        ValueError: port or path cannot be part of an address.
    """

    ip: str
    port: int
    metric: str
    path: str = "/metrics"
    interval: float = 15.0
    others: tuple[str, ...] = ()
    pod: str = ""
    pod_created: float = 0.0
    member: int = 0
    job: JobKey = ""
    gang: Gang | None = None

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"scrape port {self.port}: expected 1 to 65535")
        if not self.path.startswith("/"):
            raise ValueError(f"scrape path {self.path!r}: expected a path that begins with '/'")

    @property
    def url(self) -> URL:
        return _url(self.ip, self.port, self.path)


def _url(ip: str, port: int, path: str) -> URL:
    path, _, query = path.partition("?")
    return URL.build(scheme="http", host=ip, port=port, path=path, query_string=query)


@functools.lru_cache(maxsize=256)
def _encoded(path: str) -> str:
    """Return a target's path and query as a request line holds them: of thousands of targets most have the
    same."""
    return _url("0.0.0.0", 80, path).raw_path_qs


class _LastRead(NamedTuple):
    """By what a target's last page is known again. What it said is remembered by whoever got the view."""

    digest: bytes
    notes: tuple[str, ...]
    at: float  # s, of its view


class Scraper:
    """Scrapes targets, each by a connection of its own: a kept one could meet the next owner of a pod's IP.

    Args:
        addresses: which pod IPs may be scraped.
        timeout: s, from connecting to the last byte.
        connect_timeout: s, for the connection alone.
        wall: the time stamped on a view, s since the epoch.
        last: the last view of a job as it is remembered; of a page with the same evals it saves parsing them.
    """

    def __init__(
        self,
        addresses: AddressPolicy | None = None,
        *,
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        limits: Limits = DEFAULT_LIMITS,
        wall: Callable[[], float] = time.time,
        last: Callable[[JobKey], ScrapeView | None] = lambda job: None,
    ) -> None:
        self._addresses = addresses or AddressPolicy()
        self._caps = Caps(timeout, min(connect_timeout, timeout), limits.body_bytes)
        self._limits = limits
        self._wall = wall
        self._last = last
        self._known: OrderedDict[Target, _LastRead] = OrderedDict()

    async def scrape(self, target: Target) -> ScrapeView:
        """Read a target once. Never raises for anything the target or the network does."""
        outcome, message = ScrapeOutcome.REFUSED_ADDRESS, self._addresses.problem(target.ip)
        if message is None:
            try:
                body = await fetch(target.ip, target.port, _encoded(target.path), self._caps)
                return self._read(target, body)
            except MetricsError as error:
                outcome, message = error.outcome, f"{target.url}: {error.message}"
        return ScrapeView(outcome, printable(message, 400), at=self._wall())

    def _read(self, target: Target, body: bytes) -> ScrapeView:
        """Return what the page says; its evals are parsed again only if their lines are not those of the view
        that is remembered."""
        known, before = self._known.get(target), None
        if known is not None:
            last = self._last(target.job)
            if last is not None and last.at == known.at:
                before = Evals.of(known.digest, known.notes, last)
        view, evals = read(body, target.metric, self._limits, target.others, before)
        at = self._wall()
        self._known[target] = _LastRead(evals.digest, evals.notes, at)
        self._known.move_to_end(target)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return dataclasses.replace(
            view, at=at, pod=target.pod, pod_created=target.pod_created, member=target.member
        )
