"""Asks the members of a gang until it is known who of them speaks; from then on only that one.

Who is asked next, and who is believed, is `policy.job.speaker`'s to say; here they are asked, a few at a
time: members that do not answer at all take seconds each. They take the one slot that their job has in the
scrape loop. Until each was asked once the search goes on at the next turn, which no failure puts off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from controller.metrics.scrape import Target
from controller.policy.job import Member, ScrapeView, SpeakerSearch
from controller.policy.types import JobKey

AT_ONCE = 4  # members of a gang that are asked at the same time
TURN = 5.0  # s after which no further member is asked: as long as one page may take that does not come


class GangTarget(NamedTuple):
    """A member of a gang and how to read it."""

    member: Member
    target: Target


class GangScraper:
    """Scrapes targets, and of a gang whoever speaks.

    Args:
        scrape: reads one pod; ``Scraper.scrape``.
        members: the pods of a job's gang that may be asked, as they are now.
        monotonic: clock, s.
    """

    def __init__(
        self,
        scrape: Callable[[Target], Awaitable[ScrapeView]],
        members: Callable[[JobKey], Sequence[GangTarget]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scrape, self._members, self._now = scrape, members, monotonic
        self._searches: dict[JobKey, SpeakerSearch] = {}

    def discard(self, key: JobKey) -> None:
        """Forget a job; unknown ones are fine."""
        self._searches.pop(key, None)

    async def scrape(self, target: Target) -> ScrapeView:
        """Return what a target's pod says, or of a gang what its speaker says. Never raises for anything the
        trainer or the network does."""
        if target.gang is None:
            return await self._scrape(target)
        search = self._searches.get(target.job)
        search = SpeakerSearch(target.gang) if search is None else search.of(target.gang)
        self._searches[target.job] = search
        began = self._now()
        known: tuple[str, ScrapeView] | None = None  # uid of the pod that was asked already, and its answer
        if search.is_settled(target.pod):
            known = target.pod, await self._scrape(target)
            if search.is_unchanged(known[1]):
                return known[1]
        there = self._members(target.job)
        if not there:
            return known[1] if known is not None else await self._scrape(target)
        return await self._turn(search, target, there, began, known)

    async def _turn(
        self,
        search: SpeakerSearch,
        target: Target,
        there: Sequence[GangTarget],
        began: float,
        known: tuple[str, ScrapeView] | None,
    ) -> ScrapeView:
        """Ask whoever is to be asked in this turn, and return what came of it."""
        members = [one.member for one in there]
        targets = {one.member.pod: one.target for one in there}
        first = next((m for m in members if m.pod == target.pod), members[0])
        while True:
            some: list[Member] = []
            while len(some) < AT_ONCE:
                under_way = [m.pod for m in some]
                one = search.next_asked(members, first, target.interval, began, under_way)
                if one is None:
                    break
                if known is not None and known[0] == one.pod:
                    search.take(one, known[1], began)
                    known = None
                else:
                    some.append(one)
            if not some or self._now() - began >= TURN:
                return search.outcome(members, first, began)
            for one, view in zip(
                some, await asyncio.gather(*(self._scrape(targets[m.pod]) for m in some)), strict=True
            ):
                search.take(one, view, began)
